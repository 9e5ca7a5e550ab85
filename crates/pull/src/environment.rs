//! An environment of a job's own: containers at an engine, or a Pod in a cluster (agent.md §8).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use tokio::sync::mpsc::Sender;
use tokio_util::sync::CancellationToken;

use super::daemons::Daemons;
use super::docker::{self, Docker};
use super::engine::Trouble;
use super::kube::{self, Kube};
use super::program::Programs;
use super::settings::{Provider, Settings};
use super::wanted::{Mask, Wanted};
use step_runner_agent::lifecycle::Event;
use step_runner_agent::outcome::EnvironmentFailure;

/// Folder in the job's container with the program, and with socket and state of its daemon.
pub(super) const FOLDER: &str = "/opt/step-runner";

/// The program there.
pub(super) const PROGRAM: &str = "/opt/step-runner/step-runner";

/// Folder there for socket and state, which every user can write.
pub(super) const RUN: &str = "/opt/step-runner/run";

/// Socket of the daemon there.
pub(super) const SOCKET: &str = "/opt/step-runner/run/s.sock";

/// State of the daemon in the container.
const STATE: &str = "/opt/step-runner/run/state";

/// Time for the daemon in a container to answer. An entrypoint may have work to do before.
pub(super) const ANSWER: Duration = Duration::from_mins(2);

/// Time between two looks at a container.
pub(super) const AGAIN: Duration = Duration::from_secs(2);

/// Lines of a container that are shown if it did not do what it is for.
pub(super) const LINES: &str = "20";

/// Exit code of a container whose first process was killed.
pub(super) const KILLED: i64 = 137;

/// Time for which the daemon keeps an ended job: an agent that was away finds it.
const STALE_AFTER: &str = "24h";

/// Time without jobs and calls after which the daemon ends, and its container with it.
const IDLE_TIMEOUT: &str = "10m";

/// Resources that the environments of all jobs share.
#[derive(Clone)]
pub(super) struct Engines {
    /// The programs of all jobs.
    pub(super) programs: Arc<Programs>,
    /// Id of the state folder.
    pub(super) state: String,
    /// Folder for the configuration of `docker`, which is empty.
    pub(super) config: PathBuf,
}

impl Engines {
    /// Asks an engine or a cluster if it is there. The error is a text for people.
    pub(super) async fn check(&self, provider: &Provider) -> Result<(), String> {
        match provider {
            Provider::Docker(settings) => docker::check(self, settings).await,
            Provider::Kubernetes(place, _) => kube::check(self, place).await,
        }
    }

    /// Removes what earlier runs of the agent left: all of this state that no record in `jobs` names.
    pub(super) async fn sweep(&self, provider: &Provider, jobs: &Path) {
        match provider {
            Provider::Docker(settings) => docker::sweep(self, settings, jobs).await,
            Provider::Kubernetes(place, _) => kube::sweep(self, place, jobs).await,
        }
    }
}

/// State of a job's container.
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

impl Seen {
    /// Reads how a container has ended.
    pub(super) fn ended(code: i64, is_out_of_memory: bool) -> Self {
        let (how, is_killed) = match code {
            _ if is_out_of_memory => ("ran out of memory and was killed".to_owned(), true),
            KILLED => ("was killed".to_owned(), true),
            code => (format!("ended with exit code {code}"), false),
        };
        Self::Ended { how, is_killed }
    }
}

/// Prospects of a job after a look at its container.
pub(super) enum Fate {
    /// It may run. With a cause its container had ended, and was started for the rest of the log.
    Runs(Option<String>),
    /// It is lost.
    Lost(String),
    /// The engine or cluster does not answer.
    Unknown(String),
}

/// A preparation that came to nothing.
pub(super) enum Failed {
    /// Nobody wants it any more.
    Stopped,
    /// It has failed.
    Environment(EnvironmentFailure, String),
    /// The container was ended from outside: another preparation may work.
    Lost(String),
}

impl From<Trouble> for Failed {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Stopped => Self::Stopped,
            other => Self::Environment(EnvironmentFailure::System, format!("it is refused: {other}")),
        }
    }
}

