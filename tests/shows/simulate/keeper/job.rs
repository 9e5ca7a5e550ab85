//! What the simulated keeper has beside each job: a real log file, and simulated processes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use super::{Keeper, Shared, drive, happened, is_put_in, moment, now, settle};
use crate::simulate::program::Program;
use step_runner::clock;
use step_runner::keeper::core::{
    Body, EmptyCheck, Event, FinishStep, JobAction, LogView, NotStarted, Registered, Serial,
};
use step_runner::keeper::protocol::{
    Closed, KeeperError, LogStorage, RegisterJob, StartPart, StepEnd, StepEnded,
};
use step_runner::model::{ExitStatus, FinishedProcess, JobKey, ProcessNumber, StepUsage};
use step_runner::process::cgroup::Usage;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

/// Header of every log entry.
const HEADER: &str = "2026-01-01T00:00:00.000000Z 00O ";

pub(super) struct SimulatedJob {
    pub(super) serial: Serial,
    log: File,
    inode: u64,
    len: u64,
    running: Vec<Running>,
    /// Processes that steps left, by step.
    left: BTreeMap<u32, u32>,
    /// Steps that the daemon has asked to stop.
    pub(super) stopped: BTreeSet<u32>,
    /// True once the daemon asked for an end: it may start steps no more.
    pub(super) is_to_end: bool,
    /// Operation that closed the job.
    pub(super) close: Option<u32>,
}

struct Running {
    process: ProcessNumber,
    /// Number of processes it will leave.
    leaves: u32,
    signal: watch::Sender<Signal>,
}

/// The strongest signal that a process got.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Signal {
    None,
    Term,
    Kill,
}

impl Body for SimulatedJob {
    fn log(&self) -> LogView {
        LogView { inode: self.inode, len: self.len, storage: LogStorage::Fine }
    }

    fn due(&self) -> Option<std::time::Instant> {
        None
    }
}

impl SimulatedJob {
    pub(super) fn open(state: &Path, serial: Serial, asked: &mut RegisterJob) -> Result<Self, KeeperError> {
        let log = File::options()
            .append(true)
            .create(true)
            .open(state.join(format!("jobs/{}/log", asked.key)))
            .map_err(|e| KeeperError::Log { errno: e.raw_os_error().unwrap_or(0), message: e.to_string() })?;
        log.set_len(asked.log_len).unwrap();
        let meta = log.metadata().unwrap();
        Ok(Self {
            serial,
            inode: meta.ino(),
            len: meta.len(),
            log,
            running: Vec::new(),
            left: BTreeMap::new(),
            stopped: BTreeSet::new(),
            is_to_end: false,
            close: None,
        })
    }

    fn ended(&self, process: ProcessNumber, end: StepEnd, usage: Option<StepUsage>) -> Event {
        let ran = FinishedProcess { ended: clock::boot_micros(), log_len: self.len, usage };
        let usage = Usage::default();
        let left = self.left.values().sum();
        Event::Ended(StepEnded { process, end, left, shortage: None, usage, ran, closes: false })
    }

    fn alive(&self) -> u32 {
        self.left.values().sum::<u32>() + self.running.len() as u32
    }
}

impl Keeper {
    fn append(&mut self, serial: Serial, text: &str) {
        let Some(Registered { job, body }) = self.core.get_mut(serial) else { return };
        let text = &[HEADER, text].concat();
        let (key, written) = (job.key(), body.inode);
        if !is_put_in("forgets_a_line") || body.len == 0 {
            body.log.write_all(text.as_bytes()).unwrap();
        }
        body.len += text.len() as u64;
        if job.is_dropped() {
            return;
        }
        let path = self.state.join(format!("jobs/{key}/log"));
        let inode = std::fs::metadata(&path).map(|found| found.ino()).ok();
        if inode != Some(written) {
            self.wrong(format!(
                "the folder of {key} was touched while its job lives: log {inode:?}, written {written}"
            ));
        }
    }

