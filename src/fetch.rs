//! Functions from Git repositories and OCI registries (language.md §7.7).
//!
//! A transfer runs in a short-lived process of its own, `step-runner fetch` ([`worker`]): what a server sends is parsed
//! where it can harm nobody, under limits, and a cancelled step ends it by a signal. The daemon keeps the trees: one
//! immutable folder for each key, filled beside it and renamed into place (`cache`).
//!
//! - `wanted` is what a step asks for, [`order`] what daemon and worker say to each other, `session` one such talk;
//! - `flight` lets one job transfer what several want, `places` bounds the workers, `room` what they may fill;
//! - `removal` deletes;
//! - `local` reads definition files, fetched or not; `at_hand` those for which nobody has to wait.

mod at_hand;
mod cache;
mod flight;
mod local;
pub mod order;
mod places;
mod removal;
mod room;
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

use crate::job::event::{FetchFailure, Fetched};
use crate::lang::ast::Reference;
use crate::lang::diagnostic::Class;
use crate::model::JobKey;
use crate::process::host;
use crate::process::worker::Program;
use crate::web;
use cache::{Cache, Key};
use flight::{Flights, Turn};
use places::Places;
use room::Room;
use session::Session;
use wanted::{Environment, Wanted};

/// Most pinned references that are known to be readable; the oldest is forgotten and asked for again.
const MAX_PROVEN: usize = 10_000;

/// Why the daemon cannot fetch.
#[derive(Debug, thiserror::Error)]
pub enum FetcherError {
    /// The state folder is gone.
    #[error("cannot find the state folder")]
    State(#[from] io::Error),
    /// No random numbers.
    #[error("the system gives no random numbers: {0}")]
    Random(getrandom::Error),
}

/// What fetched trees may take of the disk.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of all trees together; those that jobs use stay (`cache_limit`).
    pub cache: u64,
    /// Bytes that stay free for jobs and logs (`state_limit`).
    pub kept_free: u64,
}

/// What a daemon fetches functions with. One for all jobs.
pub struct Fetcher {
    cache: Arc<Cache>,
    scanned: OnceCell<()>,
    flights: Arc<Flights>,
    places: Places,
    room: Arc<Room>,
    program: Program,
    proven: Proven,
    /// What the daemon itself knows of the network.
    network: BTreeMap<String, String>,
}

/// A tree of a job.
struct Tree {
    path: PathBuf,
    version: String,
}

impl Fetcher {
    /// For the daemon of the state folder `state`, whose environment is `environment`. Touches nothing yet.
    pub fn new(
        state: &Path,
        limits: Limits,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, FetcherError> {
        Self::with_program(Program::this(), state, limits, environment)
    }

    fn with_program(
        program: Program,
        state: &Path,
        limits: Limits,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, FetcherError> {
        let (mut run, mut key) = ([0; 8], [0; 32]);
        getrandom::fill(&mut run).and_then(|()| getrandom::fill(&mut key)).map_err(FetcherError::Random)?;
        let network = web::VARIABLES.iter().filter_map(|name| Some(((*name).to_owned(), environment(name)?)));
        let boot = host::this_process().boot_id;
        let cache = Arc::new(Cache::new(state, limits.cache, u64::from_le_bytes(run), boot)?);
        Ok(Self {
            room: Arc::new(Room::new(Arc::clone(&cache), state.to_owned(), limits.kept_free)),
            cache,
            scanned: OnceCell::new(),
            flights: Arc::default(),
            places: Places::default(),
            program,
            proven: Proven { key, known: Mutex::default() },
            network: network.collect(),
        })
    }

    /// Finds the definition file that `reference`, evaluated, names for a step of `job`; what comes over the network is
    /// fetched with what `environment` holds. `inside`: root of the tree that the caller was fetched into.
    ///
    /// To be polled on the thread of the daemon's actors (see `process::worker`). Dropping it ends the transfer at once.
    pub async fn find(
        &self,
        job: JobKey,
        reference: Reference,
        inside: Option<String>,
        environment: Vec<(Vec<u8>, Vec<u8>)>,
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
                self.find_remote(job, blocking(read).await?).await
            }
            Reference::Builtin { name, .. } => {
                Err(failure(Class::NotFound, format!("no builtin is called {name:?}")))
            }
            Reference::Dynamic(_) => Err(failure(Class::Fetch, "the reference was not evaluated".into())),
        }
    }

