//! `step-runner check`.

mod before_run;
mod calls;
mod files;
mod report;

use std::sync::Arc;

use super::{CommandResult, Verbosity, ci_file, pairs, secrets, terminal};
use crate::error::Exit;
use crate::lang::ast::{Body, Function, Invocation, Part, Reference, Step};
use crate::lang::diagnostic::{Class, Diagnostic, Position, Severity};
use crate::lang::document::Checked;
use crate::plan::check::{self, Interface, Subject};
use crate::plan::outline::extensions;
use calls::CallGraph;
use files::{Called, CheckedFile, FileText};
use report::{CheckReport, ReportFormat};

pub(super) use before_run::Precheck;

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
  step-runner check .gitlab-ci.yml                  a CI file and all that it includes
  step-runner check --output gitlab . > gl-code-quality-report.json
  step-runner check --target gitlab ci/build        also for GitLab's own step runner
  echo '[{name: hi, script: echo hi}]' | step-runner check -")]
pub(super) struct Arguments {
    /// Function files, steps documents, CI files, folders, or - for stdin
    #[arg(value_name = "FILE", default_value = ".")]
    files: Vec<String>,
    /// Output format: text for people, one JSON object per finding, or a code quality report for GitLab
    #[arg(long, value_enum, default_value = "human", value_name = "FORMAT")]
    output: ReportFormat,
    /// An input of the CI files
    #[arg(long, value_name = "NAME=VALUE", env = "STEP_RUNNER_INPUT")]
    input: Vec<String>,
    /// Also refuse what this program does not know: gitlab, GitLab's own step runner
    #[arg(long, value_enum, value_name = "PROGRAM", env = "STEP_RUNNER_TARGET")]
    target: Option<Target>,
    #[command(flatten)]
    allowed: Allowed,
}

/// A program that is to understand the files, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Target {
    /// GitLab's own step runner
    Gitlab,
}

/// Warnings that are not wanted.
#[derive(clap::Args)]
pub(super) struct Allowed {
    /// Leave out warnings of this class, such as shell; its errors stay
    #[arg(long, value_name = "CLASS", value_delimiter = ',', value_parser = class, env = "STEP_RUNNER_ALLOW")]
    allow: Vec<Class>,
}

impl Allowed {
    fn filter(&self, findings: &mut Vec<Diagnostic>) {
        findings
            .retain(|finding| finding.severity == Severity::Error || !self.allow.contains(&finding.class));
    }
}

fn class(word: &str) -> Result<Class, String> {
    Class::of_word(word).ok_or_else(|| format!("the classes are {}", Class::ALL.map(Class::word).join(", ")))
}

pub(super) fn execute(arguments: &Arguments, verbosity: Verbosity) -> CommandResult {
    let mut report = CheckReport::new(arguments.output);
    let mut targets = Vec::new();
    for argument in &arguments.files {
        match files::of_argument(argument) {
            Ok(found) => targets.extend(found),
            Err(finding) => report.add(&[finding], None)?,
        }
    }
    let (ci_files, functions): (Vec<_>, Vec<_>) = targets.into_iter().partition(is_ci_file);
    let inputs = pairs::by_name(&arguments.input, "input")?;
    for file in ci_files {
        report.count_file();
        for (mut findings, text) in ci_file::check(&file.path, &inputs)? {
            arguments.allowed.filter(&mut findings);
            report.add(&findings, text.as_deref())?;
        }
    }
    let calls = CallGraph::from(functions);
    for file in calls.files() {
        report.count_file();
        match file.read() {
            Ok(text) => {
                let mut findings = findings(file, &text, Some(&calls));
                if arguments.target == Some(Target::Gitlab) {
                    findings.extend(file.parse(&text).function.iter().flat_map(extensions));
                    findings.sort_by_key(|finding| finding.at);
                }
                arguments.allowed.filter(&mut findings);
                report.add(&findings, Some(&text))?;
            }
            Err(finding) => report.add(&[finding], None)?,
        }
    }
    let (errors, summary) = report.finish()?;
    if !verbosity.quiet {
        terminal::say(&format!("step-runner: {summary}"));
    }
    Ok(if errors { Exit::Failure.code() } else { 0 })
}

