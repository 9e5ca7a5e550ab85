//! The JSON Schema of function files accepts the same documents as the reader, as far as a schema can express the
//! rules.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use jsonschema::Validator;
use serde_json::{Map, Value, json};
use step_runner::lang::diagnostic::{Class, Diagnostic, Severity};
use step_runner::lang::document::{check_function, check_request};
use step_runner::lang::schema::schema;
use step_runner::lang::yaml::scalar::{Resolved, resolve};
use step_runner::lang::yaml::{self, NodeKind, Source, YamlNode};

struct Schemas {
    whole: Validator,
    interface: Validator,
    implementation: Validator,
}

impl Schemas {
    fn new() -> Self {
        let schema = serde_json::to_value(schema()).unwrap();
        let part = |name: &str| {
            let part = json!({"$ref": format!("#/$defs/{name}"), "$defs": schema["$defs"]});
            jsonschema::draft202012::new(&part).unwrap()
        };
        let whole = jsonschema::draft202012::new(&schema).unwrap();
        Self { whole, interface: part("InterfaceDocument"), implementation: part("Implementation") }
    }

    /// True if an editor with this schema would show no error in a function file.
    fn take(&self, documents: &[Value]) -> bool {
        match documents {
            [interface, implementation] => {
                self.interface.is_valid(interface)
                    && self.implementation.is_valid(implementation)
                    && documents.iter().all(|document| self.whole.is_valid(document))
            }
            [only] => self.whole.is_valid(only),
            _ => false,
        }
    }
}

/// True for errors that a schema cannot express.
fn is_beyond_a_schema(finding: &Diagnostic) -> bool {
    let text = &finding.message;
    match finding.class {
        // Syntax, templates, sizes, and things outside of the file.
        Class::Yaml | Class::Parse | Class::Limit | Class::NotFound | Class::Missing => true,
        // The text form of references has its own grammar.
        Class::Schema => {
            ["func", "step"].contains(&finding.path.rsplit('.').next().unwrap()) && !text.contains("expected a reference")
            // Rules about both documents together.
            || text.contains("\"delegate\" is missing")
            || text == "longer than 10m"
        }
        // A number beyond the range of doubles becomes a text here, since JSON has no such number.
        Class::Type => text.contains("range of doubles"),
        _ => false,
    }
}

fn json_of(node: &YamlNode) -> Value {
    match &node.kind {
        NodeKind::Scalar(scalar) => match resolve(scalar) {
            Resolved::Null => Value::Null,
            Resolved::Bool(truth) => Value::from(truth),
            Resolved::Number(number) => Value::from(number),
            Resolved::Text | Resolved::OutOfRange => Value::from(scalar.text.as_str()),
        },
        NodeKind::Sequence(items) => items.iter().map(json_of).collect(),
        NodeKind::Mapping(entries) => entries
            .iter()
            .map(|entry| (entry.key.text.clone(), json_of(&entry.value)))
            .collect::<Map<_, _>>()
            .into(),
    }
}

/// Returns the documents of a text as JSON, or `None` if it is not valid YAML.
fn documents(text: &str) -> Option<Vec<Value>> {
    let stream = yaml::read(&Source { file: Arc::from(""), text }, 2);
    let whole = stream.diagnostics.is_empty();
    stream
        .documents
        .iter()
        .map(|node| node.as_ref().map(json_of))
        .collect::<Option<Vec<_>>>()
        .filter(|_| whole)
}

/// Compares schema and reader on one text. A text with two documents is a function file.
fn compare(schemas: &Schemas, name: &str, text: &str) -> bool {
    let Some(documents) = documents(text) else { return false };
    let checked = if documents.len() == 2 { check_function(text, name) } else { check_request(text, name) };
    let errors: Vec<_> = checked.diagnostics.iter().filter(|d| d.severity == Severity::Error).collect();
    let taken = schemas.take(&documents);
    if errors.is_empty() {
        let wrong: Vec<String> =
            documents.iter().flat_map(|d| schemas.whole.iter_errors(d)).map(|e| e.to_string()).collect();
        assert!(taken, "{name}: the schema refuses what the reader takes: {wrong:?}\n{text}");
    } else if !errors.iter().all(|error| is_beyond_a_schema(error)) {
        assert!(!taken, "{name}: the schema takes what the reader refuses: {errors:?}\n{text}");
    }
    true
}

