//! The supervisor's access to the keeper: finds it, starts it for the first job, and dispatches its events.
//!
//! The state of the connection is one value, [`Connection`], which decides. [`KeeperPort`] performs the decisions. Three
//! things are no part of that state, because they outlive each keeper: the settings, the key of the request digests, and
//! what the operator was told.

mod connection;
mod silence;
mod storage;

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::Recipient;
use tokio::time::Instant;

use super::deliver;
use super::host::{Host, Started};
use super::messages::{KeeperEvent, KeeperEventArrived, KeeperGone};
use super::registry::Registry;
use super::remembered::MAX_REMEMBERED;
use crate::config::{CgroupUse, Config, Leftover};
use crate::error::Chain;
use crate::keeper::link::{KeeperLink, KeeperWire, LinkError};
use crate::keeper::protocol::{FromKeeper, KeeperSettings, PROTOCOL_VERSION, Remembered, Reply, Request};
use crate::log::pipeline::GIVE_UP_AFTER;
use crate::model::{JobKey, Reason, Refusal, Unenforceable};
use crate::process::cgroup::{CgroupError, CgroupMode};
use crate::store::StateDir;
use connection::{Connection, Decision, KeeperHandle, SharedConnection, Turn, Wish};

/// Time limit for reaching a keeper that holds its lock but does not answer, because it is starting or dying.
/// [`find_time`] adds the time that its jobs need to end.
const FIND_TIME: Duration = Duration::from_secs(10);

/// Delay after which the operator is told that the daemon waits for a keeper.
const FIND_QUIETLY: Duration = Duration::from_secs(1);

/// Pause between two attempts to reach the keeper.
const FIND_PAUSE: Duration = Duration::from_millis(5);

/// A living keeper.
#[derive(Clone)]
pub(super) struct Keeper {
    pub(super) link: KeeperLink,
    pub(super) digest_key: [u8; 16],
    /// Limits that it cannot enforce.
    pub(super) unenforceable: Arc<[Unenforceable]>,
}

impl KeeperHandle for Keeper {
    fn is_over(&self) -> bool {
        self.link.is_over()
    }
}

/// Reason why there is no keeper.
#[derive(Debug, thiserror::Error)]
pub enum KeeperProblem {
    /// The keeper could not be started or reached.
    #[error("cannot start or reach the keeper")]
    Io(#[from] std::io::Error),
    /// A request over the connection failed.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The keeper does not work and does not end.
    #[error(
        "the keeper of this state folder{} does not answer and cannot be ended: end the process that holds the lock on its \
         keeper.lock", pid.map_or_else(String::new, |pid| format!(" (process {pid})"))
    )]
    Lasting {
        /// Its pid, if it is known.
        pid: Option<u32>,
    },
    /// Another version started the keeper, with a protocol that this version does not speak.
    #[error(
        "the keeper of this state folder speaks protocol {theirs}, this program {PROTOCOL_VERSION}: let the version \
         that started it end its jobs first"
    )]
    OtherVersion {
        /// The keeper's version.
        theirs: u32,
    },
    /// Control groups are required but not available.
    #[error("setting cgroup = on cannot be met")]
    Cgroup(#[from] CgroupError),
    /// The system provides no random numbers.
    #[error("the system gives no random numbers: {0}")]
    Random(getrandom::Error),
}

impl KeeperProblem {
    /// True for errors that a keeper causes while it starts or dies.
    fn is_passing(&self) -> bool {
        use std::io::ErrorKind;
        match self {
            Self::Io(error) => matches!(
                error.kind(),
                ErrorKind::ConnectionRefused
                    | ErrorKind::NotFound
                    | ErrorKind::ConnectionReset
                    | ErrorKind::BrokenPipe
            ),
            Self::Link(error) => matches!(error, LinkError::Gone),
            Self::Lasting { .. } | Self::OtherVersion { .. } | Self::Cgroup(_) | Self::Random(_) => false,
        }
    }
}

