//! Masks, frames, reads and prints the output of processes (logs.md, masking.md). Pure: the clock is passed in.

pub mod frame;
pub mod line;
pub mod mask;
pub mod pipeline;
pub mod pretty;
pub mod tail;
