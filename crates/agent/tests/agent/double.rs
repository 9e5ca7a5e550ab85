//! Doubles of what the agent talks to, as values: no socket, no clock.

pub(crate) mod router;
pub(crate) mod transcript;
