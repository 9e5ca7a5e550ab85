//! Finds the texts to mask because the language declares them sensitive (language.md §9.6, §11.5).
//!
//! The language cannot take a text apart, so a text derived from a secret text contains it, unchanged or quoted as JSON.
//! Masking the secret is enough, and derived texts are left out. Otherwise a script with one secret would be masked as
//! a whole, and each of its lines wherever it is printed (masking.md §2, "lines"). A number derived from a secret contains
//! nothing of it: each one that becomes text is a secret of its own.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashSet};

use aho_corasick::{AhoCorasick, AhoCorasickKind};
use indexmap::{IndexMap, IndexSet};
use step_runner_lang::ast::{Body, Function, Invocation};
use step_runner_lang::convert::{number_to_plain, number_to_text};
use step_runner_lang::reference;
use step_runner_lang::value::{Data, EvaluatedText, Value};

/// Most bytes that are searched for one secret after the other. When they are used up, an automaton searches for all
/// secrets at once until the next [`Secrets::rest`].
const SINGLE_SEARCHES: usize = 64 << 20;

/// Maximum number of bytes of secrets in one automaton. A job with more is ended, because they cannot all be masked
/// (masking.md §8).
const AUTOMATON_BYTES: usize = 8 << 20;

/// Maximum number of secrets that are searched. A job with more is ended, because they cannot all be masked
/// (masking.md §8).
const MOST_KNOWN: usize = 8_192;

/// Bytes that are searched in the time of building an automaton for one byte of secrets. New secrets are searched one by one
/// until that has cost as much as a new automaton. So all automata of a search cost no more than the searches.
const SEARCHED_PER_BUILT: usize = 256;

/// Cost of beginning a search, in bytes searched.
const SEARCH_BEGINS: usize = 32;

/// The known sensitive texts of a job, and those not yet passed to the masking.
#[derive(Default)]
pub(crate) struct Secrets {
    known: BTreeSet<String>,
    fresh: Vec<Vec<u8>>,
    search: Option<Box<Search>>,
    /// Marked numbers that have become text since the last look.
    numbers: RefCell<Vec<f64>>,
}

/// State of the search for known secrets in sensitive texts. Lives until the next [`Secrets::rest`].
#[derive(Default)]
struct Search {
    /// Bytes searched secret by secret.
    searched: usize,
    /// All secrets, once much text has been searched.
    together: Option<SecretAutomaton>,
    /// Secrets as written inside a JSON string, where that differs.
    quoted: Option<Vec<String>>,
}

/// An automaton that searches for all secrets at once, and the secrets that are not in it yet.
struct SecretAutomaton {
    automaton: Option<AhoCorasick>,
    /// Bytes of secrets in it.
    bytes: usize,
    /// Secrets added since the automaton was built.
    more: Vec<String>,
    /// Bytes searched for one of `more` after the other.
    searched: usize,
}

impl SecretAutomaton {
    /// Builds the automaton. It is `None` if the secrets are too many for one.
    fn of<'s>(secrets: impl Iterator<Item = &'s str>) -> Self {
        let secrets: Vec<&str> = secrets.filter(|secret| !secret.trim().is_empty()).collect();
        let bytes: usize = secrets.iter().map(|secret| secret.len()).sum();
        // The library's own choice for few patterns is a DFA, which takes long to build for long ones.
        let builder =
            || AhoCorasick::builder().kind(Some(AhoCorasickKind::ContiguousNFA)).build(&secrets).ok();
        let automaton = (bytes <= AUTOMATON_BYTES).then(builder).flatten();
        Self { automaton, bytes, more: Vec::new(), searched: 0 }
    }

    /// True if it costs less to build an automaton of all secrets than to go on with `text`.
    fn is_stale(&self, text: &str) -> bool {
        let added: usize = self.more.iter().map(String::len).sum();
        self.searched_with(text) > self.bytes.saturating_add(added).saturating_mul(SEARCHED_PER_BUILT)
    }

    fn searched_with(&self, text: &str) -> usize {
        self.searched.saturating_add(self.more.len().saturating_mul(text.len() + SEARCH_BEGINS))
    }

    fn covers(&mut self, text: &str) -> bool {
        self.searched = self.searched_with(text);
        self.automaton.as_ref().is_some_and(|automaton| automaton.is_match(text))
            || self.more.iter().any(|secret| text.contains(secret.as_str()))
    }
}

