//! Findings in documents, as commands show them that cannot use a document because of them.

use std::string::FromUtf8Error;
use std::sync::Arc;

use super::excerpt::{self, Lines};
use super::terminal;
use crate::error::{Exit, Failure};
use crate::lang::diagnostic::{Class, Diagnostic, Position, Severity};
use crate::lang::document::parse_request;

/// Shows the findings as `check` does and returns the failure. Each document comes with its text, if that could be
/// read.
pub(super) fn refused(documents: &[(&[Diagnostic], Option<&str>)]) -> Failure {
    for (findings, text) in documents {
        let lines = text.map(Lines::of);
        for finding in *findings {
            terminal::say(&excerpt::render(finding, lines.as_ref(), true));
        }
    }
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
