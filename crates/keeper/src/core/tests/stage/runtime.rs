//! The runtime in the property tests: its answers, its complaints, and the time that passes.

use std::time::Instant;

use super::{Running, Stage};
use crate::core::{Action, EmptyCheck, Event, FinishStep, JobAction, Serial, StartFailure};
use crate::protocol::{Closed, FromKeeper, Reply, StartPart, StepEnd, StepEnded};
use step_runner_model::{ExitStatus, FinishedProcess, ProcessNumber};
use step_runner_process::cgroup::Usage;
use step_runner_process::spawn;

impl Stage {
    /// Length of the job's log.
    pub(in crate::core::tests) fn log_len(&mut self, job: u8) -> u64 {
        self.body(job).map_or(0, |body| body.log.len)
    }

    /// Number of processes that steps of the job have left.
    pub(in crate::core::tests) fn left(&mut self, job: u8) -> u8 {
        self.body(job).map_or(0, |body| body.left.values().sum())
    }

    /// Lets the time pass until `until`, with all timers on the way.
    pub(super) fn pass(&mut self, until: Instant) {
        let mut turns = 0;
        while let Some(next) = self.core.next_timer().filter(|next| *next <= until) {
            self.now = self.now.max(next);
            for serial in self.core.due(self.now) {
                self.tell(serial, Event::StepsDue);
                self.tell(serial, Event::EndDue);
            }
            turns += 1;
            if turns > 20_000 {
                self.wrongs.push("the timers do not come to rest".to_owned());
                return;
            }
        }
        self.now = self.now.max(until);
        let FromKeeper::Lengths(told) = self.core.take_lengths(self.now) else { return };
        for (key, len) in told {
            // A dropped job may live on under its key, beside the new job that this length is of.
            let known = self
                .core
                .all()
                .find(|registered| registered.job.key() == key && !registered.job.is_dropped());
            if known.is_none_or(|registered| registered.job.is_closed() || registered.body.log.len != len) {
                self.wrongs
                    .push(format!("the length {len} is told of a job that is closed, dropped or another"));
            }
        }
    }

    pub(super) fn act(&mut self, action: Action) {
        match action {
            Action::Job(serial, action) => {
                if let Some(answer) = self.perform(serial, action) {
                    self.core.on(serial, answer, self.now);
                }
            }
            Action::Reply { to, reply } => {
                *self.replies.entry(to.id).or_default() += 1;
                match reply {
                    Ok(Reply::Resumed(registered)) if registered.events != 1 => {
                        self.wrongs.push("the record has grown".to_owned());
                    }
                    Ok(Reply::Length(len)) => self.lengths.push(len),
                    _ => {}
                }
            }
            Action::Greet { to, .. } | Action::ReadUsages { to, .. } => {
                *self.replies.entry(to.id).or_default() += 1;
            }
            Action::Perform { to, request } => self.core.perform(to, request, self.now),
            Action::Tell(told) => self.hear(told),
            Action::Register { serial, to, asked } => {
                self.serials.insert(serial, asked.key.0[0]);
                self.core.registered(serial, to, asked, super::Count::default(), Some(&[]));
            }
            Action::Prepare(serial, _) if self.prepares_later => self.preparing.push(serial),
            Action::Prepare(serial, _) => self.core.prepared(serial, Ok(&[]), self.now),
            Action::Settle(serial) => drop(self.core.settle(serial)),
            Action::Notice(_) | Action::Flush | Action::Leave => {}
        }
    }

    /// Hears what the daemon is told. It has forgotten dropped jobs.
    fn hear(&mut self, told: FromKeeper) {
        let (FromKeeper::StepEnded { key, .. }
        | FromKeeper::Cleared { key, .. }
        | FromKeeper::Closed { key, .. }
        | FromKeeper::Storage { key, .. }) = &told
        else {
            return;
        };
        let job = key.0[0];
        let stopped: Vec<u32> =
            self.body(job).map(|body| body.stops.keys().copied().collect()).unwrap_or_default();
        let Some(daemon) = self.jobs.get_mut(&job) else {
            return self.wrongs.push(format!("{told:?} of a job that was dropped"));
        };
        match told {
            FromKeeper::StepEnded { ended, .. } => {
                *daemon.ended.entry(ended.process).or_default() += 1;
                let is_success = matches!(ended.end, StepEnd::Exited(status) if status.is_success());
                let is_last = daemon.last_step.take_if(|process| *process == ended.process).is_some();
                let is_free = daemon.first_end.is_none() && !stopped.contains(&ended.process);
                let should = is_last && is_success && ended.left == 0 && is_free;
                if ended.closes != should {
                    self.wrongs.push(format!("{ended:?} closes its job: {}", ended.closes));
                }
                daemon.closes |= ended.closes;
                if daemon.closed > 0 && !matches!(ended.end, StepEnd::NotStarted { .. }) {
                    self.wrongs.push(format!("{ended:?} behind the end of its job"));
                }
            }
            FromKeeper::Cleared { call, .. } if !daemon.clears.contains(&call) => {
                self.wrongs.push(format!("call {call} waits for nothing"));
            }
            FromKeeper::Closed { .. } => {
                daemon.closed += 1;
                let open = daemon.processes.iter().find(|process| !daemon.ended.contains_key(process));
                if let Some(process) = open {
                    self.wrongs.push(format!("the job is closed before process {process} is over"));
                }
            }
            _ => {}
        }
    }

