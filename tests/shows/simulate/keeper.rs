//! The simulator's keeper: the real core (`keeper::core`), on virtual time, with simulated processes.
//!
//! Like the real keeper it outlives the daemon. When it dies, its processes end and its logs stay. It checks that the
//! daemon orders each thing once.

mod job;
mod wire;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use crate::random::Random;
use job::{SimulatedJob, prepare_later};
use step_runner::keeper::core::{Action, Core, Event, Registered, ReplyTo, Serial};
use step_runner::keeper::protocol::{FromKeeper, KeeperError, PROTOCOL_VERSION, Reply, Request};
use step_runner::model::JobKey;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep_until};
pub(crate) use wire::connect;

/// Most bytes of a record in one answer. It is so small that a record takes several answers.
const PIECE: usize = 1_000;

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
    /// Number of live processes, by job tag.
    pub(crate) alive: BTreeMap<u128, u32>,
}

pub(crate) struct Keeper {
    pub(crate) is_alive: bool,
    state: PathBuf,
    random: Random,
    core: Core<SimulatedJob>,
    /// Serial number of the current connection, and the sender for its frames.
    connection: (u32, Option<mpsc::UnboundedSender<Vec<u8>>>),
    reader: Option<wire::Reader>,
    greeted: bool,
    /// True if the daemon passed on all that it remembered before the keeper's first job.
    pub(crate) is_told: bool,
    /// Wakes the timer, as the next deadline may have changed.
    changed: Rc<Notify>,
    pub(crate) account: Rc<RefCell<Account>>,
    wrongs: Wrongs,
}

pub(crate) type Shared = Rc<RefCell<Keeper>>;

impl Keeper {
    pub(crate) fn start(state: &Path, seed: Random, account: Rc<RefCell<Account>>, wrongs: Wrongs) -> Shared {
        Rc::new(RefCell::new(Self {
            is_alive: true,
            state: state.to_owned(),
            random: seed,
            core: Core::new(now()),
            connection: (0, None),
            reader: None,
            greeted: false,
            is_told: false,
            changed: Rc::default(),
            account,
            wrongs,
        }))
    }

    /// Dies: its processes end, its logs stay.
    pub(crate) fn die(&mut self) {
        self.is_alive = false;
        self.connection.1 = None;
        for registered in self.core.all() {
            self.account.borrow_mut().alive.remove(&registered.job.tag());
        }
        self.core = Core::new(now());
        self.changed.notify_one();
    }

    pub(crate) fn holds(&self) -> usize {
        self.core.all().count()
    }

    fn wrong(&self, text: String) {
        self.wrongs.borrow_mut().push(text);
    }

    fn send(&self, frame: &FromKeeper) {
        if let Some(to) = &self.connection.1 {
            drop(to.send(wire::encode(frame)));
        }
    }

    fn tell(&self, frame: &FromKeeper) {
        let is_lost = matches!(frame, FromKeeper::StepEnded { .. }) && is_put_in("loses_an_end");
        if self.greeted && !is_lost {
            self.send(frame);
        }
    }

    fn reply(&self, to: ReplyTo, mut reply: Result<Reply, KeeperError>) {
        if let Ok(Reply::Piece(piece)) = &mut reply {
            piece.0.truncate(PIECE);
        }
        if to.id != 0 && to.connection == self.connection.0 {
            self.send(&FromKeeper::Reply { id: to.id, reply });
        }
    }

    /// Notes what the daemon may order only once, and what it has ordered.
    fn check(&mut self, request: &Request) {
        let key = match request {
            Request::Register(asked) => asked.key,
            Request::Stop { key, .. } | Request::Close { key, .. } => *key,
            _ => return,
        };
        let known =
            self.core.all().find(|registered| registered.job.key() == key && !registered.job.is_dropped());
        let Some(serial) = known.map(|registered| registered.body.serial) else { return };
        let Some(Registered { job, body }) = self.core.get_mut(serial) else { return };
        let wrong = match request {
            Request::Register(asked) if asked.tag != job.tag() => Some("registered a second time"),
            Request::Close { op, .. } => {
                body.is_to_end = true;
                let is_another = body.close.replace(*op).is_some_and(|before| before != *op);
                is_another.then_some("closed twice")
            }
            Request::Stop { process, .. } => {
                body.stopped.insert(*process);
                None
            }
            _ => None,
        };
        if let Some(what) = wrong {
            self.wrong(format!("{key} is {what}"));
        }
    }
}

