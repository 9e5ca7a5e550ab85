//! Runs many seeds: divides them among processes, shortens failing schedules, and records their seeds.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::schedule::Schedule;
use super::world::{Verdict, play};
use crate::arguments::Arguments;
use crate::verdict::Shown;

/// Default number of seeds.
pub(crate) const SMALL: u64 = 300;

/// Returns the path of the file with seeds that once failed.
fn kept_file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/shows/simulate/seeds.txt")
}

pub(crate) fn kept() -> Vec<u64> {
    let text = fs::read_to_string(kept_file()).unwrap_or_default();
    let seed = |line: &str| line.split('#').next()?.trim().parse().ok();
    text.lines().filter_map(seed).collect()
}

fn keep(seed: u64, why: &str) {
    if !kept().contains(&seed) {
        let mut file = fs::File::options().append(true).create(true).open(kept_file()).unwrap();
        writeln!(file, "{seed} # {}", why.chars().take(100).collect::<String>()).unwrap();
    }
}

/// Makes a temporary folder, in memory if possible.
pub(crate) fn place() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let builder = tempfile::Builder::new();
    if memory.is_dir() { tempfile::TempDir::new_in(memory) } else { builder.tempdir() }.unwrap()
}

pub(crate) fn run(schedule: &Schedule, fault: Option<&str>) -> Verdict {
    let folder = place();
    if let Some((name, action)) = fault.and_then(|fault| fault.split_once('=')) {
        step_runner::failpoint::fail::cfg(name, action).unwrap();
    }
    let played = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| play(schedule, folder.path())));
    played.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        let wrongs = vec![format!("a panic outside of the daemon: {}", text.unwrap_or_default())];
        Verdict { wrongs, trace: Vec::new(), passed: Duration::ZERO }
    })
}

/// Returns a hash of everything that a run showed.
pub(crate) fn hash(verdict: &Verdict) -> u64 {
    let mut hasher = DefaultHasher::new();
    (&verdict.trace, &verdict.wrongs, verdict.passed).hash(&mut hasher);
    hasher.finish()
}

/// Returns the shortest schedule found that still fails.
pub(crate) fn shortened(schedule: &Schedule, fault: Option<&str>) -> Schedule {
    let fails = |schedule: &Schedule| !run(schedule, fault).wrongs.is_empty();
    let mut short = schedule.clone();
    let (mut good, mut bad) = (0, short.steps.len());
    while good + 1 < bad {
        let middle = usize::midpoint(good, bad);
        if fails(&schedule.prefix(middle)) {
            bad = middle;
        } else {
            good = middle;
        }
    }
    if fails(&schedule.prefix(bad)) {
        short = schedule.prefix(bad);
    }
    for at in (0..short.steps.len()).rev() {
        let less = short.without(at);
        if fails(&less) {
            short = less;
        }
    }
    short
}

/// Runs one seed and prints its trace.
pub(crate) fn show(seed: u64, arguments: &Arguments) -> Shown {
    let fault = arguments.text("fault");
    let schedule = Schedule::new(seed);
    let verdict = run(&schedule, fault);
    let again = run(&schedule, fault);
    let (schedule, verdict) = if verdict.wrongs.is_empty() {
        (schedule, verdict)
    } else {
        let short = shortened(&schedule, fault);
        let verdict = run(&short, fault);
        (short, verdict)
    };
    println!("seed {seed}: {} of its steps, {:?} of virtual time", schedule.steps.len(), verdict.passed);
    let settings = Schedule { steps: Vec::new(), ..schedule };
    println!("{settings:?}");
    verdict.trace.iter().for_each(|line| println!("  {line}"));
    let same = hash(&run(&Schedule::new(seed), fault)) == hash(&again);
    if !same {
        println!("NOT REPEATABLE: two runs of seed {seed} differ");
    }
    for wrong in &verdict.wrongs {
        println!("WRONG {wrong}");
    }
    if verdict.wrongs.is_empty() && same { Ok("as it should be".into()) } else { Err("see above".into()) }
}

