//! Premises of a start that was prepared in advance, checked when the start is due.
//!
//! The daemon looks up the program and reads the function while another process of the job runs. That process can change
//! both. The check never waits: the keeper makes it, and serves all jobs on one thread. A premise that the kernel could
//! confirm only with a disk, a server or another program does not hold.

use std::path::{Path, PathBuf};

use rustix::fs::FileType;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::at_hand::{self, Device, Look};

/// Largest function that a start in advance relies on, in bytes: the check reads all of it.
const LARGEST_FUNCTION: u64 = 64 << 10;

/// Facts that a prepared start relies on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Premises {
    /// The program, which can be executed.
    pub program: ProgramStamp,
    /// Paths that the lookup tries before the program's own. No file may be found there.
    pub absent: Vec<Absence>,
    /// The file that the function was read from. `None` for a builtin function.
    pub function: Option<FunctionStamp>,
}

impl Premises {
    /// True if the premises hold of `program`.
    pub fn hold(&self, program: &Path) -> bool {
        ProgramStamp::of(program).is_some_and(|stamp| stamp == self.program)
            && self.absent.iter().all(Absence::holds)
            && self.function.as_ref().is_none_or(FunctionStamp::is_current)
    }
}

/// A path at which no file can be found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Absence {
    /// There is nothing.
    Nothing(PathBuf),
    /// This process may not search a folder on the way, which lies on this local file system. Search paths often lead to
    /// the home of another user.
    Barred(PathBuf, Device),
}

impl Absence {
    /// Explains why no file can be found at `path`. `None` if one can be there. Can wait for a file system.
    pub fn of(path: PathBuf) -> Option<Self> {
        match at_hand::look(&path) {
            Look::Present(_) => None,
            Look::Absent => Some(Self::Nothing(path)),
            Look::Unknown => at_hand::barrier(&path).map(|device| Self::Barred(path, device)),
        }
    }

    /// True if the reason is still there.
    fn holds(&self) -> bool {
        match self {
            Self::Nothing(path) => matches!(at_hand::look(path), Look::Absent),
            Self::Barred(path, device) => at_hand::is_barred(path, *device),
        }
    }
}

/// A program: which file it is, and who may execute it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramStamp {
    device: Device,
    inode: u64,
    mode: u16,
    owner: (u32, u32),
}

impl ProgramStamp {
    /// Describes the file at `path`. `None` if there is none, or if that cannot be told without waiting.
    pub fn of(path: &Path) -> Option<Self> {
        let Look::Present(stat) = at_hand::look(path) else { return None };
        let is_file = FileType::from_raw_mode(stat.stx_mode.into()) == FileType::RegularFile;
        is_file.then_some(Self {
            device: at_hand::device(&stat),
            inode: stat.stx_ino,
            mode: stat.stx_mode,
            owner: (stat.stx_uid, stat.stx_gid),
        })
    }
}

/// A function's file as it was read. Its content counts, not its times: file systems stamp changes within a tick, or
/// within two seconds, alike, and some do not stamp changes through a mapping.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionStamp {
    path: PathBuf,
    device: Device,
    content: [u8; 32],
}

impl FunctionStamp {
    /// Describes the file at `path` of the file system `device`, read as `content`. `None` if it is too large.
    pub fn of(path: &Path, content: &[u8], device: Device) -> Option<Self> {
        let is_small = content.len() as u64 <= LARGEST_FUNCTION;
        is_small.then(|| Self { path: path.to_owned(), device, content: Sha256::digest(content).into() })
    }

