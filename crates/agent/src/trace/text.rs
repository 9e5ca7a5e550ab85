//! The bytes of a trace: head, log, and tail (agent.md §6.1). They depend on these alone, never on how they came.

use crc32fast::Hasher;
use step_runner_log::line::{Entry, Live, SourceKey};

use super::checkpoint::Checkpoint;

/// Longest line of a log that is kept. Entries of a daemon are far shorter; a longer line is left out.
const LONGEST_LINE: usize = 1 << 20;

/// Shown instead of each byte that belongs to no character.
const REPLACEMENT: char = '\u{fffd}';

/// Form of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The log as it is: each line with its time (`FF_TIMESTAMPS`).
    Entries,
    /// The output of the job and the daemon's lines, without times.
    Lines,
}

/// A trace in the making. It gives its bytes away and keeps length and checksum.
pub struct Text {
    form: Form,
    limit: u64,
    len: u64,
    crc: Hasher,
    log_offset: u64,
    /// The line of the log that is not whole yet.
    partial: Vec<u8>,
    /// True within a line that is longer than [`LONGEST_LINE`].
    is_skipping: bool,
    /// Length of that line so far.
    skipped: u64,
    live: Live,
    /// Bytes of a character that is not whole yet.
    pending: Vec<u8>,
    is_full: bool,
    ends_line: bool,
    time: String,
}

/// Goes on with a trace after a restart. `trace` is what is on disk. Returns the text, and the length to which the file
/// is cut. `None`: checkpoint and trace do not fit together, and both are made anew from the head and the log's start.
pub fn resume(checkpoint: &Checkpoint, trace: &[u8], form: Form, limit: u64) -> Option<(Text, u64)> {
    let safe = trace.get(..usize::try_from(checkpoint.len).ok()?)?;
    let is_sound = crc32fast::hash(safe) == checkpoint.crc && checkpoint.pending.len() <= 3;
    is_sound.then(|| (Text::resumed(checkpoint, form, limit), checkpoint.len))
}

impl Text {
    /// Makes an empty trace of at most `limit` bytes, without its tail and the note about the limit.
    pub fn new(form: Form, limit: u64) -> Self {
        let start = Checkpoint {
            log_offset: 0,
            len: 0,
            crc: 0,
            open: None,
            pending: Vec::new(),
            is_full: false,
            ends_line: true,
            time: String::new(),
        };
        Self::resumed(&start, form, limit)
    }

    /// Goes on at a checkpoint.
    fn resumed(from: &Checkpoint, form: Form, limit: u64) -> Self {
        Self {
            form,
            limit,
            len: from.len,
            crc: Hasher::new_with_initial_len(from.crc, from.len),
            log_offset: from.log_offset,
            partial: Vec::new(),
            is_skipping: false,
            skipped: 0,
            live: Live::resumed(from.open.map(SourceKey::from_bytes)),
            pending: from.pending.clone(),
            is_full: from.is_full,
            ends_line: from.ends_line,
            time: from.time.clone(),
        }
    }

    /// Returns the state at the last border between two entries.
    pub fn checkpoint(&self) -> Checkpoint {
        Checkpoint {
            log_offset: self.log_offset,
            len: self.len,
            crc: self.crc(),
            open: self.live.open().map(SourceKey::bytes),
            pending: self.pending.clone(),
            is_full: self.is_full,
            ends_line: self.ends_line,
            time: self.time.clone(),
        }
    }

    /// Returns the length so far.
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// True if the trace has no byte.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the CRC-32 so far.
    pub fn crc(&self) -> u32 {
        self.crc.clone().finalize()
    }

    /// True if the limit is reached: nothing of the log is needed any more.
    pub const fn is_full(&self) -> bool {
        self.is_full
    }

    /// Appends lines of the agent before the log begins. Each ends with a line feed.
    pub fn head(&mut self, lines: &str, out: &mut Vec<u8>) {
        for line in lines.split_inclusive('\n') {
            match self.form {
                Form::Entries => self.entry(line.as_bytes(), out),
                Form::Lines => self.characters(line.as_bytes(), out),
            }
        }
    }

    /// Takes the next bytes of the log. It must be at [`Checkpoint::log_offset`] for the first of them.
    pub fn log(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) {
        while !self.is_full && !bytes.is_empty() {
            let end = bytes.iter().position(|byte| *byte == b'\n');
            let (piece, rest) = bytes.split_at(end.map_or(bytes.len(), |end| end + 1));
            bytes = rest;
            if self.is_skipping || self.partial.len() + piece.len() > LONGEST_LINE {
                self.skipped += piece.len() as u64 + self.partial.len() as u64;
                self.partial.clear();
                self.is_skipping = end.is_none();
                if end.is_some() {
                    self.log_offset += std::mem::take(&mut self.skipped);
                }
            } else if end.is_none() {
                self.partial.extend_from_slice(piece);
            } else if self.partial.is_empty() {
                self.line(piece, out);
            } else {
                let mut line = std::mem::take(&mut self.partial);
                line.extend_from_slice(piece);
                self.line(&line, out);
            }
        }
    }

