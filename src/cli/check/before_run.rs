//! The check that `run` and `submit` make before a job starts.

use std::path::Path;

use super::super::excerpt::{self, Lines};
use super::super::{Verbosity, findings as shown, terminal};
use super::calls::CallGraph;
use super::files::{CheckedFile, FileText};
use super::{Allowed, findings};
use crate::error::{Exit, Failure};
use crate::lang::diagnostic::{Class, Diagnostic, Severity};

/// Options of the check before a run.
#[derive(Clone, Copy)]
pub(in crate::cli) struct Precheck<'a> {
    /// Working directory of the job. Local references of a document that is not a file start there.
    pub(in crate::cli) work_dir: Option<&'a Path>,
    /// True if the daemon sees the same files, so that local functions can be checked, too.
    pub(in crate::cli) shares_files: bool,
    /// True if the daemon is inside this process, so that its builtins are known.
    pub(in crate::cli) is_own_daemon: bool,
    /// True if the request makes failing lines end scripts.
    pub(in crate::cli) errexit: bool,
    /// Warnings that are not wanted.
    pub(in crate::cli) allowed: &'a Allowed,
    pub(in crate::cli) verbosity: Verbosity,
}

impl Precheck<'_> {
    /// Checks the text of a file and the local functions that it calls. Shows all errors and fails if there are any.
    pub(in crate::cli) fn file(&self, path: &Path, shown: &str, text: &str) -> Result<(), Failure> {
        // The run reports a folder that is gone by now.
        CheckedFile::with_text(path, shown, text).map_or(Ok(()), |file| self.check(&file))
    }

    /// Checks a text that is not a file.
    pub(in crate::cli) fn text(&self, shown: &str, text: &str) -> Result<(), Failure> {
        self.file(&self.work_dir.unwrap_or(Path::new(".")).join(shown), shown, text)
    }

    /// Checks the document that was made from a reference. Its lines mean nothing to people, so none is shown.
    pub(in crate::cli) fn reference(&self, reference: &str, text: &str) -> Result<(), Failure> {
        if !self.is_own_daemon {
            return Ok(());
        }
        let Ok(file) = CheckedFile::with_text(Path::new("./<reference>"), reference, text) else {
            return Ok(());
        };
        let found = file.read().map(|text| findings(&file, &text, None)).unwrap_or_default();
        let errors = found.iter().filter(|finding| finding.severity == Severity::Error);
        let errors: Vec<String> = errors.map(|error| format!("{reference}: {}", error.message)).collect();
        if errors.is_empty() { Ok(()) } else { Err(Failure::new(Exit::Refused, errors.join("\n"))) }
    }

    fn check(&self, root: &CheckedFile) -> Result<(), Failure> {
        let can_run = root.read().is_ok_and(|text| root.parse_to_run(&text).is_ok());
        let calls = self.shares_files.then(|| CallGraph::from(vec![root.clone()]));
        let files = calls.as_ref().map_or_else(|| vec![root], |calls| calls.files().collect());
        let mut broken: Vec<(Vec<Diagnostic>, Option<FileText>)> = Vec::new();
        let mut warnings = Warnings::default();
        for file in files {
            let (mut found, text) = match file.read() {
                Ok(text) => (findings(file, &text, calls.as_ref()), Some(text)),
                Err(finding) => (vec![finding], None),
            };
            self.allowed.filter(&mut found);
            if self.errexit {
                found.retain(|finding| !is_about_a_step_of_script(finding));
            }
            if found.iter().any(|finding| finding.severity == Severity::Error) {
                broken.push((found, text));
            } else if let Some(text) = text {
                warnings.add(file, &text, &found);
            }
        }
        if broken.is_empty() {
            self.tell(&warnings);
            return Ok(());
        }
        let failure = shown::refused(
            &broken.iter().map(|(found, text)| (&found[..], text.as_deref())).collect::<Vec<_>>(),
        );
        Err(if can_run { failure.with_remedy("correct that, or run with --no-check") } else { failure })
    }

    /// Shows the warnings about failing lines, which can make a job green that is not, and tells the number of others.
    fn tell(&self, warnings: &Warnings) {
        if self.verbosity.quiet {
            return;
        }
        for shown in &warnings.shown {
            terminal::say(shown);
        }
        if warnings.is_curable {
            terminal::say(
                "step-runner: --errexit ends every script at its first failing line; --allow shell leaves such warnings out",
            );
        }
        shown::tell_of_others(warnings.others);
    }
}

/// Warnings that the job's log does not hold.
#[derive(Default)]
struct Warnings {
    /// Warnings about failing lines, as people read them.
    shown: Vec<String>,
    /// True if `--errexit` would cure one of them.
    is_curable: bool,
    /// Number of others.
    others: usize,
}

impl Warnings {
    fn add(&mut self, file: &CheckedFile, text: &FileText, found: &[Diagnostic]) {
        let told = file.parse_to_run(text).map(|function| function.warnings).unwrap_or_default();
        let lines = Lines::of(text);
        for finding in found.iter().filter(|finding| !told.contains(finding)) {
            if finding.class == Class::Shell {
                self.is_curable |= is_about_a_step_of_script(finding);
                self.shown.push(excerpt::render(finding, Some(&lines), true));
            } else if shown::is_counted(finding) {
                self.others += 1;
            }
        }
    }
}

/// True for a warning about the key `script` of a step. The text of an `exec` is none of the scripts that `errexit`
/// governs.
fn is_about_a_step_of_script(finding: &Diagnostic) -> bool {
    finding.class == Class::Shell && finding.path.ends_with(".script")
}