/// Worker process: runs every Nth seed and prints the failing ones.
pub(crate) fn work(arguments: &Arguments) -> String {
    let start = Instant::now();
    let stride = arguments.number("jobs", 1);
    let from = arguments.number("from", 1);
    let mut seed = from;
    let end = from + arguments.number("seeds", SMALL) * stride;
    let (mut count, mut all) = (0u64, 0u64);
    while seed < end {
        if arguments.given("seconds").is_some_and(|limit| start.elapsed() >= Duration::from_secs(limit)) {
            break;
        }
        println!("begin {seed}");
        let schedule = Schedule::new(seed);
        let verdict = run(&schedule, arguments.text("fault"));
        all ^= hash(&verdict);
        if let Some(first) = verdict.wrongs.first() {
            println!("wrong {seed} {}", first.replace('\n', " "));
        } else if seed.is_multiple_of(64) && hash(&run(&schedule, arguments.text("fault"))) != hash(&verdict)
        {
            println!("wrong {seed} two runs of it differ");
        }
        count += 1;
        seed += stride;
    }
    println!("done {count} {all}");
    format!("{count} seeds")
}

struct Worker {
    child: Child,
    reader: std::thread::JoinHandle<(u64, Vec<(u64, String)>)>,
}

fn start(arguments: &Arguments, from: u64, seeds: u64, stride: u64) -> Worker {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([
        "--proof",
        "simulate",
        "--worker",
        "--from",
        &from.to_string(),
        "--seeds",
        &seeds.to_string(),
    ]);
    command.args(["--jobs", &stride.to_string()]);
    if let Some(seconds) = arguments.given("seconds") {
        command.args(["--seconds", &seconds.to_string()]);
    }
    if let Some(fault) = arguments.text("fault") {
        command.args(["--fault", fault]);
    }
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let reader = std::thread::spawn(move || {
        let (mut count, mut wrongs, mut last) = (0, Vec::new(), 0);
        let mut done = false;
        for line in lines.map_while(Result::ok) {
            let mut words = line.splitn(3, ' ');
            let (word, number) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            let number = number.parse().unwrap_or(0);
            match word {
                "begin" => last = number,
                "wrong" => wrongs.push((number, words.next().unwrap_or_default().to_owned())),
                "done" => (count, done) = (number, true),
                _ => {}
            }
        }
        if !done {
            wrongs.push((last, "the process that played it died".into()));
        }
        (count, wrongs)
    });
    Worker { child, reader }
}

/// Runs all requested seeds, those that once failed first.
pub(crate) fn all(arguments: &Arguments) -> Shown {
    let begin = Instant::now();
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let seeds =
        arguments.number("seeds", if arguments.given("seconds").is_some() { u64::MAX >> 16 } else { SMALL });
    let mut workers: Vec<Worker> = Vec::new();
    let known = if arguments.text("fault").is_some() { Vec::new() } else { kept() };
    let mut wrongs = Vec::new();
    let mut count = 0;
    let mut finish = |workers: &mut Vec<Worker>| {
        for mut worker in workers.drain(..) {
            let (played, wrong) = worker.reader.join().unwrap();
            worker.child.wait().unwrap();
            count += played;
            wrongs.extend(wrong);
        }
    };
    for seed in &known {
        workers.push(start(arguments, *seed, 1, 1));
        if workers.len() as u64 >= cores {
            finish(&mut workers);
        }
    }
    finish(&mut workers);
    let each = seeds.div_ceil(cores);
    workers.extend((0..cores).map(|n| start(arguments, arguments.number("from", 1) + n, each, cores)));
    finish(&mut workers);
    wrongs.sort();
    for (seed, wrong) in wrongs.iter().take(20) {
        println!("seed {seed}: {wrong}");
        println!("  again: scripts/simulate --seed {seed}");
        if !arguments.flag("no-keep") && arguments.text("fault").is_none() {
            keep(*seed, wrong);
        }
    }
    let (known, failed) = (known.len(), wrongs.len());
    let figures = format!("{count} seeds, {known} kept ones, {failed} failed, {:?}", begin.elapsed());
    if wrongs.is_empty() { Ok(figures) } else { Err(figures) }
}
