//! Speed and size of the real program, as ratios to what the machine itself can do, measured in the same run.
//!
//! Drives the release binary named by `STEP_RUNNER_BIN` over a unix socket in a temporary folder. Run it by
//! `scripts/bench`, which builds the binary; `--quick` takes seconds, `--json` prints one object, and any other word
//! selects the groups of figures whose names contain it (`jobs`, `language`,
//! `log`, `memory`, `start`, `steps`).
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "it is a program that prints figures")]

mod daemon;
mod jobs;
mod language;
mod log;
mod machine;
mod memory;
mod report;
mod start;
mod steps;

use std::process::ExitCode;

use report::Report;

/// What can go wrong: the benchmark ends and says what.
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    /// Seconds: for a check that everything works.
    Quick,
    /// Figures worth writing down.
    Full,
}

impl Size {
    const fn pick<T: Copy>(self, quick: T, full: T) -> T {
        match self {
            Self::Quick => quick,
            Self::Full => full,
        }
    }
}

fn main() -> ExitCode {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    // Started as a job's step: write and end.
    if let [mode, bytes, line] = arguments.as_slice()
        && mode == log::WRITE_MODE
    {
        return log::write(bytes, line);
    }
    if arguments == [machine::ECHO_MODE] {
        return machine::echo();
    }
    let mut take = |name: &str| {
        let before = arguments.len();
        arguments.retain(|argument| argument != name);
        arguments.len() != before
    };
    // Cargo adds `--bench`.
    take("--bench");
    let size = if take("--quick") { Size::Quick } else { Size::Full };
    let as_json = take("--json");
    let mut report = Report::new(!as_json);
    let measured = measure(&mut report, size, &arguments);
    if as_json {
        println!("{}", report.json());
    }
    match measured {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("bench: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// A group of figures.
type Group = fn(&mut Report, Size) -> Result<(), Failure>;

const GROUPS: [(&str, Group); 6] = [
    ("start", start::measure),
    ("language", language::measure),
    ("memory", memory::measure),
    ("steps", steps::measure),
    ("jobs", jobs::measure),
    ("log", log::measure),
];

fn measure(report: &mut Report, size: Size, wanted: &[String]) -> Result<(), Failure> {
    for (name, group) in GROUPS {
        if wanted.is_empty() || wanted.iter().any(|word| name.contains(word.as_str())) {
            group(report, size).map_err(|failure| format!("{name}: {failure}"))?;
        }
    }
    Ok(())
}
