//! Several runs, of one build or of two in turn: medians, spread and ratios of the figures.
//!
//! Each run is a process of its own, so it starts as the first did. The builds take turns, and so does which of them is
//! first, since a machine becomes faster and slower by the minute.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::{Map, Value, json};

use super::Failure;
use super::report::{bounds, median};

/// Names the build to compare with.
pub(crate) const BEFORE: &str = "STEP_RUNNER_BEFORE";

/// One figure of all runs.
struct Figure {
    name: String,
    unit: String,
    ours: Vec<f64>,
    before: Vec<f64>,
}

/// Measures `runs` times with these arguments, and prints the figures.
pub(crate) fn measure(runs: usize, arguments: &[String], as_json: bool) -> Result<(), Failure> {
    let before = std::env::var_os(BEFORE).map(PathBuf::from);
    let mut figures = Vec::new();
    for run in 0..runs {
        eprintln!("bench: run {} of {runs}", run + 1);
        let mut turns = vec![None];
        turns.extend(before.as_ref().map(Some));
        if run % 2 == 1 {
            turns.reverse();
        }
        for program in turns {
            add(&mut figures, once(program, arguments)?, program.is_none());
        }
    }
    if as_json {
        println!("{}", object(&figures));
    } else {
        print(&figures, before.is_some());
    }
    Ok(())
}

/// Returns the figures of one run, of the build before if it is given.
fn once(program: Option<&PathBuf>, arguments: &[String]) -> Result<Map<String, Value>, Failure> {
    let mut bench = Command::new(std::env::current_exe()?);
    bench.env_remove(BEFORE);
    bench.arg("--json").args(arguments).stderr(Stdio::inherit());
    if let Some(program) = program {
        bench.env("STEP_RUNNER_BIN", program);
    }
    let output = bench.output()?;
    if !output.status.success() {
        return Err(format!("a run ended with {}", output.status).into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn add(figures: &mut Vec<Figure>, run: Map<String, Value>, is_ours: bool) {
    for (name, figure) in run {
        let index = figures.iter().position(|known| known.name == name).unwrap_or_else(|| {
            let unit = figure["unit"].as_str().unwrap_or_default().to_owned();
            figures.push(Figure { name, unit, ours: Vec::new(), before: Vec::new() });
            figures.len() - 1
        });
        if let (Some(known), Some(value)) = (figures.get_mut(index), figure["value"].as_f64()) {
            if is_ours { &mut known.ours } else { &mut known.before }.push(value);
        }
    }
}

fn print(figures: &[Figure], compares: bool) {
    let head = if compares { format!("{:>12} {:>8}", "before", "ratio") } else { String::new() };
    println!("{:<44} {:>12} {:<18} {:>26} {head}", "figure", "median", "unit", "least to largest");
    for Figure { name, unit, ours, before } in figures {
        let (least, largest) = bounds(ours);
        let spread = format!("{least:.2} to {largest:.2}");
        let value = median(ours.clone());
        let compared = if before.is_empty() {
            String::new()
        } else {
            let before = median(before.clone());
            format!("{before:>12.2} {:>8.3}", value / before)
        };
        println!("{name:<44} {value:>12.2} {unit:<18} {spread:>26} {compared}");
    }
}

fn object(figures: &[Figure]) -> Value {
    let figure = |Figure { name, unit, ours, before }: &Figure| {
        let value = json!({ "median": median(ours.clone()), "unit": unit, "runs": ours, "before": before });
        (name.clone(), value)
    };
    Value::Object(figures.iter().map(figure).collect())
}
