//! `allow_failure` of a job or rule (ci.md §2).

use crate::finding::{Findings, join};
use crate::node::{Kind, Node};

/// Failures of a job that do not count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AllowFailure {
    /// Each failure counts.
    #[default]
    None,
    /// No failure counts.
    All,
    /// Failures with one of these exit codes.
    Codes(Vec<u32>),
}

impl AllowFailure {
    /// True if a failure with this exit code does not count.
    pub fn allows(&self, code: u8) -> bool {
        match self {
            Self::None => false,
            Self::All => true,
            Self::Codes(codes) => codes.contains(&code.into()),
        }
    }

    /// True if some failure does not count.
    pub fn is_some(&self) -> bool {
        *self != Self::None
    }
}

/// Reads `allow_failure`.
pub(super) fn allow_failure(node: &Node, path: &str, findings: &mut Findings) -> Option<AllowFailure> {
    if node.as_map().is_none() {
        let all = findings.boolean(node, path)?;
        return Some(if all { AllowFailure::All } else { AllowFailure::None });
    }
    findings.mapping(node, path, &["exit_codes"])?;
    let codes = match node.get("exit_codes") {
        Some(Node { kind: Kind::List(items), .. }) => items.as_slice(),
        Some(code) => std::slice::from_ref(code),
        None => &[],
    };
    let path = join(path, "exit_codes");
    Some(AllowFailure::Codes(codes.iter().filter_map(|code| findings.whole(code, &path, 0, 255)).collect()))
}
