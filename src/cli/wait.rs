//! `step-runner wait`: started by the agent in the environment of a job, never by people.

use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::{Duration, Instant};

use super::{CommandResult, time};
use crate::error::{Exit, Failure};

/// Time between two tries.
const PAUSE: Duration = Duration::from_millis(200);

/// Longest try of one address.
const TRY: Duration = Duration::from_secs(2);

/// Wait until all these addresses accept connections
#[derive(clap::Args)]
#[command(hide = true)]
pub(super) struct Arguments {
    /// Longest wait
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time::any)]
    timeout: Duration,
    /// Addresses, each as HOST:PORT
    #[arg(value_name = "HOST:PORT", required = true)]
    addresses: Vec<String>,
}

pub(super) fn execute(mut arguments: Arguments) -> CommandResult {
    let begun = Instant::now();
    loop {
        arguments.addresses.retain(|address| !accepts(address));
        if arguments.addresses.is_empty() {
            return Ok(0);
        }
        if begun.elapsed() >= arguments.timeout {
            let text = format!("these do not accept connections: {}", arguments.addresses.join(", "));
            return Err(Failure::new(Exit::Failure, text));
        }
        std::thread::sleep(PAUSE);
    }
}

fn accepts(address: &str) -> bool {
    let found = address.to_socket_addrs().into_iter().flatten();
    found.into_iter().any(|address| TcpStream::connect_timeout(&address, TRY).is_ok())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn it_ends_when_all_accept_or_the_time_is_over() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let arguments = |addresses| Arguments { timeout: Duration::ZERO, addresses };
        assert_eq!(execute(arguments(vec![address.clone()])).ok(), Some(0));
        drop(listener);
        let failure = execute(arguments(vec![address.clone(), "no such host".to_owned()])).err().unwrap();
        assert!(failure.to_string().contains(&format!("{address}, no such host")), "{failure}");
    }
}
