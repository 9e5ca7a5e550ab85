//! The processes of one job: finds those that are left, and ends them (service.md §6.5).

use std::cell::Cell;
use std::io;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::Signal;

use super::escaped::Signs;
use super::shared::{KeeperShared, Token};
use super::strays::{has_strays, kill_strays, strays};
use crate::keeper::core::Serial;
use crate::model::{LimitName, ResourceLimits, Shortage};
use crate::process::cgroup::{Leaf, Pool, Usage};
use crate::process::controllers::{Controller, LimitCounts};
use crate::process::freezer::Watched;
use crate::process::group;
use crate::process::limiter::{LegacyGroups, user_limit};
use crate::process::reaper::{OrderedPipes, ReaperHandle, Received};
use crate::process::spawn::{Command, Confinement, SpawnError, Spawned, Stage};
use crate::process::sweep::{Process, descendants};
use crate::process::terminated::Terminated;

/// Holds the processes of a job together: in a control group, or else below a reaper.
#[derive(Default)]
pub(super) struct Containment {
    serial: Serial,
    /// Value of `STEP_RUNNER_JOB`.
    tag: u128,
    limits: ResourceLimits,
    /// Its control group, from the first step on, if there are groups.
    leaf: Option<Leaf>,
    /// Parent of its steps, from the first step on, if it has no control group.
    reaper: Option<ReaperHandle>,
    /// Enforces the limits that the leaf does not, from the first step on.
    legacy_groups: Option<LegacyGroups>,
    /// `RLIMIT_NPROC` for its steps, if no group counts its processes.
    user_processes: Option<u64>,
    /// Counts of hit limits when the running step was started.
    counts: LimitCounts,
    /// Processor time of its processes that we reaped, or that a former reaper reaped.
    reaped: Duration,
    /// Processes that were asked to end. Those below a reaper are counted there.
    terminated: Terminated,
    /// True if control groups were tried and do not work here.
    refused: bool,
    /// True once a reaper of the job was killed: its descendants are ours now.
    has_strays: bool,
    /// True once the job was found empty: no process can appear before the next start.
    deserted: bool,
    /// Usage as read once the job was found empty. Its groups need not be read again before the next start.
    settled: Cell<Option<Usage>>,
    /// Number of kills since the last start.
    kills: u32,
}

/// A start under way.
pub(super) enum StartOutcome {
    /// The process runs, as our child.
    Running(Spawned),
    /// The job's reaper was ordered to start the process.
    Ordered(OrderedPipes),
}

impl Containment {
    pub(super) fn new(serial: Serial, tag: u128, limits: ResourceLimits) -> Self {
        Self { serial, tag, limits, deserted: true, ..Self::default() }
    }

    /// Starts a step of the job `serial`, or orders its reaper to start it.
    pub(super) fn start(
        &mut self,
        command: &Command<'_>,
        serial: Serial,
        shared: &mut KeeperShared,
    ) -> Result<StartOutcome, SpawnError> {
        let limits = |error: io::Error| SpawnError::new(Stage::Limits, &error);
        self.prepare_leaf(shared).map_err(limits)?;
        // Before the limits are made: they may count the reaper too.
        let mut reaper = self.reaper.take();
        if self.leaf.is_none() && reaper.is_none() {
            let started = start_reaper(self.tag, serial, shared);
            reaper = Some(started.map_err(|error| SpawnError::new(Stage::Fork, &error))?);
        }
        let outcome = self.start_in(reaper.as_mut(), command, shared);
        self.reaper = reaper;
        outcome
    }

    fn start_in(
        &mut self,
        reaper: Option<&mut ReaperHandle>,
        command: &Command<'_>,
        shared: &mut KeeperShared,
    ) -> Result<StartOutcome, SpawnError> {
        if self.legacy_groups.is_none() {
            self.make_legacy_groups(shared).map_err(|error| SpawnError::new(Stage::Limits, &error))?;
        }
        self.counts = self.count();
        self.deserted = false;
        self.settled.take();
        self.kills = 0;
        if let Some(reaper) = reaper {
            return reaper.order(command, &self.confinement()).map(StartOutcome::Ordered);
        }
        let watched = self.keep_thawed(shared);
        let spawned = shared.spawner.spawn(command, &self.confinement());
        drop(watched);
        spawned.map(StartOutcome::Running)
    }

