//! Proofs that nothing is lost: they run the real program under kills, races and load.
//!
//! `shows --proof NAME [--option VALUE]…`, as the scripts call it, runs one proof and prints its figures. Without
//! `--proof` it acts as a test runner (`cargo test WORD`): it runs all proofs with small counts, or those whose names
//! contain a given word. A failed proof is printed and keeps its folder; the exit code is then 1. Seeds are printed:
//! `--seed` repeats the random choices, but not the interleaving of the processes.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "the figures are what this program is for")]
#![expect(clippy::unwrap_used, reason = "a proof that cannot set itself up ends at once")]

mod agent;
mod agent_crash;
mod agent_load;
mod agent_work;
mod arguments;
mod cancel;
mod client;
mod crash;
mod crash_run;
mod daemon;
#[path = "../../crates/log/src/mask/tests/definition.rs"]
mod definition;
mod empty_root;
#[path = "../fake_gitlab/mod.rs"]
mod fake_gitlab;
mod flow_work;
mod follower;
mod followers;
#[path = "../gitlab_runner/runner.rs"]
mod gitlab_runner;
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
mod proxy;
mod race;
mod random;
mod records;
mod reference;
mod relay;
mod relay_program;
#[cfg(feature = "failpoints")]
mod simulate;
mod soak;
mod ssh;
mod sshd;
mod stalled;
mod starters;
mod syscalls;
mod terminal;
mod tree;
mod verdict;
mod volume;
mod work;
mod writer;
#[path = "../../crates/log/src/mask/tests/writers.rs"]
mod writers;
#[path = "../../crates/log/src/mask/tests/writings.rs"]
#[expect(dead_code, reason = "only the properties of the crate ask for open writings")]
mod writings;

use std::process::ExitCode;

use arguments::Arguments;
use verdict::Shown;

/// A proof: its name and its function. The flag selects small counts.
type Proof = (&'static str, fn(&Arguments, bool) -> Shown);

const PROOFS: &[Proof] = &[
    ("crash", crash::run),
    ("faults", syscalls::faults),
    ("race", race::run),
    ("load", load::run),
    ("followers", followers::run),
    ("volume", volume::run),
    ("proxy", proxy::run),
    ("empty-root", empty_root::run),
    ("hostile", hostile::run),
    ("masking", masking::run),
    ("power", power::run),
    ("cancel", cancel::run),
    ("soak", soak::run),
    ("relay", relay::run),
    ("ssh", ssh::run),
    ("terminal", terminal::run),
    ("agent-crash", agent_crash::run),
    ("agent-load", agent_load::run),
    #[cfg(feature = "failpoints")]
    ("simulate", simulate::run),
];

fn main() -> ExitCode {
    if writer::is_asked() {
        return writer::main();
    }
    if relay_program::is_asked() {
        return relay_program::main();
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
    let chosen = match &arguments.proof {
        Some(wanted) => {
            let Some(proof) = PROOFS.iter().find(|(name, _)| name == wanted) else {
                let known: Vec<_> = PROOFS.iter().map(|(name, _)| *name).collect();
                eprintln!("shows: no proof {wanted}; known: {}", known.join(", "));
                return ExitCode::from(2);
            };
            vec![run(proof, &arguments, false)]
        }
        None => small(&arguments),
    };
    let failed = chosen.iter().filter(|passed| !**passed).count();
    println!("{} passed, {failed} failed", chosen.len() - failed);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Checks that every script that runs a proof uses `--proof`, which selects full counts.
fn scripts_name_their_proofs() -> bool {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts");
    let texts =
        std::fs::read_dir(folder).unwrap().flatten().map(|script| std::fs::read_to_string(script.path()));
    let calls = texts.map(Result::unwrap_or_default).filter(|text| text.contains("--test shows"));
    let careless: Vec<_> = calls.filter(|text| !text.contains("--test shows -- --proof ")).collect();
    for text in &careless {
        println!("FAILED: no --proof NAME after `--test shows --`: {text}");
    }
    careless.is_empty()
}

/// Runs every wanted proof with small counts, including the variants of `crash`.
fn small(arguments: &Arguments) -> Vec<bool> {
    let mut passed = vec![scripts_name_their_proofs()];
    for proof in PROOFS.iter().filter(|(name, _)| arguments.is_wanted(name)) {
        if proof.0 == "crash" {
            let variants = ["", "keeper", "both", "run", "syscalls", "records"];
            passed.extend(variants.map(|variant| run(proof, &arguments.with_flag(variant), true)));
            passed.push(run(proof, &arguments.with_text("jobs", "flow"), true));
        } else {
            passed.push(run(proof, arguments, true));
        }
    }
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