    /// A job that an earlier daemon began uses the tree at `path`.
    pub fn hold(&self, job: JobKey, path: &str) {
        self.cache.hold(job, Path::new(path));
    }

    /// [`Self::hold`] was called for all such jobs: trees may be evicted from now on.
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

    /// The job is over and nothing of it lives.
    pub fn release(&self, job: JobKey) {
        self.cache.release(job);
        self.cache.evict();
    }

    async fn find_remote(&self, job: JobKey, wanted: Wanted) -> Result<Fetched, FetchFailure> {
        let Tree { path, version } = self.fetch(job, &wanted).await?;
        let found =
            blocking(move || local::find_in_tree(&path, &wanted.dir, &wanted.files, &wanted.origin)).await?;
        Ok(Fetched { version: Some(version), ..found })
    }

    async fn fetch(&self, job: JobKey, wanted: &Wanted) -> Result<Tree, FetchFailure> {
        self.scanned().await?;
        if let Some((key, version)) = self.proven.recall(wanted)
            && let Some(path) = self.cache.take(key, job)
        {
            return Ok(Tree { path, version });
        }
        // How the transfer ended that was waited for.
        let mut failed = None;
        loop {
            let mut session = self.start(wanted).await?;
            let order = wanted.order(session.folder().map(cache::Temporary::scratch).unwrap_or_default());
            let version = session.resolve(&order).await?;
            if !wanted.is_version(&version) {
                let message = format!("cannot fetch {}: the server names no usable version", wanted.origin);
                return Err(failure(Class::Fetch, message));
            }
            let key = wanted.key(&version);
            match self.flights.turn(key, || self.cache.take(key, job)) {
                Turn::There(path) => {
                    self.proven.note(wanted, key, &version);
                    return Ok(Tree { path, version });
                }
                Turn::Later(flight) => {
                    // Its place is for those who wait for another key.
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
                Turn::Ours(flight) => {
                    tracing::info!(from = wanted.origin, version, "fetching");
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

    /// A worker for `wanted`, as soon as there is a place for one.
    async fn start(&self, wanted: &Wanted) -> Result<Session, FetchFailure> {
        let broken =
            |error: &dyn std::fmt::Display| failure(Class::Fetch, format!("cannot fetch anything: {error}"));
        let place = self.places.take(wanted.host()).await.map_err(|e| broken(&e))?;
        let folder = self.cache.temporary().map_err(|e| broken(&e))?;
        let room = Arc::clone(&self.room);
        Session::start(&self.program, folder, place, room, wanted.origin.clone()).map_err(|e| broken(&e))
    }

    async fn transfer(
        &self,
        mut session: Session,
        key: Key,
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

    /// Makes sure that what is in the cache is known.
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

/// Whether who waited for another one's transfer need not try himself: the tree is too large for anybody, or two in a row
/// (`before`) failed in the same way. Else it may have been credentials or the network of that one.
fn is_everyones(failure: &FetchFailure, before: Option<&FetchFailure>) -> bool {
    failure.class != Class::Fetch || before == Some(failure)
}

/// Pinned references that were shown readable in this daemon's life, each with its tree. Who comes with the same
/// credentials over the same network need not ask again (language.md §7.7). Only digests are kept, in memory, made with
/// a key that dies with the daemon.
struct Proven {
    key: [u8; 32],
    known: Mutex<IndexMap<[u8; 32], (Key, String)>>,
}

impl Proven {
    fn recall(&self, wanted: &Wanted) -> Option<(Key, String)> {
        self.known.lock().get(&wanted.proof(&self.key)?).cloned()
    }

    fn note(&self, wanted: &Wanted, key: Key, version: &str) {
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
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|e| Err(failure(Class::Fetch, format!("the look-up broke off: {e}"))))
}

const fn failure(class: Class, message: String) -> FetchFailure {
    FetchFailure { class, message }
}
