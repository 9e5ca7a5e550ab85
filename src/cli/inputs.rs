//! Reads inputs from the command line and checks them against those that the function declares (cli.md, `run`).

use serde_json::Value as Json;

use super::excerpt::{self, Lines};
use super::pairs::split_pair;
use super::{secrets, terminal};
use crate::error::{Exit, Failure};
use crate::lang::ast::{Declaration, Function};
use crate::lang::convert::contract::{self, ContractError, NamedValues};
use crate::lang::convert::to_json;
use crate::lang::diagnostic::{Diagnostic, Severity};
use crate::lang::document;
use crate::lang::name;
use crate::lang::value::{Value, ValueType};
use crate::model::text;
use crate::plan::check::{self, Subject};
use crate::plan::definition;

/// Reads the inputs for the function in `text`, which `file` names for people. Prints each wrong input on stderr.
pub(super) fn read(text: &str, file: &str, given: &[String]) -> Result<Vec<(String, Json)>, Failure> {
    // The daemon refuses a document that cannot be parsed.
    let function = document::parse_request(text, file).ok();
    let declared = function.as_ref().map(|function| &function.spec.inputs);
    let type_of = |name: &str| Some(declared?.get(name)?.value_type);
    let values = given.iter().map(|input| parse(input, type_of)).collect::<Result<NamedValues, _>>()?;
    let inputs = values.iter().map(|(name, value)| (name.clone(), to_json(value))).collect();
    let Some(function) = function else { return Ok(inputs) };
    match contract::bind_inputs(values.clone(), &function.spec.inputs) {
        Ok(_) => Ok(inputs),
        Err(errors) => {
            let subject = Subject { function: &function, whole: true, callees: &[] };
            secrets::add_literals(check::sensitive_literals(&subject));
            Refusal { text, file, function: &function, values: &values, lines: Lines::of(text) }.say(&errors);
            Err(Failure::new(Exit::Refused, format!("{file} cannot run with these inputs")))
        }
    }
}

/// An input for a function whose declarations are not at hand.
pub(super) enum Untyped<'a> {
    /// A number, as it was given: the function may declare a string.
    Number(&'a str),
    /// Any other value.
    Value(Json),
}

/// Reads an input for a function whose declarations are not at hand.
pub(super) fn untyped(input: &str) -> Result<(String, Untyped<'_>), Failure> {
    let (name, text) = split_pair(input, "input")?;
    if document::is_number(text.trim()) {
        return Ok((name.to_owned(), Untyped::Number(text.trim())));
    }
    parse(input, |_| None).map(|(name, value)| (name, Untyped::Value(to_json(&value))))
}

/// Parses `NAME=VALUE`. VALUE is YAML, but text for an input that is declared a `string`. Errors tell the place in the value,
/// and never quote the value (masking.md §7).
fn parse(input: &str, type_of: impl Fn(&str) -> Option<ValueType>) -> Result<(String, Value), Failure> {
    let (name, text) = split_pair(input, "input")?;
    let value = if type_of(name) == Some(ValueType::String) {
        Value::text(text)
    } else {
        document::parse_value(text).map_err(|found| {
            let reason = match found.iter().find(|found| found.severity == Severity::Error) {
                // The mistake quotes the value, which can be a secret: no phrases to mask are known yet.
                Some(Diagnostic { at, .. }) => format!(": line {}, column {}", at.line, at.column),
                None => String::new(),
            };
            let what = format!("the value of --input {name} is no YAML value for an input{reason}");
            let failure = Failure::new(Exit::Usage, what);
            failure.with_remedy(
                "put text with special characters in quotes; numbers are finite, and keys are text and stand there once",
            )
        })?
    };
    Ok((name.to_owned(), value))
}

/// Returns an example value of a type, as one would type it.
const fn example(value_type: ValueType) -> &'static str {
    match value_type {
        ValueType::String => "text",
        ValueType::Number => "4",
        ValueType::Boolean => "true",
        ValueType::Array => "'[one, two]'",
        ValueType::Struct => "'{key: value}'",
    }
}

