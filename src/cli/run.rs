//! `step-runner run`.

use std::path::PathBuf;

use super::ci_job::{self, CiJobs, CiOptions, Configuration, ListFormat};
use super::connection::ConnectionOptions;
use super::document;
use super::findings;
use super::interrupts::{Interrupts, LAST_ANSWER_WAIT, OnInterrupt};
use super::job::{JobOptions, Jobs, Phrases};
use super::output::OutputOptions;
use super::plan;
use super::private;
use super::results::{self, Readers};
use super::session::{self, FinishedJob};
use super::{CommandResult, Verbosity, made, states, terminal, watch};
use crate::app::PrivateDaemon;
use crate::client::{Address, AddressError, Client, Error, Request};
use crate::config::EnvBase;
use crate::error::{Exit, Failure};
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
  step-runner run ci/build --dry-run                what would run
  step-runner run --list-jobs                       the jobs of .gitlab-ci.yml
  step-runner run --job test --needs                one of them, after the jobs that it needs
  step-runner run --job test --watch                again after each change
  step-runner run --socket /run/step-runner.sock --detach --id 42 func.yml")]
#[expect(clippy::struct_excessive_bools, reason = "each is an option")]
pub(super) struct Arguments {
    #[command(flatten)]
    job: JobOptions,
    #[command(flatten)]
    ci: CiOptions,
    /// Print the steps with what is known of them, and run nothing
    #[arg(long, env = "STEP_RUNNER_DRY_RUN", help_heading = "Job")]
    dry_run: bool,
    /// Run again when a file changes in the working directory or the job's folder; files that git ignores do not count
    #[arg(long, env = "STEP_RUNNER_WATCH", help_heading = "Job", conflicts_with_all = ["detach", "list_jobs", "id"])]
    watch: bool,
    /// Print the id and do not follow (needs a daemon)
    #[arg(long, env = "STEP_RUNNER_DETACH", help_heading = "Job")]
    detach: bool,
    /// Keep the log and the result in the daemon after the end (needs a daemon)
    #[arg(long, env = "STEP_RUNNER_KEEP", help_heading = "Job")]
    keep: bool,
    /// Variables of this shell that steps get in a run without a daemon: all, or list, the default with --job
    #[arg(long, value_name = "all|list", value_parser = env_base,
          env = "STEP_RUNNER_ENV_BASE", help_heading = "Job")]
    env_base: Option<EnvBase>,
    /// Write the step results to this file as JSON, readable by its owner only; checked before the job starts
    #[arg(
        long,
        alias = "step-results-file",
        value_name = "FILE",
        env = "STEP_RUNNER_RESULTS",
        help_heading = "Output"
    )]
    results: Option<PathBuf>,
    /// Write the results to step-results.json in the current folder
    #[arg(long, hide = true, env = "STEP_RUNNER_WRITE_STEPS_RESULTS", help_heading = "Output")]
    write_steps_results: bool,
    #[command(flatten)]
    output: OutputOptions,
    #[command(flatten)]
    connection: ConnectionOptions,
}

impl Arguments {
    /// Returns the name of an option that only a job of a daemon can have, if one is given.
    fn of_a_daemon(&self) -> Option<&'static str> {
        let given = [(self.detach, "--detach"), (self.keep, "--keep")];
        given.into_iter().find(|(is_given, _)| *is_given).map(|(_, name)| name)
    }

    /// Returns the file for the results, if they are wanted.
    fn results_file(&self) -> Option<PathBuf> {
        let asked = || self.write_steps_results || results::is_debugged();
        self.results.clone().or_else(|| asked().then(|| results::DEFAULT_FILE.into()))
    }
}

fn env_base(text: &str) -> Result<EnvBase, String> {
    match text {
        "all" => Ok(EnvBase::All),
        "list" => Ok(EnvBase::List),
        _ => Err("write `all` or `list`".to_owned()),
    }
}

