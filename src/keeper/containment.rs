//! The processes of one job: are there any, and the end of them (service.md §6.5).

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use super::shared::Shared;
use crate::process::cgroup::{Leaf, Usage};
use crate::process::sweep::{Owner, Process, Scope, unknown_children};
use crate::process::{group, sweep};

/// How long one call may chase processes that fork faster than they are found.
const CHASE: Duration = Duration::from_millis(10);

/// What holds the processes of a job together.
#[derive(Default)]
pub(super) struct Containment {
    /// Value of `STEP_RUNNER_JOB`.
    pub(super) tag: u128,
    /// Its control group, from its first step on, where there are groups.
    pub(super) leaf: Option<Leaf>,
    /// Groups that its steps led; they may have left processes there.
    groups: Vec<u32>,
    /// Control groups were tried and do not work here.
    pub(super) refused: bool,
    /// Nothing lived after the last start: nothing can come any more until the next one.
    deserted: bool,
    /// Number of the last sweep that found nothing.
    clean: Option<u64>,
    /// Processes were killed and others came.
    forking: bool,
}

impl Containment {
    /// Of a job without processes.
    pub(super) fn new(tag: u128) -> Self {
        Self { tag, deserted: true, ..Self::default() }
    }

    /// Counts on a group led by a step of the job.
    pub(super) fn add_group(&mut self, pgid: u32, shared: &mut Shared) {
        shared.groups.insert(pgid, self.tag);
        self.groups.push(pgid);
        self.deserted = false;
    }

    /// The step that led the group has left nothing.
    pub(super) fn remove_groups(&mut self, shared: &mut Shared) {
        for pgid in self.groups.drain(..) {
            // The number may be another job's group by now.
            if shared.groups.get(&pgid) == Some(&self.tag) {
                shared.groups.remove(&pgid);
            }
        }
    }

    /// Processes that live, running steps' own ones included. Cheap if there are none.
    pub(super) fn survivors(&mut self, shared: &mut Shared) -> Vec<u32> {
        match &self.leaf {
            _ if self.deserted => Vec::new(),
            Some(leaf) if !leaf.is_populated() => {
                self.deserted = true;
                Vec::new()
            }
            Some(leaf) => {
                let living = |pid: &u32| Process::read(*pid).is_some_and(|process| !process.zombie);
                leaf.processes().into_iter().filter(living).collect()
            }
            None if orphans(shared).is_empty() && !self.has_leader(shared) => Vec::new(),
            None => self.sweep(shared).into_iter().map(|process| process.pid).collect(),
        }
    }

    /// Nothing of the job lives. Without a control group that is believed only when two sweeps have said so, each in
    /// a turn of the loop of its own: a process can slip past one of them by a fork. So ask again after a `false`.
    pub(super) fn is_empty(&mut self, shared: &mut Shared) -> bool {
        self.deserted = self.deserted || self.looks_empty(shared);
        self.deserted
    }

    fn looks_empty(&mut self, shared: &mut Shared) -> bool {
        if let Some(leaf) = &self.leaf {
            return !leaf.is_populated();
        }
        if self.has_leader(shared) {
            return false;
        }
        // Without orphans there is nobody whose child a process of the job could be.
        let no_orphans = (0..2).all(|_| {
            shared.orphans = None;
            orphans(shared).is_empty()
        });
        if no_orphans {
            return true;
        }
        if !self.sweep(shared).is_empty() {
            self.clean = None;
            return false;
        }
        self.clean.replace(shared.sweeps).is_some_and(|before| before != shared.sweeps)
    }

    /// SIGTERM and SIGCONT to all of them but the group of `asked`, which has had them.
    pub(super) fn terminate(&self, asked: Option<Pid>, shared: &mut Shared) {
        const GENTLY: [Signal; 2] = [Signal::TERM, Signal::CONT];
        let asked = asked.map(|leader| leader.as_raw_nonzero().get() as u32);
        match &self.leaf {
            Some(leaf) => leaf.signal(&GENTLY, asked),
            None => {
                for process in self.sweep(shared).iter().filter(|process| Some(process.group) != asked) {
                    group::signal_process(process, &GENTLY);
                }
            }
        }
    }

    /// SIGKILL to all of them.
    pub(super) fn kill(&mut self, shared: &mut Shared) {
        match &self.leaf {
            Some(leaf) => leaf.kill(),
            None if self.forking => self.chase(shared),
            None => {
                self.forking = true;
                for process in self.sweep(shared) {
                    group::signal_process(&process, &[Signal::KILL]);
                }
            }
        }
    }

