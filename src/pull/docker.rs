//! `docker-run://`: each job in its own container, with the services that it asks for (agent.md §8.5).
//!
//! Everything that is made has the name and the labels of its job, and the record has the name before. So an agent that
//! comes after a death removes what is there, and prepares anew.

mod engine;
mod images;
mod preparation;
mod program;
mod services;
mod things;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::sync::mpsc::Sender;
use tokio_util::sync::CancellationToken;

use super::daemons::Daemons;
use super::program::Programs;
use super::wanted::{Mask, Wanted};
use crate::agent::config::Docker as Settings;
use crate::agent::environment::STATE_LABEL;
use crate::agent::lifecycle::Event;
use crate::agent::outcome::EnvironmentFailure;
use engine::{Engine, LOOK, Trouble};
pub(super) use preparation::Failed;
use preparation::Preparation;
pub(super) use things::sweep;

/// Folder in the job's container with the program, and with socket and state of its daemon.
const FOLDER: &str = "/opt/step-runner";

/// The program there.
const PROGRAM: &str = "/opt/step-runner/step-runner";

/// Socket of the daemon there.
const SOCKET: &str = "/opt/step-runner/run/s.sock";

/// Time between two looks at a container.
const AGAIN: Duration = Duration::from_secs(2);

/// Exit code of a container whose first process was killed.
const KILLED: &str = "137";

/// Resources that the containers of all jobs share.
#[derive(Clone)]
pub(super) struct Engines {
    /// The programs of all jobs.
    pub(super) programs: Arc<Programs>,
    /// Id of the state folder.
    pub(super) state: String,
    /// Folder for the configuration of `docker`, which is empty.
    pub(super) config: PathBuf,
}

/// The containers of one job.
pub(super) struct Docker {
    engines: Engines,
    settings: Settings,
    host: String,
    /// Name of the job's environment.
    name: String,
    job: u64,
    /// Folder of the job's record.
    folder: PathBuf,
    /// Why the container ended while the job ran, once it was started again for the rest of its log.
    ended: Mutex<Option<String>>,
}

/// State of a container.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// It runs, or is paused.
    Running,
    /// It has ended.
    Ended {
        /// How, for people.
        how: String,
        /// True if it did not end by itself.
        is_killed: bool,
    },
    /// It is not there, or is not ours.
    Gone,
}

/// Prospects of a job after a look at its container.
pub(super) enum Fate {
    /// It may run. With a cause its container had ended, and was started for the rest of the log.
    Runs(Option<String>),
    /// It is lost.
    Lost(String),
    /// The engine does not answer.
    Unknown(String),
}

impl Docker {
    /// Names the containers of a job. Nothing is made yet.
    pub(super) fn new(engines: Engines, settings: Settings, name: String, job: u64, folder: &Path) -> Self {
        let host = engine::host(settings.host.as_deref());
        let folder = folder.to_owned();
        Self { engines, settings, host, name, job, folder, ended: Mutex::default() }
    }

    /// Returns the address of the job's daemon.
    pub(super) fn address(&self) -> String {
        let coded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let (command, socket, host) = (coded(PROGRAM), coded(SOCKET), coded(&self.host));
        format!("docker://{}?command={command}&socket={socket}&host={host}", self.name)
    }

    /// Returns the address of the engine.
    pub(super) fn host(&self) -> &str {
        &self.host
    }

    fn engine(&self, stop: CancellationToken) -> Engine {
        self.engines.engine(self.host.clone(), stop)
    }

    /// Makes everything that a job asks for, up to a daemon that answers. `lifetime` bounds the life of the container.
    pub(super) async fn prepare(
        &self,
        wanted: &Wanted,
        mask: &Mask,
        lifetime: Duration,
        daemons: &Daemons,
        events: &Sender<Event>,
        stop: CancellationToken,
    ) -> Result<(), Failed> {
        *self.ended.lock() = None;
        let engine = self.engine(stop.clone());
        let preparation =
            Preparation { docker: self, engine, wanted, mask, lifetime, folder: &self.folder, events };
        preparation.make(daemons, &stop).await
    }

    /// Removes everything of the job. True if nothing is left.
    pub(super) async fn remove(&self) -> bool {
        let engine = self.engine(CancellationToken::new());
        match things::remove(&engine, &self.engines.state, |environment| environment == self.name).await {
            Ok(_) => true,
            Err(trouble) => {
                tracing::warn!(job = self.job, "cannot remove a container, it is tried again: {trouble}");
                false
            }
        }
    }