    /// Makes the control group for the next step, where there are groups. Fails if the job could not be held to its
    /// limits. A job that began without a group stays without.
    fn prepare_leaf(&mut self, shared: &mut KeeperShared) -> io::Result<()> {
        let goes_without = self.refused || self.reaper.is_some();
        let Some(pool) = shared.pool.as_mut().filter(|_| !goes_without) else { return Ok(()) };
        match self.leaf.take_if(|leaf| leaf.is_spent() || !leaf.thaw()) {
            Some(spent) => self.take_leaf(pool.replace(spent), pool)?,
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

    /// Keeps the leaf thawed while the result lives: another process may freeze it while a step is started in it.
    pub(super) fn keep_thawed(&self, shared: &mut KeeperShared) -> Option<Watched> {
        let (leaf, pool) = (self.leaf.as_ref()?, shared.pool.as_ref()?);
        Some(shared.thawer.watch([leaf.path().to_owned(), pool.path().to_owned()]))
    }

    fn confinement(&self) -> Confinement<'_> {
        Confinement {
            cgroup: self.leaf.as_ref().map(Leaf::directory),
            join: self.legacy_groups.as_ref().map(LegacyGroups::procs).unwrap_or_default(),
            open_files: self.limits.open_files,
            user_processes: self.user_processes,
        }
    }

    /// Gives up the control group that refused the job's process. False if there is none, or the job's limits need it.
    pub(super) fn do_without_leaf(&mut self, shared: &KeeperShared) -> bool {
        let needed = shared.pool.as_ref().is_some_and(|pool| self.is_held_by(pool.controllers()));
        if self.leaf.is_none() || needed {
            return false;
        }
        self.leaf = None;
        self.refused = true;
        true
    }

    /// Returns the resource that ran short since the running step was started.
    pub(super) fn shortage(&self) -> Option<Shortage> {
        let now = self.count();
        if now.oom_kills > self.counts.oom_kills {
            Some(Shortage::Memory)
        } else {
            (now.refused > self.counts.refused).then_some(Shortage::Processes)
        }
    }

    fn count(&self) -> LimitCounts {
        let by_leaf = self.leaf.as_ref().map(Leaf::counts).unwrap_or_default();
        by_leaf.and(self.legacy_groups.as_ref().map(LegacyGroups::counts).unwrap_or_default())
    }

    pub(super) fn add_reaped(&mut self, time: Duration) {
        self.reaped = self.reaped.saturating_add(time);
    }

    /// Reads a message of the job's reaper.
    pub(super) fn receive(&mut self, shared: &KeeperShared) -> Received {
        let Some(reaper) = &mut self.reaper else { return Received::Nothing };
        let received = reaper.receive();
        if matches!(received, Received::Ended) {
            // Its processes become ours when it dies, which its pidfd reports, not when it closes the socket.
            shared.readiness.forget(reaper.socket());
        }
        received
    }

    /// Continues the job's reaper, in case a process of the job has stopped it. Called when the reaper owes news.
    pub(super) fn wake_reaper(&self) {
        if let Some(reaper) = &self.reaper {
            reaper.wake();
        }
    }

    /// True once, when the job's reaper is dead. Its descendants are ours from then on and count as strays.
    pub(super) fn has_lost_reaper(&mut self) -> bool {
        let Some(reaper) = self.reaper.take_if(|reaper| reaper.is_gone()) else { return false };
        self.reaped = self.reaped.saturating_add(reaper.used());
        self.has_strays = true;
        true
    }

    /// Returns the living processes of the job, a running step's too. Cheap if there are none.
    pub(super) fn survivors(&mut self, signs: &Signs<'_>, shared: &KeeperShared) -> Vec<Process> {
        if self.is_empty(signs, shared) {
            return Vec::new();
        }
        if let Some(leaf) = &self.leaf {
            return everywhere(leaf, signs, shared);
        }
        let held = self.reaper.as_ref().filter(|reaper| !reaper.is_empty());
        let mut found = held.map(|reaper| descendants(reaper.pid())).unwrap_or_default();
        if self.has_strays {
            found.extend(strays(shared));
        }
        found
    }

    /// True if no process of the job is left. The kernel tells us about a control group, and our own children show who
    /// has left it; a reaper without children reports it. If the reaper was killed, our own children prove it.
    pub(super) fn is_empty(&mut self, signs: &Signs<'_>, shared: &KeeperShared) -> bool {
        self.deserted = self.deserted || self.looks_empty(signs, shared);
        self.deserted
    }

    fn looks_empty(&self, signs: &Signs<'_>, shared: &KeeperShared) -> bool {
        match &self.leaf {
            Some(leaf) => {
                !leaf.is_populated()
                    && signs.leader.is_none()
                    && signs.children_outside(leaf, shared).is_empty()
            }
            None => {
                self.reaper.as_ref().is_none_or(ReaperHandle::is_empty)
                    && !(self.has_strays && has_strays(shared))
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

    /// Sends SIGTERM and SIGCONT to the process group of the running step, whose process is `leader`: once to each
    /// process.
    pub(super) fn terminate_step(&mut self, leader: Option<u32>, signs: &Signs<'_>, shared: &KeeperShared) {
        match (&self.reaper, &self.leaf, leader) {
            // Also reaches a step that the reaper is about to start.
            (Some(reaper), ..) => reaper.terminate_step(),
            (None, Some(leaf), Some(leader)) => self.terminated.terminate(|| {
                let mut found = everywhere(leaf, signs, shared);
                found.retain(|process| process.group == leader);
                found
            }),
            (None, ..) => {}
        }
    }

    /// Sends SIGTERM and SIGCONT to all processes of the job that have not got them yet.
    pub(super) fn terminate_rest(&mut self, signs: &Signs<'_>, shared: &KeeperShared) {
        if let Some(leaf) = &self.leaf {
            return self.terminated.terminate(|| everywhere(leaf, signs, shared));
        }
        if let Some(reaper) = &self.reaper {
            reaper.terminate_rest();
        }
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
    /// those below its reaper. Repeat it until none is left.
    pub(super) fn kill(&mut self, outside: &[Process], shared: &mut KeeperShared) {
        if let Some(leaf) = &self.leaf {
            for process in outside {
                group::signal_process(process, &[Signal::KILL]);
            }
            return leaf.kill();
        }
        if let Some(reaper) = &self.reaper {
            reaper.kill();
            // Something may keep the reaper from killing, so help it from the second time on.
            if self.kills > 0 {
                for process in descendants(reaper.pid()) {
                    group::signal_process(&process, &[Signal::KILL]);
                }
            }
        }
        self.kills = self.kills.saturating_add(1);
        if self.has_strays {
            kill_strays(shared);
        }
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
        let by_reaper = self.reaper.as_ref().map(ReaperHandle::used).unwrap_or_default();
        let reaped = Some(self.reaped.saturating_add(by_reaper)).filter(|used| !used.is_zero());
        Usage {
            cpu_time: by_leaf.cpu_time.or(by_legacy_groups.cpu_time).or(reaped),
            peak_memory: by_leaf.peak_memory.or(by_legacy_groups.peak_memory),
        }
    }

    /// Gives the control groups back, and ends the reaper if it is empty. Otherwise the reaper goes on killing, on its
    /// own once the job is forgotten.
    pub(super) fn release(&mut self, shared: &mut KeeperShared) {
        if let Some(reaper) = self.reaper.take_if(|reaper| reaper.is_empty()) {
            self.reaped = self.reaped.saturating_add(reaper.used());
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
