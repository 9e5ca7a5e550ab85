//! `step-runner finish`.

use super::connection::ConnectionOptions;
use super::selection::EndedJobs;
use super::{CommandResult, Verbosity, terminal};
use crate::client::{Client, Error};
use crate::model::JobId;

/// Stop jobs and forget them: processes, log, result, files
///
/// Returns when nothing of the jobs is left. An id that the daemon does not know is no error; a message says so.
#[derive(clap::Args)]
#[command(after_long_help = "Examples:\n  step-runner finish 42 43")]
pub(super) struct Arguments {
    #[command(flatten)]
    jobs: EndedJobs,
    #[command(flatten)]
    connection: ConnectionOptions,
}

pub(super) async fn execute(arguments: Arguments, verbosity: Verbosity) -> CommandResult {
    let client = arguments.connection.connect(verbosity).await?;
    arguments.jobs.for_each(&client, verbosity, async |id| finish(&client, id, verbosity).await).await
}

/// Finishes a job, and tells the user if it was unknown: the call itself succeeds either way.
async fn finish(client: &Client, id: &JobId, verbosity: Verbosity) -> Result<(), Error> {
    let unknown = client.status(id).await.err().filter(Error::is_unknown_job);
    client.finish(id).await?;
    if let Some(unknown) = unknown.filter(|_| !verbosity.quiet) {
        terminal::say(&format!("step-runner: {unknown}; nothing to finish"));
    }
    Ok(())
}
