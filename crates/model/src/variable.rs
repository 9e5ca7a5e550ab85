//! A job variable of a request.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A variable of a job (service.md §2). `Debug` hides its value, which may be a secret.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Variable {
    /// Name.
    pub key: String,
    /// Value, or content of the file.
    pub value: String,
    /// True if the value is written to a file and the variable holds its path (variables.md §3).
    pub file: bool,
    /// True if the value becomes a phrase to mask (variables.md §5).
    pub masked: bool,
}

/// Doubles every `$`, so that expansion returns `text`. For clients whose values are expanded already or must stay raw
/// (variables.md §1).
pub fn escape(text: &str) -> String {
    text.replace('$', "$$")
}

impl fmt::Debug for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Variable")
            .field("key", &self.key)
            .field("value", &format_args!("[{} bytes]", self.value.len()))
            .field("file", &self.file)
            .field("masked", &self.masked)
            .finish()
    }
}
