//! `step-runner follow`.

use super::connection::ConnectionOptions;
use super::interrupts::{Interrupts, OnInterrupt};
use super::output::OutputOptions;
use super::selection::OneJob;
use super::session;
use super::writer::Writer;
use super::{CommandResult, Verbosity, results, terminal};
use crate::client::Client;
use crate::error::{Exit, Failure};
use crate::model::JobId;

/// Show the log of a job to its end, then end as the job did
///
/// Broken connections are made anew and the log goes on at the same byte. Ctrl-C leaves the job alone.
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  step-runner follow 42
  step-runner follow 42 --output raw --offset 1000000 >> job.log
  step-runner follow 42 --steps | jq .status")]
pub(super) struct Arguments {
    #[command(flatten)]
    job: OneJob,
    /// Start after this many bytes of the log
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = parse_offset, env = "STEP_RUNNER_OFFSET")]
    offset: u64,
    /// Step results instead of the log, each as JSON on a line; the last one is the whole tree
    #[arg(long, env = "STEP_RUNNER_STEPS", conflicts_with_all = ["offset", "output"])]
    steps: bool,
    #[command(flatten)]
    output: OutputOptions,
    #[command(flatten)]
    connection: ConnectionOptions,
}

fn parse_offset(text: &str) -> Result<u64, &'static str> {
    text.parse().map_err(|_| "write a number of bytes, such as 4096")
}

pub(super) async fn execute(arguments: Arguments, verbosity: Verbosity) -> CommandResult {
    let mut interrupts = Interrupts::new(OnInterrupt::Leave)?;
    let client = interrupts.unless_interrupted(arguments.connection.connect(verbosity)).await?;
    let id = &interrupts.unless_interrupted(arguments.job.id(&client, verbosity)).await?;
    if arguments.steps {
        return interrupts.unless_interrupted(steps(&client, id)).await;
    }
    let address = client.address().to_string();
    let address = shell_words::quote(&address);
    interrupts.set_remedy(format!("come back with `step-runner follow --address {address} {id}`"));
    let display = arguments.output.display(arguments.offset, verbosity)?;
    let follow = session::follow(&client, id, arguments.offset, display, &mut interrupts, verbosity);
    let ended = Box::pin(follow).await?;
    ended.explain(verbosity, None, &interrupts);
    Ok(ended.code(&interrupts))
}

async fn steps(client: &Client, id: &JobId) -> CommandResult {
    let mut stream = client.follow_steps(id);
    let writer = Writer::start().map_err(|error| Failure::new(Exit::Failure, error))?;
    let check = || writer.take_error().map_or(Ok(()), |error| Err(terminal::unwritten(&error)));
    while let Some(result) = stream.next().await? {
        writer.stdout(format!("{}\n", results::to_json(&result)).into_bytes());
        while !writer.has_room() {
            writer.progress().await;
        }
        check()?;
    }
    writer.drained().await;
    check()?;
    let status = client.status(id).await?;
    Ok(super::end::code(&status))
}
