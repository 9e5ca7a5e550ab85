//! Exit codes, the party at fault behind each, and printing of an error with its causes.
//!
//! Every command ends through this table (cli.md, "Exit codes"); `grpc/` has its own table. An error that arrives here
//! never holds a secret: it names variables, paths and ids, not values.

use std::error::Error;
use std::fmt;

/// The party at fault for a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Blame {
    /// The user: the request cannot be carried out as written and must be changed.
    User,
    /// The environment: something is missing, full or down. Another try can succeed later or elsewhere.
    Environment,
    /// This program: a defect that should be reported.
    Bug,
}

/// Exit codes with a meaning of their own (cli.md, "Exit codes").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Exit {
    /// 1: a failure without a code of its own.
    Failure,
    /// 2: usage, bad option or setting.
    Usage,
    /// 3: the agent's configuration cannot be used, or another agent uses its state (agent.md §11).
    Configuration,
    /// 65: refused for good, or the document has errors.
    Refused,
    /// 69: daemon or environment not reachable.
    Unreachable,
    /// 70: job lost or unknown.
    Lost,
    /// 70: a defect of this program. It shares its number with [`Exit::Lost`]: either way the job's outcome is unknown.
    Defect,
    /// 75: refused for now, after all retries.
    TryLater,
    /// 78: state folder of a newer version.
    NewerState,
    /// 130: interrupted by Ctrl-C.
    Interrupted,
    /// 143: ended by SIGTERM.
    Terminated,
    /// 129: ended by SIGHUP, for instance because the terminal closed.
    HungUp,
}

impl Exit {
    /// Returns the exit code of the process.
    pub const fn code(self) -> u8 {
        match self {
            Self::Failure => 1,
            Self::Usage => 2,
            Self::Configuration => 3,
            Self::Refused => 65,
            Self::Unreachable => 69,
            Self::Lost | Self::Defect => 70,
            Self::TryLater => 75,
            Self::NewerState => 78,
            Self::Interrupted => 130,
            Self::Terminated => 143,
            Self::HungUp => 129,
        }
    }

    /// True if a signal ended the command.
    pub const fn is_by_signal(self) -> bool {
        matches!(self, Self::Interrupted | Self::Terminated | Self::HungUp)
    }

    /// Returns the party at fault for this exit code.
    pub(crate) const fn blame(self) -> Blame {
        match self {
            Self::Usage
            | Self::Configuration
            | Self::Refused
            | Self::Interrupted
            | Self::Terminated
            | Self::HungUp => Blame::User,
            Self::Failure | Self::Unreachable | Self::Lost | Self::TryLater | Self::NewerState => {
                Blame::Environment
            }
            Self::Defect => Blame::Bug,
        }
    }
}

/// A failure to report to the user: exit code, cause and remedy.
#[derive(Debug)]
pub struct Failure {
    exit: Exit,
    cause: Box<dyn Error + Send + Sync>,
    remedy: Option<String>,
    is_quiet: bool,
}

impl Failure {
    /// Fails with `exit` because of `cause`, which is an error or a text.
    pub fn new(exit: Exit, cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { exit, cause: cause.into(), remedy: None, is_quiet: false }
    }

    /// Adds the remedy: an imperative sentence without a full stop.
    #[must_use]
    pub fn with_remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// Suppresses the message: the process only ends with its exit code.
    #[must_use]
    pub fn quietly(mut self) -> Self {
        self.is_quiet = true;
        self
    }

    /// True if the failure is not printed.
    pub const fn is_quiet(&self) -> bool {
        self.is_quiet
    }

    /// Returns the exit code.
    pub const fn exit(&self) -> Exit {
        self.exit
    }

    /// Returns the party at fault.
    pub const fn blame(&self) -> Blame {
        self.exit.blame()
    }

    /// Returns the remedy.
    pub fn remedy(&self) -> Option<&str> {
        self.remedy.as_deref()
    }
}

/// Prints the message and its causes on one line, without the remedy.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Chain(&*self.cause).fmt(f)
    }
}

impl Error for Failure {}

/// Prints an error and its causes as `what: why: why`.
///
/// Skips a cause that repeats the end of the text before it: some libraries put their source into their own message.
///
/// ```
/// use step_runner_model::error::Chain;
///
/// let error = std::io::Error::other("the disk is full");
/// assert_eq!(Chain(&error).to_string(), "the disk is full");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Chain<'a>(pub &'a (dyn Error + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut printed = self.0.to_string();
        f.write_str(&printed)?;
        let mut next = self.0.source();
        while let Some(cause) = next {
            let text = cause.to_string();
            if !printed.ends_with(&text) {
                write!(f, ": {text}")?;
                printed = text;
            }
            next = cause.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Layer(&'static str, #[source] Option<Box<Layer>>);

    #[test]
    fn chain_prints_every_cause_once() {
        let error = Layer("a", Some(Box::new(Layer("b: c", Some(Box::new(Layer("c", None)))))));
        assert_eq!(Chain(&error).to_string(), "a: b: c");
    }

    #[test]
    fn codes_are_those_of_the_manual() {
        let table = [
            (Exit::Failure, 1),
            (Exit::Usage, 2),
            (Exit::Configuration, 3),
            (Exit::Refused, 65),
            (Exit::Unreachable, 69),
            (Exit::Lost, 70),
            (Exit::Defect, 70),
            (Exit::TryLater, 75),
            (Exit::NewerState, 78),
            (Exit::Interrupted, 130),
            (Exit::Terminated, 143),
            (Exit::HungUp, 129),
        ];
        for (exit, code) in table {
            assert_eq!(exit.code(), code, "{exit:?}");
        }
    }

    #[test]
    fn failure_keeps_cause_and_remedy_apart() {
        let failure = Failure::new(Exit::Unreachable, "no daemon").with_remedy("start one");
        assert_eq!(failure.to_string(), "no daemon");
        assert_eq!(failure.remedy(), Some("start one"));
        assert_eq!(failure.blame(), Blame::Environment);
    }
}
