//! The daemon's socket: one daemon per path. Stale sockets are replaced; nothing else is ever removed (service.md §1).

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, Stat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::lock::outwait_the_dead;
use super::{Lock, LockError};
use step_runner_system::files::{self, CWD};

/// Longest path in bytes: fits into a socket address everywhere, with room for a suffix (service.md §1).
pub const MAX_PATH: usize = 100;

/// Number of connections that the kernel queues until they are accepted.
const BACKLOG: i32 = 1_024;

/// Reason why the socket cannot be used. Each ends `serve` with exit code 1.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// The path is too long.
    #[error("the socket path {} is {length} bytes long, at most {MAX_PATH} are possible: name a shorter one with --socket", path.display())]
    TooLong {
        /// The path.
        path: PathBuf,
        /// Its length in bytes.
        length: usize,
    },
    /// A daemon listens there.
    #[error("already serving on {}{}", path.display(), in_pid(*.pid))]
    AlreadyServing {
        /// The path.
        path: PathBuf,
        /// The daemon's pid, if known.
        pid: Option<u32>,
    },
    /// The path exists and is not a socket.
    #[error("{} is {what}, not a socket: remove it, or name another path with --socket", path.display())]
    InTheWay {
        /// The path.
        path: PathBuf,
        /// The kind of file.
        what: &'static str,
    },
    /// The lock file or socket belongs to another user, who could hold it against us.
    #[error("{} belongs to user {owner}: remove it, or name another path with --socket", path.display())]
    Foreign {
        /// The path.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// A system call failed.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// The action.
        action: &'static str,
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

fn in_pid(pid: Option<u32>) -> String {
    pid.map_or_else(String::new, |pid| format!(" (pid {pid})"))
}

fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ClaimError {
    let path = path.to_owned();
    move |source| ClaimError::Io { action, path, source }
}

/// The right to a socket path. Dropping it removes the socket file, if still the one we made, then releases the lock.
#[derive(Debug)]
pub struct Claim {
    path: PathBuf,
    /// Device and inode of the file that we made.
    identity: Option<(u64, u64)>,
    _lock: Lock,
}

impl Drop for Claim {
    fn drop(&mut self) {
        let Some(ours) = self.identity else { return };
        if files::stat_at(CWD, self.path.as_path()).is_ok_and(|stat| identity(&stat) == ours) {
            drop(files::unlink(CWD, self.path.as_path()));
        }
    }
}

fn identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

/// Claims `path`, binds and listens, with permissions `mode`. The listener is blocking; children do not inherit it.
pub fn claim(path: &Path, mode: u32) -> Result<(UnixListener, Claim), ClaimError> {
    check_length(path)?;
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        files::make_dirs(parent).map_err(io_error("make", parent))?;
    }
    let lock = take_lock(path)?;
    let holder = |error: &ClaimError| {
        if let ClaimError::AlreadyServing { pid, .. } = error { *pid } else { None }
    };
    outwait_the_dead(|| clear(path), holder)?;
    let socket = bind(path, mode)?;
    let stat = files::stat_at(CWD, path).map_err(io_error("find", path))?;
    let claim = Claim { path: path.to_owned(), identity: Some(identity(&stat)), _lock: lock };
    rustix::net::listen(&socket, BACKLOG).map_err(|error| io_error("listen on", path)(error.into()))?;
    Ok((UnixListener::from(socket), claim))
}

/// Claims `path`, on which a passed socket listens for us already. The file is not ours: it stays unchanged.
pub fn claim_passed(path: &Path) -> Result<Claim, ClaimError> {
    check_length(path)?;
    Ok(Claim { path: path.to_owned(), identity: None, _lock: take_lock(path)? })
}

fn check_length(path: &Path) -> Result<(), ClaimError> {
    let length = path.as_os_str().len();
    if length > MAX_PATH { Err(ClaimError::TooLong { path: path.to_owned(), length }) } else { Ok(()) }
}