    /// What the kernel counted.
    pub(super) fn usage(&self) -> Usage {
        self.leaf.as_ref().map(Leaf::usage).unwrap_or_default()
    }

    /// Gives the control group back.
    pub(super) fn release(&mut self, shared: &mut Shared) {
        self.remove_groups(shared);
        if let (Some(leaf), Some(pool)) = (self.leaf.take(), shared.pool.as_mut()) {
            pool.give_back(leaf);
        }
    }

    /// Kills what a sweep finds, and before each sweep what has come to us as an orphan: one that forks and exits
    /// in a loop is caught right after it appears as our child, a whole sweep would come too late.
    fn chase(&self, shared: &mut Shared) {
        let until = Instant::now() + CHASE;
        let mut clean = 0;
        while clean < 2 && Instant::now() < until {
            shared.forget_processes();
            let own = std::process::id();
            let mut orphans: Vec<Process> =
                orphans(shared).iter().filter_map(|&pid| Process::read(pid)).collect();
            orphans.retain(|process| process.parent == own);
            let mut hit = false;
            for process in orphans {
                let owner = shared.sweeper.owner_of(&process, &shared.groups);
                if self.owns(owner, shared) {
                    hit |= group::signal_process(&process, &[Signal::KILL]);
                }
            }
            if !hit {
                for process in self.sweep(shared) {
                    hit |= group::signal_process(&process, &[Signal::KILL]);
                }
            }
            clean = if hit { 0 } else { clean + 1 };
        }
        shared.forget_processes();
    }

    /// Its living processes, by a sweep that all jobs share within a turn of the loop.
    fn sweep(&self, shared: &mut Shared) -> Vec<Process> {
        if shared.swept.is_none() {
            let found = shared.sweeper.find(Scope::Below(std::process::id()), &shared.groups);
            shared.swept = Some(found.unwrap_or_default());
            shared.sweeps += 1;
        }
        let found = shared.swept.iter().flatten();
        found.filter(|(_, owner)| self.owns(*owner, shared)).map(|(process, _)| *process).collect()
    }

    /// With one job alone, what cannot be told is that job's.
    fn owns(&self, owner: Owner, shared: &Shared) -> bool {
        match owner {
            Owner::Job(tag) => tag == self.tag,
            Owner::Unknown => shared.job_count == 1,
            Owner::Outside => false,
        }
    }

    /// A process that one of its steps started is not reaped yet.
    fn has_leader(&self, shared: &Shared) -> bool {
        self.groups.iter().any(|pgid| shared.leaders.contains_key(pgid))
    }
}

/// Living children that no step's start made: orphans of steps. Read at most once in a turn of the loop.
fn orphans(shared: &mut Shared) -> &[u32] {
    let Shared { orphans, leaders, .. } = shared;
    // Without the file (a kernel built without it) a sweep has to tell: ourselves stand for `perhaps some`.
    orphans.get_or_insert_with(|| {
        unknown_children(|pid| leaders.contains_key(&pid)).unwrap_or_else(|_| vec![std::process::id()])
    })
}

/// Reaps children that ended and were not started as steps; calls `leader` for those that were.
pub(super) fn reap_orphans(shared: &mut Shared, mut leader: impl FnMut(&mut Shared, u32)) {
    while let Some(pid) = crate::process::peek_exited_child() {
        shared.forget_processes();
        if shared.leaders.contains_key(&pid) {
            leader(shared, pid);
            // It is reaped now, or else the same child would be named for ever.
            if shared.leaders.remove(&pid).is_none() {
                continue;
            }
        }
        group::reap_orphan(pid);
    }
}

/// Kills everything below this process, whoever it belonged to: the keeper ends.
pub(super) fn kill_all(shared: &mut Shared) {
    shared.orphans = None;
    if shared.leaders.is_empty() && orphans(shared).is_empty() {
        return;
    }
    for pid in shared.leaders.keys() {
        if let Some(pid) = Pid::from_raw(*pid as i32) {
            group::kill(pid);
        }
    }
    let mut sweeper = sweep::Sweeper::default();
    let until = Instant::now() + shared.settings.kill_wait;
    while Instant::now() < until {
        let found = sweeper.find(Scope::Below(std::process::id()), &shared.groups).unwrap_or_default();
        if found.is_empty() {
            return;
        }
        for (process, _) in found {
            group::signal_process(&process, &[Signal::KILL]);
        }
        reap_orphans(shared, |_, _| {});
    }
}
