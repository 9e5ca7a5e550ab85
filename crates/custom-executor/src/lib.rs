//! Driver for GitLab Runner's Custom executor: stages of a job become jobs of a daemon (custom-executor.md).
//!
//! The Runner makes four calls, each a process of its own: [`Driver::config`], [`Driver::prepare`], [`Driver::run`] for
//! each stage, [`Driver::cleanup`]. A folder (`state`) is all that the calls share. Everything else is the daemon's,
//! which goes on whatever happens to a driver. A stage is one job of the daemon, whose id follows from the call alone.
//! So nothing is run twice, and the job of a killed driver is found by its id.
//!
//! - pure: `identity`, `environment`, `templates`, `job_response`, `shell`, `request`, `relay`;
//! - the folder: `state`; the private daemon: `private`, `guardian`; processes of an attempt: `processes`; attempts
//!   without a Runner: `abandoned`;
//! - the calls: `answer`, `prepare`, `stage`, `cleanup`; their end: `result`; the end of an attempt: `removal`.
//!
//! A driver prints nothing here but a stage's output. Messages go to [`Driver::say`] and never hold a token, the value
//! of a variable, or text of a script.

mod abandoned;
mod answer;
mod cleanup;
mod environment;
mod guardian;
mod identity;
mod job_response;
mod prepare;
mod private;
mod processes;
mod relay;
mod removal;
mod request;
mod result;
mod shell;
mod signals;
mod stage;
mod state;
mod templates;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use environment::Environment;
pub use request::Delivery;
pub use result::{Verdict, write_code};

use identity::Identity;
use job_response::JobResponse;
use state::{AttemptFolder, Owner};
use step_runner_client::{Address, Client};
use step_runner_model::error::{Exit, Failure};
use step_runner_model::{JobId, ProcessInfo};
use step_runner_process::parent;

/// Bytes of the Runner's job file that are read at most.
const MAX_JOB_RESPONSE: u64 = 32 << 20;

/// Time limit of the last call about a job. `cleanup` repeats a failed one.
const FINISH_TIME: Duration = Duration::from_secs(5);

/// Time that a private daemon may live longer than its job.
const LIFETIME_MARGIN: Duration = Duration::from_hours(1);

/// Lifetime of a private daemon whose job has no known limit.
const LIFETIME: Duration = Duration::from_hours(25);

/// Time limit of a job that looks at the daemon's environment.
const LOOK_TIME: Duration = Duration::from_mins(1);

/// Options that an operator chooses (custom-executor.md §1).
#[derive(Clone, Debug)]
pub struct Options {
    /// Address of the daemon; `None` for a private one for each job.
    pub address: Option<String>,
    /// Template of the builds directory.
    pub builds_dir: Option<String>,
    /// Template of the cache directory.
    pub cache_dir: Option<String>,
    /// True if no other job shares the environment.
    pub isolated: bool,
    /// Shell of the scripts that the Runner writes.
    pub shell: Option<String>,
    /// Host name of the daemon's environment.
    pub hostname: Option<String>,
    /// Root of the folders of attempts.
    pub state_dir: Option<PathBuf>,
    /// Way in which scripts get to the daemon.
    pub delivery: Option<Delivery>,
    /// Time to reach the daemon.
    pub connect_timeout: Duration,
    /// Time to reach it again after a connection was lost during a stage.
    pub reconnect_timeout: Duration,
    /// Time in which a private daemon must listen.
    pub start_timeout: Duration,
    /// Longest wait for a place in a full queue.
    pub admission_timeout: Duration,
    /// Time between the first signal and the forced end.
    pub cancel_grace: Duration,
    /// True to send everything to standard output.
    pub merge_streams: bool,
    /// Time without a Runner and without a call after which an attempt is ended and removed.
    pub abandon_after: Duration,
    /// True to keep the folder of the attempt.
    pub keep: bool,
}

/// One call of the Runner.
#[derive(Clone, Debug)]
pub struct Driver {
    /// Options of the operator.
    pub options: Options,
    /// Environment that the Runner gives.
    pub environment: Environment,
    /// `XDG_RUNTIME_DIR` of the Runner.
    pub runtime_dir: Option<PathBuf>,
    /// Prints a message.
    pub say: fn(&str),
}

/// The daemon of an attempt.
#[derive(Clone, Debug)]
struct AttemptDaemon {
    address: Address,
    private: bool,
}

impl Driver {
    /// Returns the answer to `config`, one JSON object (custom-executor.md §5).
    pub fn config(&self) -> Result<String, Failure> {
        answer::answer(self)
    }

    /// Makes the folder, starts or reaches the daemon, and looks at its environment. Returns a line about the daemon
    /// (custom-executor.md §6).
    pub async fn prepare(&self) -> Result<String, Failure> {
        prepare::prepare(self).await
    }

    /// Lets the daemon run a stage, and passes its output on (custom-executor.md §7). After [`Exit::Usage`] a
    /// repetition is useless.
    pub async fn run(&self, script: &Path, stage: &str) -> Result<Verdict, Failure> {
        Box::pin(stage::run(self, script, stage)).await
    }

    /// Runs the private daemon with `options` for `serve`. Ends and removes the attempt when it has no
    /// Runner any more (custom-executor.md §9.1). Returns the exit code of a daemon that has failed.
    pub async fn watch(&self, runner: Option<ProcessInfo>, options: Vec<OsString>) -> Result<u8, Failure> {
        abandoned::watch(self, runner, options).await
    }

    /// Removes what other attempts have left that have no Runner any more.
    pub async fn remove_abandoned(&self) -> Result<(), Failure> {
        let state = self.state(&self.identity()?)?;
        abandoned::remove_all(self, &state).await;
        Ok(())
    }

