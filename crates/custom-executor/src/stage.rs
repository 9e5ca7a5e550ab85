//! `run`: runs a stage as a job, passes its output on, and ends with its result (custom-executor.md §7).

use std::cell::RefCell;
use std::io;
use std::path::Path;
use std::pin::pin;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::job_response::JobResponse;
use super::relay::{Relay, RelayedBytes};
use super::request::{self, Stage};
use super::result::{Verdict, chain, write_code};
use super::signals::{EndRequest, Runner};
use super::state::AttemptFolder;
use super::{AttemptDaemon, Delivery, Driver, FINISH_TIME, LOOK_TIME, finish, guardian, no_id, submit};
use step_runner_client::{Client, Error, Event, Request};
use step_runner_model::JobId;
use step_runner_model::error::{Exit, Failure};
use step_runner_proto::v1;

/// Exit codes by which shells say that there is no such script.
const NO_SCRIPT: [u8; 3] = [2, 126, 127];

/// Longest wait for the daemon's answer to a Run, once the stage is to end.
const ANSWER_TIME: Duration = Duration::from_secs(1);

pub(super) async fn run(driver: &Driver, script: &Path, name: &str) -> Result<Verdict, Failure> {
    let mut runner = Runner::watch()?;
    remove_stale_code(driver)?;
    let identity = driver.identity()?;
    let content = std::fs::read(script)
        .map_err(|error| Failure::new(Exit::Failure, format!("script {}: {error}", script.display())))?;
    let state = driver.state(&identity)?;
    let daemon = driver.daemon(&state)?;
    let id = identity.stage(script, name).map_err(no_id)?;
    let delivery = driver.delivery(&daemon);
    let response = driver.job_response();
    let stage = Stage { name, script, content: &content };
    let request = stage_request(driver, &id, stage, &response, delivery)?;
    state.trim_log();
    if let Err(error) = state.add_job(id.as_str()) {
        (driver.say)(&format!("warning: cannot note the stage for cleanup: {error}"));
    }
    let relay = RefCell::new(Relay::new(driver.options.merge_streams));
    let work = Work {
        driver,
        daemon: &daemon,
        state: &state,
        // With a named daemon a stage needs no `prepare`.
        is_prepared: state.exists(),
        id: &id,
        request: &request,
        client: RefCell::default(),
        accepted: Notify::new(),
        relay,
    };
    let verdict = if daemon.private {
        let guardian = guardian::watch(driver.clone(), state.clone());
        tokio::select! {
            verdict = work.until_end(&mut runner) => verdict,
            failure = guardian => {
                work.end_output().await;
                return Err(failure);
            }
        }
    } else {
        let verdict = work.until_end(&mut runner).await;
        work.explained(verdict, delivery, script).await
    };
    work.end_output().await;
    if let Verdict::Failed(code) = verdict
        && let Some(file) = &driver.environment.code_file
        && let Err(error) = write_code(file, code)
    {
        (driver.say)(&format!(
            "the exit code {code} cannot be written for the Runner, which shows 1: {error}"
        ));
    }
    if let Some(client) = work.client() {
        match finish(&client, &id).await {
            Ok(()) => {
                // Noted so that `cleanup` need not ask; a note that fails costs it a question.
                state.drop_job(id.as_str()).ok();
            }
            Err(error) => (driver.say)(&format!(
                "warning: the daemon did not remove the job of this stage; cleanup will try again: {error}"
            )),
        }
    }
    Ok(verdict)
}

/// Removes the exit code of an earlier stage, which would be read as that of this one.
fn remove_stale_code(driver: &Driver) -> Result<(), Failure> {
    if let Some(file) = &driver.environment.foreign_code_file {
        (driver.say)(&format!(
            "warning: BUILD_EXIT_CODE_FILE {} is not below TMPDIR, so it is left alone: the Runner shows 1",
            file.display()
        ));
    }
    let Some(file) = &driver.environment.code_file else { return Ok(()) };
    match std::fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Failure::new(
            Exit::Failure,
            format!("cannot remove the exit code of an earlier stage, {}: {error}", file.display()),
        )),
        _ => Ok(()),
    }
}

