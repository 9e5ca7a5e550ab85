//! Delivery of the step results and events: [`TraceSink`] stores them, [`TraceFeed`] wakes followers, a [`TraceCursor`] reads.
//!
//! The order is fixed: results and events are appended to the job's `steps` file, and every follower reads it from the
//! start (service.md §3.3).

mod cursor;
mod places;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use actix::{Actor, AsyncContext, Context, Handler, WeakAddr};
use parking_lot::Mutex;

use super::followers::{Followers, OpenFileGuard, out_of_descriptors};
use super::log_sink::LogFeed;
use super::messages::{Append, AppendEvent, Flush};
use super::sync_group::{Growing, SyncGroup};
use super::watched::{Seen, Watched};
use crate::error::Chain;
use crate::failpoint;
use crate::job::event::ProcessNumber;
use crate::model::{Reason, Refusal};
use crate::store::{JobFolder, StepsFile, StoreError};
pub use cursor::{EventCursor, TraceCursor, TracePart};
use places::Places;

#[derive(Clone, Copy, Default)]
struct Progress {
    len: u64,
    ended: bool,
    /// See [`TraceFeed::lose`].
    lost: bool,
}

/// State shared by all followers of one job's results.
pub(crate) struct TraceFeed {
    progress: Watched<Progress>,
    /// Length of the file. Followers may see less, while the rest is not on the disk.
    written: AtomicU64,
    group: Option<Arc<SyncGroup>>,
    followers: Arc<Followers<StepsFile>>,
    /// True once a client has asked for events of steps: from then on they are written at once.
    is_watched: AtomicBool,
    places: Mutex<Places>,
    /// The actor, which may hold events that are not written yet.
    sink: Mutex<Option<WeakAddr<TraceSink>>>,
}

impl TraceFeed {
    /// Creates a feed of a file that is `len` bytes long.
    pub(crate) fn new(len: u64, ended: bool) -> Arc<Self> {
        Self::with(len, ended, None)
    }

    /// Creates a feed of the growing file of a new job. With a `group`, followers can read bytes only after it has synced
    /// them.
    pub(super) fn growing(group: Option<Arc<SyncGroup>>) -> Arc<Self> {
        let feed = Self::with(0, false, group);
        // The job's own start comes before everything in its log.
        feed.places.lock().next = Some(0);
        feed
    }

    /// Like [`Self::growing`], for a job whose record is to be replayed. Followers can read the first `len` bytes at once.
    /// They get no mark before [`Self::settled`].
    pub(super) fn replaying(len: u64, group: Option<Arc<SyncGroup>>) -> Arc<Self> {
        let feed = Self::with(len, false, group);
        feed.places.lock().is_replaying = true;
        feed
    }

    fn with(len: u64, ended: bool, group: Option<Arc<SyncGroup>>) -> Arc<Self> {
        let progress = Watched::new(Progress { len, lost: false, ended });
        let followers = Followers::new("these step results");
        let (is_watched, places, sink) = (AtomicBool::new(false), Mutex::default(), Mutex::new(None));
        let written = AtomicU64::new(len);
        Arc::new(Self { progress, written, group, followers, is_watched, places, sink })
    }

    /// Notes that the file grew by this number of bytes.
    pub(super) fn grow(self: &Arc<Self>, by: u64) {
        let len = self.written.fetch_add(by, Ordering::AcqRel) + by;
        match &self.group {
            Some(group) => group.grew(Arc::clone(self) as Arc<dyn Growing>),
            None => self.synced(len),
        }
    }

    /// Notes that a client wants events of steps at once.
    pub(crate) fn watch(&self) {
        self.is_watched.store(true, Ordering::Release);
        let sink = self.sink.lock().as_ref().and_then(WeakAddr::upgrade);
        if let Some(sink) = sink {
            // If the mailbox is full, a result is about to be written, and waiting events go with it.
            drop(sink.try_send(Flush { last: false }));
        }
    }

    /// Notes that another writer has extended the file to `len` bytes. Followers see it with the next growth or the
    /// end.
    pub(super) fn reach(&self, len: u64) {
        self.written.fetch_max(len, Ordering::AcqRel);
    }

    /// Notes that results are lost: a sync failed or the disk refused them to the end. Followers hear of it after the
    /// results that exist.
    pub(crate) fn lose(&self) {
        self.progress.change(|p| p.lost = true);
    }

    /// Notes that the file is complete, and synced if it has to be.
    pub(crate) fn end(&self) {
        let len = self.written.load(Ordering::Acquire);
        self.progress.change(|p| {
            p.ended = true;
            if !p.lost {
                p.len = len;
            }
        });
    }

    /// Returns the place of an event that happens now: behind all that any follower was told to be certain, and behind the
    /// events before. `known` is the length of the log at the event, if the keeper has told it.
    pub(super) fn place(&self, log: &LogFeed, known: Option<u64>) -> u64 {
        self.places.lock().place(known.unwrap_or_else(|| log.reported_len()))
    }

    /// Notes that the process of a step has ended, by the keeper's report: its end comes at this place.
    pub(super) fn expect_end(&self, process: ProcessNumber, log_len: u64) {
        self.places.lock().expected.push((process, log_len));
    }

    /// Notes that the next event is behind all that is in the log by now. [`Self::place`] follows.
    pub(super) fn expect_next(&self, log: &LogFeed) {
        self.places.lock().next = Some(log.reported_len());
    }

