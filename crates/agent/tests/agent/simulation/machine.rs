//! Environments with a daemon in each, as values.

use std::collections::BTreeMap;

use step_runner_agent::lifecycle::{CancelHow, DaemonEnd};
use step_runner_agent::outcome::FailedStep;

use super::random::Random;

/// A job in a daemon. Its log grows with time; its end comes once the log is whole.
pub(crate) struct DaemonJob {
    start: u64,
    end: u64,
    log: Vec<u8>,
    result: DaemonEnd,
}

/// One environment.
#[derive(Default)]
pub(crate) struct Environment {
    pub(crate) job: Option<DaemonJob>,
}

/// The machine, or the cluster.
#[derive(Default)]
pub(crate) struct Machine {
    /// By job.
    pub(crate) environments: BTreeMap<u64, Environment>,
    /// Starts of each job.
    pub(crate) starts: BTreeMap<u64, u32>,
    /// Logs of jobs that have ended.
    pub(crate) logs: BTreeMap<u64, Vec<u8>>,
}

impl DaemonJob {
    fn new(now: u64, random: &mut Random) -> Self {
        let mut log = Vec::new();
        for line in 0..random.below(40) {
            let source = ["01O ", "01O+", "01E ", "00O "][random.below(4) as usize];
            log.extend_from_slice(format!("2026-11-28T01:02:03.{line:06}Z {source}").as_bytes());
            log.extend(
                (0..random.below(60)).map(|_| [b'a', b'\r', 0xe2, 0x82, 0xac][random.below(5) as usize]),
            );
            log.push(b'\n');
        }
        let code = [0, 0, 0, 7, 137, -1, -3][random.below(7) as usize];
        let failed = (code != 0).then(|| FailedStep { name: "step_script".to_owned(), error_class: None });
        let result = DaemonEnd { code, failed, is_stop: false, message: format!("exit code {code}") };
        Self { start: now, end: now + random.below(90_000), log, result }
    }

    /// Returns the bytes of the log that are there.
    pub(crate) fn log(&self, now: u64) -> &[u8] {
        let (age, length) = (now.saturating_sub(self.start), (self.end - self.start).max(1));
        let there =
            if now >= self.end { self.log.len() } else { self.log.len() * age as usize / length as usize };
        &self.log[..there.min(self.log.len())]
    }

    /// Returns the end, if it has come.
    pub(crate) fn end(&self, now: u64) -> Option<DaemonEnd> {
        (now >= self.end).then(|| self.result.clone())
    }

    fn cancel(&mut self, how: CancelHow, now: u64) {
        if now >= self.end {
            return;
        }
        let mut there = self.log(now).to_vec();
        let border = there.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let more = self.log[border..].iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        there.truncate(border);
        // What was shown of an entry is completed.
        there.extend_from_slice(&self.log[border..border + more]);
        there.extend_from_slice(b"2026-11-28T01:02:04.000000Z 00E job cancelled\n");
        self.log = there;
        self.end = now + if how == CancelHow::WithCleanup { 3_000 } else { 0 };
        self.start = self.start.min(self.end);
        self.result = DaemonEnd { code: -2, failed: None, is_stop: false, message: "cancelled".to_owned() };
    }
}

impl Machine {
    /// Takes a request for a job. Returns false without an environment.
    pub(crate) fn run(&mut self, job: u64, now: u64, random: &mut Random) -> bool {
        let Some(environment) = self.environments.get_mut(&job) else { return false };
        if environment.job.is_none() {
            environment.job = Some(DaemonJob::new(now, random));
            *self.starts.entry(job).or_default() += 1;
        }
        true
    }

    pub(crate) fn job(&self, job: u64) -> Option<&DaemonJob> {
        self.environments.get(&job)?.job.as_ref()
    }

    pub(crate) fn cancel(&mut self, job: u64, how: CancelHow, now: u64) -> bool {
        match self.environments.get_mut(&job).and_then(|environment| environment.job.as_mut()) {
            Some(found) => {
                found.cancel(how, now);
                true
            }
            None => false,
        }
    }

    /// Forgets a job. Its log is kept for the comparison.
    pub(crate) fn finish(&mut self, job: u64) {
        let found = self.environments.get_mut(&job).and_then(|environment| environment.job.take());
        self.logs.extend(found.map(|found| (job, found.log)));
    }
}
