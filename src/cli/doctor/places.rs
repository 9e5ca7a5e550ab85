//! Checks of the daemon's folders and of its socket.

use std::ffi::OsString;
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, StatVfsMountFlags};

use super::Finding;
use crate::config::{Config, Layers};
use crate::error::Chain;
use crate::net::{self, Socket};
use crate::process::access;
use crate::store::{self, StatePathInputs};

/// Free space below which a daemon is near to refusing jobs.
const LITTLE_SPACE: u64 = 1 << 30;

/// Free inodes below which files run short.
const FEW_INODES: u64 = 10_000;

/// Remedy for a state folder that cannot be used.
const OTHER_STATE: &str = "run this as the user of the daemon, or name another folder with --state-dir";

/// Paths that the daemon uses.
pub(super) struct Places {
    socket: Result<Socket, net::SocketError>,
    state: PathBuf,
    temporary: PathBuf,
}

impl Places {
    /// Returns the places that `serve` would choose if none is named.
    pub(super) fn of(socket: Option<PathBuf>, state_dir: Option<PathBuf>) -> Self {
        let variable = |name: &str| std::env::var_os(name);
        let temporary = net::temp_dir(variable);
        let named = socket
            .or_else(|| variable(net::SOCKET_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from));
        let state = store::default_path(&StatePathInputs {
            state_dir,
            socket: named.clone(),
            xdg_state_home: variable("XDG_STATE_HOME").map(PathBuf::from),
            temp_dir: temporary.clone(),
            uid: rustix::process::getuid().as_raw(),
        });
        let absolute = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
        let (state, temporary) = (absolute(state), absolute(temporary));
        Self { socket: Socket::choose(named.as_deref(), variable), state, temporary }
    }

    pub(super) fn check(&self) -> [Finding; 4] {
        [
            folder("state_folder", &self.state),
            left_over(&self.state),
            folder("temporary_folder", &self.temporary),
            self.socket(),
        ]
    }

    fn socket(&self) -> Finding {
        const NAME: &str = "socket";
        let socket = match &self.socket {
            Ok(socket) => socket,
            Err(error) => {
                return Finding::broken(NAME, error.to_string(), "name a shorter path with --socket");
            }
        };
        let path = socket.path();
        let shown = path.display();
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        match std::fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => match may_write(existing(folder)) {
                Ok(()) => Finding::good(NAME, format!("no daemon listens on {shown}; one can be started")),
                Err(error) => Finding::broken(
                    NAME,
                    format!("no daemon listens on {shown}, and none can make a socket there: {error}"),
                    "name another path with --socket, or give this user write permission for its folder",
                ),
            },
            Err(error) => {
                Finding::broken(NAME, format!("{shown}: {error}"), "name another path with --socket")
            }
            Ok(found) if !found.file_type().is_socket() => Finding::broken(
                NAME,
                format!("{shown} is there and is no socket"),
                "remove it, or name another path",
            ),
            Ok(_) => match UnixStream::connect(path) {
                Ok(stream) => match socket.check_peer(&stream) {
                    Ok(()) => Finding::good(NAME, format!("a daemon listens on {shown}")),
                    Err(error) => {
                        Finding::broken(NAME, error.to_string(), "name your own socket with --socket")
                    }
                },
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    Finding::good(NAME, format!("no daemon listens on {shown} any more; one can be started"))
                }
                Err(error) => Finding::broken(
                    NAME,
                    format!("cannot connect to {shown}: {error}"),
                    "run this as the user of the daemon, or let the daemon allow this one (setting allow_uids)",
                ),
            },
        }
    }
}

/// Checks that removed jobs have left nothing. A folder that is just being deleted is counted, too.
fn left_over(state: &Path) -> Finding {
    const NAME: &str = "left_over";
    let folders = match store::undeleted(state) {
        Ok(folders) => folders,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            return Finding::warning(NAME, format!("{}: {error}", state.display()), OTHER_STATE);
        }
        Err(error) => {
            let remedy = "run this as the user of the daemon";
            return Finding::warning(NAME, format!("{}: {error}", state.display()), remedy);
        }
    };
    let Some(first) = folders.first() else {
        return Finding::good(NAME, "no folder of a removed job is left");
    };
    Finding::warning(
        NAME,
        format!("{} folders of removed jobs are not deleted yet, such as {}", folders.len(), first.display()),
        "look at the reasons in `step-runner status`; remove mounts, and immutable flags with `chattr -R -i -a`",
    )
}

/// Returns the folder itself, or the nearest one above it that exists.
fn existing(folder: &Path) -> &Path {
    folder.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("/"))
}

fn may_write(folder: &Path) -> io::Result<()> {
    Ok(access::check(folder, Access::WRITE_OK | Access::EXEC_OK)?)
}

/// Returns the space that a daemon with this environment keeps free. One that cannot start tells its own mistakes.
fn state_limit() -> u64 {
    let text =
        |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value.into_string().ok()?));
    let env = std::env::vars_os().filter_map(text).collect();
    let layers = Layers { file: None, env, options: Vec::new() };
    Config::load(&layers)
        .map_or_else(|_| Config::default().state_limit.0, |loaded| loaded.config.state_limit.0)
}

/// Checks that a folder can be written and has space. A missing state folder is fine if it can be made.
fn folder(name: &'static str, folder: &Path) -> Finding {
    let option = if name == "state_folder" { OTHER_STATE } else { "set TMPDIR to another folder" };
    let shown = folder.display();
    let there = existing(folder);
    if name == "state_folder" {
        // The daemon makes a missing one. Its error says what to do.
        if let Err(error) = store::check_state_dir(folder) {
            return Finding::broken(name, Chain(&error).to_string(), option);
        }
    } else if !folder.is_dir() {
        return Finding::broken(name, format!("{shown} is no folder"), option);
    }
    if let Err(error) = may_write(there) {
        return Finding::broken(name, format!("{shown} cannot be written: {error}"), option);
    }
    let space = match rustix::fs::statvfs(there) {
        Ok(space) => space,
        Err(error) => return Finding::broken(name, format!("{shown}: {error}"), option),
    };
    let bytes = space.f_bavail.saturating_mul(space.f_frsize);
    let found = format!("{shown}, {} MiB free", bytes >> 20);
    if space.f_flag.contains(StatVfsMountFlags::RDONLY) {
        return Finding::broken(name, format!("{found}, mounted read-only"), option);
    }
    if bytes < state_limit() {
        return Finding::broken(
            name,
            format!("{found}: jobs are refused as disk_full"),
            "make room, or name another folder",
        );
    }
    if bytes < LITTLE_SPACE {
        return Finding::warning(name, found, "make room before jobs are refused (setting state_limit)");
    }
    // Some file systems have no count of inodes.
    if space.f_files > 0 && space.f_favail < FEW_INODES {
        return Finding::warning(
            name,
            format!("{found}, {} files can be made", space.f_favail),
            "remove files there",
        );
    }
    Finding::good(name, found)
}
