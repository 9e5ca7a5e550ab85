//! What the keeper does for `durability = power` while no daemon is there to do it (service.md §6.6): nobody sees what
//! it writes then, but little of it may be lost.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};

use crate::files;

/// As often as the daemon does: with the time of a sync, less than a second of a log may be lost.
const INTERVAL: Duration = Duration::from_millis(500);

/// Syncs on a thread of its own: a sync may take long, and pipes are to be read meanwhile.
#[derive(Default)]
pub(super) struct Disk {
    thread: Option<SyncSender<()>>,
    failed: Arc<AtomicBool>,
    asked: Option<Instant>,
}

impl Disk {
    /// When to call [`Disk::sync`], if there has been something to sync since `since`.
    pub(super) fn due(&self, since: Instant) -> Instant {
        self.asked.map_or(since, |asked| asked.max(since)) + INTERVAL
    }

    /// Has the file system of `directory` synced. `false`: an earlier sync failed, and what was written may be lost.
    pub(super) fn sync(&mut self, directory: &OwnedFd, now: Instant) -> bool {
        self.asked = Some(now);
        if self.thread.is_none() {
            self.thread = start(directory, Arc::clone(&self.failed)).ok();
        }
        if let Some(thread) = &self.thread {
            // One that is still at it has missed nothing: it is asked again.
            thread.try_send(()).ok();
        }
        !self.failed.load(Ordering::Relaxed)
    }
}

/// Ends when the sender is dropped. Starts no process: those would die with it.
fn start(directory: &OwnedFd, failed: Arc<AtomicBool>) -> io::Result<SyncSender<()>> {
    let directory = directory.try_clone()?;
    let (sender, asked) = sync_channel(1);
    std::thread::Builder::new().name("sync".into()).spawn(move || {
        while asked.recv().is_ok() {
            if files::sync_all(&directory).is_err() {
                failed.store(true, Ordering::Relaxed);
            }
        }
    })?;
    Ok(sender)
}
