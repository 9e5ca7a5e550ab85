//! Extracts the output of a step from its log piece by piece. Needs little memory, however long the log and its lines
//! are. It is an independent reader and does not use the program's parser.

use sha2::{Digest, Sha256};

use crate::verdict::Check;
use crate::writer::hex;

const HEADER: usize = 32;

/// Number of bytes passed to the digest at once.
const GATHERED: usize = 32 << 10;

/// Standard output of all steps in one log, as far as it was read.
pub(crate) struct Joined {
    digest: Sha256,
    gathered: Vec<u8>,
    header: [u8; HEADER],
    /// Bytes of the current entry's header received so far.
    have: usize,
    /// True if the daemon wrote the current entry.
    is_said: bool,
    /// True if the last entry ended with a line feed. Only the next entry shows if a step wrote it.
    due: bool,
    /// Bytes of the log read.
    pub(crate) read: u64,
    /// Number of entries of steps.
    pub(crate) entries: u64,
    /// Bytes in entries of the daemon.
    pub(crate) said: u64,
}

impl Joined {
    pub(crate) fn new() -> Self {
        Self {
            digest: Sha256::new(),
            gathered: Vec::with_capacity(2 * GATHERED),
            header: [0; HEADER],
            have: 0,
            is_said: false,
            due: false,
            read: 0,
            entries: 0,
            said: 0,
        }
    }

    /// Takes the next bytes of the log.
    pub(crate) fn push(&mut self, mut bytes: &[u8]) -> Check {
        self.read += bytes.len() as u64;
        while !bytes.is_empty() {
            if self.have < HEADER {
                let (part, rest) = bytes.split_at(bytes.len().min(HEADER - self.have));
                self.header[self.have..self.have + part.len()].copy_from_slice(part);
                self.have += part.len();
                bytes = rest;
                if self.have == HEADER {
                    self.begin()?;
                }
                continue;
            }
            let end = memchr::memchr(b'\n', bytes);
            let (body, rest) = bytes.split_at(end.unwrap_or(bytes.len()));
            if self.is_said {
                self.said += body.len() as u64 + u64::from(end.is_some());
            } else {
                self.gather(body);
            }
            bytes = rest;
            if end.is_some() {
                bytes = &bytes[1..];
                self.have = 0;
                self.due |= !self.is_said;
            }
        }
        Ok(())
    }

    fn begin(&mut self) -> Check {
        let header = &self.header;
        let is_entry = header[26..28] == *b"Z " && matches!(header[31], b' ' | b'+');
        self.is_said = match &header[28..31] {
            b"01O" if is_entry => false,
            b"00O" if is_entry => true,
            _ => return Err(format!("entry {}: header {:?}", self.entries, String::from_utf8_lossy(header))),
        };
        if self.is_said {
            self.said += HEADER as u64;
            return Ok(());
        }
        self.entries += 1;
        if std::mem::take(&mut self.due) && self.header[31] == b' ' {
            self.gather(b"\n");
        }
        Ok(())
    }

    fn gather(&mut self, bytes: &[u8]) {
        self.gathered.extend_from_slice(bytes);
        if self.gathered.len() >= GATHERED {
            self.digest.update(&self.gathered);
            self.gathered.clear();
        }
    }

    /// Returns the digest of all output. `line_feed` says if a step wrote the last line feed; otherwise it was added at
    /// the end of the process. The log does not show which.
    pub(crate) fn finish(mut self, line_feed: bool) -> Check<String> {
        if self.have > 0 || !self.due {
            return Err("the log does not end with a whole entry".into());
        }
        if line_feed {
            self.gather(b"\n");
        }
        self.digest.update(&self.gathered);
        Ok(hex(&self.digest.finalize()))
    }
}