impl From<KeeperProblem> for Refusal {
    fn from(problem: KeeperProblem) -> Self {
        let text = format!("the process that runs steps is not available: {}", Chain(&problem));
        Self::for_now(Reason::KeeperUnavailable, text, Duration::from_secs(1))
    }
}

/// Jobs and finished ids of a keeper that already ran.
pub(super) struct Holdings {
    pub(super) jobs: Vec<JobKey>,
    pub(super) remembered: Vec<Remembered>,
}

/// The supervisor's access to the keeper; see the module. Clones share it; it stays on the actors' thread.
#[derive(Clone)]
pub(super) struct KeeperPort {
    connection: Rc<SharedConnection<Keeper>>,
    state: StateDir,
    config: Rc<RefCell<Arc<Config>>>,
    registry: Arc<Registry>,
    private: bool,
    host: Arc<dyn Host>,
    /// Key of the request digests: random, or the key of the keeper that was found.
    digest_key: Rc<Cell<[u8; 16]>>,
    told: Rc<Cell<Told>>,
}

/// Reports to the operator that are not to be repeated.
#[derive(Clone, Copy, Default)]
struct Told {
    /// True if control groups hold the jobs' processes.
    groups: Option<bool>,
    /// Time of the last report of a keeper that does not answer.
    silence: Option<Instant>,
}

impl KeeperPort {
    pub(super) fn new(
        state: StateDir,
        config: Arc<Config>,
        registry: Arc<Registry>,
        private: bool,
        host: Arc<dyn Host>,
    ) -> Result<Self, KeeperProblem> {
        let mut digest_key = [0; 16];
        getrandom::fill(&mut digest_key).map_err(KeeperProblem::Random)?;
        Ok(Self {
            connection: Rc::new(SharedConnection::new()),
            state,
            config: Rc::new(RefCell::new(config)),
            registry,
            private,
            host,
            digest_key: Rc::new(Cell::new(digest_key)),
            told: Rc::default(),
        })
    }

    fn config(&self) -> Arc<Config> {
        Arc::clone(&self.config.borrow())
    }

    /// Sends changed settings to the living keeper, if any. Later keepers get them too.
    pub(super) fn configure(&self, config: Arc<Config>) {
        *self.config.borrow_mut() = config;
        let port = self.clone();
        actix::spawn(async move {
            // A keeper that is being started may have got the old settings.
            if let Some(keeper) = port.living().await {
                keeper.link.tell_short(port.hello_request());
            }
        });
    }

    /// Reports how the processes of jobs will be held together, as far as that is known without a keeper.
    pub(super) fn foresee_groups(&self) -> Result<(), KeeperProblem> {
        let parent = match self.config().cgroup {
            CgroupUse::Off => None,
            CgroupUse::Auto => self.host.control_group().ok(),
            CgroupUse::On => Some(self.host.control_group()?),
        };
        self.tell_groups(parent.as_deref());
        Ok(())
    }

    /// Tells the operator how the processes of jobs are held together; repeats nothing (faults.md row 2).
    fn tell_groups(&self, group: Option<&Path>) {
        let told = self.told.get();
        if told.groups == Some(group.is_some()) {
            return;
        }
        self.told.set(Told { groups: Some(group.is_some()), ..told });
        if let Some(group) = group {
            tracing::info!(group = %group.display(), "a control group holds the processes of each job");
        } else {
            tracing::info!("no control groups: a reaper holds the processes of each job together");
        }
    }

    /// Returns the keeper; starts one if there is none.
    pub(super) async fn get(&self, supervisor: &Recipient<KeeperGone>) -> Result<Keeper, KeeperProblem> {
        loop {
            match self.connection.decided(Wish::Get).await {
                Decision::Take(keeper) => return Ok(keeper),
                Decision::Start => return self.start(supervisor).await,
                // It is over; the next decision starts another.
                Decision::End => drop(self.end_known().await?),
                Decision::Nothing => return Err(LinkError::Gone.into()),
            }
        }
    }

