//! The simulator as an ordinary test: small counts, special schedules, and proof that it detects injected faults.

use std::time::Duration;

use super::program::Program;
use super::request::Planned;
use super::runs;
use super::schedule::{CONTENTS, Do, IDS, Schedule, Step};
use super::world;
use crate::random::Random;
use crate::verdict::Shown;

/// Number of seeds that are run twice, to check that both runs are the same.
const REPEATED: u64 = 25;

/// Injected faults that the simulator must detect, each with the number of seeds it can take.
const FAULTS: [(&str, u64); 5] = [
    ("actors::supervisor::free_slot=return", 60),
    ("simulate::keeper::forgets_a_line=return", 60),
    ("simulate::keeper::starts_twice=return", 60),
    ("simulate::keeper::loses_an_end=return", 60),
    ("simulate::clock::uptime_jumps=return", 400),
];

/// Runs all proofs with small counts, one after the other: failpoints are global to the process.
pub(crate) fn run() -> Shown {
    let mut misses = Vec::new();
    let mut trial = |name: &str, run: fn() -> Shown| match run() {
        Ok(figures) => println!("simulate: {name}: {figures}"),
        Err(miss) => misses.push(format!("{name}: {miss}")),
    };
    trial("a_seed_plays_the_same_every_time", repeatable);
    trial("a_fault_that_is_put_in_is_found", bites);
    trial("fault_13_a_cancel_at_any_moment_and_an_end_make_one_end", || races(400));
    trial("fault_59_a_job_whose_actor_dies_while_it_is_closed_ends_all_the_same", || closings(60));
    trial("fault_60_of_abandoned_jobs_nothing_is_left_but_when_they_were_finished", || abandoned(1_000));
    trial("fault_61_a_time_limit_counts_over_restarts_and_jumps_of_the_clock", deadlines);
    trial("fault_62_random_schedules_of_calls_reaper_and_deaths_hold_every_promise", random_schedules);
    trial("fault_63_a_jump_of_a_year_ends_removes_and_forgets_nothing", jumps);
    if misses.is_empty() { Ok("8 proofs".into()) } else { Err(misses.join("\n")) }
}

fn check(schedule: &Schedule) -> Result<(), String> {
    let verdict = runs::run(schedule, None);
    match verdict.wrongs.first() {
        None => Ok(()),
        Some(wrong) => Err(format!("{wrong}\n{}\n{schedule:?}", verdict.trace.join("\n"))),
    }
}

fn repeatable() -> Shown {
    for seed in 1..=REPEATED {
        let schedule = Schedule::new(seed);
        if runs::hash(&runs::run(&schedule, None)) != runs::hash(&runs::run(&schedule, None)) {
            return Err(format!("two runs of seed {seed} differ"));
        }
    }
    Ok(format!("{REPEATED} seeds"))
}

fn bites() -> Shown {
    for (fault, seeds) in FAULTS {
        let found = (1..=seeds).find(|seed| !runs::run(&Schedule::new(*seed), Some(fault)).wrongs.is_empty());
        let Some(seed) = found else { return Err(format!("{fault}: not found in {seeds} seeds")) };
        let short = runs::shortened(&Schedule::new(seed), Some(fault));
        if short.steps.len() > 12 {
            return Err(format!("{fault}: {} steps are left of seed {seed}", short.steps.len()));
        }
    }
    Ok(format!("{} faults", FAULTS.len()))
}

fn random_schedules() -> Shown {
    for seed in runs::kept().into_iter().chain(1..=runs::SMALL) {
        check(&Schedule::new(seed)).map_err(|wrong| format!("seed {seed}: {wrong}"))?;
    }
    Ok(format!("{} seeds", runs::SMALL))
}

fn at(millis: u64, turns: u64, what: Do) -> Step {
    Step { after: Duration::from_millis(millis), turns, what }
}

/// Returns a schedule in which every request runs `program`, with a time limit.
fn plain(seed: u64, program: &Program, limit: Option<Duration>, steps: Vec<Step>) -> Schedule {
    let request = |id: u64, content: u64| {
        Planned::plain(Program { content: id * 10 + content, ..program.clone() }, limit)
    };
    Schedule {
        seed,
        max_running: 0,
        max_queued: 1_000,
        per_project: None,
        is_fifo: false,
        stale_after: Duration::from_hours(1),
        runaway_after: Duration::from_hours(24),
        queued_after: Duration::from_hours(24),
        requests: (0..IDS).map(|id| (0..CONTENTS).map(|content| request(id, content)).collect()).collect(),
        steps,
    }
}

const fn quick(millis: u64) -> Program {
    Program { content: 0, lines: 1, millis, exit: 0, stubborn: false, dying: 2, left: 0 }
}