    /// True if the path leads to the same content, on the same file system.
    fn is_current(&self) -> bool {
        // First check without opening, because opening a file of another file system may wait for a server.
        let Look::Present(stat) = at_hand::look(&self.path) else { return false };
        at_hand::device(&stat) == self.device
            && at_hand::read(&self.path, LARGEST_FUNCTION).is_some_and(|file| {
                file.device == self.device && self.content[..] == Sha256::digest(&file.content)[..]
            })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::thread;

    use rustix::thread::{CapabilitySet, CapabilitySets};

    use super::*;

    /// Opens a path so that the kernel has it cached.
    fn warm(path: &Path) {
        drop(fs::read(path));
    }

    #[test]
    fn a_premise_fails_with_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let [program, other] = ["program", "other"].map(|name| folder.path().join(name));
        fs::write(&program, "").unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
        let stamp = ProgramStamp::of(&program).unwrap();
        let premises = Premises { program: stamp, absent: Vec::new(), function: None };
        assert!(premises.hold(&program));
        fs::set_permissions(&program, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(!premises.hold(&program), "it cannot be executed");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
        assert!(premises.hold(&program));
        fs::File::open(&other).unwrap_err();
        let premises = Premises { absent: vec![Absence::of(other.clone()).unwrap()], ..premises };
        assert!(premises.hold(&program));
        fs::write(&other, "").unwrap();
        warm(&other);
        assert!(!premises.hold(&program), "another one is preferred");
        fs::remove_file(&other).unwrap();
        fs::remove_file(&program).unwrap();
        assert!(!premises.hold(&program));
        assert!(ProgramStamp::of(folder.path()).is_none(), "a folder is no program");
    }

    /// Search paths of ordinary users lead to folders of root.
    #[test]
    fn nothing_is_found_behind_a_folder_that_may_not_be_searched() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().join("home");
        let program = home.join("bin/program");
        fs::create_dir_all(home.join("bin")).unwrap();
        fs::write(&program, "").unwrap();
        warm(&program);
        let set_mode = |mode| fs::set_permissions(&home, fs::Permissions::from_mode(mode)).unwrap();
        set_mode(0o600);
        // Of this thread alone. A user without rights has none to give up.
        let none = CapabilitySet::empty();
        let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
        thread::scope(|scope| {
            let ordinary = scope.spawn(|| {
                rustix::thread::set_capabilities(None, sets).unwrap();
                for path in [program.clone(), home.join("bin/../none"), home.join("none")] {
                    let absence = Absence::of(path.clone()).unwrap();
                    let Absence::Barred(_, device) = absence else { panic!("{absence:?}") };
                    assert!(absence.holds());
                    assert!(
                        !Absence::Barred(path, (device.0, device.1 + 1)).holds(),
                        "on another file system"
                    );
                    set_mode(0o700);
                    assert!(!absence.holds(), "it may be searched");
                    set_mode(0o600);
                    assert!(absence.holds());
                }
                set_mode(0o700);
                assert!(Absence::of(program.clone()).is_none());
            });
            ordinary.join().unwrap();
        });
    }

    #[test]
    fn a_function_is_current_as_long_as_its_content_is_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("func.yml");
        fs::write(&path, "one").unwrap();
        let Some(file) = at_hand::read(&path, LARGEST_FUNCTION) else {
            return eprintln!("skipped: {} is on no local file system", path.display());
        };
        let stamp = FunctionStamp::of(&path, &file.content, file.device).unwrap();
        assert!(stamp.is_current());
        // The same size and time: only the content tells.
        let times = fs::FileTimes::new().set_modified(fs::metadata(&path).unwrap().modified().unwrap());
        fs::write(&path, "two").unwrap();
        fs::File::options().write(true).open(&path).unwrap().set_times(times).unwrap();
        assert!(!stamp.is_current());
        fs::remove_file(&path).unwrap();
        assert!(!stamp.is_current());
        fs::write(&path, "one").unwrap();
        warm(&path);
        assert!(stamp.is_current(), "another file with the same content");
        assert!(!FunctionStamp { device: (0, 0), ..stamp }.is_current(), "on another file system");
    }

    #[test]
    fn a_large_function_has_no_stamp() {
        let content = vec![b' '; LARGEST_FUNCTION as usize + 1];
        assert!(FunctionStamp::of(Path::new("func.yml"), &content, (0, 0)).is_none());
    }
}
