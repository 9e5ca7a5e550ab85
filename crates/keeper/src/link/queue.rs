//! The queue of frames to the keeper: frames of many jobs go out in one write, because each write wakes the keeper.

use std::pin::Pin;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, Sleep};

use super::READ_CHUNK;

/// Longest time that a request waits for company ([`KeeperLink::tell_later`](super::KeeperLink::tell_later)).
const LATER: Duration = Duration::from_millis(50);

/// A frame in the queue. Frames are sent in the order of the queue, whether they may wait or not.
pub(super) struct Queued {
    pub(super) bytes: Vec<u8>,
    /// True if it may wait for the next frame that may not: each write wakes the keeper.
    pub(super) may_wait: bool,
    /// Told once the frame is in the socket.
    pub(super) sent: Option<oneshot::Sender<()>>,
}

/// Frames to write at once.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) bytes: Vec<u8>,
    /// Told once all of `bytes` are in the socket.
    pub(super) sent: Vec<oneshot::Sender<()>>,
}

impl Batch {
    /// Adds a frame. Returns false if it must not wait for others.
    fn add(&mut self, Queued { bytes, may_wait, sent }: Queued) -> bool {
        if self.bytes.is_empty() {
            self.bytes = bytes;
        } else {
            self.bytes.extend_from_slice(&bytes);
        }
        self.sent.extend(sent);
        may_wait
    }
}

/// Batches in a row that no frame of another task joined. From then on only some batches wait for company …
const ALONE: u32 = 4;

/// … one in so many.
const LOOK_FOR_COMPANY: u32 = 16;

/// Puts frames together: every write wakes the keeper.
pub(super) struct FrameQueue {
    frames: mpsc::UnboundedReceiver<Queued>,
    /// End of the wait for company, at most [`LATER`] away. It runs on when company came earlier: each setting of a
    /// timer wakes this thread.
    late: Pin<Box<Sleep>>,
    is_late_set: bool,
    /// Number of batches in a row that waited in vain, or did not wait.
    alone: u32,
}

impl FrameQueue {
    pub(super) fn new(frames: mpsc::UnboundedReceiver<Queued>) -> Self {
        Self { frames, late: Box::pin(tokio::time::sleep(LATER)), is_late_set: false, alone: 0 }
    }

    /// Returns the frames to write next, in order; `None` once there are no more.
    pub(super) async fn next_batch(&mut self) -> Option<Batch> {
        let mut batch = Batch::default();
        let mut may_wait = batch.add(self.frames.recv().await?);
        while may_wait && batch.bytes.len() < READ_CHUNK {
            let Some(frame) = self.next_unless_late().await else { break };
            may_wait = batch.add(frame);
        }
        self.add_queued(&mut batch);
        // With many jobs the other tasks queue frames that can go with this write. A job alone has no such tasks, and
        // its next process would start only after whatever its followers are sent.
        if self.alone < ALONE || self.alone.is_multiple_of(LOOK_FOR_COMPANY) {
            tokio::task::yield_now().await;
            self.alone = if self.add_queued(&mut batch) { 0 } else { self.alone.wrapping_add(1) };
        } else {
            self.alone = self.alone.wrapping_add(1);
        }
        Some(batch)
    }

    /// Adds the frames that are queued. True if there were any.
    fn add_queued(&mut self, batch: &mut Batch) -> bool {
        let before = batch.bytes.len();
        while batch.bytes.len() < READ_CHUNK
            && let Ok(frame) = self.frames.try_recv()
        {
            batch.add(frame);
        }
        batch.bytes.len() > before
    }

    /// Returns the next frame; `None` if none comes in time, or none will come any more.
    async fn next_unless_late(&mut self) -> Option<Queued> {
        if !self.is_late_set || self.late.is_elapsed() {
            self.late.as_mut().reset(Instant::now() + LATER);
            self.is_late_set = true;
        }
        tokio::select! {
            biased;
            frame = self.frames.recv() => frame,
            () = self.late.as_mut() => None,
        }
    }
}
