//! `language-vectors.json`: expressions, templates, references, definition files, output files, environment layers
//! (language.md §20).

use std::sync::Arc;

use indexmap::IndexMap;
use libtest_mimic::Failed;
use serde_json::{Value as Json, json};
use step_runner::lang::ast::{Body, Declaration, Invocation, Reference, Template};
use step_runner::lang::convert::json::{MemoryBudget, parse as parse_json};
use step_runner::lang::convert::to_json;
use step_runner::lang::diagnostic::{Class, Diagnostic, Position};
use step_runner::lang::document::{parse_function, parse_request};
use step_runner::lang::environment::{Environment, EnvironmentFrame};
use step_runner::lang::eval::{evaluate_native, evaluate_text, evaluate_value};
use step_runner::lang::expression;
use step_runner::lang::output_file::{OutputFileError, read_exports, read_outputs};
use step_runner::lang::template::parse_inline;
use step_runner::lang::value::{Data, EvaluatedText, Value, ValueType};

/// Result of a vector: a value, or the class and line of the first error.
type Outcome = Result<Json, (Class, Option<u32>)>;

/// Runs one vector of any kind.
pub(crate) fn run(vector: &Json) -> Result<(), Failed> {
    let input = &vector["input"];
    let outcome = match text(&vector["kind"])? {
        "expression" => evaluate_expression(text(input)?, &vector["context"]),
        "template" => evaluate_template(input, &vector["context"], vector["as"] == "string")?,
        "reference" => parse_reference(input)?,
        "file" => check_file(text(input)?),
        "output_file" => read_output_file(text(input)?, &vector["spec"])?,
        "env" if input["export_file"].is_string() => read_export_file(text(&input["export_file"])?),
        "env" => Ok(look_up(&input["layers"], text(&input["name"])?)),
        kind => return Err(format!("unknown kind {kind}").into()),
    };
    compare(&vector["expect"], &outcome)
}

fn text(json: &Json) -> Result<&str, Failed> {
    json.as_str().ok_or_else(|| format!("expected text, got {json}").into())
}

fn value_of(json: &Json) -> Value {
    parse_json(&json.to_string(), &MemoryBudget::new(1 << 20)).unwrap_or_else(|_| Value::plain(Data::Null))
}

fn names(context: &Json) -> IndexMap<String, Value> {
    match value_of(context).data {
        Data::Object(members) => (*members).clone(),
        _ => IndexMap::new(),
    }
}

fn failed(error: &Diagnostic) -> (Class, Option<u32>) {
    (error.class, Some(error.at.line))
}

fn evaluate_expression(input: &str, context: &Json) -> Outcome {
    // Parsed as a template, because the language's rules for free names apply there.
    let file: Arc<str> = Arc::from("vector");
    expression::parse(input, &file).map_err(|error| failed(&error))?;
    let template =
        parse_inline(&format!("${{{{ {input} }}}}"), &file, Position::START).map_err(|e| failed(&e))?;
    evaluate_native(&template, &names(context)).map(|value| to_json(&value)).map_err(|error| failed(&error))
}

fn evaluate_template(input: &Json, context: &Json, as_text: bool) -> Result<Outcome, Failed> {
    let names = names(context);
    let file: Arc<str> = Arc::from("vector");
    let Some(input) = input.as_str() else {
        let document = json!([{"name": "a", "func": "./x", "inputs": {"v": input}}]).to_string();
        let function = match parse_request(&document, "vector") {
            Ok(function) => function,
            Err(errors) => return Ok(Err(first(&errors)?)),
        };
        let Body::Run(run) = function.definition.body else { return Err("not a list".into()) };
        let (_, value) = run.steps.first().and_then(|step| step.inputs.first()).ok_or("no input")?;
        let value = evaluate_value(value, None, &names);
        return Ok(value.map(|value| to_json(&value)).map_err(|error| failed(&error)));
    };
    let evaluated = parse_inline(input, &file, Position::START).and_then(|template| {
        if as_text {
            evaluate_text(&template, &names).map(Value::from)
        } else {
            evaluate_native(&template, &names)
        }
    });
    Ok(evaluated.map(|value| to_json(&value)).map_err(|error| failed(&error)))
}

/// Parses a reference inside a step. The document is JSON, which is valid YAML.
fn parse_reference(input: &Json) -> Result<Outcome, Failed> {
    let document = json!([{"name": "a", "func": input}]).to_string();
    let function = match parse_request(&document, "vector") {
        Ok(function) => function,
        Err(errors) => return Ok(Err(first(&errors)?)),
    };
    let Body::Run(run) = function.definition.body else { return Err("not a list".into()) };
    match run.steps.into_iter().next().map(|step| step.invokes) {
        Some(Invocation::Reference(reference, _)) => Ok(Ok(show_reference(&reference)?)),
        _ => Err("not a reference".into()),
    }
}

