//! The supervisor's access to the keeper: finds the living one, starts one when the first job comes, tells who asks.

mod silence;

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::Addr;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::deliver;
use super::host::{Host, Started};
use super::job::{KeeperSaid, Said};
use super::registry::Registry;
use super::remembered::MAX_REMEMBERED;
use super::supervisor::{KeeperGone, Supervisor};
use crate::config::{CgroupUse, Config, Leftover};
use crate::keeper::link::{KeeperLink, LinkError, Wire};
use crate::keeper::protocol::{FromKeeper, KeeperSettings, PROTOCOL_VERSION, Remembered, Reply, Request};
use crate::log::pipeline::GIVE_UP_AFTER;
use crate::model::{JobKey, Reason, Refusal, Unenforceable};
use crate::process::cgroup::{CgroupError, CgroupMode};
use crate::process::sweep::Process;
use crate::store::StateDir;
use silence::Ending;

/// A keeper that has its lock but does not answer is starting or dying: both take less than this, and what the jobs take
/// that it is ending ([`find_time`]).
const FIND_TIME: Duration = Duration::from_secs(10);

/// After this time the operator hears what is waited for.
const FIND_QUIETLY: Duration = Duration::from_secs(1);

/// Between two attempts to reach it.
const FIND_PAUSE: Duration = Duration::from_millis(5);

/// A living keeper.
#[derive(Clone)]
pub(super) struct Keeper {
    pub(super) link: KeeperLink,
    pub(super) digest_key: [u8; 16],
    /// Limits that it cannot hold jobs to.
    pub(super) unenforceable: Arc<[Unenforceable]>,
}

/// Why there is no keeper.
#[derive(Debug, thiserror::Error)]
pub enum KeeperProblem {
    /// It could not be started or reached.
    #[error("cannot start or reach the keeper")]
    Io(#[from] std::io::Error),
    /// It broke the connection.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// It does not do its work, and does not end.
    #[error(
        "the keeper of this state folder{} does not answer and cannot be ended: end the process that holds the lock on its \
         keeper.lock", pid.map_or_else(String::new, |pid| format!(" (process {pid})"))
    )]
    Lasting {
        /// Its pid, if it is known.
        pid: Option<u32>,
    },
    /// It was started by another version whose protocol this one does not speak.
    #[error(
        "the keeper of this state folder speaks protocol {theirs}, this program {PROTOCOL_VERSION}: let the version \
         that started it end its jobs first"
    )]
    OtherVersion {
        /// The keeper's version.
        theirs: u32,
    },
    /// Control groups are demanded, and there are none.
    #[error("setting cgroup = on cannot be met")]
    Cgroup(#[from] CgroupError),
    /// No random numbers.
    #[error("the system gives no random numbers: {0}")]
    Random(getrandom::Error),
}

impl KeeperProblem {
    /// What a keeper that is starting or dying answers.
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
        let text = format!("the process that runs steps is not available: {problem}");
        Self::for_now(Reason::KeeperUnavailable, text, Duration::from_secs(1))
    }
}

/// What a keeper that was already there holds.
pub(super) struct Holdings {
    pub(super) jobs: Vec<JobKey>,
    pub(super) remembered: Vec<Remembered>,
}

/// See the module's text. Clones share it; it stays on the actors' thread.
#[derive(Clone)]
pub(super) struct KeeperPort {
    keeper: Rc<Mutex<Option<Keeper>>>,
    state: StateDir,
    config: Arc<Config>,
    registry: Arc<Registry>,
    private: bool,
    host: Arc<dyn Host>,
    early: Early,
    /// Key of the digests of requests: drawn once, or the one of the keeper that was found.
    digest_key: Rc<Cell<[u8; 16]>>,
    /// What the operator was told last: control groups hold the processes of jobs.
    told_groups: Rc<Cell<Option<bool>>>,
    ending: Ending,
    /// The process of a keeper that was started and has not answered yet.
    starting: Rc<Cell<Option<Process>>>,
    /// The operator was told that the keeper of this connection does not answer.
    told_slow: Rc<Cell<bool>>,
}

