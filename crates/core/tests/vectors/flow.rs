//! Cases of flow.md (§10): steps documents that are checked, or run in virtual time by the machine of a job alone.

#![expect(clippy::expect_used, reason = "a broken vector fails its test")]

#[path = "flow/expectation.rs"]
mod expectation;
#[path = "flow/script.rs"]
mod script;
#[path = "flow/world.rs"]
mod world;

use std::sync::Arc;

use libtest_mimic::Failed;
use serde_json::{Value as Json, json};
use step_runner_core::plan::check::{self, Interface, Subject};
use step_runner_core::plan::outline;
use step_runner_lang::ast::{Body, Invocation, Reference, Step};
use step_runner_lang::diagnostic::{Class, Diagnostic, Position, Severity};
use step_runner_lang::document;

use world::World;

/// How a case is run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Manner {
    /// As it is.
    Plain,
    /// With a fresh machine made from the record after every event.
    Replayed,
    /// With every end told twice.
    Twice,
}

/// Checks a case, or runs it in each manner.
pub(crate) fn both(case: &Json) -> Result<(), Failed> {
    if case["kind"] == "check" {
        return check(case).map_err(Failed::from);
    }
    for manner in [Manner::Plain, Manner::Replayed, Manner::Twice] {
        run(case, manner).map_err(|error| format!("{manner:?}: {error}"))?;
    }
    Ok(())
}

/// Runs a case in one manner and compares everything that it expects.
pub(crate) fn run(case: &Json, manner: Manner) -> Result<(), String> {
    let mut world = World::new(case, manner);
    world.run();
    world.compare(&case["expect"])
}

/// Checks a case without running it.
pub(crate) fn check(case: &Json) -> Result<(), String> {
    let documents = &case["documents"];
    let text = documents["<steps>"].as_str().unwrap_or_default();
    let checked = document::check_request(text, "");
    let whole = checked.is_complete();
    let mut findings = checked.diagnostics;
    let mut plan = Vec::new();
    if let Some(function) = &checked.function {
        let callee = |step: &Step| match &step.invokes {
            Invocation::Reference(Reference::Local { path, .. }, _) => {
                let name = documents.get(path).or_else(|| documents.get(format!("./{path}")))?;
                let function = document::parse_function(name.as_str()?, path).ok()?;
                Some(Arc::new(Interface::of(&function)))
            }
            _ => None,
        };
        let callees: Vec<Option<Arc<Interface>>> = match &function.definition.body {
            Body::Run(run) => check::calling_steps(run).map(callee).collect(),
            Body::Exec(_) => Vec::new(),
        };
        findings.extend(check::function(&Subject { function, whole, callees: &callees }));
        if case["target"] == "gitlab" {
            findings.extend(outline::extensions(function));
        }
        plan.extend(outline::outline(function).into_iter().map(|step| step.path));
    }
    findings.sort_by_key(|finding| finding.at);
    let expect = &case["expect"];
    if !expect["plan"].is_null() && expect["plan"] != json!(plan) {
        return Err(format!("plan\n  wanted {}\n  found  {}", expect["plan"], json!(plan)));
    }
    let is_about_shells = |finding: &Diagnostic| [Class::Shell, Class::Injection].contains(&finding.class);
    let of = |severity| {
        findings.iter().filter(move |finding| finding.severity == severity && !is_about_shells(finding))
    };
    compare_findings(&expect["errors"], text, &of(Severity::Error).collect::<Vec<_>>(), "errors")?;
    compare_findings(&expect["warnings"], text, &of(Severity::Warning).collect::<Vec<_>>(), "warnings")
}

fn compare_findings(wanted: &Json, text: &str, found: &[&Diagnostic], what: &str) -> Result<(), String> {
    let wanted = wanted.as_array().cloned().unwrap_or_default();
    let alike = |(wanted, found): (&Json, &&Diagnostic)| {
        let Position { line, column } = found.at;
        let rest =
            text.lines().nth(line as usize - 1).map(|line| line.chars().skip(column as usize - 1).collect());
        let rest: String = rest.unwrap_or_default();
        wanted["at"] == format!("{line}:{column}")
            && wanted["class"].as_str().is_none_or(|class| class == found.class.word())
            && wanted["text"].as_str().is_none_or(|text| rest.starts_with(text))
            && wanted["hint"]
                .as_str()
                .is_none_or(|hint| found.help.as_ref().is_some_and(|help| help.contains(hint)))
    };
    if wanted.len() == found.len() && wanted.iter().zip(found).all(alike) {
        return Ok(());
    }
    let shown: Vec<String> =
        found.iter().map(|finding| format!("{} {finding}", finding.class.word())).collect();
    Err(format!("{what}\n  wanted {}\n  found  {shown:#?}", Json::Array(wanted)))
}
