//! What a dead keeper's jobs left running: found and killed by the next daemon, before it serves (service.md §6.4).

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::group::signal_process;
use super::sweep::{Marks, Owner, Process, Scope, Sweeper};

/// Pause between two sweeps: long enough for a killed process to be gone.
const PAUSE: Duration = Duration::from_millis(2);

/// Processes to look for.
#[derive(Clone, Debug, Default)]
pub struct Remains {
    marks: Marks,
    /// No process that started before it can be in a group, by group.
    started: HashMap<u32, u64>,
}

impl Remains {
    /// Looks for the processes of the job with this tag.
    pub fn add_job(&mut self, tag: u128) {
        self.marks.tags.insert(tag);
    }

    /// Looks for the members of a group that the job's journal names. Call it only if the host has not been restarted
    /// since. A group without the leader that was recorded does not count: its number may be another's by now, and
    /// what is left of it still carries the tag.
    pub fn add_group(&mut self, tag: u128, pgid: u32, start_time: u64) {
        if Process::read(pgid).is_some_and(|leader| leader.start_time == start_time) {
            self.marks.groups.insert(pgid, tag);
            self.started.insert(pgid, start_time);
        }
    }

    /// Kills all of them, again and again until two sweeps find none or `limit` is over. Returns those that live on.
    /// Waits meanwhile: not for a thread that serves others.
    pub fn kill(&self, limit: Duration) -> Vec<u32> {
        let until = Instant::now() + limit;
        let mut sweeper = Sweeper::default();
        let mut clean = 0;
        loop {
            let found = self.find(&mut sweeper);
            clean = if found.is_empty() { clean + 1 } else { 0 };
            if clean == 2 || Instant::now() >= until {
                return found.into_iter().map(|process| process.pid).collect();
            }
            for process in &found {
                signal_process(process, &[Signal::KILL]);
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn find(&self, sweeper: &mut Sweeper) -> Vec<Process> {
        let own = std::process::id();
        let found = sweeper.find(Scope::Everywhere, &self.marks).unwrap_or_default();
        let ours = |(process, owner): &(Process, Owner)| {
            matches!(owner, Owner::Job(_))
                && process.pid != own
                && self.started.get(&process.group).is_none_or(|started| process.start_time >= *started)
        };
        found.into_iter().filter(ours).map(|(process, _)| process).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::sweep::TAG_VARIABLE;

    /// Waits until both processes of the job `tag` are what they become: on the way there a process has no environment to
    /// read.
    fn wait_for_both(tag: u128) {
        let entry = format!("{TAG_VARIABLE}={tag:032x}");
        let is_there = |process: &std::path::Path| {
            let read = |name| std::fs::read(process.join(name)).unwrap_or_default();
            read("cmdline").starts_with(b"sleep\0")
                && read("environ").split(|&byte| byte == 0).any(|found| found == entry.as_bytes())
        };
        let until = Instant::now() + Duration::from_mins(1);
        let both = || {
            let processes = std::fs::read_dir("/proc").unwrap().flatten();
            processes.filter(|process| is_there(&process.path())).count() == 2
        };
        while !both() {
            assert!(Instant::now() < until, "the job does not start");
            std::thread::yield_now();
        }
    }

    #[test]
    fn only_processes_of_the_named_jobs_are_killed() {
        let start = |tag: u128| {
            let mut command = std::process::Command::new("sh");
            command.args(["-c", "sleep 30 & exec sleep 31"]).env(TAG_VARIABLE, format!("{tag:032x}"));
            command.spawn().unwrap()
        };
        let [ours, other] =
            [0x5157_0001, 0x5157_0002].map(|tag: u128| tag << 64 | u128::from(std::process::id()));
        let (mut doomed, mut spared) = (start(ours), start(other));
        for tag in [ours, other] {
            wait_for_both(tag);
        }
        let mut remains = Remains::default();
        remains.add_job(ours);
        remains.add_group(ours, doomed.id(), 1);
        assert!(remains.marks.groups.is_empty(), "another process has the number");
        remains.add_group(ours, u32::MAX >> 1, 1);
        assert!(remains.marks.groups.is_empty(), "nobody has the number");
        assert_eq!(remains.kill(Duration::from_secs(20)), [0; 0]);
        assert!(!doomed.wait().unwrap().success());
        assert!(spared.try_wait().unwrap().is_none());
        remains = Remains::default();
        remains.add_job(other);
        assert_eq!(remains.kill(Duration::from_secs(20)), [0; 0]);
        spared.wait().unwrap();
    }
}
