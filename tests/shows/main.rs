//! Proofs that nothing is lost: the real program under kills, races and load.
//!
//! `shows COMMAND [--option VALUE]…` runs one proof and prints its figures; without a command all run with small counts.
//! A miss is printed, keeps its folder, and makes the exit code 1. Seeds are printed: `--seed` repeats the choices, not
//! the interleaving of the processes.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "the figures are what this program is for")]
#![expect(clippy::unwrap_used, reason = "a proof that cannot set itself up ends at once")]

mod arguments;
mod cancel;
mod client;
mod crash;
mod crash_run;
mod daemon;
#[path = "../../src/log/mask/tests/definition.rs"]
mod definition;
mod follower;
mod followers;
mod hostile;
mod inject;
mod joined;
mod killer;
mod life;
mod load;
mod log;
#[path = "../support/loop_disk.rs"]
mod loop_disk;
mod masking;
#[path = "../support/parts.rs"]
mod parts;
mod power;
mod power_job;
mod proc;
mod race;
mod random;
mod reference;
mod soak;
mod stalled;
mod starters;
mod syscalls;
mod tree;
mod verdict;
mod volume;
mod work;
mod writer;

use std::process::ExitCode;

use arguments::Arguments;
use verdict::Shown;

/// A proof: its name, and its run; the flag asks for small counts.
type Proof = (&'static str, fn(&Arguments, bool) -> Shown);

const PROOFS: &[Proof] = &[
    ("crash", crash::run),
    ("faults", syscalls::faults),
    ("race", race::run),
    ("load", load::run),
    ("followers", followers::run),
    ("volume", volume::run),
    ("hostile", hostile::run),
    ("masking", masking::run),
    ("power", power::run),
    ("cancel", cancel::run),
    ("soak", soak::run),
];

fn main() -> ExitCode {
    if writer::is_asked() {
        return writer::main();
    }
    let arguments = match Arguments::parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("shows: {error}");
            return ExitCode::from(2);
        }
    };
    if arguments.list {
        for (name, _) in PROOFS {
            println!("{name}: test");
        }
        return ExitCode::SUCCESS;
    }
    let chosen = match &arguments.command {
        Some(command) => PROOFS
            .iter()
            .filter(|(name, _)| name == command)
            .map(|proof| run(proof, &arguments, false))
            .collect(),
        None => small(&arguments),
    };
    let failed = chosen.iter().filter(|passed| !**passed).count();
    println!("{} passed, {failed} failed", chosen.len() - failed);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Every proof with small counts, the variants of `crash` too.
fn small(arguments: &Arguments) -> Vec<bool> {
    let mut passed = Vec::new();
    for variant in ["", "keeper", "both", "run", "syscalls"] {
        passed.push(run(&PROOFS[0], &arguments.with_flag(variant), true));
    }
    passed.extend(PROOFS[1..].iter().map(|proof| run(proof, arguments, true)));
    passed
}

fn run(&(name, proof): &Proof, arguments: &Arguments, small: bool) -> bool {
    match proof(arguments, small) {
        Ok(figures) => {
            println!("{name}: {figures}");
            true
        }
        Err(misses) => {
            println!("{name}: FAILED: {misses}");
            false
        }
    }
}