/// True for a CI file. A text from stdin has no project, so it is none.
fn is_ci_file(file: &CheckedFile) -> bool {
    file.path.is_absolute() && file.read().is_ok_and(|text| ci_file::is_ci_file(&file.path, &text))
}

/// Returns all findings in one file. Without `calls` nothing is known of local functions.
fn findings(file: &CheckedFile, text: &FileText, calls: Option<&CallGraph>) -> Vec<Diagnostic> {
    let checked = file.parse(text);
    let whole = checked.is_complete();
    let Checked { function, mut diagnostics } = checked;
    diagnostics.extend(file.misnamed_beside());
    if let Some(function) = &function {
        let mut callees: Vec<Option<Arc<Interface>>> = Vec::new();
        for (index, step) in calling_steps(function) {
            let local = local(step).filter(|_| calls.is_some());
            let called = local.map(|(reference, at)| (file.called(reference), at));
            callees.push(match &called {
                Some((Called::File(called), _)) => calls.and_then(|calls| calls.interface(called)),
                _ => None,
            });
            let error = match called {
                Some((Called::File(called), at)) => calls
                    .and_then(|calls| calls.never_ends(file, &called))
                    .map(|message| (Class::Limit, message, None, at)),
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
        let subject = Subject { function, whole, callees: &callees };
        diagnostics.extend(check::function(&subject));
        secrets::add_literals(check::sensitive_literals(&subject));
    }
    diagnostics.sort_by(|a, b| (a.at, &a.path).cmp(&(b.at, &b.path)));
    diagnostics
}

/// Returns the steps that call something, with the place of each in its list: a group calls nothing, its members do.
fn calling_steps(function: &Function) -> impl Iterator<Item = (usize, &Step)> {
    steps(function).iter().enumerate().flat_map(|(index, step)| {
        let calling = if step.members().is_empty() { std::slice::from_ref(step) } else { step.members() };
        calling.iter().map(move |step| (index, step))
    })
}

fn steps(function: &Function) -> &[Step] {
    match &function.definition.body {
        Body::Run(run) => &run.steps,
        Body::Exec(_) => &[],
    }
}

/// Returns the local function that a step calls, unless the reference is computed.
fn local(step: &Step) -> Option<(&Reference, Position)> {
    match &step.invokes {
        Invocation::Reference(reference @ Reference::Local { .. }, at) => Some((reference, *at)),
        _ => None,
    }
}

/// True if an earlier step may write the function that the step at `index` calls: a script that names a part of its
/// path, or a step whose own function is not at hand.
fn may_be_written_before(function: &Function, index: usize) -> bool {
    let steps = steps(function);
    let Some(Reference::Local { path, files }) =
        steps.get(index).and_then(local).map(|(reference, _)| reference)
    else {
        return false;
    };
    let folders = path.split('/').filter(|name| !name.is_empty() && !name.starts_with('.'));
    let file = match files.as_slice() {
        [file] => Some(file.as_str()),
        _ => None,
    };
    let names: Vec<&str> = folders.chain(file).collect();
    steps.iter().take(index).any(|step| match &step.invokes {
        Invocation::Script(script) => script
            .parts
            .iter()
            .any(|part| matches!(part, Part::Text(text) if names.iter().any(|name| text.contains(name)))),
        Invocation::Reference(Reference::Local { .. }, _) => false,
        Invocation::Reference(Reference::Builtin { name, .. }, _) => name != "script",
        // Of a group its members may.
        Invocation::Reference(..) | Invocation::Action(_) | Invocation::Group(_) => true,
    })
}
