//! One job as a pure state machine: events in, effects out (architecture.md, "Functional core").

pub mod effect;
pub mod event;
pub mod machine;
pub mod reaper;
pub mod record;
pub mod replay;
pub mod results;
