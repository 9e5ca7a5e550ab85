//! The processes of one job: are there any, and the end of them (service.md §6.5).

use std::collections::HashSet;
use std::io;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal};

use super::closing::{FIRST_PAUSE, LAST_PAUSE};
use super::shared::Shared;
use crate::model::{LimitName, Limits, Shortage};
use crate::process::cgroup::{Leaf, Pool, Usage};
use crate::process::controllers::{Controller, Counts};
use crate::process::limiter::{Cage, user_limit};
use crate::process::spawn::Confinement;
use crate::process::sweep::{Owner, Process, Scope, unknown_children};
use crate::process::{group, sweep};

/// How long one call may chase processes that fork faster than they are found.
const CHASE: Duration = Duration::from_millis(10);

/// Looks at our children at a time, each after those were reaped that had ended.
const LOOKS: u32 = 8;

/// What holds the processes of a job together.
#[derive(Default)]
pub(super) struct Containment {
    /// Value of `STEP_RUNNER_JOB`.
    pub(super) tag: u128,
    /// What it may use.
    limits: Limits,
    /// Its control group, from its first step on, where there are groups.
    leaf: Option<Leaf>,
    /// What holds it to limits that its leaf does not, from its first step on.
    cage: Option<Cage>,
    /// `RLIMIT_NPROC` of its steps, where no group counts its processes.
    user_processes: Option<u64>,
    /// What had been counted against its limits when the running step was started.
    counts: Counts,
    /// Processor time of its processes that were reaped.
    reaped: Duration,
    /// Groups that its steps led; they may have left processes there.
    groups: Vec<u32>,
    /// Control groups were tried and do not work here.
    refused: bool,
    /// Nothing lived after the last start: nothing can come any more until the next one.
    deserted: bool,
    /// Number of the last sweep that found nothing.
    clean: Option<u64>,
    /// Processes were killed and others came.
    forking: bool,
}

impl Containment {
    /// Of a job without processes.
    pub(super) fn new(tag: u128, limits: Limits) -> Self {
        Self { tag, limits, deserted: true, ..Self::default() }
    }

    /// Makes what the next step is to be held in. Fails if the job could not be held to its limits.
    pub(super) fn prepare(&mut self, shared: &mut Shared) -> io::Result<()> {
        if let Some(pool) = shared.pool.as_mut().filter(|_| !self.refused) {
            match self.leaf.take_if(|leaf| leaf.is_spent()) {
                Some(spent) => self.take_leaf(pool.replace(spent), pool)?,
                None if self.leaf.is_none() => self.take_leaf(pool.take(), pool)?,
                None => {}
            }
        }
        if self.cage.is_none() {
            self.make_cage(shared)?;
        }
        self.counts = self.count();
        Ok(())
    }

    /// Uses a leaf that was taken from `pool`, limited. Only a job whose limits it would hold cannot do without.
    fn take_leaf(&mut self, taken: io::Result<Leaf>, pool: &mut Pool) -> io::Result<()> {
        match taken {
            Err(error) if self.is_held_by(pool.controllers()) => Err(error),
            Err(_) => Ok(()),
            Ok(mut leaf) => {
                if self.is_held_by(pool.controllers())
                    && let Err(error) = leaf.limit(&self.limits)
                {
                    pool.give_back(leaf);
                    return Err(error);
                }
                self.leaf = Some(leaf);
                Ok(())
            }
        }
    }

    /// Some of its limits are for these controllers.
    fn is_held_by(&self, controllers: &[Controller]) -> bool {
        self.limits.names().filter_map(Controller::of).any(|controller| controllers.contains(&controller))
    }

