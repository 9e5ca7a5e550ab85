//! Functions that a job has read, each text once. A job that calls one function a thousand times keeps one tree and one
//! copy for its results (language.md §16).

use std::sync::{Arc, OnceLock};

use indexmap::IndexMap;
use serde_json::Value as Json;
use sha2::{Digest, Sha256};
use step_runner_lang::ast::Function;
use step_runner_lang::diagnostic::Diagnostic;
use step_runner_lang::document;

use super::definition;

/// Maximum number of functions kept. Beyond that, the one read first is dropped, and read again at its next call.
const KEPT: usize = 64;
/// Largest size of the functions kept, together ([`Loaded::size`]). Their trees take much more memory.
const KEPT_SIZE: usize = 4 * 1024 * 1024;

/// Size of a value without its text ([`Loaded::size`]).
const VALUE_SIZE: usize = 64;

/// Deepest definition kept as text. The JSON reader's own limit is 128.
const DEEPEST_TEXT: usize = 100;

/// A function and its definition for results.
pub struct Loaded {
    /// Syntax tree.
    pub(crate) function: Function,
    /// The definition as JSON text, or empty if `definition` holds it from the start. A tree takes some twenty times as
    /// much memory and is needed only at the end.
    written: Box<str>,
    definition: OnceLock<Arc<Json>>,
    size: usize,
}

impl Loaded {
    /// Reads the document of a request. `file` is its name in messages (service.md §3.1).
    pub(crate) fn request(text: &str, file: Option<&str>) -> Result<Self, Vec<Diagnostic>> {
        let function = document::parse_request(text, file.unwrap_or_default())?;
        Ok(Self::new(function, definition::of_request(text), text.len()))
    }

    /// Reads a definition file.
    pub(crate) fn file(path: &str, text: &str) -> Result<Self, Vec<Diagnostic>> {
        let function = document::parse_function(text, path)?;
        Ok(Self::new(function, definition::of_file(text), text.len()))
    }

    fn new(function: Function, definition: Json, text_len: usize) -> Self {
        let written = definition.to_string();
        let size = text_len.max(size(&definition));
        if depth(&definition) > DEEPEST_TEXT {
            return Self {
                function,
                written: Box::default(),
                definition: OnceLock::from(Arc::new(definition)),
                size,
            };
        }
        Self { function, written: written.into(), definition: OnceLock::new(), size }
    }

    /// Returns the length of the text it was read from, in bytes, or more: its values with aliases unfolded.
    pub(crate) const fn size(&self) -> usize {
        self.size
    }

    /// Returns interface and implementation as read: `{"spec": …, "definition": …}`. All results share one copy.
    pub(crate) fn definition(&self) -> Arc<Json> {
        Arc::clone(
            self.definition.get_or_init(|| Arc::new(serde_json::from_str(&self.written).unwrap_or_default())),
        )
    }
}

/// Returns the nesting of a value. The language bounds it (language.md §6), so recursion is safe.
fn depth(value: &Json) -> usize {
    match value {
        Json::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Json::Object(members) => 1 + members.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// Returns the size of a value in bytes, in the time of whose copy as much text is copied.
fn size(value: &Json) -> usize {
    VALUE_SIZE
        + match value {
            Json::String(text) => text.len(),
            Json::Array(items) => items.iter().map(size).sum(),
            Json::Object(members) => members.iter().map(|(name, member)| name.len() + size(member)).sum(),
            Json::Null | Json::Bool(_) | Json::Number(_) => 0,
        }
}

/// The functions of one job.
#[derive(Default)]
pub(crate) struct Library {
    files: IndexMap<[u8; 32], Arc<Loaded>>,
}

impl Library {
    /// Returns the function in `text`, found at `path`, and true if it was just read: its warnings are shown once.
    pub(crate) fn load(&mut self, path: &str, text: &str) -> Result<(Arc<Loaded>, bool), Vec<Diagnostic>> {
        let key = Sha256::new().chain_update(path).chain_update([0]).chain_update(text).finalize().into();
        if let Some(known) = self.files.get(&key) {
            return Ok((Arc::clone(known), false));
        }
        let loaded = Arc::new(Loaded::file(path, text)?);
        self.files.insert(key, Arc::clone(&loaded));
        while self.files.len() > KEPT || self.kept_size() > KEPT_SIZE {
            self.files.shift_remove_index(0);
        }
        Ok((loaded, true))
    }

    fn kept_size(&self) -> usize {
        self.files.values().map(|loaded| loaded.size).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_text_at_one_place_is_read_once() {
        let text = "{}\n---\nexec: {command: [x]}\n";
        let mut library = Library::default();
        let (first, fresh) = library.load("/a/func.yml", text).unwrap();
        assert!(fresh);
        let (again, fresh) = library.load("/a/func.yml", text).unwrap();
        assert!(!fresh && Arc::ptr_eq(&first, &again));
        assert!(library.load("/b/func.yml", text).unwrap().1);
        assert!(library.load("/a/func.yml", &text.replace("[x]", "[y]")).unwrap().1);
    }

    #[test]
    fn a_library_is_bounded() {
        let mut library = Library::default();
        for file in 0..3 * KEPT {
            library.load(&format!("/{file}/func.yml"), "{}\n---\nexec: {command: [x]}\n").unwrap();
        }
        assert_eq!(library.files.len(), KEPT);
    }

    #[test]
    fn a_deep_definition_is_shown_whole() {
        let deep = format!("{}1{}", "[".repeat(115), "]".repeat(115));
        let text = format!("{{}}\n---\nrun: [{{name: a, func: ./x, inputs: {{v: {deep}}}}}]\n");
        let loaded = Loaded::file("/a/func.yml", &text).unwrap();
        let shown = &loaded.definition()["definition"]["run"][0]["inputs"]["v"];
        assert_eq!(shown.to_string(), deep);
    }
}
