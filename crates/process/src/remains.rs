//! Finds and kills processes that a dead keeper's jobs left running, before the next daemon serves (service.md §6.4).

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::freezer::thaw_process;
use super::group::signal_process;
use super::sweep::{Marks, Process, Sweeper, tag_of_reaper};

/// Pause between two sweeps: long enough for a killed process to be gone.
const PAUSE: Duration = Duration::from_millis(2);

/// Processes to look for.
#[derive(Clone, Debug, Default)]
pub struct Remains {
    marks: Marks,
    /// Start time of each group's leader: an older process cannot be in the group.
    started: HashMap<u32, u64>,
}

impl Remains {
    /// Looks for the processes of the job with this tag.
    pub fn add_job(&mut self, tag: u128) {
        self.marks.tags.insert(tag);
    }

    /// Looks for the members of a group that the job's journal names. Call it only if the host was not restarted since.
    /// A group whose recorded leader is gone does not count: its number may be reused, and its processes carry the tag.
    pub fn add_group(&mut self, tag: u128, pgid: u32, start_time: u64) {
        if Process::read(pgid).is_some_and(|leader| leader.start_time == start_time) {
            self.marks.groups.insert(pgid, tag);
            self.started.insert(pgid, start_time);
        }
    }

    /// Kills all of them, again and again until two sweeps find none or `limit` is over. Returns the survivors. Blocks:
    /// do not call it on a thread that serves others.
    pub fn kill(&self, limit: Duration) -> Vec<u32> {
        let until = Instant::now() + limit;
        let mut sweeper = Sweeper::default();
        let (mut clean, mut rounds) = (0, 0);
        loop {
            let found = self.find(&mut sweeper);
            clean = if found.is_empty() { clean + 1 } else { 0 };
            let is_over = Instant::now() >= until;
            let parents: HashSet<u32> = found.iter().map(|process| process.parent).collect();
            for process in found.iter().filter(|_| clean < 2) {
                // A reaper kills everything below it, and then ends. Orphans come to it, so it must not die before
                // them. It may have been stopped.
                let is_needed = !is_over && parents.contains(&process.pid) && is_reaper(process);
                signal_process(process, &[if is_needed { Signal::CONT } else { Signal::KILL }]);
                if rounds > 0 {
                    // It has outlived a signal: its group of version 1 may be frozen.
                    thaw_process(process.pid);
                }
            }
            if clean == 2 || is_over {
                return found.iter().filter(|p| !is_reaper(p)).map(|process| process.pid).collect();
            }
            rounds += 1;
            std::thread::sleep(PAUSE);
        }
    }

    fn find(&self, sweeper: &mut Sweeper) -> Vec<Process> {
        let own = std::process::id();
        let found = sweeper.find(&self.marks).unwrap_or_default();
        let ours = |(process, _): &(Process, u128)| {
            process.pid != own
                && self.started.get(&process.group).is_none_or(|started| process.start_time >= *started)
        };
        found.into_iter().filter(ours).map(|(process, _)| process).collect()
    }
}

fn is_reaper(process: &Process) -> bool {
    tag_of_reaper(process.pid).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::TAG_VARIABLE;

    /// Waits until both processes of the job `tag` run their programs: before, a process has no environment to read.
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
