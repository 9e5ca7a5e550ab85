//! Layers of the environment of a process (language.md §13). Pure: reads no real environment and starts nothing.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use indexmap::IndexMap;

use super::value::{Data, EvaluatedText, Value};

/// Variable of layer 2.
pub const LOG_LEVEL: &str = "CI_STEPS_LOG_LEVEL";

/// Variables that tell where a process is and was (variables.md §7). Those of layers 1 to 4 tell it of another process.
const PLACES: [&str; 2] = ["PWD", "OLDPWD"];

/// Evaluated `env` of one step or of one function's definition.
pub type EnvironmentFrame = IndexMap<String, EvaluatedText>;

/// Exports of steps by name, as texts.
pub type Exports = Arc<IndexMap<String, String>>;

/// The effective environment at one place of a job. Layers from lowest to highest: base, request, exports, frames. A copy
/// shares all layers, so that each list of steps can have its own.
#[derive(Clone)]
pub struct Environment {
    /// Layers 1 and 2.
    base: Arc<Vec<(Vec<u8>, Vec<u8>)>>,
    /// Layer 3.
    request: Arc<IndexMap<String, String>>,
    /// Layer 4. Later exports replace earlier ones.
    exports: Exports,
    /// Names of masked job variables: sensitive in layers 3 and 4. Frames carry marks of their own.
    masked: Arc<HashSet<String>>,
    /// Layer 5 and above, outermost frame first.
    frames: Vec<Arc<EnvironmentFrame>>,
}

impl Environment {
    /// Makes the environment before the first step: layers 1 and 2 are `base` (bytes, because the daemon's own need not
    /// be UTF-8), layer 3 is `request`.
    pub fn new(base: Arc<Vec<(Vec<u8>, Vec<u8>)>>, request: IndexMap<String, String>) -> Self {
        Self {
            base,
            request: Arc::new(request),
            exports: Exports::default(),
            masked: Arc::default(),
            frames: Vec::new(),
        }
    }

    /// Sets the names of the masked job variables. Their values are sensitive here too (language.md §11.5).
    #[must_use]
    pub fn masking(self, masked: HashSet<String>) -> Self {
        Self { masked: Arc::new(masked), ..self }
    }

    /// Returns the same layers with other exports.
    #[must_use]
    pub fn with_exports(self, exports: Exports) -> Self {
        Self { exports, ..self }
    }

    /// Adds a frame: the `env` of a step, or that of the definition it invokes.
    #[must_use]
    pub fn within(mut self, frame: EnvironmentFrame) -> Self {
        if !frame.is_empty() {
            self.frames.push(Arc::new(frame));
        }
        self
    }

    /// Returns the value of a variable. Replaces bytes of the daemon's environment that are not UTF-8.
    pub fn get(&self, name: &str) -> Option<Value> {
        if let Some(text) = self.frames.iter().rev().find_map(|frame| frame.get(name)) {
            return Some(Value::from(text.clone()));
        }
        if let Some(text) = self.exports.get(name).or_else(|| self.request.get(name)) {
            return Some(Value { data: Data::String(text.clone()), sensitive: self.masked.contains(name) });
        }
        self.base
            .iter()
            .rev()
            .find(|(key, _)| key == name.as_bytes())
            .map(|(_, value)| Value::text(String::from_utf8_lossy(value)))
    }

    /// Returns the layers above the base, each name once, as results show them (language.md §16).
    pub fn above_base(&self) -> IndexMap<String, String> {
        let mut merged = (*self.request).clone();
        merged.extend(self.exports.iter().map(|(key, value)| (key.clone(), value.clone())));
        for frame in &self.frames {
            merged.extend(frame.iter().map(|(key, value)| (key.clone(), value.text.clone())));
        }
        merged
    }

    /// Subtracts the size of the layers above the base from `left` bytes. Returns `None` if they exceed it.
    pub fn take_from(&self, left: usize) -> Option<usize> {
        const ENTRY: usize = 64;
        let texts = self.request.iter().chain(self.exports.iter());
        let left =
            texts.map(|(key, text)| key.len() + text.len() + ENTRY).try_fold(left, usize::checked_sub)?;
        let frames = self.frames.iter().flat_map(|frame| frame.iter());
        frames.map(|(key, text)| key.len() + text.text.len() + ENTRY).try_fold(left, usize::checked_sub)
    }

