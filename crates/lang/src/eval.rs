//! Evaluates templates (language.md §8–§11). Reads what a [`Scope`] provides and changes nothing. Errors name the
//! missing item and the known ones, never a value.

mod ahead;
mod budget;
mod expression;
mod functions;
mod operators;
mod scope;

use std::sync::Arc;

use indexmap::IndexMap;

pub use ahead::{StepsAhead, beside, later};
pub use expression::{meant, render};
pub use functions::Function;
pub use scope::{Context, EndedStep, Item, ListState, NAMES, Returned, Scope, Steps};

use super::ast::{Expression, Part, Template, TemplateValue};
use super::diagnostic::{BEYOND_RANGE, Class, Diagnostic};
use super::environment::EnvironmentFrame;
use super::name;
use super::value::{Data, EvaluatedText, Value, ValueType};
use budget::{Budget, VALUE_DEPTH, fits_depth};
use expression::Evaluator;

/// Evaluates a template to text: its own text, joined with the texts of its expressions. For string-only fields
/// (language.md §8): command arguments, `work_dir`, `env`, references, `script`.
pub fn evaluate_text(template: &Template, scope: &dyn Scope) -> Result<EvaluatedText, Diagnostic> {
    evaluate_part(template, scope, &Budget::new())
}

/// Evaluates templates to texts, such as the arguments of a command. One limit applies to all of them together. The path
/// of an error is the index, such as `[2]`.
pub fn evaluate_texts<'t>(
    templates: impl IntoIterator<Item = &'t Template>,
    scope: &dyn Scope,
) -> Result<Vec<EvaluatedText>, Diagnostic> {
    let budget = Budget::new();
    let evaluate = |(index, template)| {
        evaluate_part(template, scope, &budget).map_err(|finding| finding.with_path(format!("[{index}]")))
    };
    templates.into_iter().enumerate().map(evaluate).collect()
}

/// Evaluates an expression that uses no names except those of functions.
pub fn evaluate_constant(expression: &Expression, file: &Arc<str>) -> Result<Value, Diagnostic> {
    let scope = IndexMap::<String, Value>::new();
    Evaluator::new(&scope, file, &Budget::new()).value(expression)
}

/// Returns the expression whose type the template's value keeps. It must be the template's only part. White space
/// around it is ignored unless `declared`, the type of the receiving input, is unknown or `string` (language.md §8
/// "Exception").
pub fn native_expression(template: &Template, declared: Option<ValueType>) -> Option<&Expression> {
    let ignore_space = declared.is_some_and(|declared| declared != ValueType::String);
    template.as_expression().or_else(|| if ignore_space { surrounded(template) } else { None })
}

/// Evaluates a template. A single expression keeps its type (language.md §8 "Native pass-through").
pub fn evaluate_native(template: &Template, scope: &dyn Scope) -> Result<Value, Diagnostic> {
    evaluate_template(template, None, &Evaluator::new(scope, &template.file, &Budget::new()))
}

/// Evaluates a value with templates at any depth. `declared` is the type of the receiving input, if any. If it is not
/// `string`, white space around a single expression is ignored (language.md §8 "Exception").
pub fn evaluate_value(
    value: &TemplateValue,
    declared: Option<ValueType>,
    scope: &dyn Scope,
) -> Result<Value, Diagnostic> {
    evaluate_nested(value, declared, scope, &Budget::new(), VALUE_DEPTH)
}

/// Evaluates keys and values of a step's `inputs`. `declared` returns the type of an input of the called function, for
/// the exception described at [`evaluate_value`]. Keys must be valid names and differ (language.md §5). The path of an
/// error is that of the input in the step, such as `inputs.tag`.
pub fn evaluate_inputs(
    inputs: &[(Template, TemplateValue)],
    declared: impl Fn(&str) -> Option<ValueType>,
    scope: &dyn Scope,
) -> Result<IndexMap<String, Value>, Diagnostic> {
    let budget = Budget::new();
    let mut evaluated = IndexMap::with_capacity(inputs.len());
    for (key, value) in inputs {
        let name =
            evaluate_key(key, "input", scope, &budget).map_err(|finding| finding.with_path("inputs"))?;
        let value = evaluate_nested(value, declared(&name), scope, &budget, VALUE_DEPTH)
            .map_err(|finding| in_input(&name, finding).with_path(path_of("inputs", key)))?;
        if evaluated.insert(name, value).is_some() {
            return Err(repeated_key(key).with_path("inputs"));
        }
    }
    Ok(evaluated)
}

/// Adds the name of the input that could not be evaluated, in the form that clients of the compatible service expect.
pub fn in_input(name: &str, finding: Diagnostic) -> Diagnostic {
    Diagnostic { message: format!("expand input {name:?}: {}", finding.message), ..finding }
}

/// Evaluates keys and values of a step's `env`. The path of an error is that in the step, such as `env.NAME`.
pub fn evaluate_env(env: &[(Template, Template)], scope: &dyn Scope) -> Result<EnvironmentFrame, Diagnostic> {
    let budget = Budget::new();
    let mut frame = EnvironmentFrame::with_capacity(env.len());
    for (key, value) in env {
        let name = evaluate_key(key, "environment variable", scope, &budget)
            .map_err(|finding| finding.with_path("env"))?;
        let value =
            evaluate_part(value, scope, &budget).map_err(|finding| finding.with_path(path_of("env", key)))?;
        if frame.insert(name, value).is_some() {
            return Err(repeated_key(key).with_path("env"));
        }
    }
    Ok(frame)
}

