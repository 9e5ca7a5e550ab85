//! Preparing phrases: at once if they are few, else on a thread of its own, so that no pipe waits for it
//! (masking.md §7, faults.md row 40).

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use rustix::event::EventfdFlags;

use super::output::{Masking, MaskingSource};
use super::protocol::Request;
use super::shared::{ReplyTo, Serial};
use crate::failpoint;
use crate::log::mask::{MaskLimitError, MaskWarning};

/// Up to so many bytes of phrases are prepared at once: some hundred microseconds.
const FEW_BYTES: usize = 4 << 10;

/// Stack of the thread; it recurses nowhere.
const STACK: usize = 512 << 10;

/// What becomes of a [`Work`].
pub(super) type Prepared = Result<(Masking, Vec<MaskWarning>), MaskLimitError>;

/// Phrases to prepare.
pub(super) enum Work {
    /// Of a new job.
    New(MaskingSource),
    /// That became known.
    Add(Masking, Vec<Vec<u8>>),
}

/// A job whose phrases are being prepared.
pub(super) struct Blocked {
    /// Who asked for it.
    pub(super) asker: ReplyTo,
    /// The job is new: it is forgotten if the phrases cannot be used.
    pub(super) is_new: bool,
    /// Requests that came since, in order.
    pub(super) requests: VecDeque<(ReplyTo, Request)>,
}

/// At most one thread, which ends when nothing is to be done.
pub(super) struct Compiler {
    wake: Arc<OwnedFd>,
    to_us: Sender<(Serial, Prepared)>,
    done: Receiver<(Serial, Prepared)>,
    waiting: VecDeque<(Serial, Work)>,
    busy: bool,
}

impl Work {
    /// So little that it need not be handed to the thread.
    pub(super) fn is_small(&self) -> bool {
        let (Self::New(MaskingSource { phrases, .. }) | Self::Add(_, phrases)) = self;
        let known = match self {
            Self::New(_) => 0,
            Self::Add(masking, _) => masking.phrase_bytes(),
        };
        known + phrases.iter().map(Vec::len).sum::<usize>() <= FEW_BYTES
    }

    /// Does it here and now.
    pub(super) fn run(&self) -> Prepared {
        match self {
            Self::New(source) => Masking::build(source),
            Self::Add(masking, phrases) => {
                let refused = MaskLimitError::TooManyPhrases { count: phrases.len(), limit: 0 };
                failpoint::io("keeper::compile::add").map_err(|_| refused)?;
                masking.with_added(phrases)
            }
        }
    }
}

impl Compiler {
    pub(super) fn new() -> rustix::io::Result<Self> {
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (to_us, done) = channel();
        Ok(Self { wake: Arc::new(wake), to_us, done, waiting: VecDeque::new(), busy: false })
    }

    /// Readable when [`Compiler::finished`] has something.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Queues work for job `serial`.
    pub(super) fn submit(&mut self, serial: Serial, work: Work) {
        self.waiting.push_back((serial, work));
        self.start();
    }

    /// Takes what is done.
    pub(super) fn finished(&mut self) -> Option<(Serial, Prepared)> {
        rustix::io::read(&self.wake, &mut [0; 8]).ok();
        let done = self.done.try_recv().ok()?;
        self.busy = false;
        self.start();
        Some(done)
    }

    fn start(&mut self) {
        if self.busy {
            return;
        }
        let Some((serial, work)) = self.waiting.pop_front() else { return };
        self.busy = true;
        let work = Arc::new(work);
        let run = {
            let (work, to_us, wake) = (Arc::clone(&work), self.to_us.clone(), Arc::clone(&self.wake));
            move || deliver(serial, &work, &to_us, &wake)
        };
        let thread = thread::Builder::new().name("phrases".to_owned()).stack_size(STACK).spawn(run);
        if thread.is_err() {
            // No thread to be had (limit of processes): late is better than never.
            deliver(serial, &work, &self.to_us, &self.wake);
        }
    }
}

fn deliver(serial: Serial, work: &Work, to_us: &Sender<(Serial, Prepared)>, wake: &OwnedFd) {
    // Both fail only when the keeper is ending.
    to_us.send((serial, work.run())).ok();
    rustix::io::retry_on_intr(|| rustix::io::write(wake, &1_u64.to_ne_bytes())).ok();
}