#[test]
fn schema_and_reader_take_the_same_files() {
    let (schemas, root) = (Schemas::new(), Path::new(env!("CARGO_MANIFEST_DIR")));
    let vectors: Vec<Value> =
        serde_json::from_str(&fs::read_to_string(root.join("tests/vectors/language-vectors.json")).unwrap())
            .unwrap();
    let mut compared = 0;
    for vector in vectors.iter().filter(|vector| vector["kind"] == "file") {
        let (id, text) = (vector["id"].as_str().unwrap(), vector["input"].as_str().unwrap());
        compared += usize::from(compare(&schemas, id, text));
    }
    let paths =
        ["tests/broken", "examples"].map(|folder| crate::source::files(&root.join(folder), "yml")).concat();
    for path in paths {
        let text = fs::read_to_string(&path).unwrap();
        compared += usize::from(compare(&schemas, &path.display().to_string(), &text));
    }
    assert!(compared > 50, "{compared}");
}

/// Steps, each tested alone in a list.
const STEPS: [&str; 38] = [
    "name: a\nscript: x",
    "name: 1a\nscript: x",
    "name: a\nscript: ''",
    "name: a\nscript: 12",
    "name: a\nscript: true",
    "name: a\nscript:",
    "name: a\nscript: [x]",
    "name: a\nscript: x\ninputs:",
    "name: a\nscript: x\ninputs: {}",
    "name: a\nscript: x\nfunc: ./x",
    "name: a\nfunc: ./x\nstep: ./x",
    "name: a\nstep: ./x\ninputs: {a: [1, {b: null}], b: null}",
    "name: a\naction: x\ninputs: {a: 1}",
    "name: a\naction: ''",
    "name: a",
    "script: x",
    "name: a\nfunc: 12",
    "name: a\nfunc: '  '",
    "name: a\nfunc: [./x]",
    "name: a\nfunc: {git: {url: u, rev: r}}",
    "name: a\nfunc: {git: {url: u, rev: 1.0, dir: d, file: f.yml}}",
    "name: a\nfunc: {git: {url: '', rev: r}}",
    "name: a\nfunc: {git: {url: u}}",
    "name: a\nfunc: {git: {url: u, rev: r, ref: x}}",
    "name: a\nfunc: {git: {url: u, rev: r}, oci: {registry: r, repository: p, tag: t}}",
    "name: a\nfunc: {oci: {registry: r, repository: p, tag: ''}}",
    "name: a\nfunc: {oci: {registry: r, repository: p}}",
    "name: a\nfunc: {oci: {registry: r, repository: [p], tag: t}}",
    "name: a\nfunc: {}",
    "name: a\nfunc: ./x\ninputs: {a-b: 1}",
    "name: a\nfunc: ./x\ninputs: {'${{ x }}': 1}",
    "name: a\nfunc: ./x\ninputs: [a]",
    "name: a\nfunc: ./x\nenv: {A: 1, B: true, C: , D: x}",
    "name: a\nfunc: ./x\nenv: {A: [1]}",
    "name: a\nfunc: ./x\nenv: {A B: 1}",
    "name: a\nfunc: ./x\ndescription: why",
    "name: a\nfunc: ./x\nif: always",
    "name: a\nfunc: ./x\nrun: []",
];

