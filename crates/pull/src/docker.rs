//! `docker-run://`: each job in its own container, with the services that it asks for (agent.md §8.5).
//!
//! Everything that is made has the name and the labels of its job, and the record has the name before. So an agent that
//! comes after a death removes what is there, and prepares anew.

mod images;
mod preparation;
mod program;
mod services;
mod things;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tokio_util::sync::CancellationToken;

use super::container::{AGAIN, Fate, PROGRAM, SOCKET, Seen};
use super::daemons::Daemons;
use super::engine::{Engine, Kind, LOOK, Trouble};
use super::order::{Engines, Failed, Order};
use preparation::Preparation;
use step_runner_agent::config::Docker as Settings;
use step_runner_agent::environment::STATE_LABEL;
pub(super) use things::sweep;

/// How `docker` complains.
pub(super) static KIND: Kind = Kind {
    program: "docker",
    remedy: "install Docker's command line for jobs with `docker-run://`",
    away: &[
        "cannot connect to the docker daemon",
        "is the docker daemon running",
        "error during connect",
        "failed to connect to the docker api",
        "error response from daemon: dial unix",
    ],
    missing: &["no such container", "no such object", "no such image", "no such volume", "no such network"],
    noise: &["See 'docker", "Run 'docker"],
};

/// Engine of this machine.
const DEFAULT_HOST: &str = "unix:///var/run/docker.sock";

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

impl Docker {
    /// Names the containers of a job. Nothing is made yet.
    pub(super) fn new(engines: Engines, settings: Settings, name: String, job: u64, folder: &Path) -> Self {
        let host = host(settings.host.as_deref());
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
        engine(&self.engines, &self.host, stop)
    }

    /// Makes everything that a job asks for, up to a daemon that answers.
    pub(super) async fn prepare(
        &self,
        order: Order<'_>,
        daemons: &Daemons,
        stop: CancellationToken,
    ) -> Result<(), Failed> {
        *self.ended.lock() = None;
        let engine = self.engine(stop.clone());
        Preparation { docker: self, engine, order, folder: &self.folder }.make(daemons, &stop).await
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

/// Returns the address of an engine: that of the entry, else of the environment, else of this machine.
fn host(of_entry: Option<&str>) -> String {
    let set = || std::env::var("DOCKER_HOST").ok().filter(|host| !host.is_empty());
    of_entry.map(str::to_owned).or_else(set).unwrap_or_else(|| DEFAULT_HOST.to_owned())
}

fn engine(engines: &Engines, host: &str, stop: CancellationToken) -> Engine {
    let config = engines.config.display().to_string();
    let options = options(&config, host);
    Engine::new(&KIND, Arc::clone(&engines.programs), &options, format!("the engine at {host}"), stop)
}

/// Returns the options of each call. The configuration is never that of the agent's home.
fn options<'o>(config: &'o str, host: &'o str) -> [&'o str; 4] {
    ["--config", config, "--host", host]
}

/// Asks an engine if it is there. The error is a text for people.
pub(super) async fn check(engines: &Engines, settings: &Settings) -> Result<(), String> {
    let engine = engine(engines, &host(settings.host.as_deref()), CancellationToken::new());
    let words = ["version", "--format", "{{.Server.Version}}"];
    engine.run(&words, None, LOOK).await.map(drop).map_err(|trouble| trouble.to_string())
}

/// Reads what the engine says of a container.
fn seen(text: &str, state: &str) -> Seen {
    let words: Vec<&str> = text.split_whitespace().collect();
    let [status, code, is_out_of_memory, of_state] = words[..] else { return Seen::Gone };
    match status {
        _ if of_state != state => Seen::Gone,
        "running" | "paused" | "restarting" => Seen::Running,
        "removing" | "dead" => Seen::Gone,
        _ => Seen::ended(code.parse().unwrap_or(-1), is_out_of_memory == "true"),
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
