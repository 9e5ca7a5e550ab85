//! Any text is either a CI file or a list of errors with places. Each of its jobs becomes a plan or an error, and a plan's
//! document is a steps document that holds nothing of the text but step names. Any text is a job as a mapping, too, and a
//! payload, or it is refused.
//!
//! Input: the main file and, after a line `===`, a file that it can include.

#![no_main]

use indexmap::IndexMap;
use libfuzzer_sys::fuzz_target;
use step_runner::lang::diagnostic::Severity;
use step_runner_ci::file::{Source, read};
use step_runner_ci::job::{Circumstances, Pipeline, of_mapping, of_payload};
use step_runner_ci::plan::{Images, plan};
use step_runner_ci::variables::{Facts, Level};
use step_runner_ci::{Files, ReadError};

/// A repository of two files.
struct Pair<'t>(&'t str, &'t str);

impl Files for Pair<'_> {
    fn read(&self, path: &str) -> Result<String, ReadError> {
        match path {
            "ci.yml" => Ok(self.0.to_owned()),
            "a.yml" => Ok(self.1.to_owned()),
            _ => Err(ReadError::NotFound),
        }
    }

    fn list(&self) -> Result<Vec<String>, ReadError> {
        Ok(["ci.yml", "a.yml"].map(str::to_owned).to_vec())
    }
}

fuzz_target!(|text: &str| {
    drop(of_payload(text.as_bytes()));
    if let Ok(job) = of_mapping("f", text) {
        drop(plan(&job, Images::Ignored, None));
    }
    let (main, included) = text.split_once("\n===\n").unwrap_or((text, ""));
    let files = Pair(main, included);
    let (inputs, level, facts) = (IndexMap::new(), Level::new(), Facts::default());
    let source = Source { path: "ci.yml", files: &files, inputs: &inputs, facts: &facts, given: &level };
    let file = match read(&source) {
        Ok(file) => file,
        Err(findings) => {
            assert!(
                findings.iter().any(|finding| finding.severity == Severity::Error),
                "refused without an error"
            );
            assert!(
                findings.iter().all(|finding| finding.at.line >= 1 && finding.at.column >= 1),
                "no place"
            );
            return;
        }
    };
    let circumstances = Circumstances { facts: Some(&facts), files: &files, given: &level, dotenv: &level };
    let mut pipeline = Pipeline::new(&file, &circumstances);
    for definition in file.jobs.values() {
        let names = definition.copies.iter().map(|copy| &copy.name);
        for name in names.chain([&definition.name]).take(4) {
            drop(pipeline.standing(name));
            drop(pipeline.needed(name));
            let Ok(job) = pipeline.job(name) else { continue };
            let planned = plan(&job, Images::Provided, None).expect("provided");
            assert!(planned.steps.is_ascii() && planned.steps.starts_with("spec:\n"), "{}", planned.steps);
        }
    }
});