/// Takes the lock beside the socket: `PATH.lock`.
fn take_lock(path: &Path) -> Result<Lock, ClaimError> {
    let mut name = OsString::from(path);
    name.push(".lock");
    let name = PathBuf::from(name);
    let file = files::open_write(CWD, name.as_path()).map_err(io_error("lock", &name))?;
    let stat = files::stat_of(&file).map_err(io_error("lock", &name))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(ClaimError::InTheWay { path: name, what: "not a file" });
    }
    refuse_foreign(&name, &stat)?;
    Lock::take(file).map_err(|error| match error {
        LockError::Held(pid) => ClaimError::AlreadyServing { path: path.to_owned(), pid },
        LockError::Io(source) => ClaimError::Io { action: "lock", path: name, source },
    })
}

fn refuse_foreign(path: &Path, stat: &Stat) -> Result<(), ClaimError> {
    let own = rustix::process::geteuid();
    if stat.st_uid == own.as_raw() || own.is_root() {
        Ok(())
    } else {
        Err(ClaimError::Foreign { path: path.to_owned(), owner: stat.st_uid })
    }
}

/// Fails if something at `path` is no socket. Makes and changes nothing.
pub fn refuse_other_file(path: &Path) -> Result<(), ClaimError> {
    socket_at(path).map(drop)
}

/// Returns what is known of the socket at `path`, if there is one. Another file there is an error.
fn socket_at(path: &Path) -> Result<Option<Stat>, ClaimError> {
    let stat = match files::stat_at(CWD, path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        result => result.map_err(io_error("look at", path))?,
    };
    let what = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Socket => None,
        FileType::Directory => Some("a directory"),
        FileType::Symlink => Some("a symbolic link"),
        FileType::RegularFile => Some("a file"),
        _ => Some("something else"),
    };
    match what {
        None => Ok(Some(stat)),
        Some(what) => Err(ClaimError::InTheWay { path: path.to_owned(), what }),
    }
}

/// Removes a socket that nobody listens on. Only a refused connection proves that.
fn clear(path: &Path) -> Result<(), ClaimError> {
    let Some(stat) = socket_at(path)? else { return Ok(()) };
    refuse_foreign(path, &stat)?;
    let probe = new_socket(SocketFlags::NONBLOCK).map_err(io_error("connect to", path))?;
    match connect(&probe, path) {
        Err(Errno::CONNREFUSED) => match files::unlink(CWD, path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(io_error("remove", path)(error)),
            _ => Ok(()),
        },
        Err(Errno::NOENT) => Ok(()),
        // A full backlog means that a daemon listens.
        Ok(()) | Err(Errno::AGAIN) => {
            Err(ClaimError::AlreadyServing { path: path.to_owned(), pid: peer_pid(probe.as_fd()) })
        }
        Err(error) => Err(io_error("connect to", path)(error.into())),
    }
}

fn connect(socket: &OwnedFd, path: &Path) -> rustix::io::Result<()> {
    rustix::net::connect(socket, &SocketAddrUnix::new(path)?)
}

fn peer_pid(socket: BorrowedFd<'_>) -> Option<u32> {
    let credentials = rustix::net::sockopt::socket_peercred(socket).ok()?;
    u32::try_from(credentials.pid.as_raw_nonzero().get()).ok()
}

fn new_socket(flags: SocketFlags) -> io::Result<OwnedFd> {
    let flags = flags | SocketFlags::CLOEXEC;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

/// Binds with permissions 0600 from the first moment, whatever the umask, then widens them to `mode`.
fn bind(path: &Path, mode: u32) -> Result<OwnedFd, ClaimError> {
    let socket = new_socket(SocketFlags::empty()).map_err(io_error("make", path))?;
    // The kernel gives the file the socket's permissions, less the umask.
    let narrow = Mode::RUSR | Mode::WUSR;
    rustix::fs::fchmod(&socket, narrow).map_err(|error| io_error("protect", path)(error.into()))?;
    let bound = SocketAddrUnix::new(path).and_then(|address| rustix::net::bind(&socket, &address));
    bound.map_err(|error| match error {
        Errno::ADDRINUSE => {
            ClaimError::InTheWay { path: path.to_owned(), what: "a file that has just appeared" }
        }
        error => io_error("bind", path)(error.into()),
    })?;
    rustix::fs::chmod(path, Mode::from_bits_truncate(mode))
        .map_err(|error| io_error("set the permissions of", path)(error.into()))?;
    Ok(socket)
}
