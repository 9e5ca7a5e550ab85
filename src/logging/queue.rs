//! A bounded queue of lines, and the thread that writes them.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// Maximum number of bytes that wait. Beyond it, lines are dropped.
const MAX_BYTES: usize = 256 << 10;

/// Maximum number of bytes written at once. A pipe that has room for any bytes takes this many without a wait in
/// between.
const MAX_WRITE: usize = 4 << 10;

/// Pause between two rounds of writing: a line that follows another one soon wakes nobody.
const PAUSE: Duration = Duration::from_millis(10);

/// Lines are taken again once so few bytes wait, after a report of the number dropped.
const RESUME_BYTES: usize = MAX_BYTES / 2;

/// A queue with its writer's thread. Clones share it.
#[derive(Clone)]
pub(super) struct LineQueue(Arc<QueueShared>);

struct QueueShared {
    state: Mutex<QueueState>,
    /// Signalled when there is something to write.
    work: Condvar,
    /// Signalled when everything is written.
    idle: Condvar,
}

struct QueueState {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Dropped lines that were not reported yet.
    dropped: u64,
    /// True while lines are dropped.
    is_full: bool,
    /// True once writing may begin.
    is_open: bool,
    stage: WritingStage,
    /// True while somebody waits for the end of the writing.
    is_hurried: bool,
    /// The writer's thread: its line about dropped ones always finds room.
    writer: Option<ThreadId>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum WritingStage {
    /// The writer waits to be woken.
    Waiting,
    /// Lines are written.
    Writing,
    /// The writer pauses. It looks for lines by itself, unless somebody is in a hurry.
    Pausing,
}

impl LineQueue {
    /// Starts a thread that writes to `target`, at once or after [`Self::open`].
    pub(super) fn start(target: impl Write + Send + 'static, is_open: bool) -> io::Result<Self> {
        let state = QueueState {
            lines: VecDeque::new(),
            bytes: 0,
            dropped: 0,
            is_full: false,
            is_open,
            stage: WritingStage::Waiting,
            is_hurried: false,
            writer: None,
        };
        let shared = QueueShared { state: Mutex::new(state), work: Condvar::new(), idle: Condvar::new() };
        let queue = Self(Arc::new(shared));
        let writer = queue.clone();
        std::thread::Builder::new().name("log".into()).spawn(move || writer.write_lines(target))?;
        Ok(queue)
    }

    /// Queues a line, or drops it if there is no room. Never waits for the writer.
    pub(super) fn push(&self, line: &[u8]) {
        let mut state = self.0.state.lock();
        let is_own = state.writer == Some(std::thread::current().id());
        state.is_full |= state.bytes + line.len() > MAX_BYTES;
        if state.is_full && !is_own {
            state.dropped += 1;
            return;
        }
        state.bytes += line.len();
        state.lines.push_back(line.to_vec());
        if state.stage != WritingStage::Pausing || state.bytes > RESUME_BYTES {
            self.0.work.notify_one();
        }
    }

    /// Begins the writing.
    pub(super) fn open(&self) {
        self.0.state.lock().is_open = true;
        self.0.work.notify_one();
    }

    pub(super) fn is_open(&self) -> bool {
        self.0.state.lock().is_open
    }

    /// Waits until everything is written, or until `limit` is over.
    pub(super) fn flush(&self, limit: Duration) {
        let until = Instant::now() + limit;
        let mut state = self.0.state.lock();
        state.is_hurried = true;
        self.0.work.notify_one();
        while state.is_open
            && (!state.lines.is_empty() || state.stage == WritingStage::Writing || state.dropped > 0)
        {
            if self.0.idle.wait_until(&mut state, until).timed_out() {
                break;
            }
        }
        state.is_hurried = false;
    }