fn stage_request(
    driver: &Driver,
    id: &JobId,
    stage: Stage<'_>,
    response: &JobResponse,
    delivery: Delivery,
) -> Result<Request, Failure> {
    let grace = driver.options.cancel_grace;
    request::stage(id.clone(), stage, &driver.environment.job, response, delivery, grace)
        .map_err(|error| Failure::new(Exit::Failure, format!("script {}: {error}", stage.script.display())))
}

/// Reason why following has ended without the job's end.
enum Broken {
    Client(Error),
    /// A `cleanup` has ended the attempt.
    Over,
    /// Nobody reads our output.
    Output(io::Error),
}

impl From<Error> for Broken {
    fn from(error: Error) -> Self {
        Self::Client(error)
    }
}

struct Work<'a> {
    driver: &'a Driver,
    daemon: &'a AttemptDaemon,
    state: &'a AttemptFolder,
    /// True if the attempt had a folder when the stage began.
    is_prepared: bool,
    id: &'a JobId,
    request: &'a Request,
    /// Connection, once there is one: from then on the daemon may know the job. The flag tells that it has accepted it.
    client: RefCell<Option<(Client, bool)>>,
    /// Notified when the daemon has accepted the job.
    accepted: Notify,
    /// Kept when following has ended in any way, because it holds back the end of a line that may go on.
    relay: RefCell<Relay>,
}

