//! Decides who may call: the daemon's own user, root, and the users of `allow_uids` (service.md §1).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::net::UnixStream;
use tonic::Request;

/// Rights of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallerRights {
    /// The daemon's own user, or root.
    Owner,
    /// A user of `allow_uids`.
    Allowed,
    /// Any other user: all calls are refused.
    Refused,
}

/// The process at the other end of a connection, for the operator's log.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caller {
    uid: u32,
    pid: Option<i32>,
}

impl Caller {
    /// Returns the other end of `stream`, or `None` if the kernel does not know it.
    pub(super) fn of(stream: &UnixStream) -> Option<Self> {
        let peer = stream.peer_cred().ok()?;
        Some(Self { uid: peer.uid(), pid: peer.pid() })
    }

    /// Returns the caller of a request.
    pub(super) fn of_request<T>(request: &Request<T>) -> Option<Self> {
        request.extensions().get().copied()
    }
}

/// `uid 1000 pid 42`. A process of another pid namespace is shown without a pid.
impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "uid {}", self.uid)?;
        match self.pid.filter(|pid| *pid > 0) {
            Some(pid) => write!(f, " pid {pid}"),
            None => Ok(()),
        }
    }
}

/// The users who may call.
#[derive(Clone, Debug)]
pub(crate) struct AllowedUsers {
    own: u32,
    others: Arc<[u32]>,
    warned: Arc<AtomicBool>,
}

impl AllowedUsers {
    /// Allows the daemon's own user, root and `others`.
    pub(crate) fn new(others: &[u32]) -> Self {
        Self { own: rustix::process::geteuid().as_raw(), others: others.into(), warned: Arc::default() }
    }

    /// Returns the rights of the other end of `stream`. A peer that the kernel does not know is refused.
    pub(crate) fn rights(&self, stream: &UnixStream) -> CallerRights {
        let Ok(peer) = stream.peer_cred() else { return CallerRights::Refused };
        let uid = peer.uid();
        if uid == 0 || uid == self.own {
            return CallerRights::Owner;
        }
        if self.others.contains(&uid) {
            return CallerRights::Allowed;
        }
        if !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                uid,
                pid = peer.pid(),
                "calls of another user are refused; see setting allow_uids"
            );
        }
        CallerRights::Refused
    }
}
