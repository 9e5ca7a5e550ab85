//! `step-runner schema`.

use clap::ValueEnum;

use super::{CommandResult, terminal};
use crate::error::{Exit, Failure};
use crate::lang;

/// Schema of the objects of `--output json`.
const EVENTS: &str = include_str!("events.schema.json");

const EDITORS: &str = "\
Examples:
  step-runner schema > function.schema.json
  step-runner schema events > events.schema.json

Editors that use yaml-language-server take the schema of functions by the first line of a file,
  # yaml-language-server: $schema=function.schema.json
or by a setting:
  \"yaml.schemas\": {\"function.schema.json\": [\"func.yml\", \"step.yml\"]}";

/// Print the JSON Schema of function files, or of events
///
/// For editors and other programs: every document of a function file, a list of steps, and one step are valid by the first. `check`
/// finds more, such as wrong expressions and inputs.
#[derive(clap::Args)]
#[command(after_long_help = EDITORS)]
pub(super) struct Arguments {
    /// Schema to print
    #[arg(value_enum, value_name = "WHAT", default_value = "function")]
    name: SchemaName,
}

/// A schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum SchemaName {
    /// Function files and lists of steps
    Function,
    /// The objects that `run` and `follow` print with --output json
    Events,
}

pub(super) fn execute(arguments: &Arguments) -> CommandResult {
    if arguments.name == SchemaName::Events {
        terminal::print(EVENTS.as_bytes())?;
        return Ok(0);
    }
    let text = serde_json::to_string_pretty(&lang::schema::schema())
        .map_err(|error| Failure::new(Exit::Defect, error))?;
    terminal::print(format!("{text}\n").as_bytes())?;
    Ok(0)
}
