//! The keywords of a job and what becomes of each (ci.md §2).

/// Treatment of a keyword.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// It is read.
    Read,
    /// It has no effect here and is listed once.
    Noted,
    /// It is an error, with this remedy.
    Refused(&'static str),
    /// It is about variables from outside, which the caller must give.
    Outside,
}

use Effect::{Noted, Outside, Read, Refused};

/// All keywords of a job.
const JOB: [(&str, Effect); 42] = [
    ("after_script", Read),
    ("allow_failure", Read),
    ("artifacts", Read),
    ("before_script", Read),
    ("cache", Read),
    ("coverage", Noted),
    ("dast_configuration", Noted),
    ("dependencies", Read),
    ("environment", Read),
    ("except", Noted),
    ("extends", Read),
    ("hooks", Noted),
    ("id_tokens", Outside),
    ("identity", Outside),
    ("image", Read),
    ("inherit", Read),
    ("inputs", Refused("take the inputs out: they are not resolved here")),
    ("interruptible", Noted),
    ("manual_confirmation", Noted),
    ("needs", Read),
    ("only", Noted),
    ("pages", Noted),
    ("parallel", Read),
    ("publish", Noted),
    ("release", Refused("take it out: it makes a release on the server")),
    ("resource_group", Noted),
    ("retry", Noted),
    ("rules", Read),
    ("run", Read),
    ("script", Read),
    ("secrets", Outside),
    ("services", Read),
    ("stage", Read),
    ("start_in", Noted),
    ("tags", Noted),
    ("timeout", Read),
    ("trigger", Refused("take it out: it starts a pipeline on the server")),
    ("type", Refused("write \"stage\"")),
    ("variables", Read),
    ("when", Noted),
    ("id_token", Refused("write \"id_tokens\"")),
    ("scripts", Refused("write \"script\"")),
];

/// Keywords that `default` can have.
pub(super) const DEFAULT: [&str; 13] = [
    "after_script",
    "artifacts",
    "before_script",
    "cache",
    "hooks",
    "id_tokens",
    "identity",
    "image",
    "interruptible",
    "retry",
    "services",
    "tags",
    "timeout",
];

/// Keywords of `default` at the top, from before `default` was.
pub(super) const DEPRECATED: [&str; 5] = ["image", "services", "cache", "before_script", "after_script"];

/// Keywords at the top of a file.
pub(super) const TOP: [&str; 11] = [
    "after_script",
    "before_script",
    "cache",
    "default",
    "image",
    "include",
    "services",
    "spec",
    "stages",
    "variables",
    "workflow",
];

/// Returns what becomes of a keyword of a job; `None` if it is none.
pub(super) fn effect(name: &str) -> Option<Effect> {
    JOB.iter().find(|(known, _)| *known == name).map(|(_, effect)| *effect)
}

/// True for a keyword that jobs have, and the top of a file has not.
pub(super) fn is_of_job_alone(name: &str) -> bool {
    effect(name).is_some() && !TOP.contains(&name)
}

/// Returns the names of all keywords of a job, for suggestions.
pub(super) fn names() -> Vec<&'static str> {
    JOB.iter().filter(|(_, effect)| !matches!(effect, Refused(_))).map(|(name, _)| *name).collect()
}
