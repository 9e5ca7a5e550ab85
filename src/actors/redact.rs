//! Masks results and messages, which are all that leaves the daemon besides the log (masking.md §7).

use std::sync::{Arc, OnceLock};

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::{Number, Value};

use super::stored::{Encode, StepEvent};
use crate::config::Config;
use crate::lang::convert::{number_to_plain, number_to_text};
use crate::log::mask::{DefaultPrefixes, MaskConfig, MaskLimitError, Masked, Masker, PhraseSet};
use crate::model::{ExecResult, ReferenceInfo, Refusal, StepFacts, StepInfo, StepResult, Violation};

/// Limits for work on the actors' thread itself, in bytes: total length of the forms to build an automaton from, and
/// total length of the phrases to add.
const SMALL_FORMS: usize = 8 << 10;
const SMALL_PHRASES: usize = 1 << 10;

/// Masks the texts of one job. Builds the automaton when the first text comes. Clones share an automaton once it is
/// built.
#[derive(Clone)]
pub(super) struct Redactor {
    phrases: PhraseSet,
    masker: Arc<OnceLock<Arc<Masker>>>,
}

impl Redactor {
    pub(super) fn new(set: PhraseSet) -> Self {
        Self { phrases: set, masker: Arc::default() }
    }

    /// True if the next text can be masked at once, without building a large automaton first.
    pub(super) fn is_ready(&self) -> bool {
        self.masker.get().is_some() || self.phrases.form_bytes() <= SMALL_FORMS
    }

    /// True if adding these phrases takes no noticeable time.
    pub(super) fn adds_at_once(&self, added: &[Vec<u8>]) -> bool {
        let more: usize = added.iter().map(Vec::len).sum();
        self.phrases.form_bytes() <= SMALL_FORMS && more <= SMALL_PHRASES
    }

    /// Moves the phrases into the returned redactor, so that the caller can free them. `self` masks nothing any more.
    pub(super) fn take(&mut self) -> Self {
        let none: [&[u8]; 0] = [];
        match PhraseSet::prepare(none, none, &MaskConfig::default()) {
            Ok((empty, _)) => std::mem::replace(self, Self::new(empty)),
            Err(_) => self.clone(),
        }
    }

    pub(super) fn add(&mut self, added: &[Vec<u8>]) -> Result<(), MaskLimitError> {
        let (phrases, _warnings) = self.phrases.with_added(added.iter().cloned())?;
        self.phrases = phrases;
        self.masker = Arc::default();
        Ok(())
    }

    /// Masks a text that people will read.
    pub(super) fn mask(&mut self, text: &str) -> Masked {
        let phrases = &self.phrases;
        self.masker.get_or_init(|| Masker::compile(phrases)).mask(text)
    }

    /// Masks a text as data, separately from other texts.
    fn text(&mut self, text: &str) -> String {
        if text.is_empty() { String::new() } else { self.mask(text).into_data() }
    }

    /// Masks the reason of a step's end, which people read: as elsewhere its quotations are escaped.
    fn reason(&mut self, reason: &str) -> String {
        if reason.is_empty() { String::new() } else { self.mask(reason).for_people() }
    }

    /// Masks every string of a result, including names, keys and nested values, then encodes it.
    pub(super) fn result(&mut self, result: StepResult, encode: Encode) -> MaskedResult {
        MaskedResult((encode.result)(&self.masked(result)))
    }

    /// Masks and encodes an event of a step. Also returns the step's name.
    pub(super) fn event(&mut self, event: StepEvent, encode: Encode) -> (MaskedResult, String) {
        let event = StepEvent { result: self.masked(event.result), ..event };
        let name = event.result.step.as_ref().map(|step| step.name.clone()).unwrap_or_default();
        (MaskedResult((encode.event)(&event)), name)
    }

