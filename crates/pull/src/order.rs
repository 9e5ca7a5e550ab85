//! The order for an environment: resources of all jobs, one job's wishes, and how its preparation fails.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use tokio::sync::mpsc::Sender;

use super::container::SOCKET;
use super::engine::Trouble;
use super::mask::Mask;
use super::program::Programs;
use super::wanted::Wanted;
use step_runner_agent::lifecycle::Event;
use step_runner_agent::outcome::EnvironmentFailure;

/// State of the daemon in the container.
const STATE: &str = "/opt/step-runner/run/state";

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
