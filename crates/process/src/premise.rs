//! Premises of a start that was prepared in advance, checked when the start is due.
//!
//! The daemon looks up the program and reads the function while another process of the job runs. That process can change
//! both.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::Stat;
use serde::{Deserialize, Serialize};

use crate::command;

/// Minimum age of a file's last change for a stamp. File systems stamp changes with the time of the last clock tick, so
/// two changes within a few milliseconds can have the same stamp.
const SETTLED: Duration = Duration::from_millis(50);

/// State of files that a prepared start relies on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Premises {
    /// Paths that the lookup tries before the program's own. No file may be there.
    pub absent: Vec<PathBuf>,
    /// The file that the function was read from. `None` for a builtin function.
    pub function: Option<FileStamp>,
}

impl Premises {
    /// True if the premises hold and `program` can be executed. Reads no file's content.
    pub fn hold(&self, program: &Path) -> bool {
        command::is_executable(program)
            && self.absent.iter().all(|path| rustix::fs::stat(path).is_err())
            && self.function.as_ref().is_none_or(FileStamp::is_current)
    }
}

/// A file as it was when it was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileStamp {
    path: PathBuf,
    device: u64,
    inode: u64,
    size: i64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileStamp {
    /// Describes the file at `path`, looked at before it was read. `now` is the time before that, in microseconds since
    /// the epoch. `None` if a change after the look could leave no trace.
    pub fn of(path: &Path, stat: &Stat, now: i64) -> Option<Self> {
        let settled = now - SETTLED.as_micros() as i64;
        let settled = (settled.div_euclid(1_000_000), settled.rem_euclid(1_000_000) * 1_000);
        let stamp = Self::from_stat(path, stat);
        (stamp.modified < settled && stamp.changed < settled).then_some(stamp)
    }

    fn from_stat(path: &Path, stat: &Stat) -> Self {
        Self {
            path: path.to_owned(),
            device: stat.st_dev,
            inode: stat.st_ino,
            size: stat.st_size,
            modified: (stat.st_mtime, stat.st_mtime_nsec as i64),
            changed: (stat.st_ctime, stat.st_ctime_nsec as i64),
        }
    }

    /// True if the path leads to the same file, and nothing has changed it.
    fn is_current(&self) -> bool {
        rustix::fs::stat(&self.path).is_ok_and(|stat| Self::from_stat(&self.path, &stat) == *self)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_file_that_has_just_changed_has_no_stamp() {
        let folder = tempfile::tempdir().unwrap();
        let stat = rustix::fs::stat(folder.path()).unwrap();
        let changed = stat.st_ctime * 1_000_000 + stat.st_ctime_nsec as i64 / 1_000;
        for (later, expected) in [(-1_000_000, false), (0, false), (49_999, false), (50_002, true)] {
            let stamp = FileStamp::of(folder.path(), &stat, changed + later);
            assert_eq!(stamp.is_some(), expected, "{later}");
        }
    }

    #[test]
    fn a_premise_fails_with_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let [program, other] = ["program", "other"].map(|name| folder.path().join(name));
        fs::write(&program, "").unwrap();
        let premises = Premises { absent: vec![other.clone()], function: None };
        assert!(!premises.hold(&program), "it cannot be executed");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
        assert!(premises.hold(&program));
        fs::write(&other, "").unwrap();
        assert!(!premises.hold(&program), "another one is preferred now");
        fs::remove_file(&other).unwrap();
        fs::remove_file(&program).unwrap();
        assert!(!premises.hold(&program));
    }

    #[test]
    fn a_stamp_is_of_one_file_in_one_state() {
        // A file that nobody changes: this test itself.
        let program = std::env::current_exe().unwrap();
        let stamp = FileStamp::from_stat(&program, &rustix::fs::stat(&program).unwrap());
        let with = |stamp| Premises { absent: Vec::new(), function: Some(stamp) };
        assert!(with(stamp.clone()).hold(&program));
        for other in [
            FileStamp { inode: stamp.inode + 1, ..stamp.clone() },
            FileStamp { size: stamp.size + 1, ..stamp.clone() },
            FileStamp { changed: (stamp.changed.0, stamp.changed.1 + 1), ..stamp.clone() },
            FileStamp { modified: (stamp.modified.0 - 1, 0), ..stamp.clone() },
            FileStamp { path: "/nowhere".into(), ..stamp },
        ] {
            assert!(!with(other).hold(&program));
        }
    }
}
