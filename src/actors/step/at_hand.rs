//! Tells if the lookups for a start are few and cannot block. A step's `PATH` and working directory can name
//! thousands of folders, chains of links, or a file system whose server does not respond. Another thread does such
//! lookups (faults.md row 76). Nothing here changes a file.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::StepTask;
use super::program::{SHELL_FOLDERS, SHELLS};
use crate::clock;
use crate::failpoint;
use crate::job::effect::Program;
use crate::process::at_hand::{self, CachedLookup};
use crate::process::command;

/// Maximum number of files to look up …
const MOST_LOOKS: usize = 32;

/// … and the processor time after which no further lookup begins: each can follow many links.
const LOOK_TIME: Duration = Duration::from_millis(1);

impl StepTask {
    /// True if the working directory and the program can be looked up without blocking. Then the actors' thread does
    /// it itself, and the keeper can enter the directory.
    pub(in crate::actors) fn is_at_hand(&self) -> bool {
        is_known(Path::new(&self.spawn.work_dir)) && self.is_program_at_hand()
    }

    /// Waits until the working directory can be reached, because the keeper's only thread must not wait for it. False if the
    /// job has given the start up meanwhile.
    pub(super) fn await_work_dir(&self) -> bool {
        if self.is_given_up() {
            return false;
        }
        failpoint::hit("actors::step::lookup");
        // If something is wrong with the directory, the keeper reports it.
        std::fs::metadata(&self.spawn.work_dir).ok();
        !self.is_given_up()
    }

    /// True if the job no longer waits for this start. The start must write nothing then: the job's folder is being
    /// cleaned up and may belong to another job.
    pub(super) fn is_given_up(&self) -> bool {
        self.given_up.as_ref().is_some_and(|given_up| given_up.load(Ordering::Acquire))
    }

    fn is_program_at_hand(&self) -> bool {
        match &self.spawn.program {
            Program::Command(argv) => match argv.first() {
                Some(name) if name.contains('/') => is_known(&Path::new(&self.spawn.work_dir).join(name)),
                Some(name) => is_first_known(self.in_path(name)),
                None => true,
            },
            Program::Script(_) | Program::ScriptFile(_) => is_first_known(shells_in_folders()),
            Program::LegacyScript(_) => {
                let in_path = SHELLS.into_iter().flat_map(|name| self.in_path(name));
                is_first_known(in_path.chain(shells_in_folders()))
            }
            Program::Builtin(_) => true,
        }
    }

    /// Returns the files that a name without `/` can stand for, the preferred one first.
    pub(super) fn in_path<'a>(&'a self, name: &'a str) -> impl Iterator<Item = PathBuf> + use<'a> {
        command::candidates(
            name,
            Path::new(&self.spawn.work_dir),
            self.step_path(),
            self.daemon_path.as_deref(),
        )
    }

    /// Returns the step's own `PATH`.
    pub(super) fn step_path(&self) -> Option<&OsStr> {
        let path = self.spawn.env.iter().find(|(name, _)| name == b"PATH");
        path.map(|(_, path)| OsStr::from_bytes(path))
    }
}

/// Returns the usual files of shells, the preferred one first.
fn shells_in_folders() -> impl Iterator<Item = PathBuf> {
    SHELLS.into_iter().flat_map(|name| SHELL_FOLDERS.map(|folder| Path::new(folder).join(name)))
}

/// Kind of a path, as far as the kernel knows it without blocking.
pub(in crate::actors) enum Known {
    /// It is a directory.
    Directory,
    /// It is something else, or does not exist.
    Otherwise,
    /// Unknown: only a lookup that may block can tell.
    Nothing,
}

/// Returns the kind of `path` without blocking.
pub(in crate::actors) fn what_is_known(path: &Path) -> Known {
    match lookup(path) {
        CachedLookup::Present(stat) if at_hand::is_dir(&stat) => Known::Directory,
        CachedLookup::Present(_) | CachedLookup::Absent => Known::Otherwise,
        CachedLookup::Unknown => Known::Nothing,
    }
}

fn is_known(path: &Path) -> bool {
    #[cfg(feature = "failpoints")]
    if clock::is_steered() {
        return true;
    }
    at_hand::is_known(path)
}

fn lookup(path: &Path) -> CachedLookup {
    #[cfg(feature = "failpoints")]
    if clock::is_steered() {
        // A schedule must not depend on what the kernel has cached.
        return CachedLookup::Absent;
    }
    at_hand::lookup(path)
}

/// True if the kernel knows without blocking that the first existing one of `files` can be executed, and that none
/// before it exists.
fn is_first_known(files: impl Iterator<Item = PathBuf>) -> bool {
    let until = clock::processor_time() + LOOK_TIME;
    for (number, file) in files.enumerate() {
        if number >= MOST_LOOKS || clock::processor_time() >= until {
            return false;
        }
        match lookup(&file) {
            CachedLookup::Present(_) if command::check(&file).is_ok() => return true,
            CachedLookup::Present(_) | CachedLookup::Absent => {}
            // A daemon of an ordinary user often has folders of others in its `PATH`.
            CachedLookup::Unknown if at_hand::seems_barred(&file) => {}
            CachedLookup::Unknown => return false,
        }
    }
    true
}
