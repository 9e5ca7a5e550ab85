//! Fetches functions from Git repositories and OCI registries (language.md §7.7).
//!
//! A transfer runs in a short-lived process of its own, `step-runner fetch` ([`worker`]). It parses what a server
//! sends, under limits, so a hostile server cannot harm the daemon. A signal ends it if the step is cancelled. The
//! daemon keeps the trees in `cache`: one immutable folder for each key, filled elsewhere and renamed into place.
//!
//! - `wanted`: what a step asks for; [`order`]: the messages between daemon and worker; `session`: one such dialogue.
//! - `flight`: lets one job transfer what several want; `permits`: bounds the workers; `disk_space`: keeps space free.
//! - `removal`: deletes trees.
//! - `local`: reads definition files, fetched or not; `at_hand`: reads those that need no blocking thread.

mod at_hand;
mod cache;
mod disk_space;
mod flight;
mod local;
pub mod order;
mod permits;
mod removal;
mod session;
#[cfg(test)]
mod tests;
mod wanted;
pub mod worker;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use indexmap::IndexMap;
use parking_lot::Mutex;
use tokio::sync::OnceCell;

use cache::{Cache, CacheKey};
use disk_space::DiskSpace;
use flight::{FlightTurn, Flights};
use permits::WorkerPermits;
use session::Session;
use step_runner_core::job::event::{FetchFailure, Fetched};
use step_runner_lang::ast::Reference;
use step_runner_lang::diagnostic::Class;
use step_runner_model::JobKey;
use step_runner_model::error::Chain;
use step_runner_process::host;
use step_runner_process::worker::Program;
use step_runner_system::threads::{self, Work};
use wanted::{Environment, Wanted};

/// Most pinned references known to be readable. The oldest is dropped; its next use asks the remote again.
const MAX_PROVEN: usize = 10_000;

