//! The steps of a function and their members as far as they are known without a run: what `run --dry-run` prints
//! (flow.md §7), and the keys that GitLab's own step runner does not know.

use step_runner_lang::ast::flow::{Flow, Matrix, MatrixItems};
use step_runner_lang::ast::{Body, Function, Step, TemplateValue};
use step_runner_lang::diagnostic::{Class, Diagnostic};
use step_runner_lang::value::Value;

use super::matrix::{combinations, names};

/// A step or member that may run.
pub struct PlannedStep<'f> {
    /// Names from the list down to it. The last one is `?` for members that only a run can tell.
    pub path: String,
    /// The step; of a member of a matrix the step with the matrix.
    pub step: &'f Step,
}

/// Returns the steps of a function in order, each group before its members.
pub fn outline(function: &Function) -> Vec<PlannedStep<'_>> {
    let mut planned = Vec::new();
    for step in steps(function) {
        planned.push(PlannedStep { path: step.name.clone(), step });
        let below = |name: &str| format!("{}/{name}", step.name);
        planned.extend(step.members().iter().map(|step| PlannedStep { path: below(&step.name), step }));
        if let Some(matrix) = step.flow.as_ref().and_then(|flow| flow.matrix.as_ref()) {
            let names = known_members(step, matrix).unwrap_or_else(|| vec!["?".to_owned()]);
            planned.extend(names.into_iter().map(|name| PlannedStep { path: below(&name), step }));
        }
    }
    planned
}

/// Returns the names of the members of a matrix whose lists hold no expression.
fn known_members(step: &Step, matrix: &Matrix) -> Option<Vec<String>> {
    let lists: Option<Vec<(String, Vec<Value>)>> = matrix
        .lists
        .iter()
        .map(|list| {
            let MatrixItems::Literal(items) = &list.items else { return None };
            let values: Option<Vec<Value>> = items.iter().map(|item| literal(&item.value)).collect();
            Some((list.name.clone(), values?))
        })
        .collect();
    Some(names(&step.name, &combinations(&lists?, matrix)?))
}

fn literal(value: &TemplateValue) -> Option<Value> {
    match value {
        TemplateValue::Constant(value) | TemplateValue::Written(value, ..) => Some(value.clone()),
        TemplateValue::Text(template) => template.as_literal().map(Value::text),
        TemplateValue::BeyondRange(_) | TemplateValue::Array(..) | TemplateValue::Object(..) => None,
    }
}

/// Returns an error for each key of control flow and each `errexit`: GitLab's own step runner refuses a file that has
/// one.
pub fn extensions(function: &Function) -> Vec<Diagnostic> {
    let all = steps(function).iter().flat_map(|step| std::iter::once(step).chain(step.members()));
    let flow_keys = |flow: &Flow| flow.keys.clone();
    let found = all.flat_map(|step| {
        let errexit = step.errexit.map(|errexit| ("errexit".to_owned(), errexit.at));
        let keys = step.flow.as_deref().map(flow_keys).into_iter().flatten().chain(errexit);
        keys.map(|(key, at)| {
            let message = format!("GitLab's own step runner does not know the key \"{key}\"");
            let finding = Diagnostic::error(Class::Extension, &function.file, at, message);
            finding.with_path(format!("{}.{key}", step.path))
        })
    });
    found.collect()
}

fn steps(function: &Function) -> &[Step] {
    match &function.definition.body {
        Body::Run(run) => &run.steps,
        Body::Exec(_) => &[],
    }
}