    /// Returns all variables for a process, each name once.
    pub fn to_process(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut merged: IndexMap<&[u8], &[u8]> =
            IndexMap::with_capacity(self.base.len() + self.request.len());
        merged.extend(self.base.iter().map(|(key, value)| (key.as_slice(), value.as_slice())));
        for layer in [&self.request, &self.exports] {
            merged.extend(layer.iter().map(|(key, value)| (key.as_bytes(), value.as_bytes())));
        }
        for frame in &self.frames {
            merged.extend(frame.iter().map(|(key, value)| (key.as_bytes(), value.text.as_bytes())));
        }
        merged.into_iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
    }

    /// Gives `entries`, the variables of a process, the place where it starts: `PWD` is `work_dir`, and `OLDPWD` is not
    /// set. An `env` of a step or of a definition that sets one of them counts.
    #[must_use]
    pub fn placed(&self, mut entries: Vec<(Vec<u8>, Vec<u8>)>, work_dir: &str) -> Vec<(Vec<u8>, Vec<u8>)> {
        let meant = |name: &str| self.frames.iter().rev().find_map(|frame| frame.get(name));
        entries.retain(|(key, _)| !PLACES.iter().any(|name| key == name.as_bytes()));
        for name in PLACES {
            let here = (name == "PWD").then_some(work_dir);
            let value = meant(name).map(|text| text.text.as_str()).or(here);
            entries.extend(value.map(|value| (name.as_bytes().to_vec(), value.as_bytes().to_vec())));
        }
        entries
    }

    /// Returns all variables as the object `env` (language.md §10).
    pub(crate) fn to_object(&self) -> IndexMap<String, Value> {
        self.names()
            .into_iter()
            .filter_map(|name| self.get(&name).map(|value| (name.into_owned(), value)))
            .collect()
    }

