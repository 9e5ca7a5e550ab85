//! Checks the states of jobs.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Life, Oracle};
use step_runner::actors::view::JobStatus;
use step_runner::model::{EndClass, JobState};

impl Oracle {
    /// Checks all jobs as Status shows them now.
    pub(crate) fn observe(&mut self, jobs: &[JobStatus]) {
        let now = self.now();
        let mut present = BTreeSet::new();
        for status in jobs {
            let key = (status.id.to_string(), status.registered);
            if !self.lives.contains_key(&key) {
                self.note(format!("{} is registered ({})", key.0, key.1));
            }
            present.insert(key.clone());
            self.observe_one(key, status, now);
        }
        let gone: Vec<_> = self.present.difference(&present).cloned().collect();
        for key in gone {
            self.note(format!("{} is gone", key.0));
            self.vanished(&key, now);
        }
        self.present = present;
        self.looked = now;
        self.check_slots();
        let started = self.account.borrow().order.len();
        while self.executions < started {
            let (tag, _) = self.account.borrow().order[self.executions];
            let content = self.account.borrow().content.get(&tag).copied();
            self.executions += 1;
            if let Some(content) = content {
                self.executed(content);
            }
        }
    }

    /// Records that a job of this content has run its first step.
    fn executed(&mut self, content: u64) {
        let (id, content) = (content / 10, content % 10);
        let life = self.present.iter().find(|(name, _)| *name == format!("job-{id}")).cloned();
        let is_unseen = life.is_none();
        match life {
            Some(life) => drop(self.contents.insert(life, content)),
            None => drop(self.unseen.insert(id, (self.now(), content))),
        }
        self.note(format!("content {content} of job-{id} runs"));
        let since = self.remembered.get(&(id, content)).copied();
        if since.is_some_and(|at| self.now().saturating_sub(at) < Duration::from_mins(59)) {
            self.wrong(format!("content {content} of job-{id} runs again after its Finish"));
        }
        if is_unseen {
            // If it is finished before anyone sees it, it is this request that is remembered.
            self.remembered.retain(|(known, _), _| *known != id);
        }
    }

    fn observe_one(&mut self, key: (String, i64), status: &JobStatus, now: Duration) {
        let (armed_now, looked) = (self.armed_now, self.looked);
        let number = key.0.strip_prefix("job-").and_then(|id| id.parse::<u64>().ok());
        let is_new = !self.lives.contains_key(&key);
        let unseen = number.filter(|_| is_new).and_then(|id| self.unseen.remove(&id));
        if let Some((_, content)) = unseen {
            self.contents.insert(key.clone(), content);
        }
        let life = self.lives.entry(key.clone()).or_insert_with(|| {
            // The simulator itself finishes the jobs of the last round.
            let id = key.0.strip_prefix("job-").and_then(|id| id.parse().ok());
            let finish_asked =
                id.is_none_or(|id: u64| self.finishing.get(&id).is_some_and(|count| *count > 0));
            // The keeper can have died while the job was being registered.
            let is_cut = id.is_some_and(|id| self.cut_runs.remove(&id));
            let keeper_died = is_cut || self.died_at.is_some_and(|at| at + Duration::from_secs(2) >= now);
            // What died with the keeper when the Run was cut is not known here: perhaps the daemon, or the host.
            let (keyless, rebooted) = (is_cut, is_cut);
            // A job may begin before its Run is answered.
            let asked = id.and_then(|id| self.asked_runs.get(&id)).map(|runs| runs.since);
            // It may even begin and lose its daemon, which alone knew of the Run.
            let asked = asked.into_iter().chain(unseen.map(|(at, _)| at)).min();
            Life { armed: armed_now, finish_asked, keeper_died, keyless, rebooted, asked, ..Life::default() }
        });
        let mut wrongs = Vec::new();
        if life.gone {
            wrongs.push("is there again after it was removed".to_owned());
        }
        if let Some(last) = &life.last {
            if rank(status.state) < rank(last.state) {
                wrongs.push(format!("went back from {:?} to {:?}", last.state, status.state));
            }
            if status.log_bytes < last.log_bytes {
                wrongs.push(format!("its log shrank from {} to {}", last.log_bytes, status.log_bytes));
            }
            if last.start_time.is_some() && last.start_time != status.start_time {
                wrongs.push(format!("its start moved from {:?} to {:?}", last.start_time, status.start_time));
            }
            let end = |status: &JobStatus| {
                (status.state, status.exit_code, status.message.clone(), status.end_time, status.log_bytes)
            };
            if matches!(last.state, JobState::Ended(_)) && end(last) != end(status) {
                wrongs.push(format!("its end changed from {:?} to {:?}", end(last), end(status)));
            }
        }
        if status.start_time.is_some() {
            life.began.get_or_insert(life.asked.unwrap_or(looked).min(looked));
        }
        let mut ended = None;
        if let (JobState::Ended(class), None) = (status.state, life.ended) {
            life.ended = Some(looked);
            ended = Some(class);
        }
        let changed = life.last.as_ref().is_none_or(|last| last.state != status.state);
        life.last = Some(status.clone());
        for wrong in wrongs {
            self.wrong(format!("{} ({}): {wrong}", key.0, key.1));
        }
        if changed {
            self.note(format!(
                "{} is {:?} {} {:?} {}",
                key.0, status.state, status.exit_code, status.message, status.log_bytes
            ));
        }
        if let Some(class) = ended {
            self.judge_end(&key, class, status, now);
        }
    }

