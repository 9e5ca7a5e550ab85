//! An agent in virtual time, with models of server, machine and disk, killed between any two actions.
//!
//! Each seed is one schedule of jobs, faults and kills. `AGENT_SEEDS=N` runs N of them, `AGENT_SEED=N` repeats one.

mod disk;
mod machine;
mod random;
mod server;
mod world;

use world::World;

/// Schedules of a usual run: some seconds.
const SEEDS: u64 = 1_500;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn a09_a23_a25_every_acknowledged_job_has_one_result_and_its_whole_trace() {
    let mut totals = world::Totals::default();
    let seeds = match number("AGENT_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("AGENT_SEEDS").unwrap_or(SEEDS),
    };
    for seed in seeds.clone() {
        let outcome = std::panic::catch_unwind(|| World::new(seed).run());
        match outcome {
            Ok(seen) => totals.add(&seen),
            Err(panic) => {
                world::tell(&format!("seed {seed} failed: repeat it with AGENT_SEED={seed}"));
                std::panic::resume_unwind(panic);
            }
        }
    }
    if seeds.end - seeds.start >= SEEDS {
        // The schedules reach what they are for.
        assert!(totals.kills > 3 * SEEDS && totals.jobs > 3 * SEEDS, "{totals:?}");
        assert!(totals.whole > SEEDS && totals.aborted > 100 && totals.cancelled > 100, "{totals:?}");
        assert!(totals.repeated > SEEDS && totals.lost > 100 && totals.not_ours > 50, "{totals:?}");
    }
}