    /// Ends the log. Of a line that was cut off, a trace of entries has the beginning; without times it is not shown, as
    /// in any other reader of logs.
    pub fn end_of_log(&mut self, out: &mut Vec<u8>) {
        let partial = std::mem::take(&mut self.partial);
        if self.is_full {
            return;
        }
        match self.form {
            Form::Entries if !partial.is_empty() => self.entry(&partial, out),
            Form::Entries => {}
            Form::Lines => {
                let mut rest = Vec::new();
                self.live.finish(&mut rest);
                self.characters(&rest, out);
                let pending = std::mem::take(&mut self.pending);
                self.append(&REPLACEMENT.to_string().repeat(pending.len()), out);
            }
        }
    }

    /// Appends the tail, on a new line. No limit holds for it.
    pub fn tail(&mut self, lines: &str, out: &mut Vec<u8>) {
        self.new_line(out);
        self.give(lines.as_bytes(), out);
    }

    /// Counts bytes that [`tail`](Self::tail) gave before a restart, or that are all that is left of a damaged trace.
    pub fn count(&mut self, bytes: &[u8]) {
        self.give(bytes, &mut Vec::new());
    }

    /// Forgets what came behind the last border of two entries: the log is followed from there again. Returns its
    /// offset.
    pub fn back_to_border(&mut self) -> u64 {
        self.partial.clear();
        (self.is_skipping, self.skipped) = (false, 0);
        self.log_offset
    }

    /// Takes a whole line of the log.
    fn line(&mut self, line: &[u8], out: &mut Vec<u8>) {
        self.log_offset += line.len() as u64;
        match self.form {
            Form::Entries => self.entry(line, out),
            Form::Lines => {
                let Some(entry) = Entry::parse(line.strip_suffix(b"\n").unwrap_or(line)) else { return };
                self.keep_time(&entry);
                let mut shown = Vec::new();
                self.live.push(&entry, &mut shown);
                self.characters(&shown, out);
            }
        }
    }

    fn keep_time(&mut self, entry: &Entry<'_>) {
        if entry.has_format() {
            self.time = String::from_utf8_lossy(entry.time()).into_owned();
        }
    }

    /// Appends a line with its header, whole or not at all.
    fn entry(&mut self, line: &[u8], out: &mut Vec<u8>) {
        if self.is_full {
            return;
        }
        let mut pending = Vec::new();
        let mut text = characters(&mut pending, line);
        text.extend(pending.iter().map(|_| REPLACEMENT));
        if self.len + text.len() as u64 > self.limit {
            return self.full(out);
        }
        if let Some(entry) = Entry::parse(line) {
            self.keep_time(&entry);
        }
        self.give(text.as_bytes(), out);
    }

    /// Appends output, up to the last whole character that the limit has room for.
    fn characters(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let text = characters(&mut self.pending, bytes);
        self.append(&text, out);
    }

    fn append(&mut self, text: &str, out: &mut Vec<u8>) {
        if self.is_full {
            return;
        }
        let room = usize::try_from(self.limit.saturating_sub(self.len)).unwrap_or(usize::MAX);
        if text.len() <= room {
            return self.give(text.as_bytes(), out);
        }
        let cut = text.floor_char_boundary(room);
        self.give(text.get(..cut).unwrap_or_default().as_bytes(), out);
        self.full(out);
    }

    /// Ends the trace but for its tail, with a note.
    fn full(&mut self, out: &mut Vec<u8>) {
        self.is_full = true;
        self.pending.clear();
        self.new_line(out);
        let header = match self.form {
            Form::Entries if !self.time.is_empty() => format!("{} 00O ", self.time),
            Form::Entries | Form::Lines => String::new(),
        };
        let note = format!(
            "{header}\x1b[33;1mJob's log exceeded limit of {} bytes; the job goes on, its result follows.\x1b[0;m\n",
            self.limit
        );
        self.give(note.as_bytes(), out);
    }

    fn new_line(&mut self, out: &mut Vec<u8>) {
        if !self.ends_line {
            self.give(b"\n", out);
        }
    }

    fn give(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let Some(last) = bytes.last() else { return };
        self.ends_line = *last == b'\n';
        self.len += bytes.len() as u64;
        self.crc.update(bytes);
        out.extend_from_slice(bytes);
    }
}

/// Returns bytes as characters: each byte that belongs to none becomes one replacement, so that offsets are the
/// server's. A character that is not whole yet stays in `pending`.
pub(super) fn characters(pending: &mut Vec<u8>, bytes: &[u8]) -> String {
    let mut joined = std::mem::take(pending);
    joined.extend_from_slice(bytes);
    let mut text = String::with_capacity(joined.len());
    let mut rest = &joined[..];
    while !rest.is_empty() {
        match std::str::from_utf8(rest) {
            Ok(valid) => {
                text.push_str(valid);
                break;
            }
            Err(error) => {
                let (valid, behind) = rest.split_at(error.valid_up_to());
                text.push_str(std::str::from_utf8(valid).unwrap_or_default());
                let Some(wrong) = error.error_len() else {
                    pending.extend_from_slice(behind);
                    break;
                };
                text.extend(std::iter::repeat_n(REPLACEMENT, wrong));
                rest = behind.get(wrong..).unwrap_or_default();
            }
        }
    }
    text
}
