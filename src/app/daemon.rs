//! A daemon from start to end: lock, listen, recover; serve; graceful stop.

use std::ffi::OsString;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::failure;
use super::lifetime::{after, idle};
use super::start_failure::{claim_failure, open_failure, recovery_failure};
use crate::actors::handle::JobsHandle;
use crate::actors::host::Processes;
use crate::actors::stored::Encode;
use crate::actors::supervisor::{SupervisorEnd, SupervisorParts};
use crate::config::{Config, unless_zero};
use crate::error::{Chain, Exit, Failure};
use crate::fetch::{self, Fetcher};
use crate::grpc::AllowedUsers;
use crate::grpc::accept::{AcceptLoop, CallCounters, READ_TIME, TransportLimits};
use crate::grpc::server::Services;
use crate::grpc::{step_event_bytes, step_result_bytes, stored_kind};
use crate::net;
use crate::process::host::{self, SoftLimits};
use crate::signal::StopSignals;
use crate::store::{self, StateDir, StatePathInputs, socket};
use crate::systemd::PassedSocket;
use crate::variables::Base;

/// Time that connections get to end after the jobs have ended.
const CONNECTION_GRACE: Duration = Duration::from_secs(1);

/// Time that ended streams get to tell their clients.
const END_OF_STREAMS_TIME: Duration = Duration::from_millis(200);

/// Parts that a daemon cannot work without; none ends by itself.
struct EssentialTasks {
    supervisor: SupervisorEnd,
    accepting: tokio::task::JoinHandle<()>,
}

impl EssentialTasks {
    /// Waits until one of the parts is gone. The keeper is not told, so its jobs go on for the next daemon.
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

pub(super) struct Daemon {
    socket: PathBuf,
    jobs: JobsHandle,
    services: Services,
    calls: CallCounters,
    stop_accepting: CancellationToken,
    abort: CancellationToken,
    essential_tasks: EssentialTasks,
    claim: socket::Claim,
    config: Arc<Config>,
}

impl Daemon {
    /// Locks, listens and recovers, then starts to serve. Counts its calls in `calls`.
    pub(super) async fn start(
        config: Arc<Config>,
        private: bool,
        passed: Option<PassedSocket>,
        limits: SoftLimits,
        calls: CallCounters,
    ) -> Result<Self, Failure> {
        let environment: Vec<(OsString, OsString)> = std::env::vars_os().collect();
        let socket = socket_path(&config);
        let process = host::this_process();
        let state = StateDir::open(&state_dir(&config), &process)
            .map_err(|error| open_failure(error, &socket, config.state_dir.is_some()))?;
        let (listener, claim) = listen(&config, &socket, passed, &state)?;
        state.replenish_reserve();
        let (base, warning) = Base::new(environment, config.env_base, &config.env_pass);
        if let Some(warning) = warning {
            tracing::warn!("{warning}");
        }
        let fetcher = fetcher(&config, &state)?;
        let parts = SupervisorParts {
            config: Arc::clone(&config),
            base,
            state,
            socket: socket.as_path().into(),
            daemon_path: std::env::var_os("PATH"),
            fetcher: Arc::new(fetcher),
            boot_id: process.boot_id,
            encode: Encode { result: step_result_bytes, event: step_event_bytes },
            kind: stored_kind,
            private,
            host: Arc::new(Processes::new(limits)),
        };
        let (jobs, supervisor) = JobsHandle::start_recovered(parts).await.map_err(recovery_failure)?;
        let services = Services::new(jobs.clone(), config.reflection).await;
        let accept = accept_loop(&config, listener, &services, calls.clone())?;
        let (stop_accepting, abort) = (CancellationToken::new(), CancellationToken::new());
        let accepting = tokio::spawn(accept.run(stop_accepting.clone(), abort.clone()));
        let essential_tasks = EssentialTasks { supervisor, accepting };
        Ok(Self { socket, jobs, services, calls, stop_accepting, abort, essential_tasks, claim, config })
    }

    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }

    pub(super) fn jobs(&self) -> JobsHandle {
        self.jobs.clone()
    }

    pub(super) async fn defect(&mut self) -> Failure {
        self.essential_tasks.defect().await
    }

    /// Waits for a signal, the end of its lifetime, or idleness. An error means that a vital part is gone.
    pub(super) async fn until_stopped(&mut self, signals: &mut StopSignals) -> Result<(), Failure> {
        let Self { config, essential_tasks, jobs, calls, .. } = self;
        let is_used = || calls.is_one_open() || !jobs.all().is_empty();
        tokio::select! {
            signal = signals.next() => tracing::info!("{signal}: stopping; a second one stops at once"),
            () = after(unless_zero(config.max_lifetime)) => tracing::info!("stopping, because max_lifetime is over"),
            () = idle(unless_zero(config.idle_timeout), is_used, || calls.begun()) => tracing::info!("stopping, because nothing used the daemon for idle_timeout"),
            defect = essential_tasks.defect() => return Err(defect),
        }
        Ok(())
    }

