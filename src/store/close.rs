//! Closing a job that died with its keeper (service.md §6.4 items 3 and 4).

use std::io;

use super::{ScannedJob, StoreError, file_vars, files};
use crate::journal::event::{End, Event};
use crate::log::frame::{HEADER_LEN, Kind, Stamp, daemon_lines};
use crate::model::Outcome;

/// How the last line of an interrupted job begins (logs.md §2).
const INTERRUPTED: &[u8] = b"job interrupted: ";

/// Most bytes of the log's end that are looked at.
const TAIL: usize = 4 << 10;

/// Closes `job`: removes its file variables, completes the log with one last line, writes the end record. `cause`
/// follows `job interrupted: `; `now` is in microseconds since the epoch. May be repeated after a crash.
///
/// A log that cannot be written is left as it is: the end record counts. The log is never cut.
pub fn close_interrupted(job: &ScannedJob, cause: &str, now: i64) -> Result<End, StoreError> {
    let ScannedJob { folder, record, journal } = job;
    if let Some(len) = journal.torn {
        folder.cut("journal", len)?;
    }
    file_vars::remove(folder.key(), record, &journal.files);
    let (log_len, log_inode) = finish_log(job, cause, now).unwrap_or_else(|_| measure(job));
    let steps = folder.read_steps().unwrap_or_default();
    if let Some(damage) = &steps.damage {
        folder.cut("steps", damage.at)?;
    }
    let end = End {
        outcome: Outcome::interrupted(cause),
        end_time: now,
        log_len,
        log_inode,
        steps_done: u32::try_from(steps.records.len()).unwrap_or(u32::MAX),
        cpu_time: None,
        peak_memory: None,
    };
    folder.append(&Event::Ended(end.clone()))?;
    Ok(end)
}

/// Adds the missing line feed and the last line; returns length and inode.
fn finish_log(job: &ScannedJob, cause: &str, now: i64) -> io::Result<(u64, u64)> {
    let file = files::open_append(&job.folder.shared.jobs, job.folder.inside("log").as_str())?;
    let stat = files::stat_of(&file)?;
    let len = u64::try_from(stat.st_size).unwrap_or_default();
    let from = len.saturating_sub(TAIL as u64);
    let mut tail = vec![0; (len - from) as usize];
    let count = files::read_at(&file, &mut tail, from)?;
    tail.truncate(count);

    let mut bytes = Vec::new();
    if tail.last().is_some_and(|last| *last != b'\n') {
        bytes.push(b'\n');
    }
    if !is_closed(&tail) {
        let text = [INTERRUPTED, cause.as_bytes()].concat();
        daemon_lines(Kind::Err, &text, &Stamp::from_unix_micros(now), &mut bytes);
    }
    files::append(&file, &bytes)?;
    Ok((len + bytes.len() as u64, stat.st_ino))
}

/// Whether the last line is the one we write: an earlier recovery may have come this far.
fn is_closed(tail: &[u8]) -> bool {
    let Some(lines) = tail.strip_suffix(b"\n") else { return false };
    let last = lines.rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
    let Some((header, body)) = last.split_at_checked(HEADER_LEN) else { return false };
    header.ends_with(b"00E ") && body.starts_with(INTERRUPTED)
}

fn measure(job: &ScannedJob) -> (u64, u64) {
    let log = job.folder.open_log(None).ok();
    log.and_then(|log| Some((log.length().ok()?, log.inode()))).unwrap_or_default()
}
