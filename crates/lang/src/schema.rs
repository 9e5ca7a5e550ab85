//! JSON Schema of function files, for editors and other programs: the shape of what [`super::document`] reads.
//!
//! The types here are never made; their fields and comments become the schema. What a schema cannot say (templates,
//! references as text, what both documents must agree on) is left to the check. `tests/behaviour/schema.rs` holds both together.

#![expect(dead_code, reason = "only the shape of the types is used")]

mod flow;

use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::Value;

use flow::{AtATime, Condition, Matrix, Members, RetryForm, Tolerance, When};

/// Any value.
#[derive(Default, JsonSchema)]
#[schemars(transparent)]
struct Any(Value);

/// Name of the schema, by which another schema can refer to it. No server has it: `step-runner schema` prints it.
const ID: &str = "urn:step-runner:schema:function";

/// The schema, draft 2020-12: every document of a file is an interface, an implementation, a list of steps, or one step.
pub fn schema() -> Schema {
    let mut schema = SchemaGenerator::default().into_root_schema_for::<Document>();
    schema.insert("title".to_owned(), Value::from("step-runner function file"));
    schema.insert("$id".to_owned(), Value::from(ID));
    schema
}

/// A function file holds two YAML documents separated by `---`: the interface (`spec`) and the implementation (`exec` or
/// `run`). A steps document is a list of steps, one step, or an implementation alone.
#[derive(JsonSchema)]
#[schemars(untagged)]
enum Document {
    Interface(InterfaceDocument),
    Implementation(Implementation),
    Steps(Steps),
    Step(Box<LoneStep>),
}

/// First document: the interface of the function.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct InterfaceDocument {
    /// Inputs and outputs of the function.
    spec: Option<Interface>,
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct Interface {
    /// What the function does; not used by a run.
    #[schemars(default)]
    description: Comment,
    /// Inputs by name. Expressions see them as `inputs.NAME`.
    inputs: Option<Names<Input>>,
    /// Outputs by name, or the word `delegate`: those of the step that the implementation names with `delegate`.
    outputs: Option<Outputs>,
}

#[derive(JsonSchema)]
#[schemars(untagged)]
enum Outputs {
    Declared(Names<Output>),
    Delegate(Delegated),
}

#[derive(JsonSchema)]
#[schemars(rename_all = "lowercase")]
enum Delegated {
    Delegate,
}

/// An input. Without `default` it is required.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields, transform = default_has_the_type)]
struct Input {
    /// Type of its values. A number or boolean given for a `string` becomes text.
    #[schemars(rename = "type")]
    value_type: ValueType,
    /// Its value if none is given; makes it optional. Of exactly the declared type, and never evaluated.
    #[schemars(default)]
    default: Any,
    /// Its value is masked in logs.
    #[schemars(default)]
    sensitive: bool,
    /// What it is for; not used by a run.
    #[schemars(default)]
    description: Comment,
    /// Known and ignored.
    #[schemars(default, rename = "additionalProperties")]
    additional_properties: Any,
}

/// An output. Without `default` it must be produced.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields, transform = default_has_the_type)]
struct Output {
    /// Type of its values.
    #[schemars(rename = "type")]
    value_type: ValueType,
    /// Its value if none is produced. Of exactly the declared type, and never evaluated.
    #[schemars(default)]
    default: Any,
    /// Its value is masked in logs.
    #[schemars(default)]
    sensitive: bool,
    /// What it holds; not used by a run.
    #[schemars(default)]
    description: Comment,
}

/// Types of values: text, a double, true or false, a list, or an object with string keys.
#[derive(JsonSchema)]
#[schemars(rename_all = "lowercase")]
enum ValueType {
    String,
    Number,
    Boolean,
    Array,
    Struct,
}

/// Second document: what the function does. Exactly one of `exec` and `run`.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields, extend("oneOf" = [
    {"required": ["exec"], "properties": {"run": false, "outputs": false, "delegate": false}},
    {"required": ["run"], "properties": {"exec": false}},
]))]
struct Implementation {
    /// Environment variables of the command or of all steps. Values are templates.
    env: Option<Names<EnvValue>>,
    /// Run one process.
    #[schemars(default)]
    exec: Exec,
    /// Run steps one after another; the first failure ends the function.
    #[schemars(default)]
    run: Steps,
    /// Outputs of the function by name; strings at any depth are templates. Only with `run`.
    outputs: Option<Names<Any>>,
    /// The step whose outputs are those of the function; needs `outputs: delegate` in the interface. Only with `run`.
    #[schemars(default)]
    delegate: Text,
    /// What the function does; not used by a run.
    #[schemars(default)]
    description: Comment,
    /// Ignored. It belongs to an old form.
    #[schemars(default, rename = "type")]
    old_type: Any,
}

