//! Which changes below a folder make a job run again: not those of git and of files that git ignores, and not those of
//! files that a run has made.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use notify::event::{AccessKind, AccessMode, ModifyKind};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::time::{Instant, timeout_at};

use crate::error::{Exit, Failure};
use crate::process::git;

/// Folders of a project whose files are nobody's work.
const SKIPPED: [&str; 2] = [".git", ".step-runner"];

/// A change is complete when nothing has followed it for this long: editors write several files.
const QUIET: Duration = Duration::from_millis(100);

/// It counts as complete after this time in any case.
const SETTLED: Duration = Duration::from_secs(2);

/// Maximum number of files whose names are known. Of further ones, a change by a run counts as one by the user.
const MAX_KNOWN: usize = 200_000;

/// The changes below some folders.
pub(super) struct Changes {
    folders: Vec<PathBuf>,
    events: UnboundedReceiver<notify::Result<Event>>,
    /// Ends the watch with this value.
    _watcher: RecommendedWatcher,
    files: Files,
}

impl Changes {
    pub(super) fn of(folders: &[PathBuf]) -> Result<Self, Failure> {
        let (sender, events) = mpsc::unbounded_channel();
        let watcher = notify::recommended_watcher(move |event| {
            // Nobody listens any more while the command ends.
            sender.send(event).ok();
        });
        let mut watcher = watcher.map_err(|error| failure(&error))?;
        let mut files = Files::default();
        for folder in folders {
            watcher.watch(folder, RecursiveMode::Recursive).map_err(|error| failure(&error))?;
            files.learn(folder);
        }
        Ok(Self { folders: folders.to_vec(), events, _watcher: watcher, files })
    }

    /// A run begins: files that are not known are its own from now on.
    pub(super) fn begin_run(&mut self) {
        self.files.is_running = true;
    }

    /// A run has ended. Returns a change that came before, if one counts. What the run did last becomes known a moment
    /// later, so this waits until nothing has changed for that long.
    pub(super) async fn end_run(&mut self) -> Result<Option<PathBuf>, Failure> {
        let changed = self.settle().await;
        self.files.is_running = false;
        changed
    }

    /// Waits for a change that counts.
    pub(super) async fn next(&mut self) -> Result<PathBuf, Failure> {
        loop {
            let Some(event) = self.events.recv().await else { return std::future::pending().await };
            if let Some(path) = self.counted(event)? {
                return Ok(path);
            }
        }
    }

    /// Waits until nothing has changed for a moment, though not for ever: a file that git ignores may change all the
    /// time. Returns a change that counts.
    pub(super) async fn settle(&mut self) -> Result<Option<PathBuf>, Failure> {
        let mut changed = None;
        let latest = Instant::now() + SETTLED;
        while Instant::now() < latest
            && let Ok(Some(event)) = timeout_at(latest.min(Instant::now() + QUIET), self.events.recv()).await
        {
            changed = self.counted(event)?.or(changed);
        }
        Ok(changed)
    }

    fn counted(&mut self, event: notify::Result<Event>) -> Result<Option<PathBuf>, Failure> {
        let event = event.map_err(|error| failure(&error))?;
        if !is_of_content(event.kind) {
            return Ok(None);
        }
        let paths = event.paths.into_iter().filter(|path| {
            let folder = self.folders.iter().find(|folder| path.starts_with(folder));
            folder.is_some_and(|folder| !is_skipped(folder, path))
        });
        let paths: Vec<_> = paths.collect();
        Ok(paths.into_iter().find(|path| self.files.counts(path)))
    }
}

/// True for what changes the content or the name of a file.
const fn is_of_content(kind: EventKind) -> bool {
    matches!(
        kind,
        EventKind::Create(_)
            | EventKind::Remove(_)
            | EventKind::Modify(ModifyKind::Data(_) | ModifyKind::Name(_) | ModifyKind::Any)
            | EventKind::Access(AccessKind::Close(AccessMode::Write))
    )
}

