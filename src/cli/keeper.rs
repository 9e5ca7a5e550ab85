//! `step-runner keeper`: started by the daemon, never by people.

use std::os::fd::RawFd;
use std::path::PathBuf;

use super::CommandResult;
use crate::error::{Exit, Failure};
use crate::keeper::{KeeperOptions, run};
use crate::process::cgroup::CgroupMode;
use crate::process::host::SoftLimits;
use crate::process::inherited_descriptor;

/// The process that keeps jobs running while the daemon is away
#[derive(clap::Args)]
#[command(hide = true)]
pub(super) struct Arguments {
    /// Folder of the daemon's state
    #[arg(long, value_name = "DIR")]
    state_dir: PathBuf,
    /// Descriptor of the connection to the daemon
    #[arg(long, value_name = "N")]
    connection_fd: Option<RawFd>,
    /// Control group for each job: auto, on or off
    #[arg(long, value_name = "MODE", default_value = "auto")]
    cgroup: CgroupMode,
    #[command(flatten)]
    limits: StepLimits,
}

/// Limits that steps get from whoever starts them.
#[derive(clap::Args)]
pub(super) struct StepLimits {
    /// Soft limit of open files for steps; unlimited without it
    #[arg(long, value_name = "N")]
    soft_nofile: Option<u64>,
    /// Soft limit of core dumps for steps, in bytes; unlimited without it
    #[arg(long, value_name = "N")]
    soft_core: Option<u64>,
    /// The oom_score_adj that the daemon was started with, and that steps get
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    oom_score_adj: Option<i32>,
}

impl StepLimits {
    /// Sets these limits for this process.
    pub(super) fn apply(&self) -> Result<SoftLimits, Failure> {
        let limits =
            SoftLimits { nofile: self.soft_nofile, core: self.soft_core, oom_score_adj: self.oom_score_adj };
        let failure = |error| Failure::new(Exit::Failure, format!("cannot set limits: {error}"));
        limits.apply().map_err(failure)?;
        Ok(limits)
    }
}

pub(super) fn execute(arguments: Arguments) -> CommandResult {
    let Arguments { state_dir, connection_fd, cgroup, limits } = arguments;
    let limits = limits.apply()?;
    let first_connection = connection_fd
        .map(inherited_descriptor)
        .transpose()
        .map_err(|error| Failure::new(Exit::Usage, format!("--connection-fd: {error}")))?;
    run(KeeperOptions { state_dir, first_connection, cgroup, limits })
        .map_err(|failure| Failure::new(Exit::Failure, failure))?;
    Ok(0)
}