    /// Notes that all events so far have their places: forgets expected ends of processes for which `is_told` holds.
    pub(super) fn settled(&self, is_told: impl Fn(ProcessNumber) -> bool) {
        let was_replaying = {
            let mut places = self.places.lock();
            places.expected.retain(|(process, _)| !is_told(*process));
            std::mem::take(&mut places.is_replaying)
        };
        if was_replaying {
            // Followers wait for a mark.
            self.progress.change(|_| {});
        }
    }

    /// Notes that all events so far are written.
    fn placed(&self) {
        let written = self.written.load(Ordering::Acquire);
        self.places.lock().written(written);
    }

    /// Returns the length of the log up to which every event is visible to followers.
    pub(crate) fn mark(&self, log: &LogFeed) -> u64 {
        let mut places = self.places.lock();
        places.visible(self.progress.get().len);
        places.mark(log.len())
    }

    /// Sets followers a deadline, because the job is being removed ([`Followers::expire`]).
    pub(super) fn expire(&self) {
        self.followers.expire();
    }

    /// Keeps the results in `folder` open: while the return value lives, new followers can read them despite a removal.
    pub(super) fn hold(&self, folder: &JobFolder) -> Option<OpenFileGuard<StepsFile>> {
        // `None` if no descriptor is left or there are no results.
        folder.open_steps().ok().map(|file| self.followers.hold(file))
    }

    /// Adds a follower of the results in `folder`, if there are fewer than `max`. It can read to the end even if the
    /// folder is removed meanwhile, unless it takes too long.
    pub(crate) fn follow(self: &Arc<Self>, folder: &JobFolder, max: usize) -> Result<TraceCursor, Refusal> {
        let Progress { len, ended, .. } = self.progress.get();
        let cursor =
            |follower| TraceCursor { feed: Arc::clone(self), seen: Seen::default(), follower, offset: 0 };
        if let Some(joined) = self.followers.join_open(max) {
            return Ok(cursor(Some(joined?)));
        }
        let file = if ended && len == 0 {
            None
        } else if ended {
            Some(folder.open_steps())
        } else {
            Some(folder.open_growing_steps())
        };
        let file = file
            .transpose()
            .map_err(|e| out_of_descriptors(&e).unwrap_or_else(|| lost(&Chain(&e).to_string())))?;
        let follower = file.map(|file| self.followers.join(file, max)).transpose()?;
        Ok(cursor(follower))
    }
}

impl Growing for TraceFeed {
    fn written(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    /// Each result has its own check sum, so no length is noted.
    fn note(&self, _: u64) -> Result<(), StoreError> {
        Ok(())
    }

    fn synced(&self, len: u64) {
        self.progress.change(|p| {
            if !p.lost {
                p.len = p.len.max(len);
            }
        });
    }
}

fn lost(what: &str) -> Refusal {
    Refusal::new(Reason::DataLoss, format!("the step results cannot be read: {what}"))
}

/// The actor that appends results and events to the `steps` file.
pub(crate) struct TraceSink {
    feed: Arc<TraceFeed>,
    folder: JobFolder,
    /// Framed results that the disk refused and events that nobody has asked for. They are written before the next
    /// result, so that the order has no gap. Bounded by what the steps of one job return.
    waiting: Vec<u8>,
}

impl TraceSink {
    /// Creates the sink of `feed`.
    pub(crate) const fn new(feed: Arc<TraceFeed>, folder: JobFolder) -> Self {
        Self { feed, folder, waiting: Vec::new() }
    }

    fn write(&mut self) -> Result<(), StoreError> {
        if !self.waiting.is_empty() {
            let foreign = self.folder.cut_steps_behind(self.feed.written())?;
            if foreign > 0 {
                let key = self.folder.key();
                tracing::warn!(%key, "{foreign} bytes that another process wrote to a job's step results were removed");
            }
            self.folder.append_steps(&self.waiting)?;
            self.feed.grow(self.waiting.len() as u64);
            self.feed.placed();
            self.waiting = Vec::new();
        }
        Ok(())
    }
}

impl Actor for TraceSink {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        *self.feed.sink.lock() = Some(ctx.address().downgrade());
    }
}

impl Handler<Append> for TraceSink {
    type Result = Result<(), StoreError>;

    fn handle(&mut self, Append(all): Append, _: &mut Self::Context) -> Self::Result {
        failpoint::hit("actors::trace_sink::append");
        for stored in all {
            self.folder.frame_step(stored.bytes(), &mut self.waiting)?;
        }
        self.write()
    }
}

impl Handler<AppendEvent> for TraceSink {
    type Result = ();

    fn handle(&mut self, AppendEvent(event): AppendEvent, _: &mut Self::Context) {
        let framed = self.folder.frame_step(event.bytes(), &mut self.waiting);
        let is_watched = self.feed.is_watched.load(Ordering::Acquire);
        let stored = framed.and_then(|()| if is_watched { self.write() } else { Ok(()) });
        if let Err(error) = stored {
            let key = self.folder.key();
            tracing::warn!(error = %Chain(&error), %key, "an event of a step is not stored yet");
        }
    }
}

impl Handler<Flush> for TraceSink {
    type Result = Result<(), StoreError>;

    fn handle(&mut self, Flush { last }: Flush, _: &mut Self::Context) -> Self::Result {
        self.write().inspect_err(|_| {
            if last {
                self.feed.lose();
            }
        })
    }
}
