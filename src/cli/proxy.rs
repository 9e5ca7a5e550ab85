//! `step-runner proxy` (connectors.md §2.2).

use std::path::PathBuf;
use std::time::Duration;

use super::{defect, terminal, time};
use crate::error::Exit;
use crate::net::Socket;
use crate::proxy::{self, ProxyError};

/// Connect stdin and stdout to the daemon's socket
///
/// Whoever starts it, through ssh, docker or kubectl, speaks gRPC with the daemon over the two pipes. stdout carries
/// bytes of the socket and nothing else. It ends with 0 when the daemon has closed the connection, with 1 on any failure,
/// also without a daemon: whoever speaks through it reads the reason on stderr.
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  ssh build7 step-runner proxy
  docker exec -i job step-runner proxy --socket /run/step-runner.sock --wait 10s")]
pub(super) struct Arguments {
    /// The daemon's socket [env: STEP_RUNNER_SOCKET] [default: step-runner.sock in the temporary folder]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// How long to wait for a daemon that is not there yet
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = time::any,
          env = "STEP_RUNNER_WAIT")]
    wait: Duration,
}

pub(super) fn execute(arguments: &Arguments) -> u8 {
    defect::report_panics_of_proxy();
    let socket = Socket::choose(arguments.socket.as_deref(), |name| std::env::var_os(name));
    match socket.map_err(ProxyError::from).and_then(|socket| proxy::run(socket, arguments.wait)) {
        Ok(()) => 0,
        Err(error) => {
            if !error.is_silent() {
                let remedy = error.remedy().map(|remedy| format!("; {remedy}")).unwrap_or_default();
                terminal::write_stderr(format!("step-runner proxy: {error}{remedy}\n").as_bytes());
            }
            Exit::Failure.code()
        }
    }
}
