//! The operator's log: what the daemon says about itself. Never content of jobs (logs.md §2).

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::config::{Config, LogFormat};
use crate::files;

/// Most bytes kept until the ready marker is out.
const MAX_KEPT: usize = 256 << 10;

/// Where the log goes. On stderr nothing may come before the ready marker (service.md §1.2), so lines are kept until
/// [`OperatorLog::open`].
#[derive(Clone)]
pub struct OperatorLog(Arc<Mutex<Target>>);

enum Target {
    Kept(Vec<u8>),
    Stderr,
    File(File),
}

impl OperatorLog {
    /// Starts logging as `config` says; to be called once per process.
    pub fn start(config: &Config) -> io::Result<Self> {
        let (target, unopened) = match config.log_file.as_deref().map(append_to) {
            Some(Ok(file)) => (Target::File(file), None),
            // What the daemon says about itself is not worth its jobs.
            Some(Err(error)) if files::is_full(&error) => (Target::Kept(Vec::new()), Some(error)),
            Some(Err(error)) => return Err(error),
            None => (Target::Kept(Vec::new()), None),
        };
        let log = Self(Arc::new(Mutex::new(target)));
        let level = config.log_level.map_or("info", |level| level.word());
        let builder = tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::new(format!("warn,step_runner={level}")))
            .with_writer(log.clone())
            .with_target(false)
            .with_ansi(false);
        // A second daemon in one process (tests) keeps the first one's log.
        match config.log_format {
            LogFormat::Text => builder.try_init().ok(),
            LogFormat::Json => builder.json().try_init().ok(),
        };
        if let Some(error) = unopened {
            tracing::warn!(%error, "log_file cannot be made, the log goes to stderr");
        }
        Ok(log)
    }

    /// The ready marker is out: what was kept follows.
    pub fn open(&self) {
        let mut target = self.0.lock();
        if let Target::Kept(kept) = &mut *target {
            io::stderr().write_all(kept).ok();
            *target = Target::Stderr;
        }
    }
}

fn append_to(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    File::options().append(true).create(true).mode(0o600).open(path)
}

impl<'a> MakeWriter<'a> for OperatorLog {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl Write for OperatorLog {
    /// A line that finds no room is lost. To fail would be worse: whoever formats it tells of that on stderr, and panics where
    /// that is what is full.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match &mut *self.0.lock() {
            Target::Kept(kept) if kept.len() + line.len() <= MAX_KEPT => kept.extend_from_slice(line),
            Target::Kept(_) => {}
            Target::Stderr => drop(io::stderr().write_all(line)),
            Target::File(file) => drop(file.write_all(line)),
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
