//! The daemons that run jobs: the agent's own, which outlives it, and those that somebody else looks after.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;

use super::place::{DAEMON_SOCKET, environment, make_folder};
use step_runner_client::net::Socket;
use step_runner_client::{Address, Client, Options};
use step_runner_model::error::Chain;
use step_runner_process::detached::{Detached, Started};
use step_runner_system::files::tail;

/// Time for the agent's own daemon to accept connections.
const START: Duration = Duration::from_secs(30);

/// Time between two looks at a daemon that starts.
const PAUSE: Duration = Duration::from_millis(20);

/// Time limit of a connection, at first and again. The decisions of the agent repeat a call that fails.
const PATIENCE: Duration = Duration::from_secs(10);

/// Time for which the daemon keeps an ended job: an agent that was away finds it.
const STALE_AFTER: &str = "24h";

/// Time without jobs and calls after which the daemon ends. The next job starts it again.
const IDLE_TIMEOUT: &str = "10m";

/// Bytes at the end of the daemon's log that a message shows.
const SHOWN: u32 = 1_000;

/// Length in bytes from which the beginning of the daemon's log is cut off at its next start, and what stays.
const MAX_LOG: u64 = 8 << 20;
const KEPT_LOG: u32 = 1 << 20;

/// All daemons of the agent.
pub(super) struct Daemons {
    own: PathBuf,
    state: Mutex<Connections>,
}

#[derive(Default)]
struct Connections {
    clients: HashMap<Option<String>, Client>,
    /// The agent's own daemon, if this process started it.
    started: Option<Started>,
}

impl Daemons {
    /// Names the folder of the agent's own daemon.
    pub(super) fn new(own: PathBuf) -> Self {
        Self { own, state: Mutex::default() }
    }

    /// Returns a client of the daemon at an address, or of the agent's own, which is started if need be. The error is a
    /// text for people.
    pub(super) async fn client(&self, address: Option<&str>) -> Result<Client, String> {
        let target = match address {
            Some(text) => text.parse::<Address>().map_err(|error| error.to_string())?,
            None => Address::Unix(self.ensure(&mut self.state.lock().await.started).await?),
        };
        let key = address.map(str::to_owned);
        if let Some(client) = self.state.lock().await.clients.get(&key) {
            return Ok(client.clone());
        }
        // Without the lock: jobs elsewhere do not wait for a daemon that does not answer.
        let options = Options { connect_timeout: PATIENCE, reconnect_timeout: PATIENCE };
        let client =
            Client::connect_with(target, options).await.map_err(|error| Chain(&error).to_string())?;
        Ok(self.state.lock().await.clients.entry(key).or_insert(client).clone())
    }

    /// Drops the connection with a daemon that is gone.
    pub(super) async fn forget(&self, address: &str) {
        self.state.lock().await.clients.remove(&Some(address.to_owned()));
    }

    /// Returns the socket of the agent's own daemon, which listens.
    async fn ensure(&self, started: &mut Option<Started>) -> Result<Socket, String> {
        let path = self.own.join(DAEMON_SOCKET);
        let socket = Socket::named(&path).map_err(|error| error.to_string())?;
        if let Some(Ok(Some(_))) = started.as_mut().map(Started::ended) {
            *started = None;
        }
        if UnixStream::connect(&path).is_ok() {
            return Ok(socket);
        }
        let cannot = |why: &dyn std::fmt::Display| format!("cannot start the agent's own daemon: {why}");
        let daemon = started.insert(self.start().map_err(|error| cannot(&error))?);
        let begun = Instant::now();
        while UnixStream::connect(&path).is_err() {
            let why = match daemon.ended() {
                Ok(None) if begun.elapsed() < START => {
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
                Ok(None) => "it does not accept connections".to_owned(),
                Ok(Some(status)) => format!("it has ended ({status}): {}", self.last_words()),
                Err(error) => error.to_string(),
            };
            *started = None;
            return Err(cannot(&why));
        }
        Ok(socket)
    }

    /// Starts the daemon in a session of its own. What it writes goes to a file.
    fn start(&self) -> io::Result<Started> {
        make_folder(&self.own)?;
        let log = OpenOptions::new().read(true).append(true).create(true).mode(0o600).clone();
        let log = log.open(self.own.join("log"))?;
        tail::keep(&log, MAX_LOG, KEPT_LOG)?;
        let (socket, state) = (self.own.join(DAEMON_SOCKET), self.own.join("state"));
        let words: [&OsStr; 11] = [
            "detach".as_ref(),
            "--".as_ref(),
            "serve".as_ref(),
            "--socket".as_ref(),
            socket.as_ref(),
            "--state-dir".as_ref(),
            state.as_ref(),
            "--stale-after".as_ref(),
            STALE_AFTER.as_ref(),
            "--idle-timeout".as_ref(),
            IDLE_TIMEOUT.as_ref(),
        ];
        let environment: Vec<(OsString, OsString)> = environment();
        Detached::start(&words, environment, &log)?.release()
    }

    fn last_words(&self) -> String {
        let end = std::fs::File::open(self.own.join("log")).and_then(|log| tail::read(log, SHOWN));
        String::from_utf8_lossy(&end.unwrap_or_default()).trim().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use futures_util::poll;

    use super::*;

    #[tokio::test]
    async fn a_daemon_that_does_not_answer_holds_up_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let silent = folder.path().join("s");
        let _listener = UnixListener::bind(&silent).unwrap();
        let daemons = Daemons::new(folder.path().to_owned());
        let mut connecting = std::pin::pin!(daemons.client(silent.to_str()));
        assert!(poll!(&mut connecting).is_pending());
        assert!(daemons.state.try_lock().is_ok());
    }

    #[test]
    fn the_last_words_of_a_daemon_are_whole_lines_of_a_log_of_any_length() {
        let folder = tempfile::tempdir().unwrap();
        let daemons = Daemons::new(folder.path().to_owned());
        assert_eq!(daemons.last_words(), "");
        std::fs::write(folder.path().join("log"), format!("{}\nlast\n", "x".repeat(4_000))).unwrap();
        assert_eq!(daemons.last_words(), "last");
    }
}
