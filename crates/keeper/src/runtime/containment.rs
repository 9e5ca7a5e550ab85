//! The processes of one job: finds those that are left, and ends them (service.md §6.5).

use std::cell::Cell;
use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::Signal;

use super::escaped::{Signs, is_below};
use super::places::{Holder, Place, Places};
use super::shared::{KeeperShared, Token};
use super::strays::{has_strays, kill_strays, strays};
use crate::core::Serial;
use step_runner_model::{LimitName, ProcessNumber, ResourceLimits, Shortage};
use step_runner_process::cgroup::{Leaf, Pool, StepGroup, Usage};
use step_runner_process::controllers::{Controller, LimitCounts};
use step_runner_process::group;
use step_runner_process::limiter::{LegacyGroups, user_limit};
use step_runner_process::reaper::{OrderedPipes, ReaperEvent, ReaperHandle, Received};
use step_runner_process::spawn::{Command, Confinement, SpawnError, Spawned, Stage};
use step_runner_process::sweep::Process;
use step_runner_process::terminated::Terminated;

/// Holds the processes of a job together: in a control group, or else below reapers.
#[derive(Default)]
pub(super) struct Containment {
    serial: Serial,
    /// Value of `STEP_RUNNER_JOB`.
    tag: u128,
    limits: ResourceLimits,
    /// Its control group, from the first step on, if there are groups.
    leaf: Option<Leaf>,
    /// Places of the steps that run or have left processes.
    places: Places,
    /// A reaper that no step uses, and below which nothing lives.
    idle: Option<ReaperHandle>,
    /// Enforces the limits that the leaf does not, from the first step on.
    legacy_groups: Option<LegacyGroups>,
    /// `RLIMIT_NPROC` for its steps, if no group counts its processes.
    user_processes: Option<u64>,
    /// Processor time of its processes that we reaped, or that a former reaper reaped.
    reaped: Duration,
    /// Processes that were asked to end. Those below a reaper are counted there.
    terminated: Terminated,
    /// True if it goes without a control group: it has begun without, or its group refused a process.
    goes_without: bool,
    /// True once a reaper of the job was killed: its descendants are ours now.
    has_strays: bool,
    /// True once the job was found empty: no process can appear before the next start.
    deserted: bool,
    /// Usage as read once the job was found empty. Its groups need not be read again before the next start.
    settled: Cell<Option<Usage>>,
}

/// A reaper that was killed.
pub(super) struct LostReaper {
    /// The process that it held, if there was one.
    pub(super) process: Option<ProcessNumber>,
}

/// A start under way.
pub(super) enum StartOutcome {
    /// The process runs, as our child.
    Running(Spawned),
    /// A reaper of the job was ordered to start the process.
    Ordered(OrderedPipes),
}

impl Containment {
    pub(super) fn new(serial: Serial, tag: u128, limits: ResourceLimits) -> Self {
        Self { serial, tag, limits, deserted: true, ..Self::default() }
    }

    /// Starts a step, or orders a reaper to start it.
    pub(super) fn start(
        &mut self,
        process: ProcessNumber,
        command: &Command<'_>,
        shared: &mut KeeperShared,
    ) -> Result<StartOutcome, SpawnError> {
        // An attempt before may have failed.
        self.vacate(process);
        self.clear_empty_places();
        let limits = |error: io::Error| SpawnError::new(Stage::Limits, &error);
        self.prepare_leaf(shared).map_err(limits)?;
        let holder = self.holder_for(process, shared)?;
        // After the reaper was started: the limits may count it, too.
        if self.legacy_groups.is_none() {
            self.make_legacy_groups(shared).map_err(limits)?;
        }
        self.deserted = false;
        self.settled.take();
        let mut place = Place::new(process, holder, self.count());
        let outcome = self.start_in(&mut place, command, shared);
        if outcome.is_ok() || place.reaper().is_some() {
            self.places.0.push(place);
        }
        outcome
    }

    fn start_in(
        &self,
        place: &mut Place,
        command: &Command<'_>,
        shared: &mut KeeperShared,
    ) -> Result<StartOutcome, SpawnError> {
        if let Holder::Reaper(reaper) = &mut place.holder {
            return reaper.order(command, &self.confinement(None)).map(StartOutcome::Ordered);
        }
        let group = place.group();
        let watched = match (&self.leaf, &shared.pool) {
            (Some(leaf), Some(pool)) => Some(pool.keep_thawed(leaf, group, &mut shared.thawer)),
            _ => None,
        };
        let spawned = shared.spawner.spawn(command, &self.confinement(group));
        drop(watched);
        spawned.map(StartOutcome::Running)
    }

