//! Measures speed and size of the real program, as ratios to the machine's own figures from the same run.
//!
//! Drives the release binary named by `STEP_RUNNER_BIN` over a unix socket in a temporary folder. Run it with
//! `scripts/bench`, which builds the binary. `--quick` takes seconds, `--json` prints one object, `--runs N` measures
//! several times, and any other word selects the groups of figures whose names contain it (`jobs`, `language`, `log`,
//! `memory`, `peer`, `start`, `steps`).
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "it is a program that prints figures")]

mod daemon;
mod dressed;
mod jobs;
mod language;
mod log;
mod machine;
mod memory;
mod peer;
mod report;
mod start;
mod steps;
mod turns;

use std::process::ExitCode;

use report::Report;

/// Error that ends the benchmark with a message.
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Extent of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    /// Takes seconds; checks only that everything works.
    Quick,
    /// Figures fit for a record.
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
    // This process was started as the step of a job.
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
    let as_json = take("--json");
    let measured = match runs(&mut arguments) {
        Ok(None) if std::env::var_os(turns::BEFORE).is_some() => {
            Err(format!("{} is for several runs: add --runs N", turns::BEFORE).into())
        }
        Ok(None) => once(&mut arguments, as_json),
        Ok(Some(runs)) => turns::measure(runs, &arguments, as_json),
        Err(failure) => Err(failure),
    };
    match measured {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("bench: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Removes `--runs N` from the arguments and returns N.
fn runs(arguments: &mut Vec<String>) -> Result<Option<usize>, Failure> {
    let Some(at) = arguments.iter().position(|argument| argument == "--runs") else { return Ok(None) };
    let number = arguments.get(at + 1).and_then(|number| number.parse().ok()).filter(|number| *number > 0);
    arguments.drain(at..(at + 2).min(arguments.len()));
    number.map(Some).ok_or_else(|| "--runs needs a number".into())
}

fn once(arguments: &mut Vec<String>, as_json: bool) -> Result<(), Failure> {
    let before = arguments.len();
    arguments.retain(|argument| argument != "--quick");
    let size = if arguments.len() == before { Size::Full } else { Size::Quick };
    let mut report = Report::new(!as_json);
    let measured = measure(&mut report, size, arguments);
    if as_json {
        println!("{}", report.json());
    }
    measured
}

/// A group of figures.
type Group = fn(&mut Report, Size) -> Result<(), Failure>;

const GROUPS: [(&str, Group); 7] = [
    ("start", start::measure),
    ("language", language::measure),
    ("memory", memory::measure),
    ("steps", steps::measure),
    ("jobs", jobs::measure),
    ("log", log::measure),
    ("peer", peer::measure),
];

fn measure(report: &mut Report, size: Size, wanted: &[String]) -> Result<(), Failure> {
    for (name, group) in GROUPS {
        if wanted.is_empty() || wanted.iter().any(|word| name.contains(word.as_str())) {
            group(report, size).map_err(|failure| format!("{name}: {failure}"))?;
        }
    }
    Ok(())
}
