//! Options that choose the daemon, and connecting to it.

use std::path::PathBuf;
use std::time::Duration;

use crate::cli::{Verbosity, terminal, time};
use crate::client::{Address, AddressError, Client, Options};
use crate::error::{Exit, Failure};
use crate::model::JobId;
use crate::net::Socket;

/// Time to connect before the user is told what the command waits for.
const PATIENCE: Duration = Duration::from_secs(1);

/// Limit of an attempt that is not repeated.
const AT_ONCE: Duration = Duration::from_millis(1);

/// Which daemon.
#[derive(clap::Args)]
#[command(next_help_heading = "Daemon")]
pub(super) struct ConnectionOptions {
    // `help` and no doc comment, in which the brackets would be links.
    #[arg(
        long,
        value_name = "ADDRESS",
        env = "STEP_RUNNER_ADDRESS",
        help = "The daemon: unix:PATH or a path, ssh://[USER@]HOST[:PORT][/SOCKET], docker://CONTAINER[/SOCKET], podman://…, \
                  kube://[CONTEXT@]NAMESPACE/POD[/CONTAINER], cmd:WORDS"
    )]
    address: Option<String>,
    /// A command that connects with the daemon, ending in `step-runner proxy`: the same as --address cmd:WORDS
    #[arg(long, value_name = "WORDS", env = "STEP_RUNNER_VIA", conflicts_with_all = ["address", "socket"])]
    via: Option<String>,
    /// Its socket [env: STEP_RUNNER_SOCKET] [default: step-runner.sock in the temporary folder]
    // `net` reads the variable, not clap: `run` must not take the variable alone for a daemon.
    #[arg(long, value_name = "PATH", conflicts_with = "address")]
    socket: Option<PathBuf>,
    /// How long to wait for a daemon that is not there yet, or full
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time::any,
          env = "STEP_RUNNER_CONNECT_TIMEOUT")]
    connect_timeout: Duration,
    /// Wait for a daemon whose socket is not there yet, as run and submit do
    #[arg(long, env = "STEP_RUNNER_WAIT")]
    wait: bool,
    /// How long to try to restore a broken connection
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = time::any,
          env = "STEP_RUNNER_RECONNECT_TIMEOUT")]
    reconnect_timeout: Duration,
}

impl ConnectionOptions {
    /// True if a daemon was named; `run` needs none (connectors.md §4).
    pub(super) fn is_named(&self) -> bool {
        self.address.is_some() || self.via.is_some() || self.socket.is_some()
    }

    pub(super) fn address(&self) -> Result<Address, Failure> {
        let address = match (&self.address, &self.via) {
            (Some(text), _) => text.parse(),
            (None, Some(words)) => Address::via(words),
            (None, None) => Socket::choose(self.socket.as_deref(), |name| std::env::var_os(name))
                .map(Address::Unix)
                .map_err(AddressError::from),
        };
        // A socket path that is too long ends with exit code 1, any other mistake with 2 (connectors.md §2, §4).
        address.map_err(|error| match error {
            AddressError::Socket(_) => Failure::new(Exit::Failure, error),
            _ => Failure::new(Exit::Usage, error),
        })
    }

    /// Connects for a command about jobs that are there, and tells the user if that takes time. Without a socket no daemon
    /// has such a job, so that is an error at once unless the user wants to wait.
    pub(super) async fn connect(&self, verbosity: Verbosity) -> Result<Client, Failure> {
        let address = self.address()?;
        let is_absent = matches!(&address, Address::Unix(socket) if !socket.path().exists());
        let connect_timeout = if is_absent && !self.wait { AT_ONCE } else { self.connect_timeout };
        self.connect_within(address, connect_timeout, verbosity).await
    }

    /// Connects to `address` with the time limits of these options.
    pub(super) async fn connect_to(&self, address: Address, verbosity: Verbosity) -> Result<Client, Failure> {
        self.connect_within(address, self.connect_timeout, verbosity).await
    }

    async fn connect_within(
        &self,
        address: Address,
        connect_timeout: Duration,
        verbosity: Verbosity,
    ) -> Result<Client, Failure> {
        let limits = Options { connect_timeout, reconnect_timeout: self.reconnect_timeout };
        let note = format!("step-runner: waiting for the daemon at {address}");
        let connect = Client::connect_with(address, limits);
        tokio::pin!(connect);
        tokio::select! {
            client = &mut connect => return Ok(client?),
            () = tokio::time::sleep(PATIENCE) => {}
        }
        if !verbosity.quiet {
            terminal::say(&note);
        }
        Ok(connect.await?)
    }
}

pub(super) fn parse_id(text: &str) -> Result<JobId, String> {
    JobId::parse(text).map_err(|error| error.to_string())
}