/// Runs cancels, finishes and time limits at random moments around the end of a process.
pub(crate) fn races(count: u64) -> Shown {
    let random = &mut Random::new(13);
    for race in 0..count {
        let mut program = quick(random.below(12));
        program.exit = random.below(2) as u8;
        program.stubborn = random.one_in(4);
        let limit = random.one_in(3).then(|| Duration::from_millis(1 + random.below(16)));
        let mut steps = vec![at(0, 0, Do::Run { id: 0, content: 0, leaves: None })];
        for _ in 0..=random.below(3) {
            let what = match random.below(5) {
                0 | 1 => Do::Finish { id: 0, leaves: None },
                _ => Do::Cancel { id: 0 },
            };
            steps.push(at(random.below(8), random.below(40), what));
        }
        steps.push(at(0, 0, Do::Follow { id: 0, from: 0, leaves: None }));
        check(&plain(race, &program, limit, steps)).map_err(|wrong| format!("race {race}: {wrong}"))?;
    }
    Ok(format!("{count} races"))
}

/// Kills the job's actor by a panic in a cancel, at random moments around the close of the log. The keeper's answer to
/// the next actor and its following event arrive together.
fn closings(count: u64) -> Shown {
    let random = &mut Random::new(59);
    for closing in 0..count {
        // The left-over processes get a second before the log is closed.
        let program = Program { left: 2, ..quick(random.below(4)) };
        let steps = vec![
            at(0, 0, Do::Run { id: 0, content: 0, leaves: None }),
            at(0, 0, Do::Panic { at: "actors::job::cancel" }),
            at(4_000 + random.below(4_000), random.below(40), Do::Cancel { id: 0 }),
            at(9_000, 0, Do::Follow { id: 0, from: 0, leaves: None }),
        ];
        let schedule = plain(closing, &program, None, steps);
        let verdict = runs::run(&schedule, Some("simulate::keeper::writes_late=return"));
        if let Some(wrong) = verdict.wrongs.first() {
            return Err(format!("closing {closing}: {wrong}\n{}\n{schedule:?}", verdict.trace.join("\n")));
        }
    }
    Ok(format!("{count} closings"))
}

/// Runs jobs that nobody follows or finishes.
pub(crate) fn abandoned(count: u64) -> Shown {
    let folder = runs::place();
    world::abandoned(&plain(1, &quick(1), None, Vec::new()), folder.path(), count)
}

fn jump(seconds: i64) -> Do {
    Do::Jump { seconds }
}

const YEAR: i64 = 31_536_000;

/// Runs a job of two hours with a limit of one hour. It must end at its limit, whatever happens to daemon and clock.
fn deadlines() -> Shown {
    let limit = Duration::from_hours(1);
    let minutes = |count: u64| count * 60_000;
    let run = at(0, 0, Do::Run { id: 0, content: 0, leaves: None });
    let crash = |after: u64, away: u64| at(minutes(after), 0, Do::DaemonDies { away: minutes(away) });
    let tables = [
        vec![],
        vec![crash(20, 5)],
        vec![crash(20, 5), crash(10, 0), crash(10, 1)],
        vec![at(minutes(10), 0, jump(YEAR)), crash(10, 5), at(minutes(5), 0, jump(-YEAR)), crash(5, 5)],
        vec![at(minutes(10), 0, jump(-YEAR)), crash(30, 5)],
    ];
    for table in tables {
        let mut steps = vec![run.clone()];
        steps.extend(table);
        let schedule = plain(61, &quick(7_200_000), Some(limit), steps);
        let ended = world::first_end(&schedule, runs::place().path())?;
        if ended.0 != "Ended(Timeout)" || ended.1 < limit || ended.1 > limit + Duration::from_mins(1) {
            return Err(format!("{ended:?} of {:?}", schedule.steps));
        }
    }
    Ok("5 tables".into())
}

/// Running, waiting and ended jobs must survive clock jumps of a year with restarts in between.
fn jumps() -> Shown {
    let run = |id: u64| at(1_000, 3, Do::Run { id, content: 0, leaves: None });
    let crash = at(1_000, 0, Do::DaemonDies { away: 2_000 });
    for (first, second) in [(YEAR, -YEAR), (-YEAR, YEAR)] {
        let pause = |seconds: u64| at(seconds * 1_000, 0, Do::FollowSteps { id: 0 });
        let mut steps = vec![run(0), run(1), run(2)];
        for jumped in [first, second, second, first] {
            steps.extend([at(100, 0, jump(jumped)), pause(40), crash.clone(), pause(650)]);
        }
        steps.push(at(0, 0, Do::Finish { id: 0, leaves: None }));
        steps.extend([at(2_000, 0, jump(first)), run(0), at(2_000, 0, jump(second)), crash.clone(), run(0)]);
        // There is one slot, so the second and the third job wait for more than half an hour.
        let schedule = Schedule { max_running: 1, ..plain(63, &quick(1_800_000), None, steps) };
        check(&schedule)?;
    }
    Ok("2 tables".into())
}
