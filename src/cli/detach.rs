//! `step-runner detach`: started by the agent, never by people.

use std::ffi::OsString;

use super::CommandResult;
use crate::error::{Exit, Failure};
use crate::process::detached::become_watcher;

/// Start a session of its own, and run another command of this program in it
#[derive(clap::Args)]
#[command(hide = true)]
pub(super) struct Arguments {
    /// The command with its options
    #[arg(last = true, required = true)]
    words: Vec<OsString>,
}

pub(super) fn execute(arguments: &Arguments) -> CommandResult {
    let error = become_watcher(&arguments.words);
    Err(Failure::new(Exit::Failure, format!("cannot start in a session of its own: {error}")))
}