/// Describes inputs that a function does not accept.
struct Refusal<'a> {
    text: &'a str,
    file: &'a str,
    function: &'a Function,
    values: &'a NamedValues,
    lines: Lines<'a>,
}

impl Refusal<'_> {
    fn say(&self, errors: &[ContractError]) {
        let definition = definition::of_request(self.text);
        let described = &definition["spec"]["inputs"];
        for error in errors {
            let name = error.name.as_str();
            let report = match self.function.spec.inputs.get(name) {
                Some(declared) => self.declared(error, declared, described[name]["description"].as_str()),
                None => self.unknown(error),
            };
            terminal::say(&report);
        }
    }

    /// Describes a value that is missing or of another type than declared.
    fn declared(&self, error: &ContractError, declared: &Declaration, description: Option<&str>) -> String {
        let (name, expected) = (&error.name, declared.value_type);
        let kind = match description {
            Some(description) => format!("declared as {expected} ({description})"),
            None => format!("declared as {expected}"),
        };
        let (message, help) = match self.values.get(name) {
            None => (
                format!("input \"{name}\" required, but not given"),
                format!("give it with --input {name}=VALUE; it is {kind}"),
            ),
            Some(value) => (
                format!("--input {name}: expected {expected}, got {}", value.type_name()),
                format!("it is {kind}: for example --input {name}={}", example(expected)),
            ),
        };
        excerpt::about(&message, self.file, Some((declared.at, &self.lines)), &help)
    }

    fn unknown(&self, error: &ContractError) -> String {
        let known: Vec<_> = self.function.spec.inputs.keys().map(String::as_str).collect();
        let help = match name::suggest(&error.name, known.iter().copied()) {
            Some(similar) => format!("did you mean \"{similar}\"?"),
            None if known.is_empty() => "the function takes no inputs".to_owned(),
            None => format!("the function takes {}", known.join(", ")),
        };
        let message = format!("--input {}: there is no such input", text::quote(&error.name));
        excerpt::about(&message, self.file, None, &help)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const TEXT: &str = "spec: {inputs: {s: {type: string, default: a}, n: {type: number, default: 1}, o: {type: array, default: []}}}\n---\nrun: [{name: a, script: b}]\n";

    fn inputs(given: &[&str]) -> Result<Vec<(String, Json)>, Failure> {
        let given: Vec<_> = given.iter().map(ToString::to_string).collect();
        read(TEXT, "f.yml", &given)
    }

    #[test]
    fn values_are_yaml_unless_declared_a_string() {
        let expected = [("s", json!("3")), ("n", json!(3)), ("o", json!([1, true]))];
        let expected = expected.map(|(name, value)| (name.to_owned(), value));
        assert_eq!(inputs(&["s=3", "n=3", "o=[1, true]"]).unwrap(), expected);
    }

    #[test]
    fn inputs_that_the_function_does_not_accept_are_refused_at_once() {
        for wrong in ["n=text", "x=1", "o={a: 1}"] {
            assert_eq!(inputs(&[wrong]).unwrap_err().exit(), Exit::Refused, "{wrong}");
        }
    }

    #[test]
    fn errors_never_quote_a_value() {
        for input in ["=hidden", "hidden", "n=[hidden"] {
            let error = inputs(&[input]).unwrap_err();
            assert!(!error.to_string().contains("hidden"), "{error}");
            assert_eq!(error.exit(), Exit::Usage);
        }
    }

    #[test]
    fn a_value_that_is_no_yaml_is_refused_with_the_place_and_without_a_word_of_it() {
        let error = inputs(&["o=[a,\n b: {"]).unwrap_err().to_string();
        assert!(error.contains("--input o is no YAML value for an input: line 2, column "), "{error}");
        for value in [
            "!s3cret",
            "{s3cret: 1, s3cret: 2}",
            "{? [s3cret] : 1}",
            "&s3cret",
            "*s3cret",
            "\"s3cret",
            "@s3cret",
        ] {
            let refused = untyped(&format!("o={value}")).err().map(|error| error.to_string());
            assert!(refused.is_none_or(|error| !error.contains("s3cret")), "{value}");
        }
    }
}
