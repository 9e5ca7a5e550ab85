//! The composition root: settings to a running daemon to its end. The only file that may know all the others.

mod command;
mod lifetime;

use std::error::Error;
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use command::{Group, beside, end_command};
use lifetime::{after, idle};

use crate::actors::handle::{JobsHandle, RunRequest};
use crate::actors::host::Processes;
use crate::actors::supervisor::{Supervisor, SupervisorEnd, SupervisorParts};
use crate::config::{Config, unless_zero};
use crate::error::{Chain, Exit, Failure};
use crate::fetch::{self, Fetcher};
use crate::files;
use crate::grpc::AllowedUsers;
use crate::grpc::accept::{AcceptLoop, Calls, TransportLimits};
use crate::grpc::server::Services;
use crate::grpc::{is_root_result, step_result_bytes};
use crate::logging::OperatorLog;
use crate::model::{JobState, Refusal};
use crate::net::{self, SOCKET_VARIABLE};
use crate::process::children;
use crate::process::host::{self, SoftLimits};
use crate::signal::{Ask, ChildSignals, OperatorSignals, StopSignals};
use crate::store::{self, OpenError, Place, StateDir, socket};
use crate::systemd::{self, Manager, PassedSocket};
use crate::variables::{Base, RECOVERY_VARIABLE};

/// Time for the HTTP/2 preface of a connection (service.md §1.1).
const PREFACE_DEADLINE: Duration = Duration::from_secs(5);

/// Threads for work that may block (checking large requests, looking functions up, deleting folders).
const BLOCKING_THREADS: usize = 4;

/// How long such a thread waits for the next work. One is started with the daemon and there is always one from then on:
/// without any, work that meets the system's limit of threads would be a panic and not a wait (faults.md row 15).
const BLOCKING_IDLE: Duration = Duration::MAX;

/// How long connections may take to end after the jobs have.
const CONNECTION_GRACE: Duration = Duration::from_secs(1);

/// How long streams that were ended may take to tell their clients.
const LAST_WORDS: Duration = Duration::from_millis(200);

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
        tokio::task::spawn_local(operate(asks, daemon.jobs.clone(), reload));
        announce(&daemon.socket, &log).map_err(|e| failure("cannot write the ready marker", &e))?;
        manager.ready(in_words(&daemon.jobs));
        tokio::task::spawn_local(report(Rc::clone(&manager), daemon.jobs.clone()));
        let environment =
            [(SOCKET_VARIABLE, Some(daemon.socket.clone().into_os_string())), (RECOVERY_VARIABLE, None)];
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

/// A daemon inside this process, on a thread of its own, for one `run` (cli.md).
pub struct PrivateDaemon {
    /// Where it listens.
    pub socket: PathBuf,
    jobs: JobsHandle,
    stop: CancellationToken,
    kill: CancellationToken,
    thread: Option<std::thread::JoinHandle<()>>,
    folder: PathBuf,
}