    /// Starts a keeper for [`Decision::Start`], in the place of one that a dead daemon left without jobs.
    async fn start(&self, supervisor: &Recipient<KeeperGone>) -> Result<Keeper, KeeperProblem> {
        let _turn = Turn(&self.connection);
        let new = match self.attempt(supervisor).await {
            Err(problem) if problem.is_passing() && self.host.has_keeper(&self.state)? => {
                self.end_ungreeted().await?;
                self.attempt(supervisor).await?
            }
            started => started?,
        };
        for entry in self.registry.remembered.lock().all(self.config().remember_finished) {
            new.link.tell_short(Request::Remember(entry));
        }
        Ok(new)
    }

    /// Starts a keeper and greets it.
    async fn attempt(&self, supervisor: &Recipient<KeeperGone>) -> Result<Keeper, KeeperProblem> {
        let Started { wire, process } =
            self.host.start_keeper(&self.state, cgroup_mode(self.config().cgroup))?;
        self.connection.change(|connection| connection.attempt(process, None));
        let greeted = self.greet(wire, supervisor).await;
        if let Err(KeeperProblem::Link(LinkError::Silent)) = greeted {
            self.end_starting().await?;
        }
        Ok(greeted?.0)
    }

    /// Connects to the keeper that an earlier daemon left, if it lives. Its events are held back until
    /// [`Self::release`].
    pub(super) async fn find(
        &self,
        supervisor: &Recipient<KeeperGone>,
    ) -> Result<Option<(Keeper, Holdings)>, KeeperProblem> {
        let Decision::Start = self.connection.decided(Wish::Find).await else { return Ok(None) };
        let _turn = Turn(&self.connection);
        let begun = Instant::now();
        let until = begun + find_time(&self.config());
        let mut was_told = false;
        while self.host.has_keeper(&self.state)? {
            self.connection.change(|connection| connection.attempt(None, Some(Vec::new())));
            let greeted = match self.host.connect(&self.state) {
                Ok(wire) => self.greet(wire, supervisor).await,
                Err(error) => Err(error.into()),
            };
            match greeted {
                Ok(found) => return Ok(Some(found)),
                // The next iteration then finds no keeper, and the jobs are treated as those of a dead one.
                Err(KeeperProblem::Link(LinkError::Silent)) => silence::tell_end(self.end_living().await?),
                Err(problem) if problem.is_passing() && Instant::now() < until => {
                    if !was_told && begun.elapsed() >= FIND_QUIETLY {
                        tracing::info!(
                            "the keeper of this state folder is ending its jobs; it is waited for"
                        );
                        was_told = true;
                    }
                    tokio::time::sleep(FIND_PAUSE).await;
                }
                Err(problem) => return Err(problem),
            }
        }
        Ok(None)
    }

    /// Dispatches the events held back, in order. Called once the jobs of the found keeper are registered.
    pub(super) fn release(&self) {
        for event in self.connection.with(Connection::release) {
            dispatch(&self.registry, event);
        }
    }

    pub(super) fn digest_key(&self) -> [u8; 16] {
        self.digest_key.get()
    }

    /// Returns the living keeper, unless there is none or it is just being started.
    pub(super) fn now(&self) -> Option<Keeper> {
        self.connection.with(|connection| connection.keeper().cloned())
    }

    /// Returns the keeper, if any; starts none. It may have died a moment ago.
    pub(super) async fn living(&self) -> Option<Keeper> {
        if let Decision::Take(keeper) = self.connection.decided(Wish::Living).await {
            Some(keeper)
        } else {
            None
        }
    }

