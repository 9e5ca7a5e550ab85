//! `step-runner submit`.

use super::connection::ConnectionOptions;
use super::job::JobOptions;
use super::{CommandResult, Verbosity, run};
use crate::error::{Exit, Failure};

/// Start a job, print its id and return
#[derive(clap::Args)]
#[command(mut_arg("job", |job| job.hide(true)))]
#[command(after_long_help = "\
Examples:
  id=$(step-runner submit func.yml) && step-runner follow \"$id\"
  step-runner submit --id 42 --timeout 10m ci/build")]
pub(super) struct Arguments {
    #[command(flatten)]
    job: JobOptions,
    #[command(flatten)]
    connection: ConnectionOptions,
}

pub(super) async fn execute(arguments: Arguments, verbosity: Verbosity) -> CommandResult {
    let phrases = arguments.job.hide_secrets()?;
    if arguments.job.ci_job()?.is_some() {
        return Err(Failure::new(Exit::Usage, "a job of a CI file runs without a daemon")
            .with_remedy("use `step-runner run --job`"));
    }
    let address = arguments.connection.address()?;
    let request = arguments.job.request(&phrases, address.shares_files(), verbosity)?;
    run::warn_of_unseen_files(&request, &address, verbosity);
    let client = arguments.connection.connect_to(address, verbosity).await?;
    run::submit(&client, &request, arguments.job.names_its_id(), verbosity).await
}
