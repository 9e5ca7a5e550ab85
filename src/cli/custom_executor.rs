//! `step-runner custom-executor`: the four calls of GitLab Runner's Custom executor (custom-executor.md §1).
//!
//! Every exit code is one of the Runner's, even after a mistake on the command line.

use std::ffi::OsString;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Subcommand, ValueEnum};

use super::{in_runtime, terminal, time};
use crate::custom_executor::{self, Delivery, Driver, Environment, Options, Verdict};
use crate::error::{Exit, Failure};
use crate::model::ProcessInfo;
use crate::process::{detached, host};

const NAME: &str = "custom-executor";

/// Run jobs of a GitLab Runner: the program for its Custom executor
///
/// GitLab Runner calls it by the four keys of [runners.custom] in its config.toml. Without --address each job has a daemon
/// of its own, which ends with it. Options are the same for the four and stand before the subcommand, because the Runner
/// appends arguments to `run`. See docs/integrate/gitlab-custom-executor.md.
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples, as in config.toml:
  config_exec  = \"/usr/local/bin/step-runner\"
  config_args  = [\"custom-executor\", \"config\"]
  prepare_exec = \"/usr/local/bin/step-runner\"
  prepare_args = [\"custom-executor\", \"prepare\"]
  run_exec     = \"/usr/local/bin/step-runner\"
  run_args     = [\"custom-executor\", \"--cancel-grace=60s\", \"run\"]
  cleanup_exec = \"/usr/local/bin/step-runner\"
  cleanup_args = [\"custom-executor\", \"cleanup\"]

What the Runner would be told:
  step-runner custom-executor --builds-dir /srv/builds config")]
pub(super) struct Arguments {
    #[command(flatten)]
    options: DriverOptions,
    #[command(subcommand)]
    action: Action,
}

/// Way of a script to the daemon.
#[derive(Clone, Copy, ValueEnum)]
enum ScriptDelivery {
    /// Sends the path; the daemon must see the same files
    Path,
    /// Sends the text in the request
    Inline,
}

/// Options of the four calls.
#[derive(clap::Args)]
#[command(next_help_heading = "Driver")]
struct DriverOptions {
    /// The daemon, the same in all four lists of arguments; without it each job gets a private one
    #[arg(long, global = true, value_name = "ADDRESS", env = "STEP_RUNNER_CE_ADDRESS")]
    address: Option<String>,
    /// Builds directory; fields: {job_id} {project_id} {project_slug} {concurrent_id} {concurrent_project_id} {runner_short}
    #[arg(long, global = true, value_name = "TEMPLATE", env = "STEP_RUNNER_CE_BUILDS_DIR")]
    builds_dir: Option<String>,
    /// Cache directory; fields as above
    #[arg(long, global = true, value_name = "TEMPLATE", env = "STEP_RUNNER_CE_CACHE_DIR")]
    cache_dir: Option<String>,
    /// Declare that no other job shares the environment, so the Runner does not separate builds of different jobs
    #[arg(long, global = true, env = "STEP_RUNNER_CE_ISOLATED")]
    isolated: bool,
    /// Shell for which the Runner writes its scripts
    #[arg(long, global = true, value_name = "NAME", env = "STEP_RUNNER_CE_SHELL")]
    shell: Option<String>,
    /// Host name shown in the job's log [default: this host's, with a private daemon]
    #[arg(long, global = true, value_name = "NAME", env = "STEP_RUNNER_CE_HOSTNAME")]
    hostname: Option<String>,
    /// Folder for the state of jobs [default: step-runner-UID/custom in $XDG_RUNTIME_DIR or /tmp]
    #[arg(long, global = true, value_name = "DIR", env = "STEP_RUNNER_CE_STATE_DIR")]
    state_dir: Option<PathBuf>,
    /// How scripts get to the daemon [default: path where it sees the same files, else inline]
    #[arg(long, global = true, value_enum, value_name = "HOW", env = "STEP_RUNNER_CE_SCRIPT_DELIVERY")]
    script_delivery: Option<ScriptDelivery>,
    /// How long to wait for the daemon
    #[arg(long, global = true, value_name = "TIME", default_value = "30s", value_parser = time::any,
          env = "STEP_RUNNER_CE_CONNECT_TIMEOUT")]
    connect_timeout: Duration,
    /// How long to try to restore a connection that broke during a stage
    #[arg(long, global = true, value_name = "TIME", default_value = "5m", value_parser = time::any,
          env = "STEP_RUNNER_CE_RECONNECT_TIMEOUT")]
    reconnect_timeout: Duration,
    /// Time in which a private daemon must listen
    #[arg(long, global = true, value_name = "TIME", default_value = "10s", value_parser = time::any,
          env = "STEP_RUNNER_CE_START_TIMEOUT")]
    start_timeout: Duration,
    /// How long to wait while the queue is full
    #[arg(long, global = true, value_name = "TIME", default_value = "10m", value_parser = time::any,
          env = "STEP_RUNNER_CE_ADMISSION_TIMEOUT")]
    admission_timeout: Duration,
    /// Time between the Runner's first signal and the forced end; less than its graceful_kill_timeout
    #[arg(long, global = true, value_name = "TIME", default_value = "60s", value_parser = time::positive,
          env = "STEP_RUNNER_CE_CANCEL_GRACE")]
    cancel_grace: Duration,
    /// Write everything to stdout, to keep the order of lines
    #[arg(long, global = true, env = "STEP_RUNNER_CE_MERGE_STREAMS")]
    merge_streams: bool,
    /// Time without a Runner and without a call after which a job is ended and its state removed
    #[arg(long, global = true, value_name = "TIME", default_value = "10m", value_parser = time::any,
          env = "STEP_RUNNER_CE_ABANDON_AFTER")]
    abandon_after: Duration,
    /// Keep the job's state and the private daemon's log at cleanup
    #[arg(long, global = true, env = "STEP_RUNNER_CE_KEEP")]
    keep: bool,
}

