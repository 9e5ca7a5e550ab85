//! Masking of what leaves the daemon besides the log: results and messages (masking.md §7).

use std::sync::Arc;

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::config::Config;
use crate::log::mask::{DefaultPrefixes, MaskConfig, MaskLimitError, Masker, PhraseSet};
use crate::model::{ExecResult, ReferenceInfo, StepInfo, StepResult};

/// The masking of one job. The automaton is built when the first text is masked.
pub(super) struct Redactor {
    phrases: PhraseSet,
    masker: Option<Arc<Masker>>,
}

impl Redactor {
    /// Masks the phrases of `set`.
    pub(super) const fn new(set: PhraseSet) -> Self {
        Self { phrases: set, masker: None }
    }

    /// Masks `added` too from now on.
    pub(super) fn add(&mut self, added: &[Vec<u8>]) -> Result<(), MaskLimitError> {
        let (phrases, _warnings) = self.phrases.with_added(added.iter().cloned())?;
        self.phrases = phrases;
        self.masker = None;
        Ok(())
    }

    /// A text on one line, masked.
    pub(super) fn line(&mut self, text: &str) -> String {
        self.text(text).replace(['\n', '\r'], " ")
    }

    /// A text, masked as a source of its own.
    pub(super) fn text(&mut self, text: &str) -> String {
        if text.is_empty() {
            return String::new();
        }
        let phrases = &self.phrases;
        self.masker.get_or_insert_with(|| Masker::compile(phrases)).mask_str(text)
    }

    /// A result with every string masked: names, keys and nested values too.
    pub(super) fn result(&mut self, result: StepResult) -> StepResult {
        let StepResult { step, definition, status, outputs, exports, env, exec, sub_steps } = result;
        StepResult {
            step: step.map(|step| self.step(step)),
            definition: definition.map(|d| Arc::new(self.value((*d).clone()))),
            status,
            outputs: self.values(outputs),
            exports: self.texts(exports),
            env: self.texts(env),
            exec: exec.map(|exec| self.exec(exec)),
            sub_steps: sub_steps.into_iter().map(|sub| self.result(sub)).collect(),
        }
    }

    fn step(&mut self, step: StepInfo) -> StepInfo {
        let StepInfo { name, reference, env, inputs } = step;
        let ReferenceInfo { protocol, url, path, filename, version } = reference;
        let reference = ReferenceInfo {
            protocol,
            url: self.text(&url),
            path: path.iter().map(|part| self.text(part)).collect(),
            filename: self.text(&filename),
            version: self.text(&version),
        };
        StepInfo { name: self.text(&name), reference, env: self.texts(env), inputs: self.values(inputs) }
    }

    fn exec(&mut self, exec: ExecResult) -> ExecResult {
        let ExecResult { command, work_dir, exit_code } = exec;
        let command = command.iter().map(|word| self.text(word)).collect();
        ExecResult { command, work_dir: self.text(&work_dir), exit_code }
    }

    fn texts(&mut self, texts: IndexMap<String, String>) -> IndexMap<String, String> {
        texts.into_iter().map(|(key, text)| (self.text(&key), self.text(&text))).collect()
    }

    fn values(&mut self, values: IndexMap<String, Value>) -> IndexMap<String, Value> {
        values.into_iter().map(|(key, value)| (self.text(&key), self.value(value))).collect()
    }

    fn value(&mut self, value: Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(&text)),
            Value::Array(items) => Value::Array(items.into_iter().map(|item| self.value(item)).collect()),
            Value::Object(members) => Value::Object(
                members.into_iter().map(|(key, value)| (self.text(&key), self.value(value))).collect(),
            ),
            plain @ (Value::Null | Value::Bool(_) | Value::Number(_)) => plain,
        }
    }
}

/// The masking settings of one job. They stay what they were when it was registered, whatever the settings become: its
/// keeper masks by them, and so does every daemon that takes it up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct JobMasking {
    /// Setting `mask_forms`.
    pub(super) forms: bool,
    /// Setting `default_token_prefixes`.
    pub(super) default_prefixes: bool,
}

impl JobMasking {
    /// Those in force now.
    pub(super) const fn new(config: &Config) -> Self {
        Self { forms: config.mask_forms, default_prefixes: config.default_token_prefixes }
    }

    /// As the masker takes them.
    pub(super) fn config(self) -> MaskConfig {
        let default_prefixes =
            if self.default_prefixes { DefaultPrefixes::All } else { DefaultPrefixes::None };
        MaskConfig { forms: self.forms, default_prefixes, ..MaskConfig::default() }
    }
}
