//! The ends of logs that a process of ours appends to: read for a message, and kept when the log has grown too long.

use std::io;
use std::os::fd::AsFd;

/// Returns the last `limit` bytes of a file, at most, from the start of a line.
pub fn read(log: impl AsFd, limit: u32) -> io::Result<Vec<u8>> {
    let length = super::stat_of(&log)?.st_size.unsigned_abs();
    let start = length.saturating_sub(u64::from(limit));
    let mut content = super::read_piece(&log, start, limit as usize)?;
    if start > 0 {
        let line = memchr::memchr(b'\n', &content).map_or(0, |end| end + 1);
        content.drain(..line);
    }
    Ok(content)
}

/// Cuts a log that is longer than `longest` bytes down to its last `kept` bytes. The writer has opened it for appending, as the
/// caller has, so it goes on at the new end.
pub fn keep(log: impl AsFd, longest: u64, kept: u32) -> io::Result<()> {
    if super::stat_of(&log)?.st_size.unsigned_abs() > longest {
        let end = read(&log, kept)?;
        super::cut(&log, 0)?;
        super::append(&log, &end)?;
    }
    Ok(())
}
