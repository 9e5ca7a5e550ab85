//! The schedule of one run: random events and their times, derived from a seed.

use std::time::Duration;

use super::request::Planned;
use crate::random::Random;

/// Number of ids that the clients of a run use.
pub(crate) const IDS: u64 = 5;

/// Number of different requests for one id.
pub(crate) const CONTENTS: u64 = 2;

/// Failpoints at which a panic can be injected. The name tells which part of the daemon dies.
pub(crate) const PANICS: [&str; 12] = [
    "actors::job::begin",
    "actors::job::cancel",
    "actors::job::step_done",
    "actors::job::keeper_said",
    "actors::job::keeper_lost",
    "actors::job::end",
    "actors::step::started",
    "actors::step::ended",
    "actors::log_sink::grew",
    "actors::trace_sink::append",
    "actors::supervisor::finish",
    "actors::supervisor::admit",
];

#[derive(Clone, Debug)]
pub(crate) enum Do {
    /// Calls Run. With `leaves` the client gives up after this many turns of the scheduler.
    Run {
        id: u64,
        content: u64,
        leaves: Option<u64>,
    },
    Finish {
        id: u64,
        leaves: Option<u64>,
    },
    Cancel {
        id: u64,
    },
    /// Follows the log from a place in the part known so far. With `leaves` it gives up after this many pieces.
    Follow {
        id: u64,
        from: u64,
        leaves: Option<u64>,
    },
    FollowSteps {
        id: u64,
    },
    KeeperDies,
    /// Kills the daemon. The next one starts after this time in milliseconds.
    DaemonDies {
        away: u64,
    },
    BothDie {
        away: u64,
    },
    /// Restarts the host, with a new boot id.
    HostDies {
        away: u64,
    },
    /// Moves the wall clock by this many seconds.
    Jump {
        seconds: i64,
    },
    Pause,
    Resume,
    MaxRunning(u64),
    /// Injects a panic at this failpoint.
    Panic {
        at: &'static str,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct Step {
    /// Time to wait before the event.
    pub(crate) after: Duration,
    /// Turns of the scheduler to wait before the event.
    pub(crate) turns: u64,
    pub(crate) what: Do,
}

/// Settings, requests and events of one run.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    pub(crate) seed: u64,
    pub(crate) max_running: u64,
    pub(crate) max_queued: u64,
    pub(crate) per_project: Option<u64>,
    pub(crate) is_fifo: bool,
    pub(crate) stale_after: Duration,
    pub(crate) runaway_after: Duration,
    pub(crate) queued_after: Duration,
    /// Requests by id and content.
    pub(crate) requests: Vec<Vec<Planned>>,
    pub(crate) steps: Vec<Step>,
}

impl Schedule {
    pub(crate) fn new(seed: u64) -> Self {
        let random = &mut Random::new(seed).fork(1);
        // Some seeds have no deaths and some no panics. Their failures are easier to understand.
        let (deaths, defects) = (!random.one_in(3), random.one_in(3));
        let mut requests = Vec::new();
        for id in 0..IDS {
            let contents = (0..CONTENTS).map(|content| Planned::random(id * 10 + content, random));
            requests.push(contents.collect());
        }
        let count = 8 + random.below(50);
        let steps = (0..count).map(|_| step(random, deaths, defects)).collect();
        Self {
            seed,
            max_running: random.below(4),
            max_queued: [0, 1, 3, 1_000][random.below(4) as usize],
            per_project: random.one_in(4).then(|| 1 + random.below(2)),
            is_fifo: random.one_in(3),
            stale_after: Duration::from_secs([60, 600, 3_600][random.below(3) as usize]),
            runaway_after: Duration::from_secs([30, 3_600, 86_400][random.below(3) as usize]),
            queued_after: Duration::from_secs([60, 3_600, 86_400][random.below(3) as usize]),
            requests,
            steps,
        }
    }

    /// Returns the first `len` steps as a schedule.
    pub(crate) fn prefix(&self, len: usize) -> Self {
        let mut cut = self.clone();
        cut.steps.truncate(len);
        cut
    }

    /// Returns the schedule without one of its steps. The time of that step is kept.
    pub(crate) fn without(&self, at: usize) -> Self {
        let mut cut = self.clone();
        let removed = cut.steps.remove(at);
        if let Some(next) = cut.steps.get_mut(at) {
            next.after += removed.after;
        }
        cut
    }
}

fn step(random: &mut Random, deaths: bool, defects: bool) -> Step {
    let after = match random.below(20) {
        0..=7 => Duration::ZERO,
        8..=12 => Duration::from_millis(random.below(10)),
        13..=16 => Duration::from_millis(random.below(1_000)),
        17..=18 => Duration::from_millis(random.below(60_000)),
        _ => Duration::from_secs(random.below(4_000)),
    };
    Step { after, turns: random.below(24), what: what(random, deaths, defects) }
}

fn what(random: &mut Random, deaths: bool, defects: bool) -> Do {
    let id = random.below(IDS);
    let leaves = random.one_in(4).then(|| random.below(20));
    let away = [0, 5, 2_000, 300_000][random.below(4) as usize];
    match random.below(if deaths { 100 } else { 88 }) {
        0..=34 => Do::Run { id, content: random.below(20) / 15, leaves },
        35..=46 => Do::Finish { id, leaves },
        47..=58 => Do::Cancel { id },
        59..=70 => Do::Follow { id, from: random.below(4), leaves },
        71..=74 => Do::FollowSteps { id },
        75..=78 => Do::Jump { seconds: random.below(2 * 31_536_000) as i64 - 31_536_000 },
        79 => Do::Pause,
        80..=81 => Do::Resume,
        82..=83 => Do::MaxRunning(random.below(4)),
        84..=87 if defects => Do::Panic { at: PANICS[random.below(PANICS.len() as u64) as usize] },
        84..=87 => Do::Run { id, content: 0, leaves: None },
        88..=91 => Do::KeeperDies,
        92..=96 => Do::DaemonDies { away },
        97..=98 => Do::BothDie { away },
        _ => Do::HostDies { away },
    }
}