    /// Waits for an answer about the job's container. True if it runs.
    pub(super) async fn look(&self) -> bool {
        let engine = self.engine(CancellationToken::new());
        loop {
            match self.see(&engine, &self.name).await {
                Ok(seen) => return seen == Seen::Running,
                Err(trouble) => tracing::warn!(job = self.job, "cannot look for a container: {trouble}"),
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Returns how the job's container has ended, if it has.
    pub(super) async fn end(&self) -> Option<String> {
        let engine = self.engine(CancellationToken::new());
        match self.see(&engine, &self.name).await {
            Ok(Seen::Gone) => Some("the container of the job was removed".to_owned()),
            Ok(Seen::Ended { how, .. }) => Some(format!("the container of the job {how}")),
            Ok(Seen::Running) | Err(_) => None,
        }
    }

    /// Looks at the container of a job that runs. One that has ended is started once more: its daemon knows the rest of
    /// the log.
    pub(super) async fn fate(&self) -> Fate {
        let engine = self.engine(CancellationToken::new());
        let known = self.ended.lock().clone();
        match self.see(&engine, &self.name).await {
            Ok(Seen::Running) => Fate::Runs(known),
            Ok(Seen::Gone) => Fate::Lost("the container of the job was removed while the job ran".to_owned()),
            Ok(Seen::Ended { how, .. }) => {
                let cause = format!("the container of the job {how} while the job ran");
                if let Some(cause) = known {
                    return Fate::Lost(cause);
                }
                *self.ended.lock() = Some(cause.clone());
                match engine.call(&["start", &self.name]).await {
                    Ok(_) => Fate::Runs(Some(cause)),
                    Err(_) => Fate::Lost(cause),
                }
            }
            Err(trouble) => Fate::Unknown(trouble.to_string()),
        }
    }

    async fn see(&self, engine: &Engine, name: &str) -> Result<Seen, Trouble> {
        let format = format!(
            "{{{{.State.Status}}}} {{{{.State.ExitCode}}}} {{{{.State.OOMKilled}}}} {{{{index .Config.Labels \"{STATE_LABEL}\"}}}}"
        );
        match engine.run(&["container", "inspect", "--format", &format, name], None, LOOK).await {
            Ok((text, _)) => Ok(seen(&text, &self.engines.state)),
            Err(Trouble::Missing(_)) => Ok(Seen::Gone),
            Err(other) => Err(other),
        }
    }
}

impl Engines {
    fn engine(&self, host: String, stop: CancellationToken) -> Engine {
        Engine::new(Arc::clone(&self.programs), host, self.config.clone(), stop)
    }

    /// Asks an engine if it is there. The error is a text for people.
    pub(super) async fn check(&self, settings: &Settings) -> Result<(), String> {
        let engine = self.engine(engine::host(settings.host.as_deref()), CancellationToken::new());
        let words = ["version", "--format", "{{.Server.Version}}"];
        engine.run(&words, None, LOOK).await.map(drop).map_err(|trouble| trouble.to_string())
    }
}

/// Reads what the engine says of a container.
fn seen(text: &str, state: &str) -> Seen {
    let words: Vec<&str> = text.split_whitespace().collect();
    let [status, code, is_out_of_memory, of_state] = words[..] else { return Seen::Gone };
    match status {
        _ if of_state != state => Seen::Gone,
        "running" | "paused" | "restarting" => Seen::Running,
        "removing" | "dead" => Seen::Gone,
        _ if is_out_of_memory == "true" => {
            Seen::Ended { how: "ran out of memory and was killed".to_owned(), is_killed: true }
        }
        _ if code == KILLED => Seen::Ended { how: "was killed".to_owned(), is_killed: true },
        _ => Seen::Ended { how: format!("ended with exit code {code}"), is_killed: false },
    }
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Stopped => f.write_str("it was stopped"),
            Self::Away(text) => write!(f, "the engine does not answer: {text}"),
            Self::Missing(text) | Self::Refused(text) => f.write_str(text),
        }
    }
}

impl From<Trouble> for Failed {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Stopped => Self::Stopped,
            other => Self::Environment(EnvironmentFailure::System, format!("the engine refuses: {other}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a27_what_an_engine_says_of_a_container() {
        let ended = |how: &str, is_killed| Seen::Ended { how: how.to_owned(), is_killed };
        for (text, wanted) in [
            ("running 0 false mine\n", Seen::Running),
            ("paused 0 false mine\n", Seen::Running),
            ("running 0 false other\n", Seen::Gone),
            ("running 0 false \n", Seen::Gone),
            ("exited 0 false mine", ended("ended with exit code 0", false)),
            ("exited 137 false mine", ended("was killed", true)),
            ("exited 137 true mine", ended("ran out of memory and was killed", true)),
            ("dead 0 false mine", Seen::Gone),
            ("", Seen::Gone),
        ] {
            assert_eq!(seen(text, "mine"), wanted, "{text}");
        }
    }
}
