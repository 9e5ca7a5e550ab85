//! The composition root: starts a daemon from its settings and runs it to its end. Only this module and its submodules
//! may know all others.

mod command;
mod daemon;
mod lifetime;
mod pace;
mod private;
mod start_failure;

use std::any::Any;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use command::{CommandGroup, beside, end_command};
use daemon::Daemon;

use crate::actors::handle::JobsHandle;
use crate::config::Config;
use crate::error::{Exit, Failure};
use crate::files;
use crate::grpc::accept::CallCounters;
use crate::logging::OperatorLog;
use crate::model::JobState;
use crate::net::SOCKET_VARIABLE;
use crate::process::children;
use crate::process::host::{self, SoftLimits};
use crate::signal::{Ask, ChildSignals, OperatorSignals, StopSignals};
use crate::systemd::{self, Manager, PassedSocket};
use crate::threads::{self, Work};
use crate::variables::RECOVERY_VARIABLE;

pub(crate) use daemon::defaults;
pub(crate) use private::PrivateDaemon;

/// Time after which an idle thread for blocking work ends: never. The first is started with the daemon, so one always
/// exists. If none existed, work that meets the system's limit of threads would panic instead of wait (faults.md row
/// 15).
const BLOCKING_IDLE: Duration = Duration::MAX;

/// Pause before orphans are looked for again, while a child is being reaped by its own waiter.
const REAP_AGAIN: Duration = Duration::from_millis(10);

/// Time that the start waits for a failure to write the ready marker.
const MARKER_TIME: Duration = Duration::from_secs(1);

/// Reads the settings again, from the same sources as at the start. Another thread calls it.
pub(crate) type Reload = Arc<dyn Fn() -> Result<Config, Failure> + Send + Sync>;

/// Time to read the settings again. Only a file system that does not answer takes longer.
const RELOAD_TIME: Duration = Duration::from_secs(10);

/// Runs the daemon until it is told to end. If `command` is not empty, runs it beside the daemon, which ends with it.
/// Returns the exit code. Calls `reload` on SIGHUP. Writes `warnings` to the daemon's log, because nothing may come
/// before the ready marker on standard error.
pub(crate) fn serve(
    mut config: Config,
    reload: Reload,
    command: Vec<OsString>,
    warnings: &[String],
) -> Result<u8, Failure> {
    let passed = systemd::passed_socket().map_err(|e| Failure::new(Exit::Failure, e))?;
    listen_on_passed(&mut config, passed.as_ref())?;
    if passed.is_none() {
        daemon::refuse_other_file(&config)?;
    }
    let log = OperatorLog::start(&config)?;
    let lines = log.clone();
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    let limits = SoftLimits::now();
    host::harden().map_err(|e| failure("cannot protect the memory and descriptors of this process", &e))?;
    let group = CommandGroup::default();
    let calls = CallCounters::default();
    let counters = calls.clone();
    let run = async move {
        let mut signals = StopSignals::listen().map_err(|e| failure("cannot listen for signals", &e))?;
        let children = ChildSignals::listen().map_err(|e| failure("cannot listen for signals", &e))?;
        let asks = OperatorSignals::listen().map_err(|e| failure("cannot listen for signals", &e))?;
        tokio::spawn(reap_orphans(children));
        let manager = Manager::of_this_process().map_err(|e| failure("cannot start a thread", &e))?;
        let manager = Rc::new(manager);
        let mut daemon = Daemon::start(Arc::new(config), false, passed, limits, counters).await?;
        tokio::task::spawn_local(operate(asks, daemon.jobs(), reload));
        announce(daemon.socket(), &log).await.map_err(|e| failure("cannot write the ready marker", &e))?;
        manager.ready(in_words(&daemon.jobs()));
        tokio::task::spawn_local(report(Rc::clone(&manager), daemon.jobs()));
        let environment =
            [(SOCKET_VARIABLE, Some(daemon.socket().as_os_str().to_owned())), (RECOVERY_VARIABLE, None)];
        let mut beside = std::pin::pin!(beside(command, environment, limits.oom_score_adj, &group));
        let ended = tokio::select! {
            stopped = daemon.until_stopped(&mut signals) => stopped.map(|()| None),
            code = beside.as_mut() => Ok(Some(code)),
        };
        let stopping_notice = manager.stopping();
        let running = group.close();
        let ended = match (ended, &running) {
            (Ok(ended), _) => ended,
            (Err(defect), None) => return Err(defect),
            (Err(defect), Some(running)) => return end_command(running, beside).await.and(Err(defect)),
        };
        let stopping = daemon.stop(async move {
            signals.next().await;
        });
        let code = match (ended, &running) {
            (None, Some(running)) => {
                let (_, code) = tokio::join!(stopping, end_command(running, beside));
                code
            }
            (ended, _) => {
                let stopped = stopping.await;
                ended.unwrap_or(Ok(stopped))
            }
        };
        stopping_notice.sent().await;
        code
    };
    let ended = run_system(&calls, run);
    lines.flush();
    ended?
}

