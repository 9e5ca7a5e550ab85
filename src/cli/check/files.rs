//! Files to check: finding, reading and parsing them.

use std::ffi::OsStr;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::super::findings::not_utf8;
use super::super::made::{is_reference, name_of};
use super::super::misnamed::{misnamed, rename};
use crate::lang::ast::{Function, Reference};
use crate::lang::diagnostic::{Class, Diagnostic, Position};
use crate::lang::document::{self, Checked, REQUEST_LIMIT};
use crate::lang::name;
use crate::lang::reference::DEFINITION_FILES;
use crate::plan::locate;

/// Number of bytes at the start of a file by which a search decides if it includes the file.
const LOOKED_AT: u64 = 64 * 1024;

/// Keys that begin a line of a function file or steps document.
const KEYS: [&str; 8] = ["spec", "exec", "run", "env", "outputs", "delegate", "steps", "description"];

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct CheckedFile {
    /// Its real folder and its name there; empty for stdin.
    pub(super) path: PathBuf,
    /// Its name in findings.
    shown: String,
    /// True if it must be a definition file. Otherwise it may be a steps document, too.
    pub(super) is_definition: bool,
    /// Its text, if that has been read: stdin and pipes can be read only once.
    text: Option<FileText>,
}

pub(super) type FileText = Arc<str>;

/// Result of looking for a local function.
pub(super) enum Called {
    File(CheckedFile),
    Nothing { class: Class, message: String, help: Option<String> },
}

/// Returns the files that an argument means: itself, or those below a folder.
pub(super) fn of_argument(argument: &str) -> Result<Vec<CheckedFile>, Diagnostic> {
    if argument == "-" {
        let shown = "<stdin>".to_owned();
        let mut file = CheckedFile { path: PathBuf::new(), shown, is_definition: false, text: None };
        file.text = Some(file.take(std::io::stdin().lock())?);
        return Ok(vec![file]);
    }
    let path = Path::new(argument);
    let metadata = std::fs::metadata(path).map_err(|error| unreadable(argument, &error))?;
    if metadata.is_dir() {
        let found = search(path).map_err(|error| unreadable(argument, &error))?;
        if found.is_empty() {
            let none = Diagnostic::error(
                Class::NotFound,
                &Arc::from(argument),
                Position::START,
                "no function file or steps document in this folder",
            );
            let help =
                rename(path).unwrap_or_else(|| "name the file itself if it has another form".to_owned());
            return Err(none.with_help(help));
        }
        return Ok(found);
    }
    CheckedFile::at(path, argument.to_owned(), false)
        .map(|file| vec![file])
        .map_err(|error| unreadable(argument, &error))
}

fn unreadable(shown: &str, error: &std::io::Error) -> Diagnostic {
    let class = if error.kind() == std::io::ErrorKind::NotFound { Class::NotFound } else { Class::Io };
    // People give references, too, which may hold a password.
    let shown = if is_reference(shown) { name_of(shown) } else { shown.to_owned() };
    Diagnostic::error(class, &Arc::from(shown), Position::START, format!("cannot read it: {error}"))
}

/// Returns all function files and steps documents below a folder, in order of their names. Links to folders are not
/// followed.
fn search(folder: &Path) -> std::io::Result<Vec<CheckedFile>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let mut entries: Vec<_> = match std::fs::read_dir(&folder) {
            Ok(entries) => entries.collect::<Result<_, _>>()?,
            // Only the folder that was named has to be readable.
            Err(_) if !found.is_empty() || !folders.is_empty() => continue,
            Err(error) => return Err(error),
        };
        entries.sort_by_key(std::fs::DirEntry::file_name);
        let mut inside = Vec::new();
        for entry in entries {
            let (path, kind) = (entry.path(), entry.file_type()?);
            if entry.file_name().as_encoded_bytes().starts_with(b".") {
                continue;
            }
            if kind.is_dir() {
                inside.push(path);
            } else if path.extension() == Some(OsStr::new("yml")) && path.is_file() && is_ours(&path) {
                let shown = path.strip_prefix(".").unwrap_or(&path).display().to_string();
                found.push(CheckedFile::at(&path, shown, false)?);
            }
        }
        folders.extend(inside.into_iter().rev());
    }
    Ok(found)
}

/// True if a file is a function file by its name, or looks like one or like a steps document.
fn is_ours(path: &Path) -> bool {
    if is_definition_name(path) {
        return true;
    }
    let mut start = Vec::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(LOOKED_AT).read_to_end(&mut start));
    read.is_ok() && looks_like_ours(&String::from_utf8_lossy(&start))
}

