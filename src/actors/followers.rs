//! What all who follow one file of a job share: how many they may be, one descriptor, and the time when they must be done.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

use crate::model::{Reason, Refusal};

/// How long a follower may still drain after Finish (service.md §3.2).
const DRAIN_TIME: Duration = Duration::from_mins(1);

/// See the module's text. `F` is the open file.
pub(super) struct Followers<F> {
    /// What they read, for people.
    what: &'static str,
    count: AtomicUsize,
    /// The descriptor, as long as somebody reads.
    open: Mutex<Weak<Open<F>>>,
    /// When it is taken from them.
    closes: Mutex<Option<Instant>>,
}

/// `None`: it was taken from them.
struct Open<F>(Mutex<Option<Arc<F>>>);

/// One of them. Dropping it is leaving.
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

    /// One more, if there are less than `max`. They read the file that was opened first: each at its own offset, and there
    /// may be many. `opened` is the same file.
    pub(super) fn join(self: &Arc<Self>, opened: F, max: usize) -> Result<Follower<F>, Refusal> {
        if self.count.fetch_add(1, Ordering::Relaxed) >= max {
            self.count.fetch_sub(1, Ordering::Relaxed);
            let text = format!("{max} followers read {} already", self.what);
            return Err(Refusal::for_now(Reason::TooManyFollowers, text, Duration::from_secs(1)));
        }
        let mut shared = self.open.lock();
        let open = shared.upgrade().unwrap_or_else(|| Arc::new(Open(Mutex::new(Some(Arc::new(opened))))));
        *shared = Arc::downgrade(&open);
        drop(shared);
        let follower = Follower { all: Arc::clone(self), open };
        if let Some(at) = *self.closes.lock() {
            self.close_at(at);
        }
        Ok(follower)
    }

    /// The job is removed: who follows has [`DRAIN_TIME`] left. Then the file is closed, whether or not anybody looks: one
    /// whose client does not read is not asked for more, and would keep the space on the disk.
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
    /// The file, as long as it may be read.
    pub(super) fn file(&self) -> Result<Arc<F>, Refusal> {
        self.open.0.lock().clone().ok_or_else(|| {
            let text = format!("the job was finished and this follower did not read on for {DRAIN_TIME:?}");
            Refusal::new(Reason::FollowersDropped, text)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tells when it is closed.
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
