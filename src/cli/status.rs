//! `step-runner status`.

mod table;

use std::io::{self, IsTerminal};
use std::time::Duration;

use chrono::Utc;
use clap::ValueEnum;

use super::connection::ConnectionOptions;
use super::selection::{self, Purpose};
use super::{CommandResult, Verbosity, states, terminal};
use crate::client::{Client, Error};
use crate::model::JobId;
use crate::pb::v1;
use table::Screen;

/// Time between two requests with `--watch`.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Show the states of jobs
///
/// EXIT is the code that `follow` ends with. A terminal gets as many columns as fit, and a message that does not fit on a
/// line of its own. Elsewhere times are those of the clock, in UTC.
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  step-runner status
  step-runner status 42 --watch
  step-runner status --last
  step-runner status --output json | jq -r '.jobs[] | select(.finished | not) | .id'")]
pub(super) struct Arguments {
    /// Only this job: its id, or the beginning of it from 4 characters on
    #[arg(value_name = "ID", value_parser = super::connection::parse_id)]
    id: Option<JobId>,
    /// Only the job that was registered last, whoever started it
    #[arg(long, env = "STEP_RUNNER_LAST", conflicts_with = "id")]
    last: bool,
    /// Output format: a table, one JSON object, or the ids alone
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "table")]
    output: StatusFormat,
    /// Show the status again whenever it changes; with ID until the job has ended
    #[arg(long, env = "STEP_RUNNER_WATCH")]
    watch: bool,
    #[command(flatten)]
    connection: ConnectionOptions,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum StatusFormat {
    Table,
    Json,
    Ids,
}

pub(super) async fn execute(arguments: Arguments, verbosity: Verbosity) -> CommandResult {
    let client = arguments.connection.connect(verbosity).await?;
    let mut shown = String::new();
    let id = match &arguments.id {
        Some(id) => Some(selection::of_beginning(&client, id, Purpose::Show, verbosity).await?),
        None if arguments.last => Some(selection::last(&client, verbosity).await?),
        None => None,
    };
    loop {
        let answer = look(&client, id.as_ref()).await?;
        let text = match arguments.output {
            StatusFormat::Table => {
                let screen = terminal::width().map(|columns| Screen { columns, now: Utc::now() });
                table::show(&answer.jobs, screen, terminal::stdout_has_color()) + &states::left_over(&answer)
            }
            StatusFormat::Json => format!("{}\n", states::all_to_json(&answer)),
            StatusFormat::Ids => answer.jobs.iter().flat_map(|job| [job.id.as_str(), "\n"]).collect(),
        };
        if text != shown {
            show(&text, arguments.watch && arguments.output == StatusFormat::Table)?;
            shown = text;
        }
        let over = id.is_some() && answer.jobs.iter().all(|job| job.finished);
        if !arguments.watch || over {
            return Ok(0);
        }
        tokio::time::sleep(WATCH_INTERVAL).await;
    }
}

async fn look(client: &Client, id: Option<&JobId>) -> Result<v1::StatusResponse, Error> {
    match id {
        Some(id) => Ok(v1::StatusResponse { jobs: vec![client.status(id).await?], ..Default::default() }),
        None => client.overview().await,
    }
}

/// Prints the status. With `in_place` on a terminal, clears the screen first, so that it replaces the one before.
fn show(text: &str, in_place: bool) -> Result<(), crate::error::Failure> {
    if in_place && io::stdout().is_terminal() {
        terminal::print(b"\x1b[H\x1b[2J")?;
    }
    terminal::print(text.as_bytes())
}
