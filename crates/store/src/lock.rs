//! Exclusive locks: of the state folder, of the keeper, of a socket.
//!
//! The lock is the kernel's (flock). It ends with its holder, however the holder ends, and programs that the holder
//! starts do not inherit it. A forked copy of the holder keeps it only until the copy executes such a program. If the
//! holder is killed in that moment, the lock outlives it briefly, and we wait. The file stays, because after a
//! removal two processes could lock two files of one name. It holds the pid of the holder.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::process::Pid;

use step_runner_system::files;

/// Longest wait for something that a dead process left open. On a busy machine, its forked copy may need that long to
/// execute its program.
const REMAINS_TIME: Duration = Duration::from_secs(5);

/// Time between two checks of something that a dead process left open. The kernel gives no notice of its end.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);

/// Longest content of a lock file: a pid and a line feed.
const MAX_PID_TEXT: usize = 16;

/// A lock held until this value is dropped.
#[derive(Debug)]
pub struct Lock {
    file: OwnedFd,
}

/// Reason why a lock was not taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process holds it. The pid is missing for a moment until it is written, or if there was no room for it.
    #[error("the lock is held by {}", holder(*.0))]
    Held(Option<u32>),
    /// The file cannot be used.
    #[error(transparent)]
    Io(#[from] io::Error),
}

fn holder(pid: Option<u32>) -> String {
    pid.map_or_else(|| "another process".to_owned(), |pid| format!("pid {pid}"))
}

impl Lock {
    /// Takes the lock of an open file. Fails if it is held: at once if its holder lives, after [`REMAINS_TIME`] if not.
    pub fn take(file: OwnedFd) -> Result<Self, LockError> {
        let taken = outwait_the_dead(
            || if files::try_lock(&file)? { Ok(()) } else { Err(LockError::Held(read_pid(&file))) },
            |error| if let LockError::Held(pid) = error { *pid } else { None },
        );
        taken?;
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

/// Calls `attempt` until it succeeds, or until it fails for a reason other than a dead process that left something
/// open. `holder` returns the pid of the process that an error names. Gives up after [`REMAINS_TIME`].
pub(super) fn outwait_the_dead<T, E>(
    mut attempt: impl FnMut() -> Result<T, E>,
    holder: impl Fn(&E) -> Option<u32>,
) -> Result<T, E> {
    let start = Instant::now();
    loop {
        match attempt() {
            Err(error) if holder(&error).is_some_and(is_dead) && start.elapsed() < REMAINS_TIME => {
                std::thread::sleep(LOOK_INTERVAL);
            }
            result => return result,
        }
    }
}

fn is_dead(pid: u32) -> bool {
    i32::try_from(pid)
        .ok()
        .and_then(Pid::from_raw)
        .is_some_and(|pid| rustix::process::test_kill_process(pid) == Err(rustix::io::Errno::SRCH))
}
