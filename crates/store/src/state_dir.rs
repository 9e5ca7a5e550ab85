//! The state folder itself: its path, its checks and its lock.

use std::error::Error;
use std::ffi::{CStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use super::{Lock, LockError, StoreError};
use step_runner_model::ProcessInfo;
use step_runner_model::error::Chain;
use step_runner_system::files;

/// Version of the folder's format. A daemon reads its own and all older formats.
pub const FORMAT: u64 = 1;

/// Largest `daemon.json` that is read.
const MAX_DAEMON_JSON: u64 = 64 << 10;

/// Folder in which earlier versions kept folders of removed jobs. The scan finds it among the removed folders.
const SPARE: &CStr = c"spare";

/// Space kept for end records, and for the start of a daemon, when the disk is full (faults.md row 26).
const RESERVE: u64 = 64 << 10;

/// Inputs of [`default_path`].
#[derive(Clone, Debug, Default)]
pub struct StatePathInputs {
    /// Setting `state_dir`.
    pub state_dir: Option<PathBuf>,
    /// Socket, if one was named by option, variable or directory.
    pub socket: Option<PathBuf>,
    /// `XDG_STATE_HOME`.
    pub xdg_state_home: Option<PathBuf>,
    /// The system's directory for temporary files.
    pub temp_dir: PathBuf,
    /// Own user id.
    pub uid: u32,
}

/// Returns the path of the state folder (service.md §6.6). A relative `XDG_STATE_HOME` is ignored, as that variable's
/// definition requires.
pub fn default_path(inputs: &StatePathInputs) -> PathBuf {
    if let Some(path) = &inputs.state_dir {
        return path.clone();
    }
    if let Some(socket) = &inputs.socket {
        let mut name = OsString::from(socket);
        name.push(".state");
        return PathBuf::from(name);
    }
    match &inputs.xdg_state_home {
        Some(home) if home.is_absolute() => home.join("step-runner"),
        _ => inputs.temp_dir.join(format!("step-runner-{}", inputs.uid)),
    }
}

/// Content of `daemon.json`.
#[derive(Serialize, Deserialize)]
struct DaemonJson {
    format: u64,
    #[serde(flatten)]
    daemon: ProcessInfo,
}

/// Reason why the state folder cannot be used. The exit code is 1, except 78 for [`OpenError::NewerFormat`] (cli.md).
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A newer version wrote it. Nothing was changed.
    #[error("the state folder {} has format {found}, this version knows {FORMAT}: start the version that wrote it, or name another folder with --state-dir", path.display())]
    NewerFormat {
        /// The folder.
        path: PathBuf,
        /// Its format.
        found: u64,
    },
    /// Another daemon uses it.
    #[error("already serving with the state folder {}{}", path.display(), in_pid(*.pid))]
    InUse {
        /// The folder.
        path: PathBuf,
        /// Its pid.
        pid: Option<u32>,
    },
    /// A file or link is in the way.
    #[error("the state folder {} is {what}: remove it, or name another folder with --state-dir", path.display())]
    NotADirectory {
        /// The path.
        path: PathBuf,
        /// `a symbolic link` or `not a directory`.
        what: &'static str,
    },
    /// It belongs to another user, who could read and change its contents.
    #[error("the state folder {} belongs to user {owner}, not to {own}: name another folder with --state-dir", path.display())]
    WrongOwner {
        /// The folder.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// Our own user id.
        own: u32,
    },
    /// Other users can enter it.
    #[error("the state folder {} is open to others (mode {mode:04o}): run `chmod 700` on it", path.display())]
    OpenToOthers {
        /// The folder.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// A file operation failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn in_pid(pid: Option<u32>) -> String {
    pid.map_or_else(String::new, |pid| format!(" (pid {pid})"))
}

/// The open state folder. Clones and the folders of its jobs share it; the lock is held until the last of them is dropped.
#[derive(Clone, Debug)]
pub struct StateDir {
    pub(super) shared: Arc<Shared>,
}

/// State shared by the folder and those of its jobs.
#[derive(Debug)]
pub(super) struct Shared {
    pub path: PathBuf,
    pub root: OwnedFd,
    pub jobs: OwnedFd,
    pub has_reserve: AtomicBool,
    /// Serial number for names of removed folders.
    pub serial: AtomicU64,
    _lock: Lock,
}

impl StateDir {
    /// Opens the folder for a daemon: makes it if missing, checks it, takes its lock, writes `daemon.json`.
    pub fn open(path: &Path, daemon: &ProcessInfo) -> Result<Self, OpenError> {
        let (path, root) = open_checked(path)?;
        check_format(&root, &path)?;
        let lock = files::make_way(&root, "lock", || files::open_write(&root, "lock"))
            .map_err(LockError::Io)
            .and_then(Lock::take);
        let lock = lock.map_err(|error| match error {
            LockError::Held(pid) => OpenError::InUse { path: path.clone(), pid },
            LockError::Io(source) => StoreError { action: "lock", path: path.join("lock"), source }.into(),
        })?;
        // Check again: a daemon of a newer version may have come and gone before we got the lock.
        check_format(&root, &path)?;
        let jobs = ensure_dir(&root, "jobs")?;
        let (has_reserve, serial) = (AtomicBool::new(false), AtomicU64::new(0));
        let shared = Shared { path, root, jobs, has_reserve, serial, _lock: lock };
        let opened = Self { shared: Arc::new(shared) };
        if let Err(error) = opened.shared.set_gone(&opened.shared.root, SPARE, "spare") {
            tracing::warn!(error = %Chain(&error), "the folder spare/ of an earlier version was not removed");
        }
        // An earlier daemon may have used up the reserve, and even the first write may need it.
        opened.replenish_reserve();
        opened.tell_who_serves(daemon)?;
        opened.replenish_reserve();
        Ok(opened)
    }

    /// Writes `daemon.json`. The file is only information, and its format was checked. So a full disk must not keep the
    /// daemon from the jobs that go on and from the Finish that makes room (faults.md row 26).
    fn tell_who_serves(&self, daemon: &ProcessInfo) -> Result<(), StoreError> {
        let json = serde_json::to_vec(&DaemonJson { format: FORMAT, daemon: daemon.clone() })
            .map_err(|error| StoreError::new("write", "daemon.json")(error.into()))?;
        match self.with_reserve(|| self.write_root("daemon.json", &json)) {
            Err(error) if files::is_full(&error) => {
                tracing::warn!(error = %Chain(&error), "daemon.json was not written: it may name an earlier daemon");
                Ok(())
            }
            written => written,
        }
    }

    /// Returns the folder's absolute path.
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    /// Descriptor of the folder: it reaches the contents whatever the path's length.
    pub fn dir(&self) -> BorrowedFd<'_> {
        self.shared.root.as_fd()
    }

    /// Returns the free space on the folder's file system, for comparison with `state_limit` (service.md §3.7).
    pub fn free_space(&self) -> Result<files::Free, StoreError> {
        files::free_space(&self.shared.root).map_err(StoreError::new("measure", &self.shared.path))
    }

    /// Makes the reserve again after its use, if there is space.
    pub fn replenish_reserve(&self) {
        let Shared { root, has_reserve, .. } = &*self.shared;
        if has_reserve.load(Ordering::Relaxed) {
            return;
        }
        let has = files::open_write(root, "reserve").is_ok_and(|file| {
            // An existing reserve counts, even if this file system would need space to confirm it.
            let has = files::reserve(&file, RESERVE).is_ok()
                || files::stat_of(&file).is_ok_and(|stat| stat.st_blocks > 0);
            if !has {
                // An empty file would give no space.
                drop(files::unlink(root, "reserve"));
            }
            has
        });
        has_reserve.store(has, Ordering::Relaxed);
    }

    /// Does `work`. If the disk is full, releases the reserve and does `work` again. It does not make a new reserve: see
    /// [`Self::replenish_reserve`].
    pub fn with_reserve<T, E: Error + 'static>(&self, work: impl Fn() -> Result<T, E>) -> Result<T, E> {
        self.shared.with_reserve(work)
    }

    /// Brings everything written so far to the disk, for all jobs at once (`durability = power`, service.md §6.6).
    pub fn sync_all(&self) -> Result<(), StoreError> {
        files::sync_all(&self.shared.root).map_err(StoreError::new("sync", &self.shared.path))
    }

    /// Writes a file of the folder itself by temporary name and rename (`daemon.json`, `keeper.json`).
    pub fn write_root(&self, name: &str, content: &[u8]) -> Result<(), StoreError> {
        let root = &self.shared.root;
        files::make_way(root, name, || files::replace(root, name, content))
            .map_err(StoreError::new("write", name))
    }
}

