//! Reads the control flow of a step (flow.md §1 to §6).

use std::time::Duration;

use super::checker::{Checker, UnknownKey, at_index, join};
use super::duration::duration;
use super::foreign;
use crate::ast::flow::{
    Condition, FailureKind, Flow, MEMBER_LIMIT, MEMBERS_AT_A_TIME, Matrix, MatrixItem, MatrixItems,
    MatrixList, Retry, Tolerance, When,
};
use crate::ast::{Invocation, Step, TemplateValue};
use crate::diagnostic::{Class, Position};
use crate::name;
use crate::template::OPEN;
use crate::value::{Data, Value};
use crate::yaml::scalar::{Resolved, resolve};
use crate::yaml::{NodeKind, YamlEntry, YamlNode};

/// Keys of control flow beside `parallel`.
pub(crate) const KEYS: [&str; 8] =
    ["if", "when", "continue_on_error", "timeout", "retry", "matrix", "max", "fail_fast"];

/// Keys of the long form of `retry`.
pub(crate) const RETRY_KEYS: [&str; 6] = ["max", "delay", "factor", "max_delay", "when", "exit_codes"];

/// Longest `timeout`, `delay` and `max_delay`.
const DURATION_LIMIT: Duration = Duration::from_hours(24);

/// Most further attempts of a step.
const RETRY_LIMIT: u8 = 10;

/// Lowest exit code that is no death by a signal or by a time limit but can name one: `timeout` is 124.
const FIRST_SPECIAL_CODE: u8 = 124;

/// Kind of step whose keys are read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// A step of a list.
    List,
    /// A member of a group.
    Member,
}

/// A part of the document has an error, which is reported.
#[derive(Debug)]
pub(super) struct Broken;

