//! Checks values against an interface: inputs before a step starts (language.md §11.3–§11.5), outputs after it has
//! ended (language.md §4, §12).

use indexmap::IndexMap;
use step_runner_model::text;
use thiserror::Error;

use crate::ast::Declaration;
use crate::convert::to_text;
use crate::diagnostic::Class;
use crate::name;
use crate::value::{Data, Value, ValueType};

/// A breach of an interface. It names types and inputs, never a value.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct ContractError {
    /// [`Class::Type`], [`Class::Missing`] or [`Class::Undeclared`].
    pub class: Class,
    /// The input or output.
    pub name: String,
    /// The mistake and the remedy.
    pub message: String,
}

/// Maximum number of unknown names reported at once. Each costs a search for a similar name.
const REPORTED_NAMES: usize = 100;

/// Values by name of input or output.
pub type NamedValues = IndexMap<String, Value>;

/// Returns the inputs of a function in the order of the declarations. Refuses unknown names, checks types, fills in
/// defaults and marks values of sensitive inputs. Returns all errors at once.
pub fn bind_inputs(
    given: NamedValues,
    declared: &IndexMap<String, Declaration>,
) -> Result<NamedValues, Vec<ContractError>> {
    let mut errors: Vec<ContractError> = given
        .keys()
        .filter(|name| !declared.contains_key(*name))
        .take(REPORTED_NAMES)
        .map(|name| unknown_input(name, declared))
        .collect();
    let mut given = given;
    let mut bound = IndexMap::with_capacity(declared.len());
    for (name, declaration) in declared {
        let value = match given.swap_remove(name) {
            Some(value) => check_input(name, value, declaration.value_type),
            None => declaration.default.clone().ok_or_else(|| missing_input(name)),
        };
        match value {
            Ok(mut value) => {
                if declaration.sensitive {
                    value.mark_sensitive();
                }
                bound.insert(name.clone(), value);
            }
            Err(error) => errors.push(error),
        }
    }
    if errors.is_empty() { Ok(bound) } else { Err(errors) }
}

/// Checks one input. Converts a number or boolean to text if declared so; null fits any type (language.md §11.3).
pub(crate) fn check_input(name: &str, value: Value, expected: ValueType) -> Result<Value, ContractError> {
    match (expected, &value.data) {
        (_, Data::Null) => Ok(value),
        (ValueType::String, Data::Number(_) | Data::Bool(_)) => {
            Ok(Value { sensitive: value.sensitive, data: Data::String(to_text(&value)) })
        }
        _ if value.value_type() == Some(expected) => Ok(value),
        _ => Err(wrong_input(name, expected, value.value_type())),
    }
}

/// Returns the outputs of an exec function in the order of the declarations. Refuses undeclared names, requires equal
/// types, fills in defaults and marks values of sensitive outputs. Returns all errors at once.
pub(crate) fn bind_outputs(
    written: NamedValues,
    declared: &IndexMap<String, Declaration>,
) -> Result<NamedValues, Vec<ContractError>> {
    let undeclared: Vec<ContractError> = written
        .keys()
        .filter(|name| !declared.contains_key(*name))
        .take(REPORTED_NAMES)
        .map(|name| ContractError {
            class: Class::Undeclared,
            name: name.clone(),
            message: format!(
                "output \"{}\" is not declared in the spec{}",
                text::quote(name),
                known(name, declared)
            ),
        })
        .collect();
    match declared_outputs(written, declared) {
        Ok((outputs, _)) if undeclared.is_empty() => Ok(outputs),
        Ok(_) => Err(undeclared),
        Err(errors) => Err(undeclared.into_iter().chain(errors).collect()),
    }
}

/// Returns the outputs of a run function as [`bind_outputs`] does, but keeps undeclared ones after the declared ones.
/// Also returns the undeclared names, for one warning each (language.md §4).
pub fn bind_sequence_outputs(
    evaluated: NamedValues,
    declared: &IndexMap<String, Declaration>,
) -> Result<(NamedValues, Vec<String>), Vec<ContractError>> {
    let (mut outputs, rest) = declared_outputs(evaluated, declared)?;
    let undeclared = rest.keys().cloned().collect();
    outputs.extend(rest);
    Ok((outputs, undeclared))
}

/// Returns the declared outputs with their defaults, and the values left over.
fn declared_outputs(
    mut values: NamedValues,
    declared: &IndexMap<String, Declaration>,
) -> Result<(NamedValues, NamedValues), Vec<ContractError>> {
    let mut outputs = IndexMap::with_capacity(declared.len());
    let mut errors = Vec::new();
    for (name, declaration) in declared {
        let output = match values.shift_remove(name) {
            Some(value) if value.value_type() == Some(declaration.value_type) => Ok(value),
            Some(value) => Err(wrong_output(name, declaration.value_type, value.value_type())),
            None => declaration.default.clone().ok_or_else(|| missing_output(name)),
        };
        let mut value = match output {
            Ok(value) => value,
            Err(error) => {
                errors.push(error);
                continue;
            }
        };
        if declaration.sensitive {
            value.mark_sensitive();
        }
        outputs.insert(name.clone(), value);
    }
    if errors.is_empty() { Ok((outputs, values)) } else { Err(errors) }
}

/// Makes the error for a required input that is not given.
pub fn missing_input(name: &str) -> ContractError {
    ContractError {
        class: Class::Missing,
        name: name.to_owned(),
        message: format!("input \"{name}\" required, but not defined"),
    }
}

/// Makes the error for an output that has neither value nor default.
pub fn missing_output(name: &str) -> ContractError {
    ContractError {
        class: Class::Missing,
        name: name.to_owned(),
        message: format!("output \"{name}\" was not written and has no default"),
    }
}

