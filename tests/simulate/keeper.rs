//! The simulator's keeper. It speaks the real protocol, runs simulated processes, and records every order to run
//! something.
//!
//! Like the real keeper it outlives the daemon. When it dies, its processes end and its logs stay.

mod orders;
mod processes;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use crate::random::Random;
use orders::perform;
use processes::is_put_in;
use step_runner::keeper::protocol::{Closed, FromKeeper, Remembered, StepOver, ToKeeper};
use step_runner::model::JobKey;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};

/// Time for which a keeper with the fault `writes_late` collects frames to write them together.
const LATE: Duration = Duration::from_millis(1_500);

/// Header of every log entry.
const HEADER: &str = "2026-01-01T00:00:00.000000Z 00O ";

/// Violations found by the keepers and the oracle.
pub(crate) type Wrongs = Rc<RefCell<Vec<String>>>;

/// Orders to all keepers of one run. Each step must be ordered only once.
#[derive(Default)]
pub(crate) struct Account {
    /// Steps started, by job tag.
    pub(crate) started: BTreeSet<(u128, u32)>,
    /// Content of the request, by job tag.
    pub(crate) content: BTreeMap<u128, u64>,
    /// Job tags in the order of their first process, with the job's key.
    pub(crate) order: Vec<(u128, JobKey)>,
    /// Jobs with a process that was told to end before it ended.
    pub(crate) stopped: BTreeSet<u128>,
    /// Bytes of the logs, by job tag.
    pub(crate) log: BTreeMap<u128, Vec<u8>>,
    /// Number of live processes, by job tag.
    pub(crate) alive: BTreeMap<u128, u32>,
}

pub(crate) struct Keeper {
    pub(crate) is_alive: bool,
    state: PathBuf,
    random: Random,
    jobs: BTreeMap<JobKey, Job>,
    remembered: Vec<Remembered>,
    digest_key: Option<[u8; 16]>,
    /// Serial number of the current connection, and the sender for its frames.
    connection: (u64, Option<mpsc::UnboundedSender<Vec<u8>>>),
    greeted: bool,
    /// True if the daemon passed on all that it remembered before the keeper's first job.
    pub(crate) is_told: bool,
    pub(crate) account: Rc<RefCell<Account>>,
    wrongs: Wrongs,
}

struct Job {
    tag: u128,
    record: Vec<Vec<u8>>,
    brief: Vec<u8>,
    last_op: u32,
    over: Vec<StepOver>,
    running: Option<u32>,
    closing: bool,
    closed: Option<Closed>,
    log: File,
    inode: u64,
    len: u64,
    /// Time at which the remaining processes are killed. `None`: nobody has asked for their end.
    end: watch::Sender<Option<Ending>>,
}

#[derive(Clone, Copy)]
struct Ending {
    first: Instant,
    kill_at: Instant,
}

pub(crate) type Shared = Rc<RefCell<Keeper>>;

impl Keeper {
    pub(crate) fn start(state: &Path, seed: Random, account: Rc<RefCell<Account>>, wrongs: Wrongs) -> Shared {
        Rc::new(RefCell::new(Self {
            is_alive: true,
            state: state.to_owned(),
            random: seed,
            jobs: BTreeMap::new(),
            remembered: Vec::new(),
            digest_key: None,
            connection: (0, None),
            greeted: false,
            is_told: false,
            account,
            wrongs,
        }))
    }

    /// Dies: its processes end, its logs stay.
    pub(crate) fn die(&mut self) {
        self.is_alive = false;
        self.connection.1 = None;
        for job in self.jobs.values() {
            self.account.borrow_mut().alive.remove(&job.tag);
        }
        self.jobs.clear();
    }

    pub(crate) fn holds(&self) -> usize {
        self.jobs.len()
    }

    fn wrong(&self, text: String) {
        self.wrongs.borrow_mut().push(text);
    }

    fn tell(&self, frame: &FromKeeper) {
        if let (true, Some(to)) = (self.greeted, &self.connection.1) {
            drop(to.send(encode(frame)));
        }
    }

    fn append(&mut self, key: JobKey, text: &str) {
        let text = &[HEADER, text].concat();
        let Some(job) = self.jobs.get_mut(&key) else { return };
        let path = self.state.join(format!("jobs/{key}/log"));
        let inode = std::fs::metadata(&path).map(|found| found.ino()).ok();
        if !is_put_in("forgets_a_line") || job.len == 0 {
            job.log.write_all(text.as_bytes()).unwrap();
        }
        job.len += text.len() as u64;
        let (tag, held, len) = (job.tag, job.inode, job.len);
        self.account.borrow_mut().log.entry(tag).or_default().extend_from_slice(text.as_bytes());
        if inode != Some(held) {
            self.wrong(format!(
                "the folder of {key} was touched while its job lives: log {inode:?}, held {held}"
            ));
        }
        self.tell(&FromKeeper::Lengths(vec![(key, len)]));
    }
}

/// Accepts a daemon's connection, which replaces an earlier one.
pub(crate) fn connect(keeper: &Shared, wire: DuplexStream) {
    let (mut read, mut write) = tokio::io::split(wire);
    let (sender, mut frames) = mpsc::unbounded_channel::<Vec<u8>>();
    let (serial, mut random) = {
        let mut keeper = keeper.borrow_mut();
        let serial = keeper.connection.0 + 1;
        keeper.connection = (serial, Some(sender));
        keeper.greeted = false;
        (serial, keeper.random.fork(serial))
    };
    let mut slow = random.fork(1);
    tokio::task::spawn_local(async move {
        while let Some(mut frame) = frames.recv().await {
            dawdle(&mut slow).await;
            if is_put_in("writes_late") {
                sleep(LATE).await;
                while let Ok(next) = frames.try_recv() {
                    frame.extend(next);
                }
            }
            if write.write_all(&frame).await.is_err() {
                return;
            }
        }
        drop(write.shutdown().await);
    });
    let keeper = Rc::clone(keeper);
    tokio::task::spawn_local(async move {
        loop {
            let frame = async {
                let len = read.read_u32_le().await?;
                let mut bytes = vec![0; len as usize];
                read.read_exact(&mut bytes).await?;
                std::io::Result::Ok(bytes)
            };
            let Ok(bytes) = frame.await else { break };
            dawdle(&mut random).await;
            let current = { keeper.borrow().is_alive && keeper.borrow().connection.0 == serial };
            if !current {
                return;
            }
            let ToKeeper { id, request } = postcard::from_bytes(&bytes).unwrap();
            perform(&keeper, id, request);
        }
        let mut keeper = keeper.borrow_mut();
        if keeper.connection.0 == serial {
            keeper.connection.1 = None;
        }
    });
}

/// Lets other tasks run for a random time: mostly none, sometimes milliseconds.
async fn dawdle(random: &mut Random) {
    match random.below(16) {
        0 => sleep(Duration::from_millis(random.below(8))).await,
        1 if random.one_in(8) => sleep(Duration::from_millis(random.below(400))).await,
        2..=5 => {
            for _ in 0..random.below(12) {
                tokio::task::yield_now().await;
            }
        }
        _ => {}
    }
}

fn encode(frame: &FromKeeper) -> Vec<u8> {
    let mut bytes = postcard::to_extend(frame, vec![0; 4]).unwrap();
    let len = bytes.len() as u32 - 4;
    bytes[..4].copy_from_slice(&len.to_le_bytes());
    bytes
}
