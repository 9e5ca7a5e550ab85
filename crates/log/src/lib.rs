//! Masks, frames, reads and prints the output of processes (logs.md, masking.md).
//!
//! Owns every byte between a process's pipe and a follower's screen: masking, framing, parsing, colours. [`journal`] is
//! beside that: files of records with check sums.
//!
//! The crate is pure: it may use no file system, clock, environment or runtime, and of the project only the crate
//! `model`. Callers pass bytes and times in.

pub mod frame;
pub mod journal;
pub mod line;
pub mod mask;
pub mod pipeline;
pub mod pretty;
pub mod tail;
pub mod words;
