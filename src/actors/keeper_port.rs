//! The supervisor's access to the keeper: finds it, starts it for the first job, and dispatches its events.

mod silence;
mod storage;

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::Recipient;
use tokio::sync::{Mutex, Notify};
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
use crate::process::sweep::Process;
use crate::store::StateDir;
use silence::Ending;

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
    keeper: Rc<Mutex<Option<Keeper>>>,
    state: StateDir,
    config: Rc<RefCell<Arc<Config>>>,
    registry: Arc<Registry>,
    private: bool,
    host: Arc<dyn Host>,
    early: Early,
    /// Key of the request digests: random, or the key of the keeper that was found.
    digest_key: Rc<Cell<[u8; 16]>>,
    /// Last report to the operator: true if control groups hold the jobs' processes.
    told_groups: Rc<Cell<Option<bool>>>,
    ending: Ending,
    /// Process of a keeper that was started but has not answered yet.
    starting: Rc<Cell<Option<Process>>>,
    /// Process of the keeper, as it has named it. What `keeper.json` says can be changed by a job.
    process: Rc<Cell<Option<Process>>>,
    /// True while the keeper of this connection does not answer.
    is_silent: Rc<Cell<bool>>,
    /// Time at which the operator was last told so.
    told_silence: Rc<Cell<Option<Instant>>>,
    /// Notified when `is_silent` has changed.
    silence_changed: Rc<Notify>,
}

/// Events held back until their jobs are registered. `None`: events are dispatched at once.
type Early = Rc<RefCell<Option<Vec<FromKeeper>>>>;

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
        let (keeper, early, digest_key) = (Rc::default(), Early::default(), Rc::new(Cell::new(digest_key)));
        let (told_groups, ending) = (Rc::default(), Ending::default());
        let config = Rc::new(RefCell::new(config));
        Ok(Self {
            keeper,
            state,
            config,
            registry,
            private,
            host,
            early,
            digest_key,
            told_groups,
            ending,
            starting: Rc::default(),
            process: Rc::default(),
            is_silent: Rc::default(),
            told_silence: Rc::default(),
            silence_changed: Rc::default(),
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
        if self.told_groups.replace(Some(group.is_some())) == Some(group.is_some()) {
            return;
        }
        if let Some(group) = group {
            tracing::info!(group = %group.display(), "a control group holds the processes of each job");
        } else {
            tracing::info!("no control groups: a reaper holds the processes of each job together");
        }
    }

    /// Returns the keeper; starts one if there is none.
    pub(super) async fn get(&self, supervisor: &Recipient<KeeperGone>) -> Result<Keeper, KeeperProblem> {
        let mut keeper = self.keeper.lock().await;
        self.end_cut_off(&mut keeper).await?;
        if let Some(keeper) = &*keeper {
            return Ok(keeper.clone());
        }
        // A new keeper gets its full time to die, however long the last one took.
        self.ending.set(None);
        let new = match self.start(supervisor).await {
            Err(problem) if problem.is_passing() && self.host.has_keeper(&self.state)? => {
                self.end_ungreeted().await?;
                self.start(supervisor).await?
            }
            started => started?,
        };
        for entry in self.registry.remembered.lock().all(self.config().remember_finished) {
            new.link.tell_short(Request::Remember(entry));
        }
        *keeper = Some(new.clone());
        Ok(new)
    }

    async fn start(&self, supervisor: &Recipient<KeeperGone>) -> Result<Keeper, KeeperProblem> {
        let Started { wire, process } =
            self.host.start_keeper(&self.state, cgroup_mode(self.config().cgroup))?;
        self.starting.set(process);
        let greeted = self.greet(wire, supervisor).await;
        if let Err(KeeperProblem::Link(LinkError::Silent)) = greeted {
            self.end_starting().await?;
        }
        let (new, _) = greeted?;
        self.starting.set(None);
        Ok(new)
    }

    /// Connects to the keeper that an earlier daemon left, if it lives. Its events are held back until
    /// [`Self::release`].
    pub(super) async fn find(
        &self,
        supervisor: &Recipient<KeeperGone>,
    ) -> Result<Option<(Keeper, Holdings)>, KeeperProblem> {
        let begun = Instant::now();
        let until = begun + find_time(&self.config());
        let mut was_told = false;
        while self.host.has_keeper(&self.state)? {
            *self.early.borrow_mut() = Some(Vec::new());
            let greeted = match self.host.connect(&self.state) {
                Ok(wire) => self.greet(wire, supervisor).await,
                Err(error) => Err(error.into()),
            };
            match greeted {
                Ok((found, holdings)) => {
                    *self.keeper.lock().await = Some(found.clone());
                    return Ok(Some((found, holdings)));
                }
                // The next iteration then finds no keeper, and the jobs are treated as those of a dead one.
                Err(KeeperProblem::Link(LinkError::Silent)) => self.end_silent().await?,
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
        let early = self.early.borrow_mut().take();
        for event in early.into_iter().flatten() {
            dispatch(&self.registry, event);
        }
    }

    pub(super) fn digest_key(&self) -> [u8; 16] {
        self.digest_key.get()
    }

    /// Returns the living keeper, unless there is none or it is just being started.
    pub(super) fn now(&self) -> Option<Keeper> {
        self.keeper.try_lock().ok()?.clone()
    }

    /// Returns the keeper, if any; starts none. It may have died a moment ago.
    pub(super) async fn living(&self) -> Option<Keeper> {
        self.keeper.lock().await.clone()
    }

    async fn greet(
        &self,
        wire: KeeperWire,
        supervisor: &Recipient<KeeperGone>,
    ) -> Result<(Keeper, Holdings), KeeperProblem> {
        let (registry, early) = (Arc::clone(&self.registry), Rc::clone(&self.early));
        let supervisor = supervisor.clone();
        self.is_silent.set(false);
        self.silence_changed.notify_waiters();
        let link = KeeperLink::new(
            wire,
            move |event| match &mut *early.borrow_mut() {
                Some(early) => early.push(event),
                None => dispatch(&registry, event),
            },
            move || deliver(&supervisor, KeeperGone),
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
                self.process.set(self.host.process(pid));
                self.tell_groups(cgroup.as_deref());
                self.digest_key.set(digest_key);
                actix::spawn(self.clone().watch(link.downgrade()));
                let keeper = Keeper { link, digest_key, unenforceable: unenforceable.into() };
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
        FromKeeper::StepEnded { key, over } => {
            if let Some((view, _)) = registry.by_key(key) {
                view.trace.expect_end(over.step, over.ran.log_len);
            }
            tell(registry, key, KeeperEvent::StepEnded(over));
        }
        FromKeeper::Cleared { key, step } => tell(registry, key, KeeperEvent::Cleared(step)),
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
