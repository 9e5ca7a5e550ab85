//! `step-runner run`.

use std::path::PathBuf;

use super::connection::ConnectionOptions;
use super::document;
use super::job::JobOptions;
use super::output::OutputOptions;
use super::private;
use super::session::{self, Ended, Interrupts, LAST_WORDS, OnInterrupt};
use super::{Ending, Talk, results, states, terminal};
use crate::app::PrivateDaemon;
use crate::client::{Address, AddressError, Client, Error, Request};
use crate::config::EnvBase;
use crate::error::{Exit, Failure};
use crate::lang::document::parse_request;
use crate::net::Socket;

/// Run a function and follow it to its end
///
/// Without --address and --socket no daemon is needed: this process is a private one, and nothing of it is left when it
/// ends. Ctrl-C, SIGTERM and SIGHUP cancel the job and wait for its end; a second one kills it.
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  step-runner run                                   the function in this folder
  step-runner run ci/build --input jobs=4 --env CI=true
  step-runner run func.yml --masked-var DEPLOY_TOKEN --results results.json
  echo '[{name: hi, script: echo hi}]' | step-runner run -
  step-runner run --socket /run/step-runner.sock --detach --id 42 func.yml")]
pub(super) struct Arguments {
    #[command(flatten)]
    job: JobOptions,
    /// Print the id and do not follow (needs a daemon)
    #[arg(long, env = "STEP_RUNNER_DETACH", help_heading = "Job")]
    detach: bool,
    /// Leave log and result with the daemon (needs one)
    #[arg(long, env = "STEP_RUNNER_KEEP", help_heading = "Job")]
    keep: bool,
    /// What steps get of this shell's environment, without a daemon
    #[arg(long, value_name = "all|list", default_value = "all", value_parser = env_base,
          env = "STEP_RUNNER_ENV_BASE", help_heading = "Job")]
    env_base: EnvBase,
    /// Write the step results there as JSON, for the owner's eyes only; checked before the job starts
    #[arg(long, value_name = "FILE", env = "STEP_RUNNER_RESULTS", help_heading = "Output")]
    results: Option<PathBuf>,
    #[command(flatten)]
    output: OutputOptions,
    #[command(flatten)]
    connection: ConnectionOptions,
}

fn env_base(text: &str) -> Result<EnvBase, String> {
    match text {
        "all" => Ok(EnvBase::All),
        "list" => Ok(EnvBase::List),
        _ => Err("write `all` or `list`".to_owned()),
    }
}

pub(super) async fn execute(arguments: Arguments, talk: Talk) -> Ending {
    if let Some(path) = &arguments.results {
        results::check(path)?;
    }
    if arguments.connection.is_named() {
        let address = arguments.connection.address()?;
        let request = arguments.job.request(address.shares_files())?;
        let client = arguments.connection.connect_to(address, talk).await?;
        if arguments.detach {
            return submit(&client, &request, arguments.job.names_its_id(), talk).await;
        }
        return Box::pin(with_daemon(&arguments, &client, &request, talk)).await;
    }
    if arguments.detach || arguments.keep {
        let option = if arguments.detach { "--detach" } else { "--keep" };
        return Err(Failure::new(Exit::Usage, format!("{option} needs a daemon"))
            .with_remedy("name one with --address or --socket"));
    }
    Box::pin(alone(&arguments, talk)).await
}

/// Submits a job and prints its id. `named`: the caller chose the id.
pub(super) async fn submit(client: &Client, request: &Request, named: bool, talk: Talk) -> Ending {
    start(client, request, named, Failure::from, talk).await?;
    terminal::write_stdout(format!("{}\n", request.id()).as_bytes())?;
    Ok(0)
}

/// Asks for a job. Run answers the same whether it starts a job, finds one, or remembers that this one has had its turn
/// (service.md §3.1). Who chose the id is told: that one is found, before; that the job has had its turn, as an error, for
/// nothing could be followed.
async fn start(
    client: &Client,
    request: &Request,
    named: bool,
    refused: fn(Error) -> Failure,
    talk: Talk,
) -> Result<(), Failure> {
    let id = request.id();
    if named {
        match client.status(id).await {
            Ok(status) if !talk.quiet => {
                let state = states::name(&status);
                terminal::say(&format!(
                    "step-runner: job {id} was started before ({state}); nothing new is started"
                ));
            }
            // Run would try as long again.
            Err(error @ (Error::Unreachable { .. } | Error::NoAnswer { .. })) => return Err(refused(error)),
            // What else is wrong Run says.
            Ok(_) | Err(_) => {}
        }
    }
    accepted(client.run(request).await, request, refused)?;
    if !named {
        return Ok(());
    }
    match client.status(id).await {
        Err(error) if error.is_finished_job() => Err(Failure::new(Exit::Refused, error)
            .with_remedy("nothing was started: it was the same job; choose another --id to run it again")),
        _ => Ok(()),
    }
}

