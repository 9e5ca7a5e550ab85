//! The composition root: settings to a running daemon to its end. Only it and the files below it may know all
//! the others.

mod command;
mod daemon;
mod lifetime;
mod private;
mod start_failure;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use command::{Group, beside, end_command};
use daemon::Daemon;

use crate::actors::handle::JobsHandle;
use crate::config::Config;
use crate::error::{Exit, Failure};
use crate::files;
use crate::logging::OperatorLog;
use crate::model::JobState;
use crate::net::SOCKET_VARIABLE;
use crate::process::children;
use crate::process::host::{self, SoftLimits};
use crate::signal::{Ask, ChildSignals, OperatorSignals, StopSignals};
use crate::systemd::{self, Manager, PassedSocket};
use crate::variables::RECOVERY_VARIABLE;

pub use daemon::defaults;
pub use private::PrivateDaemon;

/// Threads for work that may block (checking large requests, looking functions up, deleting folders).
const BLOCKING_THREADS: usize = 4;

/// How long such a thread waits for the next work. One is started with the daemon and there is always one from then on:
/// without any, work that meets the system's limit of threads would be a panic and not a wait (faults.md row 15).
const BLOCKING_IDLE: Duration = Duration::MAX;

/// Until orphans are looked for again behind a child that is being reaped by its own waiter.
const REAP_AGAIN: Duration = Duration::from_millis(10);

/// Reads the settings again, where they were read at the start.
pub type Reload = Box<dyn Fn() -> Result<Config, Failure>>;

/// Runs the daemon until it is told to end; the exit code. `reload` is called on SIGHUP. `warnings` go into its log: in front
/// of the ready marker nothing else may be written.
pub fn serve(
    mut config: Config,
    reload: Reload,
    command: Vec<OsString>,
    warnings: &[String],
) -> Result<u8, Failure> {
    let passed = systemd::passed_socket().map_err(|e| Failure::new(Exit::Failure, e))?;
    listen_on_passed(&mut config, passed.as_ref())?;
    check_supported(&config)?;
    let log = OperatorLog::start(&config).map_err(|e| failure("cannot open log_file", &e))?;
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    let limits = SoftLimits::now();
    host::harden().map_err(|e| failure("cannot prepare this process", &e))?;
    let group = Group::default();
    let run = async move {
        let mut signals = StopSignals::listen().map_err(|e| failure("cannot listen for signals", &e))?;
        let children = ChildSignals::listen().map_err(|e| failure("cannot listen for signals", &e))?;
        let asks = OperatorSignals::listen().map_err(|e| failure("cannot listen for signals", &e))?;
        tokio::spawn(reap_orphans(children));
        let manager = Manager::of_this_process().map_err(|e| failure("cannot start a thread", &e))?;
        let manager = Rc::new(manager);
        let mut daemon = Daemon::start(Arc::new(config), false, passed, limits).await?;
        tokio::task::spawn_local(operate(asks, daemon.jobs(), reload));
        announce(daemon.socket(), &log).map_err(|e| failure("cannot write the ready marker", &e))?;
        manager.ready(in_words(&daemon.jobs()));
        tokio::task::spawn_local(report(Rc::clone(&manager), daemon.jobs()));
        let environment =
            [(SOCKET_VARIABLE, Some(daemon.socket().as_os_str().to_owned())), (RECOVERY_VARIABLE, None)];
        let mut beside = std::pin::pin!(beside(command, environment, limits.oom_score_adj, &group));
        let ended = tokio::select! {
            stopped = daemon.until_stopped(&mut signals) => stopped.map(|()| None),
            code = beside.as_mut() => Ok(Some(code)),
        };
        manager.stopping();
        let running = group.close();
        let ended = match (ended, &running) {
            (Ok(ended), _) => ended,
            (Err(defect), None) => return Err(defect),
            (Err(defect), Some(running)) => return end_command(running, beside).await.and(Err(defect)),
        };
        let stopping = daemon.stop(async move { signals.next().await });
        match (ended, &running) {
            (None, Some(running)) => {
                let (_, code) = tokio::join!(stopping, end_command(running, beside));
                code
            }
            (ended, _) => {
                let stopped = stopping.await;
                ended.unwrap_or(Ok(stopped))
            }
        }
    };
    run_system(run)?
}

