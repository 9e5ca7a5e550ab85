//! What a job does, read from its log and the events of its steps: everything that shows a job uses this and nothing else.
//!
//! - [`order`] puts log and events into one order, the same for every reader, live or late;
//! - [`run`] keeps the tree of the steps under way;
//! - [`cause`] finds the step that decided how a job ended.
//!
//! Pure: no IO, no clock, no terminal.

pub mod cause;
pub mod order;
pub mod run;
