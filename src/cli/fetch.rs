//! `step-runner fetch`: started by the daemon, never by people.

use super::CommandResult;
use crate::error::{Exit, Failure};
use crate::fetch::worker;

/// The process that fetches a function: its task comes on standard input
#[derive(clap::Args)]
#[command(hide = true)]
pub(super) struct Arguments {}

pub(super) fn execute(Arguments {}: &Arguments) -> CommandResult {
    worker::run().map_err(|error| Failure::new(Exit::Failure, error))?;
    Ok(0)
}