    /// Stops gracefully, or at once when `again` resolves. Returns the exit code.
    pub(super) async fn stop(self, again: impl Future<Output = ()>) -> u8 {
        let Self { jobs, services, calls, stop_accepting, abort, mut essential_tasks, claim, .. } = self;
        services.stopping().await;
        let graceful = async {
            let grace_left = jobs.shut_down().await;
            // The daemon's end can be the end of its container, and of the clients' proxies in it.
            let patience = READ_TIME.min(grace_left).max(CONNECTION_GRACE);
            calls.read_to_the_end(Instant::now() + patience).await
        };
        let (code, have_read) = tokio::select! {
            have_read = graceful => (0, have_read),
            () = again => {
                jobs.kill_all().await;
                (1, true)
            }
        };
        stop_accepting.cancel();
        let accepting = &mut essential_tasks.accepting;
        // A client that has not read to the end by now has had its time.
        let grace = if have_read { CONNECTION_GRACE } else { Duration::ZERO };
        if tokio::time::timeout(grace, &mut *accepting).await.is_err() {
            services.end_streams();
            drop(tokio::time::timeout(END_OF_STREAMS_TIME, accepting).await);
        }
        abort.cancel();
        drop(claim);
        code
    }
}

/// Returns the values in force where `config` has none: the paths of the socket and of the state folder.
pub(crate) fn defaults(config: &Config) -> Config {
    let socket = net::default_socket(|name| std::env::var_os(name));
    Config { socket: Some(socket), state_dir: Some(state_dir(config)), ..Config::default() }
}

fn state_dir(config: &Config) -> PathBuf {
    store::default_path(&StatePathInputs {
        state_dir: config.state_dir.clone(),
        socket: config.socket.clone(),
        xdg_state_home: std::env::var_os("XDG_STATE_HOME").map(PathBuf::from),
        temp_dir: net::temp_dir(|name| std::env::var_os(name)),
        uid: rustix::process::getuid().as_raw(),
    })
}

fn socket_path(config: &Config) -> PathBuf {
    config.socket.clone().unwrap_or_else(|| net::default_socket(|name| std::env::var_os(name)))
}

/// Refuses the path of the socket if another file is there, before anything is made beside it.
pub(super) fn refuse_other_file(config: &Config) -> Result<(), Failure> {
    socket::refuse_other_file(&socket_path(config)).map_err(claim_failure)
}

/// Opens the socket and claims its path. On a full disk of both, socket and lock can use the state folder's reserve.
fn listen(
    config: &Config,
    socket: &Path,
    passed: Option<PassedSocket>,
    state: &StateDir,
) -> Result<(UnixListener, socket::Claim), Failure> {
    if let Some(PassedSocket { listener, .. }) = passed {
        let claim = state.with_reserve(|| socket::claim_passed(socket)).map_err(claim_failure)?;
        return Ok((listener, claim));
    }
    if shuts_out_allowed_users(config, rustix::process::getuid().as_raw()) {
        tracing::warn!("users of allow_uids cannot connect: socket_mode gives them no right to write");
    }
    state.with_reserve(|| socket::claim(socket, config.socket_mode.0)).map_err(claim_failure)
}

/// True if users may call, but the mode of the socket lets only the daemon's own user and root connect.
fn shuts_out_allowed_users(config: &Config, own: u32) -> bool {
    const OTHERS_WRITE: u32 = 0o022;
    let names_others = config.allow_uids.iter().any(|&user| user != own && user != 0);
    names_others && config.socket_mode.0 & OTHERS_WRITE == 0
}

fn fetcher(config: &Config, state: &StateDir) -> Result<Fetcher, Failure> {
    let room = fetch::CacheLimits { cache: config.cache_limit.0, kept_free: config.state_limit.0 };
    Fetcher::new(state.path(), room, |name: &str| std::env::var(name).ok())
        .map_err(|e| Failure::new(Exit::Failure, Chain(&e).to_string()))
}

fn accept_loop(
    config: &Config,
    listener: UnixListener,
    services: &Services,
    calls: CallCounters,
) -> Result<AcceptLoop, Failure> {
    let limits = TransportLimits::new(config.max_connections, SoftLimits::now().nofile);
    let users = AllowedUsers::new(&config.allow_uids);
    AcceptLoop::new(listener, services.answers.clone(), users, limits, calls)
        .map_err(|e| failure("cannot listen", &e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Mode;

    #[test]
    fn users_who_may_call_need_a_socket_that_they_can_open() {
        let config = |allow_uids: &[u32], mode| Config {
            allow_uids: allow_uids.to_vec(),
            socket_mode: Mode(mode),
            ..Config::default()
        };
        assert!(shuts_out_allowed_users(&config(&[7], 0o600), 5));
        assert!(shuts_out_allowed_users(&config(&[5, 7], 0o644), 5));
        assert!(!shuts_out_allowed_users(&config(&[7], 0o660), 5));
        assert!(!shuts_out_allowed_users(&config(&[0, 5], 0o600), 5));
    }

    #[tokio::test]
    async fn a_part_that_ends_by_itself_is_a_defect() {
        let (supervisor, end) = tokio::sync::oneshot::channel();
        let mut lost = EssentialTasks { supervisor: end, accepting: tokio::spawn(std::future::pending()) };
        drop(supervisor);
        assert_eq!(lost.defect().await.exit(), Exit::Defect);
        let (_supervisor, end) = tokio::sync::oneshot::channel();
        let mut deaf = EssentialTasks { supervisor: end, accepting: tokio::spawn(async {}) };
        assert_eq!(deaf.defect().await.exit(), Exit::Defect);
    }
}
