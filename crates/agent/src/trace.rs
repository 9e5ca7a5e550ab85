//! A job's trace: which bytes it consists of ([`Text`]), how far they are safe ([`Checkpoint`]), and which of them are
//! sent when ([`Upload`]) (agent.md §6).
//!
//! Everything here comes masked: the daemon masks the log, and the caller its own lines.

mod checkpoint;
mod text;
#[cfg(test)]
mod text_tests;
mod upload;
#[cfg(test)]
mod upload_tests;

pub use checkpoint::Checkpoint;
pub use text::{Form, Text, resume};
pub(crate) use upload::FORBIDDEN_WAITS;
pub use upload::{Heard, Notice, Request, Upload};

/// Returns a checksum as the server wants it.
pub fn checksum(crc: u32) -> String {
    format!("crc32:{crc:08x}")
}
