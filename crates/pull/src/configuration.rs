//! The configuration on disk: read whole, changed under a lock, replaced by renaming (agent.md §11.2).

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use super::check;
use super::folder::replace;
use super::place::make_folder;
use step_runner_agent::config::edit::EditError;
use step_runner_agent::config::{Config, ConfigErrors, Entry, Mistake};
use step_runner_model::error::{Exit, Failure};
use step_runner_store::{Lock, LockError};
use step_runner_system::files::operators::read_text;

/// Longest file.
const LONGEST: u64 = 16 << 20;

/// Bits of a mode by which others may read a file.
const OF_OTHERS: u32 = 0o077;

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigFailure {
    /// There is no file.
    #[error("there is no configuration {}", .0.display())]
    Missing(PathBuf),
    /// It cannot be read or written.
    #[error("cannot use the configuration {}", .0.display())]
    File(PathBuf, #[source] io::Error),
    /// It has mistakes.
    #[error("{0}")]
    Mistakes(#[from] ConfigErrors),
    /// It cannot be changed as wanted.
    #[error("cannot change the configuration {}", .0.display())]
    Edit(PathBuf, #[source] EditError),
    /// It has no entry.
    #[error("the configuration {} has no [[runners]]", .0.display())]
    NoEntry(PathBuf),
    /// Another program changes it.
    #[error("cannot lock the configuration {}", .0.display())]
    Locked(PathBuf, #[source] LockError),
}

impl From<ConfigFailure> for Failure {
    fn from(failure: ConfigFailure) -> Self {
        let remedy = match &failure {
            ConfigFailure::Missing(_) | ConfigFailure::NoEntry(_) => {
                Some("write an entry with `step-runner register`, or name another file with --config")
            }
            ConfigFailure::File(_, error) | ConfigFailure::Locked(_, LockError::Io(error)) => {
                match error.kind() {
                    io::ErrorKind::PermissionDenied => {
                        Some("run this command as the user that owns the file")
                    }
                    // It is a folder, say, or no text.
                    io::ErrorKind::InvalidInput => Some("name another file with --config"),
                    _ => None,
                }
            }
            ConfigFailure::Locked(_, LockError::Held(_)) => Some("try again when that command has ended"),
            ConfigFailure::Mistakes(_) | ConfigFailure::Edit(..) => None,
        };
        let failure = Self::new(Exit::Configuration, failure);
        match remedy {
            Some(remedy) => failure.with_remedy(remedy),
            None => failure,
        }
    }
}

/// Distance of the numbers of files beside the configuration.
const FREE_STEP: usize = 1_000;

/// Reads the file with at least one entry.
pub fn read(path: &Path) -> Result<Config, ConfigFailure> {
    load(path, |_| Vec::new())
}

/// Reads the file with at least one entry. An entry that `is_used` and cannot be served is a mistake.
pub fn read_to_use(path: &Path, is_used: impl Fn(&Entry) -> bool) -> Result<Config, ConfigFailure> {
    load(path, |entry| if is_used(entry) { check::mistakes(entry) } else { Vec::new() })
}

fn load(path: &Path, check: impl Fn(&Entry) -> Vec<Mistake>) -> Result<Config, ConfigFailure> {
    let mut config = Config::read_checked(&path.display().to_string(), &text(path)?, check)?;
    if config.entries.is_empty() {
        return Err(ConfigFailure::NoEntry(path.to_owned()));
    }
    if fs::metadata(path).is_ok_and(|found| found.permissions().mode() & OF_OTHERS != 0) {
        let text = format!("{}: others can read the tokens in it: run `chmod 600` on it", path.display());
        config.warnings.push(text);
    }
    Ok(config)
}

fn text(path: &Path) -> Result<String, ConfigFailure> {
    read_text(path, LONGEST).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => ConfigFailure::Missing(path.to_owned()),
        _ => ConfigFailure::File(path.to_owned(), error),
    })
}

/// Returns the text of a file that may not be there yet, without mistakes.
fn usable(path: &Path) -> Result<String, ConfigFailure> {
    let text = match text(path) {
        Err(ConfigFailure::Missing(_)) => String::new(),
        found => found?,
    };
    if !text.trim().is_empty() {
        Config::read(&path.display().to_string(), &text)?;
    }
    Ok(text)
}

/// Returns the configuration that `work` would make of a file, and writes nothing. `what` would do so.
pub fn preview(
    path: &Path,
    what: &str,
    work: impl FnOnce(&str) -> Result<String, EditError>,
) -> Result<Config, ConfigFailure> {
    let text = work(&usable(path)?).map_err(|error| ConfigFailure::Edit(path.to_owned(), error))?;
    Ok(Config::read(&format!("{} as {what} would write it", path.display()), &text)?)
}

/// The file, which no other command changes while this value lives.
pub struct Locked {
    path: PathBuf,
    /// Its text; empty if there is none yet.
    pub text: String,
    _lock: Lock,
}

impl Locked {
    /// Locks the file and reads it. A link leads to the file that is meant, which stays where it is.
    pub fn take(path: &Path) -> Result<Self, ConfigFailure> {
        let real = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let path = &*real;
        let cannot = |error| ConfigFailure::File(path.to_owned(), error);
        make_folder(path.parent().unwrap_or(path)).map_err(cannot)?;
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".lock");
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).clone();
        let file = file.open(path.with_file_name(name)).map_err(cannot)?;
        let lock = Lock::take(file.into()).map_err(|error| ConfigFailure::Locked(path.to_owned(), error))?;
        Ok(Self { path: path.to_owned(), text: usable(path)?, _lock: lock })
    }

    /// Reads the file again. Only our own commands heed the lock: what a person has written meanwhile stays.
    pub fn refresh(&mut self) -> Result<(), ConfigFailure> {
        self.text = usable(&self.path)?;
        Ok(())
    }

    /// Returns the entries of the text.
    pub fn config(&self) -> Result<Config, ConfigFailure> {
        Ok(Config::read(&self.path.display().to_string(), &self.text)?)
    }

    /// Changes the text by `work`. A text with mistakes is not taken.
    pub fn edit(
        &mut self,
        work: impl FnOnce(&str) -> Result<String, EditError>,
    ) -> Result<(), ConfigFailure> {
        let text = work(&self.text).map_err(|error| ConfigFailure::Edit(self.path.clone(), error))?;
        Config::read(&self.path.display().to_string(), &text)?;
        self.text = text;
        Ok(())
    }

    /// Returns the path of a file beside this one that is not there yet: its name ends in a number and `end`.
    pub fn free_path(&self, number: usize, end: &str) -> PathBuf {
        let stem = self.path.file_stem().unwrap_or_default().to_string_lossy();
        let path = |number: usize| self.path.with_file_name(format!("{stem}.{number}.{end}"));
        // Each import of a file has fewer entries than this.
        (number..).step_by(FREE_STEP).map(path).find(|path| !path.exists()).unwrap_or_else(|| path(number))
    }

    /// Writes another file beside this one, 0600.
    pub fn write_beside(path: &Path, bytes: &[u8]) -> Result<(), ConfigFailure> {
        replace(path, bytes, true).map_err(|error| ConfigFailure::File(path.to_owned(), error))
    }

    /// Writes the text, 0600.
    pub fn write(&self) -> Result<(), ConfigFailure> {
        replace(&self.path, self.text.as_bytes(), true)
            .map_err(|error| ConfigFailure::File(self.path.clone(), error))
    }
}
