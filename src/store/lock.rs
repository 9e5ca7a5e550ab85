//! Exclusive locks: of the state folder, of the keeper, of a socket.
//!
//! The lock is the kernel's (flock): it ends with its holder, however the holder ends, and no child inherits it. The
//! file stays, because after a removal two processes could lock two files of one name. It holds the pid of the holder,
//! for messages.

use std::io;
use std::os::fd::OwnedFd;

use crate::files;

/// Longest content of a lock file: a pid and a line feed.
const MAX_PID_TEXT: usize = 16;

/// A lock held until this value is dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    file: OwnedFd,
}

/// Reason why a lock was not taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LockError {
    /// Another process holds it. The pid is missing for a moment until it is written, or if there was no room for it.
    #[error("the lock is held by {}", holder(*.0))]
    Held(Option<u32>),
    /// The file cannot be used.
    #[error("the lock file cannot be used")]
    Io(#[from] io::Error),
}

fn holder(pid: Option<u32>) -> String {
    pid.map_or_else(|| "another process".to_owned(), |pid| format!("pid {pid}"))
}

impl Lock {
    /// Takes the lock of an open file. Fails at once if it is held.
    pub(super) fn take(file: OwnedFd) -> Result<Self, LockError> {
        if !files::try_lock(&file)? {
            return Err(LockError::Held(read_pid(&file)));
        }
        let lock = Self { file };
        lock.write_pid();
        Ok(lock)
    }

    /// Overwrites the old pid in place, because a full disk may have no other block. The pid is only for messages, so a
    /// failure does not keep the lock from its holder.
    fn write_pid(&self) {
        let text = format!("{}\n", std::process::id());
        let written = files::write_all(&self.file, text.as_bytes())
            .and_then(|()| files::cut(&self.file, text.len() as u64));
        if written.is_err() {
            // Better no pid than that of another process.
            drop(files::cut(&self.file, 0));
        }
    }
}

fn read_pid(file: &OwnedFd) -> Option<u32> {
    let mut text = [0; MAX_PID_TEXT];
    let count = files::read_at(file, &mut text, 0).ok()?;
    // For a moment the rest of a longer pid may follow.
    std::str::from_utf8(text.get(..count)?).ok()?.lines().next()?.parse().ok()
}
