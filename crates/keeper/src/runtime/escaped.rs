//! Processes that have left the control group of their job: whoever may write to another group's `cgroup.procs` can move
//! any process of the same user there. Container engines do so on purpose.
//!
//! A process belongs to a job by its group or by descent. This process is a child subreaper: a process of a job becomes
//! our child when its ancestors have ended. The following signs then tell the job, the first one that says something:
//! the tag in its environment, a process group of the job's steps, and the time of its start. At that time
//! a step of its job ran. If steps of several jobs ran, it belongs to the job that ends last.

use std::collections::HashSet;

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
