//! State shared by all followers of one file of a job: their number, one descriptor, and the deadline after Finish.

use std::error::Error;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

use crate::model::{Reason, Refusal};

/// Time that a follower may go on reading after Finish (service.md §3.2).
const DRAIN_TIME: Duration = Duration::from_mins(1);

/// State shared by all followers; see the module. `F` is the open file.
pub(super) struct Followers<F> {
    /// Name of the file, for messages.
    what: &'static str,
    count: AtomicUsize,
    /// The descriptor, while it has readers.
    open: Mutex<Weak<Open<F>>>,
    /// Deadline at which the file is closed.
    closes: Mutex<Option<Instant>>,
}

/// The shared file. `None` once the deadline has closed it.
struct Open<F>(Mutex<Option<Arc<F>>>);

/// Keeps a file open that may have no reader.
pub(super) struct OpenFileGuard<F>(#[expect(dead_code, reason = "held for its drop")] Arc<Open<F>>);

/// One follower. Dropping it ends the following.
pub(super) struct Follower<F> {
    all: Arc<Followers<F>>,
    open: Arc<Open<F>>,
}

impl<F> Drop for Follower<F> {
    fn drop(&mut self) {
        self.all.count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<F: Send + Sync + 'static> Followers<F> {
    pub(super) fn new(what: &'static str) -> Arc<Self> {
        Arc::new(Self { what, count: AtomicUsize::new(0), open: Mutex::default(), closes: Mutex::new(None) })
    }

    /// Adds a follower, if there are fewer than `max`. All followers share the file that was opened first, each with
    /// its own offset, because there can be many. `opened` must be the same file.
    pub(super) fn join(self: &Arc<Self>, opened: F, max: usize) -> Result<Follower<F>, Refusal> {
        self.enter(max)?;
        let mut shared = self.open.lock();
        let open = shared.upgrade().unwrap_or_else(|| Arc::new(Open(Mutex::new(Some(Arc::new(opened))))));
        *shared = Arc::downgrade(&open);
        drop(shared);
        Ok(self.follower(open))
    }

    /// Counts one more follower, if there are fewer than `max`.
    fn enter(&self, max: usize) -> Result<(), Refusal> {
        if self.count.fetch_add(1, Ordering::Relaxed) >= max {
            self.count.fetch_sub(1, Ordering::Relaxed);
            let text = format!("{max} followers read {} already", self.what);
            return Err(Refusal::for_now(Reason::TooManyFollowers, text, Duration::from_secs(1)));
        }
        Ok(())
    }

    fn follower(self: &Arc<Self>, open: Arc<Open<F>>) -> Follower<F> {
        let follower = Follower { all: Arc::clone(self), open };
        if let Some(at) = *self.closes.lock() {
            self.close_at(at);
        }
        follower
    }

    /// Keeps the file open for later followers while the return value lives. `opened` is used only if the file is not
    /// open already.
    pub(super) fn hold(&self, opened: F) -> OpenFileGuard<F> {
        let mut shared = self.open.lock();
        let open = shared.upgrade().unwrap_or_else(|| Arc::new(Open(Mutex::new(Some(Arc::new(opened))))));
        *shared = Arc::downgrade(&open);
        OpenFileGuard(open)
    }

    /// Joins like [`Self::join`] if the file is open already; its name may be gone.
    pub(super) fn join_open(self: &Arc<Self>, max: usize) -> Option<Result<Follower<F>, Refusal>> {
        let open = self.open.lock().upgrade()?;
        Some(self.enter(max).map(|()| self.follower(open)))
    }

    /// Gives followers [`DRAIN_TIME`] to finish, because the job is being removed. Then the file is closed, even if
    /// nobody polls the follower: a follower whose client does not read would keep the disk space forever.
    pub(super) fn expire(self: &Arc<Self>) {
        let at = Instant::now() + DRAIN_TIME;
        *self.closes.lock() = Some(at);
        if self.count.load(Ordering::Relaxed) > 0 {
            self.close_at(at);
        }
    }

    fn close_at(self: &Arc<Self>, at: Instant) {
        let all = Arc::clone(self);
        tokio::spawn(async move {
            sleep_until(at).await;
            if let Some(open) = all.open.lock().upgrade() {
                open.0.lock().take();
            }
        });
    }
}

impl<F> Follower<F> {
    /// Returns the file, until the deadline.
    pub(super) fn file(&self) -> Result<Arc<F>, Refusal> {
        self.open.0.lock().clone().ok_or_else(|| {
            let text = format!("the job was finished and this follower did not read on for {DRAIN_TIME:?}");
            Refusal::new(Reason::FollowersDropped, text)
        })
    }
}

/// Returns a refusal if `error` says that no file descriptor is left. Nothing is lost then, and the follower can try
/// again.
pub(super) fn out_of_descriptors(error: &(dyn Error + 'static)) -> Option<Refusal> {
    let mut chain = std::iter::successors(Some(error), |&error| error.source());
    let out = |error: &io::Error| matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE));
    chain.any(|error| error.downcast_ref().is_some_and(out)).then(|| {
        let text = "the daemon has no descriptor left to read for one more";
        Refusal::for_now(Reason::TooManyFollowers, text, Duration::from_secs(1))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Its count shows when it is closed.
    #[cfg(feature = "failpoints")]
    struct File(Arc<()>);

    #[cfg(feature = "failpoints")] // which brings virtual time
    #[tokio::test(start_paused = true)]
    async fn a_removed_file_is_closed_in_time_though_nobody_reads_it() {
        let held = Arc::new(());
        let followers = Followers::new("this");
        let early = followers.join(File(Arc::clone(&held)), 2).unwrap();
        followers.expire();
        tokio::time::sleep(DRAIN_TIME / 2).await;
        let late = followers.join(File(Arc::new(())), 2).unwrap();
        assert!(Arc::ptr_eq(&early.file().unwrap().0, &late.file().unwrap().0), "one descriptor for both");
        assert_eq!(Arc::strong_count(&held), 2);
        tokio::time::sleep(DRAIN_TIME).await;
        assert_eq!(Arc::strong_count(&held), 1, "its space is free");
        for follower in [early, late] {
            assert_eq!(follower.file().err().map(|refusal| refusal.reason), Some(Reason::FollowersDropped));
        }
    }

    #[tokio::test]
    async fn there_is_room_again_when_one_leaves() {
        let followers = Followers::new("this");
        let first = followers.join((), 1).unwrap();
        let refusal = followers.join((), 1).err().unwrap();
        assert_eq!(refusal.reason, Reason::TooManyFollowers);
        assert!(refusal.retry_after.is_some());
        drop(first);
        followers.join((), 1).unwrap();
    }
}
