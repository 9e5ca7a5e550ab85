//! Whose fault a failure is, which exit code says so, and how a chain of causes is printed.
//!
//! Every command ends through this table (cli.md, "Exit codes"); the gRPC side has its own in `grpc/`. An error that
//! comes here never holds a secret: it names variables, paths and ids, not values.

use std::error::Error;
use std::fmt;

/// Whose fault a failure is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Blame {
    /// What was asked for cannot be done as it is written: the user changes it.
    User,
    /// Something around us is missing, full or down: it may work later or elsewhere.
    Environment,
    /// A defect of this program: it should be reported.
    Bug,
}

/// Exit codes with a meaning of their own (cli.md, "Exit codes").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Exit {
    /// 1: any failure without a code of its own.
    Failure,
    /// 2: usage, bad option or setting.
    Usage,
    /// 65: refused for good, or the document has errors.
    Refused,
    /// 69: daemon or environment not reachable.
    Unreachable,
    /// 70: job lost or unknown.
    Lost,
    /// 70: a defect of this program. It shares its number with [`Exit::Lost`]: either way nothing is known of the job.
    Defect,
    /// 75: refused for now, after all repeats.
    TryLater,
    /// 78: state folder of a newer version.
    NewerState,
    /// 130: interrupted by Ctrl-C.
    Interrupted,
    /// 143: told to end by SIGTERM.
    Terminated,
    /// 129: told to end by SIGHUP, as the end of a terminal does.
    HungUp,
}

impl Exit {
    /// The number the process ends with.
    pub const fn code(self) -> u8 {
        match self {
            Self::Failure => 1,
            Self::Usage => 2,
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

    /// Whether the command was told to end from outside.
    pub const fn is_by_signal(self) -> bool {
        matches!(self, Self::Interrupted | Self::Terminated | Self::HungUp)
    }

    /// Whose fault an end with this code is.
    pub const fn blame(self) -> Blame {
        match self {
            Self::Usage | Self::Refused | Self::Interrupted | Self::Terminated | Self::HungUp => Blame::User,
            Self::Failure | Self::Unreachable | Self::Lost | Self::TryLater | Self::NewerState => {
                Blame::Environment
            }
            Self::Defect => Blame::Bug,
        }
    }
}

/// A failure on its way to the user: what happened and why, the exit code, and what to do about it.
#[derive(Debug)]
pub struct Failure {
    exit: Exit,
    cause: Box<dyn Error + Send + Sync>,
    remedy: Option<String>,
    is_quiet: bool,
}

impl Failure {
    /// Fails with `exit` because of `cause`, an error or a text.
    pub fn new(exit: Exit, cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { exit, cause: cause.into(), remedy: None, is_quiet: false }
    }

    /// Adds what the user can do: an imperative sentence without a full stop.
    #[must_use]
    pub fn with_remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// The same for nobody to read: the process ends with its code and says nothing.
    #[must_use]
    pub fn quietly(mut self) -> Self {
        self.is_quiet = true;
        self
    }

    /// Whether nothing is said of it.
    pub const fn is_quiet(&self) -> bool {
        self.is_quiet
    }

    /// How the process ends.
    pub const fn exit(&self) -> Exit {
        self.exit
    }

    /// Whose fault it is.
    pub const fn blame(&self) -> Blame {
        self.exit.blame()
    }

    /// What the user can do.
    pub fn remedy(&self) -> Option<&str> {
        self.remedy.as_deref()
    }
}

/// The message and its causes on one line, without the remedy.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Chain(&*self.cause).fmt(f)
    }
}

impl Error for Failure {}

/// Prints an error and its causes as `what: why: why`.
///
/// A cause that only repeats the end of what is printed already is left out: some libraries put their source into their
/// own message.
///
/// ```
/// use step_runner::error::Chain;
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
