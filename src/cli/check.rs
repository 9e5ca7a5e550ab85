//! `step-runner check`.

mod calls;
mod files;
mod report;

use std::path::Path;
use std::sync::Arc;

use super::{Ending, Talk, terminal};
use crate::error::Exit;
use crate::lang::ast::{Body, Function, Invocation, Part, Reference, Step};
use crate::lang::diagnostic::{Class, Diagnostic, Position, Severity};
use crate::lang::document::Checked;
use crate::plan::check::{self, Interface, Subject};
use calls::Calls;
use files::{Called, File, Text};
use report::{Format, Report};

/// Find the errors of function files and steps documents without running them
///
/// Checks each file and the local functions it names, and theirs. A folder is searched for function files and steps
/// documents; what begins with a dot is left out. What only a run can tell, such as remote functions and computed
/// references, is left to it. Ends with 1 if there are errors, with 0 if there are none or only warnings.
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  step-runner check ci/build/func.yml
  step-runner check .                               all function files below this folder
  step-runner check --output gitlab . > gl-code-quality-report.json
  echo '[{name: hi, script: echo hi}]' | step-runner check -")]
pub(super) struct Arguments {
    /// Function files, steps documents, folders, or - for stdin
    #[arg(value_name = "FILE", default_value = ".")]
    files: Vec<String>,
    /// For people, one JSON object per finding, or a code quality report of GitLab
    #[arg(long, value_enum, default_value = "human", value_name = "FORMAT")]
    output: Format,
}

pub(super) fn execute(arguments: &Arguments, talk: Talk) -> Ending {
    let mut report = Report::new(arguments.output);
    let mut targets = Vec::new();
    for argument in &arguments.files {
        match files::of_argument(argument) {
            Ok(found) => targets.extend(found),
            Err(finding) => report.add(&[finding], None)?,
        }
    }
    let calls = Calls::from(targets);
    for file in calls.files() {
        match file.read() {
            Ok(text) => report.add(&findings(file, &text, &calls), Some(&text))?,
            Err(finding) => report.add(&[finding], None)?,
        }
    }
    let (errors, summary) = report.finish()?;
    if let (false, Some(summary)) = (talk.quiet, summary) {
        terminal::say(&format!("step-runner: {summary}"));
    }
    Ok(if errors { Exit::Failure.code() } else { 0 })
}

/// Everything that is wrong with one file.
fn findings(file: &File, text: &Text, calls: &Calls) -> Vec<Diagnostic> {
    let checked = file.parse(text);
    let whole = checked.is_complete();
    let Checked { function, mut diagnostics } = checked;
    if let Some(function) = &function {
        let mut callees: Vec<Option<Arc<Interface>>> = Vec::new();
        for (index, step) in steps(function).iter().enumerate() {
            let called = local(step).map(|(reference, at)| (file.called(reference), at));
            callees.push(match &called {
                Some((Called::File(called), _)) => calls.interface(called),
                _ => None,
            });
            let error = match called {
                Some((Called::File(called), at)) => {
                    calls.never_ends(file, &called).map(|message| (Class::Limit, message, None, at))
                }
                Some((Called::Nothing { class, message, help }, at)) => Some((class, message, help, at)),
                None => None,
            };
            if let Some((class, message, help, at)) = error {
                let path = format!("{}.func", step.path);
                let finding = Diagnostic::error(class, &function.file, at, message).with_path(path);
                let severity = if class == Class::NotFound && may_be_written_before(function, index) {
                    Severity::Warning
                } else {
                    Severity::Error
                };
                diagnostics.push(Diagnostic { severity, help, ..finding });
            }
        }
        diagnostics.extend(check::function(&Subject { function, whole, callees: &callees }));
    }
    diagnostics.sort_by(|a, b| (a.at, &a.path).cmp(&(b.at, &b.path)));
    diagnostics
}

/// The steps of a function.
fn steps(function: &Function) -> &[Step] {
    match &function.definition.body {
        Body::Run(run) => &run.steps,
        Body::Exec(_) => &[],
    }
}

/// The local function that a step calls, as far as that is written down.
fn local(step: &Step) -> Option<(&Reference, Position)> {
    match &step.invokes {
        Invocation::Reference(reference @ Reference::Local { .. }, at) => Some((reference, *at)),
        _ => None,
    }
}

/// Whether a script that runs before names the folder or file that the step at `index` calls: it may write it.
fn may_be_written_before(function: &Function, index: usize) -> bool {
    let steps = steps(function);
    let Some(Reference::Local { path, files }) =
        steps.get(index).and_then(local).map(|(reference, _)| reference)
    else {
        return false;
    };
    let name = match (files.as_slice(), Path::new(path).file_name()) {
        ([file], _) => file.as_str(),
        (_, Some(folder)) => folder.to_str().unwrap_or_default(),
        _ => return false,
    };
    steps.iter().take(index).any(|step| match &step.invokes {
        Invocation::Script(script) => {
            script.parts.iter().any(|part| matches!(part, Part::Text(text) if text.contains(name)))
        }
        _ => false,
    })
}