/// Reasons why the daemon cannot fetch.
#[derive(Debug, thiserror::Error)]
pub enum FetcherError {
    /// The state folder is gone.
    #[error("cannot find the state folder")]
    State(#[from] io::Error),
    /// The system gives no random numbers.
    #[error("the system gives no random numbers: {0}")]
    Random(getrandom::Error),
}

/// Takes where a fetch comes from and what went wrong, for each read that is tried again.
pub type RetryNotice = dyn Fn(&str, &str) + Sync;

/// Disk space that fetched trees may take.
#[derive(Clone, Copy, Debug)]
pub struct CacheLimits {
    /// Limit of all trees together in bytes (`cache_limit`). Trees in use may exceed it.
    pub cache: u64,
    /// Bytes that stay free for jobs and logs (`state_limit`).
    pub kept_free: u64,
}

/// Finds and fetches functions. A daemon has one for all jobs.
pub struct Fetcher {
    cache: Arc<Cache>,
    scanned: OnceCell<()>,
    flights: Arc<Flights>,
    permits: WorkerPermits,
    disk_space: Arc<DiskSpace>,
    program: Program,
    proven: Proven,
    /// Proxy and certificate settings of the daemon itself.
    network: BTreeMap<String, String>,
}

/// A tree leased to a job.
struct Tree {
    path: PathBuf,
    version: String,
}

impl Fetcher {
    /// Creates the daemon's fetcher from its state folder and environment. Does not touch the disk.
    pub fn new(
        state: &Path,
        limits: CacheLimits,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, FetcherError> {
        Self::with_program(Program::this(), state, limits, environment)
    }

    fn with_program(
        program: Program,
        state: &Path,
        limits: CacheLimits,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, FetcherError> {
        let (mut run, mut key) = ([0; 8], [0; 32]);
        getrandom::fill(&mut run).and_then(|()| getrandom::fill(&mut key)).map_err(FetcherError::Random)?;
        let network = step_runner_web::VARIABLES
            .iter()
            .filter_map(|name| Some(((*name).to_owned(), environment(name)?)));
        let boot = host::this_process().boot_id;
        let cache = Arc::new(Cache::new(state, limits.cache, u64::from_le_bytes(run), boot)?);
        Ok(Self {
            disk_space: Arc::new(DiskSpace::new(Arc::clone(&cache), state.to_owned(), limits.kept_free)),
            cache,
            scanned: OnceCell::new(),
            flights: Arc::default(),
            permits: WorkerPermits::default(),
            program,
            proven: Proven { key, known: Mutex::default() },
            network: network.collect(),
        })
    }

    /// Finds the definition file that the evaluated `reference` names for a step of `job`. A transfer uses the
    /// credentials and network settings of `environment`. `inside` is the root of the tree that the caller was fetched
    /// into. Has `retried` called for each read that is tried again.
    ///
    /// Poll it on the thread of the daemon's actors (see `step_runner_process::worker`). Dropping it ends the transfer at once.
    pub async fn find(
        &self,
        job: JobKey,
        reference: Reference,
        inside: Option<String>,
        environment: Vec<(Vec<u8>, Vec<u8>)>,
        retried: &RetryNotice,
    ) -> Result<Fetched, FetchFailure> {
        match reference {
            Reference::Local { path, files } => {
                if inside.is_none()
                    && let Some(found) = at_hand::find(&path, &files)
                {
                    return Ok(found);
                }
                blocking(move || local::find(&path, &files, inside.as_deref())).await
            }
            Reference::Git { .. } | Reference::Oci { .. } => {
                let network = self.network.clone();
                let read = move || Wanted::new(&reference, Environment(&environment), &network);
                self.find_remote(job, blocking(read).await?, retried).await
            }
            Reference::Builtin { name, .. } => {
                Err(failure(Class::NotFound, format!("no builtin is called {name:?}")))
            }
            Reference::Dynamic(_) => Err(failure(Class::Fetch, "the reference was not evaluated".into())),
        }
    }

    /// Leases the tree at `path` to `job`, which an earlier daemon began.
    pub fn hold(&self, job: JobKey, path: &str) {
        self.cache.hold(job, Path::new(path));
    }

    /// Allows eviction. Call it after [`Self::hold`] for all jobs of earlier daemons.
    pub async fn recovered(&self) {
        self.cache.recovered();
        if !self.cache.exists() {
            return;
        }
        if let Err(failure) = self.scanned().await {
            tracing::warn!("{}", failure.message);
        }
        self.cache.evict();
    }

    /// Ends the leases of `job`, which has no process left.
    pub fn release(&self, job: JobKey) {
        self.cache.release(job);
        self.cache.evict();
    }

    async fn find_remote(
        &self,
        job: JobKey,
        wanted: Wanted,
        retried: &RetryNotice,
    ) -> Result<Fetched, FetchFailure> {
        let Tree { path, version } = self.fetch(job, &wanted, retried).await?;
        let found =
            blocking(move || local::find_in_tree(&path, &wanted.dir, &wanted.files, &wanted.origin)).await?;
        Ok(Fetched { version: Some(version), ..found })
    }

    async fn fetch(&self, job: JobKey, wanted: &Wanted, retried: &RetryNotice) -> Result<Tree, FetchFailure> {
        self.scanned().await?;
        if let Some((key, version)) = self.proven.recall(wanted)
            && let Some(path) = self.cache.take(key, job)
        {
            return Ok(Tree { path, version });
        }
        // Failure of another job's transfer that we last waited for.
        let mut failed = None;
        loop {
            let mut session = self.start(wanted, retried).await?;
            let order = wanted.order(session.folder().map(cache::Temporary::scratch).unwrap_or_default());
            let version = session.resolve(&order).await?;
            if !wanted.is_version(&version) {
                let message = format!("cannot fetch {}: the server names no usable version", wanted.origin);
                return Err(failure(Class::Fetch, message));
            }
            let key = wanted.key(&version);
            match self.flights.turn(key, || self.cache.take(key, job)) {
                FlightTurn::Present(path) => {
                    self.proven.note(wanted, key, &version);
                    return Ok(Tree { path, version });
                }
                FlightTurn::Wait(flight) => {
                    // Frees our place for fetches of other keys.
                    drop(session);
                    let end = flight::over(flight).await;
                    if let Some(path) = self.cache.take(key, job) {
                        self.proven.note(wanted, key, &version);
                        return Ok(Tree { path, version });
                    }
                    match end {
                        Some(failure) if is_everyones(&failure, failed.as_ref()) => return Err(failure),
                        end => failed = end,
                    }
                }
                FlightTurn::Transfer(flight) => {
                    // Without the source: an expression may have put a secret into its path.
                    tracing::info!(%key, version, "fetching");
                    let path = match self.transfer(session, key, job, &version).await {
                        Ok(path) => path,
                        Err(failure) => {
                            flight.fail(failure.clone());
                            return Err(failure);
                        }
                    };
                    self.proven.note(wanted, key, &version);
                    self.cache.evict();
                    return Ok(Tree { path, version });
                }
            }
        }
    }

    /// Starts a worker for `wanted` as soon as a place is free.
    async fn start<'a>(
        &self,
        wanted: &Wanted,
        retried: &'a RetryNotice,
    ) -> Result<Session<'a>, FetchFailure> {
        let broken = |error: &(dyn std::error::Error + 'static)| {
            failure(Class::Fetch, format!("cannot fetch anything: {}", Chain(error)))
        };
        let permit = self.permits.take(wanted.host()).await.map_err(|e| broken(&e))?;
        let folder = self.cache.temporary().map_err(|e| broken(&e))?;
        let disk_space = Arc::clone(&self.disk_space);
        Session::start(&self.program, folder, permit, disk_space, wanted.origin.clone(), retried)
            .map_err(|e| broken(&e))
    }

