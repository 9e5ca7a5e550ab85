//! Warnings among the daemon's own lines: the text behind `warning: `.

use std::fmt;

use super::parse::{number, split_name};

/// Words of warnings, for the text and for its parser.
const OUTPUT_LOST: &str = " bytes of output lost";
const OUTPUT_DROPPED: &str = " bytes of output dropped";
const ALLOWED: &str = "\" has failed, which is allowed: ";
const NO_COMBINATIONS: &str = "\": the matrix has no combinations";
const MEMORY_SHORT: &str = ": processes were killed, as memory ran short";
const PROCESSES_SHORT: &str = ": processes were refused, as the job has reached its limit";

/// A warning in a job's log (logs.md §2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Warning<'a> {
    /// A step has failed, which does not fail the job (flow.md §2).
    AllowedFailure {
        /// Name of the step.
        name: &'a str,
        /// Its failure.
        error: &'a str,
    },
    /// A step is skipped because its matrix has no combination (flow.md §6).
    NoCombinations {
        /// Name of the step.
        name: &'a str,
    },
    /// Two members of a group export different values under one name (flow.md §5).
    ExportsDiffer {
        /// Name of the earlier member in list order.
        earlier: &'a str,
        /// Name of the later member, whose value counts.
        later: &'a str,
        /// Name of the variable.
        variable: &'a str,
    },
    /// The system killed processes of a step that still succeeded.
    MemoryShort {
        /// Name of the step.
        name: &'a str,
    },
    /// The system refused processes to a step that still succeeded.
    ProcessesShort {
        /// Name of the step.
        name: &'a str,
    },
    /// The disk refused output (logs.md §6).
    OutputLost {
        /// Bytes of output that are missing at this place.
        bytes: u64,
    },
    /// Output exceeded the log limit (logs.md §6).
    OutputDropped {
        /// Bytes of output that are missing from the log.
        bytes: u64,
    },
    /// Any other warning: a finding in a function file, missing masking, a change of the log by another process.
    Text(&'a str),
}

impl<'a> Warning<'a> {
    /// Parses the text behind `warning: `.
    pub(super) fn parse(text: &'a str) -> Self {
        Self::typed(text).unwrap_or(Self::Text(text))
    }

    fn typed(text: &'a str) -> Option<Self> {
        if let Some(bytes) = text.strip_suffix(OUTPUT_LOST).and_then(number) {
            return Some(Self::OutputLost { bytes });
        }
        if let Some(bytes) = text.strip_suffix(OUTPUT_DROPPED).and_then(number) {
            return Some(Self::OutputDropped { bytes });
        }
        if let Some(quoted) = text.strip_prefix("step \"") {
            let no_combinations = quoted.strip_suffix(NO_COMBINATIONS).filter(|name| !name.contains(ALLOWED));
            return match no_combinations {
                Some(name) => Some(Self::NoCombinations { name }),
                None => split_name(quoted, ALLOWED).map(|(name, error)| Self::AllowedFailure { name, error }),
            };
        }
        if let Some(rest) = text.strip_prefix("step ") {
            return match rest.strip_suffix(MEMORY_SHORT) {
                Some(name) => Some(Self::MemoryShort { name }),
                None => rest.strip_suffix(PROCESSES_SHORT).map(|name| Self::ProcessesShort { name }),
            };
        }
        let (earlier, rest) = split_name(text.strip_prefix('"')?, "\" and \"")?;
        let (later, rest) = split_name(rest, "\" export ")?;
        let (variable, rest) = rest.split_once(" with different values: that of \"")?;
        let counts = rest.strip_suffix("\" counts")?;
        (counts == later).then_some(Self::ExportsDiffer { earlier, later, variable })
    }
}

impl fmt::Display for Warning<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::AllowedFailure { name, error } => write!(f, "step \"{name}{ALLOWED}{error}"),
            Self::NoCombinations { name } => write!(f, "step \"{name}{NO_COMBINATIONS}"),
            Self::ExportsDiffer { earlier, later, variable } => write!(
                f,
                "\"{earlier}\" and \"{later}\" export {variable} with different values: that of \"{later}\" counts"
            ),
            Self::MemoryShort { name } => write!(f, "step {name}{MEMORY_SHORT}"),
            Self::ProcessesShort { name } => write!(f, "step {name}{PROCESSES_SHORT}"),
            Self::OutputLost { bytes } => write!(f, "{bytes}{OUTPUT_LOST}"),
            Self::OutputDropped { bytes } => write!(f, "{bytes}{OUTPUT_DROPPED}"),
            Self::Text(text) => f.write_str(text),
        }
    }
}
