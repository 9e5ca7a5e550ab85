//! The unreliable program between client and daemon: this binary again, under the name of the program that the client
//! starts. It checks its command line, then relays bytes between its own streams and a real `step-runner proxy` until
//! it breaks.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::random::Random;

/// Variable that makes this binary a relay. It holds a [`Plan`] as JSON.
pub(crate) const VARIABLE: &str = "SHOWS_RELAY";

/// Most bytes that a connection passes before it breaks.
const LONGEST: u64 = 64 << 10;

/// Instructions for a relay.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// Path of the step-runner whose proxy it starts.
    pub(crate) program: PathBuf,
    pub(crate) socket: PathBuf,
    /// Expected command line of the relay.
    pub(crate) words: Vec<String>,
    /// File to which each relay adds a line at its start and at its end.
    pub(crate) record: PathBuf,
    pub(crate) seed: u64,
    /// Number of the connection that freezes for ever instead of breaking. 0: none.
    pub(crate) frozen: u64,
}

/// Behaviour of one connection.
struct Fate {
    /// Number of bytes from the daemon before it breaks.
    bytes: u64,
    /// Pause before each piece.
    delay: Duration,
    /// Time without any traffic before it breaks.
    freeze: Duration,
}

impl Fate {
    fn of(random: &mut Random) -> Self {
        let delay =
            if random.one_in(8) { Duration::from_micros(random.below(3_000)) } else { Duration::ZERO };
        let freeze =
            if random.one_in(16) { Duration::from_millis(random.below(300)) } else { Duration::ZERO };
        Self { bytes: 1 + random.below(LONGEST), delay, freeze }
    }
}

/// True if this process is to be a relay.
pub(crate) fn is_asked() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

/// Runs the relay.
pub(crate) fn main() -> ExitCode {
    let plan: Plan = match serde_json::from_str(&std::env::var(VARIABLE).unwrap_or_default()) {
        Ok(plan) => plan,
        Err(error) => return refuse(&format!("no plan: {error}")),
    };
    let mut words: Vec<_> = std::env::args().collect();
    words[0] = Path::new(&words[0]).file_name().unwrap_or_default().to_string_lossy().into_owned();
    if words != plan.words {
        plan.note(&format!("wrong {words:?}"));
        return refuse(&format!("started as {words:?}, not {:?}", plan.words));
    }
    let number = plan.begin();
    let mut random = Random::new(plan.seed).fork(number);
    let fate = Fate::of(&mut random);
    let proxy = Command::new(&plan.program)
        .args(["proxy", "--socket"])
        .arg(&plan.socket)
        .env_remove(VARIABLE)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut proxy = match proxy {
        Ok(proxy) => proxy,
        Err(error) => return refuse(&format!("cannot start the proxy: {error}")),
    };
    let whole = number != plan.frozen && pass(&mut proxy, &fate).unwrap_or(true);
    if whole {
        // The client or the daemon has closed the connection.
        plan.note("end");
        proxy.wait().ok();
        return ExitCode::SUCCESS;
    }
    if number == plan.frozen {
        plan.note("frozen");
        // Waits until the client gives up and closes the connection.
        io::copy(&mut io::stdin().lock(), &mut io::sink()).ok();
        proxy.kill().ok();
        proxy.wait().ok();
        return ExitCode::FAILURE;
    }
    std::thread::sleep(fate.freeze);
    plan.note("cut");
    proxy.kill().ok();
    proxy.wait().ok();
    broken(&plan.words[0])
}

/// Relays bytes. Returns `false` when the connection is to break, `true` when one side has ended it.
fn pass(proxy: &mut Child, fate: &Fate) -> io::Result<bool> {
    let (Some(mut to), Some(mut from)) = (proxy.stdin.take(), proxy.stdout.take()) else { return Ok(true) };
    std::thread::spawn(move || io::copy(&mut io::stdin().lock(), &mut to));
    let mut out = File::from(std::os::fd::AsFd::as_fd(&io::stdout()).try_clone_to_owned()?);
    let (mut left, mut piece) = (fate.bytes, [0; 4096]);
    while left > 0 {
        let room = piece.len().min(left as usize);
        let length = from.read(&mut piece[..room])?;
        if length == 0 {
            return Ok(true);
        }
        std::thread::sleep(fate.delay);
        out.write_all(&piece[..length])?;
        left -= length as u64;
    }
    Ok(false)
}

/// Prints the message and returns the exit code that the program of this name has when its connection breaks.
fn broken(name: &str) -> ExitCode {
    let (said, code) = match name {
        "ssh" => ("Connection to build7 closed by remote host.", 255),
        "docker" | "podman" => ("", 137),
        "kubectl" => ("error: error reading from error stream: next reader: unexpected EOF", 1),
        _ => ("", 143),
    };
    if !said.is_empty() {
        eprintln!("{said}");
    }
    ExitCode::from(code)
}

fn refuse(why: &str) -> ExitCode {
    eprintln!("relay: {why}");
    ExitCode::from(2)
}

impl Plan {
    /// Adds this relay to the record. Returns its number, from 1.
    fn begin(&self) -> u64 {
        self.note("start");
        let text = fs::read_to_string(&self.record).unwrap_or_default();
        text.lines().filter(|line| *line == "start").count() as u64
    }

    fn note(&self, what: &str) {
        let file = File::options().append(true).create(true).open(&self.record);
        if let Ok(mut file) = file {
            file.write_all(format!("{what}\n").as_bytes()).ok();
        }
    }

    /// Returns the number of lines in the record that begin with `what`.
    pub(crate) fn count(&self, what: &str) -> u64 {
        let text = fs::read_to_string(&self.record).unwrap_or_default();
        text.lines().filter(|line| line.starts_with(what)).count() as u64
    }
}
