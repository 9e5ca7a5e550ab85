//! The private daemon of one `run` (cli.md): in this process, on a thread of its own. It ends with the process.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::daemon::Daemon;
use super::{failure, run_system};
use crate::actors::handle::JobsHandle;
use crate::config::Config;
use crate::error::Chain;
use crate::error::{Exit, Failure};
use crate::files::{self, Shortage};
use crate::grpc::accept::CallCounters;
use crate::model::{Refusal, text};
use crate::process::host::{self, SoftLimits};
use crate::request::Run;

/// A daemon inside this process.
pub(crate) struct PrivateDaemon {
    /// Path of its socket.
    pub(crate) socket: PathBuf,
    jobs: JobsHandle,
    stop: CancellationToken,
    kill: CancellationToken,
    thread: Option<std::thread::JoinHandle<()>>,
    folder: PathBuf,
}

impl PrivateDaemon {
    /// Starts the daemon on the new folder `folder`, mode 0700, which the daemon owns.
    pub(crate) fn start(mut config: Config, folder: PathBuf) -> Result<Self, Failure> {
        let socket = folder.join("step-runner.sock");
        config.socket = Some(socket.clone());
        // One folder for everything: the keeper removes it if this process is killed.
        config.state_dir = Some(folder.clone());
        config.keeper_wait = Duration::ZERO;
        check_space(&folder, config.state_limit.0).inspect_err(|_| drop(std::fs::remove_dir(&folder)))?;
        let limits = SoftLimits::now();
        host::harden()
            .map_err(|e| failure("cannot protect the memory and descriptors of this process", &e))?;
        let calls = CallCounters::default();
        let (stop, kill) = (CancellationToken::new(), CancellationToken::new());
        let (ready, started) = std::sync::mpsc::channel();
        let (stopped, killed) = (stop.clone(), kill.clone());
        let run = move || {
            let (failed, counters) = (ready.clone(), calls.clone());
            let daemon = async move {
                match Daemon::start(Arc::new(config), true, None, limits, counters).await {
                    Ok(mut daemon) => {
                        ready.send(Ok(daemon.jobs())).ok();
                        tokio::select! {
                            () = stopped.cancelled() => {
                                daemon.stop(async move { killed.cancelled().await }).await;
                            }
                            _ = daemon.defect() => {}
                        }
                    }
                    Err(failure) => drop(ready.send(Err(failure))),
                }
            };
            if let Err(failure) = run_system(&calls, daemon) {
                failed.send(Err(failure)).ok();
            }
        };
        let thread = std::thread::Builder::new()
            .name("daemon".into())
            .spawn(run)
            .map_err(|e| failure("cannot start a thread", &e))?;
        match started.recv() {
            Ok(Ok(jobs)) => Ok(Self { socket, jobs, stop, kill, thread: Some(thread), folder }),
            failed => {
                drop(thread.join());
                std::fs::remove_dir_all(&folder).ok();
                let died = || Failure::new(Exit::Defect, "the private daemon died at its start");
                Err(failed.ok().and_then(Result::err).unwrap_or_else(died))
            }
        }
    }

    /// Registers a job directly, with rules other than those of the service on its socket.
    pub(crate) async fn run(&self, request: Run) -> Result<(), Refusal> {
        self.jobs.run(request).await
    }

    /// Ends the daemon: its jobs get their grace, or are killed if `at_once`. Blocks, then removes the folder.
    pub(crate) fn end(mut self, at_once: bool) {
        if at_once {
            self.kill.cancel();
        }
        self.stop.cancel();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the private daemon died of a defect");
        }
        if let Err(error) = std::fs::remove_dir_all(&self.folder) {
            tracing::debug!(error = %Chain(&error), "the private daemon's folder was not removed");
        }
    }
}

/// Checks that the file system of `folder` has room for a job. A shared daemon lets its clients wait for room, but this one
/// has no other job whose end could make some.
fn check_space(folder: &Path, needed: u64) -> Result<(), Failure> {
    let opened = std::fs::File::open(folder);
    let free = opened
        .and_then(files::free_space)
        .map_err(|error| failure("cannot measure the free space", &error))?;
    let parent = folder.parent().unwrap_or(folder).display();
    let message = match free.shortage(needed) {
        None => return Ok(()),
        Some(Shortage::Bytes(free)) => {
            let [free, needed] = [free, needed].map(text::size);
            format!("{free} are free in {parent}, and {needed} are to be free for its state and its log")
        }
        Some(Shortage::Files) => format!("the file system of {parent} has no room for more files"),
    };
    Err(Failure::new(Exit::TryLater, format!("cannot start the job: {message}"))
        .with_remedy("set TMPDIR to a folder with more space"))
}
