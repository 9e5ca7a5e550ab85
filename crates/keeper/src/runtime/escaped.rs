//! Processes that have left the control group of their job: whoever may write to another group's `cgroup.procs` can move
//! any process of the same user there. Container engines do so on purpose.
//!
//! A process belongs to a job by its group or by descent. This process is a child subreaper: a process of a job becomes
//! our child when its ancestors have ended. The following signs then tell the job, the first one that says something:
//! the tag in its environment, a process group of the job's steps, and the time of its start. At that time
//! a step of its job ran. If steps of several jobs ran, it belongs to the job that ends last.

use std::collections::{HashMap, HashSet};

use rustix::time::ClockId;

use super::leftover::Leftovers;
use super::shared::KeeperShared;
use crate::core::Serial;
use step_runner_process::cgroup::Leaf;
use step_runner_process::sweep::{Process, family, own_children_except, tag_of};

/// Maximum number of looks at our children until no further one has ended meanwhile.
const LOOKUPS: u32 = 4;

/// Maximum number of processes whose children are looked for. If there are more, children that have left the group are found
/// when their parents have ended.
const MOST_PARENTS: usize = 1_000;

/// Maximum number of ancestors that are asked which job they belong to.
const MAX_GENERATIONS: usize = 64;

/// Nanoseconds of a clock tick in `/proc/PID/stat`.
const TICK: i64 = 10_000_000;

/// The time in which steps of a job ran, in clock ticks since boot.
struct Span {
    tag: u128,
    /// Start of its first step.
    began: u64,
    /// End of its latest step; `None` while that runs.
    ended: Option<u64>,
}

/// Times of all jobs that have started a step in a control group and are not closed.
#[derive(Default)]
pub(super) struct Spans(HashMap<Serial, Span>);

impl Spans {
    /// Notes the start of a step.
    pub(super) fn begin(&mut self, serial: Serial, tag: u128, start_time: u64) {
        let span = self.0.entry(serial).or_insert(Span { tag, began: start_time, ended: None });
        span.ended = None;
    }

    /// Notes the end of a step.
    pub(super) fn end(&mut self, serial: Serial) {
        if let Some(span) = self.0.get_mut(&serial) {
            span.ended = Some(now());
        }
    }

    /// Forgets a job that is closed.
    pub(super) fn forget(&mut self, serial: Serial) {
        self.0.remove(&serial);
    }

    fn has_other(&self, serial: Serial, tag: u128) -> bool {
        self.0.iter().any(|(other, span)| *other != serial && span.tag == tag)
    }

    /// True if the job can have started a process at the time `start`, and no other job can. Jobs with a running step come
    /// first: what earlier steps left behind seldom starts processes.
    fn is_only_suspect(&self, serial: Serial, start: u64) -> bool {
        let began = |span: &Span| span.began <= start;
        let ran = |span: &Span| began(span) && span.ended.is_none_or(|ended| start <= ended);
        let only = |is_suspect: &dyn Fn(&Span) -> bool| {
            let mut suspects = self.0.iter().filter(|(_, span)| is_suspect(span)).map(|(serial, _)| *serial);
            suspects.next().map(|first| first == serial && suspects.next().is_none())
        };
        only(&ran).or_else(|| only(&began)).unwrap_or_default()
    }
}

/// What tells processes of a job from those of other jobs.
pub(super) struct Signs<'a> {
    pub(super) serial: Serial,
    pub(super) tag: u128,
    pub(super) leftovers: &'a Leftovers,
    /// Processes of the running steps.
    pub(super) leaders: Vec<u32>,
}

/// Result of the signs that a process carries itself.
enum Carried {
    Ours,
    Others,
    Nothing,
}

