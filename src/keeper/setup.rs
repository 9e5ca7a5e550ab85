//! What the keeper does to its own process and to the state folder before it serves (service.md §6.4–§6.6).

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{DumpableBehavior, Resource, Rlimit};
use serde::{Deserialize, Serialize};

use super::protocol::PROTOCOL_VERSION;
use crate::process::cgroup::{CgroupError, CgroupMode, Pool};
use crate::process::spawn::Spawner;
use crate::process::sweep::Process;
use crate::process::{close_on_exec_from, ignore_signals, quieten_standard_streams};

/// Name of the lock of the living keeper.
const LOCK: &str = "keeper.lock";
/// Name of its description.
const IDENTITY: &str = "keeper.json";
/// Name of its socket.
const SOCKET: &str = "keeper.sock";
/// Connections that may wait to be accepted; there is one daemon.
const BACKLOG: i32 = 8;

/// How to run a keeper.
#[derive(Debug)]
pub struct KeeperOptions {
    /// The daemon's state folder.
    pub state_dir: PathBuf,
    /// One end of a socket pair whose other end the daemon that started us holds.
    pub first_connection: Option<OwnedFd>,
    /// Whether jobs get control groups.
    pub cgroup: CgroupMode,
}

/// Why a keeper does not start, or ended otherwise than it should.
#[derive(Debug, thiserror::Error)]
pub enum KeeperFailure {
    /// Another one holds the lock.
    #[error("a keeper already runs on state folder {}", .0.display())]
    Running(PathBuf),
    /// Something of the state folder is not to be had.
    #[error("cannot {what} in state folder {}", .state_dir.display())]
    State {
        /// What was tried.
        what: &'static str,
        /// The folder.
        state_dir: PathBuf,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// Control groups are demanded, and there are none.
    #[error("setting cgroup = on cannot be met")]
    Cgroup(#[from] CgroupError),
    /// A system call that does not fail on a healthy host did.
    #[error("cannot {what}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
}

impl KeeperFailure {
    /// For `map_err`.
    pub(super) fn system<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |error| Self::System { what, source: error.into() }
    }
}

/// Content of `keeper.json`: which process is, or was, the keeper of a state folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeeperIdentity {
    /// Process id.
    pub pid: u32,
    /// Start time of the process, clock ticks since the host's start.
    pub start_time: u64,
    /// The kernel's boot id.
    pub boot_id: String,
    /// [`PROTOCOL_VERSION`].
    pub protocol: u32,
    /// Directory of its control group, if jobs get groups.
    pub cgroup: Option<PathBuf>,
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
}

/// Turns this process into a keeper: own session, no core dumps, no inherited descriptors, the lock, the socket.
pub(super) fn prepare(options: &KeeperOptions) -> Result<Prepared, KeeperFailure> {
    let state = lock(options.state_dir.clone())?;
    let mut spawner = Spawner::new().map_err(KeeperFailure::system("prepare the start of processes"))?;
    let pool = match (options.cgroup, Pool::open()) {
        (CgroupMode::Off, _) | (CgroupMode::Auto, Err(_)) => None,
        (CgroupMode::Auto | CgroupMode::On, Ok(pool)) => Some(pool),
        (CgroupMode::On, Err(error)) => return Err(error.into()),
    };
    let listener = state.listen().map_err(|source| state.failure("make the socket", source))?;
    // Last, as from here on nobody reads our standard error.
    isolate()?;
    spawner.dispositions_changed();
    let cgroup = pool.as_ref().map(|pool| pool.path().to_owned());
    state.write_identity(cgroup).map_err(|source| state.failure("write keeper.json", source))?;
    Ok(Prepared { state, listener, spawner, pool })
}

fn lock(path: PathBuf) -> Result<StateDir, KeeperFailure> {
    let open = || -> io::Result<(OwnedFd, OwnedFd)> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(&path, flags, Mode::empty())?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let lock = rustix::fs::openat(&directory, LOCK, flags, Mode::RUSR | Mode::WUSR)?;
        Ok((directory, lock))
    };
    let (directory, lock) = open().map_err(|source| KeeperFailure::State {
        what: "open keeper.lock",
        state_dir: path.clone(),
        source,
    })?;
    match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        // Absolute, as the working directory is left.
        Ok(()) => {
            let path = fs::canonicalize(&path).unwrap_or(path);
            Ok(StateDir { path, directory, _lock: lock })
        }
        Err(_) => Err(KeeperFailure::Running(path)),
    }
}

/// Cuts the ties to the process that started us, and hardens what holds secrets.
fn isolate() -> Result<(), KeeperFailure> {
    // A process that leads its group already (started from a shell) cannot leave its session; that does no harm.
    rustix::process::setsid().ok();
    ignore_signals();
    // No file system is kept busy by a directory that we do not use.
    rustix::process::chdir("/").map_err(KeeperFailure::system("change to /"))?;
    quieten_standard_streams().map_err(KeeperFailure::system("open /dev/null"))?;
    // Kernels before 5.11 lack the call; the daemon opens nothing that stays open anyway.
    close_on_exec_from(3).ok();
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(KeeperFailure::system("become a child subreaper"))?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(KeeperFailure::system("forbid core dumps"))?;
    rustix::process::setrlimit(
        Resource::Core,
        Rlimit { current: Some(0), ..rustix::process::getrlimit(Resource::Core) },
    )
    .map_err(KeeperFailure::system("forbid core dumps"))?;
    let files = rustix::process::getrlimit(Resource::Nofile);
    // Steps keep the limits that we were started with: see `Spawner`.
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current: files.maximum, maximum: files.maximum })
        .ok();
    Ok(())
}

impl StateDir {
    fn failure(&self, what: &'static str, source: io::Error) -> KeeperFailure {
        KeeperFailure::State { what, state_dir: self.path.clone(), source }
    }

    /// Binds through the folder's descriptor: a socket's path may have 107 bytes, a folder's many more.
    fn listen(&self) -> io::Result<OwnedFd> {
        rustix::fs::unlinkat(&self.directory, SOCKET, AtFlags::empty()).ok();
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

    fn write_identity(&self, cgroup: Option<PathBuf>) -> io::Result<()> {
        let pid = std::process::id();
        let identity = KeeperIdentity {
            pid,
            start_time: Process::read(pid).map_or(0, |process| process.start_time),
            boot_id: fs::read_to_string("/proc/sys/kernel/random/boot_id")
                .unwrap_or_default()
                .trim()
                .to_owned(),
            protocol: PROTOCOL_VERSION,
            cgroup,
        };
        let temporary = format!("{IDENTITY}.new");
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.directory, &temporary, flags, Mode::RUSR | Mode::WUSR)?;
        io::Write::write_all(&mut fs::File::from(file), &serde_json::to_vec(&identity)?)?;
        Ok(rustix::fs::renameat(&self.directory, &temporary, &self.directory, IDENTITY)?)
    }

    /// No daemon can reach us from now on.
    pub(super) fn remove_socket(&self) {
        rustix::fs::unlinkat(&self.directory, SOCKET, AtFlags::empty()).ok();
    }

    /// Nothing tells of us any more but the lock, which ends with us.
    pub(super) fn remove_identity(&self) {
        rustix::fs::unlinkat(&self.directory, IDENTITY, AtFlags::empty()).ok();
    }

    /// Opens a file of a job's folder for appending, and makes it if need be.
    pub(super) fn open_job_file(&self, key: crate::model::JobKey, name: &str) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(
            self.directory.as_fd(),
            format!("jobs/{key}/{name}"),
            flags,
            Mode::RUSR | Mode::WUSR,
        )
    }
}
