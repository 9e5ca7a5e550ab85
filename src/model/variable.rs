//! A job variable of a request.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One variable of a job (service.md §2). Its value may be a secret, so `Debug` never shows it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Variable {
    /// Name.
    pub key: String,
    /// Value, or the content of the file.
    pub value: String,
    /// The value is written to a file and the variable holds its path (variables.md §3).
    pub file: bool,
    /// The value becomes a phrase of the masking (variables.md §5).
    pub masked: bool,
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