fn is_definition_name(path: &Path) -> bool {
    DEFINITION_FILES.iter().any(|name| path.file_name() == Some(OsStr::new(name)))
}

/// True if a text seems to be meant as a function file or steps document, even if it is broken. A single document must
/// have no other keys than theirs, because pipelines and manifests share some of them.
fn looks_like_ours(text: &str) -> bool {
    let mut documents = vec![Vec::new()];
    for line in text.lines() {
        // A byte order mark may stand before each document (language.md §2).
        let line = line.trim_start_matches('\u{feff}');
        if line.starts_with("---") {
            documents.push(Vec::new());
        } else if let (Some(last), false) =
            (documents.last_mut(), line.trim().is_empty() || line.starts_with('#'))
        {
            last.push(line);
        }
    }
    documents.retain(|lines| !lines.is_empty());
    let keys = |lines: &[&str]| -> Vec<String> {
        let key = |line: &&str| line.split_once(':').map(|(key, _)| key.trim().to_owned());
        lines
            .iter()
            .filter(|line| !line.starts_with([' ', '\t', '-', '}', ']', '[', '{']))
            .filter_map(key)
            .collect()
    };
    let similar = |key: &String| KEYS.contains(&key.as_str()) || name::suggest(key, KEYS).is_some();
    let is_list = |lines: &[&str]| {
        lines.first().is_some_and(|first| first.starts_with(['-', '[']))
            && ["name", "func", "step", "script"].iter().any(|key| {
                lines.concat().contains(&format!("{key}:")) || lines.concat().contains(&format!("\"{key}\""))
            })
    };
    match documents.as_slice() {
        [] => false,
        [only] => is_list(only) || (!keys(only).is_empty() && keys(only).iter().all(similar)),
        [spec, definition, ..] => {
            let (first, second) = (keys(spec), keys(definition));
            (first.is_empty() || first.iter().any(|key| key == "spec"))
                && (is_list(definition) || second.is_empty() || second.iter().any(similar))
        }
    }
}

impl CheckedFile {
    fn at(path: &Path, shown: String, is_definition: bool) -> std::io::Result<Self> {
        let name = path.file_name().unwrap_or_default();
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // The real path of the folder tells files apart. A link to a file counts as a file in the folder of the link.
        let path = folder.canonicalize()?.join(name);
        let is_definition = is_definition || is_definition_name(&path);
        Ok(Self { path, shown, is_definition, text: None })
    }

    pub(super) fn with_text(path: &Path, shown: &str, text: &str) -> std::io::Result<Self> {
        Ok(Self { text: Some(Arc::from(text)), ..Self::at(path, shown.to_owned(), false)? })
    }

    pub(super) fn read(&self) -> Result<FileText, Diagnostic> {
        match &self.text {
            Some(text) => Ok(Arc::clone(text)),
            None => match std::fs::File::open(&self.path) {
                Ok(file) => self.take(file),
                Err(error) => Err(unreadable(&self.shown, &error)),
            },
        }
    }

    /// Reads a text up to the limit of a request. A longer one is refused when it is parsed.
    fn take(&self, source: impl std::io::Read) -> Result<FileText, Diagnostic> {
        let mut bytes = Vec::new();
        let read = source.take(REQUEST_LIMIT as u64 + 1).read_to_end(&mut bytes);
        read.map_err(|error| unreadable(&self.shown, &error))?;
        match String::from_utf8(bytes) {
            Ok(text) => Ok(Arc::from(text)),
            // The limit may have cut a character.
            Err(error) if error.as_bytes().len() > REQUEST_LIMIT => {
                Ok(String::from_utf8_lossy(error.as_bytes()).into())
            }
            Err(error) => Err(not_utf8(&self.shown, &error)),
        }
    }

    /// Checks the text as a function or as a request.
    pub(super) fn parse(&self, text: &FileText) -> Checked {
        if self.is_definition {
            document::check_function(text, &self.shown)
        } else {
            document::check_request(text, &self.shown)
        }
    }

    /// Returns a warning if a file beside this one has almost the name of a definition file, and so is never read.
    pub(super) fn misnamed_beside(&self) -> Option<Diagnostic> {
        let folder = self.path.parent().filter(|_| is_definition_name(&self.path))?;
        let (found, _) = misnamed(folder)?;
        let file = Arc::from(self.shown.as_str());
        let message = format!("{found} is in the same folder and is never read");
        let help = format!("move what you need from {found} into this file, then remove {found}");
        Some(Diagnostic::warning(Class::Name, &file, Position::START, message).with_help(help))
    }

