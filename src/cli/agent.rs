//! `step-runner agent`, and the commands for its entries: `register`, `verify`, `unregister` (agent.md §11).

mod import;
mod options;
pub(super) mod register;
pub(super) mod unregister;
pub(super) mod verify;

use std::path::PathBuf;
use std::time::Duration;

use super::{CommandResult, in_runtime, time};
use crate::agent::scheduler::Once;
use crate::config::Config;
use crate::error::{Exit, Failure};
use crate::logging::OperatorLog;
use crate::process::host;
use crate::pull::{agency, place};
use options::ConfigOption;

/// Take jobs from GitLab instances and run them
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  step-runner register --url https://gitlab.example.com --token-file token
  step-runner agent                       run jobs until SIGQUIT or SIGTERM
  step-runner agent --once --wait 10min   one job, if one comes in that time

A daemon runs each job: one of the agent's own on this machine, or the one at the entry's address. The next agent \
reports what an earlier one has left. SIGQUIT ends the agent with its last job, SIGTERM at once, SIGHUP reads the \
configuration again. Exit codes: 0 stopped, or done with --once; 1 a stop has failed jobs; 3 the configuration cannot \
be used, or another agent uses the state.")]
pub(super) struct Arguments {
    #[command(flatten)]
    config: ConfigOption,
    /// Folder for the records of jobs, and for the agent's own daemon; on a disk that lasts
    #[arg(long, value_name = "DIR", env = "STEP_RUNNER_AGENT_STATE_DIR")]
    state_dir: Option<PathBuf>,
    /// Take at most one job, and end with it
    #[arg(long, env = "STEP_RUNNER_AGENT_ONCE")]
    once: bool,
    /// How long to wait for that job; 0 asks once [default: until one comes]
    #[arg(long, value_name = "TIME", requires = "once", value_parser = time::any,
          env = "STEP_RUNNER_AGENT_WAIT")]
    wait: Option<Duration>,
}

pub(super) fn execute(arguments: Arguments) -> CommandResult {
    // Tokens of runners and jobs are in this process.
    host::hide_memory()
        .map_err(|error| Failure::new(Exit::Failure, format!("cannot hide its memory: {error}")))?;
    let log = OperatorLog::start(&Config::default())?;
    log.open();
    let options = agency::Options {
        config: arguments.config.path(),
        state: options::whole(arguments.state_dir.unwrap_or_else(place::default_state)),
        once: arguments.once.then_some(Once { wait: arguments.wait }),
    };
    let ended = in_runtime(agency::run(options));
    log.flush();
    ended
}