/// One process, started without a shell.
#[derive(Default, JsonSchema)]
#[schemars(deny_unknown_fields)]
struct Exec {
    /// Program and arguments. Each item is a template that gives one argument; it is never split.
    command: Command,
    /// Working directory, a template; default: the job's. A relative one starts there.
    #[schemars(default)]
    work_dir: Text,
    /// Time between SIGTERM and SIGKILL when the job is cancelled, such as `10s`, `1m30s` or `500ms`; at most `10m`.
    #[schemars(default)]
    cancel_timeout: Duration,
}

#[derive(Default, JsonSchema)]
#[schemars(transparent, extend("minItems" = 1))]
struct Command(Vec<Text>);

/// Steps, run one after another unless they have `parallel`.
#[derive(Default, JsonSchema)]
#[schemars(transparent, extend("minItems" = 1, "maxItems" = super::document::STEP_LIMIT))]
struct Steps(Vec<Step>);

/// One step: a name, and exactly one of `func`, `step`, `script`, `action` and `parallel`.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields, extend(
    "oneOf" = [
        {"required": ["func"]},
        {"required": ["step"]},
        {"required": ["script"], "properties": {"inputs": {"type": "null"}}},
        {"required": ["action"]},
        {"required": ["parallel"], "properties": {"inputs": false, "env": false, "retry": false, "matrix": false}},
    ],
    "dependentSchemas" = {
        "errexit": {"required": ["script"]},
        "max": {"anyOf": [{"required": ["parallel"]}, {"required": ["matrix"]}]},
        "fail_fast": {"anyOf": [{"required": ["parallel"]}, {"required": ["matrix"]}]},
    },
))]
struct Step {
    /// Name of the step: letters, digits and `_`. Later steps see its outputs as `steps.NAME.outputs`.
    name: Name,
    /// The function to call: a path (`./dir`, `/dir`, `./dir/file.yml`), `builtin://NAME`, Git (`HOST/PATH@REV`), an OCI
    /// image (`REGISTRY/REPOSITORY:TAG`), or an expression that gives one of these.
    #[schemars(default)]
    func: Reference,
    /// Old name of `func`.
    #[schemars(default, rename = "step")]
    old_func: Reference,
    /// Shell script, a template. Short for the function `builtin://script`.
    #[schemars(default)]
    script: NonEmptyText,
    /// An action, run by the action runner.
    #[schemars(default)]
    action: NonEmptyText,
    /// Inputs of the function by name. Strings at any depth are templates; a single expression keeps its type.
    inputs: Option<ComputedNames<Any>>,
    /// Environment variables of this step. Names and values are templates.
    env: Option<ComputedNames<EnvValue>>,
    /// What the step is for; not used by a run.
    #[schemars(default)]
    description: Comment,
    /// True: a failing line ends the script, as with `set -e` and `set -o pipefail`. Only with `script`.
    #[schemars(default)]
    errexit: bool,
    /// Run the step only if this is true: a boolean, or one expression and nothing else.
    #[schemars(default, rename = "if")]
    condition: Condition,
    /// When the step runs: while nothing has failed (default), after a failure, or always, also after a cancel.
    #[schemars(default)]
    when: When,
    /// Failures that do not fail the list: all, or those with certain exit codes.
    #[schemars(default)]
    continue_on_error: Tolerance,
    /// Limit of one attempt, such as `90s` or `1h30m`; at most `24h`.
    #[schemars(default)]
    timeout: Duration,
    /// Further attempts after a failure, 0 to 10, or the long form.
    #[schemars(default)]
    retry: RetryForm,
    /// Steps that run side by side.
    #[schemars(default)]
    parallel: Members,
    /// Lists of values. The step runs once for each combination, which expressions see as `matrix.KEY`.
    matrix: Option<Matrix>,
    /// Most members at a time; default: the processors of the job, at least 2.
    #[schemars(default)]
    max: AtATime,
    /// True (default): the first failure stops the other members.
    #[schemars(default)]
    fail_fast: bool,
}

/// A job of one step. It needs no name.
#[derive(JsonSchema)]
#[schemars(transparent, transform = name_is_optional)]
struct LoneStep(Step);

fn name_is_optional(schema: &mut Schema) {
    schema.remove("required");
}

/// Where a function is loaded from.
#[derive(JsonSchema)]
#[schemars(untagged)]
enum Reference {
    /// A path, `builtin://NAME`, `HOST/PATH@REV`, `REGISTRY/REPOSITORY:TAG`, or an expression.
    Text(ReferenceText),
    /// The long form for Git.
    Git(GitReference),
    /// The long form for an OCI image.
    Oci(OciReference),
}

/// Fields that may be absent need a default; it never shows.
impl Default for Reference {
    fn default() -> Self {
        Self::Text(ReferenceText::default())
    }
}