/// Makes the error for an input that is given but not declared.
pub fn unknown_input(name: &str, declared: &IndexMap<String, Declaration>) -> ContractError {
    ContractError {
        class: Class::Undeclared,
        name: name.to_owned(),
        message: format!(
            "step does not accept input with name \"{}\"{}",
            text::quote(name),
            known(name, declared)
        ),
    }
}

/// Returns ` (did you mean "x"?)`, or nothing.
fn known(name: &str, declared: &IndexMap<String, Declaration>) -> String {
    name::suggest(name, declared.keys().map(String::as_str))
        .map_or_else(String::new, |similar| format!(" (did you mean \"{similar}\"?)"))
}

/// Makes the error for an input of type `got`; `None` is null.
pub fn wrong_input(name: &str, expected: ValueType, got: Option<ValueType>) -> ContractError {
    let remedy = match (expected, got) {
        (ValueType::Number, Some(ValueType::String)) => "; num() converts",
        (ValueType::Boolean, Some(ValueType::String)) => "; write true or false without quotes",
        _ => "",
    };
    mismatch("input", name, expected, got, remedy)
}

/// Makes the error for an output of type `got`; `None` is null.
pub fn wrong_output(name: &str, expected: ValueType, got: Option<ValueType>) -> ContractError {
    mismatch("output", name, expected, got, "")
}

fn mismatch(
    what: &str,
    name: &str,
    expected: ValueType,
    got: Option<ValueType>,
    remedy: &str,
) -> ContractError {
    let got = got.map_or("null", ValueType::name);
    ContractError {
        class: Class::Type,
        name: name.to_owned(),
        message: format!("{what} \"{name}\": expected {expected}, got {got}{remedy}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnostic::Position;

    fn declare(value_type: ValueType, default: Option<Value>) -> Declaration {
        Declaration { value_type, default, sensitive: false, at: Position::START }
    }

    fn number(number: f64) -> Value {
        Value::plain(Data::Number(number))
    }

    #[test]
    fn numbers_and_booleans_become_text_where_text_is_declared() {
        let bound = check_input("version", number(1.22), ValueType::String).unwrap();
        assert!(bound == Value::text("1.22"));
        let bound = check_input("on", Value::plain(Data::Bool(true)), ValueType::String).unwrap();
        assert!(bound == Value::text("true"));
    }

    #[test]
    fn a_sensitive_number_stays_sensitive_as_text() {
        let bound = check_input("pin", Value { sensitive: true, ..number(4.0) }, ValueType::String).unwrap();
        assert!(bound.sensitive);
    }

    #[test]
    fn other_types_are_refused_with_both_names() {
        let error = check_input("n", Value::text("x"), ValueType::Number).unwrap_err();
        assert_eq!(error.class, Class::Type);
        assert_eq!(error.message, "input \"n\": expected number, got string; num() converts");
    }

    #[test]
    fn explicit_null_passes_and_an_absent_input_gets_its_default() {
        let declared = IndexMap::from([
            ("a".to_owned(), declare(ValueType::Number, Some(number(7.0)))),
            ("b".to_owned(), declare(ValueType::Struct, None)),
        ]);
        let given = IndexMap::from([("b".to_owned(), Value::plain(Data::Null))]);
        let bound = bind_inputs(given, &declared).unwrap();
        assert!(bound["a"] == number(7.0));
        assert!(bound["b"].data == Data::Null);
    }

    #[test]
    fn all_errors_of_the_inputs_are_reported_at_once() {
        let declared = IndexMap::from([
            ("message".to_owned(), declare(ValueType::String, None)),
            ("n".to_owned(), declare(ValueType::Number, None)),
        ]);
        let given =
            IndexMap::from([("mesage".to_owned(), Value::text("x")), ("n".to_owned(), Value::text("x"))]);
        let errors = bind_inputs(given, &declared).unwrap_err();
        let classes: Vec<Class> = errors.iter().map(|error| error.class).collect();
        assert_eq!(classes, [Class::Undeclared, Class::Missing, Class::Type]);
        assert_eq!(
            errors[0].to_string(),
            "step does not accept input with name \"mesage\" (did you mean \"message\"?)"
        );
    }

    #[test]
    fn values_of_sensitive_inputs_are_marked_to_the_leaves() {
        let mut declaration = declare(ValueType::Array, Some(Value::array([number(1.0)])));
        declaration.sensitive = true;
        let bound = bind_inputs(IndexMap::new(), &IndexMap::from([("a".to_owned(), declaration)])).unwrap();
        let Data::Array(items) = &bound["a"].data else { panic!("an array") };
        assert!(bound["a"].sensitive && items[0].sensitive);
    }

    #[test]
    fn a_run_function_keeps_undeclared_outputs_and_names_them() {
        let declared = IndexMap::from([("a".to_owned(), declare(ValueType::Number, Some(number(1.0))))]);
        let evaluated = IndexMap::from([("b".to_owned(), number(2.0))]);
        let (outputs, undeclared) = bind_sequence_outputs(evaluated, &declared).unwrap();
        assert_eq!(outputs.keys().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(undeclared, ["b"]);
    }

    #[test]
    fn types_of_outputs_are_exact() {
        let declared = IndexMap::from([("ok".to_owned(), declare(ValueType::Boolean, None))]);
        let errors =
            bind_outputs(IndexMap::from([("ok".to_owned(), Value::text("true"))]), &declared).unwrap_err();
        assert_eq!(errors[0].to_string(), "output \"ok\": expected boolean, got string");
    }
}