    fn make_cage(&mut self, shared: &mut Shared) -> io::Result<()> {
        let Shared { pool, limiter, .. } = shared;
        let by_pool = pool.as_ref().map(Pool::controllers);
        let by_leaf = self.leaf.as_ref().and(by_pool);
        let cage = limiter.cage(&self.limits, by_leaf)?;
        for limit in self.limits.names() {
            let Some(controller) = Controller::of(limit) else { continue };
            if by_leaf.is_some_and(|all| all.contains(&controller)) || cage.holds(controller) {
                continue;
            }
            if limit != LimitName::Processes {
                limiter.give_back(cage);
                return Err(io::Error::from(Errno::OPNOTSUPP));
            }
            self.user_processes = self.limits.processes.map(user_limit);
        }
        self.cage = Some(cage);
        Ok(())
    }

    /// What the next step is held in.
    pub(super) fn confinement(&self) -> Confinement<'_> {
        Confinement {
            cgroup: self.leaf.as_ref().map(Leaf::directory),
            join: self.cage.as_ref().map(Cage::procs).unwrap_or_default(),
            open_files: self.limits.open_files,
            user_processes: self.user_processes,
        }
    }

    /// Whether the job may go on without the control group that has refused its process; then it does.
    pub(super) fn do_without_leaf(&mut self, shared: &Shared) -> bool {
        let needed = shared.pool.as_ref().is_some_and(|pool| self.is_held_by(pool.controllers()));
        if self.leaf.is_none() || needed {
            return false;
        }
        self.leaf = None;
        self.refused = true;
        true
    }

    /// What ran short since the running step was started.
    pub(super) fn shortage(&self) -> Option<Shortage> {
        let now = self.count();
        if now.oom_kills > self.counts.oom_kills {
            Some(Shortage::Memory)
        } else {
            (now.refused > self.counts.refused).then_some(Shortage::Processes)
        }
    }

    fn count(&self) -> Counts {
        let by_leaf = self.leaf.as_ref().map(Leaf::counts).unwrap_or_default();
        by_leaf.and(self.cage.as_ref().map(Cage::counts).unwrap_or_default())
    }

    /// The processor time of a process of it that was reaped.
    pub(super) fn add_reaped(&mut self, time: Duration) {
        self.reaped = self.reaped.saturating_add(time);
    }

    /// Counts on a group led by a step of the job.
    pub(super) fn add_group(&mut self, pgid: u32, shared: &mut Shared) {
        shared.marks.groups.insert(pgid, self.tag);
        self.groups.push(pgid);
        self.deserted = false;
    }

    /// The step that led the group has left nothing.
    pub(super) fn remove_groups(&mut self, shared: &mut Shared) {
        for pgid in self.groups.drain(..) {
            // The number may be another job's group by now.
            if shared.marks.groups.get(&pgid) == Some(&self.tag) {
                shared.marks.groups.remove(&pgid);
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

    /// Nothing of the job lives. The kernel says so of a control group. Without one it is proven by our children, and where
    /// one of them cannot be told to be another job's, believed when two sweeps have found nothing, each in a turn of the
    /// loop of its own: a process can slip past one of them by a fork. So ask again after a `false`.
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
        shared.orphans = None;
        match self.orphans_tell(shared) {
            Told::Empty => return true,
            Told::Alive => {
                self.clean = None;
                return false;
            }
            Told::Nothing => {}
        }
        if !self.sweep(shared).is_empty() {
            self.clean = None;
            return false;
        }
        self.clean.replace(shared.sweeps).is_some_and(|before| before != shared.sweeps)
    }

    /// What a job has left hangs below an orphan: whose are they?
    fn orphans_tell(&self, shared: &mut Shared) -> Told {
        let mut told = Told::Empty;
        for pid in orphans(shared).to_vec() {
            let living = Process::read(pid).filter(|process| !process.zombie);
            // It has ended since: its children are ours now, and have not been looked at.
            let Some(process) = living else { return Told::Alive };
            let owner = shared.sweeper.owner_of(&process, &shared.marks);
            match owner {
                _ if pid == std::process::id() => told = Told::Nothing,
                _ if self.owns(owner, shared) => return Told::Alive,
                Owner::Job(_) => {}
                Owner::Unknown | Owner::Outside => told = Told::Nothing,
            }
        }
        told
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

    /// What it has used: as far as groups count it, else the processor time of those that were reaped.
    pub(super) fn usage(&self, shared: &Shared) -> Usage {
        let by_leaf = self.leaf.as_ref().map(Leaf::usage).unwrap_or_default();
        let by_cage = self.cage.as_ref().map(Cage::usage).unwrap_or_default();
        let orphans = shared.orphans_used.get(&self.tag).copied().unwrap_or_default();
        let reaped = Some(self.reaped.saturating_add(orphans)).filter(|used| !used.is_zero());
        Usage {
            cpu_time: by_leaf.cpu_time.or(by_cage.cpu_time).or(reaped),
            peak_memory: by_leaf.peak_memory.or(by_cage.peak_memory),
        }
    }

    /// Gives the control groups back.
    pub(super) fn release(&mut self, shared: &mut Shared) {
        self.remove_groups(shared);
        shared.orphans_used.remove(&self.tag);
        if let Some(cage) = self.cage.take() {
            shared.limiter.give_back(cage);
        }
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
            let mut hit = false;
            for pid in orphans(shared).to_vec() {
                let Some(process) = Process::read(pid).filter(|process| process.parent == own) else {
                    continue;
                };
                let owner = shared.sweeper.owner_of(&process, &shared.marks);
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
            let found = shared.sweeper.find(Scope::Below(std::process::id()), &shared.marks);
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
            Owner::Unknown => shared.marks.tags.len() == 1,
            Owner::Outside => false,
        }
    }

    /// A process that one of its steps started is not reaped yet.
    fn has_leader(&self, shared: &Shared) -> bool {
        self.groups.iter().any(|pgid| shared.leaders.contains_key(pgid))
    }
}

/// What the orphans tell of a job.
enum Told {
    /// Nothing of it lives.
    Empty,
    /// Something of it may.
    Alive,
    /// One of them cannot be told to be anybody's.
    Nothing,
}

/// Children that no step's start made: orphans of steps. None is left only if nothing lives below us but steps' own
/// processes. Read at most once in a turn of the loop.
fn orphans(shared: &mut Shared) -> &[u32] {
    if shared.orphans.is_none() {
        shared.orphans = Some(look_for_orphans(shared));
    }
    shared.orphans.as_deref().unwrap_or_default()
}

fn look_for_orphans(shared: &mut Shared) -> Vec<u32> {
    let mut looks = 0;
    loop {
        // Without the file (a kernel built without it) a sweep has to tell: ourselves stand for `perhaps some`.
        let Ok(children) = unknown_children(|pid| shared.leaders.contains_key(&pid)) else {
            return vec![std::process::id()];
        };
        let lives = |pid: &u32| Process::read(*pid).is_some_and(|process| !process.zombie);
        let (living, ended): (Vec<u32>, Vec<u32>) = children.iter().copied().partition(lives);
        if ended.is_empty() {
            return living;
        }
        // Their children are ours by now, and were not among these.
        for pid in ended {
            shared.reap_orphan(pid);
        }
        looks += 1;
        if looks == LOOKS {
            return children;
        }
    }
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
        shared.reap_orphan(pid);
    }
}

/// Kills everything below this process, whoever it belonged to: the keeper ends. What forks is chased without a pause;
/// what has its signal is given time to end.
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
    let (mut killed, mut pause) = (HashSet::new(), FIRST_PAUSE);
    while Instant::now() < until {
        let found = sweeper.find(Scope::Below(std::process::id()), &shared.marks).unwrap_or_default();
        let mut is_new = false;
        for (process, _) in found {
            group::signal_process(&process, &[Signal::KILL]);
            is_new |= killed.insert((process.pid, process.start_time));
        }
        reap_orphans(shared, |_, _| {});
        shared.orphans = None;
        if shared.leaders.is_empty() && orphans(shared).is_empty() {
            return;
        }
        if is_new {
            pause = FIRST_PAUSE;
        } else {
            std::thread::sleep(pause);
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }
}
