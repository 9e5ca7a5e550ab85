//! `step-runner status`.

use std::io::{self, IsTerminal};
use std::time::Duration;

use clap::ValueEnum;

use super::connection::{ConnectionOptions, parse_id};
use super::{CommandResult, Verbosity, states, terminal};
use crate::client::{Client, Error};
use crate::model::JobId;
use crate::pb::v1;

/// Time between two requests with `--watch`.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Show the states of jobs
///
/// EXIT is the code that `follow` ends with. Times are UTC. On a terminal, messages are cut to its width.
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  step-runner status
  step-runner status 42 --watch
  step-runner status --output json | jq -r '.jobs[] | select(.finished | not) | .id'")]
pub(super) struct Arguments {
    /// Only this job
    #[arg(value_name = "ID", value_parser = parse_id)]
    id: Option<JobId>,
    /// Output format: a table or one JSON object
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
}

pub(super) async fn execute(arguments: Arguments, verbosity: Verbosity) -> CommandResult {
    let client = arguments.connection.connect(verbosity).await?;
    let mut shown = String::new();
    loop {
        let answer = look(&client, arguments.id.as_ref()).await?;
        let text = match arguments.output {
            StatusFormat::Table => {
                let table = states::table(&answer.jobs, terminal::width(), terminal::stdout_has_color());
                table + &states::left_over(&answer)
            }
            StatusFormat::Json => format!("{}\n", states::all_to_json(&answer)),
        };
        if text != shown {
            show(&text, arguments.watch && arguments.output == StatusFormat::Table)?;
            shown = text;
        }
        let over = arguments.id.is_some() && answer.jobs.iter().all(|job| job.finished);
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
