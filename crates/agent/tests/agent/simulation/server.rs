//! A server as a value: jobs with their states and traces. It answers as GitLab does, and is in trouble at times.

use std::collections::BTreeMap;

use step_runner_agent::answer::{Answer, JobStatus, Reply, Unreachable};
use step_runner_agent::final_update::TraceSum;
use step_runner_agent::outcome::{Outcome, State};

use super::random::Random;

/// State of a job at the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// Nobody has it.
    Created,
    /// It was given, and the claim is awaited.
    Pending,
    Running,
    Canceling,
    /// The server has ended it: cancelled, or dropped.
    Dropped,
    /// A final update ended it.
    Reported(State),
}

/// A job at the server.
pub(crate) struct ServerJob {
    pub(crate) status: Status,
    pub(crate) trace: Vec<u8>,
    /// Final updates that were taken.
    pub(crate) reports: u32,
    /// Answers 202 that are still to come.
    storing: u64,
    /// True if the trace gets lost once.
    loses_trace: bool,
}

/// The server.
pub(crate) struct Server {
    pub(crate) jobs: BTreeMap<u64, ServerJob>,
    /// In thousandths: answers of a server in trouble.
    pub(crate) trouble: u64,
    /// True while it cannot be reached.
    pub(crate) is_away: bool,
    /// In thousandths: 403 that mean nothing.
    pub(crate) odd: u64,
}

/// A request about a job.
#[derive(Clone, Debug)]
pub(crate) enum Sent {
    Claim,
    Append { from: u64, bytes: Vec<u8> },
    SignOfLife,
    Report(Outcome, TraceSum),
}

impl Server {
    pub(crate) fn new(count: u64, random: &mut Random) -> Self {
        let job = |random: &mut Random| ServerJob {
            status: Status::Created,
            trace: Vec::new(),
            reports: 0,
            storing: if random.chance(300) { random.below(4) } else { 0 },
            loses_trace: random.chance(150),
        };
        let jobs = (0..count).map(|id| (1_001 + id, job(random))).collect();
        Self { jobs, trouble: random.below(3) * 60, is_away: false, odd: random.below(2) * 8 }
    }

    /// Gives a job away, or none.
    pub(crate) fn request(&mut self, random: &mut Random) -> (Reply, Option<u64>) {
        if let Some(reply) = self.in_trouble(random) {
            return (reply, None);
        }
        let next = self.jobs.iter_mut().find(|(_, job)| job.status == Status::Created);
        let Some((id, job)) = next else { return (Ok(Answer::status(204)), None) };
        job.status = Status::Pending;
        (Ok(Answer::status(201)), Some(*id))
    }

    fn in_trouble(&self, random: &mut Random) -> Option<Reply> {
        if self.is_away {
            return Some(if random.chance(500) { Err(Unreachable) } else { Ok(Answer::status(503)) });
        }
        random.chance(self.trouble).then(|| match random.below(4) {
            0 => Err(Unreachable),
            1 => Ok(Answer::status(500)),
            2 => Ok(Answer::status(429)),
            _ => Ok(Answer::status(502)),
        })
    }

    /// Takes a request about a job. The answer can get lost.
    pub(crate) fn call(&mut self, id: u64, sent: &Sent, random: &mut Random) -> Reply {
        if let Some(reply) = self.in_trouble(random) {
            return reply;
        }
        let (odd, trouble) = (self.odd, self.trouble);
        let job = self.jobs.get_mut(&id).unwrap();
        let reply = match job.status {
            Status::Created => panic!("job {id} was given to nobody"),
            Status::Pending => job.claim(sent, random),
            Status::Dropped => answer(403, JobStatus::Over),
            Status::Reported(_) => answer(403, JobStatus::Other),
            Status::Running | Status::Canceling if random.chance(odd) => Ok(Answer::status(403)),
            Status::Running | Status::Canceling => job.take(sent),
        };
        if random.chance(trouble / 2) { Err(Unreachable) } else { reply }
    }
}

#[expect(clippy::unnecessary_wraps, reason = "an answer is a reply, and so is none")]
fn answer(status: u16, job: JobStatus) -> Reply {
    Ok(Answer { job_status: Some(job), interval: Some("1".to_owned()), ..Answer::status(status) })
}

impl ServerJob {
    fn claim(&mut self, sent: &Sent, random: &mut Random) -> Reply {
        assert!(matches!(sent, Sent::Claim), "{sent:?} before the claim");
        if random.chance(40) {
            self.status = Status::Dropped;
            let status = [400, 403, 404, 409][random.below(4) as usize];
            return Ok(Answer::status(status));
        }
        self.status = Status::Running;
        answer(200, JobStatus::Other)
    }

    fn take(&mut self, sent: &Sent) -> Reply {
        let canceling = self.status == Status::Canceling;
        let status = if canceling { JobStatus::Canceling } else { JobStatus::Other };
        match sent {
            Sent::Claim | Sent::SignOfLife => answer(200, status),
            Sent::Append { from, bytes } => {
                if *from != self.trace.len() as u64 {
                    let range = Some(self.trace.len() as u64);
                    return Ok(Answer { range, job_status: Some(status), ..Answer::status(416) });
                }
                self.trace.extend_from_slice(bytes);
                answer(202, status)
            }
            Sent::Report(outcome, sum) => {
                let found = TraceSum { len: self.trace.len() as u64, crc: crc32fast::hash(&self.trace) };
                if std::mem::take(&mut self.loses_trace) || found != *sum {
                    self.trace.clear();
                    return answer(412, status);
                }
                if self.storing > 0 {
                    self.storing -= 1;
                    return answer(202, status);
                }
                self.status = Status::Reported(outcome.state);
                self.reports += 1;
                answer(200, JobStatus::Other)
            }
        }
    }
}