impl Work<'_> {
    fn client(&self) -> Option<Client> {
        self.client.borrow().as_ref().map(|(client, _)| client.clone())
    }

    fn is_accepted(&self) -> bool {
        self.client.borrow().as_ref().is_some_and(|(_, accepted)| *accepted)
    }

    /// Submits the stage, passes its output on, and ends it if the Runner asks for that.
    async fn until_end(&self, runner: &mut Runner) -> Verdict {
        let mut stage = pin!(self.follow());
        let mut told = tokio::select! {
            end = &mut stage => return Self::verdict(end, false),
            told = runner.tells_to_end() => told,
        };
        let Some(client) = self.client() else { return Verdict::Cancelled };
        if !self.is_accepted() {
            // The job may run already, and what it says is to be heard. Otherwise the caller finishes it, whether the
            // daemon has it or not.
            tokio::select! {
                end = &mut stage => return Self::verdict(end, true),
                () = self.accepted.notified() => {}
                _ = runner.tells_to_end() => return Verdict::Cancelled,
                () = sleep(ANSWER_TIME) => return Verdict::Cancelled,
            }
        }
        let force = Instant::now() + self.driver.options.cancel_grace;
        let mut cancel = pin!(client.cancel(self.id));
        let mut cancelling = true;
        loop {
            tokio::select! {
                end = &mut stage => return Self::verdict(end, true),
                // A job that has ended meanwhile may be cancelled without harm.
                _ = &mut cancel, if cancelling => cancelling = false,
                again = runner.tells_to_end() => match (told, again) {
                    (EndRequest::BySignal, EndRequest::BySignal) => break,
                    // A death after a signal does not ask for force: a wrapper may die of the same signal.
                    (EndRequest::BySignal, EndRequest::ByDeath) => {}
                    (EndRequest::ByDeath, again) => told = again,
                },
                () = sleep_until(force) => break,
            }
        }
        let forced = async {
            // The stage's output goes on until the daemon has ended it.
            let (_, end) = tokio::join!(client.finish(self.id), &mut stage);
            end
        };
        match timeout(FINISH_TIME, forced).await {
            Ok(Ok(status)) => Verdict::of(&status, true),
            Ok(Err(_)) | Err(_) => Verdict::Cancelled,
        }
    }

    fn verdict(end: Result<Box<v1::Status>, Broken>, asked: bool) -> Verdict {
        match end {
            Ok(status) => Verdict::of(&status, asked),
            Err(Broken::Client(error)) => Verdict::unknown(&error),
            // The caller finishes the stage, whether the daemon has it or not.
            Err(Broken::Over) => {
                Verdict::System("cleanup has ended this job, so the stage was not started".to_owned())
            }
            // The Runner is gone. The caller finishes the stage, which ends it.
            Err(Broken::Output(error)) => {
                Verdict::System(format!("nobody reads the stage's output: {}", chain(&error)))
            }
        }
    }

    async fn follow(&self) -> Result<Box<v1::Status>, Broken> {
        let options = &self.driver.options;
        let client = self.driver.connect(self.daemon.address.clone()).await?;
        *self.client.borrow_mut() = Some((client.clone(), false));
        let is_over = || self.is_prepared && self.state.is_closed();
        let submitted = submit(&client, self.request, options.admission_timeout, || !is_over()).await;
        // A cleanup that comes after this look finds the job in the daemon.
        if is_over() {
            return Err(Broken::Over);
        }
        submitted?;
        *self.client.borrow_mut() = Some((client.clone(), true));
        self.accepted.notify_one();
        let mut log = client.follow(self.id, 0);
        let mut out = RelayedBytes::default();
        loop {
            match log.next().await? {
                Event::Log(bytes) => self.relay.borrow_mut().push(&bytes, &mut out),
                Event::Unfinished(_) => {}
                Event::End(status) => return Ok(status),
            }
            write(&mut out).await.map_err(Broken::Output)?;
        }
    }

    /// Completes and writes the last line of the output.
    async fn end_output(&self) {
        let mut out = RelayedBytes::default();
        self.relay.borrow_mut().finish(&mut out);
        drop(write(&mut out).await);
    }

    /// Asks the daemon if it sees the script, because one that it does not see looks like one that failed.
    async fn explained(&self, verdict: Verdict, delivery: Delivery, script: &Path) -> Verdict {
        let suspicious = matches!(verdict, Verdict::Failed(code) if NO_SCRIPT.contains(&code));
        let Some(client) = self.client().filter(|_| suspicious && delivery == Delivery::Path) else {
            return verdict;
        };
        match self.sees(&client, script).await {
            Some(false) => Verdict::System(format!(
                "the daemon at {} cannot read {}: use --script-delivery inline, or a daemon of the same user that sees \
                 the same files",
                self.daemon.address,
                script.display()
            )),
            _ => verdict,
        }
    }

    /// True if the daemon sees the script; `None` if it could not be asked.
    async fn sees(&self, client: &Client, script: &Path) -> Option<bool> {
        let id = JobId::parse(&format!("{}look-{}", self.prefix(), &self.id.key().to_string())).ok()?;
        let request = request::look(id.clone(), &self.driver.environment.job, script, LOOK_TIME);
        let ask = async {
            client.run(&request).await.ok()?;
            let mut log = client.follow(&id, 0);
            loop {
                if let Event::End(status) = log.next().await.ok()? {
                    return Some(status.exit_code);
                }
            }
        };
        let code = timeout(LOOK_TIME, ask).await.ok().flatten();
        finish(client, &id).await.ok();
        code.map(|code| code == 0)
    }

    fn prefix(&self) -> String {
        self.driver.identity().map(|identity| identity.prefix().to_owned()).unwrap_or_default()
    }
}

/// Writes and flushes the output, so that the reader has it at once.
async fn write(out: &mut RelayedBytes) -> io::Result<()> {
    let mut stdout = tokio::io::stdout();
    let mut stderr = tokio::io::stderr();
    if !out.stdout.is_empty() {
        stdout.write_all(&out.stdout).await?;
        stdout.flush().await?;
        out.stdout.clear();
    }
    if !out.stderr.is_empty() {
        stderr.write_all(&out.stderr).await?;
        stderr.flush().await?;
        out.stderr.clear();
    }
    Ok(())
}
