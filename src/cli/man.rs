//! `step-runner man`.

use super::{CommandResult, command, terminal};
use crate::error::{Exit, Failure};

/// Print a manual page
#[derive(clap::Args)]
#[command(
    after_long_help = "Examples:\n  step-runner man | man -l -\n  step-runner man run > step-runner-run.1"
)]
pub(super) struct Arguments {
    /// Page of this command; default: of the program
    #[arg(value_name = "COMMAND")]
    command: Option<String>,
}

pub(super) fn execute(arguments: &Arguments) -> CommandResult {
    let mut program = command();
    program.build();
    let page = match &arguments.command {
        None => program,
        Some(name) => program
            .find_subcommand(name)
            .cloned()
            .ok_or_else(|| Failure::new(Exit::Usage, format!("there is no command `{name}`")))?,
    };
    let mut text = Vec::new();
    clap_mangen::Man::new(page).render(&mut text).map_err(|error| Failure::new(Exit::Failure, error))?;
    terminal::print(&text)?;
    Ok(0)
}
