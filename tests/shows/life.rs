//! The life of a daemon and two jobs with one injected fault, and the conditions that must hold in the end.

use std::error::Error as _;
use std::fs::{self, DirBuilder, File};
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use step_runner::model::JobId;
use step_runner::pb::v1;
use tonic::Code;

use crate::client::{Client, dial};
use crate::daemon::{Daemon, PATIENCE, Scene, check_stop};
use crate::follower::{follow_log, follow_steps};
use crate::inject::{self, Fault, Injection};
use crate::proc;
use crate::reference::{self, Ended, Job};
use crate::verdict::Check;

/// Bound on a life. Without a hang it takes a second or two, or a little more if the log waits for the disk.
const LONGEST: Duration = Duration::from_mins(2);

/// Bound on the time in which a daemon without running jobs ends.
const STOP: Duration = Duration::from_secs(5);

/// Time between two checks of the daemon.
const LOOK: Duration = Duration::from_millis(3);

/// Most refusals of a Run that one fault can cause.
const REFUSALS: u32 = 3;

/// Most streams that one fault can break with an error.
const ATTEMPTS: u32 = 3;

/// Process in which the fault is injected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Target {
    Daemon,
    /// The daemon that replaces a killed one, with a running and an ended job.
    Recovery,
    Keeper,
}

/// Consequences of a fault.
#[derive(Default)]
pub(crate) struct Met {
    /// The call that the fault met, as in strace's output.
    pub(crate) at: Option<String>,
    /// The process died of the fault or ended itself.
    pub(crate) ended: bool,
    /// Number of times that the daemon was restarted after it had ended.
    pub(crate) restarts: u32,
    pub(crate) refused: u32,
    /// Message of the last refusal.
    pub(crate) refusal: String,
    pub(crate) failed: u32,
    pub(crate) interrupted: u32,
    /// Number of logs reported as damaged.
    pub(crate) damaged: u32,
    pub(crate) slowest_start: Duration,
}

/// Runs one life: both jobs, followed from the beginning, until the daemon has ended.
pub(crate) async fn live(
    scene: &Scene,
    target: Target,
    injection: Option<&Injection>,
    is_flow: bool,
) -> Check<Met> {
    let strike = Strike::default();
    let mut guard = Guard::start(scene, target, injection, strike.clone())?;
    let life = Life { scene, client: Client::new(&scene.socket()), injection, target, is_flow, strike };
    let mut met = {
        let jobs = tokio::time::timeout(LONGEST, life.jobs());
        tokio::select! {
            miss = guard.watch() => return Err(miss),
            met = jobs => met.map_err(|_| format!("a hang: not over after {LONGEST:?}"))??,
        }
    };
    let end = tokio::task::block_in_place(|| guard.end());
    met.at = inject::met(&scene.path("trace"));
    end?;
    met.ended = guard.target_ended;
    met.restarts = guard.restarts;
    met.slowest_start = guard.slowest_start;
    check_secret(scene)?;
    if met.interrupted > 0 && !(target == Target::Keeper && met.ended) {
        return Err("a job was interrupted, but its keeper lives".into());
    }
    Ok(met)
}

/// Requests the kill of the first daemon, once the jobs have come far enough, and reports that it is done.
#[derive(Clone, Default)]
struct Strike {
    now: Arc<AtomicBool>,
    done: Arc<AtomicBool>,
}

/// Starts the traced process, and restarts the daemon when it has ended.
struct Guard<'a> {
    scene: &'a Scene,
    injection: Option<&'a Injection>,
    target: Target,
    daemon: Daemon,
    is_traced: bool,
    strike: Strike,
    is_ready: bool,
    since: Instant,
    keeper: Option<Child>,
    target_ended: bool,
    restarts: u32,
    slowest_start: Duration,
}

