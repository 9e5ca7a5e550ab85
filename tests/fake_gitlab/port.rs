//! A port of the loopback that stays reserved while nobody listens on it.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket, sockopt};

/// A reserved port. Connections are refused while no listener is there, and no other program gets the port.
pub(crate) struct Port {
    /// Bound, but not listening: the system lets a listener bind beside it.
    _reserved: OwnedFd,
    address: SocketAddr,
}

impl Port {
    /// Reserves a free port.
    pub(crate) fn new() -> Self {
        let reserved = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        sockopt::set_socket_reuseaddr(&reserved, true).unwrap();
        bind(&reserved, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = SocketAddr::try_from(getsockname(&reserved).unwrap()).unwrap();
        Self { _reserved: reserved, address }
    }

    /// Returns the address of a server at the port.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Listens at the port. The listener before must have ended. A process that another thread has just forked can hold a
    /// copy of it until it executes its program, so the port can be in use for a moment.
    pub(crate) fn listen(&self) -> TcpListener {
        let start = Instant::now();
        loop {
            match TcpListener::bind(self.address) {
                Err(error) if error.kind() == ErrorKind::AddrInUse && start.elapsed() < super::PATIENCE => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                result => return result.unwrap(),
            }
        }
    }
}