/// The answer to a request. What is wrong with a document that was refused is shown as `check` shows it.
fn accepted(
    answer: Result<(), Error>,
    request: &Request,
    refused: fn(Error) -> Failure,
) -> Result<(), Failure> {
    let Err(error) = answer else { return Ok(()) };
    let findings = match &error {
        Error::Refused(_) => shown_findings(request.steps(), &document::shown(request.file_name())),
        _ => None,
    };
    Err(findings.unwrap_or_else(|| refused(error)))
}

/// Shows what is wrong with a document, if anything is, as `check` shows it; the failure that says so.
pub(super) fn shown_findings(steps: &str, file: &str) -> Option<Failure> {
    let findings = parse_request(steps, file).err()?;
    Some(document::refused(&findings, steps, file))
}

/// Runs with a daemon that goes on when this command has ended.
async fn with_daemon(arguments: &Arguments, client: &Client, request: &Request, talk: Talk) -> Ending {
    let mut interrupts = Interrupts::new(OnInterrupt::Cancel)?;
    let ended = to_the_end(arguments, client, request, Failure::from, &mut interrupts, talk).await;
    let finished = match &ended {
        _ if arguments.keep => Ok(()),
        // To be taken up again.
        Err(failure) if failure.exit() == Exit::Unreachable => Ok(()),
        // The removal goes on without us (service.md §3.4).
        Err(failure) if failure.exit().is_by_signal() => {
            drop(tokio::time::timeout(LAST_WORDS, client.finish(request.id())).await);
            Ok(())
        }
        // Also when the log cannot be shown any more (service.md §7.5).
        _ => {
            let finish = async { Ok(client.finish(request.id()).await?) };
            interrupts.unless_interrupted(finish).await
        }
    };
    let ended = ended?;
    ended.explain(talk, Some(request), &interrupts);
    finished?;
    Ok(ended.code(&interrupts))
}

/// Runs with a daemon inside this process.
async fn alone(arguments: &Arguments, talk: Talk) -> Ending {
    let mut interrupts = Interrupts::new(OnInterrupt::Cancel)?;
    let request = arguments.job.request(true)?;
    let daemon = interrupts.unless_interrupted(private::start(arguments.env_base)).await?;
    let ended = alone_with(&daemon, arguments, &request, &mut interrupts, talk).await;
    let at_once = matches!(&ended, Err(failure) if failure.exit().is_by_signal());
    let gone = private::end(daemon, at_once).await;
    let ended = ended?;
    ended.explain(talk, Some(&request), &interrupts);
    gone?;
    Ok(ended.code(&interrupts))
}

async fn alone_with(
    daemon: &PrivateDaemon,
    arguments: &Arguments,
    request: &Request,
    interrupts: &mut Interrupts,
    talk: Talk,
) -> Result<Ended, Failure> {
    let socket = Socket::named(&daemon.socket).map_err(AddressError::from).map_err(Error::from)?;
    let client = arguments.connection.connect_to(Address::Unix(socket), talk).await?;
    to_the_end(arguments, &client, request, cannot_start, interrupts, talk).await
}

/// A job that this process did not start: nobody else has refused it.
fn cannot_start(error: Error) -> Failure {
    let (exit, message) = match error {
        Error::Refused(message) => (Exit::Refused, message),
        Error::TryLater(message) => (Exit::TryLater, message),
        error => return error.into(),
    };
    let (_, text) = message.split_once(": ").unwrap_or(("", &message));
    Failure::new(exit, format!("cannot start the job: {text}"))
}

async fn to_the_end(
    arguments: &Arguments,
    client: &Client,
    request: &Request,
    refused: fn(Error) -> Failure,
    interrupts: &mut Interrupts,
    talk: Talk,
) -> Result<Ended, Failure> {
    let named = arguments.job.names_its_id();
    interrupts.while_submitting(start(client, request, named, refused, talk)).await?;
    if talk.verbose > 0 {
        terminal::say(&format!("step-runner: job {} at {}", request.id(), client.address()));
    }
    let display = arguments.output.display();
    let ended = Box::pin(session::follow(client, request.id(), 0, display, interrupts, talk)).await?;
    if let Some(path) = &arguments.results {
        let root = ended.root.as_ref();
        let root = root.ok_or_else(|| Failure::new(Exit::Failure, "the daemon sent no step results"))?;
        results::write(path, root)?;
    }
    Ok(ended)
}
