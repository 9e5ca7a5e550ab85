//! Who may call: the daemon's own user, root, and the users of `allow_uids` (service.md §1).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::net::UnixStream;

/// The users whose calls are answered.
#[derive(Clone, Debug)]
pub struct AllowedUsers {
    own: u32,
    others: Arc<[u32]>,
    warned: Arc<AtomicBool>,
}

impl AllowedUsers {
    /// Own user and root, and `others`.
    pub fn new(others: &[u32]) -> Self {
        Self { own: rustix::process::geteuid().as_raw(), others: others.into(), warned: Arc::default() }
    }

    /// Whether the other end of `stream` may call. What the kernel cannot tell is refused.
    pub(crate) fn allows(&self, stream: &UnixStream) -> bool {
        let Ok(peer) = stream.peer_cred() else { return false };
        let uid = peer.uid();
        let allowed = uid == 0 || uid == self.own || self.others.contains(&uid);
        if !allowed && !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                uid,
                pid = peer.pid(),
                "calls of another user are refused; see setting allow_uids"
            );
        }
        allowed
    }
}
