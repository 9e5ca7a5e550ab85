//! A daemon from its start to its end: lock, recover, open the socket; serve; the graceful stop.

use std::ffi::OsString;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::failure;
use super::lifetime::{after, idle};
use super::start_failure::{claim_failure, open_failure};
use crate::actors::handle::JobsHandle;
use crate::actors::host::Processes;
use crate::actors::supervisor::{Supervisor, SupervisorEnd, SupervisorParts};
use crate::config::{Config, unless_zero};
use crate::error::{Chain, Exit, Failure};
use crate::fetch::{self, Fetcher};
use crate::grpc::AllowedUsers;
use crate::grpc::accept::{AcceptLoop, Calls, TransportLimits};
use crate::grpc::server::Services;
use crate::grpc::{is_root_result, step_result_bytes};
use crate::net;
use crate::process::host::{self, SoftLimits};
use crate::signal::StopSignals;
use crate::store::{self, Place, StateDir, socket};
use crate::systemd::PassedSocket;
use crate::variables::Base;

/// Time for the HTTP/2 preface of a connection (service.md §1.1).
const PREFACE_DEADLINE: Duration = Duration::from_secs(5);

/// How long connections may take to end after the jobs have.
const CONNECTION_GRACE: Duration = Duration::from_secs(1);

/// How long streams that were ended may take to tell their clients.
const LAST_WORDS: Duration = Duration::from_millis(200);

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

/// A daemon that serves.
pub(super) struct Daemon {
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

impl Daemon {
    /// Locks, recovers, then opens the socket.
    pub(super) async fn start(
        config: Arc<Config>,
        private: bool,
        passed: Option<PassedSocket>,
        limits: SoftLimits,
    ) -> Result<Self, Failure> {
        let environment: Vec<(OsString, OsString)> = std::env::vars_os().collect();
        let socket =
            config.socket.clone().unwrap_or_else(|| net::default_socket(|name| std::env::var_os(name)));
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
            encode: step_result_bytes,
            is_root: is_root_result,
            private,
            host: Arc::new(Processes::new(limits)),
        };
        let (jobs, supervisor) =
            Supervisor::start_recovered(parts).await.map_err(|e| Failure::new(Exit::Failure, e))?;
        let services = Services::new(jobs.clone()).await;
        let accept = accept_loop(&config, listener, &services)?;
        let calls = accept.calls();
        let (stop_accepting, abort) = (CancellationToken::new(), CancellationToken::new());
        let accepting = tokio::spawn(accept.run(stop_accepting.clone(), abort.clone()));
        let vital = Vital { supervisor, accepting };
        Ok(Self { socket, jobs, services, calls, stop_accepting, abort, vital, claim, config })
    }

    /// Where it listens.
    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Its jobs.
    pub(super) fn jobs(&self) -> JobsHandle {
        self.jobs.clone()
    }

    /// Waits until a part without which it cannot work is gone.
    pub(super) async fn defect(&mut self) -> Failure {
        self.vital.defect().await
    }

    /// Waits for a signal, for the end of its life, or for idleness; an error if a part of it is gone.
    pub(super) async fn until_stopped(&mut self, signals: &mut StopSignals) -> Result<(), Failure> {
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
    pub(super) async fn stop(self, again: impl Future<Output = ()>) -> u8 {
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

/// The socket to listen on, and the claim on its path. On a full disk the socket and its lock get the place of the
/// reserve, if it is the same one.
fn listen(
    config: &Config,
    socket: &Path,
    passed: Option<PassedSocket>,
    state: &StateDir,
) -> Result<(UnixListener, socket::Claim), Failure> {
    match passed {
        Some(PassedSocket { listener, .. }) => {
            let claim = state.with_reserve(|| socket::claim_passed(socket)).map_err(claim_failure)?;
            Ok((listener, claim))
        }
        None => state.with_reserve(|| socket::claim(socket, config.socket_mode.0)).map_err(claim_failure),
    }
}

/// What fetches functions into the cache of the state folder.
fn fetcher(config: &Config, state: &StateDir) -> Result<Fetcher, Failure> {
    let room = fetch::Limits { cache: config.cache_limit.0, kept_free: config.state_limit.0 };
    Fetcher::new(state.path(), room, |name: &str| std::env::var(name).ok())
        .map_err(|e| Failure::new(Exit::Failure, Chain(&e).to_string()))
}

/// What lets clients in to `services`.
fn accept_loop(config: &Config, listener: UnixListener, services: &Services) -> Result<AcceptLoop, Failure> {
    let limits = TransportLimits {
        max_connections: config.max_connections as usize,
        preface_deadline: PREFACE_DEADLINE,
    };
    let users = AllowedUsers::new(&config.allow_uids);
    AcceptLoop::new(listener, services.routes.clone(), services.refusing.clone(), users, limits)
        .map_err(|e| failure("cannot listen", &e))
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
