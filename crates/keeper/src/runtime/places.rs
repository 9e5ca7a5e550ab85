//! Where the processes of each step of a job are held: nothing of another step is in the same place. So a step can be
//! ended while others run, and what it leaves is told from what they do.
//!
//! A job's only step is in the job's control group itself. A step that runs beside others, or after one that has left
//! processes, gets a group below. Without control groups each of them gets a reaper of its own.

use rustix::process::Signal;

use step_runner_model::ProcessNumber;
use step_runner_process::cgroup::{Leaf, StepGroup};
use step_runner_process::controllers::LimitCounts;
use step_runner_process::group;
use step_runner_process::reaper::ReaperHandle;
use step_runner_process::sweep::{Process, descendants};

/// The place of one step.
pub(super) struct Place {
    /// Number of its process.
    pub(super) process: ProcessNumber,
    pub(super) holder: Holder,
    /// True until the step is over.
    pub(super) is_running: bool,
    /// Counts of the job's hit limits when the step was started.
    pub(super) counts: LimitCounts,
    /// Number of kills.
    kills: u32,
}

/// Holder of the processes of a step.
pub(super) enum Holder {
    /// The job's leaf, without the groups of other steps.
    Leaf,
    /// A group below the leaf.
    Group(StepGroup),
    Reaper(ReaperHandle),
}

/// The places of a job.
#[derive(Default)]
pub(super) struct Places(pub(super) Vec<Place>);

impl Place {
    pub(super) const fn new(process: ProcessNumber, holder: Holder, counts: LimitCounts) -> Self {
        Self { process, holder, is_running: true, counts, kills: 0 }
    }

    pub(super) const fn group(&self) -> Option<&StepGroup> {
        match &self.holder {
            Holder::Group(group) => Some(group),
            Holder::Leaf | Holder::Reaper(_) => None,
        }
    }

    pub(super) const fn reaper(&self) -> Option<&ReaperHandle> {
        match &self.holder {
            Holder::Reaper(reaper) => Some(reaper),
            Holder::Leaf | Holder::Group(_) => None,
        }
    }
}

impl Places {
    pub(super) fn of(&self, process: ProcessNumber) -> Option<&Place> {
        self.0.iter().find(|place| place.process == process)
    }

    pub(super) fn reapers(&self) -> impl Iterator<Item = &ReaperHandle> {
        self.0.iter().filter_map(Place::reaper)
    }

    /// Returns the groups of all steps below the leaf.
    fn groups(&self) -> Vec<&StepGroup> {
        self.0.iter().filter_map(Place::group).collect()
    }

    /// Returns the living processes in a place.
    pub(super) fn members(&self, place: &Place, leaf: Option<&Leaf>) -> Vec<Process> {
        match &place.holder {
            Holder::Leaf => leaf.map(|leaf| leaf.own_members(&self.groups())).unwrap_or_default(),
            Holder::Group(group) => group.members(),
            Holder::Reaper(reaper) if reaper.is_empty() => Vec::new(),
            Holder::Reaper(reaper) => descendants(reaper.pid()),
        }
    }

    /// True if no process is left in a place.
    pub(super) fn is_empty(&self, place: &Place, leaf: Option<&Leaf>) -> bool {
        match &place.holder {
            Holder::Leaf if self.0.len() == 1 => leaf.is_none_or(|leaf| !leaf.is_populated()),
            Holder::Leaf => self.members(place, leaf).is_empty(),
            Holder::Group(group) => !group.is_populated(),
            Holder::Reaper(reaper) => reaper.is_empty(),
        }
    }

    /// Sends SIGKILL to all processes in the place of a step. Repeat it until none is left.
    pub(super) fn kill(&mut self, process: ProcessNumber, leaf: Option<&Leaf>) {
        let is_alone = self.0.len() == 1;
        let groups = self.groups();
        if let (Some(Place { holder: Holder::Leaf, .. }), Some(leaf)) = (self.of(process), leaf) {
            // With a single write, which also ends what forks without a pause.
            return if is_alone { leaf.kill() } else { leaf.kill_own(&groups) };
        }
        let Some(place) = self.0.iter_mut().find(|place| place.process == process) else { return };
        match &place.holder {
            Holder::Leaf => {}
            Holder::Group(group) => group.kill(),
            Holder::Reaper(reaper) => {
                reaper.kill();
                // Something may keep the reaper from killing, so help it from the second time on.
                if place.kills > 0 {
                    for descendant in descendants(reaper.pid()) {
                        group::signal_process(&descendant, &[Signal::KILL]);
                    }
                }
            }
        }
        place.kills = place.kills.saturating_add(1);
    }
}