    async fn transfer(
        &self,
        mut session: Session<'_>,
        key: CacheKey,
        job: JobKey,
        version: &str,
    ) -> Result<PathBuf, FetchFailure> {
        let begin = Instant::now();
        let stats = session.transfer().await?;
        let published = match session.folder() {
            Some(folder) => self.cache.publish(key, job, folder, version, stats),
            None => Err(io::ErrorKind::NotFound.into()),
        };
        let path =
            published.map_err(|e| failure(Class::Fetch, format!("cannot keep what was fetched: {e}")))?;
        tracing::info!(%key, version, bytes = stats.bytes, files = stats.files, took = ?begin.elapsed(), "fetched");
        Ok(path)
    }

    /// Scans the cache once, so that the trees in it are known.
    async fn scanned(&self) -> Result<(), FetchFailure> {
        let scan = || async {
            let cache = Arc::clone(&self.cache);
            blocking(move || {
                cache.scan().map_err(|e| failure(Class::Fetch, format!("cannot use the cache: {e}")))
            })
            .await
        };
        self.scanned.get_or_try_init(scan).await.copied()
    }
}

/// True if the `failure` of another job's transfer applies to every job that waited for it, so that none needs to try
/// again. This holds for every class but `fetch`, such as for a tree that is too large, and for the same failure twice
/// in a row (`before`). Other failures can come from the credentials or the network settings of that one job.
fn is_everyones(failure: &FetchFailure, before: Option<&FetchFailure>) -> bool {
    failure.class != Class::Fetch || before == Some(failure)
}

/// Pinned references that a fetch of this daemon has read, each with its tree. A fetch of the same reference with the
/// same credentials and network need not ask the remote again (language.md §7.7). Holds only digests, in memory, keyed
/// with a secret of this daemon.
struct Proven {
    key: [u8; 32],
    known: Mutex<IndexMap<[u8; 32], (CacheKey, String)>>,
}

impl Proven {
    fn recall(&self, wanted: &Wanted) -> Option<(CacheKey, String)> {
        self.known.lock().get(&wanted.proof(&self.key)?).cloned()
    }

    fn note(&self, wanted: &Wanted, key: CacheKey, version: &str) {
        if !wanted.is_pinned(version) {
            return;
        }
        let Some(proof) = wanted.proof(&self.key) else { return };
        let mut known = self.known.lock();
        if known.len() >= MAX_PROVEN {
            known.shift_remove_index(0);
        }
        known.insert(proof, (key, version.to_owned()));
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, FetchFailure> + Send + 'static,
) -> Result<T, FetchFailure> {
    let done = threads::run(Work::Functions, work).await;
    done.unwrap_or_else(|e| Err(failure(Class::Fetch, format!("the look-up broke off: {e}"))))
}

const fn failure(class: Class, message: String) -> FetchFailure {
    FetchFailure { class, message }
}