impl Secrets {
    /// Returns the list to which evaluations add marked numbers that become text.
    pub(crate) const fn numbers(&self) -> &RefCell<Vec<f64>> {
        &self.numbers
    }

    /// Adds the marked numbers that have become text.
    fn note_numbers(&mut self) {
        for number in self.numbers.take() {
            self.insert(&number_to_text(number));
            self.insert(&number_to_plain(number));
        }
    }

    /// Adds a value that is declared sensitive: all of its texts and numbers.
    pub(crate) fn note_declared(&mut self, value: &Value) {
        for_each_leaf(value, true, &mut |leaf| match leaf {
            Leaf::Text(text) | Leaf::Number(text) => self.insert(text),
        });
    }

    /// Adds the numbers that [`numbers_written`] has found.
    pub(crate) fn note_written(&mut self, numbers: &[String]) {
        for number in numbers {
            self.insert(number);
        }
    }

    /// Adds the sensitive parts of an evaluated value. `vars` are the job's variables; masked ones are phrases already.
    pub(crate) fn note_derived(&mut self, value: &Value, vars: &IndexMap<String, Value>) {
        self.note_numbers();
        if value.is_sensitive() {
            for_each_leaf(value, false, &mut |leaf| match leaf {
                Leaf::Text(text) => self.insert_unless_covered(text, vars),
                Leaf::Number(text) => self.insert(text),
            });
        }
    }

    /// Adds an evaluated text if it is sensitive.
    pub(crate) fn note_text(&mut self, text: &EvaluatedText, vars: &IndexMap<String, Value>) {
        self.note_numbers();
        if text.sensitive {
            self.insert_unless_covered(&text.text, vars);
        }
    }

    /// Adds the credentials in a function's references: results show its definition with all steps (language.md §16).
    pub(crate) fn note_references(&mut self, function: &Function) {
        let Body::Run(run) = &function.definition.body else { return };
        for step in run.steps.iter().flat_map(|step| std::iter::once(step).chain(step.members())) {
            if let Invocation::Reference(reference, _) = &step.invokes {
                for secret in reference::credentials(reference) {
                    self.note_url_part(&secret);
                }
            }
        }
    }

    /// Adds a part of a URL, which may be percent-encoded.
    pub(crate) fn note_url_part(&mut self, part: &str) {
        self.insert(part);
        if let Ok(decoded) = percent_encoding::percent_decode_str(part).decode_utf8() {
            self.insert(&decoded);
        }
    }

    /// Takes the secrets not yet passed to the masking.
    pub(crate) fn take_fresh(&mut self) -> Vec<Vec<u8>> {
        self.note_numbers();
        std::mem::take(&mut self.fresh)
    }

    /// Frees the memory of the search.
    pub(crate) fn rest(&mut self) {
        self.search = None;
    }

    /// Returns the number of secrets found so far.
    pub(crate) fn count(&self) -> usize {
        self.known.len()
    }

    fn insert_unless_covered(&mut self, text: &str, vars: &IndexMap<String, Value>) {
        if self.known.len() > MOST_KNOWN {
            return;
        }
        // Add the JSON form too: masking makes no forms of short secrets, and none at all without `mask_forms`
        // (masking.md §2).
        let quoted = self.quoted_in(text, vars);
        if !self.is_covered(text, vars) && quoted.is_empty() {
            self.insert(text);
        }
        for quoted in &quoted {
            self.insert(quoted);
        }
    }