/// A job's wishes and secrets, as a preparation needs them.
pub(super) struct Order<'o> {
    /// Images, services and folders for the job.
    pub(super) wanted: &'o Wanted,
    /// The job's secrets.
    pub(super) mask: &'o Mask,
    /// Longest life of the environment.
    pub(super) lifetime: Duration,
    /// Where lines of the trace go.
    pub(super) events: &'o Sender<Event>,
}

impl Order<'_> {
    /// Tells the job's trace.
    pub(super) async fn line(&self, line: &str) {
        self.events.send(Event::Line(self.mask.line(line))).await.ok();
    }

    /// Returns a failure whose text may quote the job.
    pub(super) fn failed(&self, failure: EnvironmentFailure, text: &str) -> Failed {
        Failed::Environment(failure, self.mask.line(text))
    }

    /// Returns the words for the daemon of the job.
    pub(super) fn serve(&self) -> Vec<String> {
        let lifetime = format!("{}s", self.lifetime.as_secs());
        let words = ["serve", "--socket", SOCKET, "--state-dir", STATE, "--stale-after", STALE_AFTER];
        let bounds = ["--idle-timeout", IDLE_TIMEOUT, "--max-lifetime", &lifetime];
        words.iter().chain(&bounds).map(|word| (*word).to_owned()).collect()
    }

    /// Returns the variable from which the program takes these words behind an entrypoint that drops them.
    pub(super) fn spare(&self) -> (&'static str, String) {
        (step_runner_core::variables::RECOVERY_VARIABLE, STANDARD.encode(json!(self.serve()).to_string()))
    }
}

/// The environment of one job.
pub(super) enum Environment {
    /// Containers at an engine.
    Docker(Docker),
    /// A Pod in a cluster.
    Kube(Kube),
}

impl Environment {
    /// Names the environment of a job, if it has one of its own. Nothing is made yet.
    pub(super) fn of(
        settings: &Settings,
        engines: Engines,
        name: String,
        job: u64,
        folder: &Path,
    ) -> Option<Self> {
        Some(match settings.provider()? {
            Provider::Docker(of_entry) => Self::Docker(Docker::new(engines, of_entry, name, job, folder)),
            Provider::Kubernetes(place, of_entry) => {
                Self::Kube(Kube::new(engines, place, of_entry, name, job))
            }
        })
    }

    /// Returns the address of the job's daemon.
    pub(super) fn address(&self) -> String {
        match self {
            Self::Docker(docker) => docker.address(),
            Self::Kube(kube) => kube.address(),
        }
    }

    /// Returns where the job runs, for people.
    pub(super) fn place(&self) -> String {
        match self {
            Self::Docker(docker) => format!("containers of the engine at {}", docker.host()),
            Self::Kube(kube) => format!("a Pod in {}", kube.place()),
        }
    }

    /// Makes everything that a job asks for, up to a daemon that answers.
    pub(super) async fn prepare(
        &self,
        order: Order<'_>,
        daemons: &Daemons,
        stop: CancellationToken,
    ) -> Result<(), Failed> {
        match self {
            Self::Docker(docker) => docker.prepare(order, daemons, stop).await,
            Self::Kube(kube) => kube.prepare(order, daemons, stop).await,
        }
    }

    /// Removes everything of the job. True if nothing is left.
    pub(super) async fn remove(&self) -> bool {
        match self {
            Self::Docker(docker) => docker.remove().await,
            Self::Kube(kube) => kube.remove().await,
        }
    }

    /// Waits for an answer about the job's container. True if it runs.
    pub(super) async fn look(&self) -> bool {
        match self {
            Self::Docker(docker) => docker.look().await,
            Self::Kube(kube) => kube.look().await,
        }
    }

    /// Returns how the job's container has ended, if it has.
    pub(super) async fn end(&self) -> Option<String> {
        match self {
            Self::Docker(docker) => docker.end().await,
            Self::Kube(kube) => kube.end().await,
        }
    }

    /// Looks at the container of a job that runs.
    pub(super) async fn fate(&self) -> Fate {
        match self {
            Self::Docker(docker) => docker.fate().await,
            Self::Kube(kube) => kube.fate().await,
        }
    }
}
