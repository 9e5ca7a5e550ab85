//! Doubles of what the agent talks to, as values: no socket, no clock.

#[path = "../../../../tests/cell_router/route.rs"]
pub(crate) mod router;
pub(crate) mod transcript;