pub(super) async fn execute(arguments: Arguments, verbosity: Verbosity) -> CommandResult {
    let phrases = arguments.job.hide_secrets()?;
    if arguments.dry_run && arguments.output.is_json() {
        return Err(Failure::new(Exit::Usage, "--dry-run prints a table for people, not JSON")
            .with_remedy("leave --output json out"));
    }
    if arguments.watch {
        return watch::watch(&arguments.job.folders()?, verbosity).await;
    }
    if let Some(path) = arguments.results_file() {
        results::check(&path)?;
    }
    let name = arguments.job.ci_job()?;
    if name.is_some() || arguments.ci.list_jobs {
        return Box::pin(job_of_ci_file(&arguments, name, phrases, verbosity)).await;
    }
    if let Some(option) = arguments.ci.first_given() {
        return Err(Failure::new(Exit::Usage, format!("{option} is for a job of a CI file"))
            .with_remedy("name the job with --job"));
    }
    if arguments.dry_run {
        let request = arguments.job.request(&phrases, true, verbosity)?;
        plan::show(request.steps(), request.file_name())?;
        return Ok(0);
    }
    if arguments.connection.is_named() {
        let address = arguments.connection.address()?;
        let request = arguments.job.request(&phrases, address.shares_files(), verbosity)?;
        warn_of_unseen_files(&request, &address, verbosity);
        let client = arguments.connection.connect_to(address, verbosity).await?;
        if arguments.detach {
            return submit(&client, &request, arguments.job.names_its_id(), verbosity).await;
        }
        let request = colored(request, &arguments);
        return Box::pin(with_daemon(&arguments, &client, &request, verbosity)).await;
    }
    if let Some(option) = arguments.of_a_daemon() {
        return Err(Failure::new(Exit::Usage, format!("{option} needs a daemon"))
            .with_remedy("name one with --address or --socket"));
    }
    // Reading can wait for someone who writes. Until then, a signal ends the command as it ends any other.
    let mut jobs = OneJob(Some(arguments.job.own_request(&phrases, verbosity)?));
    Box::pin(alone(&arguments, &mut jobs, EnvBase::All, verbosity)).await
}

/// Runs a job of a CI file, or lists the jobs.
async fn job_of_ci_file(
    arguments: &Arguments,
    name: Option<&str>,
    phrases: Phrases,
    verbosity: Verbosity,
) -> CommandResult {
    let (job, options) = (&arguments.job, &arguments.ci);
    if let Some(option) = arguments.of_a_daemon() {
        return Err(Failure::new(Exit::Usage, format!("{option} is not possible with a job of a CI file"))
            .with_remedy("it runs here, without a daemon: leave the option out"));
    }
    if arguments.connection.is_named() {
        let text = "a job of a CI file runs here, not at an address or socket";
        return Err(Failure::new(Exit::Usage, text)
            .with_remedy("leave out --address and --socket, and their variables STEP_RUNNER_ADDRESS and STEP_RUNNER_SOCKET"));
    }
    let inputs = job.texts_of_inputs()?;
    let configuration = Configuration::read(job.target(), options, job.variables()?, &inputs)?;
    let Some(name) = name.filter(|_| !options.list_jobs) else {
        let format = match (arguments.output.is_json(), verbosity.quiet) {
            (true, _) => ListFormat::Json,
            (false, true) => ListFormat::Names,
            (false, false) => ListFormat::Table,
        };
        ci_job::list(&configuration, options, format)?;
        return Ok(0);
    };
    let mut jobs = CiJobs::new(name, configuration, options, job, phrases, verbosity)?;
    if arguments.dry_run {
        plan::show(&jobs.steps()?, "")?;
        return Ok(0);
    }
    Box::pin(alone(arguments, &mut jobs, EnvBase::List, verbosity)).await
}

/// One job, whose request is made.
struct OneJob(Option<Request>);

impl Jobs for OneJob {
    fn next(&mut self, _: Option<u8>) -> Result<Option<Request>, Failure> {
        Ok(self.0.take())
    }

    fn has_next(&self) -> bool {
        self.0.is_some()
    }
}

/// Warns that a daemon elsewhere looks for the local functions of a job among its own files.
pub(super) fn warn_of_unseen_files(request: &Request, address: &Address, verbosity: Verbosity) {
    if address.shares_files() || verbosity.quiet {
        return;
    }
    let references = document::local_references(request.steps(), request.file_name());
    if let Some(first) = references.first() {
        let first = states::printable(first);
        terminal::say(&format!(
            "step-runner: warning: the daemon at {address} cannot see local files: it looks for {first} in its own; \
             publish the function, or put its folder where the job runs"
        ));
    }
}

