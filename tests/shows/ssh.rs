//! `ssh [--scale F] [--seed N]`: runs a job over a real sshd while its client, the server's part of the connection, or
//! the whole server is killed or stopped (connectors.md §9). The output is 50 MB at scale 1. Also checks the messages
//! for mistakes of users.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::arguments::Arguments;
use crate::daemon::{self, Daemon, PATIENCE, Scene, check_stop};
use crate::proc;
use crate::relay::{CODE, check, document};
use crate::sshd::{self, Sshd};
use crate::verdict::{Check, Misses, Shown};
use crate::writer::{Pace, Writing};

/// Bytes that the step writes at scale 1, bytes of a line, and time between two lines.
const BYTES: u64 = 50 << 20;
const WIDTH: usize = 16 << 10;
const EVERY: Duration = Duration::from_millis(4);
const SMALL_SCALE: f64 = 0.04;

/// Time for which the server is stopped.
const STOPPED: Duration = Duration::from_secs(5);
const STOPPED_SHORTLY: Duration = Duration::from_millis(500);

pub(crate) fn run(arguments: &Arguments, small: bool) -> Shown {
    let scale = arguments.fraction("scale", if small { SMALL_SCALE } else { 1.0 });
    let seed = arguments.seed();
    if !sshd::lets_in() {
        crate::parts::skipped("ssh", "login shell of this user");
        return Ok("skipped: no login shell of this user".to_owned());
    }
    let mut scene = Scene::new("ssh");
    let Some(sshd) = Sshd::start(&scene.path("work"))? else {
        crate::parts::skipped("ssh", "OpenSSH");
        return Ok("skipped: no OpenSSH".to_owned());
    };
    let misses = Misses::default();
    let daemon = Daemon::start(&scene)?;
    let path = format!("{}:{}", sshd.bin()?.display(), std::env::var("PATH").unwrap_or_default());
    let proof = Proof { scene: &scene, sshd: &sshd, path };
    let stopped = if small { STOPPED_SHORTLY } else { STOPPED };
    let figures = match proof.job((BYTES as f64 * scale) as u64, seed, stopped) {
        Ok(figures) => figures,
        Err(miss) => {
            misses.add(miss);
            String::new()
        }
    };
    misses.check("what is wrong", proof.wrong());
    misses.check("a fourth channel", proof.fourth_channel());
    misses.check("the end", check_stop(&scene, daemon));
    if misses.count() > 0 {
        scene.keep();
    }
    misses.verdict(format!("{figures}; banner, missing command, wrong key, unknown host, closed port, fourth channel; seed {seed}"))
}

/// Fractions of the log at which a fault happens.
const PARTS: [f64; 6] = [0.1, 0.25, 0.4, 0.55, 0.7, 0.85];

struct Proof<'a> {
    scene: &'a Scene,
    sshd: &'a Sshd,
    path: String,
}

/// A child process. Dropped, it is killed.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

