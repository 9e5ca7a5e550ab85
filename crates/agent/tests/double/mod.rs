//! Doubles of what the agent talks to, as values: no socket, no clock.

pub mod router;
