//! Findings in documents, as commands show them that cannot use a document because of them.

use std::string::FromUtf8Error;
use std::sync::Arc;

use super::excerpt::{self, Lines};
use super::terminal;
use crate::error::{Exit, Failure};
use crate::lang::diagnostic::{Class, Diagnostic, Position, Severity};
use crate::lang::document::parse_request;

/// Shows errors, and warnings about failing lines, as `check` does, tells the number of other warnings, and returns the
/// failure. Each document comes with its text, if that could be read.
pub(super) fn refused(documents: &[(&[Diagnostic], Option<&str>)]) -> Failure {
    let mut others = 0;
    for (findings, text) in documents {
        let lines = text.map(Lines::of);
        for finding in *findings {
            if finding.severity == Severity::Error || finding.class == Class::Shell {
                terminal::say(&excerpt::render(finding, lines.as_ref(), true));
            } else if is_counted(finding) {
                others += 1;
            }
        }
    }
    tell_of_others(others);
    let all = documents.iter().flat_map(|(findings, _)| *findings);
    let errors = all.filter(|finding| finding.severity == Severity::Error).count();
    let errors = if errors == 1 { "1 error".to_owned() } else { format!("{errors} errors") };
    let only = if let [(findings, _)] = documents { findings.first() } else { None };
    Failure::new(
        Exit::Refused,
        match only {
            Some(finding) => format!("{} has {errors}", finding.file),
            None => format!("{errors} in {} files", documents.len()),
        },
    )
}

/// True for a warning that a command which starts a job counts but does not show. Those of the class `injection` are about
/// the text of a file, not about this run: only `check` tells of them.
pub(super) fn is_counted(warning: &Diagnostic) -> bool {
    !matches!(warning.class, Class::Shell | Class::Injection)
}

/// Tells the number of warnings that are not shown. If each run showed all, they would hide the job's own output.
pub(super) fn tell_of_others(warnings: usize) {
    let number = match warnings {
        0 => return,
        1 => "1 warning".to_owned(),
        others => format!("{others} warnings"),
    };
    terminal::say(&format!("step-runner: {number}, shown by \"step-runner check\""));
}

/// Shows the findings in a document as `check` does and returns the failure, or `None` if there are none.
pub(super) fn of_document(steps: &str, file: &str) -> Option<Failure> {
    let findings = parse_request(steps, file).err()?;
    Some(refused(&[(&findings, Some(steps))]))
}

/// Makes the finding for a text that is not UTF-8, at its first wrong byte.
pub(super) fn not_utf8(file: &str, error: &FromUtf8Error) -> Diagnostic {
    let valid = error.as_bytes().get(..error.utf8_error().valid_up_to()).unwrap_or_default();
    let valid = String::from_utf8_lossy(valid);
    let last = valid.rsplit('\n').next().unwrap_or_default();
    let (line, column) = (valid.matches('\n').count() + 1, last.chars().count() + 1);
    let at = Position { line: line as u32, column: column as u32 };
    Diagnostic::error(Class::Yaml, &Arc::from(file), at, "the text is not UTF-8")
        .with_help("save the file as UTF-8")
}