    /// Returns the place for the processes of a step that is about to start.
    fn holder_for(
        &mut self,
        process: ProcessNumber,
        shared: &mut KeeperShared,
    ) -> Result<Holder, SpawnError> {
        if let (Some(leaf), Some(pool)) = (&self.leaf, shared.pool.as_mut()) {
            if self.places.0.is_empty() && (self.deserted || !leaf.is_populated()) {
                return Ok(Holder::Leaf);
            }
            let group = pool.make_step_group(leaf, process);
            return group.map(Holder::Group).map_err(|error| SpawnError::new(Stage::Cgroup, &error));
        }
        self.goes_without = true;
        let reaper = match self.idle.take() {
            Some(reaper) => Ok(reaper),
            None => start_reaper(self.tag, self.serial, shared),
        };
        reaper.map(Holder::Reaper).map_err(|error| SpawnError::new(Stage::Fork, &error))
    }

    /// Notes that a step is over. What it has left stays in its place.
    pub(super) fn end_step(&mut self, process: ProcessNumber) {
        if let Some(place) = self.places.0.iter_mut().find(|place| place.process == process) {
            place.is_running = false;
        }
    }

    /// Gives up the places of steps that are over and have left nothing.
    fn clear_empty_places(&mut self) {
        let ended: Vec<ProcessNumber> =
            self.places.0.iter().filter(|place| !place.is_running).map(|place| place.process).collect();
        for process in ended {
            let is_empty = |place| self.deserted || self.places.is_empty(place, self.leaf.as_ref());
            if self.places.of(process).is_some_and(is_empty) {
                self.vacate(process);
            }
        }
    }

    fn vacate(&mut self, process: ProcessNumber) {
        let Some(index) = self.places.0.iter().position(|place| place.process == process) else { return };
        let Holder::Reaper(reaper) = self.places.0.swap_remove(index).holder else { return };
        if reaper.is_empty() && self.idle.is_none() {
            self.idle = Some(reaper);
        } else {
            self.reaped = self.reaped.saturating_add(reaper.used());
        }
    }

    /// Makes the control group for the next step, where there are groups. Fails if the job could not be held to its
    /// limits. A job that began without a group stays without.
    fn prepare_leaf(&mut self, shared: &mut KeeperShared) -> io::Result<()> {
        let Some(pool) = shared.pool.as_mut().filter(|_| !self.goes_without) else { return Ok(()) };
        match self.leaf.take_if(|leaf| leaf.is_spent() || !leaf.thaw()) {
            Some(spent) => {
                // Whatever was in it was killed.
                self.places.0.clear();
                self.take_leaf(pool.replace(spent), pool)?;
            }
            None if self.leaf.is_none() => self.take_leaf(pool.take(), pool)?,
            None => {}
        }
        Ok(())
    }

    /// Limits a leaf taken from `pool`, and uses it. Without one, fails only if the job's limits need it.
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

    /// True if one of these controllers enforces a limit of the job.
    fn is_held_by(&self, controllers: &[Controller]) -> bool {
        self.limits.names().filter_map(Controller::of).any(|controller| controllers.contains(&controller))
    }

    fn make_legacy_groups(&mut self, shared: &mut KeeperShared) -> io::Result<()> {
        let KeeperShared { pool, limiter, .. } = shared;
        let by_pool = pool.as_ref().map(Pool::controllers);
        let by_leaf = self.leaf.as_ref().and(by_pool);
        let legacy_groups = limiter.legacy_groups(&self.limits, by_leaf)?;
        for limit in self.limits.names() {
            let Some(controller) = Controller::of(limit) else { continue };
            if by_leaf.is_some_and(|all| all.contains(&controller)) || legacy_groups.holds(controller) {
                continue;
            }
            if limit != LimitName::Processes {
                limiter.give_back(legacy_groups);
                return Err(io::Error::from(Errno::OPNOTSUPP));
            }
            self.user_processes = self.limits.processes.map(user_limit);
        }
        self.legacy_groups = Some(legacy_groups);
        Ok(())
    }