#[derive(Subcommand)]
enum Action {
    /// Print the settings that the Runner asks for
    #[command(after_long_help = "\
Examples:
  step-runner custom-executor config
  step-runner custom-executor --builds-dir /srv/builds --hostname build7 config")]
    Config,
    /// Create the job's state, start the daemon or connect to it, and check its environment
    #[command(after_long_help = "\
Examples, as in config.toml:
  prepare_exec = \"/usr/local/bin/step-runner\"
  prepare_args = [\"custom-executor\", \"--address=unix:///run/s.sock\", \"prepare\"]")]
    Prepare,
    /// Run a stage of the job
    #[command(after_long_help = "\
Examples, as in config.toml; the Runner appends SCRIPT and STAGE:
  run_exec = \"/usr/local/bin/step-runner\"
  run_args = [\"custom-executor\", \"--cancel-grace=60s\", \"run\"]")]
    Run {
        /// Script of the stage
        #[arg(value_name = "SCRIPT")]
        script: PathBuf,
        /// Name of the stage
        #[arg(value_name = "STAGE")]
        stage: String,
    },
    /// End and remove whatever is left of the job
    #[command(after_long_help = "\
Examples, as in config.toml:
  cleanup_exec = \"/usr/local/bin/step-runner\"
  cleanup_args = [\"custom-executor\", \"--keep\", \"cleanup\"]")]
    Cleanup,
    /// The start of a private daemon: waits for a byte on stdin, then becomes `watch`
    #[command(hide = true)]
    Launch(Watched),
    /// Runs a private daemon, and removes the job's state when no Runner is left
    #[command(hide = true)]
    Watch(Watched),
}

/// What the watcher of a private daemon is told. Its environment is the daemon's, so nothing is there of a call.
#[derive(clap::Args)]
struct Watched {
    /// The job's private directory
    #[arg(long)]
    private_dir: PathBuf,
    /// Number of the job
    #[arg(long)]
    job_id: String,
    /// The Runner: process id and start time
    #[arg(long, value_parser = parse_runner)]
    runner: Option<ProcessInfo>,
    /// Options for `serve`
    #[arg(last = true)]
    options: Vec<OsString>,
}

fn parse_runner(text: &str) -> Result<ProcessInfo, String> {
    let parsed = text.split_once(':').and_then(|(pid, start)| Some((pid.parse().ok()?, start.parse().ok()?)));
    let (pid, start_time) = parsed.ok_or("not PID:START")?;
    Ok(ProcessInfo { boot_id: host::boot_id(), pid, start_time })
}

impl From<DriverOptions> for Options {
    fn from(options: DriverOptions) -> Self {
        let delivery = options.script_delivery.map(|delivery| match delivery {
            ScriptDelivery::Path => Delivery::Path,
            ScriptDelivery::Inline => Delivery::Inline,
        });
        Self {
            address: options.address,
            builds_dir: options.builds_dir,
            cache_dir: options.cache_dir,
            isolated: options.isolated,
            shell: options.shell,
            hostname: options.hostname,
            state_dir: options.state_dir,
            delivery,
            connect_timeout: options.connect_timeout,
            reconnect_timeout: options.reconnect_timeout,
            start_timeout: options.start_timeout,
            admission_timeout: options.admission_timeout,
            cancel_grace: options.cancel_grace,
            merge_streams: options.merge_streams,
            abandon_after: options.abandon_after,
            keep: options.keep,
        }
    }
}

