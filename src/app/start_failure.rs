//! Messages with remedies for a daemon whose state folder or socket is taken, or that has no room for them or no control
//! groups.

use std::error::Error;
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::actors::supervisor::RecoveryError;
use crate::error::{Exit, Failure};
use crate::files;
use crate::process::cgroup::{CgroupError, DELEGATE};
use crate::store::{OpenError, socket};

/// Failure to open the state folder. `named` is true if it was named and does not follow from the socket.
pub(super) fn open_failure(error: OpenError, socket: &Path, named: bool) -> Failure {
    match error {
        // Nobody listens on the socket: only the folder is taken.
        OpenError::InUse { .. } if named && UnixStream::connect(socket).is_err() => {
            Failure::new(Exit::Failure, error).with_remedy("name another --state-dir, or stop that daemon")
        }
        OpenError::InUse { pid, .. } => {
            let pid = pid.map_or_else(String::new, |pid| format!(" (pid {pid})"));
            Failure::new(Exit::Failure, format!("already serving on {}{pid}", socket.display())).with_remedy(
                or_unreachable(
                    socket,
                    "use the daemon that is there, or name another --socket and --state-dir",
                ),
            )
        }
        OpenError::NewerFormat { .. } => Failure::new(Exit::NewerState, error),
        error => start_failure(error),
    }
}

pub(super) fn claim_failure(error: socket::ClaimError) -> Failure {
    let taken = match &error {
        socket::ClaimError::AlreadyServing { path, .. } => Some(path.clone()),
        _ => None,
    };
    let failure = start_failure(error);
    match taken {
        Some(path) => failure.with_remedy(or_unreachable(
            &path,
            "use it if it is a step-runner; if it is something else, name another --socket",
        )),
        None => failure,
    }
}

/// Returns the remedy for a daemon that serves already, or for one that nobody reaches any more.
fn or_unreachable(socket: &Path, remedy: &'static str) -> &'static str {
    if socket.exists() {
        remedy
    } else {
        "its socket was removed, so nobody reaches it: `kill -9` it and start this again, and its jobs go on"
    }
}

/// Failure to take over the state folder and its keeper.
pub(super) fn recovery_failure(error: RecoveryError) -> Failure {
    let mut causes = std::iter::successors(Some(&error as &(dyn Error + 'static)), |&cause| cause.source());
    let lacks_groups = causes.any(<dyn Error>::is::<CgroupError>);
    let failure = Failure::new(Exit::Failure, error);
    if lacks_groups {
        failure.with_remedy(format!("{DELEGATE}; or set cgroup = auto, which works without"))
    } else {
        failure
    }
}

/// A failure of the start, with a remedy if the disk is full.
fn start_failure(error: impl Error + Send + Sync + 'static) -> Failure {
    let is_full = files::is_full(&error);
    let failure = Failure::new(Exit::Failure, error);
    if is_full {
        failure.with_remedy(
            "make room on its file system (bytes, files, quota) and start the daemon again: jobs that run go on until \
             keeper_wait is over",
        )
    } else {
        failure
    }
}