impl Signs<'_> {
    fn carried(&self, process: &Process, shared: &KeeperShared) -> Carried {
        match tag_of(process.pid) {
            Some(tag) if tag == self.tag => Carried::Ours,
            Some(tag) if shared.spans.has_other(self.serial, tag) => Carried::Others,
            _ if self.leaders.contains(&process.pid) || self.leftovers.has(process) => Carried::Ours,
            _ => Carried::Nothing,
        }
    }

    /// True if our child belongs to the job although it is outside of the job's group.
    fn own(&self, child: &Process, shared: &KeeperShared) -> bool {
        match self.carried(child, shared) {
            Carried::Ours => true,
            Carried::Others => false,
            // Without a sign, a process in the group of another job belongs to that job.
            Carried::Nothing => {
                !shared.pool.as_ref().is_some_and(|pool| pool.holds(child.pid))
                    && shared.spans.is_only_suspect(self.serial, child.start_time)
            }
        }
    }

    /// True if the command of a left-over process may be shown with the phrases of this job alone: the process, or an
    /// ancestor of it, is certainly of this job. A process of another job can move into the job's group.
    pub(super) fn prove(&self, process: &Process, shared: &KeeperShared) -> bool {
        let mut at = *process;
        for _ in 0..MAX_GENERATIONS {
            match self.carried(&at, shared) {
                Carried::Ours => return true,
                Carried::Others => return false,
                Carried::Nothing if at.parent == std::process::id() => break,
                Carried::Nothing => {}
            }
            let Some(parent) = Process::read(at.parent) else { break };
            at = parent;
        }
        shared.spans.is_only_suspect(self.serial, at.start_time)
    }

    /// Returns our living children that belong to the job and are outside of its `leaf`.
    pub(super) fn children_outside(&self, leaf: &Leaf, shared: &KeeperShared) -> Vec<Process> {
        let is_known = |pid| shared.leaders.contains_key(&pid) || shared.reapers.contains(&pid);
        let (mut children, mut ended) = (own_children_except(is_known), 0);
        for _ in 0..LOOKUPS {
            let zombies = children.iter().filter(|child| child.zombie).count();
            if zombies <= ended {
                break;
            }
            // The children of one that has just ended became ours after the list was read.
            ended = zombies;
            children = own_children_except(is_known);
        }
        children.retain(|child| !child.zombie && !leaf.holds(child.pid) && self.own(child, shared));
        children
    }

    /// Returns all living processes of the job that are outside of its `leaf`. `members` are those inside. Descent counts as
    /// long as the parents live, so call this before they are killed.
    pub(super) fn outside(&self, leaf: &Leaf, members: &[Process], shared: &KeeperShared) -> Vec<Process> {
        let inside: HashSet<u32> = members.iter().map(|process| process.pid).collect();
        let mut found = self.children_outside(leaf, shared);
        let leaders = self.leaders.iter().filter(|leader| !inside.contains(leader));
        found.extend(leaders.filter_map(|leader| Process::read(*leader)).filter(|leader| !leader.zombie));
        let roots: Vec<u32> = found.iter().map(|process| process.pid).chain(inside).collect();
        if roots.len() <= MOST_PARENTS {
            found.extend(family(&roots));
        }
        let mut seen = HashSet::new();
        found.retain(|process| seen.insert(process.pid) && !leaf.holds(process.pid));
        found
    }
}

/// True if the process is in the process group of the step's process `leader`, or descends from it.
pub(super) fn is_below(process: &Process, leader: u32) -> bool {
    let mut at = *process;
    for _ in 0..MAX_GENERATIONS {
        if at.group == leader || at.pid == leader {
            return true;
        }
        let Some(parent) = Process::read(at.parent) else { return false };
        at = parent;
    }
    false
}

/// Returns the time since boot in clock ticks.
fn now() -> u64 {
    let now = rustix::time::clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * (1_000_000_000 / TICK as u64) + (now.tv_nsec / TICK) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(spans: &[(u64, Option<u64>)]) -> Spans {
        let numbered = spans.iter().zip(1..);
        Spans(numbered.map(|(&(began, ended), serial)| (serial, Span { tag: 0, began, ended })).collect())
    }

    #[test]
    fn fault_94_a_process_without_signs_is_of_the_job_whose_step_ran_when_it_began() {
        let both_rest = spans(&[(10, Some(20)), (30, Some(40))]);
        for (start, suspects) in
            [(5, [false; 2]), (10, [true, false]), (20, [true, false]), (25, [true, false])]
        {
            assert_eq!([1, 2].map(|serial| both_rest.is_only_suspect(serial, start)), suspects, "{start}");
        }
        for (start, suspects) in [(30, [false, true]), (40, [false, true]), (50, [false, false])] {
            assert_eq!([1, 2].map(|serial| both_rest.is_only_suspect(serial, start)), suspects, "{start}");
        }
        let second_runs = spans(&[(10, Some(20)), (30, None)]);
        assert_eq!([1, 2].map(|serial| second_runs.is_only_suspect(serial, 50)), [false, true]);
        // The last one of several gets it.
        let mut both_run = spans(&[(10, None), (10, None)]);
        assert_eq!([1, 2].map(|serial| both_run.is_only_suspect(serial, 50)), [false, false]);
        both_run.forget(1);
        assert!(both_run.is_only_suspect(2, 50));
    }
}