impl Shared {
    /// Implements [`StateDir::with_reserve`].
    pub(super) fn with_reserve<T, E: Error + 'static>(
        &self,
        work: impl Fn() -> Result<T, E>,
    ) -> Result<T, E> {
        match work() {
            Err(error) if files::is_full(&error) && self.release_reserve() => work(),
            result => result,
        }
    }

    /// Opens the folder of records that were set aside. `None` if there is none yet, or if a foreign file has its name:
    /// that is moved away when the first record is set aside.
    pub(super) fn open_broken(&self) -> Result<Option<OwnedFd>, StoreError> {
        match files::open_dir(&self.root, "broken") {
            Err(error) if error.kind() == io::ErrorKind::NotFound || files::is_foreign(&error) => Ok(None),
            opened => opened.map(Some).map_err(StoreError::new("open", "broken")),
        }
    }

    /// Releases the reserve's space; `false` if there was none.
    pub(super) fn release_reserve(&self) -> bool {
        self.has_reserve.swap(false, Ordering::Relaxed) && files::unlink(&self.root, "reserve").is_ok()
    }
}

/// Opens a directory of the state folder; makes it if missing. A foreign file with its name is moved away.
pub(super) fn ensure_dir(root: &OwnedFd, name: &str) -> Result<OwnedFd, StoreError> {
    let open = || match files::make_dir(root, name) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => files::open_dir(root, name),
    };
    files::make_way(root, name, open).map_err(StoreError::new("open", name))
}