    /// Counts the living processes of a job.
    fn count(&self, serial: Serial) {
        let Some(Registered { job, body }) = self.core.get(serial) else { return };
        self.account.borrow_mut().alive.insert(job.tag(), body.alive());
    }

    /// Notes a start, which must be the only one of its step.
    fn note_start(&self, key: JobKey, tag: u128, process: ProcessNumber, content: u64) {
        let is_again = {
            let mut account = self.account.borrow_mut();
            if is_put_in("starts_twice") {
                account.started.insert((tag, process));
            }
            account.content.insert(tag, content);
            if !account.order.iter().any(|(known, _)| *known == tag) {
                account.order.push((tag, key));
            }
            !account.started.insert((tag, process))
        };
        if is_again {
            self.wrong(format!("process {process} of {key} is started twice"));
        }
    }
}

/// Performs what the core asks for, and returns its answer if it has one.
pub(super) fn perform(shared: &Shared, serial: Serial, action: JobAction) -> Option<Event> {
    if let JobAction::Start(process) = action {
        return start(shared, serial, process);
    }
    let mut keeper = shared.borrow_mut();
    let Registered { job, body } = keeper.core.get_mut(serial)?;
    match action {
        JobAction::Line(_, text) => {
            keeper.append(serial, &format!("line {text}\n"));
            None
        }
        JobAction::CheckEmpty(EmptyCheck::Clear(process)) => Some(Event::CheckedEmpty(
            EmptyCheck::Clear(process),
            body.left.get(&process).is_none_or(|left| *left == 0),
        )),
        JobAction::CheckEmpty(check) => Some(Event::CheckedEmpty(check, body.alive() == 0)),
        JobAction::CheckLeftEmpty { reason, processes } => {
            let is_empty =
                processes.iter().all(|process| body.left.get(process).is_none_or(|left| *left == 0));
            Some(Event::CheckedLeftEmpty(reason, is_empty))
        }
        JobAction::TerminateLeft(processes) => {
            // Some end when asked, the others do not.
            for process in processes {
                body.left.retain(|of, left| *of != process || *left % 2 == 0);
            }
            keeper.count(serial);
            None
        }
        JobAction::KillStep(process) => {
            body.left.remove(&process);
            for run in body.running.iter().filter(|run| run.process == process) {
                run.signal.send_replace(Signal::Kill);
            }
            keeper.count(serial);
            None
        }
        JobAction::ShowProcesses(_) => {
            keeper.append(serial, "processes\n");
            None
        }
        JobAction::NotStarted(process, why) => {
            let key = job.key();
            let end = StepEnd::NotStarted { part: StartPart::Cancelled, errno: 125 };
            let is_ended = body.is_to_end || job.is_dropped() || body.stopped.contains(&process);
            let ended = body.ended(process, end, None);
            if why == NotStarted::Cancelled && !is_ended {
                keeper
                    .wrong(format!("process {process} of {key} is not started though nobody has stopped it"));
            }
            Some(ended)
        }
        JobAction::FinishStep(FinishStep { process, status, usage, .. }) => {
            Some(body.ended(process, StepEnd::Exited(status), usage))
        }
        JobAction::Terminate(process) => {
            for run in body.running.iter().filter(|run| run.process == process) {
                run.signal.send_replace(Signal::Term);
            }
            None
        }
        JobAction::TerminateRest => {
            // Left-over processes: some end when asked, the others do not.
            let ends = body.left.values().sum::<u32>() % 2 == 1;
            drop(keeper);
            if ends {
                end_left(shared, serial);
            }
            None
        }
        JobAction::Kill => {
            body.left.clear();
            for run in &body.running {
                run.signal.send_replace(Signal::Kill);
            }
            keeper.count(serial);
            None
        }
        JobAction::WriteEnd { lines, .. } => {
            for (_, text) in lines {
                keeper.append(serial, &format!("end {text}\n"));
            }
            Some(Event::EndWritten(Closed::default()))
        }
        JobAction::CloseLog { closed, .. } => Some(Event::LogClosed(Closed { log_len: body.len, ..closed })),
        JobAction::Start(_)
        | JobAction::Journal(_)
        | JobAction::WatchUnfinished
        | JobAction::WakeReaper(_)
        | JobAction::Thaw
        | JobAction::ThawSurvivors
        | JobAction::RecordEnd(_) => None,
    }
}

