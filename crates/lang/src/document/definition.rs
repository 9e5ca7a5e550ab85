//! The second document: the implementation (language.md §4).

use std::time::Duration;

use indexmap::IndexMap;
use step_runner_model::text;

use super::STEP_LIMIT;
use super::checker::{Checker, UnknownKey, at_index, join};
use super::duration::duration;
use super::flow::Place;
use super::foreign;
use crate::ast::{Body, Definition, Delegate, Exec, Outputs, Run, Spec, Step, Template, TemplateValue};
use crate::convert::contract;
use crate::diagnostic::{Class, Position};
use crate::name;
use crate::shell::is_shell;
use crate::yaml::{NodeKind, YamlEntry, YamlKey, YamlNode};

pub(crate) const KEYS: [&str; 6] = ["env", "exec", "run", "outputs", "delegate", "description"];
pub(crate) const EXEC_KEYS: [&str; 3] = ["command", "work_dir", "cancel_timeout"];

/// Longest `cancel_timeout` (language.md §4).
const CANCEL_TIMEOUT_LIMIT: Duration = Duration::from_mins(10);

/// Keys of the second document as written.
#[derive(Default)]
struct DefinitionKeys<'n> {
    env: Option<&'n YamlNode>,
    exec: Option<&'n YamlEntry>,
    run: Option<&'n YamlEntry>,
    outputs: Option<&'n YamlEntry>,
    delegate: Option<&'n YamlEntry>,
    old_steps: bool,
}

