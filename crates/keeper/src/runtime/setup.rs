//! Prepares the keeper's own process and the state folder before it serves (service.md §6.4–§6.6).

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde::{Deserialize, Serialize};

use crate::protocol::PROTOCOL_VERSION;
use step_runner_log::journal;
use step_runner_model::{JobKey, ProcessInfo};
use step_runner_process::cgroup::{CgroupError, CgroupMode, Pool};
use step_runner_process::host::{SoftLimits, hide_memory, take_descriptors, this_process};
use step_runner_process::limiter::Limiter;
use step_runner_process::spawn::Spawner;
use step_runner_process::{close_on_exec_from, ignore_signals, quieten_standard_streams};
use step_runner_system::files;

/// Name of the lock of the living keeper.
const LOCK: &str = "keeper.lock";
/// Name of the file that describes the keeper.
pub(crate) const IDENTITY: &str = "keeper.json";
/// Name of its socket.
const SOCKET: &str = "keeper.sock";
/// Maximum number of connections that wait to be accepted. There is one daemon.
const BACKLOG: i32 = 8;

/// Options of a keeper.
#[derive(Debug)]
pub struct KeeperOptions {
    /// The daemon's state folder.
    pub state_dir: PathBuf,
    /// One end of a socket pair whose other end the daemon that started us holds.
    pub first_connection: Option<OwnedFd>,
    /// Use of control groups for jobs.
    pub cgroup: CgroupMode,
    /// Limits for steps, which are in force, and the `oom_score_adj` that the daemon was started with.
    pub limits: SoftLimits,
}

/// Failure of a keeper to start or to run.
#[derive(Debug, thiserror::Error)]
pub enum KeeperFailure {
    /// Another keeper holds the lock.
    #[error("a keeper already runs on state folder {}", .0.display())]
    Running(PathBuf),
    /// Something in the state folder cannot be used.
    #[error("cannot {what} in state folder {}", .state_dir.display())]
    State {
        /// The attempted action.
        what: &'static str,
        /// The folder.
        state_dir: PathBuf,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// Control groups are required, but there are none.
    #[error("setting cgroup = on cannot be met")]
    Cgroup(#[from] CgroupError),
    /// A system call that does not fail on a healthy host did.
    #[error("cannot {what}")]
    System {
        /// The attempted action.
        what: &'static str,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
}

impl KeeperFailure {
    /// Makes the error [`Self::System`].
    pub(super) fn system<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |error| Self::System { what, source: error.into() }
    }
}

/// Content of `keeper.json`: the process that is, or was, the keeper of a state folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeeperIdentity {
    /// Its process.
    #[serde(flatten)]
    pub process: ProcessInfo,
    /// [`PROTOCOL_VERSION`].
    pub protocol: u32,
    /// Directories of its control groups, to be removed by whoever finds it dead.
    #[serde(default)]
    pub cgroups: Vec<PathBuf>,
}

/// The state folder as the keeper uses it. Holds the lock.
pub(super) struct StateDir {
    pub(super) path: PathBuf,
    pub(super) directory: OwnedFd,
    _lock: OwnedFd,
}

/// Everything [`prepare`] makes.
pub(super) struct Prepared {
    pub(super) state: StateDir,
    pub(super) listener: OwnedFd,
    pub(super) spawner: Spawner,
    pub(super) pool: Option<Pool>,
    pub(super) limiter: Limiter,
    pub(super) limits: SoftLimits,
}

/// Turns this process into a keeper: own session, no core dumps, no inherited descriptors, the lock, the socket.
pub(super) fn prepare(options: &KeeperOptions) -> Result<Prepared, KeeperFailure> {
    let state = lock(options.state_dir.clone())?;
    let mut spawner = Spawner::new(options.limits.oom_score_adj)
        .map_err(KeeperFailure::system("prepare the start of processes"))?;
    let pool = match (options.cgroup, Pool::open()) {
        (CgroupMode::Off, _) | (CgroupMode::Auto, Err(_)) => None,
        (CgroupMode::Auto | CgroupMode::On, Ok(pool)) => Some(pool),
        (CgroupMode::On, Err(error)) => return Err(error.into()),
    };
    let limiter = Limiter::new(options.cgroup);
    let listener = state.listen().map_err(|source| state.failure("make the socket", source))?;
    // Do this last, because nobody reads our standard error from here on.
    isolate()?;
    spawner.dispositions_changed();
    let cgroups = pool.iter().map(|pool| pool.path().to_owned()).chain(limiter.paths()).collect();
    state.write_identity(cgroups).map_err(|source| state.failure("write keeper.json", source))?;
    Ok(Prepared { state, listener, spawner, pool, limiter, limits: options.limits })
}

fn lock(path: PathBuf) -> Result<StateDir, KeeperFailure> {
    let open = || -> io::Result<(OwnedFd, OwnedFd)> {
        let directory = files::open_dir(files::CWD, path.as_path())?;
        let lock = files::make_way(&directory, LOCK, || files::open_write(&directory, LOCK))?;
        Ok((directory, lock))
    };
    let (directory, lock) = open().map_err(|source| KeeperFailure::State {
        what: "open keeper.lock",
        state_dir: path.clone(),
        source,
    })?;
    match files::try_lock(&lock) {
        // Absolute: the working directory changes later.
        Ok(true) => Ok(StateDir { path: files::resolved(&path), directory, _lock: lock }),
        Ok(false) => Err(KeeperFailure::Running(path)),
        Err(source) => Err(KeeperFailure::State { what: "lock keeper.lock", state_dir: path, source }),
    }
}

/// Cuts the ties to the process that started us, and protects memory, which holds secrets.
fn isolate() -> Result<(), KeeperFailure> {
    // A process that leads its group already (started from a shell) cannot leave its session; that does no harm.
    rustix::process::setsid().ok();
    ignore_signals();
    // Our working directory must not keep a file system busy.
    rustix::process::chdir("/").map_err(KeeperFailure::system("change to /"))?;
    quieten_standard_streams().map_err(KeeperFailure::system("open /dev/null"))?;
    // Kernels before 5.11 lack the call; the daemon opens nothing that stays open anyway.
    close_on_exec_from(3).ok();
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(KeeperFailure::system("become a child subreaper"))?;
    hide_memory().map_err(KeeperFailure::system("forbid core dumps"))?;
    // Steps keep the limits that we were started with: see `Spawner`.
    take_descriptors().ok();
    Ok(())
}

impl StateDir {
    fn failure(&self, what: &'static str, source: io::Error) -> KeeperFailure {
        KeeperFailure::State { what, state_dir: self.path.clone(), source }
    }

