//! The dressed spawn: the system calls of a job with one step, without a daemon and without messages.
//!
//! A folder, a log file, two pipes, a process group, limits, a control group, 4 KiB of environment; the
//! process and the wait for it; the group's counts; removal. Between this floor and a job lies what the program itself
//! costs, recording included.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Instant;

use rustix::process::{WaitId, WaitIdOptions};
use step_runner::process::cgroup::{Leaf, Pool};
use step_runner::process::spawn::{Command, Confinement, Spawner};

use super::Failure;
use super::machine::PROGRAM;
use super::report::median;

/// Variables of the environment, each of about 100 bytes.
const VARIABLES: usize = 40;

/// Starts processes as the keeper does.
pub(crate) struct DressedSpawner {
    spawner: Spawner,
    /// `None` where no control group can be made.
    pool: Option<Pool>,
    folder: tempfile::TempDir,
    env: Vec<Vec<u8>>,
    count: u64,
}

impl DressedSpawner {
    pub(crate) fn new() -> Result<Self, Failure> {
        let variable = |number| format!("CI_VARIABLE_NUMBER_{number}={number:080}").into_bytes();
        Ok(Self {
            spawner: Spawner::new(None)?,
            pool: Pool::open().ok(),
            folder: tempfile::tempdir()?,
            env: (0..VARIABLES).map(variable).collect(),
            count: 0,
        })
    }

    fn spawn_and_wait(&mut self) -> Result<(), Failure> {
        self.count += 1;
        let job = self.folder.path().join(self.count.to_string());
        fs::create_dir(&job)?;
        let mut log = File::create(job.join("log"))?;
        let leaf = self.pool.as_mut().map(Pool::take).transpose()?;
        let confinement =
            Confinement { cgroup: leaf.as_ref().map(Leaf::directory), ..Confinement::default() };
        let argv = [PROGRAM.to_owned()];
        let command = Command { program: Path::new(PROGRAM), argv: &argv, env: &self.env, work_dir: &job };
        let process = self.spawner.spawn(&command, &confinement)?;
        for pipe in [process.stdout, process.stderr] {
            rustix::io::ioctl_fionbio(&pipe, false)?;
            std::io::copy(&mut File::from(pipe), &mut log)?;
        }
        rustix::process::waitid(WaitId::PidFd(process.pidfd.as_fd()), WaitIdOptions::EXITED)?;
        if let (Some(leaf), Some(pool)) = (leaf, self.pool.as_mut()) {
            // What the keeper asks at the end of a job.
            if leaf.is_populated() || leaf.usage().cpu_time.is_none() {
                return Err("the control group counts nothing".into());
            }
            pool.give_back(leaf);
        }
        Ok(fs::remove_dir_all(&job)?)
    }

    /// Returns the median time in microseconds, of `count`.
    pub(crate) fn latency(&mut self, count: usize) -> Result<f64, Failure> {
        let mut times = Vec::with_capacity(count);
        for _ in 0..count {
            let began = Instant::now();
            self.spawn_and_wait()?;
            times.push(began.elapsed().as_secs_f64() * 1e6);
        }
        Ok(median(times))
    }
}