    fn perform(&mut self, serial: Serial, action: JobAction) -> Option<Event> {
        let (now, leftover_keep) = (self.now, self.core.settings().leftover_keep);
        let body = &mut self.core.get_mut(serial)?.body;
        let is_alive = !body.running.is_empty() || body.left.values().any(|left| *left > 0);
        let stops = body.stops.clone();
        let is_early = |process: &ProcessNumber| stops.get(process).is_some_and(|stop| now < stop.kill_at);
        let wrong = match &action {
            JobAction::Start(_) if body.is_ended => Some("a start behind the request to end"),
            JobAction::Start(process) if body.stops.contains_key(process) => {
                Some("a start behind the request to stop")
            }
            JobAction::KillStep(process)
                if is_early(process) && body.running.iter().any(|run| run.process == *process) =>
            {
                Some("SIGKILL of a step within its grace")
            }
            JobAction::Kill if leftover_keep && body.kill_at.is_none_or(|at| now < at) => {
                Some("SIGKILL within the grace")
            }
            JobAction::Line(..) | JobAction::ShowProcesses(_) | JobAction::WriteEnd { .. }
                if body.is_closed =>
            {
                Some("a line in a closed log")
            }
            JobAction::WriteEnd { has_survivors, .. } if *has_survivors != is_alive => {
                Some("survivors are not what is said of them")
            }
            _ => None,
        };
        self.wrongs.extend(wrong.map(str::to_owned));
        match action {
            JobAction::Line(..) | JobAction::ShowProcesses(_) => body.log.len += 10,
            JobAction::Start(process) if body.whims.is_busy => {
                body.whims.is_busy = false;
                let failure =
                    StartFailure { part: StartPart::Stage(spawn::Stage::Exec), errno: 26, is_busy: true };
                return Some(Event::StartFailed(process, failure));
            }
            JobAction::Start(process) => {
                body.running.push(Running { process, is_deaf: body.whims.is_deaf });
                return Some(Event::Started(process));
            }
            JobAction::NotStarted(process, _) => return Some(Event::Ended(not_started(process))),
            JobAction::FinishStep(finish) => {
                // A process that nothing ends lives on.
                let before = body.running.len();
                body.running.retain(|run| run.process != finish.process);
                *body.left.entry(finish.process).or_default() += (before - body.running.len()) as u8;
                return Some(Event::Ended(exited(&finish, body.left.values().sum())));
            }
            JobAction::CheckEmpty(EmptyCheck::Clear(process)) => {
                let is_empty = body.left.get(&process).is_none_or(|left| *left == 0);
                return Some(Event::CheckedEmpty(EmptyCheck::Clear(process), is_empty));
            }
            JobAction::CheckLeftEmpty { reason, processes } => {
                let is_empty =
                    processes.iter().all(|process| body.left.get(process).is_none_or(|left| *left == 0));
                return Some(Event::CheckedLeftEmpty(reason, is_empty));
            }
            JobAction::TerminateLeft(processes) if !body.whims.is_stuck => {
                body.left.retain(|process, _| !processes.contains(process));
            }
            JobAction::KillStep(process) if !body.whims.is_stuck => {
                body.left.remove(&process);
                let killed = body.running.extract_if(.., |run| run.process == process);
                self.dead.extend(killed.map(|run| (serial, run.process, ExitStatus::Signal(9))));
            }
            JobAction::CheckEmpty(check) => {
                // Signals have worked when somebody looks.
                return Some(Event::CheckedEmpty(check, !is_alive));
            }
            JobAction::Terminate(process) => {
                let obeys = body
                    .running
                    .iter()
                    .any(|run| run.process == process && !run.is_deaf && !body.whims.is_stuck);
                if obeys {
                    body.running.retain(|run| run.process != process);
                    self.dead.push((serial, process, ExitStatus::Signal(15)));
                }
            }
            JobAction::Kill if !body.whims.is_stuck => {
                body.left.clear();
                let killed = std::mem::take(&mut body.running);
                self.dead.extend(killed.into_iter().map(|run| (serial, run.process, ExitStatus::Signal(9))));
            }
            JobAction::WriteEnd { .. } => {
                body.log.len += 100;
                return Some(Event::EndWritten(Closed::default()));
            }
            JobAction::CloseLog { closed, .. } => {
                body.is_closed = true;
                return Some(Event::LogClosed(closed));
            }
            _ => {}
        }
        None
    }
}

fn not_started(process: ProcessNumber) -> StepEnded {
    ended(process, StepEnd::NotStarted { part: StartPart::Cancelled, errno: 125 }, 0)
}

fn exited(finish: &FinishStep, left: u8) -> StepEnded {
    ended(finish.process, StepEnd::Exited(finish.status), u32::from(left))
}

fn ended(process: ProcessNumber, end: StepEnd, left: u32) -> StepEnded {
    let ran = FinishedProcess { ended: 0, log_len: 0, usage: None };
    StepEnded { process, end, left, shortage: None, usage: Usage::default(), ran, closes: false }
}
