//! Simulated processes, from their start to the end of their job.

use std::rc::Rc;
use std::time::Duration;

use super::{Ending, Keeper, Shared};
use crate::program::Program;
use step_runner::clock;
use step_runner::keeper::protocol::{Closed, FromKeeper, SpawnStep, StepEnd, StepOver};
use step_runner::model::{ExitStatus, FinishedProcess, JobKey, StepUsage};
use step_runner::process::cgroup::Usage;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

impl Keeper {
    pub(super) fn close(&mut self, key: JobKey) {
        let Some(job) = self.jobs.get_mut(&key) else { return };
        let twice = std::mem::replace(&mut job.closing, true);
        if twice {
            self.wrong(format!("{key} is closed twice"));
        }
    }

    /// Returns how many processes of the job live, and true if a step runs. `None` if the key belongs to another job
    /// now.
    fn living(&self, key: JobKey, tag: u128) -> Option<(u32, bool)> {
        let job = self.jobs.get(&key).filter(|_| self.has(key, tag))?;
        Some((self.account.borrow().alive.get(&tag).copied().unwrap_or(0), job.running.is_some()))
    }

    fn kill_left(&self, key: JobKey, tag: u128) {
        if self.has(key, tag) {
            self.account.borrow_mut().alive.insert(tag, 0);
        }
    }

    /// True if the key still belongs to the job with this tag.
    fn has(&self, key: JobKey, tag: u128) -> bool {
        self.is_alive && self.jobs.get(&key).is_some_and(|job| job.tag == tag)
    }
}

pub(super) fn start(shared: &Shared, spawn: &SpawnStep) {
    let key = spawn.key;
    let mut keeper = shared.borrow_mut();
    let Some(job) = keeper.jobs.get_mut(&key) else { return };
    let (tag, step) = (job.tag, spawn.step);
    let program = Program::read(spawn.argv.last().map_or("", String::as_str));
    let busy = job.running.is_some() || job.closing;
    let ended = job.end.borrow().is_some();
    if ended {
        // As in the real keeper, a step is not started after an end was asked for.
        let over = StepOver {
            step,
            end: StepEnd::NotStarted { what: "cancelled".into(), errno: 125 },
            left: 0,
            shortage: None,
            usage: Usage::default(),
            ran: FinishedProcess { ended: clock::boot_micros(), log_len: job.len, usage: None },
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

/// Runs one process from its start to its end.
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
    let Some(job) = keeper.jobs.get_mut(&key) else { return };
    let used = StepUsage { user: Duration::from_millis(program.millis), ..StepUsage::default() };
    let over = StepOver {
        step,
        end: StepEnd::Exited(status),
        left: program.left,
        shortage: None,
        usage: Usage::default(),
        ran: FinishedProcess { ended: clock::boot_micros(), log_len: job.len, usage: Some(used) },
    };
    job.running = None;
    job.over.push(over.clone());
    let mut account = keeper.account.borrow_mut();
    // Left-over processes live until the end of the job.
    let left = account.alive.get(&tag).copied().unwrap_or(1) - 1 + program.left;
    account.alive.insert(tag, left);
    drop(account);
    if !is_put_in("loses_an_end") {
        keeper.tell(&FromKeeper::StepOver { key, over });
    }
}

/// True if this fault is enabled in the keeper. The oracle must detect it.
pub(super) fn is_put_in(fault: &str) -> bool {
    fail::eval(&format!("simulate::keeper::{fault}"), |_| ()).is_some()
}

/// Lives until `until`. Returns the signal if one ends it before.
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
            // The job was dropped, so the process is killed.
            Ok(Err(_)) => return Some(9),
            Err(_) if wake >= until => return None,
            Ok(Ok(())) | Err(_) => {}
        }
    }
}

/// Ends all remaining processes and closes the log.
pub(super) fn close(shared: &Shared, key: JobKey, grace: Duration, lines: Vec<String>) {
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
            // Left-over processes: some end when asked, the others are killed after the grace.
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