impl Checker<'_> {
    /// Reads the keys of control flow in `entries`, which are in the order of the text. `parallel` is among them for a
    /// group. Fails if one is broken, after reading the others.
    pub(super) fn flow(
        &mut self,
        entries: &[&YamlEntry],
        place: Place,
        path: &str,
    ) -> Result<Option<Box<Flow>>, Broken> {
        let is_group = entries.iter().any(|entry| entry.key.text == "parallel");
        let mut flow = Flow {
            keys: Vec::with_capacity(entries.len()),
            condition: None,
            when: When::default(),
            tolerance: Tolerance::default(),
            timeout: None,
            retry: None,
            matrix: None,
            max: None,
            fail_fast: true,
        };
        let has_members = is_group || entries.iter().any(|entry| entry.key.text == "matrix");
        let mut whole = true;
        for entry in entries {
            flow.keys.push((entry.key.text.clone(), entry.key.at));
            whole &= self.is_allowed(entry, place, is_group, has_members, path)
                && self.flow_key(&mut flow, entry, &join(path, &entry.key.text)).is_some();
        }
        if whole { Ok((!flow.keys.is_empty()).then(|| Box::new(flow))) } else { Err(Broken) }
    }

    /// Reports a key that cannot stand here.
    fn is_allowed(
        &mut self,
        entry: &YamlEntry,
        place: Place,
        is_group: bool,
        has_members: bool,
        path: &str,
    ) -> bool {
        let key = entry.key.text.as_str();
        let why = match key {
            "when" | "matrix" | "parallel" if place == Place::Member => "a member of a group cannot have",
            "retry" | "matrix" if is_group => "a group cannot have",
            "max" | "fail_fast" if !has_members => "only a step with parallel or matrix can have",
            _ => return true,
        };
        self.error(Class::Schema, entry.key.at, &join(path, key), format!("{why} \"{key}\""));
        false
    }

    fn flow_key(&mut self, flow: &mut Flow, entry: &YamlEntry, path: &str) -> Option<()> {
        let node = &entry.value;
        match entry.key.text.as_str() {
            "if" => flow.condition = Some(self.condition(node, path)?),
            "when" => flow.when = self.word(node, path, &When::ALL)?,
            "continue_on_error" => flow.tolerance = self.tolerance(node, path)?,
            "timeout" => flow.timeout = Some(self.limited_duration(node, path, Duration::from_nanos(1))?),
            "retry" => flow.retry = self.retry(node, path).ok()?,
            "matrix" => flow.matrix = Some(self.matrix(node, path)?),
            "max" => flow.max = Some(self.whole_number(node, path, 1, MEMBERS_AT_A_TIME)?),
            "fail_fast" => flow.fail_fast = self.boolean(node, path)?,
            _ => {}
        }
        Some(())
    }

    /// Reads a plain boolean, or a template that is one expression and nothing else.
    fn condition(&mut self, node: &YamlNode, path: &str) -> Option<Condition> {
        if let NodeKind::Scalar(scalar) = &node.kind {
            if let Resolved::Bool(truth) = resolve(scalar) {
                return Some(Condition::Constant(truth));
            }
            let template = self.scalar_template(node, path)?;
            let inside = scalar.text.strip_prefix(OPEN).and_then(|text| text.strip_suffix("}}"));
            if let (Some(_), Some(text)) = (template.as_expression(), inside) {
                return Some(Condition::Expression { template, text: text.trim().to_owned() });
            }
        }
        let help = "write true, false, or one expression and nothing else: ${{ vars.BRANCH == \"main\" }}";
        self.error_with_help(Class::Schema, node.at, path, "not a condition", help);
        None
    }

    /// Reads one of some words.
    fn word<T: Copy>(&mut self, node: &YamlNode, path: &str, words: &[(T, &'static str)]) -> Option<T> {
        let found = match &node.kind {
            NodeKind::Scalar(scalar) => words.iter().find(|(_, word)| *word == scalar.text),
            NodeKind::Sequence(_) | NodeKind::Mapping(_) => None,
        };
        if let Some((value, _)) = found {
            return Some(*value);
        }
        let known: Vec<&str> = words.iter().map(|(_, word)| *word).collect();
        self.error(Class::Schema, node.at, path, format!("expected one of {}", known.join(", ")));
        None
    }

    fn tolerance(&mut self, node: &YamlNode, path: &str) -> Option<Tolerance> {
        let NodeKind::Mapping(entries) = &node.kind else {
            let is_boolean = matches!(&node.kind, NodeKind::Scalar(scalar) if matches!(resolve(scalar), Resolved::Bool(_)));
            if !is_boolean {
                self.wrong_type(node, path, "true, false or {exit_codes: …}");
                return None;
            }
            let all = self.boolean(node, path)?;
            return Some(if all { Tolerance::All } else { Tolerance::None });
        };
        let (mut codes, mut whole) = (None, true);
        for entry in entries {
            if entry.key.text == "exit_codes" {
                codes = self.exit_codes(&entry.value, &join(path, "exit_codes"));
                whole &= codes.is_some();
            } else {
                whole = false;
                self.unknown_key(&entry.key, path, &["exit_codes"], UnknownKey::Refuse);
            }
        }
        if entries.is_empty() {
            self.error(Class::Schema, node.at, path, "\"exit_codes\" is missing");
        }
        whole.then_some(Tolerance::ExitCodes(codes?))
    }

    /// Reads an exit code, or a list of at least one.
    fn exit_codes(&mut self, node: &YamlNode, path: &str) -> Option<Vec<u8>> {
        let items = match &node.kind {
            NodeKind::Sequence(items) => items.as_slice(),
            NodeKind::Scalar(_) | NodeKind::Mapping(_) => std::slice::from_ref(node),
        };
        if items.is_empty() {
            self.error(Class::Schema, node.at, path, "the list of exit codes is empty");
            return None;
        }
        let codes: Vec<Option<u8>> =
            items.iter().map(|item| self.whole_number(item, path, 1, u8::MAX)).collect();
        codes.into_iter().collect()
    }

    fn whole_number(&mut self, node: &YamlNode, path: &str, least: u8, most: u8) -> Option<u8> {
        if let NodeKind::Scalar(scalar) = &node.kind
            && let Resolved::Number(number) = resolve(scalar)
            && number.fract() == 0.0
            && (f64::from(least)..=f64::from(most)).contains(&number)
        {
            return Some(number as u8);
        }
        let message = format!("expected a whole number from {least} to {most}");
        self.error(Class::Schema, node.at, path, message);
        None
    }

    /// Reads a duration from `least` to [`DURATION_LIMIT`].
    fn limited_duration(&mut self, node: &YamlNode, path: &str, least: Duration) -> Option<Duration> {
        let text = match &node.kind {
            NodeKind::Scalar(scalar) => scalar.text.as_str(),
            NodeKind::Sequence(_) | NodeKind::Mapping(_) => "",
        };
        let (message, help) = match duration(text) {
            Some(duration) if duration < least => ("the duration is 0", "write 90s, 1h30m or 500ms"),
            Some(duration) if duration > DURATION_LIMIT => ("longer than 24h", "write 24h or less"),
            Some(duration) => return Some(duration),
            None => ("not a duration", "write 90s, 1h30m or 500ms"),
        };
        self.error_with_help(Class::Schema, node.at, path, message, help);
        None
    }

    /// Reads `retry`. A number of 0 is no retry.
    fn retry(&mut self, node: &YamlNode, path: &str) -> Result<Option<Retry>, Broken> {
        let NodeKind::Mapping(entries) = &node.kind else {
            let max = self.whole_number(node, path, 0, RETRY_LIMIT).ok_or(Broken)?;
            return Ok((max > 0).then(|| Retry { max, ..Retry::default() }));
        };
        let (mut retry, mut whole) = (Retry::default(), true);
        for entry in entries {
            whole &= self.retry_key(&mut retry, entry, path).is_some();
        }
        self.warn_of_covered_codes(&retry, entries, path);
        if whole { Ok((retry.max > 0).then_some(retry)) } else { Err(Broken) }
    }

    fn retry_key(&mut self, retry: &mut Retry, entry: &YamlEntry, path: &str) -> Option<()> {
        let node = &entry.value;
        let at = join(path, &entry.key.text);
        match entry.key.text.as_str() {
            "max" => retry.max = self.whole_number(node, &at, 0, RETRY_LIMIT)?,
            "delay" => retry.delay = self.limited_duration(node, &at, Duration::ZERO)?,
            "max_delay" => retry.max_delay = self.limited_duration(node, &at, Duration::ZERO)?,
            "factor" => retry.factor = self.factor(node, &at)?,
            "when" => retry.when = self.kinds(node, &at)?,
            "exit_codes" => retry.exit_codes = self.exit_codes(node, &at)?,
            key => {
                match foreign::retry_key(key) {
                    Some(help) => self.foreign_key(&entry.key, path, help),
                    None => self.unknown_key(&entry.key, path, &RETRY_KEYS, UnknownKey::Refuse),
                }
                return None;
            }
        }
        Some(())
    }

    fn factor(&mut self, node: &YamlNode, path: &str) -> Option<f64> {
        if let NodeKind::Scalar(scalar) = &node.kind
            && let Resolved::Number(number) = resolve(scalar)
            && (1.0..=10.0).contains(&number)
        {
            return Some(number);
        }
        self.error(Class::Schema, node.at, path, "expected a number from 1 to 10");
        None
    }

    /// Reads a kind of failure, or a list of at least one.
    fn kinds(&mut self, node: &YamlNode, path: &str) -> Option<Vec<FailureKind>> {
        let items = match &node.kind {
            NodeKind::Sequence(items) => items.as_slice(),
            NodeKind::Scalar(_) | NodeKind::Mapping(_) => std::slice::from_ref(node),
        };
        if items.is_empty() {
            self.error(Class::Schema, node.at, path, "the list of kinds is empty");
            return None;
        }
        let kinds: Vec<Option<FailureKind>> =
            items.iter().map(|item| self.word(item, path, &FailureKind::NAMED)).collect();
        kinds.into_iter().collect()
    }

    /// Warns of `exit_codes` that the kind `exit` covers all.
    fn warn_of_covered_codes(&mut self, retry: &Retry, entries: &[YamlEntry], path: &str) {
        let Some(entry) = entries.iter().find(|entry| entry.key.text == "exit_codes") else { return };
        let is_covered = retry.when.contains(&FailureKind::Exit)
            && retry.exit_codes.iter().all(|code| *code < FIRST_SPECIAL_CODE);
        if is_covered && !retry.exit_codes.is_empty() {
            let message = "no effect: \"exit\" in \"when\" covers all of these codes";
            self.advise(Class::Schema, entry.key.at, &join(path, "exit_codes"), message);
        }
    }

    fn matrix(&mut self, node: &YamlNode, path: &str) -> Option<Matrix> {
        let entries = self.mapping(node, path)?;
        let mut matrix = Matrix { lists: Vec::with_capacity(entries.len()), exclude: Vec::new() };
        let mut whole = true;
        for entry in entries.iter().filter(|entry| entry.key.text != "exclude") {
            let path = join(path, &entry.key.text);
            let valid = self.name_key(&entry.key, "matrix key", &path);
            let items = self.matrix_items(&entry.value, &path);
            whole &= valid && items.is_some();
            matrix.lists.extend(items.map(|items| MatrixList {
                name: entry.key.text.clone(),
                at: entry.value.at,
                items,
            }));
        }
        if let Some(entry) = entries.iter().find(|entry| entry.key.text == "exclude") {
            let keys: Vec<&str> =
                entries.iter().map(|entry| entry.key.text.as_str()).filter(|key| *key != "exclude").collect();
            if keys.is_empty() {
                let help = "write a key with a list of values beside \"exclude\"";
                self.error_with_help(Class::Schema, node.at, path, "the matrix has no list", help);
                return None;
            }
            let exclude = self.exclude(&entry.value, &keys, &join(path, "exclude"));
            whole &= exclude.is_some();
            matrix.exclude = exclude.unwrap_or_default();
        }
        if whole && matrix.lists.is_empty() {
            self.error(Class::Schema, node.at, path, "the matrix has no list");
            return None;
        }
        if let Some(combinations) = matrix.combinations().filter(|count| whole && *count > MEMBER_LIMIT) {
            let message = format!("{combinations} combinations, more than {MEMBER_LIMIT}");
            self.error(Class::Limit, node.at, path, message);
            return None;
        }
        whole.then_some(matrix)
    }

    fn matrix_items(&mut self, node: &YamlNode, path: &str) -> Option<MatrixItems> {
        let NodeKind::Sequence(items) = &node.kind else {
            return self.template_value(node, path).map(MatrixItems::Value);
        };
        let items: Vec<Option<MatrixItem>> = items
            .iter()
            .enumerate()
            .map(|(index, item)| {
                let value = self.input_value(item, &at_index(path, index))?;
                self.warn_of_changed_number(item, &value, path);
                Some(MatrixItem { value, at: item.at })
            })
            .collect();
        items.into_iter().collect::<Option<_>>().map(MatrixItems::Literal)
    }

    /// Warns of a number whose text is not what was written: the name of the member has that text.
    fn warn_of_changed_number(&mut self, node: &YamlNode, value: &TemplateValue, path: &str) {
        let TemplateValue::Written(value, written, _) = value else { return };
        let text = crate::convert::to_text(value);
        if matches!(value.data, Data::Number(_)) && text != **written {
            let message =
                format!("the number {written} becomes the text {text}: write it in quotes to keep it");
            self.advise(Class::Type, node.at, path, message);
        }
    }

    fn exclude(&mut self, node: &YamlNode, keys: &[&str], path: &str) -> Option<Vec<Vec<(String, Value)>>> {
        let NodeKind::Sequence(items) = &node.kind else {
            self.wrong_type(node, path, "a list of mappings");
            return None;
        };
        let read: Vec<Option<Vec<(String, Value)>>> = items
            .iter()
            .enumerate()
            .map(|(index, item)| self.excluded(item, keys, &at_index(path, index)))
            .collect();
        read.into_iter().collect()
    }

    fn excluded(&mut self, node: &YamlNode, keys: &[&str], path: &str) -> Option<Vec<(String, Value)>> {
        let entries = self.mapping(node, path)?;
        if entries.is_empty() {
            self.error(Class::Schema, node.at, path, "expected at least one key of the matrix");
            return None;
        }
        let read: Vec<Option<(String, Value)>> = entries
            .iter()
            .map(|entry| {
                let key = &entry.key.text;
                let path = join(path, key);
                if keys.contains(&key.as_str()) {
                    return self.value(&entry.value, &path).map(|value| (key.clone(), value));
                }
                let message = format!("\"{}\" is no key of the matrix", step_runner_model::text::quote(key));
                let known = match name::suggest(key, keys.iter().copied()) {
                    Some(similar) => format!("did you mean \"{similar}\"?"),
                    None => format!("known here: {}", keys.join(", ")),
                };
                self.error_with_help(Class::Schema, entry.key.at, &path, &message, &known);
                None
            })
            .collect();
        read.into_iter().collect()
    }

    /// Reads the members of a group.
    pub(super) fn members(&mut self, node: &YamlNode, path: &str) -> Option<Vec<Step>> {
        let NodeKind::Sequence(items) = &node.kind else {
            let help = "write a list of steps; for one step with several values write \"matrix\"";
            let message = format!("expected a list of steps, got {}", node.describe());
            self.error_with_help(Class::Schema, node.at, path, &message, help);
            return None;
        };
        if items.is_empty() {
            self.error(Class::Schema, node.at, path, "the list of members is empty");
            return None;
        }
        if items.len() > MEMBER_LIMIT {
            self.error(Class::Limit, node.at, path, format!("more than {MEMBER_LIMIT} members in one group"));
            return None;
        }
        let members = items
            .iter()
            .enumerate()
            .filter_map(|(index, item)| self.step(item, Place::Member, &at_index(path, index)));
        Some(members.collect())
    }

    /// Warns of control flow in a list that has no effect or cannot be meant. Only a check warns.
    pub(super) fn advise_on_list(&mut self, nodes: &[YamlNode], steps: &[Step]) {
        let first = steps.first().zip(nodes.first()).filter(|(step, node)| step.at == node.at);
        if let Some((step, node)) = first
            && step.flow.as_ref().is_some_and(|flow| flow.when == When::OnFailure)
            && let Some(at) = value_of(node, "when")
        {
            let message = "the first step of a list never runs with on_failure: nothing has failed before it";
            self.advise(Class::Schema, at, &join(&step.path, "when"), message);
        }
        for (step, node) in
            steps.iter().filter_map(|step| Some((step, nodes.iter().find(|node| node.at == step.at)?)))
        {
            self.advise_on_group(node, step);
        }
    }

    fn advise_on_group(&mut self, node: &YamlNode, group: &Step) {
        let Invocation::Group(members) = &group.invokes else { return };
        let Some(limit) = group.flow.as_ref().and_then(|flow| flow.timeout) else { return };
        let NodeKind::Mapping(entries) = &node.kind else { return };
        let list = entries.iter().find(|entry| entry.key.text == "parallel").map(|entry| &entry.value.kind);
        let Some(NodeKind::Sequence(nodes)) = list else { return };
        for member in members {
            let timeout = member.flow.as_ref().and_then(|flow| flow.timeout);
            let place =
                nodes.iter().find(|node| node.at == member.at).and_then(|node| value_of(node, "timeout"));
            if let (true, Some(at)) = (timeout.is_some_and(|timeout| timeout > limit), place) {
                let message = "longer than the timeout of its group, which ends the member first";
                self.advise(Class::Schema, at, &join(&member.path, "timeout"), message);
            }
        }
    }

    /// Keeps a warning in a check. A run does not warn: a function that it reads can be of any age.
    fn advise(&mut self, class: Class, at: Position, path: &str, message: impl Into<String>) {
        if self.unknown == UnknownKey::Refuse {
            self.warning(class, at, path, message);
        }
    }
}

/// Returns the place of a key's value in a mapping.
fn value_of(node: &YamlNode, key: &str) -> Option<Position> {
    let NodeKind::Mapping(entries) = &node.kind else { return None };
    entries.iter().find(|entry| entry.key.text == key).map(|entry| entry.value.at)
}