    fn confinement<'a>(&'a self, group: Option<&'a StepGroup>) -> Confinement<'a> {
        Confinement {
            cgroup: group.map(StepGroup::directory).or_else(|| self.leaf.as_ref().map(Leaf::directory)),
            join: self.legacy_groups.as_ref().map(LegacyGroups::procs).unwrap_or_default(),
            open_files: self.limits.open_files,
            user_processes: self.user_processes,
        }
    }

    /// Gives up the control group that refused the job's process. False if there is none, or the job's limits need it, or
    /// other steps are in it.
    pub(super) fn do_without_leaf(&mut self, shared: &KeeperShared) -> bool {
        let needed = shared.pool.as_ref().is_some_and(|pool| self.is_held_by(pool.controllers()));
        if self.leaf.is_none() || needed || !self.places.0.is_empty() {
            return false;
        }
        self.leaf = None;
        self.goes_without = true;
        true
    }

    /// Returns the resource that ran short since this step was started.
    pub(super) fn shortage(&self, process: ProcessNumber) -> Option<Shortage> {
        let counts = self.places.of(process)?.counts;
        let now = self.count();
        if now.oom_kills > counts.oom_kills {
            Some(Shortage::Memory)
        } else {
            (now.refused > counts.refused).then_some(Shortage::Processes)
        }
    }

    fn count(&self) -> LimitCounts {
        let by_leaf = self.leaf.as_ref().map(Leaf::counts).unwrap_or_default();
        by_leaf.and(self.legacy_groups.as_ref().map(LegacyGroups::counts).unwrap_or_default())
    }

    pub(super) fn add_reaped(&mut self, time: Duration) {
        self.reaped = self.reaped.saturating_add(time);
    }

    /// Reads a message of one of the job's reapers. Returns it with the process that the reaper holds, if there is one.
    pub(super) fn receive(
        &mut self,
        shared: &KeeperShared,
    ) -> Option<(Option<ProcessNumber>, ReaperEvent, Option<OwnedFd>)> {
        let placed = self.places.0.iter_mut().filter_map(|place| match &mut place.holder {
            Holder::Reaper(reaper) => Some((Some(place.process), reaper)),
            Holder::Leaf | Holder::Group(_) => None,
        });
        for (process, reaper) in placed.chain(self.idle.iter_mut().map(|reaper| (None, reaper))) {
            match reaper.receive() {
                Received::Event(event, pidfd) => return Some((process, event, pidfd)),
                Received::Nothing => {}
                // Its processes become ours when it dies, which its pidfd reports, not when it closes the socket.
                Received::Ended => shared.readiness.forget(reaper.socket()),
            }
        }
        None
    }

    /// Continues a step's reaper, in case a process of the job has stopped it. Called when the reaper owes news.
    pub(super) fn wake_reaper(&self, process: ProcessNumber) {
        if let Some(reaper) = self.places.of(process).and_then(Place::reaper) {
            reaper.wake();
        }
    }

    /// Forgets a reaper of the job that is dead. Its descendants are ours from then on and count as strays. `None` if no
    /// reaper is dead.
    pub(super) fn take_lost_reaper(&mut self) -> Option<LostReaper> {
        let is_gone = |place: &Place| place.reaper().is_some_and(ReaperHandle::is_gone);
        let (process, reaper) = match self.places.0.iter().position(is_gone) {
            Some(index) => {
                let place = self.places.0.swap_remove(index);
                (Some(place.process), place.reaper().map(ReaperHandle::used))
            }
            None => (None, Some(self.idle.take_if(|idle| idle.is_gone())?.used())),
        };
        self.reaped = self.reaped.saturating_add(reaper.unwrap_or_default());
        self.has_strays = true;
        Some(LostReaper { process })
    }

    /// Returns the living processes of the job, those of running steps too. Cheap if there are none.
    pub(super) fn survivors(&mut self, signs: &Signs<'_>, shared: &KeeperShared) -> Vec<Process> {
        if self.is_empty(signs, shared) {
            return Vec::new();
        }
        if let Some(leaf) = &self.leaf {
            return everywhere(leaf, signs, shared);
        }
        let members = |place| self.places.members(place, None);
        let mut found: Vec<Process> = self.places.0.iter().flat_map(members).collect();
        if self.has_strays {
            found.extend(strays(shared));
        }
        found
    }

