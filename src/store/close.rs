//! Closing a job that lost its keeper (service.md §6.4 items 3 and 4).

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use super::{JobFolder, ScannedJob, StoreError, file_vars};
use crate::files;
use crate::journal::event::End;
use crate::log::frame::{HEADER_LEN, Kind, Stamp, daemon_lines};
use crate::log::tail::Tail;
use crate::model::{EndClass, Outcome};

/// How the last line of a job begins (logs.md §2). One that was cancelled before anything of it ran is no interrupted one.
fn last_words(outcome: &Outcome) -> &'static str {
    match outcome.class {
        EndClass::Cancelled => "job cancelled: ",
        _ => "job interrupted: ",
    }
}

/// Most bytes of the log's end that are looked at for that line.
const TAIL: usize = 4 << 10;

/// Bytes of the log that are checked at a time.
const PIECE: usize = 256 << 10;

/// What died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// Processes: what they wrote is in the files.
    Processes,
    /// Perhaps the host: what was not synced may be missing or torn.
    Host,
}

/// A job whose log is closed and whose end is to be recorded. Between the two there may be a sync: an end on the disk
/// then tells that the log is.
#[derive(Debug)]
pub struct Closing {
    folder: JobFolder,
    outcome: Outcome,
    now: i64,
    boot: u64,
    log: LogEnd,
    steps_done: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct LogEnd {
    len: u64,
    inode: u64,
    lost_from: Option<u64>,
}

impl Closing {
    /// Removes the file variables of `job` and completes its log with one last line that ends in the
    /// message of `outcome`; `now` is in microseconds since the epoch, `boot` since the host's boot. May be
    /// repeated after a crash.
    ///
    /// A log that cannot be written is left as it is: the end record counts. Of a log only that is cut which no client can
    /// have seen, after a death of the host with `durability = power`.
    pub fn begin(
        job: &ScannedJob,
        outcome: Outcome,
        death: Death,
        now: i64,
        boot: u64,
    ) -> Result<Self, StoreError> {
        let ScannedJob { folder, record, journal } = job;
        if let Some(len) = journal.torn {
            folder.cut("journal", len)?;
        }
        file_vars::remove(folder.key(), record, &journal.files);
        let log = finish_log(folder, &outcome, death, now).unwrap_or_else(|_| measure(folder));
        let steps = folder.cut_torn_steps(folder.read_steps().unwrap_or_default())?;
        Ok(Self { folder: folder.clone(), outcome, now, boot, log, steps_done: steps.count })
    }

    /// The end to be recorded.
    pub fn end(&self) -> End {
        End {
            end_boot: Some(self.boot),
            steps_done: self.steps_done,
            lost_from: self.log.lost_from,
            ..End::new(self.outcome.clone(), self.now, self.log.len, self.log.inode)
        }
    }

    /// Writes the end record.
    pub fn record(&self) -> Result<(), StoreError> {
        self.folder.record_end(&self.end())
    }
}

/// Closes `job` in one go: as interrupted by `cause`; see [`Closing`].
pub fn close_interrupted(job: &ScannedJob, cause: &str, now: i64, boot: u64) -> Result<End, StoreError> {
    let closing = Closing::begin(job, Outcome::interrupted(cause), Death::Processes, now, boot)?;
    closing.record()?;
    Ok(closing.end())
}

/// Cuts what is torn, adds the missing line feed and the last line.
fn finish_log(folder: &JobFolder, outcome: &Outcome, death: Death, now: i64) -> io::Result<LogEnd> {
    let file = files::open_append(&folder.shared.jobs, folder.inside("log").as_str())?;
    let stat = files::stat_of(&file)?;
    let inode = stat.st_ino;
    let mut len = u64::try_from(stat.st_size).unwrap_or_default();
    let mut notes = String::new();
    if let Some(synced) = folder.synced().filter(|_| death == Death::Host) {
        if len < synced {
            // The disk did not keep what it said it had. A line of ours would stand where clients have seen others.
            return Ok(LogEnd { len: synced, inode, lost_from: Some(len) });
        }
        let good = good_part(file.as_fd(), synced, len)?;
        if good < len {
            files::cut(&file, good)?;
            notes = format!("; the last {} bytes of its log had not reached the disk whole", len - good);
            len = good;
        }
    }

    let from = len.saturating_sub(TAIL as u64);
    let tail = files::read_piece(&file, from, (len - from) as usize)?;
    let mut bytes = Vec::new();
    if tail.last().is_some_and(|last| *last != b'\n') {
        bytes.push(b'\n');
    }
    if !is_closed(&tail, outcome) {
        let text = [last_words(outcome), &outcome.message, &notes].concat();
        daemon_lines(Kind::Err, text.as_bytes(), &Stamp::from_unix_micros(now), &mut bytes);
    }
    files::append(&file, &bytes)?;
    Ok(LogEnd { len: len + bytes.len() as u64, inode, lost_from: None })
}

/// Length of the log's part that is good: what was synced, and whole entries behind it.
fn good_part(file: BorrowedFd<'_>, synced: u64, len: u64) -> io::Result<u64> {
    let before = files::read_piece(file, synced.saturating_sub(1), usize::from(synced > 0))?;
    let mut tail = Tail::new(synced, before.last().is_some_and(|last| *last != b'\n'));
    let mut at = synced;
    while at < len {
        let piece = files::read_piece(file, at, PIECE)?;
        if piece.is_empty() || !tail.push(&piece) {
            break;
        }
        at += piece.len() as u64;
    }
    Ok(tail.good())
}

/// Whether the last line is the one we write: an earlier recovery may have come this far.
fn is_closed(tail: &[u8], outcome: &Outcome) -> bool {
    let Some(lines) = tail.strip_suffix(b"\n") else { return false };
    let last = lines.rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
    let Some((header, body)) = last.split_at_checked(HEADER_LEN) else { return false };
    header.ends_with(b"00E ") && body.starts_with(last_words(outcome).as_bytes())
}

fn measure(folder: &JobFolder) -> LogEnd {
    let log = folder.open_log(None).ok();
    let (len, inode) = log.and_then(|log| Some((log.length().ok()?, log.inode()))).unwrap_or_default();
    LogEnd { len, inode, lost_from: None }
}
