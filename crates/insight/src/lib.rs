//! The course of a job, read from its log and the events of its steps: every view that shows steps takes
//! order and steps from here.
//!
//! - [`run`] puts log and events into one order, the same for every reader, live or late, and folds the events;
//! - [`tree`] is what they are folded to: all steps, and the lines that each has written;
//! - [`cause`] finds the step that decided how a job ended.
//!
//! Pure: no IO, no clock, no terminal.

pub mod cause;
mod order;
pub mod run;
pub mod tree;
