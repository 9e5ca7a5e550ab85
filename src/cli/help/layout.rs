//! The layout of `--help`: a line for each option, so that the help of a command fits on one or two screens.
//!
//! The manual (`step-runner man`) keeps the long form, with the variable and the values of each option.

use clap::{Arg, ArgAction, Command};

/// Returns the command, and all below it, with the compact layout for `--help`. Examples stay. Variables are named
/// in one line instead of one for each option.
pub(in crate::cli) fn compact(command: Command) -> Command {
    let about = command.get_long_about().or_else(|| command.get_about()).cloned();
    let after = below(&command);
    let mut command = command
        .mut_args(|argument| on_one_line(argument).hide_env(true))
        .disable_help_flag(true)
        .arg(help_flag())
        .after_help(after.clone())
        .after_long_help(after);
    if let Some(about) = about {
        command = command.about(about.clone()).long_about(about);
    }
    command.mut_subcommands(compact)
}

pub(super) fn help_flag() -> Arg {
    let flag =
        Arg::new("help").short('h').long("help").help("Print help: -h what one needs every day, --help all");
    flag.action(ArgAction::HelpShort).help_heading("Common options")
}

/// Returns the argument with all of its help, that of its values included, in the text beside its name.
fn on_one_line(argument: Arg) -> Arg {
    let help =
        argument.get_long_help().or_else(|| argument.get_help()).map(ToString::to_string).unwrap_or_default();
    let values = argument.get_possible_values();
    let explained: Vec<_> = values
        .iter()
        .filter(|value| !value.is_hide_set())
        .filter_map(|value| Some(format!("{}: {}", value.get_name(), value.get_help()?)))
        .collect();
    if explained.is_empty() {
        return argument.help(help);
    }
    let text = format!("{help}\n{}", explained.join("\n"));
    argument.help(text).hide_possible_values(true)
}

/// Returns what stands below the options: the examples, and how variables are named.
fn below(command: &Command) -> String {
    let mut text = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
    let mut shown = command.get_arguments().filter(|argument| !argument.is_hide_set());
    let example = shown.find_map(|argument| Some((argument.get_long()?, argument.get_env()?.to_str()?)));
    if let Some((option, variable)) = example {
        if !text.is_empty() {
            text.push_str("\n\n");
        }
        let line = format!(
            "Options have variables, such as {variable} for --{option} (step-runner help environment)."
        );
        text.push_str(&line);
    }
    text
}