    /// Returns the JSON forms of known secrets that `text` contains, where they differ from the secret.
    fn quoted_in(&mut self, text: &str, vars: &IndexMap<String, Value>) -> Vec<String> {
        let Self { known, search, .. } = self;
        let all = search.get_or_insert_default().quoted.get_or_insert_with(|| {
            let secrets = masked(vars).chain(known.iter().map(String::as_str));
            secrets.filter(|secret| !secret.trim().is_empty()).filter_map(quoted_otherwise).collect()
        });
        // For much text, return all: masking a text that does not occur does no harm.
        let is_long = all.len().saturating_mul(text.len()) > SINGLE_SEARCHES;
        all.iter().filter(|quoted| is_long || text.contains(quoted.as_str())).cloned().collect()
    }

    /// True if `text` contains a known secret.
    fn is_covered(&mut self, text: &str, vars: &IndexMap<String, Value>) -> bool {
        let Self { known, search, .. } = self;
        let Search { searched, together, .. } = &mut **search.get_or_insert_default();
        let secrets = || masked(vars).chain(known.iter().map(String::as_str));
        *searched = searched.saturating_add(secrets().count().saturating_mul(text.len()));
        if *searched <= SINGLE_SEARCHES {
            return secrets().any(|secret| !secret.trim().is_empty() && text.contains(secret));
        }
        if together.as_ref().is_none_or(|together| together.is_stale(text)) {
            *together = Some(SecretAutomaton::of(secrets()));
        }
        together.as_mut().is_some_and(|together| together.covers(text))
    }

    fn insert(&mut self, text: &str) {
        // As the masking counts them: blanks around a secret make no other one.
        let text = text.trim();
        // The job is ended with those that are known: more of them only take memory.
        if self.known.len() > MOST_KNOWN {
            return;
        }
        if !text.is_empty() && self.known.insert(text.to_owned()) {
            self.fresh.push(text.as_bytes().to_vec());
            let Some(search) = &mut self.search else { return };
            if let Some(together) = &mut search.together {
                together.more.push(text.to_owned());
            }
            if let Some(quoted) = &mut search.quoted {
                quoted.extend(quoted_otherwise(text));
            }
        }
    }
}

/// Returns the numbers in sensitive `values` as a process wrote them into the JSON text `content`. Digits that a double
/// cannot hold are secret too. Leaves out the forms that [`Secrets::note_declared`] adds.
pub(crate) fn numbers_written<'v>(values: impl Iterator<Item = &'v Value>, content: &[u8]) -> Vec<String> {
    let mut numbers = HashSet::new();
    for value in values {
        value.for_each_number(&mut |number| {
            numbers.insert(number.to_bits());
        });
    }
    if numbers.is_empty() {
        return Vec::new();
    }
    let mut found = IndexSet::new();
    for written in written_numbers(content) {
        if found.len() > MOST_KNOWN {
            break; // these alone end the job
        }
        let Ok(number) = written.parse::<f64>() else { continue };
        if numbers.contains(&number.to_bits())
            && !found.contains(written)
            && ![number_to_text(number), number_to_plain(number)].contains(&written.to_owned())
        {
            found.insert(written.to_owned());
        }
    }
    found.into_iter().collect()
}

/// Returns the values of masked job variables.
fn masked(vars: &IndexMap<String, Value>) -> impl Iterator<Item = &str> {
    vars.values().filter(|value| value.sensitive).filter_map(|value| match &value.data {
        Data::String(secret) => Some(secret.as_str()),
        _ => None,
    })
}

