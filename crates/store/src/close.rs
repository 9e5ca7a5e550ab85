//! Closing a job that lost its keeper (service.md §6.4 items 3 and 4).

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use super::{JobFolder, ScannedJob, StoreError, file_vars};
use step_runner_log::frame::Stamp;
use step_runner_log::journal::event::End;
use step_runner_log::line::Entry;
use step_runner_log::tail::Tail;
use step_runner_log::words::DaemonLine;
use step_runner_model::{EndClass, Outcome};
use step_runner_system::files;

/// Returns the last line of the log of a job that lost its keeper. A job that was cancelled before its start counts as
/// cancelled.
const fn last_line(class: EndClass, cause: &str) -> DaemonLine<'_> {
    match class {
        EndClass::Cancelled => DaemonLine::JobCancelled { cause },
        _ => DaemonLine::JobInterrupted { cause },
    }
}

/// Number of bytes at the log's end that are searched for that line.
const TAIL: usize = 4 << 10;

/// Number of log bytes that are checked at a time.
const PIECE: usize = 256 << 10;

/// Extent of the death that interrupted a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// Only processes died: everything they wrote is in the files.
    Processes {
        /// Log length that the dead keeper had reported. Entries that it could not report any more, and bytes of other
        /// processes, may follow.
        log_len: Option<u64>,
    },
    /// The host may have died too: data that was not synced may be missing or torn.
    Host,
}

/// A job with a closed log whose end must still be recorded. A sync can come in between: then an end on the disk
/// implies that the log is on the disk.
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
    /// Removes the file variables of `job` and completes its log with a last line that ends in the message of
    /// `outcome`. `now` is in microseconds since the epoch, `boot` since the host's boot. The call can be repeated
    /// after a crash.
    ///
    /// A log that cannot be written stays as it is: the end record counts. Only bytes that no client can have seen are
    /// cut off. After a death of the host with `durability = power` these are torn entries behind the synced length;
    /// after a death of processes, foreign bytes behind the reported length.
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
        // If some stay, the reaper and Finish try again.
        drop(file_vars::remove(folder.key(), record, &journal.files));
        let log = finish_log(folder, &outcome, death, now).unwrap_or_else(|_| measure(folder));
        let steps = folder.cut_torn_steps(folder.read_steps().unwrap_or_default())?;
        Ok(Self { folder: folder.clone(), outcome, now, boot, log, steps_done: steps.count })
    }

    /// Returns the end to record.
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

/// Closes `job` in one go, as interrupted by `cause`; see [`Closing`] and [`Death::Processes`].
pub fn close_interrupted(
    job: &ScannedJob,
    cause: &str,
    log_len: Option<u64>,
    now: i64,
    boot: u64,
) -> Result<End, StoreError> {
    let death = Death::Processes { log_len };
    let closing = Closing::begin(job, Outcome::interrupted(cause), death, now, boot)?;
    closing.record()?;
    Ok(closing.end())
}

/// Cuts off torn data, then adds a missing line feed and the last line.
fn finish_log(folder: &JobFolder, outcome: &Outcome, death: Death, now: i64) -> io::Result<LogEnd> {
    let file = files::open_append(&folder.shared.jobs, folder.inside("log").as_str())?;
    let stat = files::stat_of(&file)?;
    let inode = stat.st_ino;
    let mut len = u64::try_from(stat.st_size).unwrap_or_default();
    let mut notes = String::new();
    if let Some(synced) = folder.synced().filter(|_| death == Death::Host) {
        if len < synced {
            // The disk lost data that it had confirmed. A line of ours would replace bytes that clients have seen.
            return Ok(LogEnd { len: synced, inode, lost_from: Some(len) });
        }
        let good = good_part(file.as_fd(), Tail::new(synced, is_within(file.as_fd(), synced)?), synced, len)?;
        if good < len {
            files::cut(&file, good)?;
            notes = format!("; the last {} bytes of its log had not reached the disk whole", len - good);
            len = good;
        }
    }
    if let Death::Processes { log_len: Some(told) } = death
        && told < len
    {
        let ours = own_part(file.as_fd(), told, len)?;
        if ours < len {
            files::cut(&file, ours)?;
            notes = format!("; {} bytes that another process wrote to its log were removed", len - ours);
            len = ours;
        }
    }

    let from = len.saturating_sub(TAIL as u64);
    let tail = files::read_piece(&file, from, (len - from) as usize)?;
    let mut bytes = Vec::new();
    if tail.last().is_some_and(|last| *last != b'\n') {
        bytes.push(b'\n');
    }
    if !is_closed(&tail, outcome.class) {
        let cause = [&*outcome.message, &notes].concat();
        last_line(outcome.class, &cause).append_to(&Stamp::from_unix_micros(now), &mut bytes);
    }
    files::append(&file, &bytes)?;
    Ok(LogEnd { len: len + bytes.len() as u64, inode, lost_from: None })
}

/// Returns the length of the log's good part: up to `known`, plus whole entries behind it.
fn good_part(file: BorrowedFd<'_>, mut tail: Tail, known: u64, len: u64) -> io::Result<u64> {
    let mut at = known;
    while at < len {
        let piece = files::read_piece(file, at, PIECE)?;
        if piece.is_empty() || !tail.push(&piece) {
            break;
        }
        at += piece.len() as u64;
    }
    Ok(tail.good())
}

/// True if `offset` is in the middle of an entry.
fn is_within(file: BorrowedFd<'_>, offset: u64) -> io::Result<bool> {
    let before = files::read_piece(file, offset.saturating_sub(1), usize::from(offset > 0))?;
    Ok(before.last().is_some_and(|last| *last != b'\n'))
}

/// Returns the length of the part that the job's keeper can have written: the good part, plus the beginning of one
/// entry that the keeper's death may have cut off.
fn own_part(file: BorrowedFd<'_>, told: u64, len: u64) -> io::Result<u64> {
    let within = is_within(file, told)?;
    let good = good_part(file, Tail::new(told, within).allowing_nul(), told, len)?;
    let rest = files::read_piece(file, good, PIECE)?;
    let may_be_ours = good == told && within || Entry::parse(&rest).is_some_and(|entry| entry.has_format());
    let is_begun = may_be_ours && !rest.contains(&b'\n');
    Ok(if is_begun { len } else { good })
}

/// Returns the length of what the dead keeper of a job has written to the log, of which it had told `told` bytes: entries
/// that it could not report any more may follow. `told` if the log cannot be read.
pub fn written_log_len(folder: &JobFolder, told: u64) -> u64 {
    let written = || {
        let file = files::open_append(&folder.shared.jobs, folder.inside("log").as_str())?;
        let len = u64::try_from(files::stat_of(&file)?.st_size).unwrap_or_default();
        if told < len { own_part(file.as_fd(), told, len) } else { Ok(told) }
    };
    written().unwrap_or(told)
}

/// True if the last line is ours already: an earlier recovery may have been interrupted after it.
fn is_closed(tail: &[u8], class: EndClass) -> bool {
    let Some(lines) = tail.strip_suffix(b"\n") else { return false };
    let last = lines.rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = Entry::parse(last).and_then(|entry| DaemonLine::of(&entry));
    line.and_then(|line| line.job_end()) == last_line(class, "").job_end()
}

fn measure(folder: &JobFolder) -> LogEnd {
    let log = folder.open_log(None).ok();
    let (len, inode) = log.and_then(|log| Some((log.length().ok()?, log.inode()))).unwrap_or_default();
    LogEnd { len, inode, lost_from: None }
}
