//! `relay [--cuts N] [--seed N]`: runs the client's commands over connections that break (connectors.md §6, §9;
//! faults.md row 20). For each connector a fake program of its name checks its command line and relays bytes to a real
//! proxy. It breaks after 1 byte to 64 KiB, is slow, or freezes. Logs must equal the output of their steps, and each
//! job must start once.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use sha2::{Digest, Sha256};

use crate::arguments::Arguments;
use crate::daemon::{self, Daemon, Scene, check_stop};
use crate::log::Sources;
use crate::relay_program::{Plan, VARIABLE};
use crate::verdict::{Check, Misses, Shown};
use crate::writer::{Pace, Writing, hex};

/// Number of cuts in total.
const CUTS: u64 = 2_000;
const FEW: u64 = 20;

/// Number of bytes that steps write for each cut. A connection carries 32 KiB on average.
const BYTES_PER_CUT: u64 = 25_000;

/// Longest output of one step.
const LONGEST: u64 = 5_000_000;

/// Line widths of successive jobs. 0: no line feeds.
const WIDTHS: [usize; 4] = [0, 997, 80, 16_384];

/// Exit code of the job.
pub(crate) const CODE: i32 = 7;

/// Long timeouts: a call can meet many broken connections in a row.
const PATIENT: [&str; 2] = ["--connect-timeout=5m", "--reconnect-timeout=5m"];

/// A connector: its program, the address for a socket, and the program's arguments for a socket.
type Kind = (&'static str, fn(&str) -> String, fn(&str) -> Vec<String>);

const KINDS: [Kind; 5] = [
    (
        "ssh",
        |socket| format!("ssh://ci@build7:2222{socket}"),
        |socket| {
            let far = ["step-runner", "proxy", "--socket", socket].map(|word| format!("'{word}'"));
            let near = ["-T", "-o", "BatchMode=yes", "-p", "2222", "--", "ci@build7"].map(str::to_owned);
            near.into_iter().chain(far).collect()
        },
    ),
    (
        "docker",
        |socket| format!("docker://job{socket}?user=1000"),
        |socket| words(&["exec", "-i", "--user", "1000", "job", "step-runner", "proxy", "--socket", socket]),
    ),
    (
        "podman",
        |socket| format!("podman://job{socket}?host=unix:///d.sock"),
        |socket| {
            words(&["-H", "unix:///d.sock", "exec", "-i", "job", "step-runner", "proxy", "--socket", socket])
        },
    ),
    (
        "kubectl",
        |socket| format!("kube://c@ci/pod/build?socket={socket}"),
        |socket| {
            let near = ["--context", "c", "-n", "ci", "exec", "-i", "pod", "-c", "build", "--"];
            words(&[&near[..], &["step-runner", "proxy", "--socket", socket]].concat())
        },
    ),
    ("lossy", |socket| format!("cmd:lossy 'a word' {socket}"), |socket| words(&["a word", socket])),
];

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

pub(crate) fn run(arguments: &Arguments, small: bool) -> Shown {
    let cuts = arguments.number("cuts", if small { FEW } else { CUTS });
    let seed = arguments.seed();
    let mut scene = Scene::new("relay");
    let misses = Misses::default();
    let begun = Instant::now();
    let daemon = Daemon::start(&scene)?;
    let bin = prepare(&scene)?;
    let lines: Vec<_> = (0_u64..)
        .zip(&KINDS)
        .map(|(number, kind)| {
            // The client gives up a frozen connection after 50 s, so only the full counts have one.
            let frozen = if small { 0 } else { 3 };
            Line::new(&scene, &bin, kind, seed ^ number, cuts.div_ceil(KINDS.len() as u64), frozen)
        })
        .collect();
    let totals: Vec<Total> = std::thread::scope(|scope| {
        let running: Vec<_> = lines.iter().map(|line| scope.spawn(|| line.prove(&misses))).collect();
        running.into_iter().map(|line| line.join().unwrap()).collect()
    });
    misses.check("the end", check_stop(&scene, daemon));
    let sum = |of: fn(&Total) -> u64| totals.iter().map(of).sum::<u64>();
    let figures = format!(
        "{} cuts and {} frozen lines of {} connections under {} connectors; {} jobs, {} bytes written, {} of log, each once; {:.0} s, seed {seed}",
        sum(|total| total.cuts),
        sum(|total| total.frozen),
        sum(|total| total.connections),
        KINDS.len(),
        sum(|total| total.jobs),
        sum(|total| total.bytes),
        sum(|total| total.log),
        begun.elapsed().as_secs_f64(),
    );
    if sum(|total| total.cuts) < cuts {
        misses.add(format!("fewer than {cuts} cuts"));
    }
    if misses.count() > 0 {
        scene.keep();
    }
    misses.verdict(figures)
}

/// Makes a folder with a program for each connector.
fn prepare(scene: &Scene) -> Check<PathBuf> {
    let bin = scene.path("bin");
    fs::create_dir(&bin).map_err(|error| error.to_string())?;
    let this = std::env::current_exe().map_err(|error| error.to_string())?;
    for (name, _, _) in &KINDS {
        std::os::unix::fs::symlink(&this, bin.join(name)).map_err(|error| error.to_string())?;
    }
    Ok(bin)
}

#[derive(Default)]
struct Total {
    cuts: u64,
    frozen: u64,
    connections: u64,
    jobs: u64,
    bytes: u64,
    log: u64,
}

/// One connector and the faults of its connections.
struct Line<'a> {
    scene: &'a Scene,
    name: &'static str,
    address: String,
    path: String,
    plan: Plan,
    cuts: u64,
}

