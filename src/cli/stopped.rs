//! Finds the line of a script where its shell stopped, from the shell's own report.

use crate::lang::ast::{Body, TemplateValue};
use crate::lang::document::parse_request;

/// A shell's report: `sh: 3: make: not found`, or `deploy.sh: line 3: make: command not found`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ShellReport {
    /// Name of the shell, or of the file that it read.
    name: String,
    /// Line of the script, counted from 1.
    pub(super) line: usize,
}

/// Names of shells in their reports about a script that is no file.
const SHELLS: [&str; 6] = ["sh", "bash", "dash", "ash", "ksh", "zsh"];

/// Exit codes that a shell gives for a command that it cannot run.
const CANNOT_RUN: [i32; 2] = [126, 127];

impl ShellReport {
    /// Finds the report about the end of a script in the last lines of its stderr. A report followed by other messages
    /// counts only if the exit code says that a command could not be run.
    pub(super) fn find<'a>(errors: impl DoubleEndedIterator<Item = &'a str>, exit_code: i32) -> Option<Self> {
        let mut errors = errors.rev().filter(|line| !line.trim().is_empty());
        if CANNOT_RUN.contains(&exit_code) {
            return errors.find_map(Self::parse);
        }
        errors.next().and_then(Self::parse)
    }

    fn parse(text: &str) -> Option<Self> {
        let (name, rest) = text.split_once(": ")?;
        let rest = rest.strip_prefix("line ").unwrap_or(rest);
        let (number, what) = rest.split_once(": ")?;
        let line = number.parse().ok().filter(|line| *line > 0)?;
        let is_name = !name.is_empty() && !name.contains(char::is_whitespace);
        (is_name && !what.is_empty()).then(|| Self { name: name.to_owned(), line })
    }

    /// Returns the line of `script` that the report is about, if the shell got the script as a text, or from `file`.
    pub(super) fn line_of<'a>(&self, script: &'a str, file: Option<&str>) -> Option<&'a str> {
        let shell = self.name.rsplit('/').next().unwrap_or_default();
        let line = script.lines().nth(self.line - 1)?;
        let is_of_script = file.map_or_else(|| SHELLS.contains(&shell), |file| file == self.name);
        is_of_script.then_some(line)
    }

    /// Returns `FILE:LINE` if the report is about a file that the command names.
    pub(super) fn place_in(&self, command: &[String]) -> Option<String> {
        command.iter().skip(1).any(|word| *word == self.name).then(|| format!("{}:{}", self.name, self.line))
    }
}

/// Returns the script that `command` gives to a shell as a text.
pub(super) fn script(command: &[String]) -> Option<&str> {
    let [shell, option, script, ..] = command else { return None };
    let shell = shell.rsplit('/').next().unwrap_or_default();
    let is_script = SHELLS.contains(&shell) && option.starts_with('-') && option.ends_with('c');
    is_script.then_some(script.as_str())
}

/// Returns the line of a document where line `number` of `script` stands. The script is written at or under the line
/// `from`, each of its lines on a line of its own. Both numbers count from 1.
pub(super) fn line_in_document(document: &str, from: usize, script: &str, number: usize) -> Option<usize> {
    /// Most lines between the first line of a step and its script: name, env and inputs stand between them.
    const NEAR: usize = 200;
    let lines: Vec<&str> = document.lines().collect();
    let script: Vec<&str> = script.lines().collect();
    let wanted = script.get(..number)?;
    let stands_at = |start: usize| {
        let found = lines.get(start..start + number).unwrap_or_default();
        found.len() == number
            && found.iter().zip(wanted).enumerate().all(|(at, (found, wanted))| {
                // Lines with expressions match any text, because the script runs with values. A script of one line may
                // follow its key.
                let is_same = found.trim() == wanted.trim() || found.contains("${{");
                is_same || at == 0 && script.len() == 1 && ends_with_scalar(found, wanted)
            })
    };
    let first = from.saturating_sub(1);
    (first..(first + NEAR).min(lines.len())).find(|start| stands_at(*start)).map(|start| start + number)
}