/// Evaluates `env` of a definition.
pub fn evaluate_definition_env(
    env: &IndexMap<String, Template>,
    scope: &dyn Scope,
) -> Result<EnvironmentFrame, Diagnostic> {
    let budget = Budget::new();
    env.iter()
        .map(|(name, value)| {
            evaluate_part(value, scope, &budget)
                .map(|text| (name.clone(), text))
                .map_err(|finding| finding.with_path(format!("env.{name}")))
        })
        .collect()
}

/// Returns the path of a pair in a step. A computed key may be a secret.
fn path_of(field: &str, key: &Template) -> String {
    format!("{field}.{}", key.as_literal().unwrap_or("…"))
}

/// Evaluates `outputs` of a run function.
pub fn evaluate_outputs(
    outputs: &IndexMap<String, TemplateValue>,
    declared: impl Fn(&str) -> Option<ValueType>,
    scope: &dyn Scope,
) -> Result<IndexMap<String, Value>, Diagnostic> {
    let budget = Budget::new();
    outputs
        .iter()
        .map(|(name, value)| {
            evaluate_nested(value, declared(name), scope, &budget, VALUE_DEPTH)
                .map(|value| (name.clone(), value))
                .map_err(|finding| finding.with_path(format!("outputs.{name}")))
        })
        .collect()
}

/// Evaluates like [`evaluate_text`], but charges a budget that others share.
fn evaluate_part(
    template: &Template,
    scope: &dyn Scope,
    budget: &Budget,
) -> Result<EvaluatedText, Diagnostic> {
    Evaluator::new(scope, &template.file, budget).text(&template.parts, template.at)
}

fn evaluate_key(
    key: &Template,
    what: &str,
    scope: &dyn Scope,
    budget: &Budget,
) -> Result<String, Diagnostic> {
    if let Some(name) = key.as_literal() {
        return Ok(name.to_owned());
    }
    let value = evaluate_template(key, None, &Evaluator::new(scope, &key.file, budget))?;
    match value.data {
        Data::String(name) if name::is_valid(&name) => Ok(name),
        // The text may be a secret, so the message does not show it.
        Data::String(_) => Err(Diagnostic::error(
            Class::Name,
            &key.file,
            key.at,
            format!(
                "the key does not evaluate to a valid {what} name: letters, digits and _, not starting with a digit"
            ),
        )),
        _ => Err(Diagnostic::error(
            Class::Type,
            &key.file,
            key.at,
            format!("the key must evaluate to a string, got {}", value.type_name()),
        )),
    }
}

fn repeated_key(key: &Template) -> Diagnostic {
    Diagnostic::error(
        Class::Name,
        &key.file,
        key.at,
        "the key evaluates to a name that another key has already",
    )
}

/// Evaluates a value at any depth with one shared budget. The results of templates may nest `levels` deep.
fn evaluate_nested(
    value: &TemplateValue,
    declared: Option<ValueType>,
    scope: &dyn Scope,
    budget: &Budget,
    levels: usize,
) -> Result<Value, Diagnostic> {
    let inside = levels.saturating_sub(1);
    match value {
        TemplateValue::Written(_, text, _) if declared == Some(ValueType::String) => Ok(Value::text(&**text)),
        TemplateValue::Constant(constant) | TemplateValue::Written(constant, ..) => Ok(constant.clone()),
        TemplateValue::BeyondRange(number) if declared == Some(ValueType::String) => {
            Ok(Value::text(number.as_literal().unwrap_or_default()))
        }
        TemplateValue::BeyondRange(number) => Err(beyond_range(number)),
        TemplateValue::Text(template) => {
            let value =
                evaluate_template(template, declared, &Evaluator::new(scope, &template.file, budget))?;
            if fits_depth(&value, levels) {
                return Ok(value);
            }
            let message = format!("value nested deeper than {VALUE_DEPTH}");
            Err(Diagnostic::error(Class::Limit, &template.file, template.at, message))
        }
        TemplateValue::Array(items, _) => {
            let items: Result<Vec<Value>, Diagnostic> =
                items.iter().map(|item| evaluate_nested(item, None, scope, budget, inside)).collect();
            Ok(Value::array(items?))
        }
        TemplateValue::Object(members, _) => {
            let members: Result<IndexMap<String, Value>, Diagnostic> = members
                .iter()
                .map(|(key, member)| Ok((key.clone(), evaluate_nested(member, None, scope, budget, inside)?)))
                .collect();
            Ok(Value::object(members?))
        }
    }
}

/// Returns the error about a number beyond the range of doubles for an input that is not declared as string.
pub fn beyond_range(number: &Template) -> Diagnostic {
    Diagnostic::error(Class::Type, &number.file, number.at, BEYOND_RANGE)
}

/// Returns the native value of a single expression, or the text of any other template.
fn evaluate_template(
    template: &Template,
    declared: Option<ValueType>,
    evaluator: &Evaluator<'_>,
) -> Result<Value, Diagnostic> {
    match native_expression(template, declared) {
        Some(expression) => evaluator.value(expression),
        None => evaluator.text(&template.parts, template.at).map(Value::from),
    }
}

/// Returns the only expression of a template that holds nothing but white space beside it.
fn surrounded(template: &Template) -> Option<&Expression> {
    let mut found = None;
    for part in &template.parts {
        match part {
            Part::Text(text) if text.chars().all(char::is_whitespace) => {}
            Part::Expression(expression) if found.is_none() => found = Some(expression),
            Part::Text(_) | Part::Expression(_) => return None,
        }
    }
    found
}

#[cfg(test)]
mod tests;
