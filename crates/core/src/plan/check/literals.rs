//! Texts in a function that are sensitive (language.md §11.5): who shows its lines hides them.

use step_runner_lang::ast::{Body, Outputs, TemplateValue};
use step_runner_lang::value::{Data, Value};

use super::{Subject, calling_steps};
use crate::plan::secrets::{Leaf, for_each_leaf};

/// Returns the texts and numbers that stand in a function as sensitive values: defaults of its own inputs and outputs, and
/// what its steps and outputs give without an expression.
pub fn sensitive_literals(subject: &Subject<'_>) -> Vec<String> {
    let function = subject.function;
    let outputs = match &function.spec.outputs {
        Outputs::Declared(outputs) => Some(outputs),
        Outputs::Delegate => None,
    };
    let mut found = Vec::new();
    let declared =
        function.spec.inputs.values().chain(outputs.into_iter().flat_map(|outputs| outputs.values()));
    for default in
        declared.filter(|declared| declared.sensitive).filter_map(|declared| declared.default.as_ref())
    {
        of_value(default, &mut found);
    }
    let Body::Run(run) = &function.definition.body else { return found };
    for (index, step) in calling_steps(run).enumerate() {
        let Ok(Some(callee)) = subject.callee(step, index) else { continue };
        for (key, value) in &step.inputs {
            if key.as_literal().and_then(|name| callee.inputs.get(name)).is_some_and(|input| input.sensitive)
            {
                of_template(value, &mut found);
            }
        }
    }
    for (name, value) in &run.outputs {
        if outputs.and_then(|outputs| outputs.get(name)).is_some_and(|output| output.sensitive) {
            of_template(value, &mut found);
        }
    }
    found
}

/// Adds the leaves of a value that is not evaluated. A text with an expression is none: the expression has the secret.
fn of_template(value: &TemplateValue, found: &mut Vec<String>) {
    match value {
        TemplateValue::Constant(value) => of_value(value, found),
        TemplateValue::Written(Value { data: Data::Number(_), .. }, text, _) => found.push(text.to_string()),
        // A boolean cannot be hidden.
        TemplateValue::Written(..) => {}
        TemplateValue::BeyondRange(template) | TemplateValue::Text(template) => {
            found.extend(template.as_literal().filter(|text| !text.is_empty()).map(str::to_owned));
        }
        TemplateValue::Array(items, _) => items.iter().for_each(|item| of_template(item, found)),
        TemplateValue::Object(members, _) => members.values().for_each(|member| of_template(member, found)),
    }
}

fn of_value(value: &Value, found: &mut Vec<String>) {
    for_each_leaf(value, true, &mut |leaf| match leaf {
        Leaf::Text("") => {}
        Leaf::Text(text) | Leaf::Number(text) => found.push(text.to_owned()),
    });
}
