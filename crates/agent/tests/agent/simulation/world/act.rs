//! Requests of the agent, as they reach server and machine.

use super::*;

impl World {
    pub(super) fn act(&mut self, id: u64, action: Action) {
        match action {
            Action::Claim => {
                self.spaced(id, "claim", 500);
                self.soon(80, Due::Arrive(id, Sent::Claim));
            }
            Action::Append { from, to } => {
                let folder = &self.disk.0[&id];
                let whole = [&folder.trace[..], &folder.tail].concat();
                let record = Record::decode(&folder.record).unwrap();
                let there = if record.phase >= Phase::Ended { whole } else { folder.trace.clone() };
                let bytes = there[from as usize..to as usize].to_vec();
                self.soon(80, Due::Arrive(id, Sent::Append { from, bytes }));
            }
            Action::SignOfLife(_) => {
                self.spaced(id, "sign of life", 25_000);
                self.soon(80, Due::Arrive(id, Sent::SignOfLife));
            }
            Action::Report(outcome, sum) => {
                self.spaced(id, "report", 500);
                self.totals.repeated += 1;
                self.soon(80, Due::Arrive(id, Sent::Report(outcome, sum)));
            }
            Action::Remove => {
                let is_gone = !self.random.chance(50);
                if is_gone {
                    self.machine.finish(id);
                    self.machine.environments.remove(&id);
                }
                self.soon(300, Due::Job(id, Event::Removed(is_gone)));
            }
            Action::Prepare => self.prepare(id),
            Action::Look => {
                let is_there = self.machine.environments.contains_key(&id);
                self.soon(300, Due::Job(id, Event::Looked(is_there)));
            }
            Action::Run => self.run_job(id),
            Action::Follow(offset) => {
                self.serial += 1;
                let stream = self.serial;
                if let Some(agent) = &mut self.agent {
                    agent.streams.insert(id, stream);
                }
                self.soon(300, Due::Stream(id, offset, stream));
            }
            Action::Cancel(how) => {
                let is_taken = !self.random.chance(50) && self.machine.cancel(id, how, self.now);
                self.soon(100, Due::Job(id, Event::CancelAnswered(is_taken)));
            }
            Action::Finish => {
                let is_gone = !self.random.chance(50);
                if is_gone {
                    self.machine.finish(id);
                }
                self.soon(100, Due::Job(id, Event::FinishAnswered(is_gone)));
            }
            Action::FreeSlot => self.schedule(scheduler::Event::JobEnded(EntryId(0))),
            Action::PreparationOver { is_system_failure } => {
                self.schedule(scheduler::Event::Prepared { entry: EntryId(0), is_system_failure });
            }
            Action::Tell(_) => {}
            other => panic!("{other:?} without a folder"),
        }
    }

    fn prepare(&mut self, id: u64) {
        for line in 0..self.heads {
            let wait = self.now + 1 + line;
            self.at(
                wait,
                Some(self.epoch),
                Due::Job(id, Event::Line(format!("Pulling image {line} \u{20ac}"))),
            );
        }
        let result = match self.random.below(20) {
            0 => Err((EnvironmentFailure::System, "no space left".to_owned())),
            1 => Err((EnvironmentFailure::Image, "no such image".to_owned())),
            _ => Ok(()),
        };
        if result.is_ok() {
            self.machine.environments.insert(id, Environment::default());
        }
        let wait = self.now + 10 + self.random.below(8_000);
        self.at(wait, Some(self.epoch), Due::Job(id, Event::Prepared(result)));
    }

    fn run_job(&mut self, id: u64) {
        let status = self.server.jobs[&id].status;
        assert!(!matches!(status, Status::Pending | Status::Created), "started before the server knew");
        let answer = match self.random.below(30) {
            0 => RunAnswer::Refused(Refusal::Content, "a variable".to_owned()),
            1 => RunAnswer::None,
            _ if self.machine.run(id, self.now, &mut self.random) => RunAnswer::Accepted(Vec::new()),
            _ => RunAnswer::None,
        };
        let answer = if self.machine.job(id).is_some() && self.random.chance(100) {
            RunAnswer::None
        } else {
            match (answer, self.machine.job(id)) {
                (RunAnswer::Refused(..), Some(_)) => RunAnswer::Accepted(Vec::new()),
                (answer, _) => answer,
            }
        };
        self.soon(200, Due::Job(id, Event::RunAnswered(answer)));
    }

    /// Checks that calls of a kind keep their distance.
    fn spaced(&mut self, id: u64, kind: &'static str, least: u64) {
        let Some(agent) = &mut self.agent else { return };
        if let Some(before) = agent.last.insert((id, kind), self.now) {
            assert!(self.now - before >= least, "{kind} of job {id} after {} ms", self.now - before);
        }
    }
}