impl Checker<'_> {
    /// Reads the second document. `spec` serves the checks of both documents against each other.
    pub(super) fn definition(&mut self, node: &YamlNode, spec: &Spec) -> Option<Definition> {
        if self.is_foreign(node) {
            return None;
        }
        let entries = self.mapping(node, "")?;
        let found = self.definition_keys(entries);
        let env = found.env.map(|env| self.definition_env(env)).unwrap_or_default();
        let body = match (found.exec, found.run) {
            (Some(exec), None) => {
                self.only_with_run(&found);
                self.exec(exec).map(Body::Exec)
            }
            (None, Some(run)) => self.run(run, &found, spec).map(Body::Run),
            (Some(exec), Some(run)) => {
                let second = if exec.key.at > run.key.at { &exec.key } else { &run.key };
                self.error(
                    Class::Schema,
                    second.at,
                    &second.text,
                    "only one of exec, run is allowed: remove the other",
                );
                self.exec(exec);
                self.run(run, &found, spec);
                None
            }
            (None, None) => {
                if !found.old_steps && !self.is_misspelt(entries, &KEYS, &["exec", "run"]) {
                    self.error(Class::Schema, node.at, "", "one of exec, run is needed");
                }
                None
            }
        };
        Some(Definition { env, body: body? })
    }

    /// Reports a document of another system, once instead of key by key.
    pub(super) fn is_foreign(&mut self, node: &YamlNode) -> bool {
        let NodeKind::Mapping(entries) = &node.kind else { return false };
        let is_ours = |entry: &YamlEntry| {
            let key = entry.key.text.as_str();
            ["spec", "name", "func", "step", "steps", "script", "action"].contains(&key)
                || KEYS.contains(&key)
                || name::suggest(key, KEYS).is_some()
        };
        if entries.iter().any(is_ours) {
            return false;
        }
        let Some((message, help)) = foreign::document(entries) else { return false };
        self.error_with_help(Class::Schema, node.at, "", message, help);
        true
    }

    fn definition_keys<'n>(&mut self, entries: &'n [YamlEntry]) -> DefinitionKeys<'n> {
        let mut found = DefinitionKeys::default();
        for entry in entries {
            let key = &entry.key;
            match key.text.as_str() {
                "env" => found.env = Some(&entry.value),
                "exec" => found.exec = Some(entry),
                "run" => found.run = Some(entry),
                "outputs" => found.outputs = Some(entry),
                "delegate" => found.delegate = Some(entry),
                "description" | "type" => {}
                "steps" => {
                    found.old_steps = true;
                    self.error(Class::Schema, key.at, "steps", "\"steps\" was renamed: use run");
                }
                "name" | "step" | "func" | "script" | "action" | "inputs" => {
                    let message =
                        format!("\"{}\" belongs into a step: the definition is not a step", key.text);
                    self.error_with_help(
                        Class::Schema,
                        key.at,
                        &key.text,
                        &message,
                        "put it into an item of run",
                    );
                }
                _ => self.unknown_key(key, "", &KEYS, UnknownKey::Warn),
            }
        }
        found
    }

    fn definition_env(&mut self, node: &YamlNode) -> IndexMap<String, Template> {
        let mut env = IndexMap::new();
        for entry in self.mapping_or_null(node, "env") {
            let path = join("env", &entry.key.text);
            let valid = self.name_key(&entry.key, "environment variable", &path);
            if let Some(value) = self.env_value(&entry.value, &path)
                && valid
            {
                env.insert(entry.key.text.clone(), value);
            }
        }
        env
    }

    fn only_with_run(&mut self, found: &DefinitionKeys<'_>) {
        for entry in [found.outputs, found.delegate].into_iter().flatten() {
            let message = format!("\"{}\" can be used only with run, not with exec", entry.key.text);
            self.error(Class::Schema, entry.key.at, &entry.key.text, message);
        }
    }

    fn exec(&mut self, entry: &YamlEntry) -> Option<Exec> {
        let mut command = None;
        let mut written = false;
        let mut work_dir = None;
        let mut cancel_timeout = None;
        let fields = self.mapping(&entry.value, "exec")?;
        for field in fields {
            let path = join("exec", &field.key.text);
            match field.key.text.as_str() {
                "command" => {
                    written = true;
                    command = self.command(&field.value, &path);
                }
                "work_dir" => work_dir = self.template(&field.value, &path),
                "cancel_timeout" => cancel_timeout = self.cancel_timeout(&field.value, &path),
                _ => self.unknown_key(&field.key, "exec", &EXEC_KEYS, UnknownKey::Warn),
            }
        }
        if !written && !self.is_misspelt(fields, &EXEC_KEYS, &["command"]) {
            self.error(Class::Schema, entry.key.at, "exec", "\"command\" is missing");
        }
        Some(Exec { command: command?, work_dir, cancel_timeout, at: entry.key.at })
    }

    fn command(&mut self, node: &YamlNode, path: &str) -> Option<Vec<Template>> {
        let NodeKind::Sequence(items) = &node.kind else {
            let message = format!("expected a list of strings, got {}", node.describe());
            self.error_with_help(
                Class::Schema,
                node.at,
                path,
                &message,
                "no shell is involved: one item per argument",
            );
            return None;
        };
        if items.is_empty() {
            self.error(Class::Schema, node.at, path, "the command is empty");
            return None;
        }
        let arguments: Vec<Option<Template>> = items
            .iter()
            .enumerate()
            .map(|(index, item)| self.template(item, &at_index(path, index)))
            .collect();
        if let [Some(shell), Some(option), Some(_)] = arguments.as_slice()
            && shell.as_literal().is_some_and(is_shell)
            && option.as_literal() == Some("-c")
            && let Some(script) = items.last()
        {
            let help = "begin the script with \"set -e\", or end the line with \"|| exit\" or \"|| true\"";
            self.lost_failure(script, &at_index(path, 2), help);
        }
        arguments.into_iter().collect()
    }

    fn cancel_timeout(&mut self, node: &YamlNode, path: &str) -> Option<Duration> {
        let text = self.string(node, path)?;
        match duration(text) {
            Some(duration) if duration <= CANCEL_TIMEOUT_LIMIT => Some(duration),
            Some(_) => {
                self.error(Class::Schema, node.at, path, "longer than 10m");
                None
            }
            None => {
                self.error_with_help(
                    Class::Schema,
                    node.at,
                    path,
                    "not a duration",
                    "write 10s, 1m30s or 500ms",
                );
                None
            }
        }
    }

    fn run(&mut self, entry: &YamlEntry, found: &DefinitionKeys<'_>, spec: &Spec) -> Option<Run> {
        let steps = self.steps(&entry.value);
        let outputs = found.outputs.map(|outputs| self.run_outputs(&outputs.value, spec)).unwrap_or_default();
        // The delegate may be one of the broken steps.
        let whole = steps.as_deref().filter(
            |steps| matches!(&entry.value.kind, NodeKind::Sequence(items) if items.len() == steps.len()),
        );
        let delegate = self.delegate(&entry.key, found.delegate, whole, spec);
        Some(Run { steps: steps?, outputs, delegate })
    }

    /// Reads a `run` list without its broken steps; `None` if it is not a list, empty or too long.
    pub(super) fn steps(&mut self, node: &YamlNode) -> Option<Vec<Step>> {
        const PATH: &str = "run";
        let NodeKind::Sequence(items) = &node.kind else {
            self.wrong_type(node, PATH, "a list of steps");
            return None;
        };
        if items.is_empty() {
            self.error(Class::Schema, node.at, PATH, "the list of steps is empty");
            return None;
        }
        if items.len() > STEP_LIMIT {
            self.error(Class::Limit, node.at, PATH, format!("more than {STEP_LIMIT} steps in one list"));
            return None;
        }
        let mut steps: Vec<Step> = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            steps.extend(self.step(item, Place::List, &at_index(PATH, index)));
        }
        self.names_once(&steps);
        self.advise_on_list(items, &steps);
        Some(steps)
    }

    /// Reports names that are used twice in a list and its groups. Between plain steps it is a warning: the result of the
    /// second replaces that of the first.
    fn names_once(&mut self, steps: &[Step]) {
        let mut places: IndexMap<&str, (Position, bool)> = IndexMap::new();
        for step in steps {
            let own = std::iter::once((step, step.is_group()));
            for (step, grouped) in own.chain(step.members().iter().map(|member| (member, true))) {
                let Some((first, with_group)) = places.insert(&step.name, (step.at, grouped)) else {
                    continue;
                };
                let (name, line, path) = (&step.name, first.line, join(&step.path, "name"));
                if grouped || with_group {
                    let message = format!("the name \"{name}\" stands already at line {line}");
                    let help = "names are unique over a list and its groups";
                    self.error_with_help(Class::Name, step.name_at, &path, &message, help);
                } else {
                    let message = if first == step.at {
                        format!(
                            "step \"{name}\" stands in the list again, as an alias; its result replaces the earlier one"
                        )
                    } else {
                        format!(
                            "step \"{name}\" stands already at line {line}; its result replaces the earlier one"
                        )
                    };
                    self.warning(Class::Name, step.at, &path, message);
                }
            }
        }
    }

    fn run_outputs(&mut self, node: &YamlNode, spec: &Spec) -> IndexMap<String, TemplateValue> {
        let mut outputs = IndexMap::new();
        for entry in self.mapping_or_null(node, "outputs") {
            let path = join("outputs", &entry.key.text);
            let valid = self.name_key(&entry.key, "output", &path);
            if let Some(value) = self.template_value(&entry.value, &path)
                && valid
            {
                self.warn_of_undeclared(&entry.key, spec, &path);
                self.output_type(&entry.value, &value, (&entry.key.text, &path), spec);
                outputs.insert(entry.key.text.clone(), value);
            }
        }
        outputs
    }

    /// Checks a literal output against the declared type (language.md §4). No step has to run for that.
    fn output_type(
        &mut self,
        node: &YamlNode,
        value: &TemplateValue,
        (name, path): (&str, &str),
        spec: &Spec,
    ) {
        let Outputs::Declared(declared) = &spec.outputs else { return };
        if let (Some(output), Some(written)) = (declared.get(name), value.written_type())
            && written != Some(output.value_type)
        {
            let error = contract::wrong_output(name, output.value_type, written);
            self.error(error.class, node.at, path, error.message);
        }
    }

    fn warn_of_undeclared(&mut self, key: &YamlKey, spec: &Spec, path: &str) {
        match &spec.outputs {
            Outputs::Declared(declared) if declared.contains_key(&key.text) => {}
            Outputs::Declared(_) => {
                let message = format!("output \"{}\" is not declared in the spec", key.text);
                self.warning(Class::Undeclared, key.at, path, message);
            }
            Outputs::Delegate => {
                self.warning(Class::Schema, key.at, path, "no effect: the outputs are those of the delegate");
            }
        }
    }

    /// Reads `delegate`. It and `spec.outputs: delegate` require each other, and the step must exist.
    fn delegate(
        &mut self,
        run: &YamlKey,
        entry: Option<&YamlEntry>,
        steps: Option<&[Step]>,
        spec: &Spec,
    ) -> Option<Delegate> {
        const PATH: &str = "delegate";
        let wanted = matches!(spec.outputs, Outputs::Delegate);
        let Some(entry) = entry else {
            if wanted {
                let message = "\"delegate\" is missing: the spec says \"outputs: delegate\"";
                self.error_with_help(Class::Schema, run.at, PATH, message, "name a step of run");
            }
            return None;
        };
        let name = self.string(&entry.value, PATH)?;
        if !wanted {
            let message = "\"delegate\" has no effect without \"outputs: delegate\" in the spec";
            self.warning(Class::Schema, entry.key.at, PATH, message);
            return None;
        }
        let steps = steps?;
        if steps.iter().any(|step| step.name == name && step.is_group()) {
            let message = format!("\"{}\" is a group, which has no outputs", text::quote(name));
            self.error_with_help(
                Class::Schema,
                entry.value.at,
                PATH,
                &message,
                "name a step that calls a function",
            );
            return None;
        }
        let names = || steps.iter().flat_map(|step| std::iter::once(step).chain(step.members()));
        if !names().any(|step| step.name == name) {
            let message = format!("step \"{}\" was not found", text::quote(name));
            let help = match name::suggest(name, names().map(|step| step.name.as_str())) {
                Some(similar) => format!("did you mean \"{similar}\"?"),
                None => "name a step of run".to_owned(),
            };
            self.error_with_help(Class::NotFound, entry.value.at, PATH, &message, &help);
            return None;
        }
        Some(Delegate { name: name.to_owned(), at: entry.value.at })
    }
}