    /// Returns the living processes of the job that are not those of a running step.
    pub(super) fn left(&mut self, signs: &Signs<'_>, shared: &KeeperShared) -> Vec<Process> {
        let mut found = self.survivors(signs, shared);
        if found.is_empty() || !self.places.0.iter().any(|place| place.is_running) {
            return found;
        }
        let running = self.places.0.iter().filter(|place| place.is_running);
        let of_running = running.flat_map(|place| self.places.members(place, self.leaf.as_ref()));
        let of_running: HashSet<u32> = of_running.map(|process| process.pid).collect();
        let is_of_leader = |process: &Process| signs.leaders.iter().any(|leader| is_below(process, *leader));
        found.retain(|process| !of_running.contains(&process.pid) && !is_of_leader(process));
        found
    }

    /// Returns the processes that steps have left, or those of a running step.
    pub(super) fn members(&self, processes: &[ProcessNumber]) -> Vec<Process> {
        let places = processes.iter().filter_map(|process| self.places.of(*process));
        places.flat_map(|place| self.places.members(place, self.leaf.as_ref())).collect()
    }

    /// True if nothing is left in the places of these steps.
    pub(super) fn are_empty(&self, processes: &[ProcessNumber]) -> bool {
        let mut places = processes.iter().filter_map(|process| self.places.of(*process));
        places.all(|place| self.places.is_empty(place, self.leaf.as_ref()))
    }

    /// True if no process of the job is left. The kernel tells us about a control group, and our own children show who
    /// has left it; a reaper without children reports it. If a reaper was killed, our own children prove it.
    pub(super) fn is_empty(&mut self, signs: &Signs<'_>, shared: &KeeperShared) -> bool {
        self.deserted = self.deserted || self.looks_empty(signs, shared);
        self.deserted
    }

    fn looks_empty(&self, signs: &Signs<'_>, shared: &KeeperShared) -> bool {
        match &self.leaf {
            Some(leaf) => {
                !leaf.is_populated()
                    && signs.leaders.is_empty()
                    && signs.children_outside(leaf, shared).is_empty()
            }
            None => {
                self.places.reapers().all(ReaperHandle::is_empty) && !(self.has_strays && has_strays(shared))
            }
        }
    }

    /// Thaws the processes of the job, so that they can handle signals.
    pub(super) fn thaw(&self, shared: &KeeperShared) {
        if let (Some(leaf), Some(pool)) = (&self.leaf, &shared.pool) {
            pool.thaw();
            leaf.thaw_all();
        }
    }

    /// Sends SIGTERM and SIGCONT to the process group of a running step, whose process is `leader`: once to each process.
    pub(super) fn terminate_step(
        &mut self,
        process: ProcessNumber,
        leader: Option<u32>,
        signs: &Signs<'_>,
        shared: &KeeperShared,
    ) {
        if let Some(reaper) = self.places.of(process).and_then(Place::reaper) {
            // Also reaches a step that the reaper is about to start.
            return reaper.terminate_step();
        }
        let (Some(leaf), Some(leader)) = (&self.leaf, leader) else { return };
        self.terminated.terminate(|| {
            let mut found = everywhere(leaf, signs, shared);
            found.retain(|process| process.group == leader);
            found
        });
    }

    /// Sends SIGTERM and SIGCONT to the processes that these steps have left, and that have not got them yet.
    pub(super) fn terminate_left(&mut self, processes: &[ProcessNumber]) {
        let places: Vec<&Place> = processes.iter().filter_map(|process| self.places.of(*process)).collect();
        places.iter().filter_map(|place| place.reaper()).for_each(ReaperHandle::terminate_rest);
        if let Some(leaf) = &self.leaf {
            let members = || places.iter().flat_map(|place| self.places.members(place, Some(leaf))).collect();
            self.terminated.terminate(members);
        }
    }

    /// Sends SIGTERM and SIGCONT to all processes of the job that have not got them yet.
    pub(super) fn terminate_rest(&mut self, signs: &Signs<'_>, shared: &KeeperShared) {
        if let Some(leaf) = &self.leaf {
            return self.terminated.terminate(|| everywhere(leaf, signs, shared));
        }
        self.places.reapers().for_each(ReaperHandle::terminate_rest);
        if self.has_strays {
            self.terminated.terminate(|| strays(shared));
        }
    }

