//! A port of the loopback that stays reserved while nobody listens on it.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener};
use std::os::fd::OwnedFd;

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

    /// Listens at the port. The listener before must have ended.
    pub(crate) fn listen(&self) -> TcpListener {
        TcpListener::bind(self.address).unwrap()
    }
}
