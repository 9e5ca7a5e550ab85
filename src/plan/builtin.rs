//! Functions that ship with the program (language.md §17).

use std::sync::{Arc, LazyLock};

use crate::lang::diagnostic::Class;
use crate::model::ReferenceInfo;

use super::library::Loaded;

/// Longest script that is passed as an argument: Linux allows 128 KiB with the NUL at its end.
pub const LONGEST_ARGUMENT: usize = 128 * 1024 - 1;

/// All names known here, in the order in which messages list them.
const NAMES: [&str; 1] = ["script"];

/// Interface of `script`; its body is the machine's, the one here is never run.
static SCRIPT: LazyLock<Option<Arc<Loaded>>> = LazyLock::new(|| {
    let text = "spec:\n  inputs:\n    script: {type: string}\n---\nexec: {command: [script]}\n";
    Loaded::file("builtin://script", text).ok().map(Arc::new)
});

/// The builtin `name`, or what is wrong with it.
pub fn find(name: &str) -> Result<Arc<Loaded>, (Class, String)> {
    if name == "script"
        && let Some(loaded) = &*SCRIPT
    {
        return Ok(Arc::clone(loaded));
    }
    let known = NAMES.join(", ");
    Err((Class::NotFound, format!("builtin \"{}\" was not found; known: {known}", name.escape_debug())))
}

/// How results show a builtin.
pub fn info(name: &str) -> ReferenceInfo {
    ReferenceInfo {
        protocol: "dist".to_owned(),
        path: name.split('/').map(str::to_owned).collect(),
        ..ReferenceInfo::default()
    }
}
