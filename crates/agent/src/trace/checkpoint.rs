//! The safe part of a trace: no byte behind it is ever sent (agent.md §6.2).

use serde::{Deserialize, Serialize};

use crate::sealed::{self, Unusable};

/// Kind and version of the file.
const KIND: &str = "checkpoint";
const VERSION: u32 = 1;

/// State of a [`Text`](super::Text) at a border between two entries of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// Bytes of the log that are in the trace, up to the end of an entry.
    pub log_offset: u64,
    /// Length of the trace.
    pub len: u64,
    /// CRC-32 of the trace.
    pub crc: u32,
    /// Source of the last line, if its line feed is still to come.
    pub(super) open: Option<[u8; 3]>,
    /// Bytes of a character that is not whole yet; at most three.
    pub(super) pending: Vec<u8>,
    /// True if the trace is as long as it may be.
    pub(super) is_full: bool,
    /// True if the trace ends with a line.
    pub(super) ends_line: bool,
    /// Time of the last entry.
    pub(super) time: String,
}

impl Checkpoint {
    /// Encodes the checkpoint as a file.
    pub fn encode(&self) -> Result<Vec<u8>, serde_json::Error> {
        sealed::encode(KIND, VERSION, self)
    }

    /// Decodes a file.
    pub fn decode(file: &[u8]) -> Result<Self, Unusable> {
        sealed::decode(KIND, VERSION, file)
    }
}
