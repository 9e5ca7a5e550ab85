//! `step-runner cancel`.

use super::connection::{ConnectionOptions, for_each, parse_id};
use super::{CommandResult, Verbosity};
use crate::model::JobId;

/// Stop jobs gently and keep their results and logs
///
/// The processes of the running step get SIGTERM, after the grace time SIGKILL. Returns at once; `follow` shows the end.
#[derive(clap::Args)]
#[command(after_long_help = "Examples:\n  step-runner cancel 42 && step-runner follow 42")]
pub(super) struct Arguments {
    /// Ids of the jobs; an unknown one is an error
    #[arg(required = true, value_name = "ID", value_parser = parse_id)]
    ids: Vec<JobId>,
    #[command(flatten)]
    connection: ConnectionOptions,
}

pub(super) async fn execute(arguments: Arguments, verbosity: Verbosity) -> CommandResult {
    let client = arguments.connection.connect(verbosity).await?;
    for_each(&arguments.ids, async |id| client.cancel(id).await).await
}
