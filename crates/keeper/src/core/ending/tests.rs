//! Properties of the ladder over random requests and times.

use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::{Ending, FIRST_PAUSE, LAST_PAUSE, Rung, STUBBORN_PAUSE};

/// An event of a job whose end was requested.
#[derive(Clone, Debug)]
enum Happening {
    /// Time passes, and the ladder is checked as often as it asks for.
    Pass(u64),
    /// A further request to end, with a grace in milliseconds.
    Shorten(u64),
    /// The job is closed, or dropped, or one of its processes has ended.
    Hurry,
    KillNow,
    /// The last process has ended.
    Empty,
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        6 => (0_u64..4_000).prop_map(Happening::Pass),
        2 => (0_u64..3_000).prop_map(Happening::Shorten),
        2 => Just(Happening::Hurry),
        1 => Just(Happening::KillNow),
        1 => Just(Happening::Empty),
    ]
}

fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// A ladder on a clock of its own, and what it did.
struct Climb {
    ending: Ending,
    now: Instant,
    kill_wait: Duration,
    is_empty: bool,
    checks: Vec<(Instant, Rung)>,
}

impl Climb {
    fn new(grace: u64, kill_wait: u64) -> Self {
        let now = Instant::now();
        Self {
            ending: Ending::new(now, millis(grace)),
            now,
            kill_wait: millis(kill_wait),
            is_empty: false,
            checks: Vec::new(),
        }
    }

    /// Lets time pass up to `until`, and checks at each deadline, as the owner of the ladder does.
    fn pass(&mut self, until: Instant) {
        while self.ending.check_at() <= until {
            self.now = self.now.max(self.ending.check_at());
            let rung = self.ending.check(self.now, self.is_empty, self.kill_wait);
            self.checks.push((self.now, rung));
        }
        self.now = self.now.max(until);
    }

    fn kills(&self) -> Vec<(Instant, Rung)> {
        self.checks.iter().filter(|(_, rung)| rung.kill).copied().collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn fault_04_nothing_is_killed_within_its_grace_and_all_is_killed_right_behind_it(
        grace in 0_u64..5_000,
        kill_wait in 1_u64..3_000,
        happenings in proptest::collection::vec(happening(), 0..24),
    ) {
        let mut climb = Climb::new(grace, kill_wait);
        let first = climb.now;
        climb.ending.rest();
        // The model: when the grace of what was asked so far ends.
        let mut kill_at = first + millis(grace);
        for happening in happenings {
            match happening {
                Happening::Pass(time) => climb.pass(climb.now + millis(time)),
                Happening::Shorten(grace) => {
                    climb.ending.shorten(millis(grace));
                    climb.ending.rest();
                    kill_at = kill_at.min(first + millis(grace));
                }
                Happening::Hurry => climb.ending.hurry(climb.now),
                Happening::KillNow => {
                    climb.ending.kill_now(climb.now);
                    climb.ending.hurry(climb.now);
                    kill_at = kill_at.min(climb.now);
                }
                Happening::Empty => climb.is_empty = true,
            }
            // Checks come in order, and each asks for a later one.
            prop_assert!(climb.checks.is_sorted_by_key(|(at, _)| *at));
            let due = climb.now >= kill_at + STUBBORN_PAUSE;
            prop_assert!(climb.is_empty || !due || !climb.kills().is_empty());
        }
        let (before, was_empty) = (climb.kills().len(), climb.is_empty);
        climb.pass(climb.now.max(kill_at) + STUBBORN_PAUSE);
        if was_empty {
            prop_assert_eq!(climb.kills().len(), before, "a job without processes is killed");
        } else {
            prop_assert!(climb.kills().len() > before, "what lives is not killed");
        }
        for (at, _) in climb.kills() {
            prop_assert!(at >= kill_at);
        }
    }

    #[test]
    fn fault_04_a_grace_is_never_made_longer(graces in proptest::collection::vec(0_u64..5_000, 1..8)) {
        let mut climb = Climb::new(graces[0], 1_000);
        let first = climb.now;
        for grace in &graces {
            climb.ending.shorten(millis(*grace));
            climb.ending.rest();
        }
        climb.pass(first + millis(6_000));
        let shortest = millis(graces.iter().copied().min().unwrap());
        prop_assert_eq!(climb.kills().first().map(|(at, _)| *at), Some(first + shortest));
    }

    #[test]
    fn what_outlives_sigkill_is_killed_again_until_it_is_given_up(
        grace in 0_u64..2_000,
        kill_wait in 1_u64..3_000,
    ) {
        let mut climb = Climb::new(grace, kill_wait);
        let killed = climb.now + millis(grace);
        climb.ending.rest();
        climb.pass(killed + millis(kill_wait) + STUBBORN_PAUSE * 2);
        let kills = climb.kills();
        prop_assert_eq!(kills[0], (killed, Rung { kill: true, again: false, given_up: false }));
        prop_assert!(kills[1..].iter().all(|(_, rung)| rung.again));
        let given_up = killed + millis(kill_wait);
        for pair in kills.windows(2) {
            let (pause, rung) = (pair[1].0 - pair[0].0, pair[0].1);
            prop_assert!(pause >= FIRST_PAUSE);
            prop_assert_eq!(rung.given_up, pair[0].0 >= given_up);
            let longest = if rung.given_up { STUBBORN_PAUSE } else { LAST_PAUSE };
            prop_assert!(pause <= longest);
            prop_assert!(!rung.given_up || pause == STUBBORN_PAUSE);
        }
        // It is given up no later than one pause after its time.
        let at = kills.iter().find(|(_, rung)| rung.given_up).map(|(at, _)| *at);
        prop_assert!(at.is_some_and(|at| at <= given_up + LAST_PAUSE));
    }

    #[test]
    fn a_job_that_is_waited_for_is_looked_at_often(grace in 0_u64..5_000, ends_after in 0_u64..5_000) {
        let mut climb = Climb::new(grace, 10_000);
        climb.ending.hurry(climb.now);
        let ends = climb.now + millis(ends_after);
        climb.pass(ends);
        climb.is_empty = true;
        let (seen, kills) = (climb.checks.len(), climb.kills().len());
        climb.pass(ends + LAST_PAUSE);
        prop_assert!(climb.checks.len() > seen, "its end is not noticed within a pause");
        prop_assert_eq!(climb.kills().len(), kills);
        prop_assert!(climb.checks.len() as u64 <= 8 + (ends_after + 20) / 20);
    }
}
