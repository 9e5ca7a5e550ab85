//! `run`: a stage becomes a job, its output ours, its end our exit code (custom-executor.md §7).

use std::cell::RefCell;
use std::io;
use std::path::Path;
use std::pin::pin;

use tokio::io::AsyncWriteExt as _;
use tokio::time::{Instant, sleep_until, timeout};

use super::job_response::JobResponse;
use super::relay::{Output, Relay};
use super::request::{self, Stage};
use super::result::{Verdict, chain, write_code};
use super::signals::Signals;
use super::{Daemon, Delivery, Driver, FINISH_TIME, LOOK_TIME, finish, guardian, no_id, submit};
use crate::client::{Client, Error, Event, Request};
use crate::error::{Exit, Failure};
use crate::model::JobId;
use crate::pb::v1;

/// Exit codes by which shells say that there is no such script.
const NO_SCRIPT: [u8; 3] = [2, 126, 127];

pub(super) async fn run(driver: &Driver, script: &Path, name: &str) -> Result<Verdict, Failure> {
    let mut signals = Signals::listen()?;
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
    let work =
        Work { driver, daemon: &daemon, id: &id, request: &request, client: RefCell::default(), relay };
    let verdict = if daemon.private {
        let guardian = guardian::watch(state, driver.options.start_timeout);
        tokio::select! {
            verdict = work.until_end(&mut signals) => verdict,
            failure = guardian => {
                work.end_output().await;
                return Err(failure);
            }
        }
    } else {
        let verdict = work.until_end(&mut signals).await;
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
    if let Some(client) = work.client()
        && let Err(error) = finish(&client, &id).await
    {
        (driver.say)(&format!("warning: cannot finish the stage, cleanup will: {error}"));
    }
    Ok(verdict)
}

/// A file that an earlier stage has left would be read as the code of this one.
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

/// Why following has ended without the job's end.
enum Broken {
    Client(Error),
    /// Nobody reads our output.
    Output(io::Error),
}

impl From<Error> for Broken {
    fn from(error: Error) -> Self {
        Self::Client(error)
    }
}

/// A stage under way.
struct Work<'a> {
    driver: &'a Driver,
    daemon: &'a Daemon,
    id: &'a JobId,
    request: &'a Request,
    /// Set once there is a connection: from then on the daemon may know the job.
    client: RefCell<Option<(Client, bool)>>,
    /// Outlives the following, however that ends: it holds back the end of a line that may go on.
    relay: RefCell<Relay>,
}

impl Work<'_> {
    fn client(&self) -> Option<Client> {
        self.client.borrow().as_ref().map(|(client, _)| client.clone())
    }

    fn is_accepted(&self) -> bool {
        self.client.borrow().as_ref().is_some_and(|(_, accepted)| *accepted)
    }

    /// Submits the stage, passes its output on, and obeys the Runner.
    async fn until_end(&self, signals: &mut Signals) -> Verdict {
        let mut stage = pin!(self.follow());
        tokio::select! {
            end = &mut stage => return Self::verdict(end, false),
            () = signals.next() => {}
        }
        let Some(client) = self.client() else { return Verdict::Cancelled };
        if !self.is_accepted() {
            // Whether the daemon has it or not: it is finished after this.
            return Verdict::Cancelled;
        }
        let force = Instant::now() + self.driver.options.cancel_grace;
        let mut cancel = pin!(client.cancel(self.id));
        let mut cancelling = true;
        loop {
            tokio::select! {
                end = &mut stage => return Self::verdict(end, true),
                // A job that has ended meanwhile is none the worse for it.
                _ = &mut cancel, if cancelling => cancelling = false,
                () = signals.next() => break,
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
            // The Runner is gone: the stage is finished after this, which ends it.
            Err(Broken::Output(error)) => {
                Verdict::System(format!("nobody reads the stage's output: {}", chain(&error)))
            }
        }
    }

    async fn follow(&self) -> Result<Box<v1::Status>, Broken> {
        let options = &self.driver.options;
        let client = self.driver.connect(self.daemon.address.clone()).await?;
        *self.client.borrow_mut() = Some((client.clone(), false));
        submit(&client, self.request, options.admission_timeout).await?;
        *self.client.borrow_mut() = Some((client.clone(), true));
        let mut log = client.follow(self.id, 0);
        let mut out = Output::default();
        loop {
            match log.next().await? {
                Event::Log(bytes) => self.relay.borrow_mut().push(&bytes, &mut out),
                Event::End(status) => return Ok(status),
            }
            write(&mut out).await.map_err(Broken::Output)?;
        }
    }

    /// Ends the last line, for whoever still reads.
    async fn end_output(&self) {
        let mut out = Output::default();
        self.relay.borrow_mut().finish(&mut out);
        drop(write(&mut out).await);
    }

    /// A script that the daemon does not see looks like one that failed: asks the daemon.
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

    /// Whether the daemon sees the script; `None`: it could not be asked.
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

/// Writes what there is, and lets the reader have it at once.
async fn write(out: &mut Output) -> io::Result<()> {
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
