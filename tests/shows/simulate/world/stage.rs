//! The simulated host of the daemon: simulated keepers, and clocks that the run sets.

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::DAWN;
use crate::random::Random;
use crate::simulate::keeper::{self, Account, Keeper, Wrongs};
use step_runner::actors::host::{Host, Started};
use step_runner::clock::Clock;
use step_runner::keeper::link::KeeperWire;
use step_runner::process::cgroup::{CgroupError, CgroupMode};
use step_runner::process::remains::Remains;
use step_runner::process::sweep::Process;
use step_runner::store::StateDir;
use tokio::io::DuplexStream;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Buffer size of the connection between daemon and keeper.
const WIRE: usize = 1 << 16;

thread_local! {
    /// State of this thread's run: its keeper, and the data to start one.
    pub(super) static PLAYED: RefCell<Option<Played>> = const { RefCell::new(None) };
}

/// State behind [`Stage`], which cannot hold thread-local data itself.
pub(super) struct Played {
    pub(super) keeper: Option<keeper::Shared>,
    pub(super) state: PathBuf,
    pub(super) random: Random,
    pub(super) account: Rc<RefCell<Account>>,
    pub(super) wrongs: Wrongs,
    pub(super) started: u64,
    /// Passes connections to the keeper, which serves them among its own tasks. Tasks of the daemon would die with the
    /// daemon.
    pub(super) door: mpsc::UnboundedSender<(keeper::Shared, DuplexStream)>,
}

pub(super) struct Stage;

impl Host for Stage {
    fn has_keeper(&self, _: &StateDir) -> std::io::Result<bool> {
        Ok(living().is_some())
    }

    fn connect(&self, _: &StateDir) -> std::io::Result<KeeperWire> {
        let keeper = living().ok_or(std::io::ErrorKind::ConnectionRefused)?;
        let (ours, theirs) = tokio::io::duplex(WIRE);
        PLAYED.with_borrow(|played| drop(played.as_ref().unwrap().door.send((keeper, theirs))));
        Ok(KeeperWire::Memory(ours))
    }

    fn start_keeper(&self, state: &StateDir, _: CgroupMode) -> std::io::Result<Started> {
        PLAYED.with_borrow_mut(|played| {
            let played = played.as_mut().unwrap();
            if played.keeper.as_ref().is_some_and(|keeper| keeper.borrow().is_alive) {
                played.wrongs.borrow_mut().push("a second keeper is started beside a living one".into());
            }
            played.started += 1;
            let random = played.random.fork(played.started);
            let (account, wrongs) = (Rc::clone(&played.account), Rc::clone(&played.wrongs));
            played.keeper = Some(Keeper::start(&played.state, random, account, wrongs));
        });
        Ok(Started { wire: self.connect(state)?, process: None })
    }

    fn kill_keeper(&self, _: &StateDir, _: Option<Process>) -> Option<u32> {
        let keeper = living()?;
        keeper.borrow_mut().die();
        Some(1)
    }

    fn control_group(&self) -> Result<std::path::PathBuf, CgroupError> {
        Err(CgroupError::NotMounted)
    }

    fn kill(&self, _: &Remains, _: Duration) -> Vec<u32> {
        // The processes of a keeper died with it.
        Vec::new()
    }
}

pub(super) fn living() -> Option<keeper::Shared> {
    PLAYED.with_borrow(|played| {
        played.as_ref()?.keeper.as_ref().filter(|keeper| keeper.borrow().is_alive).cloned()
    })
}

/// Virtual clocks.
pub(super) struct Virtual {
    /// Time at which the run started.
    pub(super) dawn: Instant,
    /// Time at which the daemon started.
    pub(super) start: Instant,
    /// Seconds by which the wall clock has jumped.
    pub(super) jumped: Rc<Cell<i64>>,
    /// Number of reads of the wall clock. It makes each reading different.
    pub(super) asked: Rc<Cell<u64>>,
    pub(super) boot: Rc<Cell<u64>>,
}

impl Clock for Virtual {
    fn uptime(&self) -> Duration {
        let jumped = step_runner::failpoint::fail::eval("simulate::clock::uptime_jumps", |_| {
            self.jumped.get().unsigned_abs()
        });
        self.start.elapsed() + Duration::from_secs(jumped.unwrap_or(0))
    }

    fn boot_micros(&self) -> u64 {
        self.dawn.elapsed().as_micros() as u64 + self.boot.get()
    }

    fn now(&self) -> SystemTime {
        self.asked.set(self.asked.get() + 1);
        let seconds = (DAWN as i64 + self.jumped.get()) as u64;
        UNIX_EPOCH
            + Duration::from_secs(seconds)
            + self.dawn.elapsed()
            + Duration::from_micros(self.asked.get())
    }
}