/// Performs a request of the present connection.
fn perform(shared: &Shared, id: u64, request: Request) {
    {
        let mut keeper = shared.borrow_mut();
        keeper.is_told |= matches!(request, Request::Register(_));
        keeper.check(&request);
        let connection = keeper.connection.0;
        keeper.core.perform(ReplyTo { connection, id }, request, now());
    }
    drive(shared);
}

/// Tells the core of an event of a job.
fn happened(shared: &Shared, serial: Serial, event: Event) {
    shared.borrow_mut().core.on(serial, event, now());
    drive(shared);
    settle(&mut shared.borrow_mut(), serial);
    drive(shared);
}

/// Performs what the core asks for, until nothing is left.
fn drive(shared: &Shared) {
    loop {
        let mut keeper = shared.borrow_mut();
        let next = keeper.core.next_action();
        drop(keeper);
        if let Some(action) = next {
            act(shared, action);
            continue;
        }
        keeper = shared.borrow_mut();
        let Some(serial) = keeper.core.start_next(now()) else { break };
        drop(keeper);
        drive(shared);
        settle(&mut shared.borrow_mut(), serial);
    }
    let mut keeper = shared.borrow_mut();
    tell_lengths(&mut keeper);
    keeper.changed.notify_one();
}

fn act(shared: &Shared, action: Action) {
    let mut keeper = shared.borrow_mut();
    match action {
        Action::Job(serial, action) => {
            drop(keeper);
            if let Some(answer) = job::perform(shared, serial, action) {
                shared.borrow_mut().core.on(serial, answer, now());
            }
        }
        Action::Reply { to, reply } => keeper.reply(to, reply),
        Action::Perform { to, request } => keeper.core.perform(to, request, now()),
        Action::Tell(frame) => keeper.tell(&frame),
        Action::Notice(_) | Action::Flush => {}
        Action::Greet { to, jobs, remembered, digest_key, .. } => {
            keeper.greeted = true;
            let hello = Reply::Hello {
                version: PROTOCOL_VERSION,
                pid: 1,
                cgroup: None,
                jobs,
                remembered,
                digest_key,
                unenforceable: Vec::new(),
            };
            keeper.reply(to, Ok(hello));
        }
        Action::ReadUsages { to, .. } => keeper.reply(to, Ok(Reply::Usages(Vec::new()))),
        Action::Register { serial, to, mut asked } => {
            match SimulatedJob::open(&keeper.state, serial, &mut asked) {
                Ok(body) => {
                    // Large sets of phrases are prepared later, and requests wait for it.
                    let is_small = !keeper.random.one_in(4);
                    keeper.core.registered(serial, to, asked, body, is_small.then_some(&[]));
                    drop(keeper);
                    if !is_small {
                        prepare_later(shared, serial);
                    }
                }
                Err(error) => keeper.reply(to, Err(error)),
            }
        }
        Action::Prepare(serial, _) => {
            drop(keeper);
            prepare_later(shared, serial);
        }
        Action::Settle(serial) => settle(&mut keeper, serial),
        Action::Leave => keeper.die(),
    }
}

fn settle(keeper: &mut Keeper, serial: Serial) {
    let tag = keeper.core.get(serial).map(|registered| registered.job.tag());
    if let (Some(_), Some(tag)) = (keeper.core.settle(serial), tag) {
        keeper.account.borrow_mut().alive.remove(&tag);
    }
}

fn tell_lengths(keeper: &mut Keeper) {
    if keeper.core.lengths_due().is_some_and(|due| due <= now()) {
        let lengths = keeper.core.take_lengths(now());
        keeper.tell(&lengths);
    }
}

/// Runs the core's timers until the keeper dies.
async fn run_timers(shared: Shared) {
    let changed = Rc::clone(&shared.borrow().changed);
    while shared.borrow().is_alive {
        let next = {
            let core = &shared.borrow().core;
            core.next_timer().into_iter().chain(core.lengths_due()).min()
        };
        let Some(next) = next else {
            changed.notified().await;
            continue;
        };
        tokio::select! {
            biased;
            () = sleep_until(Instant::from_std(next)) => {}
            () = changed.notified() => continue,
        }
        let due = shared.borrow().core.due(now());
        for serial in due {
            happened(&shared, serial, Event::StepsDue);
            happened(&shared, serial, Event::EndDue);
        }
        tell_lengths(&mut shared.borrow_mut());
    }
}

fn now() -> std::time::Instant {
    Instant::now().into_std()
}

/// True if this fault is enabled in the keeper. The oracle must detect it.
fn is_put_in(fault: &str) -> bool {
    step_runner::failpoint::fail::eval(&format!("simulate::keeper::{fault}"), |_| ()).is_some()
}

/// A short random time.
fn moment(random: &mut Random) -> Duration {
    Duration::from_millis(random.below(8))
}