impl<'a> Line<'a> {
    fn new(
        scene: &'a Scene,
        bin: &std::path::Path,
        (name, address, arguments): &Kind,
        seed: u64,
        cuts: u64,
        frozen: u64,
    ) -> Self {
        let socket = scene.socket();
        let text = socket.to_string_lossy();
        let path = std::env::var("PATH").unwrap_or_default();
        let plan = Plan {
            program: daemon::program(),
            socket: socket.clone(),
            words: std::iter::once((*name).to_owned()).chain(arguments(&text)).collect(),
            record: scene.path(&format!("{name}.record")),
            seed,
            frozen,
        };
        let path = format!("{}:{path}", bin.display());
        Self { scene, name, address: address(&text), path, plan, cuts }
    }

    /// Runs jobs until there were enough cuts and bytes.
    fn prove(&self, misses: &Misses) -> Total {
        let mut total = Total::default();
        let share = self.cuts * BYTES_PER_CUT;
        while (self.plan.count("cut") < self.cuts || total.bytes < share) && misses.count() == 0 {
            let left = self.cuts.saturating_sub(self.plan.count("cut"));
            let width = WIDTHS[total.jobs as usize % WIDTHS.len()];
            let bytes = (left * BYTES_PER_CUT).clamp(200_000, LONGEST).next_multiple_of(width.max(1) as u64);
            let id = format!("{}-{}", self.name, total.jobs);
            match self.job(&id, width, bytes, total.jobs % 2 == 0) {
                Ok(log) => total.log += log,
                Err(miss) => misses.add(format!("{id}: {miss}")),
            }
            total.jobs += 1;
            total.bytes += bytes;
        }
        (total.cuts, total.frozen) = (self.plan.count("cut"), self.plan.count("frozen"));
        total.connections = self.plan.count("start");
        if self.plan.count("wrong") > 0 {
            misses.add(format!("{}: wrong command lines in {}", self.name, self.plan.record.display()));
        }
        total
    }

    /// Runs one job and returns the length of its log. With `whole` it uses `run`, otherwise the other commands.
    fn job(&self, id: &str, width: usize, bytes: u64, whole: bool) -> Check<u64> {
        let writing = Writing {
            width,
            bytes,
            seed: self.plan.seed ^ bytes,
            pace: Pace::Varied,
            report: self.scene.path(&format!("{id}.report")),
        };
        let (file, starts) =
            (self.scene.path(&format!("{id}.yml")), self.scene.path(&format!("{id}.starts")));
        let text = document(&writing, &starts)?;
        fs::write(&file, text).map_err(|error| error.to_string())?;
        let (file, log) = (file.to_string_lossy().into_owned(), self.scene.path(&format!("{id}.log")));
        if whole {
            self.call(&["run", "--id", id, "--output", "raw", &file], Some(&log), CODE)?;
        } else {
            self.call(&["submit", "--id", id, &file], None, 0)?;
            self.call(&["follow", id, "--output", "raw"], Some(&log), CODE)?;
            self.call(&["status", id], None, 0)?;
            self.call(&["cancel", id], None, 0)?;
            self.call(&["finish", id], None, 0)?;
            self.call(&["finish", id], None, 0)?;
        }
        let log = fs::read(&log).map_err(|error| error.to_string())?;
        check(&log, &writing)?;
        let starts = fs::read_to_string(&starts).unwrap_or_default().lines().count();
        if starts == 1 { Ok(log.len() as u64) } else { Err(format!("{starts} starts")) }
    }

    /// Calls the client and checks its exit code.
    fn call(&self, words: &[&str], stdout: Option<&std::path::Path>, code: i32) -> Check {
        let plan = serde_json::to_string(&self.plan).map_err(|error| error.to_string())?;
        let mut command: Command = self.scene.command(words);
        command.args(["--address", &self.address]).args(PATIENT).env("PATH", &self.path).env(VARIABLE, plan);
        if let Some(path) = stdout {
            command.stdout(File::create(path).map_err(|error| error.to_string())?);
        }
        let output = command.output().map_err(|error| error.to_string())?;
        if output.status.code() == Some(code) {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        Err(format!("{} ended with {}, not {code}: {said}", words[0], output.status))
    }
}

/// Returns a job that records its start, writes, and exits with [`CODE`].
pub(crate) fn document(writing: &Writing, starts: &std::path::Path) -> Check<String> {
    let request = writing.job("any")?;
    let steps: serde_json::Value = serde_json::from_str(&request.steps).map_err(|error| error.to_string())?;
    let command = steps["exec"]["command"].as_array().ok_or("no command")?;
    let quoted: Vec<_> =
        command.iter().filter_map(serde_json::Value::as_str).map(|word| format!("'{word}'")).collect();
    let script = format!("echo begun >> '{}'; {}; exit {CODE}", starts.display(), quoted.join(" "));
    let run = serde_json::json!({ "run": [{ "name": "writes", "script": script }] });
    Ok(format!("spec: {{}}\n---\n{run}\n"))
}

/// Checks that the log contains what was written.
pub(crate) fn check(log: &[u8], writing: &Writing) -> Check {
    let sources = Sources::read(log)?;
    if sources.malformed > 0 {
        return Err(format!("{} malformed lines", sources.malformed));
    }
    let found = sources.of(*b"01O");
    // Without line feeds in the output, the log adds one at the end.
    let found = if writing.width == 0 { found.strip_suffix(b"\n").unwrap_or(found) } else { found };
    let (sum, written) = (hex(&Sha256::digest(found)), writing.report()?.sha256);
    if sum == written { Ok(()) } else { Err(format!("{} of {} bytes differ", found.len(), writing.bytes)) }
}