    /// Returns all names, each once.
    pub(crate) fn names(&self) -> Vec<Cow<'_, str>> {
        let mut names: IndexMap<Cow<'_, str>, ()> = IndexMap::new();
        names.extend(self.base.iter().map(|(key, _)| (String::from_utf8_lossy(key), ())));
        names.extend(self.request.keys().chain(self.exports.keys()).map(|key| (Cow::from(key), ())));
        names.extend(self.frames.iter().flat_map(|frame| frame.keys()).map(|key| (Cow::from(key), ())));
        names.into_keys().collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn texts(pairs: &[(&str, &str)]) -> IndexMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn frame(pairs: &[(&str, &str)]) -> EnvironmentFrame {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), EvaluatedText::plain(*value))).collect()
    }

    fn base(pairs: &[(&str, &str)]) -> Arc<Vec<(Vec<u8>, Vec<u8>)>> {
        Arc::new(
            pairs.iter().map(|(key, value)| (key.as_bytes().to_vec(), value.as_bytes().to_vec())).collect(),
        )
    }

    fn shown(environment: &Environment) -> String {
        let mut pairs: Vec<String> = environment
            .to_process()
            .into_iter()
            .map(|(key, value)| {
                format!("{}={}", String::from_utf8(key).unwrap(), String::from_utf8(value).unwrap())
            })
            .collect();
        pairs.sort();
        pairs.join(" ")
    }

    fn text(environment: &Environment, name: &str) -> Option<String> {
        environment.get(name).map(|value| super::super::convert::to_text(&value))
    }

    /// The worked example of language.md §13.
    #[test]
    fn layers_of_the_worked_example() {
        let job =
            Environment::new(base(&[("A", "d"), ("B", "d"), ("C", "d")]), texts(&[("B", "r"), ("C", "r")]));
        let r = text(&job, "B").unwrap();
        let list = job.within(frame(&[("R", &r)]));
        let list = list.with_exports(Arc::new(texts(&[("C", "x"), ("D", "x")]))); // of step one

        let c = format!("s-{}", text(&list, "C").unwrap());
        let two = list.clone().within(frame(&[("C", &c), ("E", "s")]));
        assert_eq!(shown(&two.within(frame(&[("E", "f")]))), "A=d B=r C=s-x D=x E=f R=r");

        let three = list.clone().within(frame(&[]));
        assert_eq!(shown(&three.within(frame(&[("E", "f")]))), "A=d B=r C=x D=x E=f R=r");
        assert_eq!(text(&list, "E"), None);
    }

    #[test]
    fn an_export_hidden_by_a_frame_shows_outside_of_it() {
        let exports = Arc::new(texts(&[("A", "export")]));
        let outside = Environment::new(base(&[]), IndexMap::new()).with_exports(exports);
        assert_eq!(text(&outside.clone().within(frame(&[("A", "frame")])), "A").as_deref(), Some("frame"));
        assert_eq!(text(&outside, "A").as_deref(), Some("export"));
    }

    #[test]
    fn an_empty_text_is_a_set_variable() {
        let environment = Environment::new(base(&[("A", "d")]), texts(&[("A", "")]));
        assert_eq!(text(&environment, "A").as_deref(), Some(""));
        assert_eq!(shown(&environment), "A=");
    }

    #[test]
    fn bytes_of_the_daemon_reach_the_process_unchanged() {
        let environment =
            Environment::new(Arc::new(vec![(b"A".to_vec(), b"\xff".to_vec())]), IndexMap::new());
        assert_eq!(environment.to_process(), [(b"A".to_vec(), b"\xff".to_vec())]);
        assert_eq!(text(&environment, "A").as_deref(), Some("\u{fffd}"));
    }

    #[test]
    fn marks_of_a_frame_reach_the_env_object() {
        let marked = EvaluatedText { text: "x".to_owned(), sensitive: true };
        let environment = Environment::new(base(&[]), IndexMap::new())
            .within(EnvironmentFrame::from([("A".to_owned(), marked)]));
        assert!(environment.to_object()["A"].sensitive);
    }

    #[test]
    fn a_masked_name_is_sensitive_whether_the_request_or_a_step_sets_it() {
        let request = texts(&[("T", "secret"), ("U", "open")]);
        let environment = Environment::new(base(&[("B", "d")]), request)
            .masking(HashSet::from(["T".to_owned(), "B".to_owned()]));
        let marks = |environment: &Environment| {
            let object = environment.to_object();
            ["T", "U", "B"].map(|name| {
                let value = environment.get(name).unwrap();
                assert_eq!(object[name].sensitive, value.sensitive, "{name}");
                value.sensitive
            })
        };
        assert_eq!(marks(&environment), [true, false, false], "the daemon's own is no job variable");
        let environment = environment.with_exports(Arc::new(texts(&[("T", "another"), ("U", "x")])));
        assert_eq!(marks(&environment), [true, false, false]);
        let environment = environment.within(frame(&[("T", "plain")]));
        assert_eq!(marks(&environment), [false, false, false], "a frame says itself what is sensitive");
    }

    fn layer_strategy() -> impl Strategy<Value = Vec<(String, String)>> {
        prop::collection::vec(("[A-C]", "[x-z]?"), 0..3)
    }

    proptest! {
        /// The model: the value of a name is that of the highest layer that sets it.
        #[test]
        fn a_name_has_the_value_of_the_highest_layer_that_sets_it(
            bottom in layer_strategy(),
            request in layer_strategy(),
            exports in layer_strategy(),
            frames in prop::collection::vec(layer_strategy(), 0..4),
        ) {
            let bytes = |(key, value): &(String, String)| (key.clone().into_bytes(), value.clone().into_bytes());
            let bottom_layer = Arc::new(bottom.iter().map(bytes).collect());
            let mut environment = Environment::new(bottom_layer, request.iter().cloned().collect())
                .with_exports(Arc::new(exports.iter().cloned().collect()));
            for layer in &frames {
                let pair = |(key, value): &(String, String)| (key.clone(), EvaluatedText::plain(value.as_str()));
                environment = environment.within(layer.iter().map(pair).collect());
            }
            let layers: Vec<&Vec<(String, String)>> =
                [&bottom, &request, &exports].into_iter().chain(&frames).collect();
            let process = environment.to_process();
            let above: IndexMap<String, String> = environment.above_base();
            for name in ["A", "B", "C"] {
                let last = |layers: &[&Vec<(String, String)>]| {
                    let mut set = layers.iter().flat_map(|layer| layer.iter()).filter(|(key, _)| key == name);
                    set.next_back().map(|(_, value)| value.clone())
                };
                let expected = last(&layers);
                prop_assert_eq!(text(&environment, name), expected.clone());
                let passed: Vec<_> = process.iter().filter(|(key, _)| key == name.as_bytes()).collect();
                prop_assert_eq!(passed.len(), usize::from(expected.is_some()), "each name once");
                prop_assert_eq!(passed.first().map(|(_, value)| value.clone()), expected.clone().map(String::into_bytes));
                prop_assert_eq!(environment.to_object().get(name).map(super::super::convert::to_text), expected);
                prop_assert_eq!(above.get(name).cloned(), last(&layers[1..]));
            }
        }
    }
}
