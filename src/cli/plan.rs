//! `run --dry-run`: the steps of a job, and what is known of them before they run (flow.md §7).

use std::fmt::Write as _;

use super::states::printable;
use super::terminal;
use crate::error::{Exit, Failure};
use crate::lang::ast::flow::{Condition, When};
use crate::lang::ast::{Invocation, Reference, Step};
use crate::lang::diagnostic::Diagnostic;
use crate::lang::document::parse_request;
use crate::lang::reference::place;
use crate::plan::outline::{PlannedStep, outline};

/// Prints the plan of a document called `file`: a line for each step and member.
pub(super) fn show(text: &str, file: &str) -> Result<(), Failure> {
    let function = parse_request(text, file).map_err(|findings| refused(&findings))?;
    let planned = outline(&function);
    let width = planned.iter().map(|step| step.path.chars().count()).max().unwrap_or(0);
    let mut lines = String::new();
    for PlannedStep { path, step } in &planned {
        let pad = width - path.chars().count();
        let is_member = path.contains('/');
        // Writing to memory does not fail.
        writeln!(lines, "{}{:pad$}  {}", printable(path), "", described(step, is_member)).ok();
    }
    if planned.is_empty() {
        lines.push_str("one process, no list of steps\n");
    }
    terminal::print(lines.as_bytes())
}

fn refused(findings: &[Diagnostic]) -> Failure {
    let place = |finding: &Diagnostic| format!("{}:{}: {}", finding.file, finding.at.line, finding.message);
    let first = findings.first().map(place);
    Failure::new(Exit::Refused, format!("the steps cannot be read: {}", first.unwrap_or_default()))
        .with_remedy("see all errors with `step-runner check`")
}

/// Returns what a step calls, and when it runs.
fn described(step: &Step, is_member: bool) -> String {
    let mut parts = vec![match &step.invokes {
        Invocation::Script(_) => "script".to_owned(),
        Invocation::Action(_) => "action".to_owned(),
        Invocation::Group(members) => format!("parallel, {} members", members.len()),
        Invocation::Reference(reference, _) => called(reference),
    }];
    let Some(flow) = step.flow.as_deref() else { return parts.concat() };
    // The keys of a matrix itself are looked at once, before its members.
    if flow.matrix.is_some() && is_member {
        return parts.concat();
    }
    parts.extend(flow.matrix.is_some().then(|| "matrix".to_owned()));
    match flow.when {
        When::OnSuccess => {}
        When::OnFailure => parts.push("when: on_failure".to_owned()),
        When::Always => parts.push("when: always".to_owned()),
    }
    match &flow.condition {
        None => {}
        Some(Condition::Constant(runs)) => parts.push(format!("if: {runs}")),
        Some(Condition::Expression { text, .. }) => parts.push(format!("if: {}", printable(text))),
    }
    parts.join("  ")
}

fn called(reference: &Reference) -> String {
    match reference {
        Reference::Local { path, .. } => printable(path),
        Reference::Builtin { name, .. } => format!("builtin {}", printable(name)),
        other => match place(other) {
            Some(place) => printable(&place),
            None => "known only in the run".to_owned(),
        },
    }
}
