//! Admission with 100,000 waiting jobs of 1,000 projects (queue.md §7). One event is a job that ends, another that
//! starts in its place, and a new one that waits. Aim: below 20 µs.

use divan::Bencher;
use step_runner::queue::{Policy, Queue, QueueLimits, ShareKey};

const JOBS: u64 = 100_000;
const KEYS: u64 = 1_000;
const SLOTS: usize = 64;

fn main() {
    divan::main();
}

fn key(job: u64) -> ShareKey {
    // Consecutive jobs belong to different projects, which do not come in the order of their numbers.
    ShareKey::new("https://gitlab.example", &(job.wrapping_mul(7_919) % KEYS).to_string())
}

#[divan::bench(args = [Policy::Fair, Policy::Fifo])]
fn one_ends_one_starts_one_comes(bencher: Bencher<'_, '_>, policy: Policy) {
    let limits = QueueLimits { running: Some(SLOTS), ..QueueLimits::default() };
    let mut queue = Queue::new(policy, limits);
    let mut running = Vec::new();
    for job in 0..JOBS {
        queue.submit(&job, key(job), Some(job), 1_000, &mut running);
    }
    let (mut next, mut over) = (JOBS, 0);
    bencher.bench_local(|| {
        let ended = running[over % SLOTS];
        let mut starts = Vec::new();
        queue.remove_job(&ended, &mut starts);
        queue.submit(&next, key(next), Some(next), 1_000, &mut starts);
        running[over % SLOTS] = starts[0];
        next += 1;
        over += 1;
    });
}