    async fn greet(
        &self,
        wire: KeeperWire,
        supervisor: &Recipient<KeeperGone>,
    ) -> Result<(Keeper, Holdings), KeeperProblem> {
        let (port, ended, supervisor) = (self.clone(), self.clone(), supervisor.clone());
        let link = KeeperLink::new(
            wire,
            move |event| {
                if let Some(event) = port.connection.with(|connection| connection.arrived(event)) {
                    dispatch(&port.registry, event);
                }
            },
            move || {
                // The link knows of its end, so the state depends on it.
                ended.connection.wake();
                deliver(&supervisor, KeeperGone);
            },
        )?;
        match self.hello(&link).await? {
            Reply::Hello {
                version: PROTOCOL_VERSION,
                cgroup,
                jobs,
                remembered,
                digest_key,
                unenforceable,
                pid,
            } => {
                self.tell_groups(cgroup.as_deref());
                self.digest_key.set(digest_key);
                actix::spawn(self.clone().watch(link.downgrade()));
                let keeper = Keeper { link, digest_key, unenforceable: unenforceable.into() };
                let (known, process) = (keeper.clone(), self.host.process(pid));
                self.connection.change(|connection| connection.connected(known, process));
                Ok((keeper, Holdings { jobs, remembered }))
            }
            Reply::Hello { version: theirs, .. } => Err(KeeperProblem::OtherVersion { theirs }),
            _ => Err(LinkError::Protocol.into()),
        }
    }

    fn hello_request(&self) -> Request {
        Request::Hello {
            version: PROTOCOL_VERSION,
            settings: keeper_settings(&self.config(), self.private),
            digest_key: self.digest_key.get(),
        }
    }
}

/// Returns the time limit for reaching a keeper that holds its lock. A keeper that ends its jobs, because no daemon
/// came back in time, accepts no connection meanwhile. That takes the grace, the kill, and the retries of a full disk
/// (service.md §6.4).
fn find_time(config: &Config) -> Duration {
    FIND_TIME + config.cancel_grace + config.kill_wait + GIVE_UP_AFTER
}

pub(super) const fn cgroup_mode(setting: CgroupUse) -> CgroupMode {
    match setting {
        CgroupUse::Auto => CgroupMode::Auto,
        CgroupUse::On => CgroupMode::On,
        CgroupUse::Off => CgroupMode::Off,
    }
}

fn keeper_settings(config: &Config, private: bool) -> KeeperSettings {
    KeeperSettings {
        keeper_wait: config.keeper_wait,
        kill_wait: config.kill_wait,
        cancel_grace: config.cancel_grace,
        leftover_keep: matches!(config.leftover, Leftover::Keep),
        max_remembered: MAX_REMEMBERED,
        remember_for: config.remember_finished,
        remove_state: private,
    }
}

fn dispatch(registry: &Registry, event: FromKeeper) {
    match event {
        FromKeeper::Reply { .. } => {}
        FromKeeper::Notice(notice) => tracing::warn!("keeper: {notice}"),
        FromKeeper::Lengths(lengths) => {
            for (key, len) in lengths {
                if let Some((view, _)) = registry.by_key(key) {
                    view.log.announce(len);
                }
            }
        }
        FromKeeper::StepEnded { key, ended } => {
            if let Some((view, _)) = registry.by_key(key) {
                view.trace.expect_end(ended.process, ended.ran.log_len);
            }
            tell(registry, key, KeeperEvent::StepEnded(ended));
        }
        FromKeeper::Cleared { key, call } => tell(registry, key, KeeperEvent::Cleared(call)),
        FromKeeper::Closed { key, closed } => tell(registry, key, KeeperEvent::Closed(closed)),
        FromKeeper::Storage { key, storage } => {
            if let Some((view, _)) = registry.by_key(key) {
                storage::note(registry, &view, storage);
            }
        }
        FromKeeper::Unfinished { key, slot, channel, log_len, entry } => {
            if let Some((view, _)) = registry.by_key(key) {
                view.log.report_unfinished((slot, channel), log_len, entry.0);
            }
        }
    }
}

fn tell(registry: &Registry, key: JobKey, event: KeeperEvent) {
    if let Some((job, event)) = registry.hearer(key, event) {
        deliver(&job, KeeperEventArrived(event));
    }
}

#[cfg(test)]
mod tests;
