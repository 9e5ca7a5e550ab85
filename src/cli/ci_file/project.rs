//! The project of a CI file: its root, its files, and what git knows about it.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::{CI_FILE, OfFile, facts};
use crate::builtin::ci::store::FOLDER;
use crate::ci::variables::Facts;
use crate::ci::{Files, ReadError};
use crate::cli::findings;
use crate::error::{Exit, Failure};
use crate::lang::diagnostic::Diagnostic;
use crate::lang::document::REQUEST_LIMIT;
use crate::process::git;

/// Maximum number of files that rules can look at. A work tree with more has its build in it.
const FILES_LIMIT: usize = 1_000_000;

/// Folders that are no part of the work tree.
const LEFT_OUT: [&str; 2] = [".git", FOLDER];

/// A project.
pub(in crate::cli) struct Project {
    /// Root of the git work tree, else the folder of the CI file; absolute, without links.
    root: PathBuf,
    /// Path of the CI file below the root.
    ci_file: String,
}

impl Project {
    /// Finds the project of a CI file, of the one in a folder, or, for `.`, of the one in the root of the work tree.
    pub(in crate::cli) fn of(target: &str) -> Result<Self, Failure> {
        if target == "-" {
            return Err(Failure::new(
                Exit::Usage,
                "a CI file belongs to a project, so it cannot come from stdin",
            )
            .with_remedy("name the file"));
        }
        let path = Path::new(target);
        let (folder, name) = if path.is_dir() {
            (path, CI_FILE.to_owned())
        } else {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            (path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new(".")), name)
        };
        let folder = folder.canonicalize().map_err(|error| refused(target, &error.to_string()))?;
        let root = git::root(&folder).and_then(|root| root.canonicalize().ok());
        let root = root.filter(|root| folder.starts_with(root)).unwrap_or_else(|| folder.clone());
        let file = if target == "." { root.join(&name) } else { folder.join(&name) };
        if !file.is_file() {
            return Err(Failure::new(Exit::Refused, format!("there is no CI file {}", file.display()))
                .with_remedy("name it behind the options"));
        }
        let below = file.strip_prefix(&root).ok().and_then(Path::to_str);
        let ci_file = below.ok_or_else(|| refused(target, "its path is not UTF-8"))?.to_owned();
        if root.to_str().is_none() {
            return Err(refused(target, "the path of its project is not UTF-8"));
        }
        Ok(Self { root, ci_file })
    }

    pub(in crate::cli) fn root(&self) -> &Path {
        &self.root
    }

    /// Path of the CI file below the root.
    pub(in crate::cli) fn ci_file(&self) -> &str {
        &self.ci_file
    }

    pub(in crate::cli) fn facts(&self) -> Facts {
        Facts {
            commit: facts::commit(&self.root),
            default_branch: Some(facts::default_branch(&self.root)),
            repository: facts::repository(&self.root),
            project_dir: self.root.display().to_string(),
            config_path: self.ci_file.clone(),
            changed: None,
        }
    }

    /// Returns findings by the file that they are in, in the order of the files, each file with its text.
    pub(in crate::cli) fn by_file(&self, findings: &[Diagnostic]) -> Vec<OfFile> {
        let mut files: indexmap::IndexMap<&str, Vec<Diagnostic>> = indexmap::IndexMap::new();
        for finding in findings {
            files.entry(&finding.file).or_default().push(finding.clone());
        }
        let with_text = |(file, mut findings): (&str, Vec<Diagnostic>)| {
            findings.sort_by_key(|finding| finding.at);
            (findings, self.read(file).ok())
        };
        files.into_iter().map(with_text).collect()
    }

    /// Shows findings, and returns the failure.
    pub(in crate::cli) fn refused(&self, findings: &[Diagnostic]) -> Failure {
        let files = self.by_file(findings);
        let files: Vec<(&[Diagnostic], Option<&str>)> =
            files.iter().map(|(findings, text)| (findings.as_slice(), text.as_deref())).collect();
        findings::refused(&files)
    }
}

fn refused(target: &str, why: &str) -> Failure {
    Failure::new(Exit::Refused, format!("cannot read {target}: {why}"))
        .with_remedy("name a CI file, or a folder that holds one")
}

impl Files for Project {
    fn read(&self, path: &str) -> Result<String, ReadError> {
        let failed = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => ReadError::NotFound,
            _ => ReadError::Failed(error.to_string()),
        };
        let real = self.root.join(path).canonicalize().map_err(failed)?;
        if !real.starts_with(&self.root) {
            return Err(ReadError::Outside);
        }
        if !real.is_file() {
            return Err(ReadError::Failed("it is no file".to_owned()));
        }
        let mut bytes = Vec::new();
        let opened = File::open(real).map_err(failed)?;
        opened.take(REQUEST_LIMIT as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() > REQUEST_LIMIT {
            return Err(ReadError::Failed(format!("it is longer than {} MiB", REQUEST_LIMIT >> 20)));
        }
        String::from_utf8(bytes).map_err(|_| ReadError::Failed("it is not UTF-8".to_owned()))
    }

    fn list(&self) -> Result<Vec<String>, ReadError> {
        let mut found = Vec::new();
        let mut folders = vec![String::new()];
        while let Some(folder) = folders.pop() {
            // A folder that is gone or cannot be read has no files for rules.
            for entry in std::fs::read_dir(self.root.join(&folder)).into_iter().flatten().flatten() {
                let Ok(name) = entry.file_name().into_string() else { continue };
                let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
                if LEFT_OUT.contains(&path.as_str()) {
                    continue;
                }
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    folders.push(path);
                } else {
                    found.push(path);
                }
            }
            if found.len() > FILES_LIMIT {
                return Err(ReadError::Failed(format!("there are more than {FILES_LIMIT} files")));
            }
        }
        found.sort_unstable();
        Ok(found)
    }
}