    /// Parses the text as a run does, which is less strict than a check.
    pub(super) fn parse_to_run(&self, text: &FileText) -> Result<Function, Vec<Diagnostic>> {
        if self.is_definition {
            document::parse_function(text, &self.shown)
        } else {
            document::parse_request(text, &self.shown)
        }
    }

    /// Finds the function that a local reference in this file means (language.md §7.1).
    pub(super) fn called(&self, reference: &Reference) -> Called {
        let Reference::Local { path, files } = reference else {
            let message = "not a local reference".to_owned();
            return Called::Nothing { class: Class::NotFound, message, help: None };
        };
        let base =
            self.path.parent().map_or_else(|| std::env::current_dir().unwrap_or_default(), Path::to_owned);
        let folder = PathBuf::from(locate::absolute(&base.to_string_lossy(), path));
        let mut found = None;
        for file in files.iter().map(|name| folder.join(name)) {
            match file.try_exists() {
                Ok(false) => {}
                // The path names a file as if it were a folder.
                Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => {}
                Ok(true) => {
                    found = Some(file);
                    break;
                }
                Err(error) => {
                    let message = format!("cannot look for {} in {path}: {error}", files.join(" or "));
                    return Called::Nothing { class: Class::Io, message, help: None };
                }
            }
        }
        match found {
            Some(file) if file.is_file() => match Self::at(&file, shown(&file), true) {
                Ok(file) => Called::File(file),
                Err(error) => {
                    let message = format!("cannot read the function: {error}");
                    Called::Nothing { class: Class::Io, message, help: None }
                }
            },
            Some(_) => Called::Nothing {
                class: Class::NotFound,
                message: "the definition file is not a regular file".to_owned(),
                help: None,
            },
            None => Called::Nothing {
                class: Class::NotFound,
                message: format!("no {} in {path}", files.join(" or ")),
                help: instead(&folder, files),
            },
        }
    }
}

/// Returns a path as findings show it: relative to the current folder if it is below that.
fn shown(path: &Path) -> String {
    let real = path.parent().and_then(|folder| folder.canonicalize().ok());
    let real = real.zip(path.file_name()).map_or_else(|| path.to_owned(), |(folder, name)| folder.join(name));
    let here = std::env::current_dir().and_then(|folder| folder.canonicalize()).unwrap_or_default();
    real.strip_prefix(here).unwrap_or(&real).display().to_string()
}

/// Returns a hint on what may have been meant instead of `files` in `folder`.
fn instead(folder: &Path, files: &[String]) -> Option<String> {
    if folder.is_file() {
        return Some("a function file has a name that ends in .yml: rename it".to_owned());
    }
    if let Some(help) = rename(folder) {
        return Some(help);
    }
    let names = |folder: &Path| -> Vec<String> {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let mut names: Vec<_> =
            entries.take(1_000).filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort_unstable();
        names
    };
    if folder.is_dir() {
        let here = names(folder);
        let similar = files.iter().find_map(|file| name::suggest(file, here.iter().map(String::as_str)));
        return similar.map(|similar| format!("there is a \"{similar}\""));
    }
    let siblings = names(folder.parent()?);
    let similar = name::suggest(folder.file_name()?.to_str()?, siblings.iter().map(String::as_str));
    Some(similar.map_or_else(
        || "there is no such folder".to_owned(),
        |similar| format!("there is no such folder; did you mean \"{similar}\"?"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn function_files_and_steps_documents_are_told_from_other_files() {
        for text in [
            "spec: {}\n---\nexec: {command: [x]}\n",
            "{}\n---\nrun: []\n",
            "# a\n---\nspec:\n---\n# b\nexce: {}\n",
            "spec:\n  inputs:\n    a: {type: string}\n",
            "- name: a\n  script: b\n",
            "[{\"name\": \"a\", \"script\": \"b\"}]",
            "run:\n  - {name: a, script: b}\nenv: {}\n",
            "\u{feff}- name: a\n  script: b\n",
            "\u{feff}spec: {}\n\u{feff}---\nrun: []\n",
        ] {
            assert!(looks_like_ours(text), "{text}");
        }
        for text in [
            "",
            "stages: [a]\nbuild:\n  script: x\n",
            "spec:\n  inputs: {}\n---\nbuild:\n  script: x\n",
            "apiVersion: v1\nkind: Pod\nspec: {}\n",
            "- one\n- two\n",
            "services:\n  db: {image: x}\n",
        ] {
            assert!(!looks_like_ours(text), "{text}");
        }
    }
}