/// A text or number in a value.
pub(super) enum Leaf<'v> {
    Text(&'v str),
    /// A number, in one of the forms in which the language writes it.
    Number(&'v str),
}

/// Visits the sensitive texts and numbers in `value`; with `all` all of them. Booleans and null cannot be masked.
pub(super) fn for_each_leaf(value: &Value, all: bool, visit: &mut impl FnMut(Leaf<'_>)) {
    let sensitive = all || value.sensitive;
    match &value.data {
        Data::String(text) if sensitive => visit(Leaf::Text(text)),
        Data::Number(number) if sensitive => {
            visit(Leaf::Number(&number_to_text(*number)));
            visit(Leaf::Number(&number_to_plain(*number)));
        }
        Data::Array(items) => items.iter().for_each(|item| for_each_leaf(item, sensitive, visit)),
        Data::Object(members) => members.values().for_each(|member| for_each_leaf(member, sensitive, visit)),
        Data::Null | Data::Bool(_) | Data::Number(_) | Data::String(_) => {}
    }
}

/// Returns all character runs of a JSON text that can be numbers, also inside of strings.
fn written_numbers(content: &[u8]) -> impl Iterator<Item = &str> {
    content
        .split(|byte| !(byte.is_ascii_digit() || b"+-.eE".contains(byte)))
        .filter(|word| word.iter().any(u8::is_ascii_digit))
        .filter_map(|word| std::str::from_utf8(word).ok())
}

/// Returns `secret` as written inside a JSON string, if that differs.
fn quoted_otherwise(secret: &str) -> Option<String> {
    if !secret.bytes().any(|byte| matches!(byte, b'"' | b'\\' | 0..=0x1f)) {
        return None;
    }
    let quoted = serde_json::to_string(secret).ok()?;
    Some(quoted.strip_prefix('"')?.strip_suffix('"')?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(text: &str) -> Value {
        Value { data: Data::String(text.into()), sensitive: true }
    }

    fn taken(secrets: &mut Secrets) -> Vec<String> {
        secrets.take_fresh().into_iter().map(|bytes| String::from_utf8(bytes).unwrap()).collect()
    }

    #[test]
    fn a_part_of_a_url_is_secret_as_written_and_as_meant() {
        let mut secrets = Secrets::default();
        secrets.note_url_part("s%40cret");
        secrets.note_url_part("plain");
        assert_eq!(taken(&mut secrets), ["s%40cret", "s@cret", "plain"]);
    }

    #[test]
    fn an_automaton_is_built_again_when_the_searches_beside_it_have_cost_as_much() {
        const LONG: usize = 10_000;
        let mut together = SecretAutomaton::of(std::iter::once(&*"s".repeat(LONG)));
        let text = "x".repeat(1_000);
        let mut searched = 0;
        while !together.is_stale(&text) {
            assert!(!together.covers(&text));
            searched += together.more.len() * (text.len() + SEARCH_BEGINS);
            together.more.push(format!("more-{searched}"));
        }
        let built = LONG * SEARCHED_PER_BUILT;
        assert!((built - built / 10..2 * built).contains(&searched), "{searched} {built}");
        // Much text for many secrets is not searched before.
        assert!(together.is_stale(&"x".repeat(1 << 20)));
        assert!(together.covers("more-0"));
    }

    #[test]
    fn declared_values_are_phrases_down_to_their_leaves_once() {
        let mut secrets = Secrets::default();
        let members = [
            ("a".to_owned(), Value::text("one")),
            ("b".to_owned(), Value::array([Value::plain(Data::Number(42.0)), Value::text("one")])),
            ("c".to_owned(), Value::plain(Data::Bool(true))),
            ("d".to_owned(), Value::text(" ")),
        ];
        secrets.note_declared(&Value::object(members.into_iter().collect()));
        assert_eq!(taken(&mut secrets), ["one", "42"]);
        secrets.note_declared(&Value::text("one"));
        assert!(taken(&mut secrets).is_empty());
    }

    #[test]
    fn fault_76_secrets_of_a_job_that_is_ended_for_their_number_take_no_memory() {
        let numbers = |range: std::ops::Range<u32>| {
            Value::array(range.map(|n| Value::plain(Data::Number(f64::from(n)))))
        };
        let mut secrets = Secrets::default();
        // Blanks make no other secret: the last one must still be masked.
        let blanks = (0..2 * MOST_KNOWN).map(|n| Value::text(format!("{}x", " ".repeat(n))));
        secrets.note_declared(&Value::array(blanks.chain([Value::text("last")])));
        assert_eq!(taken(&mut secrets), ["x", "last"]);
        secrets.note_declared(&numbers(0..100_000));
        assert_eq!(secrets.take_fresh().len(), MOST_KNOWN - 1);
        let content: Vec<u8> = (0..100_000).flat_map(|n| format!("{n}.0,").into_bytes()).collect();
        let written = numbers_written(std::iter::once(&numbers(0..100_000)), &content);
        assert_eq!(written.len(), MOST_KNOWN + 1);
    }

    #[test]
    fn fault_81_numbers_are_phrases_as_written_and_as_shown() {
        let value = Value::array([
            Value::plain(Data::Number(12_345_678_901_234_567_890.0)),
            Value::plain(Data::Number(1e-7)),
            Value::plain(Data::Number(5.0)),
        ]);
        let mut secrets = Secrets::default();
        secrets.note_declared(&value);
        assert_eq!(taken(&mut secrets), ["12345678901234567000", "1e-7", "0.0000001", "5"]);
        let content = br#"{"name":"n7","value":[12345678901234567890, 1.0E-07,5.0]} {"name":"x","value":6}"#;
        secrets.note_written(&numbers_written(std::iter::once(&value), content));
        assert_eq!(taken(&mut secrets), ["12345678901234567890", "1.0E-07", "5.0"]);
    }

    #[test]
    fn texts_that_hold_a_known_secret_are_no_phrases_of_their_own() {
        let vars: IndexMap<_, _> = [("T".to_owned(), secret("to\"ken"))].into_iter().collect();
        let mut secrets = Secrets::default();
        for text in ["curl -H to\"ken x", r#"{"a": "to\"ken"}"#] {
            secrets.note_text(&EvaluatedText { text: text.into(), sensitive: true }, &vars);
        }
        assert_eq!(taken(&mut secrets), [r#"to\"ken"#], "only what is inside of the quotes");
        secrets.note_derived(&secret("7 of another"), &vars);
        assert_eq!(taken(&mut secrets), ["7 of another"]);
    }

    #[test]
    fn fault_81_numbers_derived_from_a_secret_are_phrases_whatever_they_contain() {
        let vars: IndexMap<_, _> = [("T".to_owned(), secret("3"))].into_iter().collect();
        let mut secrets = Secrets::default();
        secrets.numbers().borrow_mut().extend([37_037_034.0, 1e-7]);
        secrets.note_text(&EvaluatedText { text: "total 37037034".into(), sensitive: true }, &vars);
        assert_eq!(
            taken(&mut secrets),
            ["37037034", "1e-7", "0.0000001"],
            "the text has nothing else to hide"
        );
        secrets.note_derived(&Value { data: Data::Number(13.0), sensitive: true }, &vars);
        assert_eq!(taken(&mut secrets), ["13"]);
        secrets.numbers().borrow_mut().push(5.0);
        assert_eq!(taken(&mut secrets), ["5"], "also if nothing else is noted");
    }

    /// One search per secret would take minutes.
    #[test]
    fn fault_76_many_secrets_are_searched_in_a_long_text_at_once() {
        let vars: IndexMap<_, _> =
            (0..4_000).map(|n| (format!("T{n}"), secret(&format!("secret-{n:0>300}")))).collect();
        let mut secrets = Secrets::default();
        let long = "secret-0".repeat(1 << 20);
        for text in [long.clone(), format!("{long}x"), format!("y{long}")] {
            secrets.note_text(&EvaluatedText { text, sensitive: true }, &vars);
        }
        assert_eq!(secrets.count(), 1, "the first one stands in the others");
        let covered = format!("{}secret-{:0>300}", "secret-1".repeat(1 << 20), 3_999);
        secrets.note_text(&EvaluatedText { text: covered, sensitive: true }, &vars);
        assert_eq!(taken(&mut secrets).len(), 1);
    }

    #[test]
    fn only_marked_leaves_of_a_derived_value_are_phrases() {
        let mut secrets = Secrets::default();
        let value = Value::array([Value::text("open"), secret("hidden")]);
        secrets.note_derived(&value, &IndexMap::new());
        assert_eq!(taken(&mut secrets), ["hidden"]);
    }
}