/// Events that came before the jobs they are about were registered; `None`: they are handed on at once.
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
            told_slow: Rc::default(),
        })
    }

    /// No keeper lives: says what will hold the processes of jobs together, as far as it can be foreseen.
    pub(super) fn foresee_groups(&self) -> Result<(), KeeperProblem> {
        let parent = match self.config.cgroup {
            CgroupUse::Off => None,
            CgroupUse::Auto => self.host.control_group().ok(),
            CgroupUse::On => Some(self.host.control_group()?),
        };
        self.tell_groups(parent.as_deref());
        Ok(())
    }

    /// Tells the operator what holds the processes of jobs together, once (faults.md row 2).
    fn tell_groups(&self, group: Option<&Path>) {
        if self.told_groups.replace(Some(group.is_some())) == Some(group.is_some()) {
            return;
        }
        if let Some(group) = group {
            tracing::info!(group = %group.display(), "a control group holds the processes of each job");
        } else {
            tracing::info!("no control groups: processes of jobs are found by a sweep of /proc");
        }
    }

    /// The keeper; started if there is none.
    pub(super) async fn get(&self, supervisor: &Addr<Supervisor>) -> Result<Keeper, KeeperProblem> {
        let mut keeper = self.keeper.lock().await;
        self.end_cut_off(&mut keeper).await?;
        if let Some(keeper) = &*keeper {
            return Ok(keeper.clone());
        }
        // How long another one took to end says nothing of the end of this one.
        self.ending.set(None);
        let Started { wire, process } =
            self.host.start_keeper(&self.state, cgroup_mode(self.config.cgroup))?;
        self.starting.set(process);
        let greeted = self.greet(wire, supervisor).await;
        if let Err(KeeperProblem::Link(LinkError::Silent)) = greeted {
            self.end_starting().await?;
        }
        let (new, _) = greeted?;
        self.starting.set(None);
        for entry in self.registry.remembered.lock().all() {
            new.link.tell_short(Request::Remember(entry));
        }
        *keeper = Some(new.clone());
        Ok(new)
    }

    /// The keeper that an earlier daemon left, if it lives. Its events are held back until [`Self::release`].
    pub(super) async fn find(
        &self,
        supervisor: &Addr<Supervisor>,
    ) -> Result<Option<(Keeper, Holdings)>, KeeperProblem> {
        let begun = Instant::now();
        let until = begun + find_time(&self.config);
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
                // Then it is not found again, and its jobs are those of a dead one.
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

    /// The jobs of the keeper that was found are registered: hands on what it said meanwhile, in order.
    pub(super) fn release(&self) {
        let early = self.early.borrow_mut().take();
        for event in early.into_iter().flatten() {
            dispatch(&self.registry, event);
        }
    }

    /// Key of the digests of requests.
    pub(super) fn digest_key(&self) -> [u8; 16] {
        self.digest_key.get()
    }

    /// The living keeper, if there is one and it is not being started right now.
    pub(super) fn now(&self) -> Option<Keeper> {
        self.keeper.try_lock().ok()?.clone()
    }

    /// The keeper, if there is one; starts none. It may have died a moment ago.
    pub(super) async fn living(&self) -> Option<Keeper> {
        self.keeper.lock().await.clone()
    }

    async fn greet(
        &self,
        wire: Wire,
        supervisor: &Addr<Supervisor>,
    ) -> Result<(Keeper, Holdings), KeeperProblem> {
        let (registry, early) = (Arc::clone(&self.registry), Rc::clone(&self.early));
        let supervisor = supervisor.clone();
        self.told_slow.set(false);
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
                ..
            } => {
                self.tell_groups(cgroup.as_deref());
                self.digest_key.set(digest_key);
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
            settings: keeper_settings(&self.config, self.private),
            digest_key: self.digest_key.get(),
        }
    }
}

/// How long to look for a keeper that has its lock. One for which no daemon came back in time lets none in any more: its
/// jobs have their grace, what ignores it is waited for, and a full disk gets its time too (service.md §6.4).
fn find_time(config: &Config) -> Duration {
    FIND_TIME + config.cancel_grace + config.kill_wait + GIVE_UP_AFTER
}

/// The setting as the keeper takes it.
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

/// Hands an event of the keeper to the job it is about.
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
        FromKeeper::StepOver { key, over } => tell(registry, key, Said::StepOver(over)),
        FromKeeper::Closed { key, closed } => tell(registry, key, Said::Closed(closed)),
    }
}

fn tell(registry: &Registry, key: JobKey, said: Said) {
    if let Some((job, said)) = registry.hearer(key, said) {
        deliver(&job, KeeperSaid(said));
    }
}

#[cfg(test)]
mod tests;