fn is_skipped(folder: &Path, path: &Path) -> bool {
    let below = path.strip_prefix(folder).unwrap_or(path);
    below.components().any(|part| SKIPPED.iter().any(|name| part.as_os_str() == *name))
}

/// Files below the watched folders, by who made them.
#[derive(Default)]
struct Files {
    is_running: bool,
    /// Files that were there before a run, or that came between two.
    known: HashSet<PathBuf>,
    /// Files that a run has made.
    own: HashSet<PathBuf>,
    /// True for files that git ignores. Git is asked once for each file, until a `.gitignore` changes.
    ignored: HashMap<PathBuf, bool>,
}

impl Files {
    /// Notes the files below a folder.
    fn learn(&mut self, folder: &Path) {
        let Ok(entries) = std::fs::read_dir(folder) else { return };
        for entry in entries.flatten() {
            if self.known.len() >= MAX_KNOWN || SKIPPED.iter().any(|name| entry.file_name() == *name) {
                continue;
            }
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => self.learn(&entry.path()),
                _ => drop(self.known.insert(entry.path())),
            }
        }
    }

    fn counts(&mut self, path: &Path) -> bool {
        if self.own.contains(path) || path.is_dir() {
            return false;
        }
        if !self.known.contains(path) {
            if self.is_running {
                self.own.insert(path.to_owned());
                return false;
            }
            self.known.insert(path.to_owned());
        }
        !self.is_ignored(path)
    }

    fn is_ignored(&mut self, path: &Path) -> bool {
        if path.ends_with(".gitignore") {
            self.ignored.clear();
        }
        *self.ignored.entry(path.to_owned()).or_insert_with(|| {
            let folder = path.ancestors().skip(1).find(|folder| folder.is_dir());
            let name = path.to_str();
            let (Some(folder), Some(name)) = (folder, name) else { return false };
            git::ask(folder, &["check-ignore", "-q", "--", name]).is_some()
        })
    }
}

/// Says that a folder cannot be watched, and what to do.
fn failure(error: &notify::Error) -> Failure {
    let failure = Failure::new(Exit::Failure, format!("cannot watch for changes: {error}"));
    match error.kind {
        notify::ErrorKind::MaxFilesWatch => failure.with_remedy(
            "the folder has more folders than the system lets one user watch: raise fs.inotify.max_user_watches, or run in a smaller folder",
        ),
        _ => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_run_makes_does_not_count_and_what_was_there_does() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("main"), "").unwrap();
        let mut files = Files::default();
        files.learn(folder.path());
        files.is_running = true;
        assert!(files.counts(&path("main")));
        assert!(!files.counts(&path("made")));
        files.is_running = false;
        assert!(!files.counts(&path("made")), "its own after the run, too");
        assert!(files.counts(&path("new")));
        files.is_running = true;
        assert!(files.counts(&path("new")), "known since it came between two runs");
    }

    #[test]
    fn files_of_git_and_of_this_program_are_skipped() {
        let folder = Path::new("/a/.git/b");
        for (path, skipped) in [
            ("/a/.git/b/main", false),
            ("/a/.git/b/.git/index", true),
            ("/a/.git/b/x/.step-runner/artifacts/y", true),
            ("/a/.git/b/x.git", false),
        ] {
            assert_eq!(is_skipped(folder, Path::new(path)), skipped, "{path}");
        }
    }

    #[test]
    fn only_content_and_names_count() {
        use notify::event::{CreateKind, MetadataKind};
        assert!(is_of_content(EventKind::Create(CreateKind::File)));
        assert!(is_of_content(EventKind::Access(AccessKind::Close(AccessMode::Write))));
        assert!(!is_of_content(EventKind::Access(AccessKind::Read)));
        assert!(!is_of_content(EventKind::Modify(ModifyKind::Metadata(MetadataKind::Any))));
    }
}
