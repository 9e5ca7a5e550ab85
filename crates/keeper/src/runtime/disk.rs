//! Syncs for `durability = power` while no daemon does (service.md §6.6). Nobody follows a log then, but little of it
//! may be lost.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};

use step_runner_system::files;

/// Time between syncs, as in the daemon. With the time of a sync, less than a second of a log may be lost.
const INTERVAL: Duration = Duration::from_millis(500);

/// Syncs on a separate thread: a sync may take long, and pipes must be read meanwhile.
#[derive(Default)]
pub(super) struct Disk {
    thread: Option<SyncSender<()>>,
    failed: Arc<AtomicBool>,
    asked: Option<Instant>,
}

impl Disk {
    /// Returns when to call [`Disk::sync`], if there has been something to sync since `since`.
    pub(super) fn due(&self, since: Instant) -> Instant {
        self.asked.map_or(since, |asked| asked.max(since)) + INTERVAL
    }

    /// Requests a sync of the file system of `directory`. False if an earlier sync failed: written bytes may be lost.
    pub(super) fn sync(&mut self, directory: &OwnedFd, now: Instant) -> bool {
        self.asked = Some(now);
        if self.thread.is_none() {
            self.thread = start(directory, Arc::clone(&self.failed)).ok();
        }
        if let Some(thread) = &self.thread {
            // A thread that is still syncing keeps one further request queued.
            thread.try_send(()).ok();
        }
        !self.failed.load(Ordering::Relaxed)
    }
}

/// Starts the thread, which ends when the sender is dropped. A process that it starts would die with it.
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