impl PrivateDaemon {
    /// Starts it on the new folder `folder`, mode 0700, which it owns.
    pub fn start(mut config: Config, folder: PathBuf) -> Result<Self, Failure> {
        let socket = folder.join("step-runner.sock");
        config.socket = Some(socket.clone());
        // One folder for all: the keeper removes it when this process is killed.
        config.state_dir = Some(folder.clone());
        config.keeper_wait = Duration::ZERO;
        let limits = SoftLimits::now();
        host::harden().map_err(|e| failure("cannot prepare this process", &e))?;
        let (stop, kill) = (CancellationToken::new(), CancellationToken::new());
        let (ready, started) = std::sync::mpsc::channel();
        let (stopped, killed) = (stop.clone(), kill.clone());
        let run = move || {
            let failed = ready.clone();
            let daemon = async move {
                match Daemon::start(Arc::new(config), true, None, limits).await {
                    Ok(mut daemon) => {
                        ready.send(Ok(daemon.jobs.clone())).ok();
                        tokio::select! {
                            () = stopped.cancelled() => {
                                daemon.stop(async move { killed.cancelled().await }).await;
                            }
                            _ = daemon.vital.defect() => {}
                        }
                    }
                    Err(failure) => drop(ready.send(Err(failure))),
                }
            };
            if let Err(failure) = run_system(daemon) {
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

    /// Registers a job by other rules than those of the service that answers on its socket.
    pub async fn run(&self, request: RunRequest) -> Result<(), Refusal> {
        self.jobs.run(request).await
    }

    /// Ends it: its jobs get their grace, or are killed `at_once`. Blocks until it is gone; removes its folder.
    pub fn end(mut self, at_once: bool) {
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
            tracing::debug!(%error, "the private daemon's folder was not removed");
        }
    }
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

/// Parts without which a daemon cannot work; none of them ends by itself.
struct Vital {
    supervisor: SupervisorEnd,
    accepting: tokio::task::JoinHandle<()>,
}

impl Vital {
    /// Waits until one of them is gone. Nothing is told to the keeper then: its jobs go on, for the next daemon.
    async fn defect(&mut self) -> Failure {
        let part = tokio::select! {
            _ = &mut self.supervisor => "the part of the daemon that lets jobs in",
            _ = &mut self.accepting => "the part of the daemon that accepts connections",
        };
        tracing::error!("a defect ended {part}; the daemon ends");
        Failure::new(Exit::Defect, format!("a defect ended {part}; jobs go on until keeper_wait is over"))
            .with_remedy("start the daemon again: it takes the jobs up")
    }
}

struct Daemon {
    socket: PathBuf,
    jobs: JobsHandle,
    services: Services,
    calls: Calls,
    stop_accepting: CancellationToken,
    abort: CancellationToken,
    vital: Vital,
    claim: socket::Claim,
    config: Arc<Config>,
}

/// What is in force where `config` does not say it: the paths of the socket and of the state folder.
pub fn defaults(config: &Config) -> Config {
    let socket = net::default_socket(|name| std::env::var_os(name));
    Config { socket: Some(socket), state_dir: Some(state_dir(config)), ..Config::default() }
}

/// The folder of the daemon's state.
fn state_dir(config: &Config) -> PathBuf {
    store::default_path(&Place {
        state_dir: config.state_dir.clone(),
        socket: config.socket.clone(),
        xdg_state_home: std::env::var_os("XDG_STATE_HOME").map(PathBuf::from),
        temp_dir: net::temp_dir(|name| std::env::var_os(name)),
        uid: rustix::process::getuid().as_raw(),
    })
}

impl Daemon {
    /// Locks, recovers, then opens the socket.
    async fn start(
        config: Arc<Config>,
        private: bool,
        passed: Option<PassedSocket>,
        limits: SoftLimits,
    ) -> Result<Self, Failure> {
        let environment: Vec<(OsString, OsString)> = std::env::vars_os().collect();
        let variable = |name: &str| std::env::var_os(name);
        let socket = config.socket.clone().unwrap_or_else(|| net::default_socket(variable));
        let process = host::this_process();
        let state = StateDir::open(&state_dir(&config), &process)
            .map_err(|error| open_failure(error, &socket, config.state_dir.is_some()))?;
        // On a full disk the socket and its lock get the place of the reserve, if it is the same one.
        let (listener, claim) = match passed {
            Some(passed) => {
                let claim = state.with_reserve(|| socket::claim_passed(&socket)).map_err(claim_failure)?;
                (passed.listener, claim)
            }
            None => {
                state.with_reserve(|| socket::claim(&socket, config.socket_mode.0)).map_err(claim_failure)?
            }
        };
        state.replenish_reserve();
        let daemon_path = std::env::var_os("PATH");
        let (base, warning) = Base::new(environment, config.env_base, &config.env_pass);
        if let Some(warning) = warning {
            tracing::warn!("{warning}");
        }
        let own = |name: &str| std::env::var(name).ok();
        let room = fetch::Limits { cache: config.cache_limit.0, kept_free: config.state_limit.0 };
        let fetcher = Fetcher::new(state.path(), room, own)
            .map_err(|e| Failure::new(Exit::Failure, Chain(&e).to_string()))?;
        let parts = SupervisorParts {
            config: Arc::clone(&config),
            base,
            state,
            socket: socket.as_path().into(),
            daemon_path,
            fetcher: Arc::new(fetcher),
            boot_id: process.boot_id,
            encode: step_result_bytes,
            is_root: is_root_result,
            private,
            host: Arc::new(Processes::new(limits)),
        };
        let (jobs, supervisor) =
            Supervisor::start_recovered(parts).await.map_err(|e| Failure::new(Exit::Failure, e))?;
        let services = Services::new(jobs.clone()).await;
        let limits = TransportLimits {
            max_connections: config.max_connections as usize,
            preface_deadline: PREFACE_DEADLINE,
        };
        let accept = AcceptLoop::new(
            listener,
            services.routes.clone(),
            services.refusing.clone(),
            AllowedUsers::new(&config.allow_uids),
            limits,
        )
        .map_err(|e| failure("cannot listen", &e))?;
        let calls = accept.calls();
        let (stop_accepting, abort) = (CancellationToken::new(), CancellationToken::new());
        let accepting = tokio::spawn(accept.run(stop_accepting.clone(), abort.clone()));
        let vital = Vital { supervisor, accepting };
        Ok(Self { socket, jobs, services, calls, stop_accepting, abort, vital, claim, config })
    }

    /// Waits for a signal, for the end of its life, or for idleness; an error if a part of it is gone.
    async fn until_stopped(&mut self, signals: &mut StopSignals) -> Result<(), Failure> {
        let Self { config, vital, jobs, calls, .. } = self;
        let is_used = || calls.is_one_open() || !jobs.all().is_empty();
        tokio::select! {
            () = signals.next() => tracing::info!("told to stop"),
            () = after(unless_zero(config.max_lifetime)) => tracing::info!("max_lifetime is over"),
            () = idle(unless_zero(config.idle_timeout), is_used, || calls.begun()) => tracing::info!("idle_timeout is over"),
            defect = vital.defect() => return Err(defect),
        }
        Ok(())
    }

    /// The graceful stop; `again` ends it at once. The exit code.
    async fn stop(self, again: impl Future<Output = ()>) -> u8 {
        let Self { jobs, services, stop_accepting, abort, mut vital, claim, .. } = self;
        services.stopping().await;
        let graceful = async {
            jobs.shut_down().await;
        };
        let code = tokio::select! {
            () = graceful => 0,
            () = again => {
                jobs.kill_all().await;
                1
            }
        };
        stop_accepting.cancel();
        let accepting = &mut vital.accepting;
        if tokio::time::timeout(CONNECTION_GRACE, &mut *accepting).await.is_err() {
            services.end_streams();
            drop(tokio::time::timeout(LAST_WORDS, accepting).await);
        }
        abort.cancel();
        drop(claim);
        code
    }
}

fn failure(what: &str, error: &io::Error) -> Failure {
    Failure::new(Exit::Failure, format!("{what}: {error}"))
}

/// `named`: the state folder was named, and does not follow from the socket.
fn open_failure(error: OpenError, socket: &Path, named: bool) -> Failure {
    match error {
        // Nobody serves there: it is the folder that is taken.
        OpenError::InUse { .. } if named && UnixStream::connect(socket).is_err() => {
            Failure::new(Exit::Failure, error).with_remedy("name another --state-dir, or stop that daemon")
        }
        OpenError::InUse { pid, .. } => {
            let pid = pid.map_or_else(String::new, |pid| format!(" (pid {pid})"));
            Failure::new(Exit::Failure, format!("already serving on {}{pid}", socket.display()))
                .with_remedy("use the daemon that is there, or name another --socket and --state-dir")
        }
        OpenError::NewerFormat { .. } => Failure::new(Exit::NewerState, error),
        error => start_failure(error),
    }
}

fn claim_failure(error: socket::ClaimError) -> Failure {
    let taken = matches!(error, socket::ClaimError::AlreadyServing { .. });
    let failure = start_failure(error);
    if taken {
        failure.with_remedy("use it if it is a step-runner; if it is something else, name another --socket")
    } else {
        failure
    }
}

/// A failure of the start; of a full disk with what to do about it.
fn start_failure(error: impl Error + Send + Sync + 'static) -> Failure {
    let is_full = files::is_full(&error);
    let failure = Failure::new(Exit::Failure, error);
    if is_full {
        failure.with_remedy(
            "make room on its file system (bytes, files, quota) and start the daemon again: jobs that run go on until \
             keeper_wait is over",
        )
    } else {
        failure
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_part_that_ends_by_itself_is_a_defect() {
        let (supervisor, end) = tokio::sync::oneshot::channel();
        let mut lost = Vital { supervisor: end, accepting: tokio::spawn(std::future::pending()) };
        drop(supervisor);
        assert_eq!(lost.defect().await.exit(), Exit::Defect);
        let (_supervisor, end) = tokio::sync::oneshot::channel();
        let mut deaf = Vital { supervisor: end, accepting: tokio::spawn(async {}) };
        assert_eq!(deaf.defect().await.exit(), Exit::Defect);
    }
}
