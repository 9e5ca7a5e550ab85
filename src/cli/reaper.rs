//! `step-runner reaper`: started by the keeper, never by people.

use super::CommandResult;
use super::keeper::StepLimits;
use crate::error::{Exit, Failure};
use crate::process::reaper::serve;

/// The process that holds the processes of one job together where no control group can
#[derive(clap::Args)]
#[command(hide = true)]
pub(super) struct Arguments {
    /// Tag of the job, by which this process is found after the death of its keeper
    #[arg(long, value_name = "TAG")]
    job: String,
    #[command(flatten)]
    limits: StepLimits,
}

pub(super) fn execute(arguments: &Arguments) -> CommandResult {
    let limits = arguments.limits.apply()?;
    serve(limits.oom_score_adj).map_err(|error| {
        Failure::new(Exit::Failure, format!("cannot hold job {} together: {error}", arguments.job))
    })?;
    Ok(0)
}
