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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Returns the cells of the table below a heading of the guide: keywords, and the text of the second column.
    fn rows(heading: &str) -> BTreeMap<String, String> {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/use/ci-files.md");
        let page = std::fs::read_to_string(page).unwrap();
        let section = page.split(&format!("\n## {heading}\n")).nth(1).unwrap();
        let lines =
            section.split("\n## ").next().unwrap().lines().filter_map(|line| line.strip_prefix("| `"));
        let cells = lines.filter_map(|line| line.split_once(" | "));
        let of_row = |(keywords, rest): (&str, &str)| -> Vec<(String, String)> {
            let second = rest.split(" |").next().unwrap().to_owned();
            let names = keywords.split('`').step_by(2);
            names.map(|name| (name.to_owned(), second.clone())).collect()
        };
        cells.flat_map(of_row).collect()
    }

    #[test]
    fn the_guide_has_each_keyword_with_its_effect() {
        let shown = rows("Keywords of a job");
        let known: BTreeMap<String, String> = (JOB.iter())
            .map(|(name, effect)| {
                let word = match effect {
                    Read => "yes",
                    Noted => "noted",
                    Refused(_) => "error",
                    Outside => "given",
                };
                ((*name).to_owned(), word.to_owned())
            })
            .collect();
        assert_eq!(shown, known);
        let top = rows("Keywords of the file");
        let missing: Vec<_> = TOP.iter().filter(|name| !top.contains_key(**name)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}