    /// Returns the living processes of the job that have left its control group.
    pub(super) fn outside(&self, signs: &Signs<'_>, shared: &KeeperShared) -> Vec<Process> {
        let leaf = self.leaf.as_ref().filter(|_| !self.deserted);
        leaf.map(|leaf| signs.outside(leaf, &leaf.members(), shared)).unwrap_or_default()
    }

    /// Sends SIGKILL to all processes of the job: those in its control group and those that have left it (`outside`), or
    /// those below its reapers. Repeat it until none is left.
    pub(super) fn kill(&mut self, outside: &[Process], shared: &mut KeeperShared) {
        if let Some(leaf) = &self.leaf {
            for process in outside {
                group::signal_process(process, &[Signal::KILL]);
            }
            return leaf.kill();
        }
        let processes: Vec<ProcessNumber> = self.places.0.iter().map(|place| place.process).collect();
        for process in processes {
            self.places.kill(process, None);
        }
        if self.has_strays {
            kill_strays(shared);
        }
    }

    /// Sends SIGKILL to the processes of a step, and to those `outside` that belong to it. Repeat it until none is left.
    pub(super) fn kill_step(&mut self, process: ProcessNumber, outside: &[Process]) {
        for escaped in outside {
            group::signal_process(escaped, &[Signal::KILL]);
        }
        self.places.kill(process, self.leaf.as_ref());
    }

    /// Returns the usage of the job: as counted by groups, else the processor time of reaped processes.
    pub(super) fn usage(&self) -> Usage {
        if let Some(settled) = self.settled.get() {
            return settled;
        }
        let usage = self.read_usage();
        if self.deserted && self.leaf.is_some() {
            self.settled.set(Some(usage));
        }
        usage
    }

    fn read_usage(&self) -> Usage {
        let by_leaf = self.leaf.as_ref().map(Leaf::usage).unwrap_or_default();
        let by_legacy_groups = self.legacy_groups.as_ref().map(LegacyGroups::usage).unwrap_or_default();
        let reapers = self.places.reapers().chain(&self.idle);
        let reaped = reapers.map(ReaperHandle::used).fold(self.reaped, Duration::saturating_add);
        let reaped = Some(reaped).filter(|used| !used.is_zero());
        Usage {
            cpu_time: by_leaf.cpu_time.or(by_legacy_groups.cpu_time).or(reaped),
            peak_memory: by_leaf.peak_memory.or(by_legacy_groups.peak_memory),
        }
    }

    /// Gives the control groups back, and ends the reapers that are empty. The others go on killing, on their own once
    /// the job is forgotten.
    pub(super) fn release(&mut self, shared: &mut KeeperShared) {
        let empty = self.places.0.extract_if(.., |place| place.reaper().is_none_or(ReaperHandle::is_empty));
        let used = empty.filter_map(|place| place.reaper().map(ReaperHandle::used));
        self.reaped = used.fold(self.reaped, Duration::saturating_add);
        if let Some(idle) = self.idle.take() {
            self.reaped = self.reaped.saturating_add(idle.used());
        }
        if let Some(legacy_groups) = self.legacy_groups.take() {
            shared.limiter.give_back(legacy_groups);
        }
        self.terminated = Terminated::default();
        shared.spans.forget(self.serial);
        if let (Some(leaf), Some(pool)) = (self.leaf.take(), shared.pool.as_mut()) {
            if self.deserted && self.settled.get().is_some() {
                pool.give_back_empty(leaf);
            } else {
                pool.give_back(leaf);
            }
        }
    }
}

/// Returns the living processes of a job in its control group and outside of it.
fn everywhere(leaf: &Leaf, signs: &Signs<'_>, shared: &KeeperShared) -> Vec<Process> {
    let mut found = leaf.members();
    found.extend(signs.outside(leaf, &found, shared));
    found
}

/// Starts a reaper, and watches it for the job `serial`.
fn start_reaper(tag: u128, serial: Serial, shared: &mut KeeperShared) -> io::Result<ReaperHandle> {
    let reaper = ReaperHandle::start(tag, shared.limits)?;
    shared.reapers.insert(reaper.pid());
    shared.readiness.watch(reaper.socket(), Token::Reaper(serial), false)?;
    shared.readiness.watch(reaper.pidfd(), Token::Reaper(serial), false)?;
    Ok(reaper)
}