    fn write_lines(&self, mut target: impl Write) {
        self.0.state.lock().writer = Some(std::thread::current().id());
        loop {
            match self.next() {
                // Nobody is left to tell of lines that cannot be written.
                LogWork::Lines(lines) => drop(target.write_all(&lines)),
                LogWork::Dropped(lines) => {
                    tracing::error!("{lines} lines of this log were dropped: they were not read in time");
                }
            }
        }
    }

    /// Waits for the next thing to write.
    fn next(&self) -> LogWork {
        let mut state = self.0.state.lock();
        let until = Instant::now() + PAUSE;
        if state.stage == WritingStage::Writing {
            state.stage = WritingStage::Pausing;
        }
        loop {
            let may_rest = !state.is_hurried && state.bytes <= RESUME_BYTES;
            let is_resting = may_rest && state.stage == WritingStage::Pausing;
            // The report goes behind the lines taken before, and in front of later ones.
            if state.is_full && state.bytes <= RESUME_BYTES && state.is_open {
                state.is_full = false;
                state.stage = WritingStage::Writing;
                return LogWork::Dropped(std::mem::take(&mut state.dropped));
            }
            if state.is_open && !is_resting && !state.lines.is_empty() {
                return LogWork::Lines(state.take());
            }
            if state.lines.is_empty() {
                self.0.idle.notify_all();
            }
            if is_resting {
                if self.0.work.wait_until(&mut state, until).timed_out() {
                    state.stage = WritingStage::Waiting;
                }
            } else {
                state.stage = WritingStage::Waiting;
                self.0.work.wait(&mut state);
            }
        }
    }
}

impl QueueState {
    /// Takes the lines to write next, at least one.
    fn take(&mut self) -> Vec<u8> {
        let mut taken = self.lines.pop_front().unwrap_or_default();
        while let Some(line) = self.lines.front()
            && taken.len() + line.len() <= MAX_WRITE
        {
            taken.extend_from_slice(line);
            self.lines.pop_front();
        }
        self.bytes -= taken.len();
        self.stage = WritingStage::Writing;
        taken
    }
}

enum LogWork {
    Lines(Vec<u8>),
    /// Number of dropped lines.
    Dropped(u64),
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, PipeWriter, pipe};

    use super::*;

    /// Returns a small pipe as the target of a queue.
    fn full_pipe() -> (io::PipeReader, PipeWriter) {
        let (reader, writer) = pipe().unwrap();
        rustix::pipe::fcntl_setpipe_size(&writer, 4096).unwrap();
        (reader, writer)
    }

    #[test]
    fn fault_75_whoever_logs_never_waits_for_a_reader_and_lines_keep_their_order() {
        let (reader, writer) = full_pipe();
        let queue = LineQueue::start(writer, true).unwrap();
        let total = 40_000_u32;
        for number in 0..total {
            queue.push(format!("line {number}\n").as_bytes());
        }
        let dropped = queue.0.state.lock().dropped;
        assert!(dropped > 0 && queue.0.state.lock().bytes <= MAX_BYTES);
        // A process whose log nobody reads must end in bounded time.
        queue.flush(Duration::from_millis(10));
        let mut lines = BufReader::new(reader).lines();
        let taken = total - dropped as u32;
        for number in 0..taken {
            assert_eq!(lines.next().unwrap().unwrap(), format!("line {number}"));
        }
        // There is room again.
        queue.push(b"after\n");
        assert_eq!(lines.next().unwrap().unwrap(), "after");
        queue.flush(Duration::from_mins(1));
        assert_eq!(queue.0.state.lock().dropped, 0, "they were told of");
    }

    #[test]
    fn nothing_is_written_before_it_is_opened() {
        let (reader, writer) = full_pipe();
        let queue = LineQueue::start(writer, false).unwrap();
        queue.push(b"kept\n");
        queue.flush(Duration::from_mins(1));
        assert!(!queue.is_open());
        queue.push(b"first\n");
        queue.open();
        let mut lines = BufReader::new(reader).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "kept");
        assert_eq!(lines.next().unwrap().unwrap(), "first");
    }
}