#[derive(Default, JsonSchema)]
#[schemars(transparent, extend("pattern" = r"\S"))]
struct ReferenceText(String);

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct GitReference {
    /// A Git repository.
    git: Git,
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct OciReference {
    /// An OCI image.
    oci: Oci,
}

/// A function in a Git repository. All strings are templates.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct Git {
    /// URL of the repository; `https://` if it has no scheme.
    url: NonEmptyText,
    /// Tag, branch or commit.
    rev: NonEmptyText,
    /// Folder from the root of the repository.
    #[schemars(default)]
    dir: Text,
    /// Definition file; default: `func.yml`, then `step.yml`.
    #[schemars(default)]
    file: Text,
}

/// A function in an OCI image. All strings are templates.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct Oci {
    /// Registry, `HOST[:PORT]`.
    registry: NonEmptyText,
    /// Repository in the registry.
    repository: NonEmptyText,
    /// Tag or digest (`sha256:…`); empty means `latest`.
    tag: Text,
    /// Folder in the image.
    #[schemars(default)]
    dir: Text,
    /// Definition file; default: `func.yml`, then `step.yml`.
    #[schemars(default)]
    file: Text,
}

/// Text; a number or boolean is taken as it is written.
#[derive(Default, JsonSchema)]
#[schemars(transparent, extend("type" = ["string", "number", "boolean"]))]
struct Text(String);

#[derive(Default, JsonSchema)]
#[schemars(transparent, extend("type" = ["string", "number", "boolean"], "minLength" = 1))]
struct NonEmptyText(String);

/// Text; a number or boolean is taken as it is written, nothing as the empty text.
#[derive(JsonSchema)]
#[schemars(transparent, extend("type" = ["string", "number", "boolean", "null"]))]
struct EnvValue(String);

#[derive(Default, JsonSchema)]
#[schemars(transparent)]
struct Comment(String);

#[derive(Default, JsonSchema)]
#[schemars(transparent, extend("pattern" = r"^([0-9]+(\.[0-9]*)?(ms|s|m|h))+$"))]
struct Duration(String);

/// Letters, digits and `_`, not starting with a digit.
#[derive(JsonSchema)]
#[schemars(transparent, extend("pattern" = NAME))]
struct Name(String);

const NAME: &str = "^[A-Za-z_][A-Za-z0-9_]*$";

#[derive(JsonSchema)]
#[schemars(transparent, rename = "{T}ByName", extend("propertyNames" = {"pattern": NAME}))]
struct Names<T>(BTreeMap<String, T>);

/// Names may hold expressions.
#[derive(JsonSchema)]
#[schemars(transparent, rename = "{T}ByComputedName", extend("propertyNames" = {"pattern": r"^[A-Za-z_][A-Za-z0-9_]*$|\$\{\{"}))]
struct ComputedNames<T>(BTreeMap<String, T>);

/// A default is of the declared type, or null.
fn default_has_the_type(schema: &mut Schema) {
    let rule = |(declared, json): (&str, &str)| {
        serde_json::json!({
            "if": {"properties": {"type": {"const": declared}}},
            "then": {"properties": {"default": {"type": [json, "null"]}}},
        })
    };
    let types = [
        ("string", "string"),
        ("number", "number"),
        ("boolean", "boolean"),
        ("array", "array"),
        ("struct", "object"),
    ];
    schema.insert("allOf".to_owned(), types.into_iter().map(rule).collect());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{definition, flow, reference, spec, step};

    fn keys(name: &str) -> Vec<String> {
        let schema = schema();
        let properties =
            schema.pointer(&format!("/$defs/{name}/properties")).and_then(Value::as_object).unwrap();
        let mut keys: Vec<String> = properties.keys().cloned().collect();
        keys.sort_unstable();
        keys
    }

    fn sorted(known: &[&str], ignored: &[&str]) -> Vec<String> {
        let mut keys: Vec<String> = known.iter().chain(ignored).map(ToString::to_string).collect();
        keys.sort_unstable();
        keys
    }

    #[test]
    fn keys_are_those_of_the_reader() {
        assert_eq!(keys("Step"), sorted(&step::KEYS, &[]));
        assert_eq!(keys("Implementation"), sorted(&definition::KEYS, &["type"]));
        assert_eq!(keys("Exec"), sorted(&definition::EXEC_KEYS, &[]));
        assert_eq!(keys("Input"), sorted(&spec::DECLARATION_KEYS, &["additionalProperties"]));
        assert_eq!(keys("Output"), sorted(&spec::DECLARATION_KEYS, &[]));
        assert_eq!(keys("Retry"), sorted(&flow::RETRY_KEYS, &[]));
        assert_eq!(keys("Git"), sorted(&reference::GIT_KEYS, &[]));
        assert_eq!(keys("Oci"), sorted(&reference::OCI_KEYS, &[]));
    }
}