    fn masked(&mut self, result: StepResult) -> StepResult {
        let StepResult {
            step,
            definition,
            status,
            outputs,
            exports,
            env,
            exec,
            sub_steps,
            facts,
            outcome,
            reason,
            error_class,
            exit_code,
            attempts,
        } = result;
        StepResult {
            step: step.map(|step| self.step(step)),
            definition: definition.map(|d| Arc::new(self.value((*d).clone()))),
            status,
            outputs: self.values(outputs),
            exports: self.texts(exports),
            env: self.texts(env),
            exec: exec.map(|exec| self.exec(exec)),
            sub_steps: sub_steps.into_iter().map(|sub| self.masked(sub)).collect(),
            facts: StepFacts { place: self.text(&facts.place), ..facts },
            outcome,
            reason: self.reason(&reason),
            error_class,
            exit_code,
            attempts: attempts.into_iter().map(|attempt| self.masked(attempt)).collect(),
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

    /// Masks a number. It stays a number unless one of its spellings contains a phrase.
    fn number(&mut self, number: Number) -> Value {
        let double = number.as_f64().unwrap_or_default();
        for text in [number_to_text(double), number_to_plain(double), number.to_string()] {
            let masked = self.text(&text);
            if masked != text {
                return Value::String(masked);
            }
        }
        Value::Number(number)
    }

    fn value(&mut self, value: Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(&text)),
            Value::Array(items) => Value::Array(items.into_iter().map(|item| self.value(item)).collect()),
            Value::Object(members) => Value::Object(
                members.into_iter().map(|(key, value)| (self.text(&key), self.value(value))).collect(),
            ),
            Value::Number(number) => self.number(number),
            plain @ (Value::Null | Value::Bool(_)) => plain,
        }
    }
}

/// An encoded step result without secrets. Only a [`Redactor`] makes one, and nothing else is stored or sent.
#[derive(Clone)]
pub(super) struct MaskedResult(Vec<u8>);

impl MaskedResult {
    /// Returns the bytes that are stored and sent.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    #[cfg(test)]
    pub(super) const fn of(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

/// A refusal of a request that may quote texts of it, such as a path. Only a [`Redactor`] makes an answer of it.
#[derive(Debug)]
pub(super) struct UnmaskedRefusal(Refusal);

impl From<Refusal> for UnmaskedRefusal {
    fn from(refusal: Refusal) -> Self {
        Self(refusal)
    }
}

impl Redactor {
    /// Masks all texts of a refusal.
    pub(super) fn refusal(&mut self, UnmaskedRefusal(refusal): UnmaskedRefusal) -> Refusal {
        let Refusal { reason, text, retry_after, facts, violations } = refusal;
        let masked = |Violation { field, class, description }| Violation {
            field: self.text(&field),
            class,
            description: self.text(&description),
        };
        let violations = violations.into_iter().map(masked).collect();
        let facts = facts.into_iter().map(|(key, value)| (key, self.text(&value))).collect();
        Refusal { reason, text: self.text(&text), retry_after, facts, violations }
    }
}

/// Masking settings of one job, fixed when it is admitted. Its keeper and each later daemon use them, even if the
/// daemon's settings have changed since.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct JobMasking {
    /// Setting `mask_forms`.
    pub(super) forms: bool,
    /// Setting `default_token_prefixes`.
    pub(super) default_prefixes: bool,
}

impl JobMasking {
    pub(super) const fn new(config: &Config) -> Self {
        Self { forms: config.mask_forms, default_prefixes: config.default_token_prefixes }
    }

    pub(super) fn config(self) -> MaskConfig {
        let default_prefixes =
            if self.default_prefixes { DefaultPrefixes::All } else { DefaultPrefixes::None };
        MaskConfig { forms: self.forms, default_prefixes, ..MaskConfig::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::text;

    #[test]
    fn a_reason_is_masked_before_its_quotations_are_escaped() {
        let none: [&[u8]; 0] = [];
        let (phrases, _) = PhraseSet::prepare(["nightin\ngale"], none, &MaskConfig::default()).unwrap();
        let mut redactor = Redactor::new(phrases);
        let mut shown = |quotation: &str| {
            let reason = format!("\"{}\" was not found", text::quote(quotation));
            let result = StepResult { reason, ..StepResult::default() };
            redactor.masked(result).reason
        };
        assert_eq!(shown("b[1]"), "\"b[1]\" was not found");
        assert_eq!(shown("a\nb\u{1b}[31m"), "\"a\\nb\\u{1b}[31m\" was not found");
        assert_eq!(shown("nightin\ngale"), "\"[MASKED]\" was not found");
    }
}