/// Submits a job and prints its id. `named` is true if the caller chose the id.
pub(super) async fn submit(
    client: &Client,
    request: &Request,
    named: bool,
    verbosity: Verbosity,
) -> CommandResult {
    start(client, request, named, Failure::from, verbosity).await?;
    terminal::print(format!("{}\n", request.id()).as_bytes())?;
    Ok(0)
}

/// Submits a job. Run answers the same if it starts the job, finds it, or remembers that it is finished
/// (service.md §3.1). A caller who chose the id is told that the job exists already. A finished job is an error for
/// them, because nothing could be followed.
async fn start(
    client: &Client,
    request: &Request,
    named: bool,
    refused: fn(Error) -> Failure,
    verbosity: Verbosity,
) -> Result<(), Failure> {
    let id = request.id();
    let earlier = if named { client.status(id).await.map(Some) } else { Ok(None) };
    if let Err(error @ (Error::Unreachable { .. } | Error::NoAnswer { .. })) = earlier {
        // Run would wait as long again. It reports any other error.
        return Err(refused(error));
    }
    accepted(client.run(request).await, request, refused)?;
    if !named {
        return Ok(());
    }
    if let Ok(Some(status)) = earlier
        && !verbosity.quiet
    {
        let state = states::name(&status);
        terminal::say(&format!("step-runner: job {id} was started before ({state}); nothing new is started"));
    }
    match client.status(id).await {
        Err(error) if error.is_finished_job() => Err(Failure::new(Exit::Refused, error)
            .with_remedy("nothing was started: it was the same job; choose another --id to run it again")),
        _ => Ok(()),
    }
}

/// Checks the answer to a request. If a document was refused, its findings are shown as `check` shows them.
fn accepted(
    answer: Result<(), Error>,
    request: &Request,
    refused: fn(Error) -> Failure,
) -> Result<(), Failure> {
    let Err(error) = answer else { return Ok(()) };
    let findings = match &error {
        Error::Refused(_) => findings::of_document(request.steps(), &made::shown(request.file_name())),
        _ => None,
    };
    Err(findings.unwrap_or_else(|| refused(error)))
}

/// Runs the job with a daemon that outlives this command.
async fn with_daemon(
    arguments: &Arguments,
    client: &Client,
    request: &Request,
    verbosity: Verbosity,
) -> CommandResult {
    let mut interrupts = Interrupts::new(OnInterrupt::Cancel)?;
    let ended = match begin(arguments, client, request, Failure::from, &mut interrupts, verbosity).await {
        Ok(()) => to_the_end(arguments, client, request, &mut interrupts, verbosity).await,
        // Nothing was started. A job with this id belongs to someone else.
        Err(failure) if matches!(failure.exit(), Exit::Refused | Exit::TryLater) => return Err(failure),
        Err(failure) => Err(failure),
    };
    match ended {
        Ok(ended) => {
            ended.explain(verbosity, Some(request), &interrupts);
            if !arguments.keep {
                let removal = async { Ok(client.remove_ended(request.id()).await?) };
                let removed = interrupts.unless_interrupted(removal).await;
                keep_known_end(request, "was not removed", removed)?;
            }
            Ok(ended.code(&interrupts))
        }
        Err(failure) => {
            if !arguments.keep {
                end_unfollowed(client, request, &failure, &mut interrupts).await;
            }
            Err(failure)
        }
    }
}

/// Ends a job whose end is unknown because of `failure`. The caller reports that failure and no other.
async fn end_unfollowed(client: &Client, request: &Request, failure: &Failure, interrupts: &mut Interrupts) {
    // A reader such as `head` has seen enough. What the job does is none of its business.
    if failure.is_quiet() {
        return;
    }
    if failure.exit().is_by_signal() {
        // The removal goes on without us (service.md §3.4).
        drop(tokio::time::timeout(LAST_ANSWER_WAIT, client.finish(request.id())).await);
    } else if failure.exit() != Exit::Unreachable {
        // This includes a log that cannot be shown any more (service.md §7.5). An unreachable job is kept, to be
        // followed again.
        let finish = async { Ok(client.finish(request.id()).await?) };
        interrupts.unless_interrupted(finish).await.ok();
    }
}

/// Reports and drops a failure that follows the job's end: the exit code must tell how the job ended. A failure by a
/// signal is kept.
fn keep_known_end(request: &Request, what: &str, tidied: Result<(), Failure>) -> Result<(), Failure> {
    match tidied {
        Err(failure) if !failure.exit().is_by_signal() => {
            terminal::say(&format!("step-runner: job {} has ended, but {what}: {failure}", request.id()));
            Ok(())
        }
        tidied => tidied,
    }
}