/// Makes the checks of service.md §6.6 on the open folder, so that nothing can change between check and use.
fn open_checked(path: &Path) -> Result<(PathBuf, OwnedFd), OpenError> {
    let path = without_slash(path);
    files::make_dirs(&path).map_err(|source| {
        if files::stat_at(files::CWD, path.as_path()).is_ok_and(|stat| !files::is_dir(&stat)) {
            not_a_directory(&path)
        } else {
            StoreError { action: "make the state folder", path: path.clone(), source }.into()
        }
    })?;
    open_existing(path)
}

/// Makes the checks of [`StateDir::open`] on a folder that may be missing. Changes nothing.
pub fn check(path: &Path) -> Result<(), OpenError> {
    let path = without_slash(path);
    match files::stat_at(files::CWD, path.as_path()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        _ => open_existing(path).map(drop),
    }
}

/// Returns an absolute path without a slash at its end: with one the kernel would follow a link.
fn without_slash(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).components().collect()
}

fn open_existing(path: PathBuf) -> Result<(PathBuf, OwnedFd), OpenError> {
    let root = files::open_dir(files::CWD, path.as_path()).map_err(|source| match source.raw_os_error() {
        Some(libc::ELOOP | libc::ENOTDIR) => not_a_directory(&path),
        _ => StoreError { action: "open the state folder", path: path.clone(), source }.into(),
    })?;
    let stat = files::stat_of(&root).map_err(StoreError::new("open", &path))?;
    let own = rustix::process::geteuid().as_raw();
    if stat.st_uid != own {
        return Err(OpenError::WrongOwner { path, owner: stat.st_uid, own });
    }
    let mode = stat.st_mode & 0o7777;
    if mode & 0o077 != 0 {
        return Err(OpenError::OpenToOthers { path, mode });
    }
    Ok((path, root))
}

fn not_a_directory(path: &Path) -> OpenError {
    let is_link = files::is_link(path);
    OpenError::NotADirectory {
        path: path.to_owned(),
        what: if is_link { "a symbolic link" } else { "not a directory" },
    }
}

/// Checks the format in `daemon.json`. A missing or damaged file counts as no format and never fails the start. A file
/// that cannot be read may be of a newer version, so the start fails before anything is changed.
fn check_format(root: &OwnedFd, path: &Path) -> Result<(), OpenError> {
    let bytes = match super::read_record(root, "daemon.json", MAX_DAEMON_JSON) {
        Err(error) if super::is_of_file(&error) => return Ok(()),
        read => read.map_err(StoreError::new("read", path.join("daemon.json")))?,
    };
    // Parsed loosely: a newer format may have other fields.
    let json = serde_json::from_slice::<serde_json::Value>(&bytes).unwrap_or_default();
    match json.get("format").and_then(serde_json::Value::as_u64) {
        Some(found) if found > FORMAT => Err(OpenError::NewerFormat { path: path.to_owned(), found }),
        _ => Ok(()),
    }
}
