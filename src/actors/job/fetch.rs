//! Finding functions in the job's environment. Fetching from repositories joins here.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::job::event::{FetchFailure, Fetched};
use crate::lang::ast::Reference;
use crate::lang::diagnostic::Class;

/// Largest definition file in bytes (language.md §6).
const MAX_FILE: u64 = 1 << 20;

/// Finds what `reference` refers to, on a thread that may block.
pub(super) async fn fetch(reference: Reference, inside: Option<String>) -> Result<Fetched, FetchFailure> {
    match reference {
        Reference::Local { path, files } => {
            let found = tokio::task::spawn_blocking(move || local(&path, &files, inside.as_deref()));
            found.await.unwrap_or_else(|e| Err(failure(Class::Fetch, format!("the look-up broke off: {e}"))))
        }
        Reference::Git { .. } => Err(unsupported("Git")),
        Reference::Oci { .. } => Err(unsupported("OCI")),
        Reference::Builtin { name, .. } => {
            Err(failure(Class::NotFound, format!("no builtin is called {name:?}")))
        }
        Reference::Dynamic(_) => Err(failure(Class::Fetch, "the reference was not evaluated".into())),
    }
}

fn unsupported(place: &str) -> FetchFailure {
    let text = format!(
        "functions cannot be fetched from {place} by this version: copy the function into the project"
    );
    failure(Class::Fetch, text)
}

const fn failure(class: Class, message: String) -> FetchFailure {
    FetchFailure { class, message }
}

/// Reads the first of `files` that is in the folder `dir`.
fn local(dir: &str, files: &[String], inside: Option<&str>) -> Result<Fetched, FetchFailure> {
    for name in files {
        let path = Path::new(dir).join(name);
        match read(&path, inside) {
            Ok(Some(text)) => {
                let path = path.to_string_lossy().into_owned();
                return Ok(Fetched { dir: dir.to_owned(), path, text, tree: inside.map(str::to_owned) });
            }
            Ok(None) => {}
            Err(failure) => return Err(failure),
        }
    }
    Err(failure(Class::NotFound, format!("no {} in {dir}", files.join(" or "))))
}

/// Text of a file; `None` if there is none.
fn read(path: &Path, inside: Option<&str>) -> Result<Option<String>, FetchFailure> {
    let shown = path.display();
    let io = |e: std::io::Error| failure(Class::NotFound, format!("cannot read {shown}: {e}"));
    // Not blocking: a FIFO in the way must not hold the job up.
    let file = match File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC).open(path) {
        Ok(file) => file,
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
        Err(e) => return Err(io(e)),
    };
    if let Some(tree) = inside {
        let real = path.canonicalize().map_err(io)?;
        if !real.starts_with(tree) {
            return Err(failure(Class::Fetch, format!("{shown} leaves the tree it was fetched with")));
        }
    }
    let metadata = file.metadata().map_err(io)?;
    if !metadata.is_file() {
        return Err(failure(Class::NotFound, format!("{shown} is not a regular file")));
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(failure(Class::Limit, format!("{shown} is larger than {MAX_FILE} bytes")));
    }
    String::from_utf8(bytes).map(Some).map_err(|_| failure(Class::Yaml, format!("{shown} is not UTF-8")))
}
