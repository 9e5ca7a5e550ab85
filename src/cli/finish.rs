//! `step-runner finish`.

use super::connection::{ConnectionOptions, for_each, parse_id};
use super::{Ending, Talk};
use crate::model::JobId;

/// Stop jobs and forget them: processes, log, result, files
///
/// Returns when nothing of the jobs is left. An id the daemon does not know is fine.
#[derive(clap::Args)]
#[command(after_long_help = "Examples:\n  step-runner finish 42 43")]
pub(super) struct Arguments {
    /// Ids of the jobs
    #[arg(required = true, value_name = "ID", value_parser = parse_id)]
    ids: Vec<JobId>,
    #[command(flatten)]
    connection: ConnectionOptions,
}

pub(super) async fn execute(arguments: Arguments, talk: Talk) -> Ending {
    let client = arguments.connection.connect(talk).await?;
    for_each(&arguments.ids, async |id| client.finish(id).await).await
}
