//! The check that `run` and `submit` make before a job starts.

use std::path::Path;

use super::super::{Verbosity, document, terminal};
use super::calls::CallGraph;
use super::files::{CheckedFile, FileText};
use super::{Allowed, findings};
use crate::error::{Exit, Failure};
use crate::lang::diagnostic::{Diagnostic, Severity};

/// Options of the check before a run.
#[derive(Clone, Copy)]
pub(in crate::cli) struct Precheck<'a> {
    /// Working directory of the job. Local references of a document that is not a file start there.
    pub(in crate::cli) work_dir: Option<&'a Path>,
    /// True if the daemon sees the same files, so that local functions can be checked, too.
    pub(in crate::cli) shares_files: bool,
    /// True if the daemon is inside this process, so that its builtins are known.
    pub(in crate::cli) is_own_daemon: bool,
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
        let mut warnings = 0;
        for file in files {
            let (mut found, text) = match file.read() {
                Ok(text) => (findings(file, &text, calls.as_ref()), Some(text)),
                Err(finding) => (vec![finding], None),
            };
            self.allowed.filter(&mut found);
            if found.iter().any(|finding| finding.severity == Severity::Error) {
                broken.push((found, text));
            } else if let Some(text) = text {
                warnings += untold(file, &text, &found);
            }
        }
        if broken.is_empty() {
            self.tell(warnings);
            return Ok(());
        }
        let failure = document::refused(
            &broken.iter().map(|(found, text)| (&found[..], text.as_deref())).collect::<Vec<_>>(),
        );
        Err(if can_run { failure.with_remedy("correct that, or run with --no-check") } else { failure })
    }

    /// Tells the number of warnings. If each run showed them, they would hide the job's own output.
    fn tell(&self, warnings: usize) {
        if warnings > 0 && !self.verbosity.quiet {
            let warnings =
                if warnings == 1 { "1 warning".to_owned() } else { format!("{warnings} warnings") };
            terminal::say(&format!("step-runner: {warnings}, shown by \"step-runner check\""));
        }
    }
}

/// Returns the number of warnings that the job's log does not hold.
fn untold(file: &CheckedFile, text: &FileText, found: &[Diagnostic]) -> usize {
    let told = file.parse_to_run(text).map(|function| function.warnings).unwrap_or_default();
    found.iter().filter(|finding| !told.contains(finding)).count()
}