fn start(shared: &Shared, serial: Serial, process: ProcessNumber) -> Option<Event> {
    let mut keeper = shared.borrow_mut();
    let Registered { job, body } = keeper.core.get_mut(serial)?;
    let program = Program::read(job.request(process)?.argv.last().map_or("", String::as_str));
    let (key, tag) = (job.key(), job.tag());
    let (signal, signals) = watch::channel(Signal::None);
    body.running.push(Running { process, leaves: program.left, signal });
    keeper.note_start(key, tag, process, program.content);
    keeper.count(serial);
    drop(keeper);
    tokio::task::spawn_local(run(Rc::clone(shared), serial, key, process, program, signals));
    Some(Event::Started(process))
}

/// Runs one process from its start to its end.
async fn run(
    shared: Shared,
    serial: Serial,
    key: JobKey,
    process: ProcessNumber,
    program: Program,
    mut signals: watch::Receiver<Signal>,
) {
    let mut status = ExitStatus::Code(program.exit);
    for line in 0..program.lines {
        let until = Instant::now() + Duration::from_millis(program.millis);
        if let Some(signal) = live(&mut signals, until, &program).await {
            status = ExitStatus::Signal(signal);
            break;
        }
        let mut keeper = shared.borrow_mut();
        keeper.append(serial, &format!("{key} {process} {line}\n"));
        settle(&mut keeper, serial);
        drop(keeper);
        drive(&shared);
    }
    {
        let mut keeper = shared.borrow_mut();
        let Some(Registered { body, .. }) = keeper.core.get_mut(serial) else { return };
        let Some(at) = body.running.iter().position(|run| run.process == process) else { return };
        let ended = body.running.swap_remove(at);
        // Left-over processes live until the end of the job. SIGKILL goes to them as well.
        if status != ExitStatus::Signal(9) {
            *body.left.entry(process).or_default() += ended.leaves;
        }
        keeper.count(serial);
    }
    let usage = Some(StepUsage { user: Duration::from_millis(program.millis), ..StepUsage::default() });
    happened(&shared, serial, Event::Exited { process, status, usage, is_drained: true });
}

/// Lives until `until`. Returns the signal if one ends it before.
async fn live(signals: &mut watch::Receiver<Signal>, until: Instant, program: &Program) -> Option<u8> {
    loop {
        let got = *signals.borrow_and_update();
        match got {
            Signal::Kill => return Some(9),
            Signal::Term if !program.stubborn => {
                let dies = Instant::now() + Duration::from_millis(program.dying);
                let killed = signals.wait_for(|signal| *signal == Signal::Kill);
                return Some(if timeout_at(dies, killed).await.is_ok() { 9 } else { 15 });
            }
            Signal::None | Signal::Term => {}
        }
        match timeout_at(until, signals.changed()).await {
            // The keeper has died, and its processes with it.
            Ok(Err(_)) => return Some(9),
            Err(_) => return None,
            Ok(Ok(())) => {}
        }
    }
}

/// Ends the left-over processes of a job after a moment.
fn end_left(shared: &Shared, serial: Serial) {
    let shared = Rc::clone(shared);
    tokio::task::spawn_local(async move {
        sleep(Duration::from_millis(3)).await;
        let mut keeper = shared.borrow_mut();
        if let Some(Registered { body, .. }) = keeper.core.get_mut(serial) {
            body.left.clear();
            keeper.count(serial);
        }
    });
}

/// Uses the phrases of a job after a moment, as if a thread had prepared them.
pub(super) fn prepare_later(shared: &Shared, serial: Serial) {
    let pause = moment(&mut shared.borrow_mut().random);
    let shared = Rc::clone(shared);
    tokio::task::spawn_local(async move {
        sleep(pause).await;
        shared.borrow_mut().core.prepared(serial, Ok(&[]), now());
        drive(&shared);
    });
}