    /// Binds through the folder's descriptor: the path of a socket has at most 107 bytes, a folder's may have more.
    fn listen(&self) -> io::Result<OwnedFd> {
        files::make_way(&self.directory, SOCKET, || match files::unlink(&self.directory, SOCKET) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        })?;
        let path = format!("/proc/self/fd/{}/{SOCKET}", self.directory.as_raw_fd());
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let umask = rustix::process::umask(Mode::from_raw_mode(0o177));
        let bound = rustix::net::bind(&socket, &SocketAddrUnix::new(path)?);
        rustix::process::umask(umask);
        bound?;
        rustix::net::listen(&socket, BACKLOG)?;
        Ok(socket)
    }

    fn write_identity(&self, cgroups: Vec<PathBuf>) -> io::Result<()> {
        let identity = KeeperIdentity { process: this_process(), protocol: PROTOCOL_VERSION, cgroups };
        let json = serde_json::to_vec(&identity)?;
        files::make_way(&self.directory, IDENTITY, || files::replace(&self.directory, IDENTITY, &json))
    }

    /// Removes the socket, so that no daemon can reach us.
    pub(super) fn remove_socket(&self) {
        files::unlink(&self.directory, SOCKET).ok();
    }

    /// Removes `keeper.json`. The lock stays until we end.
    pub(super) fn remove_identity(&self) {
        files::unlink(&self.directory, IDENTITY).ok();
    }

    /// Removes the whole folder, whatever is in it.
    pub(super) fn remove(&self) {
        let Some((parent, name)) = self.path.parent().zip(self.path.file_name()) else { return };
        let name = CString::new(name.as_bytes()).unwrap_or_default();
        files::open_dir(files::CWD, parent).and_then(|parent| files::remove_tree(parent, &name)).ok();
    }

    /// Removes the files of a job's steps, unless they are many or large.
    pub(super) fn remove_step_files(&self, key: JobKey) {
        let folder = files::open_dir(&self.directory, "jobs")
            .and_then(|jobs| files::open_dir(jobs, key.to_string().as_str()));
        folder.and_then(|folder| files::remove_small_tree(folder, c"tmp")).ok();
    }

    pub(super) fn read_journal(&self, key: JobKey) -> io::Result<Vec<u8>> {
        files::read_file(&self.directory, format!("jobs/{key}/journal").as_str(), journal::MAX_FILE)
    }

    /// True if the job tracks what of its log is on the disk (`durability = power`).
    pub(super) fn is_synced(&self, key: step_runner_model::JobKey) -> bool {
        step_runner_system::files::stat_at(&self.directory, format!("jobs/{key}/synced").as_str()).is_ok()
    }

    /// Opens the journal of a job for appending, and makes it if need be.
    pub(super) fn open_journal(&self, key: JobKey) -> io::Result<OwnedFd> {
        files::open_append(&self.directory, format!("jobs/{key}/journal").as_str())
    }

    /// Opens the log of a job for writing, and makes it if need be.
    pub(super) fn open_log(&self, key: JobKey) -> io::Result<OwnedFd> {
        files::open_write(&self.directory, format!("jobs/{key}/log").as_str())
    }
}
