//! Checks the data that followers of logs and steps receive.

use super::{Follower, Oracle};
use step_runner::actors::stored::StoredKind;
use step_runner::actors::view::JobStatus;
use step_runner::grpc::stored_kind;
use step_runner::model::{Reason, Refusal};

impl Oracle {
    /// Returns the length of the longest part of a log that a follower has received.
    pub(crate) fn seen(&self, id: u64, life: i64) -> u64 {
        self.lives.get(&(format!("job-{id}"), life)).map_or(0, |life| life.log.len() as u64)
    }

    pub(crate) fn follow_asked(&mut self, id: u64, life: i64, leaves: bool) -> Follower {
        self.followers += 1;
        if !leaves {
            self.open.insert(self.followers);
        }
        Follower { number: self.followers, id, life }
    }

    pub(crate) fn follow_refused(&mut self, follower: Follower, at: u64, refusal: &Refusal) {
        self.open.remove(&follower.number);
        self.note(format!("FollowLogs job-{} at {at}: {}", follower.id, refusal.reason.word()));
        let key = (format!("job-{}", follower.id), follower.life);
        let finished = self.lives.get(&key).is_some_and(|life| life.finish_asked || life.gone);
        let fine = refusal.reason == Reason::UnknownJob && finished;
        if !fine {
            self.wrong(format!("FollowLogs of job-{} at {at} is refused: {refusal}", follower.id));
        }
    }

    pub(crate) fn read(&mut self, follower: Follower, at: u64, bytes: &[u8]) {
        let key = (format!("job-{}", follower.id), follower.life);
        let Some(life) = self.lives.get_mut(&key) else { return };
        let at = at as usize;
        let known = life.log.len().saturating_sub(at).min(bytes.len());
        let same = life.log.get(at..at + known) == bytes.get(..known);
        let gap = at > life.log.len();
        if !gap {
            life.log.extend_from_slice(&bytes[known..]);
        }
        if !same || gap || bytes.is_empty() {
            self.wrong(format!(
                "the log of job-{} differs at {at}: {:?}",
                follower.id,
                String::from_utf8_lossy(bytes)
            ));
        }
    }

    pub(crate) fn read_to_end(&mut self, follower: Follower, at: u64, status: Option<&JobStatus>) {
        self.open.remove(&follower.number);
        self.note(format!("FollowLogs job-{} ends at {at}", follower.id));
        let Some(status) = status.filter(|status| status.registered == follower.life) else { return };
        if status.end_time.is_none() {
            self.wrong(format!("FollowLogs of job-{} ends while it is {:?}", follower.id, status.state));
        } else if status.log_bytes != at {
            self.wrong(format!("FollowLogs of job-{} ends at {at} of {}", follower.id, status.log_bytes));
        }
    }

    pub(crate) fn steps_refused(&mut self, id: u64, life: i64, refusal: &Refusal) {
        self.note(format!("FollowSteps job-{id}: {}", refusal.reason.word()));
        let key = (format!("job-{id}"), life);
        let finished = self.lives.get(&key).is_some_and(|life| life.finish_asked || life.gone);
        if !(finished && matches!(refusal.reason, Reason::UnknownJob | Reason::DataLoss)) {
            self.wrong(format!("FollowSteps of job-{id} is refused: {refusal}"));
        }
    }

    pub(crate) fn step_read(&mut self, id: u64, life: i64, at: usize, result: &[u8]) {
        let Some(life) = self.lives.get_mut(&(format!("job-{id}"), life)) else { return };
        let wrong = match life.results.get(at) {
            Some(known) => known != result,
            None if life.results_end => true,
            None => {
                life.results.push(result.to_vec());
                life.results.len() != at + 1
            }
        };
        if wrong {
            self.wrong(format!("result {at} of job-{id} is another one than before"));
        }
    }

    pub(crate) fn steps_end(&mut self, id: u64, life: i64, count: usize) {
        self.note(format!("FollowSteps job-{id} ends after {count}"));
        let Some(life) = self.lives.get_mut(&(format!("job-{id}"), life)) else { return };
        life.results_end = true;
        let has_root = life.results.last().is_some_and(|last| stored_kind(last) == StoredKind::Root);
        if !has_root || life.results.len() != count {
            self.wrong(format!(
                "the results of job-{id} end after {count} of {}, root: {has_root}",
                self.known(id)
            ));
        }
    }
}
