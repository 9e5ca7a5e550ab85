//! Options win over variables (cli.md), even over variables of other options: if an option on the command line excludes
//! another one, the variable of that one is ignored.

use std::ffi::{OsStr, OsString};

use clap::builder::Resettable;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, Id};

/// Parses the command line and the variables. `command` makes the whole command line: a copy would cost as much, and each
/// process of the program starts here.
pub(super) fn parse(command: impl Fn() -> Command, words: &[OsString]) -> Result<ArgMatches, clap::Error> {
    let empty = empty_variables();
    let command = || match empty.as_slice() {
        [] => command(),
        empty => without_variables(command(), &|argument| {
            argument.get_env().is_some_and(|name| empty.iter().any(|empty| empty == name))
        }),
    };
    match command().try_get_matches_from(words) {
        // A variable may cause the conflict: see below.
        Err(error) if error.kind() == ErrorKind::ArgumentConflict => {}
        parsed => return parsed,
    }
    let given = without_variables(command(), &|_| true).try_get_matches_from(words)?;
    let excluded = excluded(&command(), &given);
    without_variables(command(), &|argument| excluded.contains(argument.get_id())).try_get_matches_from(words)
}

/// Returns the names of our variables that are empty. They count as unset: CI systems export empty variables.
fn empty_variables() -> Vec<OsString> {
    let is_ours = |name: &OsString| name.as_encoded_bytes().starts_with(b"STEP_RUNNER_");
    std::env::vars_os()
        .filter(|(name, value)| value.is_empty() && is_ours(name))
        .map(|(name, _)| name)
        .collect()
}

/// Returns the variable whose value caused the error, if the option itself is not on the command line.
pub(super) fn blamed(error: &clap::Error, command: &Command, words: &[OsString]) -> Option<String> {
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else { return None };
    let option = option.split([' ', '=']).next()?;
    let is_given = |word: &OsString| word.to_str().is_some_and(|word| word.split('=').next() == Some(option));
    if words.iter().any(is_given) {
        return None;
    }
    // The requested command and those above it, whose options it may have, too.
    let mut asked = vec![command];
    for word in words.iter().skip(1) {
        asked.extend(asked.last()?.find_subcommand(word));
    }
    let option = option.strip_prefix("--")?;
    asked.into_iter().rev().find_map(|command| variable(option, command))
}

/// Returns the variable of an option of this command, if it is set.
fn variable(option: &str, command: &Command) -> Option<String> {
    let mut options = command.get_arguments().filter(|argument| argument.get_long() == Some(option));
    let is_set = |name: &&OsStr| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    options.find_map(|argument| argument.get_env().filter(is_set)?.to_str().map(str::to_owned))
}

/// Returns the options that conflict with one on the command line.
fn excluded(command: &Command, given: &ArgMatches) -> Vec<Id> {
    if let Some((name, given)) = given.subcommand()
        && let Some(command) = command.find_subcommand(name)
    {
        return excluded(command, given);
    }
    let is_given = |id: &Id| {
        given.try_contains_id(id.as_str()).is_ok()
            && given.value_source(id.as_str()) == Some(ValueSource::CommandLine)
    };
    let mut excluded = Vec::new();
    for one in command.get_arguments() {
        for other in command.get_arg_conflicts_with(one) {
            // Only one of the two declares the conflict.
            for (given, out) in [(one, other), (other, one)] {
                if is_given(given.get_id()) {
                    excluded.push(out.get_id().clone());
                }
            }
        }
    }
    excluded
}

fn without_variables(command: Command, of: &dyn Fn(&Arg) -> bool) -> Command {
    let command =
        command.mut_args(|argument| if of(&argument) { argument.env(Resettable::Reset) } else { argument });
    command.mut_subcommands(|command| without_variables(command, of))
}
