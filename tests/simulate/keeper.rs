//! The keeper that the simulator plays: speaks the real protocol, runs processes that exist in its mind only, and keeps
//! account of everything it was asked to run.
//!
//! It outlives the daemon as the real one does. Its death takes its processes along; the logs it wrote stay.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use step_runner::keeper::protocol::{
    Closed, FromKeeper, HeldJob, HoldJob, KeeperError, PROTOCOL_VERSION, Remembered, Reply, Request,
    SecretBytes, SpawnStep, StepEnd, StepOver, ToKeeper,
};
use step_runner::model::{ExitStatus, JobKey};
use step_runner::process::cgroup::Usage;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::program::Program;
use crate::random::Random;

/// What a keeper saw that must not be.
pub(crate) type Wrongs = Rc<RefCell<Vec<String>>>;

/// What all keepers of one run were asked to do: it must be once.
#[derive(Default)]
pub(crate) struct Account {
    /// Steps started, by job tag.
    pub(crate) started: BTreeSet<(u128, u32)>,
    /// What each tag was to run: content of the request.
    pub(crate) content: BTreeMap<u128, u64>,
    /// Tags in the order of their first process, with the job's key.
    pub(crate) order: Vec<(u128, JobKey)>,
    /// Jobs whose running process was told to end before it ended.
    pub(crate) stopped: BTreeSet<u128>,
    /// Jobs that were to be killed at some point.
    pub(crate) log: BTreeMap<u128, Vec<u8>>,
    /// Live processes by tag.
    pub(crate) alive: BTreeMap<u128, u32>,
}

pub(crate) struct Keeper {
    pub(crate) is_alive: bool,
    state: PathBuf,
    random: Random,
    jobs: BTreeMap<JobKey, Job>,
    remembered: Vec<Remembered>,
    digest_key: Option<[u8; 16]>,
    /// Serial of the present connection, and where its frames go.
    connection: (u64, Option<mpsc::UnboundedSender<Vec<u8>>>),
    greeted: bool,
    /// It was told all that its daemon knew before it got its first job.
    pub(crate) is_told: bool,
    pub(crate) account: Rc<RefCell<Account>>,
    wrongs: Wrongs,
}

struct Job {
    tag: u128,
    record: Vec<Vec<u8>>,
    last_op: u32,
    over: Vec<StepOver>,
    running: Option<u32>,
    closing: bool,
    closed: Option<Closed>,
    log: File,
    inode: u64,
    len: u64,
    /// When what lives is killed; `None`: nobody asked.
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

