//! A bounded queue of lines, and the thread that writes them.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// Most bytes that wait; beyond it lines are dropped.
const MAX_BYTES: usize = 256 << 10;

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
    /// True while a line is written.
    is_writing: bool,
    /// The writer's thread: its line about dropped ones always finds room.
    writer: Option<ThreadId>,
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
            is_writing: false,
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
        self.0.work.notify_one();
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
        while state.is_open && (!state.lines.is_empty() || state.is_writing || state.dropped > 0) {
            if self.0.idle.wait_until(&mut state, until).timed_out() {
                return;
            }
        }
    }

    fn write_lines(&self, mut target: impl Write) {
        self.0.state.lock().writer = Some(std::thread::current().id());
        loop {
            match self.next() {
                // Nobody is left to tell of a line that cannot be written.
                LogWork::Line(line) => drop(target.write_all(&line)),
                LogWork::Dropped(lines) => {
                    tracing::error!("{lines} lines of this log were dropped: they were not read in time");
                }
            }
        }
    }

    /// Waits for the next thing to write.
    fn next(&self) -> LogWork {
        let mut state = self.0.state.lock();
        state.is_writing = false;
        loop {
            // The report goes behind the lines taken before, and in front of later ones.
            if state.is_full && state.bytes <= RESUME_BYTES && state.is_open {
                state.is_full = false;
                state.is_writing = true;
                return LogWork::Dropped(std::mem::take(&mut state.dropped));
            }
            if state.is_open
                && let Some(line) = state.lines.pop_front()
            {
                state.bytes -= line.len();
                state.is_writing = true;
                return LogWork::Line(line);
            }
            if state.lines.is_empty() {
                self.0.idle.notify_all();
            }
            self.0.work.wait(&mut state);
        }
    }
}

enum LogWork {
    Line(Vec<u8>),
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