/// Interfaces, each tested with a valid implementation.
const INTERFACES: [&str; 24] = [
    "{}",
    "spec:",
    "spec: {}",
    "spec: {description: x, inputs: , outputs: }",
    "spec: []",
    "spec: {inputs: {a: {type: string}}}",
    "spec: {inputs: {a: {type: text}}}",
    "spec: {inputs: {a: {}}}",
    "spec: {inputs: {a: }}",
    "spec: {inputs: {a-b: {type: string}}}",
    "spec: {inputs: {a: {type: string, default: 1}}}",
    "spec: {inputs: {a: {type: string, default: }}}",
    "spec: {inputs: {a: {type: number, default: 1.5, sensitive: true, description: x}}}",
    "spec: {inputs: {a: {type: number, default: '1'}}}",
    "spec: {inputs: {a: {type: boolean, default: yes}}}",
    "spec: {inputs: {a: {type: array, default: [1, [2]]}}}",
    "spec: {inputs: {a: {type: array, default: {}}}}",
    "spec: {inputs: {a: {type: struct, default: {a: {b: 1}}, additionalProperties: true}}}",
    "spec: {inputs: {a: {type: string, sensitive: maybe}}}",
    "spec: {inputs: {a: {type: string, sensitive: }}}",
    "spec: {outputs: {a: {type: string, additionalProperties: true}}}",
    "spec: {outputs: all}",
    "spec: {input: {}}",
    "name: x",
];

/// Implementations, each tested with an empty interface.
const IMPLEMENTATIONS: [&str; 26] = [
    "exec: {command: [a, 1, true, '${{ env.A }}']}",
    "exec: {command: []}",
    "exec: {command: [a, ]}",
    "exec: {command: [[a]]}",
    "exec: {command: [~]}",
    "exec: {command: a b}",
    "exec: {}",
    "exec:",
    "exec: {command: [a], work_dir: /x, cancel_timeout: 1m30s}",
    "exec: {command: [a], work_dir: }",
    "exec: {command: [a], work_dir: [x]}",
    "exec: {command: [a], cancel_timeout: 10}",
    "exec: {command: [a], cancel_timeout: 10 s}",
    "exec: {command: [a], shell: true}",
    "exec: {command: [a]}\nrun: [{name: a, script: x}]",
    "exec: {command: [a]}\noutputs: {a: 1}",
    "exec: {command: [a]}\ndelegate: a",
    "run: []",
    "run:",
    "run: {name: a, script: x}",
    "run: [{name: a, script: x}]\nenv: {A: 1, B: }\noutputs: {a: [1, '${{ env.X }}'], b: }\ndescription: x\ntype: steps",
    "run: [{name: a, script: x}]\noutputs:\nenv:",
    "run: [{name: a, script: x}]\nenv: {A B: 1}",
    "run: [{name: a, script: x}]\nenv: [A]",
    "run: [{name: a, script: x}]\nname: x",
    "steps: [{name: a, script: x}]",
];

#[test]
fn schema_and_reader_agree_on_every_field() {
    let schemas = Schemas::new();
    for step in STEPS {
        let indented = step.replace('\n', "\n  ");
        assert!(compare(&schemas, "list", &format!("- {indented}\n")), "{step}");
        assert!(compare(&schemas, "run", &format!("{{}}\n---\nrun:\n- {indented}\n")), "{step}");
    }
    for interface in INTERFACES {
        assert!(
            compare(&schemas, "interface", &format!("{interface}\n---\nexec: {{command: [x]}}\n")),
            "{interface}"
        );
    }
    for implementation in IMPLEMENTATIONS {
        assert!(
            compare(&schemas, "implementation", &format!("{{}}\n---\n{implementation}\n")),
            "{implementation}"
        );
    }
}

#[test]
fn every_key_has_a_description() {
    fn walk(at: &str, schema: &Value) {
        for (name, part) in schema["properties"].as_object().into_iter().flatten() {
            assert!(part["description"].is_string(), "{at}: {name}: {part}");
        }
    }
    let schema = serde_json::to_value(schema()).unwrap();
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    for (name, part) in schema["$defs"].as_object().unwrap() {
        walk(name, part);
    }
}
