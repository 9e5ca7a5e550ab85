//! The layout of `-h`: what one needs every day, on one small screen.

use clap::{Arg, Command};

use super::layout::help_flag;

/// Options of commands that have many, in the order of their use. Other commands show their own options.
const DAILY: [(&str, &[&str]); 3] = [
    (
        "run",
        &["target", "input", "env", "env_file", "masked_var", "work_dir", "errexit", "dry_run", "output"],
    ),
    ("submit", &["target", "input", "env", "var", "masked_var", "id", "timeout", "socket", "address"]),
    ("serve", &["command", "config", "print_config", "socket", "state_dir", "max_running", "log_level"]),
];

/// Commands shown without a command.
const COMMANDS: [&str; 10] =
    ["run", "submit", "follow", "status", "cancel", "finish", "check", "serve", "doctor", "help"];

/// Headings of options that many commands share. They are not shown, but for the daemon's address.
const SHARED: [&str; 3] = ["Common options", "Daemon", "Output"];

/// Most options shown.
const MOST: usize = 9;

/// Returns the command, and all below it, with the short layout.
pub(in crate::cli) fn brief(command: Command) -> Command {
    let name = command.get_name().to_owned();
    brief_of(command, &name, true)
}

fn brief_of(command: Command, path: &str, is_program: bool) -> Command {
    let pointer = if is_program {
        format!("All commands, with examples: {path} --help")
    } else {
        format!("All options, with examples: {path} --help")
    };
    let shown = shown(&command);
    let command = command
        .mut_args(|argument| {
            let is_shown = shown.iter().any(|id| id == argument.get_id().as_str());
            short(argument).hide(!is_shown)
        })
        .disable_help_flag(true)
        .arg(help_flag().hide(true))
        .after_help(pointer.clone())
        .after_long_help(pointer);
    command.mut_subcommands(|sub| {
        let path = format!("{path} {}", sub.get_name());
        let hidden = sub.is_hide_set() || is_program && !COMMANDS.contains(&sub.get_name());
        brief_of(sub, &path, false).hide(hidden)
    })
}

/// Returns the ids of the arguments that are shown.
fn shown(command: &Command) -> Vec<String> {
    if let Some((_, ids)) = DAILY.iter().find(|(name, _)| *name == command.get_name()) {
        return ids.iter().map(|&id| id.to_owned()).collect();
    }
    let is_own = |argument: &&Arg| {
        let heading = argument.get_help_heading().unwrap_or_default();
        !argument.is_hide_set() && !argument.is_global_set() && !SHARED.contains(&heading)
    };
    let ids = |argument: &Arg| argument.get_id().to_string();
    let mut shown: Vec<String> = command.get_arguments().filter(is_own).map(ids).take(MOST).collect();
    let daemon = command.get_arguments().find(|argument| argument.get_id() == "address").map(ids);
    shown.extend(daemon.filter(|_| shown.len() < MOST));
    shown
}

/// Returns a text that is too long for a row up to the last comma, or else the last word, that fits.
fn first_part(text: &str) -> String {
    /// Length that fits beside an option on a screen of 100 columns.
    const LONGEST: usize = 60;
    let Some((end, _)) = text.char_indices().nth(LONGEST) else { return text.to_owned() };
    let fitting = text.get(..end).unwrap_or_default();
    let before = |separator: &str| fitting.rfind(separator).and_then(|at| fitting.get(..at));
    before(", ").map_or_else(|| format!("{}…", before(" ").unwrap_or(fitting)), str::to_owned)
}

/// Returns an argument with the first sentence of its help, and without a heading of its own.
fn short(argument: Arg) -> Arg {
    let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
    let takes_values = argument.get_action().takes_values();
    let argument = argument.hide_env(true).help_heading(None::<&str>);
    let argument = if takes_values { argument.hide_possible_values(true) } else { argument };
    let first = first_part(help.split("; ").next().unwrap_or_default());
    argument.long_help(first.clone()).help(first)
}
