//! The supervisor's access to the keeper: finds the living one, starts one when the first job comes, tells who asks.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::Addr;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::deliver;
use super::job::{KeeperSaid, Said};
use super::registry::Registry;
use super::supervisor::{KeeperGone, Supervisor};
use crate::config::{Config, Leftover};
use crate::keeper::launch;
use crate::keeper::link::{KeeperLink, LinkError};
use crate::keeper::protocol::{FromKeeper, KeeperSettings, PROTOCOL_VERSION, Remembered, Reply, Request};
use crate::model::{JobKey, Reason, Refusal};
use crate::process::host::SoftLimits;
use crate::store::StateDir;

/// Most ids remembered after Finish (service.md §3.1).
const MAX_REMEMBERED: u32 = 10_000;

/// A keeper that has its lock but does not answer is starting or dying: both are over by then.
const FIND_TIME: Duration = Duration::from_secs(10);

/// Between two attempts to reach it.
const FIND_PAUSE: Duration = Duration::from_millis(5);

/// A living keeper.
#[derive(Clone)]
pub(super) struct Keeper {
    pub(super) link: KeeperLink,
    pub(super) digest_key: [u8; 16],
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
    /// It was started by another version whose protocol this one does not speak.
    #[error(
        "the keeper of this state folder speaks protocol {theirs}, this program {PROTOCOL_VERSION}: let the version \
         that started it end its jobs first"
    )]
    OtherVersion {
        /// The keeper's version.
        theirs: u32,
    },
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
            Self::OtherVersion { .. } | Self::Random(_) => false,
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
    limits: SoftLimits,
    early: Early,
    /// Key of the digests of requests: drawn once, or the one of the keeper that was found.
    digest_key: Rc<Cell<[u8; 16]>>,
}

/// Events that came before the jobs they are about were registered; `None`: they are handed on at once.
type Early = Rc<RefCell<Option<Vec<FromKeeper>>>>;

impl KeeperPort {
    pub(super) fn new(
        state: StateDir,
        config: Arc<Config>,
        registry: Arc<Registry>,
        private: bool,
        limits: SoftLimits,
    ) -> Result<Self, KeeperProblem> {
        let mut digest_key = [0; 16];
        getrandom::fill(&mut digest_key).map_err(KeeperProblem::Random)?;
        let (keeper, early, digest_key) = (Rc::default(), Early::default(), Rc::new(Cell::new(digest_key)));
        Ok(Self { keeper, state, config, registry, private, limits, early, digest_key })
    }

    /// The keeper; started if there is none.
    pub(super) async fn get(&self, supervisor: &Addr<Supervisor>) -> Result<Keeper, KeeperProblem> {
        let mut keeper = self.keeper.lock().await;
        if let Some(keeper) = &*keeper {
            return Ok(keeper.clone());
        }
        let (stream, child) = launch::start(self.state.path(), self.config.cgroup.word(), self.limits)?;
        launch::reap(child);
        let (new, _) = self.greet(stream, supervisor).await?;
        for entry in self.registry.remembered.lock().all() {
            new.link.tell(Request::Remember(entry));
        }
        *keeper = Some(new.clone());
        Ok(new)
    }

    /// The keeper that an earlier daemon left, if it lives. Its events are held back until [`Self::release`].
    pub(super) async fn find(
        &self,
        supervisor: &Addr<Supervisor>,
    ) -> Result<Option<(Keeper, Holdings)>, KeeperProblem> {
        let until = Instant::now() + FIND_TIME;
        while launch::is_alive(self.state.dir())? {
            *self.early.borrow_mut() = Some(Vec::new());
            let greeted = match launch::connect(self.state.dir()) {
                Ok(stream) => self.greet(stream, supervisor).await,
                Err(error) => Err(error.into()),
            };
            match greeted {
                Ok((found, holdings)) => {
                    *self.keeper.lock().await = Some(found.clone());
                    return Ok(Some((found, holdings)));
                }
                Err(problem) if problem.is_passing() && Instant::now() < until => {
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

    /// The living keeper, if there is one; starts none.
    pub(super) async fn living(&self) -> Option<Keeper> {
        self.keeper.lock().await.clone()
    }

    /// A keeper is gone; forgets it, unless another one has its place already.
    pub(super) async fn forget(&self) {
        self.keeper.lock().await.take_if(|keeper| keeper.link.is_over());
    }

    async fn greet(
        &self,
        stream: std::os::unix::net::UnixStream,
        supervisor: &Addr<Supervisor>,
    ) -> Result<(Keeper, Holdings), KeeperProblem> {
        stream.set_nonblocking(true)?;
        let (registry, early) = (Arc::clone(&self.registry), Rc::clone(&self.early));
        let supervisor = supervisor.clone();
        let link = KeeperLink::new(
            stream,
            move |event| match &mut *early.borrow_mut() {
                Some(early) => early.push(event),
                None => dispatch(&registry, event),
            },
            move || deliver(&supervisor, KeeperGone),
        )?;
        let hello = Request::Hello {
            version: PROTOCOL_VERSION,
            settings: keeper_settings(&self.config, self.private),
            digest_key: self.digest_key.get(),
        };
        match link.ask(hello).await? {
            Reply::Hello { version: PROTOCOL_VERSION, jobs, remembered, digest_key, .. } => {
                self.digest_key.set(digest_key);
                Ok((Keeper { link, digest_key }, Holdings { jobs, remembered }))
            }
            Reply::Hello { version: theirs, .. } => Err(KeeperProblem::OtherVersion { theirs }),
            _ => Err(LinkError::Protocol.into()),
        }
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
    if let Some((_, Some(job))) = registry.by_key(key) {
        deliver(&job, KeeperSaid(said));
    }
}
