//! `step-runner completions`.

use clap::Command;
use clap::builder::PossibleValuesParser;
use clap_complete::Shell;

use super::{CommandResult, command, help, terminal};

const NAME: &str = "step-runner";

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

pub(super) fn execute(arguments: &Arguments) -> CommandResult {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut offered(), NAME, &mut script);
    if arguments.shell == Shell::Bash {
        script = with_one_spelling(&String::from_utf8_lossy(&script)).into_bytes();
    }
    terminal::print(&script)?;
    Ok(0)
}

/// Returns the command line as shells offer it. Generators do not leave out hidden commands, so they are removed here.
/// `help` and `man` get the words that they take.
fn offered() -> Command {
    let program = visible(&command());
    let commands: Vec<_> = program.get_subcommands().map(name_of).collect();
    let topics = PossibleValuesParser::new(help::TOPICS.into_iter().chain(commands.iter().copied()));
    program
        .mut_subcommand("help", |help| help.mut_arg("topic", |topic| topic.value_parser(topics)))
        .mut_subcommand("man", |man| {
            man.mut_arg("command", |page| page.value_parser(PossibleValuesParser::new(commands)))
        })
}

/// Copies a command without its hidden subcommands, as far as completion needs it: clap cannot remove a subcommand.
fn visible(command: &Command) -> Command {
    let shown = Command::new(name_of(command))
        .about(command.get_about().cloned().unwrap_or_default())
        .args(command.get_arguments())
        .groups(command.get_groups())
        .subcommands(command.get_subcommands().filter(|sub| !sub.is_hide_set()).map(visible))
        .disable_help_subcommand(true);
    match command.get_version() {
        Some(version) => shown.version(lasting(version)),
        None => shown,
    }
}

fn name_of(command: &Command) -> &'static str {
    lasting(command.get_name())
}

/// Leaks a text, because clap asks for one that lives as long as the program.
fn lasting(text: &str) -> &'static str {
    text.to_owned().leak()
}

/// Returns the bash script with one spelling of the program's name in its states. Because of the hyphen, the generator
/// sets `step__runner` but asks for `step__subcmd__runner`.
fn with_one_spelling(script: &str) -> String {
    script.replace(&NAME.replace('-', "__subcmd__"), &NAME.replace('-', "__"))
}