    /// Takes its processes along and leaves its logs.
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

/// Takes a connection of a daemon; it replaces an earlier one.
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
        while let Some(frame) = frames.recv().await {
            dawdle(&mut slow).await;
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

/// A moment in which others go on: mostly none, sometimes milliseconds.
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

fn perform(keeper: &Shared, id: u64, request: Request) {
    let reply = answer(keeper, request);
    let keeper = keeper.borrow();
    if id != 0
        && let Some(to) = &keeper.connection.1
    {
        drop(to.send(encode(&FromKeeper::Reply { id, reply })));
    }
}

fn answer(shared: &Shared, request: Request) -> Result<Reply, KeeperError> {
    let mut keeper = shared.borrow_mut();
    match request {
        Request::Hello { digest_key, .. } => {
            keeper.greeted = true;
            let digest_key = *keeper.digest_key.get_or_insert(digest_key);
            Ok(Reply::Hello {
                version: PROTOCOL_VERSION,
                pid: 1,
                cgroup: None,
                jobs: keeper.jobs.keys().copied().collect(),
                remembered: keeper.remembered.clone(),
                digest_key,
                unenforceable: Vec::new(),
            })
        }
        Request::Hold(hold) => {
            keeper.is_told = true;
            keeper.hold(*hold)
        }
        Request::Remember(entry) => {
            keeper.remembered.retain(|known| known.key != entry.key);
            keeper.remembered.push(entry);
            Ok(Reply::Done)
        }
        Request::Bye => {
            keeper.die();
            Ok(Reply::Done)
        }
        Request::Drop { key } => {
            keeper.forget(key);
            Ok(Reply::Done)
        }
        request => {
            drop(keeper);
            for_job(shared, request)
        }
    }
}

impl Keeper {
    fn hold(&mut self, hold: HoldJob) -> Result<Reply, KeeperError> {
        if let Some(job) = self.jobs.get(&hold.key) {
            if job.tag != hold.tag {
                self.wrong(format!("{} is held a second time", hold.key));
            }
            return Ok(Reply::Held { log_inode: job.inode, log_len: job.len });
        }
        let path = self.state.join(format!("jobs/{}/log", hold.key));
        let log = File::options()
            .append(true)
            .create(true)
            .open(&path)
            .map_err(|e| KeeperError::Log { errno: e.raw_os_error().unwrap_or(0), message: e.to_string() })?;
        let meta = log.metadata().unwrap();
        let job = Job {
            tag: hold.tag,
            record: vec![hold.record],
            last_op: 0,
            over: Vec::new(),
            running: None,
            closing: false,
            closed: None,
            inode: meta.ino(),
            len: meta.len(),
            log,
            end: watch::channel(None).0,
        };
        let reply = Reply::Held { log_inode: job.inode, log_len: job.len };
        self.jobs.insert(hold.key, job);
        Ok(reply)
    }

    fn forget(&mut self, key: JobKey) {
        if let Some(job) = self.jobs.remove(&key) {
            self.account.borrow_mut().alive.remove(&job.tag);
        }
    }

    /// Asks what lives of a job to end; the shorter grace counts.
    fn stop(&mut self, key: JobKey, grace: Duration) {
        let Some(job) = self.jobs.get_mut(&key) else { return };
        let now = Instant::now();
        job.end.send_modify(|end| {
            let first = end.map_or(now, |end| end.first);
            let kill_at = end.map_or(first + grace, |end| end.kill_at.min(end.first + grace));
            *end = Some(Ending { first, kill_at });
        });
    }

    fn is_new(&mut self, key: JobKey, op: u32) -> bool {
        let Some(job) = self.jobs.get_mut(&key) else { return false };
        let new = op > job.last_op;
        job.last_op = job.last_op.max(op);
        new
    }
}

fn for_job(shared: &Shared, request: Request) -> Result<Reply, KeeperError> {
    let mut keeper = shared.borrow_mut();
    let key = match &request {
        Request::Record { key, .. }
        | Request::Phrases { key, .. }
        | Request::Line { key, .. }
        | Request::Stop { key, .. }
        | Request::Close { key, .. }
        | Request::Resume { key } => *key,
        Request::Spawn(spawn) => spawn.key,
        _ => return Err(KeeperError::UnknownJob),
    };
    let Some(job) = keeper.jobs.get_mut(&key) else { return Err(KeeperError::UnknownJob) };
    match request {
        Request::Record { seq, event, .. } if seq as usize == job.record.len() => job.record.push(event),
        Request::Resume { .. } => {
            return Ok(Reply::Resumed(Box::new(HeldJob {
                tag: job.tag,
                record: SecretBytes(job.record.clone()),
                last_op: job.last_op,
                over: job.over.clone(),
                running: job.running,
                closed: job.closed.clone(),
                log_inode: job.inode,
                log_len: job.len,
            })));
        }
        Request::Stop { grace, .. } => {
            if job.running.is_some() {
                let tag = job.tag;
                keeper.account.borrow_mut().stopped.insert(tag);
            }
            keeper.stop(key, grace);
        }
        Request::Line { op, text, .. } if keeper.is_new(key, op) => {
            keeper.append(key, &format!("line {text}\n"));
        }
        Request::Phrases { op, .. } => drop(keeper.is_new(key, op)),
        Request::Spawn(spawn) if keeper.is_new(key, spawn.op) => {
            drop(keeper);
            start(shared, &spawn);
        }
        Request::Close { op, leftover_grace, lines, .. } if keeper.is_new(key, op) => {
            keeper.close(key);
            drop(keeper);
            close(shared, key, leftover_grace, lines.into_iter().map(|(_, text)| text).collect());
        }
        _ => {}
    }
    Ok(Reply::Done)
}

impl Keeper {
    fn close(&mut self, key: JobKey) {
        let Some(job) = self.jobs.get_mut(&key) else { return };
        let twice = std::mem::replace(&mut job.closing, true);
        if twice {
            self.wrong(format!("{key} is closed twice"));
        }
    }

    /// How many processes of the job live, and whether a step is among them; `None`: it is not the one it was.
    fn living(&self, key: JobKey, tag: u128) -> Option<(u32, bool)> {
        let job = self.jobs.get(&key).filter(|_| self.has(key, tag))?;
        Some((self.account.borrow().alive.get(&tag).copied().unwrap_or(0), job.running.is_some()))
    }

    fn kill_left(&self, key: JobKey, tag: u128) {
        if self.has(key, tag) {
            self.account.borrow_mut().alive.insert(tag, 0);
        }
    }

    /// The job is still the one it was.
    fn has(&self, key: JobKey, tag: u128) -> bool {
        self.is_alive && self.jobs.get(&key).is_some_and(|job| job.tag == tag)
    }
}

fn start(shared: &Shared, spawn: &SpawnStep) {
    let key = spawn.key;
    let mut keeper = shared.borrow_mut();
    let Some(job) = keeper.jobs.get_mut(&key) else { return };
    let (tag, step) = (job.tag, spawn.step);
    let program = Program::read(spawn.argv.last().map_or("", String::as_str));
    let busy = job.running.is_some() || job.closing;
    let ended = job.end.borrow().is_some();
    if ended {
        // As the real one does: an end was asked for before.
        let over = StepOver {
            step,
            end: StepEnd::NotStarted { what: "cancelled".into(), errno: 125 },
            left: 0,
            shortage: None,
            usage: Usage::default(),
        };
        job.over.push(over.clone());
        keeper.tell(&FromKeeper::StepOver { key, over });
        return;
    }
    job.running = Some(step);
    if is_put_in("starts_twice") {
        let account = Rc::clone(&keeper.account);
        account.borrow_mut().started.insert((tag, step));
    }
    let Some(job) = keeper.jobs.get_mut(&key) else { return };
    let end = job.end.subscribe();
    {
        let mut account = keeper.account.borrow_mut();
        let again = !account.started.insert((tag, step));
        account.content.insert(tag, program.content);
        if !account.order.iter().any(|(known, _)| *known == tag) {
            account.order.push((tag, key));
        }
        *account.alive.entry(tag).or_default() += 1;
        drop(account);
        if again {
            keeper.wrong(format!("step {step} of {key} is started twice"));
        }
    }
    if busy {
        keeper.wrong(format!("step {step} of {key} is started while another one runs or after the close"));
    }
    drop(keeper);
    let shared = Rc::clone(shared);
    tokio::task::spawn_local(async move { run(shared, key, tag, step, program, end).await });
}

/// One process from its start to its end.
async fn run(
    shared: Shared,
    key: JobKey,
    tag: u128,
    step: u32,
    program: Program,
    mut end: watch::Receiver<Option<Ending>>,
) {
    let mut status = ExitStatus::Code(program.exit);
    let mut termed = false;
    for line in 0..program.lines {
        let until = Instant::now() + Duration::from_millis(program.millis);
        if let Some(signal) = live(&mut end, until, &program, &mut termed).await {
            status = ExitStatus::Signal(signal);
            break;
        }
        let mut keeper = shared.borrow_mut();
        if !keeper.has(key, tag) {
            return;
        }
        keeper.append(key, &format!("{key} {step} {line}\n"));
    }
    let mut keeper = shared.borrow_mut();
    if !keeper.has(key, tag) {
        return;
    }
    let over = StepOver {
        step,
        end: StepEnd::Exited(status),
        left: program.left,
        shortage: None,
        usage: Usage::default(),
    };
    let Some(job) = keeper.jobs.get_mut(&key) else { return };
    job.running = None;
    job.over.push(over.clone());
    let mut account = keeper.account.borrow_mut();
    // What it leaves running lives until the job's end.
    let left = account.alive.get(&tag).copied().unwrap_or(1) - 1 + program.left;
    account.alive.insert(tag, left);
    drop(account);
    if !is_put_in("loses_an_end") {
        keeper.tell(&FromKeeper::StepOver { key, over });
    }
}

/// Whether this keeper has a fault, so that it is seen whether the oracle finds it.
fn is_put_in(fault: &str) -> bool {
    fail::eval(&format!("simulate::keeper::{fault}"), |_| ()).is_some()
}

/// Lives until a moment; the signal that ends it before.
async fn live(
    end: &mut watch::Receiver<Option<Ending>>,
    until: Instant,
    program: &Program,
    termed: &mut bool,
) -> Option<u8> {
    loop {
        let asked = *end.borrow_and_update();
        match asked {
            Some(_) if !program.stubborn && !*termed => {
                *termed = true;
                sleep(Duration::from_millis(program.dying)).await;
                return Some(15);
            }
            Some(ending) if Instant::now() >= ending.kill_at => return Some(9),
            _ => {}
        }
        let wake = asked.map_or(until, |ending| ending.kill_at.min(until));
        match timeout_at(wake, end.changed()).await {
            // Its job is dropped: it is killed.
            Ok(Err(_)) => return Some(9),
            Err(_) if wake >= until => return None,
            Ok(Ok(())) | Err(_) => {}
        }
    }
}

/// Ends what is left and closes the log.
fn close(shared: &Shared, key: JobKey, grace: Duration, lines: Vec<String>) {
    let (tag, end) = {
        let mut keeper = shared.borrow_mut();
        keeper.stop(key, grace);
        let Some(job) = keeper.jobs.get(&key) else { return };
        (job.tag, job.end.subscribe())
    };
    let shared = Rc::clone(shared);
    tokio::task::spawn_local(async move {
        loop {
            let Some((alive, running)) = shared.borrow().living(key, tag) else { return };
            if alive == 0 {
                break;
            }
            let kill_at = (*end.borrow()).map_or_else(Instant::now, |ending| ending.kill_at);
            if running {
                sleep(Duration::from_millis(1)).await;
                continue;
            }
            // Left-over processes: half of them end when asked, the others are killed.
            if alive.is_multiple_of(2) {
                sleep_until(kill_at).await;
            } else {
                sleep(Duration::from_millis(3)).await;
            }
            shared.borrow().kill_left(key, tag);
        }
        let mut keeper = shared.borrow_mut();
        for line in lines {
            keeper.append(key, &format!("end {line}\n"));
        }
        let Some(job) = keeper.jobs.get_mut(&key) else { return };
        let closed = Closed { log_len: job.len, ..Closed::default() };
        job.closed = Some(closed.clone());
        keeper.account.borrow_mut().alive.remove(&tag);
        keeper.tell(&FromKeeper::Closed { key, closed });
    });
}
