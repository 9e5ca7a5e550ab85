//! Tests of the agent's decisions together, with what they talk to as values: no socket, no file of the agent, no clock.
#![allow(clippy::unwrap_used, clippy::allow_attributes, reason = "a test")]

mod cells;
mod double;
mod imports;
mod polling;
mod simulation;
mod transcripts;
