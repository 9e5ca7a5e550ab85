//! `step-runner schema`.

use super::{Ending, terminal};
use crate::error::{Exit, Failure};
use crate::lang;

/// How editors take it.
const EDITORS: &str = "\
Examples:
  step-runner schema > function.schema.json

Editors that use yaml-language-server take it by the first line of a file,
  # yaml-language-server: $schema=function.schema.json
or by a setting:
  \"yaml.schemas\": {\"function.schema.json\": [\"func.yml\", \"step.yml\"]}";

/// Print the JSON Schema of function files
///
/// For editors and other programs: every document of a function file, and a list of steps, is valid by it. `check` finds
/// more, such as wrong expressions and inputs.
#[derive(clap::Args)]
#[command(after_long_help = EDITORS)]
pub(super) struct Arguments {}

pub(super) fn execute(_: &Arguments) -> Ending {
    let text = serde_json::to_string_pretty(&lang::schema::schema())
        .map_err(|error| Failure::new(Exit::Defect, error))?;
    terminal::print(format!("{text}\n").as_bytes())?;
    Ok(0)
}