/// Makes the daemon listen on the socket that the service manager passed, if any. Fails if the settings name another
/// one.
fn listen_on_passed(config: &mut Config, passed: Option<&PassedSocket>) -> Result<(), Failure> {
    let Some(PassedSocket { path, .. }) = passed else { return Ok(()) };
    match config.socket.replace(path.clone()) {
        Some(named) if named != *path => {
            let text = format!(
                "the service manager passed the socket {}, but the settings name {}",
                path.display(),
                named.display()
            );
            Err(Failure::new(Exit::Failure, text)
                .with_remedy("leave out the setting `socket`, or disable the socket unit"))
        }
        _ => Ok(()),
    }
}

/// Keeps the service manager informed as long as the daemon answers.
async fn report(manager: Rc<Manager>, jobs: JobsHandle) {
    manager.watch(async || jobs.answers().await, || in_words(&jobs)).await;
}

fn in_words(jobs: &JobsHandle) -> String {
    let (mut running, mut waiting) = (0, 0);
    for job in jobs.all() {
        match job.state {
            JobState::Queued => waiting += 1,
            JobState::Running | JobState::Cancelling => running += 1,
            JobState::Ended(_) => {}
        }
    }
    format!("jobs running: {running}, waiting: {waiting}")
}

async fn operate(mut asks: OperatorSignals, jobs: JobsHandle, reload: Reload) {
    loop {
        match asks.next().await {
            Ask::Pause => jobs.pause().await,
            Ask::Resume => jobs.resume().await,
            Ask::Reload => match read_again(Arc::clone(&reload)).await {
                Ok(config) => jobs.configure(config).await,
                Err(failure) => tracing::error!("the settings stay as they are: {failure}"),
            },
        }
    }
}

/// Reads the settings on another thread, within [`RELOAD_TIME`].
async fn read_again(reload: Reload) -> Result<Config, Failure> {
    let reading = threads::run(Work::Lookups, move || reload());
    match tokio::time::timeout(RELOAD_TIME, reading).await {
        Ok(Ok(read)) => read,
        Ok(Err(defect)) => Err(Failure::new(Exit::Failure, defect)),
        Err(_late) => {
            let text = format!(
                "the settings file was not read within {RELOAD_TIME:?}: its file system does not answer"
            );
            Err(Failure::new(Exit::Failure, text))
        }
    }
}

/// Writes the ready marker: one write, nothing before it (service.md §1.2). A thread of its own writes it, so that
/// neither a full disk nor a full pipe blocks the start. The log opens after it.
async fn announce(socket: &Path, log: &OperatorLog) -> io::Result<()> {
    let marker = format!("step-runner is listening on socket {}\n", socket.display());
    let (told, written) = tokio::sync::oneshot::channel();
    let log = log.clone();
    let write = move || {
        let result = io::stderr().write_all(marker.as_bytes());
        log.open();
        told.send(result).ok();
    };
    std::thread::Builder::new().name("marker".into()).spawn(write)?;
    match tokio::time::timeout(MARKER_TIME, written).await {
        Ok(Ok(Err(error))) if !files::is_full(&error) => Err(error),
        _ => Ok(()),
    }
}

/// Runs `work` on a runtime with an actor system. Actors, the keeper's connection and clients' connections share this
/// one thread: a message between them is a queue entry. Waking another thread would cost more than all work on a small
/// job. `calls` are those that this system answers.
fn run_system<T>(calls: &CallCounters, work: impl Future<Output = T>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .max_blocking_threads(threads::ALL)
        .thread_keep_alive(BLOCKING_IDLE)
        .on_thread_start(threads::begin_runtime_thread)
        .on_thread_park(pace::before_waiting(calls.clone()))
        .enable_all()
        .build()
        .map_err(|e| failure("cannot start a runtime", &e))?;
    // Without a thread the runtime would panic.
    threads::probe()?;
    // The runtime can still fail to start one, and then it panics.
    let first = std::panic::AssertUnwindSafe(|| drop(runtime.spawn_blocking(|| ())));
    std::panic::catch_unwind(first).map_err(|panic| no_thread(&*panic))?;
    let system = actix_rt::System::with_tokio_rt(|| runtime);
    Ok(system.block_on(work))
}

/// Reaps the orphans that this process inherits, as subreaper or as the first process of its namespace.
async fn reap_orphans(mut signals: ChildSignals) {
    loop {
        while !children::reap_orphans() {
            tokio::time::sleep(REAP_AGAIN).await;
        }
        signals.next().await;
    }
}

/// Returns the failure of a runtime that has no thread, with the reason as the runtime's `panic` tells it. It holds nothing
/// but the system's error: no work runs yet.
fn no_thread(panic: &(dyn Any + Send)) -> Failure {
    let reason = panic.downcast_ref::<String>().map_or("the runtime failed", String::as_str);
    Failure::new(Exit::Failure, format!("cannot start a thread: {reason}"))
}

fn failure(what: &str, error: &io::Error) -> Failure {
    Failure::new(Exit::Failure, format!("{what}: {error}"))
}
