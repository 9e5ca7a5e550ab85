//! Calls of the program `docker` (agent.md §8.5). Nothing secret is among its words.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::process::connector::StartError;
use crate::pull::program::{Input, ProgramError, Programs};

/// Time limit of a call that makes or removes something.
const CALL: Duration = Duration::from_mins(2);

/// Time limit of a call that looks at something.
pub(super) const LOOK: Duration = Duration::from_secs(20);

/// Time between two calls of an engine that does not answer.
const AGAIN: Duration = Duration::from_secs(2);

/// Engine of this machine.
const DEFAULT_HOST: &str = "unix:///var/run/docker.sock";

/// Lines of a complaint that are shown.
const SHOWN: usize = 3;

/// Words of the program if the engine does not answer.
const AWAY: [&str; 5] = [
    "cannot connect to the docker daemon",
    "is the docker daemon running",
    "error during connect",
    "failed to connect to the docker api",
    "error response from daemon: dial unix",
];

/// Words for a thing that is not there.
const MISSING: [&str; 5] =
    ["no such container", "no such object", "no such image", "no such volume", "no such network"];

/// A call that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// Nobody wants its result any more.
    Stopped,
    /// The engine does not answer.
    Away(String),
    /// There is no such thing.
    Missing(String),
    /// Anything else, in the program's words.
    Refused(String),
}

/// An engine, and what its calls have in common.
#[derive(Clone)]
pub(super) struct Engine {
    programs: Arc<Programs>,
    host: String,
    /// Folder for the program's own configuration: never the agent's home.
    config: PathBuf,
    stop: CancellationToken,
}

impl Engine {
    /// Names an engine. Calls end with `stop`.
    pub(super) fn new(
        programs: Arc<Programs>,
        host: String,
        config: PathBuf,
        stop: CancellationToken,
    ) -> Self {
        Self { programs, host, config, stop }
    }

    /// Returns the same engine with logins in another folder.
    pub(super) fn with_config(&self, config: &Path) -> Self {
        Self { config: config.to_owned(), ..self.clone() }
    }

    /// Calls the program. Returns what it wrote to standard output.
    pub(super) async fn call(&self, words: &[&str]) -> Result<String, Trouble> {
        self.run(words, None, CALL).await.map(|(stdout, _)| stdout)
    }

    /// Calls the program. Returns its standard output and error.
    pub(super) async fn run(
        &self,
        words: &[&str],
        input: Option<Input>,
        limit: Duration,
    ) -> Result<(String, String), Trouble> {
        let config = self.config.display().to_string();
        let start = ["docker", "--config", &config, "--host", &self.host];
        let line = start.iter().chain(words).map(|word| (*word).to_owned()).collect();
        match self.programs.run(line, input, limit, &self.stop).await {
            Ok(ended) if ended.is_success => Ok((ended.stdout, ended.stderr)),
            Ok(ended) => Err(trouble(&ended.stderr)),
            Err(ProgramError::Stopped) => Err(Trouble::Stopped),
            Err(error @ ProgramError::Late(_)) => {
                Err(Trouble::Away(format!("the engine at {}: {error}", self.host)))
            }
            Err(ProgramError::Start(error @ StartError::NotFound(_))) => Err(Trouble::Refused(format!(
                "{error}: install Docker's command line for jobs with `docker-run://`"
            ))),
            Err(ProgramError::Start(error)) => {
                Err(Trouble::Refused(format!("cannot start `docker`: {error}")))
            }
        }
    }

    /// Calls the program until the engine answers.
    pub(super) async fn insist(&self, words: &[&str]) -> Result<String, Trouble> {
        self.insist_with(words, None, CALL).await
    }

    /// Like [`Self::insist`], with what the program reads and the time limit of one call.
    pub(super) async fn insist_with(
        &self,
        words: &[&str],
        input: Option<&(dyn Fn() -> Input + Sync)>,
        limit: Duration,
    ) -> Result<String, Trouble> {
        let mut is_told = false;
        loop {
            match self.run(words, input.map(|input| input()), limit).await.map(|(stdout, _)| stdout) {
                Err(Trouble::Away(text)) => {
                    if !is_told {
                        tracing::warn!("the engine does not answer, and is asked again: {text}");
                        is_told = true;
                    }
                    self.pause(AGAIN).await?;
                }
                result => return result,
            }
        }
    }

    /// Waits, unless nobody wants it.
    pub(super) async fn pause(&self, time: Duration) -> Result<(), Trouble> {
        tokio::select! {
            () = tokio::time::sleep(time) => Ok(()),
            () = self.stop.cancelled() => Err(Trouble::Stopped),
        }
    }
}

/// Returns the address of an engine: that of the entry, else of the environment, else of this machine.
pub(super) fn host(of_entry: Option<&str>) -> String {
    let set = || std::env::var("DOCKER_HOST").ok().filter(|host| !host.is_empty());
    of_entry.map(str::to_owned).or_else(set).unwrap_or_else(|| DEFAULT_HOST.to_owned())
}

/// Reads the words of a program that failed.
fn trouble(stderr: &str) -> Trouble {
    let lines: Vec<&str> = stderr.lines().map(str::trim).filter(|line| is_told(line)).collect();
    let text = lines.get(lines.len().saturating_sub(SHOWN)..).unwrap_or_default().join("; ");
    let words = text.to_ascii_lowercase();
    let has = |all: &[&str]| all.iter().any(|word| words.contains(word));
    if has(&AWAY) {
        Trouble::Away(text)
    } else if has(&MISSING) {
        Trouble::Missing(text)
    } else {
        Trouble::Refused(text)
    }
}

/// True for lines that tell something about the failure.
fn is_told(line: &str) -> bool {
    !line.is_empty() && !line.starts_with("See 'docker") && !line.starts_with("Run 'docker")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_the_program_have_a_meaning() {
        let away = "Cannot connect to the Docker daemon at unix:///x.sock. Is the docker daemon running?\n";
        assert!(matches!(trouble(away), Trouble::Away(_)));
        assert!(matches!(trouble("Error: No such container: step-1\n"), Trouble::Missing(_)));
        let text = "one\ntwo\ndocker: invalid mount.\n\nRun 'docker create --help' for more information\n";
        assert_eq!(trouble(text), Trouble::Refused("one; two; docker: invalid mount.".to_owned()));
        assert_eq!(host(Some("tcp://h:2375")), "tcp://h:2375");
    }
}
