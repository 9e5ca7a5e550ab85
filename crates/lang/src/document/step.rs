//! A step of a `run` list (language.md §5).

use super::checker::{Checker, UnknownKey, at_index, join};
use super::flow::{self, Broken, Place};
use super::foreign;
use crate::ast::{Errexit, Invocation, Step, Template, TemplateValue};
use crate::diagnostic::Class;
use crate::name;
use crate::value::Data;
use crate::yaml::scalar::{Resolved, resolve};
use crate::yaml::{NodeKind, YamlEntry, YamlNode};

pub(crate) const KEYS: [&str; 18] = [
    "name",
    "func",
    "step",
    "script",
    "action",
    "inputs",
    "env",
    "description",
    "errexit",
    "if",
    "when",
    "continue_on_error",
    "timeout",
    "retry",
    "parallel",
    "matrix",
    "max",
    "fail_fast",
];

/// Keys that name what a step calls.
pub(super) const INVOCATIONS: [&str; 5] = ["func", "step", "script", "action", "parallel"];

/// Name of a lone step without one (service.md §3.1).
const LONE: &str = "run";

/// Keys of a step as written.
#[derive(Default)]
struct StepKeys<'n> {
    name: Option<&'n YamlEntry>,
    /// `func`, `step`, `script`, `action`, `parallel`, in the order of the text.
    invokes: Vec<&'n YamlEntry>,
    inputs: Option<&'n YamlEntry>,
    env: Option<&'n YamlEntry>,
    errexit: Option<&'n YamlEntry>,
    /// Keys of control flow, `parallel` among them, in the order of the text.
    flow: Vec<&'n YamlEntry>,
}

impl StepKeys<'_> {
    fn is_group(&self) -> bool {
        self.invokes.iter().any(|entry| entry.key.text == "parallel")
    }
}