/// True if `line` is `script: TEXT`, perhaps in quotes.
fn ends_with_scalar(line: &str, text: &str) -> bool {
    line.split_once("script:").is_some_and(|(_, value)| value.trim().trim_matches(['"', '\'']) == text.trim())
}

/// Returns the line of element `index` of the input `script`, in the step that begins at line `from` of a document.
pub(super) fn command_line_in(document: &str, file: &str, from: usize, index: usize) -> Option<usize> {
    let function = parse_request(document, file).ok()?;
    let Body::Run(run) = &function.definition.body else { return None };
    let step = run.steps.iter().find(|step| usize::try_from(step.at.line) == Ok(from))?;
    let (_, script) = step.inputs.iter().find(|(name, _)| name.as_literal() == Some("script"))?;
    let TemplateValue::Array(commands, _) = script else { return None };
    usize::try_from(commands.get(index)?.at()?.line).ok()
}

/// Returns the line of a step of the document's own list, counted from 1.
pub(super) fn step_line(document: &str, file: &str, step: &str) -> Option<usize> {
    let function = parse_request(document, file).ok()?;
    let Body::Run(run) = &function.definition.body else { return None };
    usize::try_from(run.steps.iter().find(|own| own.name == step)?.at.line).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(errors: &[&str], exit_code: i32) -> Option<(String, usize)> {
        ShellReport::find(errors.iter().copied(), exit_code).map(|report| (report.name, report.line))
    }

    #[test]
    fn the_reports_of_the_shells_are_known() {
        for text in ["sh: 3: nosuch: not found", "sh: line 3: nosuch: not found"] {
            assert_eq!(find(&[text], 127), Some(("sh".into(), 3)), "{text}");
        }
        let file = "/b/deploy.sh: line 12: nosuch: command not found";
        assert_eq!(find(&[file], 127), Some(("/b/deploy.sh".into(), 12)));
        for text in
            ["main.c:7: error: no", "sh: nosuch: not found", "a b: 3: x", "error: 0: x", "3: x", "x: 3: "]
        {
            assert_eq!(find(&[text], 127), None, "{text}");
        }
    }

    #[test]
    fn a_report_that_the_script_survived_is_not_where_it_stopped() {
        let errors = ["sh: 1: nosuch: not found", "another message"];
        assert_eq!(find(&errors, 127), Some(("sh".into(), 1)));
        assert_eq!(find(&errors, 3), None);
        assert_eq!(find(&errors[..1], 3), Some(("sh".into(), 1)));
    }

    #[test]
    fn a_line_of_a_script_is_found_where_the_document_has_it() {
        let document = "spec: {}\n---\nrun:\n- name: a\n  env: {A: b}\n  script: |\n    set -e\n\n    echo ${{ inputs.x }}\n    nosuch\n- name: b\n  script: \"nosuch\"\n";
        let script = "set -e\n\necho 3\nnosuch\n";
        assert_eq!(line_in_document(document, 4, script, 4), Some(10));
        assert_eq!(line_in_document(document, 4, script, 1), Some(7));
        assert_eq!(line_in_document(document, 4, script, 5), None);
        assert_eq!(line_in_document(document, 11, "nosuch", 1), Some(12));
        assert_eq!(line_in_document(document, 4, "other\nscript", 2), None);
        assert_eq!(step_line(document, "f.yml", "a"), Some(4));
    }

    #[test]
    fn scripts_and_files_are_told_apart() {
        let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        assert_eq!(script(&words(&["/bin/sh", "-ec", "a\nb"])), Some("a\nb"));
        assert_eq!(script(&words(&["sh", "a.sh", "b"])), None);
        let report = ShellReport { name: "a.sh".into(), line: 2 };
        assert_eq!(report.place_in(&words(&["sh", "a.sh"])).as_deref(), Some("a.sh:2"));
        assert_eq!((report.place_in(&words(&["sh", "b.sh"])), report.line_of("x\ny", None)), (None, None));
        assert_eq!(report.line_of("x\ny", Some("a.sh")), Some("y"));
    }
}