impl Proof<'_> {
    /// Returns the daemon's address on this host of the SSH configuration.
    fn address(&self, host: &str) -> String {
        let program = daemon::program();
        format!("ssh://{host}{}?command={}", self.scene.socket().display(), program.display())
    }

    fn command(&self, words: &[&str], host: &str) -> Command {
        let mut command = self.scene.command(words);
        command.args(["--address", &self.address(host)]).env("PATH", &self.path);
        command
    }

    /// Runs a job while its connection is broken in every way.
    fn job(&self, bytes: u64, seed: u64, stopped: Duration) -> Shown {
        let bytes = bytes.next_multiple_of(WIDTH as u64);
        let report = self.scene.path("ssh.report");
        // The writer goes on for a part of the log after each fault. Then it waits until the fault has happened.
        let part_of = |part: f64| (bytes as f64 * part) as u64;
        let go = |part: f64| self.scene.path(&format!("go-{part}"));
        let gates = PARTS.map(|part| (part_of(part + 0.1), go(part))).to_vec();
        let writing =
            Writing { width: WIDTH, bytes, seed, pace: Pace::Lines { every: EVERY, gates }, report };
        let (file, starts, log) =
            (self.scene.path("job.yml"), self.scene.path("starts"), self.scene.path("log"));
        fs::write(&file, document(&writing, &starts)?).map_err(|error| error.to_string())?;
        let begun = Instant::now();
        let words = ["run", "--id", "ssh", "--output", "raw", &file.to_string_lossy()];
        let out = File::create(&log).map_err(|error| error.to_string())?;
        let errors = File::create(self.scene.path("errors")).map_err(|error| error.to_string())?;
        let mut command = self.command(&words, "job");
        let mut running =
            Running(command.stdout(out).stderr(errors).spawn().map_err(|error| error.to_string())?);
        let events: [&dyn Fn(); PARTS.len()] = [
            &|| kill_all(&self.sshd.clients()),
            &|| kill_all(&self.sshd.children()),
            &|| self.stop_for(stopped),
            &|| kill_all(&self.sshd.clients()),
            &|| kill_all(&self.sshd.children()),
            &|| kill_all(&self.sshd.clients()),
        ];
        for (part, event) in PARTS.into_iter().zip(events) {
            self.wait_for_size(&log, part_of(part), &mut running)?;
            event();
            fs::write(go(part), "").map_err(|error| error.to_string())?;
        }
        let mut status = None;
        proc::wait_until(10 * PATIENCE, || {
            status = running.0.try_wait().unwrap();
            status.is_some()
        });
        let errors = fs::read_to_string(self.scene.path("errors")).unwrap_or_default();
        if status.and_then(|status| status.code()) != Some(CODE) {
            return Err(format!("run ended with {status:?}: {errors}"));
        }
        let log = fs::read(&log).map_err(|error| error.to_string())?;
        check(&log, &writing)?;
        let starts = fs::read_to_string(&starts).unwrap_or_default().lines().count();
        if starts != 1 {
            return Err(format!("{starts} starts"));
        }
        Ok(format!(
            "{bytes} bytes as a log of {} in {:.1?} over 5 killed connections and a server stopped for {stopped:?}: equal, one start",
            log.len(),
            begun.elapsed()
        ))
    }

    fn wait_for_size(&self, file: &Path, size: u64, running: &mut Running) -> Check {
        let length = || fs::metadata(file).map_or(0, |file| file.len());
        let mut ended = false;
        let reached = proc::wait_until(2 * PATIENCE, || {
            ended = running.0.try_wait().unwrap().is_some();
            ended || length() >= size
        });
        if reached.is_some() && !ended {
            return Ok(());
        }
        let errors = fs::read_to_string(self.scene.path("errors")).unwrap_or_default();
        Err(format!("{} of {size} bytes came, the client has ended: {ended}: {errors}", length()))
    }

    fn stop_for(&self, time: Duration) {
        self.sshd.signal(Signal::STOP);
        std::thread::sleep(time);
        self.sshd.signal(Signal::CONT);
    }

    /// Checks the messages for mistakes of users.
    fn wrong(&self) -> Check {
        // Errors that waiting cannot fix are reported at once. The first attempt over ssh gets time to complete.
        for (host, parts) in [
            (
                "greets",
                [
                    "not from a step-runner daemon; the output was \"Welcome to build7\\nbe nice\\n",
                    "must print nothing",
                ],
            ),
            ("wrong-key", ["access is refused: ", "Permission denied (publickey"]),
            ("unknown", ["access is refused: ", "Host key verification failed."]),
            ("closed", ["the host does not answer", "Connection refused"]),
        ] {
            let words = ["status", "--connect-timeout", if host == "closed" { "1ms" } else { "1min" }];
            fails(self.command(&words, host), host, &parts)?;
        }
        let mut missing =
            self.scene.command(&["status", "--address", "ssh://job?command=/nonexistent/step-runner"]);
        missing.env("PATH", &self.path);
        fails(missing, "a missing program", &["exit status 127", "step-runner bootstrap"])?;
        let mut stale = self.scene.command(&["status", "--connect-timeout", "10s", "--address"]);
        stale.arg(format!("ssh://job/nonexistent/s?command={}", daemon::program().display()));
        stale.env("PATH", &self.path);
        fails(stale, "a stale address", &["no daemon listens there yet: step-runner proxy: connect"])
    }

    /// Three channels use one SSH connection, so a fourth is refused. It succeeds once one of them ends.
    fn fourth_channel(&self) -> Check {
        let _master = self.sshd.master()?;
        let (file, go) = (self.scene.path("waits.yml"), self.scene.path("go"));
        let script = format!("echo begun; until [ -e '{}' ]; do sleep 0.05; done", go.display());
        let run = serde_json::json!({ "run": [{ "name": "waits", "script": script }] });
        fs::write(&file, format!("spec: {{}}\n---\n{run}\n")).map_err(|error| error.to_string())?;
        let submit = self.command(&["submit", "--id", "waits", &file.to_string_lossy()], "shared").output();
        if !submit.as_ref().is_ok_and(|output| output.status.success()) {
            return Err(format!("submit: {submit:?}"));
        }
        let mut followers = Vec::new();
        for number in 0..3 {
            let log = self.scene.path(&format!("follower-{number}"));
            let out = File::create(&log).map_err(|error| error.to_string())?;
            let mut command = self.command(&["follow", "waits"], "shared");
            let follower =
                command.stdout(out).stderr(Stdio::null()).spawn().map_err(|error| error.to_string())?;
            followers.push(Running(follower));
            let begun = || fs::read_to_string(&log).is_ok_and(|text| text.contains("begun"));
            proc::wait_until(PATIENCE, begun).ok_or("a follower sees nothing")?;
        }
        let refused = self.command(&["status", "--connect-timeout", "1ms"], "shared");
        fails(refused, "the fourth", &["Session open refused by peer"])?;
        let mut fourth = self.command(&["status"], "shared");
        let fourth =
            fourth.stdout(Stdio::null()).stderr(Stdio::null()).spawn().map_err(|error| error.to_string())?;
        let mut fourth = Running(fourth);
        drop(followers.pop());
        let status = fourth.0.wait().map_err(|error| error.to_string())?;
        fs::write(&go, "").map_err(|error| error.to_string())?;
        for mut follower in followers {
            follower.0.wait().map_err(|error| error.to_string())?;
        }
        let finish = self.command(&["finish", "waits"], "shared").output();
        if !status.success() || !finish.is_ok_and(|output| output.status.success()) {
            return Err(format!("with a free channel the fourth ends with {status}"));
        }
        Ok(())
    }
}

fn kill_all(pids: &[u32]) {
    for &pid in pids {
        proc::kill(pid, Signal::KILL);
    }
}

/// Checks that the command ends with the exit code for an unreachable daemon, and a message with all these parts.
fn fails(mut command: Command, what: &str, parts: &[&str]) -> Check {
    let output = command.output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.code() != Some(69) || !parts.iter().all(|part| said.contains(part)) {
        return Err(format!("{what}: {} with {said:?}, expected {parts:?}", output.status));
    }
    Ok(())
}
