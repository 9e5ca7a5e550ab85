//! The operator's log: what the daemon says about itself. Never content of jobs (logs.md §2).
//!
//! Nobody who logs waits: lines go into a bounded queue, and a thread writes them. An unread pipe or a file system that
//! hangs holds up that thread alone. Lines that find no room are dropped and counted.

mod queue;

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::config::{Config, LogFormat};
use crate::error::{Chain, Exit, Failure};
use crate::files;
use queue::LineQueue;

/// Longest wait at the end of the process for lines that nobody reads.
const LAST_LINES: Duration = Duration::from_secs(1);

/// Queue of lines for stderr, in a process that has an operator's log.
static STDERR: OnceLock<LineQueue> = OnceLock::new();

/// Reason why the log cannot be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LogError {
    /// The file of setting `log_file` cannot be opened.
    #[error("cannot open log_file {}", path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// There is no thread to write lines.
    #[error("cannot start the thread that writes the log")]
    Thread(#[source] io::Error),
}

impl From<LogError> for Failure {
    fn from(error: LogError) -> Self {
        let remedy = match error {
            LogError::File { .. } => Some(
                "name a file that this user can write, or leave log_file out: then the log goes to stderr",
            ),
            LogError::Thread(_) => None,
        };
        let failure = Self::new(Exit::Failure, error);
        match remedy {
            Some(remedy) => failure.with_remedy(remedy),
            None => failure,
        }
    }
}

/// Destination of the log. Nothing may come on stderr before the ready marker (service.md §1.2), so lines are kept
/// until [`OperatorLog::open`].
#[derive(Clone)]
pub(crate) struct OperatorLog(LineQueue);

impl OperatorLog {
    /// Starts logging as `config` says. Call it once per process.
    pub(crate) fn start(config: &Config) -> Result<Self, LogError> {
        let stderr = LineQueue::start(io::stderr(), false).map_err(LogError::Thread)?;
        let (lines, unopened) = match config.log_file.as_deref() {
            None => (stderr.clone(), None),
            Some(path) => match files::operators::open_to_append(path) {
                Ok(file) => (LineQueue::start(file, true).map_err(LogError::Thread)?, None),
                // A full disk must not keep the daemon from its jobs: the log goes to stderr.
                Err(error) if files::is_full(&error) => (stderr.clone(), Some(error)),
                Err(source) => return Err(LogError::File { path: path.to_owned(), source }),
            },
        };
        let level = config.log_level.map_or("info", |level| level.word());
        let builder = tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::new(format!("warn,step_runner={level}")))
            .with_writer(Self(lines.clone()))
            .with_target(false)
            .with_ansi(false);
        // A second daemon in one process (tests) keeps the first one's log.
        match config.log_format {
            LogFormat::Text => builder.try_init().ok(),
            LogFormat::Json => builder.json().try_init().ok(),
        };
        if let Some(error) = unopened {
            tracing::warn!(error = %Chain(&error), "log_file cannot be made, the log goes to stderr");
        }
        STDERR.get_or_init(|| stderr);
        Ok(Self(lines))
    }

    /// Writes the lines kept for stderr: the ready marker is out.
    pub(crate) fn open(&self) {
        if let Some(stderr) = STDERR.get() {
            stderr.open();
        }
        self.0.open();
    }

    /// Waits until all lines are written, but not for long. Call it at the end of the process.
    pub(crate) fn flush(&self) {
        self.0.flush(LAST_LINES);
    }
}

/// Queues bytes for stderr with the lines of the operator's log, so that they neither wait nor overtake those. False if
/// there is no log, or its ready marker is not out yet: then the caller writes by itself.
pub(crate) fn take_for_stderr(bytes: &[u8]) -> bool {
    let Some(stderr) = STDERR.get().filter(|stderr| stderr.is_open()) else { return false };
    stderr.push(bytes);
    true
}

/// Waits until the bytes given to [`take_for_stderr`] are written, but not for long.
pub(crate) fn flush_stderr() {
    if let Some(stderr) = STDERR.get().filter(|stderr| stderr.is_open()) {
        stderr.flush(LAST_LINES);
    }
}

impl<'a> MakeWriter<'a> for OperatorLog {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl Write for OperatorLog {
    /// Queues a line; one that finds no room is lost. On an error, the formatter would report to stderr, and panic if
    /// stderr is full.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
