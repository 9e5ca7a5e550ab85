//! Findings in the formats of `--output`.

use std::collections::HashMap;

use clap::ValueEnum;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::super::excerpt::{self, Lines, end_column};
use super::super::terminal;
use crate::error::Failure;
use crate::lang::diagnostic::{Diagnostic, Severity};
use crate::model::text;

/// Maximum number of findings of one file that are shown to people. The other formats have all.
const SHOWN: usize = 100;

/// Formats of `--output`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum ReportFormat {
    /// Each finding with its source line and a pointer
    Human,
    /// One JSON object per finding, one per line
    Json,
    /// A JSON array in the format of GitLab's code quality reports
    Gitlab,
}

/// Writes findings and counts them.
pub(super) struct CheckReport {
    format: ReportFormat,
    errors: usize,
    warnings: usize,
    /// Files with findings.
    files: usize,
    /// Files that were checked.
    checked: usize,
    /// Entries of the code quality report, which is one array.
    entries: Vec<Value>,
    /// Number of fingerprints made from the same words.
    repeated: HashMap<String, usize>,
}

impl CheckReport {
    pub(super) fn new(format: ReportFormat) -> Self {
        let (entries, repeated) = (Vec::new(), HashMap::new());
        Self { format, errors: 0, warnings: 0, files: 0, checked: 0, entries, repeated }
    }

    /// Takes note that a file is checked.
    pub(super) const fn count_file(&mut self) {
        self.checked += 1;
    }

    /// Takes the findings of one file, sorted by place, and its text if that could be read.
    pub(super) fn add(&mut self, findings: &[Diagnostic], text: Option<&str>) -> Result<(), Failure> {
        if findings.is_empty() {
            return Ok(());
        }
        self.files += 1;
        let lines = text.map(Lines::of);
        let errors = findings.iter().filter(|finding| finding.severity == Severity::Error).count();
        self.errors += errors;
        self.warnings += findings.len() - errors;
        match self.format {
            ReportFormat::Human => show(findings, lines.as_ref()),
            ReportFormat::Json => {
                let objects = findings.iter().map(|finding| format!("{}\n", object(finding, lines.as_ref())));
                terminal::print(objects.collect::<String>().as_bytes())
            }
            ReportFormat::Gitlab => {
                for finding in findings {
                    let entry = self.entry(finding);
                    self.entries.push(entry);
                }
                Ok(())
            }
        }
    }

    /// Writes a report that is one array. Returns true if there were errors, and a summary.
    pub(super) fn finish(self) -> Result<(bool, String), Failure> {
        if self.format == ReportFormat::Gitlab {
            terminal::print(format!("{:#}\n", Value::from(self.entries)).as_bytes())?;
        }
        let count = |count: usize, what: &str| match count {
            0 => None,
            1 => Some(format!("1 {what}")),
            _ => Some(format!("{count} {what}s")),
        };
        let found = [count(self.errors, "error"), count(self.warnings, "warning")];
        let found: Vec<String> = found.into_iter().flatten().collect();
        let files = |number| count(number, "file").unwrap_or_else(|| "no files".to_owned());
        let summary = if found.is_empty() {
            format!("{}, no errors", files(self.checked))
        } else {
            format!("{} in {}", found.join(", "), files(self.files))
        };
        Ok((self.errors > 0, summary))
    }

    /// Makes an entry of a code quality report.
    fn entry(&mut self, finding: &Diagnostic) -> Value {
        let path = finding.file.strip_prefix("./").unwrap_or(&finding.file);
        // The fingerprint holds no line, because lines move.
        let [own_path, message] = [&finding.path, &finding.message].map(|shown| text::for_people(shown));
        let words = [path, finding.class.word(), &own_path, &message].join("\0");
        let repeated = self.repeated.entry(words.clone()).or_insert(0);
        let hash = Sha256::new().chain_update(words).chain_update(repeated.to_be_bytes()).finalize();
        *repeated += 1;
        let description = match &finding.help {
            Some(help) => format!("{message} ({})", text::for_people(help)),
            None => message.into_owned(),
        };
        json!({
            "description": description,
            "check_name": finding.class.word(),
            "fingerprint": hex(&hash),
            "severity": if finding.severity == Severity::Error { "major" } else { "minor" },
            "location": {"path": path, "lines": {"begin": finding.at.line}},
        })
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .filter_map(|digit| char::from_digit(digit.into(), 16))
        .collect()
}

fn show(findings: &[Diagnostic], lines: Option<&Lines<'_>>) -> Result<(), Failure> {
    let color = terminal::stdout_has_color();
    let mut text = String::new();
    for finding in findings.iter().take(SHOWN) {
        text.push_str(&excerpt::render(finding, lines, color));
        text.push('\n');
    }
    if let (Some(more @ 1..), Some(first)) = (findings.len().checked_sub(SHOWN), findings.first()) {
        let rest = format!("and {more} more in {}; --output json shows all\n\n", first.file);
        text.push_str(&rest);
    }
    terminal::print(text.as_bytes())
}

fn object(finding: &Diagnostic, lines: Option<&Lines<'_>>) -> Value {
    json!({
        "file": &*finding.file,
        "line": finding.at.line,
        "column": finding.at.column,
        "end_column": lines.map(|lines| end_column(lines, finding.at)),
        "class": finding.class.word(),
        "severity": finding.severity,
        "path": text::for_people(&finding.path),
        "message": text::for_people(&finding.message),
        "help": finding.help.as_deref().map(text::for_people),
    })
}
