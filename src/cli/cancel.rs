//! `step-runner cancel`.

use super::connection::ConnectionOptions;
use super::selection::EndedJobs;
use super::{CommandResult, Verbosity};
use crate::model::JobId;

/// Stop jobs gently and keep their results and logs
///
/// The processes of the running steps get SIGTERM, after the grace time SIGKILL. Then the steps with `when: always` run.
/// Returns at once; `follow` shows the end.
#[derive(clap::Args)]
#[command(
    after_long_help = "Examples:\n  step-runner cancel 42 && step-runner follow 42\n  step-runner cancel --force 42"
)]
pub(super) struct Arguments {
    #[command(flatten)]
    jobs: EndedJobs,
    /// End the jobs at once, without grace and cleanup
    #[arg(long, env = "STEP_RUNNER_FORCE")]
    force: bool,
    #[command(flatten)]
    connection: ConnectionOptions,
}

pub(super) async fn execute(arguments: Arguments, verbosity: Verbosity) -> CommandResult {
    let client = arguments.connection.connect(verbosity).await?;
    let force = arguments.force;
    let cancel = async |id: &JobId| {
        if force { client.cancel_at_once(id).await } else { client.cancel(id).await }
    };
    arguments.jobs.for_each(&client, verbosity, cancel).await
}