impl Checker<'_> {
    /// Reads the steps of a job that is one step. It needs no name: no other step refers to it.
    pub(super) fn lone_step(&mut self, node: &YamlNode) -> Vec<Step> {
        self.named_step(node, Place::List, "run[0]", Some(LONE)).into_iter().collect()
    }

    /// Reads a step. Returns `None` if it is broken.
    pub(super) fn step(&mut self, node: &YamlNode, place: Place, path: &str) -> Option<Step> {
        self.named_step(node, place, path, None)
    }

    /// Reads a step, called `otherwise` if it has no name.
    fn named_step(
        &mut self,
        node: &YamlNode,
        place: Place,
        path: &str,
        otherwise: Option<&str>,
    ) -> Option<Step> {
        let entries = self.mapping(node, path)?;
        let (found, all_known) = self.step_keys(entries, path);
        let name = match (found.name, otherwise) {
            (None, Some(name)) => Some(name.to_owned()),
            (entry, _) => self.step_name(node, entries, entry, path),
        };
        let invokes = self.invocation(node, entries, &found, place, path);
        let errexit = self.errexit(&found, path);
        let flow = self.flow(&found.flow, place, path).ok();
        if found.is_group() {
            self.no_inputs_of_a_group(&found, path)?;
        }
        let inputs = found
            .inputs
            .map(|inputs| self.step_pairs(&inputs.value, &join(path, "inputs"), "input", Self::input_value));
        let env = found.env.map(|env| {
            self.step_pairs(&env.value, &join(path, "env"), "environment variable", Self::env_value)
        });
        let (inputs, env) =
            (inputs.unwrap_or_else(|| Some(Vec::new()))?, env.unwrap_or_else(|| Some(Vec::new()))?);
        let (name, invokes, errexit, flow) = (name?, invokes?, errexit.ok()?, flow?);
        let name_at = found.name.map_or(node.at, |entry| entry.value.at);
        all_known.then(|| Step {
            name,
            name_at,
            invokes,
            inputs,
            env,
            flow,
            errexit,
            at: node.at,
            path: path.to_owned(),
        })
    }

    /// Reads `errexit`, and warns of a script that goes on after a failed command if the key is not there.
    fn errexit(&mut self, found: &StepKeys<'_>, path: &str) -> Result<Option<Errexit>, Broken> {
        let script = found.invokes.iter().find(|entry| entry.key.text == "script");
        let Some(entry) = found.errexit else {
            if let Some(script) = script {
                let help = "give the step \"errexit: true\", or end the line with \"|| exit\" or \"|| true\"";
                self.lost_failure(&script.value, &join(path, "script"), help);
            }
            return Ok(None);
        };
        let path = join(path, "errexit");
        if script.is_none() && !found.invokes.is_empty() {
            let help = "a function decides itself how its command runs";
            let message = "only a step with script can have \"errexit\"";
            self.error_with_help(Class::Schema, entry.key.at, &path, message, help);
            return Err(Broken);
        }
        let is_on = self.boolean(&entry.value, &path).ok_or(Broken)?;
        Ok(Some(Errexit { is_on, at: entry.key.at }))
    }

    /// Reports `inputs` and `env` of a group, which passes nothing on.
    fn no_inputs_of_a_group(&mut self, found: &StepKeys<'_>, path: &str) -> Option<()> {
        for entry in [found.inputs, found.env].into_iter().flatten() {
            let key = &entry.key;
            let message = format!("a group cannot have \"{}\"", key.text);
            let help = "give it to the members";
            self.error_with_help(Class::Schema, key.at, &join(path, &key.text), &message, help);
        }
        (found.inputs.is_none() && found.env.is_none()).then_some(())
    }

    fn step_keys<'n>(&mut self, entries: &'n [YamlEntry], path: &str) -> (StepKeys<'n>, bool) {
        let mut found = StepKeys::default();
        let mut all_known = true;
        for entry in entries {
            let key = &entry.key;
            match key.text.as_str() {
                "name" => found.name = Some(entry),
                "func" | "step" | "script" | "action" => found.invokes.push(entry),
                "inputs" => found.inputs = Some(entry),
                "env" => found.env = Some(entry),
                "errexit" => found.errexit = Some(entry),
                "description" => {}
                "parallel" => {
                    found.invokes.push(entry);
                    found.flow.push(entry);
                }
                key if flow::KEYS.contains(&key) => found.flow.push(entry),
                "exec" | "run" | "outputs" | "delegate" => {
                    all_known = false;
                    let message = format!("\"{}\" cannot be used in a step", key.text);
                    let help = "put it into a function of its own and name that with func";
                    self.error_with_help(Class::Schema, key.at, &join(path, &key.text), &message, help);
                }
                _ => {
                    all_known = false;
                    match foreign::step_key(&key.text) {
                        Some(help) => self.foreign_key(key, path, help),
                        None => self.unknown_key(key, path, &KEYS, UnknownKey::Refuse),
                    }
                }
            }
        }
        (found, all_known)
    }

    fn step_name(
        &mut self,
        node: &YamlNode,
        entries: &[YamlEntry],
        entry: Option<&YamlEntry>,
        path: &str,
    ) -> Option<String> {
        let path = join(path, "name");
        let Some(entry) = entry else {
            if !self.is_misspelt(entries, &KEYS, &["name"]) {
                self.error(Class::Schema, node.at, &path, "\"name\" is missing");
            }
            return None;
        };
        let text = self.string(&entry.value, &path)?;
        if name::is_valid(text) {
            return Some(text.to_owned());
        }
        self.error(Class::Name, entry.value.at, &path, name::complaint("step", text));
        None
    }

    /// Reads exactly one of `func`/`step`, `script`, `action`, `parallel`.
    fn invocation(
        &mut self,
        node: &YamlNode,
        entries: &[YamlEntry],
        found: &StepKeys<'_>,
        place: Place,
        path: &str,
    ) -> Option<Invocation> {
        let mut parsed = Vec::new();
        for entry in &found.invokes {
            parsed.push(self.invoked(entry, place, &join(path, &entry.key.text)));
        }
        match (found.invokes.first(), found.invokes.get(1)) {
            (None, _) => {
                let is_named_otherwise = entries.iter().any(|entry| foreign::is_invocation(&entry.key.text));
                if !self.is_misspelt(entries, &KEYS, &INVOCATIONS) && !is_named_otherwise {
                    let text = "one of func, script, action, parallel is needed";
                    self.error(Class::Schema, node.at, path, text);
                }
                return None;
            }
            // A number or mapping is meant otherwise: the finding about it is the only one about the key.
            (Some(_), Some(_)) if found.invokes.iter().any(|entry| is_foreign_group(entry)) => return None,
            (Some(first), Some(second)) => {
                let message = format!(
                    "only one of {}, {} is allowed: remove the other",
                    first.key.text, second.key.text
                );
                self.error(Class::Schema, second.key.at, &join(path, &second.key.text), message);
                return None;
            }
            (Some(_), None) => {}
        }
        let invocation = parsed.pop()?;
        let has_script = found.invokes.iter().any(|entry| entry.key.text == "script");
        if let Some(inputs) = found.inputs
            && has_script
            && !inputs.value.is_null()
        {
            let help = "use expressions in the script, or env";
            let message = "script cannot be used with inputs";
            self.error_with_help(Class::Schema, inputs.key.at, &join(path, "inputs"), message, help);
        }
        invocation
    }

    fn invoked(&mut self, entry: &YamlEntry, place: Place, path: &str) -> Option<Invocation> {
        match entry.key.text.as_str() {
            // A member's own `parallel` is reported as a key that it cannot have.
            "parallel" if place == Place::Member => None,
            "parallel" => self.members(&entry.value, path).map(Invocation::Group),
            "script" => self.script(&entry.value, path).map(Invocation::Script),
            "action" => self.not_empty(&entry.value, path).map(Invocation::Action),
            _ => self
                .reference(&entry.value, path)
                .map(|reference| Invocation::Reference(reference, entry.value.at)),
        }
    }

    fn script(&mut self, node: &YamlNode, path: &str) -> Option<Template> {
        if matches!(node.kind, NodeKind::Sequence(_)) {
            let help = "write the commands below each other as one text: \"script: |\", then a line \"set -e\" and each command";
            self.error_with_help(Class::Schema, node.at, path, "expected a string, got a list", help);
            return None;
        }
        self.not_empty(node, path)
    }

    fn not_empty(&mut self, node: &YamlNode, path: &str) -> Option<Template> {
        let template = self.template(node, path)?;
        if template.as_literal() == Some("") {
            self.error(Class::Schema, node.at, path, "expected a non-empty string");
            return None;
        }
        Some(template)
    }

    /// Reads the pairs of a mapping in a step. Returns `None` if one is broken, after reading the others.
    fn step_pairs<T>(
        &mut self,
        node: &YamlNode,
        path: &str,
        what: &str,
        mut read: impl FnMut(&mut Self, &YamlNode, &str) -> Option<T>,
    ) -> Option<Vec<(Template, T)>> {
        let entries = self.mapping_or_null(node, path);
        let pairs: Vec<Option<(Template, T)>> = entries
            .iter()
            .map(|entry| {
                let path = join(path, &entry.key.text);
                let key = self.key_template(&entry.key, what, &path);
                let value = read(self, &entry.value, &path);
                key.zip(value)
            })
            .collect();
        pairs.into_iter().collect()
    }

    /// Reads the value of an input. Keeps the source text of a boolean or number: the called function may want text.
    pub(super) fn input_value(&mut self, node: &YamlNode, path: &str) -> Option<TemplateValue> {
        if let NodeKind::Scalar(scalar) = &node.kind
            && resolve(scalar) == Resolved::OutOfRange
        {
            return Some(TemplateValue::BeyondRange(Template::literal(&scalar.text, self.file(), node.at)));
        }
        let value = self.template_value(node, path)?;
        Some(match (value, &node.kind) {
            (TemplateValue::Constant(value), NodeKind::Scalar(scalar)) if value.data != Data::Null => {
                TemplateValue::Written(value, scalar.text.as_str().into(), node.at)
            }
            (value, _) => value,
        })
    }

    /// Reads any value. Its strings are templates, its keys are not.
    pub(super) fn template_value(&mut self, node: &YamlNode, path: &str) -> Option<TemplateValue> {
        match &node.kind {
            NodeKind::Scalar(scalar) if resolve(scalar) == Resolved::Text => {
                self.scalar_template(node, path).map(TemplateValue::Text)
            }
            NodeKind::Scalar(_) => self.value(node, path).map(TemplateValue::Constant),
            NodeKind::Sequence(items) => {
                let items: Vec<Option<TemplateValue>> = items
                    .iter()
                    .enumerate()
                    .map(|(index, item)| self.template_value(item, &at_index(path, index)))
                    .collect();
                items.into_iter().collect::<Option<_>>().map(|items| TemplateValue::Array(items, node.at))
            }
            NodeKind::Mapping(entries) => {
                let members: Vec<Option<(String, TemplateValue)>> = entries
                    .iter()
                    .map(|entry| {
                        let value = self.template_value(&entry.value, &join(path, &entry.key.text))?;
                        Some((entry.key.text.clone(), value))
                    })
                    .collect();
                let members: Option<_> = members.into_iter().collect();
                members.map(|members| TemplateValue::Object(members, node.at))
            }
        }
    }
}

/// True for `parallel` of another system, which is a number or a mapping.
fn is_foreign_group(entry: &YamlEntry) -> bool {
    entry.key.text == "parallel" && !matches!(entry.value.kind, NodeKind::Sequence(_))
}
