//! Calls of the programs `docker` and `kubectl` (agent.md §8.5, §8.6). Nothing secret is among their words.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::program::{Input, ProgramError, Programs};
use step_runner_process::connector::StartError;

/// Time limit of a call that makes or removes something.
const CALL: Duration = Duration::from_mins(2);

/// Time limit of a call that looks at something.
pub(super) const LOOK: Duration = Duration::from_secs(20);

/// Time between two calls of an engine that does not answer.
const AGAIN: Duration = Duration::from_secs(2);

/// Lines of a complaint that are shown.
const SHOWN: usize = 3;

/// A program that speaks with engines or clusters: how its complaints are read.
pub(super) struct Kind {
    /// Its name.
    pub(super) program: &'static str,
    /// Advice for machines without it.
    pub(super) remedy: &'static str,
    /// Words, in lower case, if the engine does not answer.
    pub(super) away: &'static [&'static str],
    /// Words for a thing that is not there.
    pub(super) missing: &'static [&'static str],
    /// Parts of lines that tell nothing about a failure.
    pub(super) noise: &'static [&'static str],
}

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

/// An engine or a cluster, and what its calls have in common.
#[derive(Clone)]
pub(super) struct Engine {
    kind: &'static Kind,
    programs: Arc<Programs>,
    /// The first words of each call: the program, and which engine it is.
    start: Vec<String>,
    /// Which engine it is, for people.
    name: String,
    stop: CancellationToken,
}

impl Engine {
    /// Names an engine. Calls end with `stop`.
    pub(super) fn new(
        kind: &'static Kind,
        programs: Arc<Programs>,
        options: &[&str],
        name: String,
        stop: CancellationToken,
    ) -> Self {
        let start = std::iter::once(&kind.program).chain(options).map(|word| (*word).to_owned()).collect();
        Self { kind, programs, start, name, stop }
    }

    /// Returns the same engine with other options.
    pub(super) fn with_options(&self, options: &[&str]) -> Self {
        let Self { kind, programs, name, stop, .. } = self.clone();
        Self::new(kind, programs, options, name, stop)
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
        let line = self.start.iter().cloned().chain(words.iter().map(|word| (*word).to_owned())).collect();
        match self.programs.run(line, input, limit, &self.stop).await {
            Ok(ended) if ended.is_success => Ok((ended.stdout, ended.stderr)),
            Ok(ended) => Err(self.kind.trouble(&ended.stderr)),
            Err(ProgramError::Stopped) => Err(Trouble::Stopped),
            Err(error @ ProgramError::Late(_)) => Err(Trouble::Away(format!("{}: {error}", self.name))),
            Err(ProgramError::Start(error @ StartError::NotFound(_))) => {
                Err(Trouble::Refused(format!("{error}: {}", self.kind.remedy)))
            }
            Err(ProgramError::Start(error)) => {
                Err(Trouble::Refused(format!("cannot start `{}`: {error}", self.kind.program)))
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
                        tracing::warn!("{} does not answer, and is asked again: {text}", self.name);
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

impl Kind {
    /// Reads the words of a program that failed.
    fn trouble(&self, stderr: &str) -> Trouble {
        let is_told = |line: &&str| !line.is_empty() && !self.noise.iter().any(|noise| line.contains(noise));
        let lines: Vec<&str> = stderr.lines().map(str::trim).filter(is_told).collect();
        let text = lines.get(lines.len().saturating_sub(SHOWN)..).unwrap_or_default().join("; ");
        let words = text.to_ascii_lowercase();
        let has = |all: &[&str]| all.iter().any(|word| words.contains(word));
        if has(self.away) {
            Trouble::Away(text)
        } else if has(self.missing) {
            Trouble::Missing(text)
        } else {
            Trouble::Refused(text)
        }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopped => f.write_str("it was stopped"),
            Self::Away(text) => write!(f, "it does not answer: {text}"),
            Self::Missing(text) | Self::Refused(text) => f.write_str(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{docker, kube};

    #[test]
    fn the_words_of_the_programs_have_a_meaning() {
        let away = "Cannot connect to the Docker daemon at unix:///x.sock. Is the docker daemon running?\n";
        assert!(matches!(docker::KIND.trouble(away), Trouble::Away(_)));
        assert!(matches!(docker::KIND.trouble("Error: No such container: step-1\n"), Trouble::Missing(_)));
        let text = "one\ntwo\ndocker: invalid mount.\n\nRun 'docker create --help' for more information\n";
        assert_eq!(
            docker::KIND.trouble(text),
            Trouble::Refused("one; two; docker: invalid mount.".to_owned())
        );
        let text = "E1128 12:00:00.1 7 memcache.go:265] \"Unhandled Error\" err=\"couldn't get current server API group list\"\n\
            The connection to the server 127.0.0.1:1 was refused - did you specify the right host or port?\n";
        let wanted =
            "The connection to the server 127.0.0.1:1 was refused - did you specify the right host or port?";
        assert_eq!(kube::KIND.trouble(text), Trouble::Away(wanted.to_owned()));
        let text = "Error from server (NotFound): pods \"step-1\" not found\n";
        assert!(matches!(kube::KIND.trouble(text), Trouble::Missing(_)));
        let text = "Error from server (Forbidden): pods \"step-1\" is forbidden: exceeded quota: q\n";
        assert!(matches!(kube::KIND.trouble(text), Trouble::Away(_)));
        assert!(matches!(kube::KIND.trouble("error: context \"x\" does not exist\n"), Trouble::Refused(_)));
    }
}