fn show_reference(reference: &Reference) -> Result<Json, Failed> {
    let plain = |template: &Template| {
        template
            .as_literal()
            .map(str::to_owned)
            .ok_or_else(|| Failed::from("an expression in a plain reference"))
    };
    let all = |templates: &[Template]| templates.iter().map(plain).collect::<Result<Vec<_>, _>>();
    Ok(match reference {
        Reference::Local { path, files } => json!({"protocol": "local", "path": path, "files": files}),
        Reference::Builtin { name, dist } => {
            json!({"protocol": if *dist { "dist" } else { "builtin" }, "name": name})
        }
        Reference::Git { url, rev, dir, files } => json!({
            "protocol": "git",
            "url": plain(url)?,
            "rev": plain(rev)?,
            "dir": plain(dir)?,
            "files": all(files)?,
        }),
        Reference::Oci { registry, repository, tag, dir, files } => json!({
            "protocol": "oci",
            "registry": plain(registry)?,
            "repository": plain(repository)?,
            "tag": plain(tag)?,
            "dir": plain(dir)?,
            "files": all(files)?,
        }),
        Reference::Dynamic(_) => json!({"protocol": "dynamic"}),
    })
}

fn first(errors: &[Diagnostic]) -> Result<(Class, Option<u32>), Failed> {
    errors.first().map(failed).ok_or_else(|| "refused without an error".into())
}

fn check_file(input: &str) -> Outcome {
    match parse_function(input, "vector.yml") {
        Ok(_) => Ok(json!({"ok": true})),
        Err(errors) => Err(errors.first().map_or((Class::Schema, None), failed)),
    }
}

fn read_output_file(content: &str, spec: &Json) -> Result<Outcome, Failed> {
    let mut declared = IndexMap::new();
    for (name, declaration) in spec.as_object().into_iter().flatten() {
        let value_type: ValueType = serde_json::from_value(declaration["type"].clone())?;
        let default = declaration.get("default").map(value_of);
        let declaration = Declaration { value_type, default, sensitive: false, at: Position::START };
        declared.insert(name.clone(), declaration);
    }
    Ok(read_outputs(content.as_bytes(), &declared)
        .map(|outputs| to_json(&Value::object(outputs)))
        .map_err(|error: OutputFileError| (error.class, error.line)))
}

fn read_export_file(content: &str) -> Outcome {
    read_exports(content.as_bytes()).map(|exports| json!(exports)).map_err(|error| (error.class, error.line))
}

/// Looks up one variable through all layers. Job variables are not among them.
fn look_up(layers: &Json, name: &str) -> Json {
    let layer = |layer: &str| layers[layer].as_str().map(|value| (name.to_owned(), value.to_owned()));
    let frame = |name: &str| -> EnvironmentFrame {
        layer(name).into_iter().map(|(name, value)| (name, EvaluatedText::plain(value))).collect()
    };
    let base =
        layer("daemon").into_iter().map(|(name, value)| (name.into_bytes(), value.into_bytes())).collect();
    let environment = Environment::new(Arc::new(base), layer("request").into_iter().collect())
        .with_exports(Arc::new(layer("export").into_iter().collect()));
    let environment = ["caller_definition", "step", "definition"]
        .map(frame)
        .into_iter()
        .fold(environment, Environment::within);
    environment.get(name).map_or(Json::Null, |value| to_json(&value))
}

fn compare(expect: &Json, outcome: &Outcome) -> Result<(), Failed> {
    match outcome {
        Ok(found) => {
            let wanted = if expect["ok"] == true || expect.get("protocol").is_some() {
                expect
            } else {
                expect.get("value").ok_or_else(|| format!("expected {expect}, got {found}"))?
            };
            if same(wanted, found) { Ok(()) } else { Err(format!("expected {wanted}, got {found}").into()) }
        }
        Err((class, line)) => {
            let found = serde_json::to_value(class)?;
            if expect["error"] != found {
                return Err(format!("expected {expect}, got error {found} in line {line:?}").into());
            }
            match expect["line"].as_u64() {
                Some(wanted) if *line != u32::try_from(wanted).ok() => {
                    Err(format!("expected line {wanted}, got {line:?}").into())
                }
                _ => Ok(()),
            }
        }
    }
}

/// True if both are equal. Numbers are compared as doubles.
fn same(left: &Json, right: &Json) -> bool {
    match (left, right) {
        (Json::Number(a), Json::Number(b)) => a.as_f64() == b.as_f64(),
        (Json::Array(a), Json::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(x, y)| same(x, y)),
        (Json::Object(a), Json::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, x)| b.get(key).is_some_and(|y| same(x, y)))
        }
        _ => left == right,
    }
}