impl<'a> Guard<'a> {
    fn start(
        scene: &'a Scene,
        target: Target,
        injection: Option<&'a Injection>,
        strike: Strike,
    ) -> Check<Self> {
        let tracer = inject::tracer(&scene.path("trace"), injection);
        let (daemon, keeper) = match target {
            Target::Daemon => (Daemon::spawn_traced(scene, &tracer), None),
            Target::Recovery => (Daemon::spawn(scene), None),
            Target::Keeper => {
                let keeper = start_keeper(scene, &tracer)?;
                (Daemon::spawn(scene), Some(keeper))
            }
        };
        Ok(Self {
            scene,
            injection,
            target,
            daemon,
            is_traced: target == Target::Daemon,
            strike,
            is_ready: false,
            since: Instant::now(),
            keeper,
            target_ended: false,
            restarts: 0,
            slowest_start: Duration::ZERO,
        })
    }

    /// Watches the daemon. Returns only when a check fails.
    async fn watch(&mut self) -> String {
        loop {
            if let Err(miss) = self.look() {
                return miss;
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    fn look(&mut self) -> Check {
        if self.strike.now.swap(false, Relaxed) {
            proc::kill(self.daemon.pid(), Signal::KILL);
            proc::wait_until(PATIENCE, || self.daemon.ended().is_some());
            let tracer = inject::tracer(&self.scene.path("trace"), self.injection);
            self.daemon = Daemon::spawn_traced(self.scene, &tracer);
            (self.is_traced, self.is_ready, self.since) = (true, false, Instant::now());
            self.strike.done.store(true, Relaxed);
        } else if let Some(status) = self.daemon.ended() {
            self.judge(status)?;
            check_secret(self.scene)?;
            self.daemon = Daemon::spawn(self.scene);
            self.restarts += 1;
            (self.is_traced, self.is_ready, self.since) = (false, false, Instant::now());
        } else if !self.is_ready && self.daemon.is_ready() {
            self.is_ready = true;
            self.slowest_start = self.slowest_start.max(self.since.elapsed());
        } else if !self.is_ready && self.since.elapsed() > PATIENCE {
            return Err(format!("the daemon does not serve after {PATIENCE:?}: {}", self.daemon.said()));
        }
        Ok(())
    }

    /// Checks that the daemon had a reason to end this way before it was told to.
    fn judge(&mut self, status: ExitStatus) -> Check {
        let said = self.daemon.said();
        let fault = self.injection.filter(|_| self.is_traced).map(|injection| injection.fault);
        let allowed = match fault {
            Some(Fault::Kill) => status.signal() == Some(9),
            Some(_) if status.code() == Some(101) => {
                inject::has_met(&self.scene.path("trace"), inject::WAKE_UP)
            }
            Some(_) => status.code() == Some(1) && said.lines().last().is_some_and(|line| line.len() > 20),
            None => false,
        };
        self.target_ended |= self.is_traced;
        if allowed { Ok(()) } else { Err(format!("the daemon ended by itself with {status}: {said}")) }
    }

    /// Sends SIGTERM and waits for the end. If the fault lost the first signal, sends it again, as service managers do.
    fn stop(&mut self) -> Check<ExitStatus> {
        if self.is_traced && self.injection.is_some_and(|injection| injection.call == "sendto") {
            proc::kill(self.daemon.pid(), Signal::TERM);
            let mut ended = None;
            proc::wait_until(STOP, || {
                ended = self.daemon.ended();
                ended.is_some()
            });
            // The signal is passed on to the daemon's loop by a `sendto`. Any thread can do that, and each meets the
            // fault at its own first call.
            let is_signal = inject::has_met(&self.scene.path("trace"), r#", "\1", 1, MSG_NOSIGNAL"#);
            match ended {
                Some(status) => return Ok(status),
                None if !is_signal => {
                    return Err(format!("the daemon did not end within {STOP:?} of SIGTERM"));
                }
                None => {}
            }
        }
        self.daemon.stop()
    }

    /// Stops the daemon. Then starts and stops one without a fault, which must leave nothing behind.
    fn end(&mut self) -> Check {
        let status = self.stop()?;
        if !status.success() {
            self.judge(status)?;
        }
        if let Some(keeper) = &mut self.keeper {
            let mut status = None;
            proc::wait_until(PATIENCE, || {
                status = keeper.try_wait().unwrap();
                status.is_some()
            });
            let status = status.ok_or("the keeper outlived the graceful stop")?;
            let may_die = self.injection.is_some();
            if !status.success() && !may_die {
                return Err(format!("the keeper ended with {status}"));
            }
            self.target_ended = !status.success();
        }
        let mut last = Daemon::spawn(self.scene);
        self.slowest_start = self.slowest_start.max(last.wait_ready()?);
        if self.injection.is_some() && self.target == Target::Keeper {
            // A killed keeper cannot remove these files. The next keeper replaces them.
            for name in ["keeper.json", "keeper.sock"] {
                fs::remove_file(self.scene.state().join(name)).ok();
            }
        }
        check_stop(self.scene, last)?;
        let folder = self.scene.state();
        let folder = folder.to_str().unwrap();
        proc::wait_until(PATIENCE, || proc::with_argument(folder).is_empty());
        let left = proc::with_argument(folder);
        if left.is_empty() { Ok(()) } else { Err(format!("processes left: {}", proc::describe(&left))) }
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let folder = self.scene.state();
        for pid in proc::with_argument(folder.to_str().unwrap()) {
            proc::kill(pid, Signal::KILL);
        }
        self.daemon.ended();
        if let Some(keeper) = &mut self.keeper {
            keeper.wait().ok();
        }
    }
}

/// Starts a keeper before the daemon. The daemon finds it like the keeper of an earlier daemon.
fn start_keeper(scene: &Scene, tracer: &[std::ffi::OsString]) -> Check<Child> {
    DirBuilder::new().mode(0o700).create(scene.state()).unwrap();
    let mut command = scene.command_by(tracer, &["keeper", "--state-dir"]);
    command.arg(scene.state()).env_clear().stdout(Stdio::null());
    command.stderr(File::create(scene.path("keeper.log")).unwrap());
    let mut keeper = command.spawn().map_err(|error| format!("strace: {error}"))?;
    let is_there = || scene.keeper().is_some() || keeper.try_wait().unwrap().is_some();
    match proc::wait_until(PATIENCE, is_there) {
        Some(_) => Ok(keeper),
        None => Err("the keeper does not start".into()),
    }
}

/// Checks that no file of the scene contains the secret. The trace is not a file of the program.
fn check_secret(scene: &Scene) -> Check {
    let secret = reference::secret(scene);
    for folder in ["state", "tmp", "work", "daemon.log", "keeper.log"] {
        let path = scene.path(folder);
        let files = if path.is_dir() { proc::tree(&path) } else { vec![path] };
        for file in files.into_iter().filter(|file| file.is_file()) {
            let bytes = fs::read(&file).unwrap_or_default();
            if memchr::memmem::find(&bytes, secret.as_bytes()).is_some() {
                return Err(format!("the secret is in {}", file.display()));
            }
        }
    }
    Ok(())
}

/// The clients of one life.
struct Life<'a> {
    scene: &'a Scene,
    client: Client,
    injection: Option<&'a Injection>,
    target: Target,
    /// The subject has control flow.
    is_flow: bool,
    strike: Strike,
}

impl Life<'_> {
    async fn jobs(&self) -> Check<Met> {
        let mut met = Met::default();
        let bystander = Job::bystander(self.scene);
        let subject = if self.is_flow { Job::flow_subject(self.scene) } else { Job::subject(self.scene) };
        // Held open, so that the step's open does not block.
        let mut go = File::options().read(true).write(true).open(self.scene.path("go")).unwrap();
        let Some(watched) = self.begin(&bystander, &mut met).await? else { return Ok(met) };
        while !bystander.has_begun() && !watched.steps.is_finished() {
            tokio::time::sleep(LOOK).await;
        }
        let ended = {
            let Some(watched) = self.begin(&subject, &mut met).await? else {
                return Err("one job was run, the other is refused for good".into());
            };
            self.end(&subject, watched, &mut met).await?
        };
        if self.target == Target::Recovery {
            self.strike.now.store(true, Relaxed);
            while !self.strike.done.load(Relaxed) {
                tokio::time::sleep(LOOK).await;
            }
            // The next daemon must report the same.
            let log = followed(self.client.clone(), subject.id().to_owned()).await?;
            let results = stepped(self.client.clone(), subject.id().to_owned()).await?;
            let status = self.client.ended(subject.id(), PATIENCE).await?;
            let now = subject.check(&status, &log, &results)?;
            if now != ended {
                return Err(format!("the subject had ended {ended:?}, and now {now:?}"));
            }
        }
        self.client.finish(subject.id()).await?;
        self.gone(&subject).await?;
        go.write_all(b"on\n").unwrap();
        let beside = self.end(&bystander, watched, &mut met).await?;
        self.client.finish(bystander.id()).await?;
        self.gone(&bystander).await?;
        let fault = self.injection.map(|injection| injection.fault);
        let is_error = matches!(fault, Some(Fault::Error(_) | Fault::Lie));
        let may_fail = if self.is_for_good() { 2 } else { u32::from(is_error) };
        let may_refuse = is_error || self.target == Target::Keeper;
        if met.failed > may_fail || met.refused > 0 && !may_refuse {
            let Met { refused, refusal, .. } = &met;
            return Err(format!(
                "{refused} calls refused ({refusal:?}), jobs ended {ended:?} and {beside:?}"
            ));
        }
        if met.damaged > u32::from(fault == Some(Fault::Lie)) {
            return Err("a log cannot be read".into());
        }
        Ok(met)
    }

    fn is_for_good(&self) -> bool {
        self.injection.is_some_and(Injection::is_for_good)
    }

    /// Runs a job. A refusal leaves nothing behind, so the next attempt starts afresh. Returns `None` if a permanent
    /// fault causes all attempts to be refused.
    async fn begin(&self, job: &Job, met: &mut Met) -> Check<Option<Watched>> {
        let until = Instant::now() + PATIENCE;
        for refusals in 0.. {
            let refusal = loop {
                let Ok(mut stub) = dial(self.client.socket()).await else {
                    tokio::time::sleep(LOOK).await;
                    if Instant::now() > until {
                        return Err("no daemon takes connections".into());
                    }
                    continue;
                };
                match stub.run(job.request.clone()).await {
                    Ok(_) => {
                        met.refused += refusals;
                        let (client, id) = (self.client.clone(), job.id().to_owned());
                        let log = tokio::spawn(followed(client.clone(), id.clone()));
                        return Ok(Some(Watched { log, steps: tokio::spawn(stepped(client, id)) }));
                    }
                    // The connection broke, whatever the client's code for that: the daemon that accepted it has ended.
                    Err(status)
                        if status.source().is_some()
                            || matches!(status.code(), Code::Unavailable | Code::Unknown) =>
                    {
                        if Instant::now() > until {
                            return Err(format!("Run in vain: {status}"));
                        }
                        tokio::time::sleep(LOOK).await;
                    }
                    Err(status) => break status,
                }
            };
            refusal.message().clone_into(&mut met.refusal);
            let is_told = matches!(refusal.code(), Code::ResourceExhausted | Code::FailedPrecondition);
            if is_told && refusals == REFUSALS && self.is_for_good() {
                met.refused += refusals;
                return Ok(None);
            }
            if !is_told || refusals == REFUSALS {
                return Err(format!("Run of {} was refused: {refusal}", job.id()));
            }
            let folder = self.scene.state().join(format!("jobs/{}", JobId::parse(job.id()).unwrap().key()));
            if folder.exists() {
                return Err(format!("{} was refused ({}), and left its folder", job.id(), refusal.message()));
            }
            self.check_gone(job)?;
        }
        Err("no attempt".into())
    }

    /// Waits for the job's end. Checks that log, results and Status agree.
    async fn end(&self, job: &Job, watched: Watched, met: &mut Met) -> Check<Ended> {
        let log = watched.log.await.map_err(|error| error.to_string())?;
        let results = watched.steps.await.map_err(|error| error.to_string())?;
        let status = self.client.ended(job.id(), PATIENCE).await?;
        let (Ok(log), Ok(results)) = (&log, &results) else {
            met.damaged += 1;
            let lied = self.injection.is_some_and(|injection| injection.fault == Fault::Lie);
            let miss = log.err().or(results.err()).unwrap_or_default();
            return if lied && miss.contains("data_loss") { Ok(Ended::Failed) } else { Err(miss) };
        };
        if status.log_bytes != log.len() as i64 {
            return Err(format!(
                "Status says {} bytes of log, {} were received",
                status.log_bytes,
                log.len()
            ));
        }
        let again = followed(self.client.clone(), job.id().to_owned()).await?;
        crate::log::check_equal("the log read again", &again, log)?;
        let ended = match job.check(&status, log, results) {
            // Nobody can know what a device loses of a job's own file.
            Err(_) if inject::has_met(&self.scene.path("trace"), reference::FILE) => Ended::Failed,
            checked => checked.map_err(|miss| format!("{} {:?}: {miss}", job.id(), status.message))?,
        };
        met.failed += u32::from(ended == Ended::Failed);
        met.interrupted += u32::from(ended == Ended::Interrupted);
        if ended == Ended::Interrupted && self.target != Target::Keeper {
            return Err(format!("{} was interrupted: {:?}", job.id(), status.message));
        }
        let left = proc::wait_until(PATIENCE, || {
            // While the bystander runs, its processes have the scene's tag too, so this is checked only after its end.
            job.id() == "subject" || proc::with_environment(&self.scene.tag).iter().all(|pid| is_ours(*pid))
        });
        left.map(|_| ended).ok_or_else(|| format!("processes of {} are left", job.id()))
    }

    async fn gone(&self, job: &Job) -> Check {
        match self.client.status(job.id()).await? {
            Some(status) => Err(format!("after Finish Status says {status:?}")),
            None => self.check_gone(job),
        }
    }

    /// Checks that the job's files are gone. Skipped for a device that loses the list of these files.
    fn check_gone(&self, job: &Job) -> Check {
        let lied = self.injection.is_some_and(|injection| injection.fault == Fault::Lie);
        if lied { Ok(()) } else { job.check_gone() }
    }
}

/// True for the daemon and its tracer, which have the scene's tag too.
fn is_ours(pid: u32) -> bool {
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    memchr::memmem::find(&words, b"--state-dir").is_some()
}

/// Followers of a job from its beginning.
struct Watched {
    log: tokio::task::JoinHandle<Check<Vec<u8>>>,
    steps: tokio::task::JoinHandle<Check<Vec<v1::StepResult>>>,
}

/// Returns the whole log. Opens the stream again if a fault broke it.
async fn followed(client: Client, id: String) -> Check<Vec<u8>> {
    let mut attempt = 0;
    loop {
        attempt += 1;
        match follow_log(client.clone(), id.clone()).await {
            Ok(followed) if followed.gone => return Err(format!("{id} is unknown before it was finished")),
            Ok(followed) => return Ok(followed.bytes),
            Err(miss) if attempt == ATTEMPTS => return Err(miss),
            Err(_) => {}
        }
    }
}

async fn stepped(client: Client, id: String) -> Check<Vec<v1::StepResult>> {
    let mut attempt = 0;
    loop {
        attempt += 1;
        match follow_steps(client.clone(), id.clone()).await {
            Ok(results) => return Ok(results),
            Err(miss) if attempt == ATTEMPTS => return Err(miss),
            Err(_) => {}
        }
    }
}