    /// Ends everything that is left of the attempt. Returns a text for each thing that could not be ended
    /// (custom-executor.md §9).
    pub async fn cleanup(&self) -> Result<Vec<String>, Failure> {
        cleanup::cleanup(self).await
    }

    fn identity(&self) -> Result<Identity, Failure> {
        self.by_runner()?;
        let tmpdir = self.environment.tmpdir.as_deref();
        let tmpdir = tmpdir.ok_or_else(|| Failure::new(Exit::Failure, "the Runner gives no TMPDIR"))?;
        Ok(Identity::new(tmpdir, &self.environment.job.id))
    }

    /// Returns those for whom this call works.
    fn owner(&self) -> Result<Owner, Failure> {
        let private_dir = self.environment.tmpdir.clone();
        let private_dir =
            private_dir.ok_or_else(|| Failure::new(Exit::Failure, "the Runner gives no TMPDIR"))?;
        Ok(Owner { runner: parent::info(), private_dir })
    }

    fn by_runner(&self) -> Result<(), Failure> {
        if !self.environment.by_hand {
            return Ok(());
        }
        Err(Failure::new(Exit::Failure, "not started by a Custom executor: no CUSTOM_ENV_ variable is set")
            .with_remedy("name this command in the config.toml of a GitLab Runner"))
    }

    fn state(&self, identity: &Identity) -> Result<AttemptFolder, Failure> {
        let root = match &self.options.state_dir {
            Some(root) if root.is_absolute() => root.clone(),
            // A relative root would lie below the job's private directory, which the Runner removes while the daemon
            // lives.
            Some(root) => {
                let text = format!("--state-dir {} is not absolute", root.display());
                return Err(Failure::new(Exit::Usage, text).with_remedy("begin it with /"));
            }
            None => state::default_root(self.runtime_dir.as_deref()),
        };
        Ok(AttemptFolder::new(&root, identity))
    }

    fn named_address(&self) -> Result<Option<Address>, Failure> {
        let parse = |text: &String| {
            text.parse().map_err(|error: step_runner_client::AddressError| Failure::new(Exit::Usage, error))
        };
        self.options.address.as_ref().map(parse).transpose()
    }

    /// Returns the daemon of the attempt: the one that was named, else the one that `prepare` has noted.
    fn daemon(&self, state: &AttemptFolder) -> Result<AttemptDaemon, Failure> {
        if let Some(address) = self.named_address()? {
            return Ok(AttemptDaemon { address, private: false });
        }
        state.meta().filter(|meta| meta.private).ok_or_else(|| {
            Failure::new(Exit::Unreachable, format!("no daemon was prepared in {}", state.path().display()))
                .with_remedy("set prepare_exec, or name a daemon with --address")
        })?;
        Ok(AttemptDaemon { address: private::address(state)?, private: true })
    }

    async fn connect(&self, address: Address) -> Result<Client, step_runner_client::Error> {
        let Options { connect_timeout, reconnect_timeout, .. } = self.options;
        Client::connect_with(address, step_runner_client::Options { connect_timeout, reconnect_timeout })
            .await
    }

    fn delivery(&self, daemon: &AttemptDaemon) -> Delivery {
        let usual = if daemon.address.shares_files() { Delivery::Path } else { Delivery::Inline };
        self.options.delivery.unwrap_or(usual)
    }

    /// Reads the secrets and the time limit from the job's own file. Without it there is less to mask.
    fn job_response(&self) -> JobResponse {
        let Some(path) = &self.environment.job_response else { return JobResponse::default() };
        let response = match read_bounded(path, MAX_JOB_RESPONSE) {
            Ok(json) => JobResponse::parse(&json).ok_or("it is not what GitLab sends".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        match response {
            Ok(response) => {
                if response.cut {
                    (self.say)(
                        "warning: the job has more secrets than a daemon masks; the Runner masks all of them",
                    );
                }
                response
            }
            Err(why) => {
                (self.say)(&format!(
                    "warning: JOB_RESPONSE_FILE {}: {why}; the daemon masks nothing, the Runner does",
                    path.display()
                ));
                JobResponse::default()
            }
        }
    }
}

/// Submits a job. Asks a daemon that refuses for now again, for up to `admission` and as long as the job `is_wanted`.
async fn submit(
    client: &Client,
    request: &step_runner_client::Request,
    admission: Duration,
    is_wanted: impl Fn() -> bool,
) -> Result<(), step_runner_client::Error> {
    const LONGEST: Duration = Duration::from_secs(10);
    let start = tokio::time::Instant::now();
    let mut pause = Duration::from_millis(500);
    loop {
        match client.try_run(request).await {
            Err(refusal @ step_runner_client::Error::TryLater(_)) if start.elapsed() < admission => {
                tokio::time::sleep(pause.min(admission.saturating_sub(start.elapsed()))).await;
                if !is_wanted() {
                    return Err(refusal);
                }
                pause = (pause * 2).min(LONGEST);
            }
            answer => return answer,
        }
    }
}

/// Finishes a job: the daemon ends and forgets it. `cleanup` repeats a failed call.
async fn finish(client: &Client, id: &JobId) -> Result<(), String> {
    match tokio::time::timeout(FINISH_TIME, client.finish(id)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(result::chain(&error)),
        Err(_) => Err(format!("no answer within {FINISH_TIME:?}")),
    }
}

fn read_bounded(path: &Path, max: u64) -> std::io::Result<Vec<u8>> {
    use std::io::Read as _;
    let mut content = Vec::new();
    std::fs::File::open(path)?.take(max).read_to_end(&mut content)?;
    Ok(content)
}

fn no_id(error: step_runner_model::InvalidId) -> Failure {
    Failure::new(Exit::Defect, error)
}
