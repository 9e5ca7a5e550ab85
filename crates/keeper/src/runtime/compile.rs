//! Prepares phrases: a few at once, many on a separate thread, so that no pipe waits for it (masking.md §7,
//! faults.md row 40).

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use rustix::event::EventfdFlags;

use super::masking::{Masking, MaskingSource};
use crate::core::Serial;
use step_runner_log::mask::{MaskLimitError, MaskWarning};
use step_runner_system::failpoint;

/// Phrases up to this many bytes are prepared on the main thread, in some hundred microseconds.
const FEW_BYTES: usize = 4 << 10;

/// Stack size of the thread; nothing on it recurses.
const STACK: usize = 512 << 10;

/// Result of a [`PhraseWork`].
pub(super) type Prepared = Result<(Masking, Vec<MaskWarning>), MaskLimitError>;

/// Phrases to prepare.
pub(super) enum PhraseWork {
    /// All phrases of a new job.
    New(MaskingSource),
    /// Further phrases of a job.
    Add(Masking, Vec<Vec<u8>>),
}

/// Queue of large phrase sets. Each is prepared on a thread of its own, one at a time.
pub(super) struct Compiler {
    wake: Arc<OwnedFd>,
    to_us: Sender<(Serial, Prepared)>,
    done: Receiver<(Serial, Prepared)>,
    waiting: VecDeque<(Serial, PhraseWork)>,
    busy: bool,
}

impl PhraseWork {
    /// True if the work is too small to need a thread.
    pub(super) fn is_small(&self) -> bool {
        let (Self::New(MaskingSource { phrases, .. }) | Self::Add(_, phrases)) = self;
        let known = match self {
            Self::New(_) => 0,
            Self::Add(masking, _) => masking.phrase_bytes(),
        };
        known + phrases.iter().map(Vec::len).sum::<usize>() <= FEW_BYTES
    }

    /// Prepares the phrases on the calling thread.
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

    /// Returns a descriptor that is readable when [`Compiler::finished`] has a result.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    pub(super) fn submit(&mut self, serial: Serial, work: PhraseWork) {
        self.waiting.push_back((serial, work));
        self.start();
    }

    /// Takes one result, if there is one.
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
            // No thread left (limit on processes): prepare here, though the pipes wait for it.
            deliver(serial, &work, &self.to_us, &self.wake);
        }
    }
}

fn deliver(serial: Serial, work: &PhraseWork, to_us: &Sender<(Serial, Prepared)>, wake: &OwnedFd) {
    // Both fail only when the keeper is ending.
    to_us.send((serial, work.run())).ok();
    rustix::io::retry_on_intr(|| rustix::io::write(wake, &1_u64.to_ne_bytes())).ok();
}
