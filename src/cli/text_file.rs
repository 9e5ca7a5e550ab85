//! Reads the text of a file that an option names.

use std::io::Read as _;

use crate::error::{Exit, Failure};
use crate::variables::MAX_TOTAL;

/// Reads a text for `option`. Errors do not add the path: for an option with a secret, the text itself may stand in its
/// place (masking.md §7).
pub(super) fn read_text(path: &std::path::Path, option: &str) -> Result<String, Failure> {
    let unusable = |what: &str| Failure::new(Exit::Usage, format!("{option}: {what}"));
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(MAX_TOTAL as u64 + 1).read_to_end(&mut bytes))
        .map_err(|error| unusable(&format!("the file cannot be read: {error}")))?;
    if bytes.len() > MAX_TOTAL {
        return Err(unusable(&format!("the file is longer than {} MiB", MAX_TOTAL >> 20)));
    }
    String::from_utf8(bytes).map_err(|_| unusable("the file is not UTF-8"))
}
