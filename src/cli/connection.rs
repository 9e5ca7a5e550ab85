//! Options that say which daemon, and connecting to it.

use std::path::PathBuf;
use std::time::Duration;

use crate::cli::{Talk, terminal};
use crate::client::{Address, AddressError, Client, Options};
use crate::error::{Exit, Failure};
use crate::model::JobId;
use crate::net::Socket;

/// Silence while connecting, after which the user is told what is waited for.
const PATIENCE: Duration = Duration::from_secs(1);

/// Which daemon.
#[derive(clap::Args)]
#[command(next_help_heading = "Daemon")]
pub(super) struct ConnectionOptions {
    /// The daemon: `unix:PATH` or a path
    #[arg(long, value_name = "ADDRESS", env = "STEP_RUNNER_ADDRESS")]
    address: Option<String>,
    /// Its socket [env: STEP_RUNNER_SOCKET] [default: step-runner.sock in the temporary folder]
    // Looked up in the environment by `net`: `run` alone must not take the variable for a daemon.
    #[arg(long, value_name = "PATH", conflicts_with = "address")]
    socket: Option<PathBuf>,
    /// How long to wait for a daemon that is not there yet, or full
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = humantime::parse_duration,
          env = "STEP_RUNNER_CONNECT_TIMEOUT")]
    connect_timeout: Duration,
    /// How long to make a broken connection anew
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = humantime::parse_duration,
          env = "STEP_RUNNER_RECONNECT_TIMEOUT")]
    reconnect_timeout: Duration,
}

impl ConnectionOptions {
    /// True if a daemon was named; `run` needs none (connectors.md §4).
    pub(super) fn is_named(&self) -> bool {
        self.address.is_some() || self.socket.is_some()
    }

    /// The daemon's address.
    pub(super) fn address(&self) -> Result<Address, Failure> {
        let address = match &self.address {
            Some(text) => text.parse(),
            None => Socket::choose(self.socket.as_deref(), |name| std::env::var_os(name))
                .map(Address::Unix)
                .map_err(AddressError::from),
        };
        // A socket path that is too long is 1, any other mistake 2 (connectors.md §2, §4).
        address.map_err(|error| match error {
            AddressError::Socket(_) => Failure::new(Exit::Failure, error),
            _ => Failure::new(Exit::Usage, error),
        })
    }

    /// Connects, saying so if it takes time.
    pub(super) async fn connect(&self, talk: Talk) -> Result<Client, Failure> {
        self.connect_to(self.address()?, talk).await
    }

    /// Connects to `address` with the limits of these options.
    pub(super) async fn connect_to(&self, address: Address, talk: Talk) -> Result<Client, Failure> {
        let limits =
            Options { connect_timeout: self.connect_timeout, reconnect_timeout: self.reconnect_timeout };
        let note = format!("step-runner: waiting for the daemon at {address}");
        let connect = Client::connect_with(address, limits);
        tokio::pin!(connect);
        tokio::select! {
            client = &mut connect => return Ok(client?),
            () = tokio::time::sleep(PATIENCE) => {}
        }
        if !talk.quiet {
            terminal::say(&note);
        }
        Ok(connect.await?)
    }
}

/// Parses an id of the command line.
pub(super) fn parse_id(text: &str) -> Result<JobId, String> {
    JobId::parse(text).map_err(|error| error.to_string())
}