/// Asks the steps for colours if the live view shows them.
fn colored(request: Request, arguments: &Arguments) -> Request {
    if arguments.output.shows_colors_of_steps() { JobOptions::with_colors(request) } else { request }
}

/// Runs jobs with a daemon inside this process. Returns the exit code of the last one.
async fn alone(
    arguments: &Arguments,
    jobs: &mut dyn Jobs,
    env_base: EnvBase,
    verbosity: Verbosity,
) -> CommandResult {
    let Some(first) = jobs.next(None)? else { return Ok(0) };
    let mut request = colored(first, arguments);
    let mut interrupts = Interrupts::new(OnInterrupt::Cancel)?;
    let daemon = private::start(arguments.env_base.unwrap_or(env_base), &mut interrupts).await?;
    let mut is_explained = false;
    let ended = loop {
        let ended = alone_with(&daemon, arguments, &request, &mut interrupts, verbosity).await;
        let Ok(job) = &ended else { break ended };
        if interrupts.seen().is_some() || !jobs.has_next() {
            break ended;
        }
        // It comes before all that is said of the next one.
        job.explain(verbosity, Some(&request), &interrupts);
        is_explained = true;
        match jobs.next(Some(job.code(&interrupts))) {
            Ok(None) => break ended,
            Ok(Some(next)) => {
                request = colored(next, arguments);
                is_explained = false;
            }
            Err(failure) => break Err(failure),
        }
    };
    let at_once = matches!(&ended, Err(failure) if failure.exit().is_by_signal());
    let gone = private::end(daemon, at_once).await;
    let ended = ended?;
    if !is_explained {
        ended.explain(verbosity, Some(&request), &interrupts);
    }
    keep_known_end(&request, "its private daemon was not ended", gone)?;
    Ok(ended.code(&interrupts))
}

async fn alone_with(
    daemon: &PrivateDaemon,
    arguments: &Arguments,
    request: &Request,
    interrupts: &mut Interrupts,
    verbosity: Verbosity,
) -> Result<FinishedJob, Failure> {
    let socket = Socket::named(&daemon.socket).map_err(AddressError::from).map_err(Error::from)?;
    // Without descriptors the daemon cannot answer.
    let connecting = arguments.connection.connect_to(Address::Unix(socket), verbosity);
    let client = interrupts.unless_interrupted(connecting).await?;
    begin(arguments, &client, request, cannot_start, interrupts, verbosity).await?;
    to_the_end(arguments, &client, request, interrupts, verbosity).await
}

/// Makes the failure for a job that the daemon in this process refuses. The code of the refusal is dropped.
fn cannot_start(error: Error) -> Failure {
    let (exit, message) = match error {
        Error::Refused(message) => (Exit::Refused, message),
        Error::TryLater(message) => (Exit::TryLater, message),
        error => return error.into(),
    };
    let (_, text) = message.split_once(": ").unwrap_or(("", &message));
    Failure::new(exit, format!("cannot start the job: {text}"))
}

/// Starts the job, or finds it started.
async fn begin(
    arguments: &Arguments,
    client: &Client,
    request: &Request,
    refused: fn(Error) -> Failure,
    interrupts: &mut Interrupts,
    verbosity: Verbosity,
) -> Result<(), Failure> {
    let named = arguments.job.names_its_id();
    interrupts.while_submitting(start(client, request, named, refused, verbosity)).await?;
    if verbosity.verbose > 0 {
        terminal::say(&format!("step-runner: job {} at {}", request.id(), client.address()));
    }
    Ok(())
}

/// Follows the job to its end.
async fn to_the_end(
    arguments: &Arguments,
    client: &Client,
    request: &Request,
    interrupts: &mut Interrupts,
    verbosity: Verbosity,
) -> Result<FinishedJob, Failure> {
    let display = arguments.output.display(0, verbosity)?;
    let ended = Box::pin(session::follow(client, request.id(), 0, display, interrupts, verbosity)).await?;
    if let Some(path) = arguments.results_file() {
        let readers = Readers::of(arguments.write_steps_results || arguments.results.is_none());
        results::write_root(path, ended.root.clone(), &ended.status, readers, interrupts).await?;
    }
    Ok(ended)
}