/// A passed socket is the one to listen on; another one cannot be named beside it.
fn listen_on_passed(config: &mut Config, passed: Option<&PassedSocket>) -> Result<(), Failure> {
    let Some(PassedSocket { path, .. }) = passed else { return Ok(()) };
    match config.socket.replace(path.clone()) {
        Some(named) if named != *path => {
            let text = format!(
                "the service manager passed the socket {}, and {} was named",
                path.display(),
                named.display()
            );
            Err(Failure::new(Exit::Failure, text).with_remedy("leave out the socket, or the socket unit"))
        }
        _ => Ok(()),
    }
}

/// Keeps the service manager informed until the daemon does not answer any more.
async fn report(manager: Rc<Manager>, jobs: JobsHandle) {
    manager.watch(async || jobs.answers().await, || in_words(&jobs)).await;
}

/// How many jobs there are, for people.
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

fn check_supported(config: &Config) -> Result<(), Failure> {
    let Some(name) = config.unsupported().first().copied() else { return Ok(()) };
    let text = format!("this version does not know how to do what {name} asks for");
    Err(Failure::new(Exit::Usage, text).with_remedy(format!("leave {name} at its default")))
}

/// Does what an operator asks for by signals, one after the other.
async fn operate(mut asks: OperatorSignals, jobs: JobsHandle, reload: Reload) {
    loop {
        match asks.next().await {
            Ask::Pause => jobs.pause().await,
            Ask::Resume => jobs.resume().await,
            Ask::Reload => match reload().and_then(|config| check_supported(&config).map(|()| config)) {
                Ok(config) => jobs.configure(config).await,
                Err(failure) => tracing::error!("the settings stay as they are: {failure}"),
            },
        }
    }
}

/// One write, nothing before it (service.md §1.2). Nobody waits for it in a file on a full disk.
fn announce(socket: &Path, log: &OperatorLog) -> io::Result<()> {
    let marker = format!("step-runner is listening on socket {}\n", socket.display());
    match io::stderr().write_all(marker.as_bytes()) {
        Err(error) if files::is_full(&error) => {}
        written => written?,
    }
    log.open();
    Ok(())
}

/// Runs `work` on a runtime with an actor system. Actors, the keeper's connection and clients' connections share this
/// one thread: a message between them is a queue entry and not the wake-up of another thread, which costs more than
/// all work on a small job together.
fn run_system<T>(work: impl Future<Output = T>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_keep_alive(BLOCKING_IDLE)
        .enable_all()
        .build()
        .map_err(|e| failure("cannot start a runtime", &e))?;
    // Tried by itself first: the runtime takes it for a defect when there is none to be had.
    let thread =
        std::thread::Builder::new().spawn(|| ()).map_err(|e| failure("cannot start a thread", &e))?;
    thread.join().ok();
    // It may fail all the same, and the runtime has no other word for it than a panic.
    let first = std::panic::AssertUnwindSafe(|| drop(runtime.spawn_blocking(|| ())));
    std::panic::catch_unwind(first)
        .map_err(|_| failure("cannot start a thread", &io::Error::from(io::ErrorKind::OutOfMemory)))?;
    let system = actix::System::with_tokio_rt(|| runtime);
    Ok(system.block_on(work))
}

/// Reaps what this process inherits, as its subreaper or as the first process of its namespace.
async fn reap_orphans(mut signals: ChildSignals) {
    loop {
        while !children::reap_orphans() {
            tokio::time::sleep(REAP_AGAIN).await;
        }
        signals.next().await;
    }
}

fn failure(what: &str, error: &io::Error) -> Failure {
    Failure::new(Exit::Failure, format!("{what}: {error}"))
}
