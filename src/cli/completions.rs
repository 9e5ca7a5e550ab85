//! `step-runner completions`.

use clap_complete::Shell;

use super::{Ending, command, terminal};

/// Print a completion script for a shell
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  step-runner completions bash > ~/.local/share/bash-completion/completions/step-runner
  step-runner completions fish > ~/.config/fish/completions/step-runner.fish")]
pub(super) struct Arguments {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

pub(super) fn execute(arguments: &Arguments) -> Ending {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command(), "step-runner", &mut script);
    terminal::write_stdout(&script)?;
    Ok(0)
}