    /// Checks that the job had a reason to end this way.
    fn judge_end(&self, key: &(String, i64), class: EndClass, status: &JobStatus, now: Duration) {
        let Some(life) = self.lives.get(key) else { return };
        let internal = status.message.starts_with("internal");
        let fine = match class {
            EndClass::Interrupted => life.keeper_died || life.armed,
            EndClass::Timeout => life.began.is_some_and(|began| {
                let shortest = self.shortest_limit(key).min(self.runaway_after);
                now.saturating_sub(began) + Duration::from_millis(2) >= shortest
            }),
            EndClass::Cancelled => {
                let waited = life.began.is_none();
                life.cancel_asked || life.finish_asked || waited && now >= self.queued_after
            }
            EndClass::Success => status.exit_code == 0 && status.message.is_empty(),
            EndClass::Failure if internal => life.armed,
            EndClass::Failure => status.exit_code > 0,
        };
        if !fine {
            self.wrong(format!(
                "{} ends as {class:?} ({}: {:?}) without a reason; began {:?}, shortest limit {:?}",
                key.0,
                status.exit_code,
                status.message,
                life.began,
                self.shortest_limit(key)
            ));
        }
        if life.cancelled_waiting && class != EndClass::Cancelled && !(internal && life.armed) {
            self.wrong(format!("{} was cancelled while it waited and ends as {class:?}", key.0));
        }
    }

    /// Returns the shortest time limit among the requests of an id.
    fn shortest_limit(&self, key: &(String, i64)) -> Duration {
        let id = key.0.strip_prefix("job-").and_then(|id| id.parse::<usize>().ok());
        let limits = id.and_then(|id| self.limits.get(id));
        limits.into_iter().flatten().flatten().min().copied().unwrap_or(Duration::MAX)
    }

    fn vanished(&mut self, key: &(String, i64), now: Duration) {
        let stale_after = self.stale_after;
        let Some(life) = self.lives.get_mut(key) else { return };
        life.gone = true;
        let keyless = life.keyless;
        let stale =
            life.ended.is_some_and(|at| now.saturating_sub(at) + Duration::from_secs(1) >= stale_after);
        if !life.finish_asked && !stale && !life.rebooted {
            let text = format!("{} vanished: nobody finished it; ended {:?}", key.0, life.ended);
            self.wrong(text);
        }
        // The last request of an id is remembered, whoever removed the job.
        let content = self.contents.get(key).copied();
        if let Some(id) = key.0.strip_prefix("job-").and_then(|id| id.parse::<u64>().ok()) {
            self.remembered.retain(|(known, _), _| *known != id);
            if let Some(content) = content.filter(|_| !keyless) {
                self.remembered.insert((id, content), now);
            }
        }
    }
}

/// Returns the order of states. A job never goes back to an earlier one.
const fn rank(state: JobState) -> u8 {
    match state {
        JobState::Queued => 0,
        JobState::Running => 1,
        JobState::Cancelling => 2,
        JobState::Ended(_) => 3,
    }
}