/// Runs one call and returns one of the Runner's exit codes.
pub(super) fn execute(arguments: Arguments) -> u8 {
    let Arguments { options, action } = arguments;
    let driver = Driver {
        options: options.into(),
        environment: Environment::read(std::env::vars_os()),
        runtime_dir: std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from),
        say,
    };
    if driver.environment.codes.assumed && !driver.environment.by_hand {
        say(
            "warning: the Runner gives no BUILD_FAILURE_EXIT_CODE and SYSTEM_FAILURE_EXIT_CODE: 1 and 2 are assumed",
        );
    }
    // The Runner takes any other code, even that of a panic, for a system failure of an unknown kind.
    let system = driver.environment.codes.system;
    catch_unwind(AssertUnwindSafe(|| call(&driver, action))).unwrap_or(system)
}

fn call(driver: &Driver, action: Action) -> u8 {
    let codes = driver.environment.codes;
    let prepares = matches!(action, Action::Config | Action::Prepare);
    let ending = match action {
        Action::Config => driver.config().and_then(|answer| {
            terminal::print(format!("{answer}\n").as_bytes())?;
            Ok(0)
        }),
        Action::Prepare => in_runtime(async {
            let line = driver.prepare().await?;
            terminal::print(format!("step-runner: {line}\n").as_bytes())?;
            Ok(0)
        }),
        Action::Run { script, stage } => in_runtime(async {
            // Beside the stage: it must not wait for the ends of others. What is not done at its end, a later call does.
            let others = driver.clone();
            tokio::spawn(async move { others.remove_abandoned().await });
            Ok(match Box::pin(driver.run(&script, &stage)).await? {
                Verdict::Success => 0,
                Verdict::Failed(_) => codes.build,
                Verdict::Cancelled => codes.system,
                Verdict::System(message) => {
                    say(&message);
                    codes.system
                }
            })
        }),
        Action::Cleanup => in_runtime(async {
            let left = driver.cleanup().await?;
            for text in &left {
                say(text);
            }
            Ok(if left.is_empty() { 0 } else { codes.system })
        }),
        Action::Launch(_) => {
            let mut words: Vec<_> = std::env::args_os().skip(1).collect();
            if let Some(word) = words.iter_mut().find(|word| *word == "launch") {
                *word = "watch".into();
            }
            Err(Failure::new(Exit::Failure, format!("cannot start: {}", detached::become_watcher(&words))))
        }
        Action::Watch(Watched { private_dir, job_id, runner, options }) => {
            let mut driver = driver.clone();
            driver.environment.tmpdir = Some(private_dir);
            driver.environment.job.id = job_id;
            driver.environment.by_hand = false;
            in_runtime(async { driver.watch(runner, options).await })
        }
    };
    ending.unwrap_or_else(|failure| {
        let remedy = failure.remedy().map(|remedy| format!("; {remedy}")).unwrap_or_default();
        say(&format!("{failure}{remedy}"));
        failed(failure.exit(), prepares, &driver.environment)
    })
}

/// Returns the exit code of a failed call. A usage error in a preparation counts as a failure of the build, so that the
/// Runner does not repeat it in vain.
fn failed(exit: Exit, prepares: bool, environment: &Environment) -> u8 {
    if exit != Exit::Usage || !prepares {
        return environment.codes.system;
    }
    if let Some(file) = &environment.code_file
        && let Err(error) = custom_executor::write_code(file, 1)
    {
        say(&format!("the exit code 1 cannot be written for the Runner: {error}"));
    }
    environment.codes.build
}

/// Returns the exit code for a command line that cannot be parsed, if it is one of this command
/// (custom-executor.md §6, §14).
pub(super) fn usage_code(error: &clap::Error) -> Option<ExitCode> {
    let mut words = std::env::args_os().skip(1);
    if error.exit_code() == 0 || !words.any(|word| word == NAME) {
        return None;
    }
    let environment = Environment::read(std::env::vars_os());
    let is_value = matches!(error.kind(), ErrorKind::InvalidValue | ErrorKind::ValueValidation);
    let prepares = words.any(|word| word == "config" || word == "prepare");
    let exit = if is_value { Exit::Usage } else { Exit::Failure };
    Some(ExitCode::from(failed(exit, prepares, &environment)))
}

/// Prints a message, with the program's name before each of its lines. It has no colours, because it is part of a job's
/// log.
fn say(message: &str) {
    let mut text = String::new();
    for line in message.lines() {
        let line: String = line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        text.push_str("step-runner: ");
        text.push_str(line.trim_end());
        text.push('\n');
    }
    // There is nowhere to report a failure to.
    drop(std::io::stderr().lock().write_all(text.as_bytes()));
}
