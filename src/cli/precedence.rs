//! Options win over variables (cli.md), also over those of other options: the variable of an option that excludes one of
//! the command line is not looked at.

use std::ffi::OsString;

use clap::builder::Resettable;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Command, Id};

/// Parses the words of the command line and the variables.
pub(super) fn parse(command: Command, words: Vec<OsString>) -> Result<ArgMatches, clap::Error> {
    match command.clone().try_get_matches_from(&words) {
        // Does one of the two stand on the command line?
        Err(error) if error.kind() == ErrorKind::ArgumentConflict => {}
        parsed => return parsed,
    }
    let given = without_variables(command.clone(), &|_| true).try_get_matches_from(&words)?;
    let excluded = excluded(&command, &given);
    without_variables(command, &|id| excluded.contains(id)).try_get_matches_from(words)
}

/// The options that exclude one of the command line.
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
            // It is written at one of the two.
            for (given, out) in [(one, other), (other, one)] {
                if is_given(given.get_id()) {
                    excluded.push(out.get_id().clone());
                }
            }
        }
    }
    excluded
}

fn without_variables(command: Command, of: &dyn Fn(&Id) -> bool) -> Command {
    let command = command
        .mut_args(|argument| if of(argument.get_id()) { argument.env(Resettable::Reset) } else { argument });
    command.mut_subcommands(|command| without_variables(command, of))
}
