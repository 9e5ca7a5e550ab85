//! `empty-root`: runs the static program in an otherwise empty root folder (connectors.md §2.3).
//!
//! First nothing else is there: the program names what is missing. Then `/proc` and `/dev/null` are added, which every
//! container has: the program copies itself, and the copy serves as daemon, as proxy, and as the step of a job. Prints
//! size and start time.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use step_runner::pb::v1::StatusRequest;

use crate::arguments::Arguments;
use crate::client;
use crate::daemon::{PATIENCE, Scene};
use crate::parts::skipped;
use crate::proc;
use crate::verdict::{Check, Misses, Shown};

/// Path of the program inside the root.
const PROGRAM: &str = "/step-runner";

/// Path of its copy inside the root.
const COPIED: &str = "/opt/bin/step-runner";

/// Number of starts, of which the median is printed.
const STARTS: usize = 20;

/// Folders of the programs that enter the root. Inside the root they do not exist.
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// Enters the root in new mount and pid namespaces, with `/proc` and `/dev/null`, which the daemon needs and every
/// container engine mounts. The started process is the first of its pid namespace, so everything ends with it.
const ENTER: &str = r#"set -e; root=$1; shift
mount --make-rprivate /
mkdir -p "$root/proc" "$root/dev"
mount -t proc proc "$root/proc"
touch "$root/dev/null" && mount --bind /dev/null "$root/dev/null"
exec chroot "$root" "$@""#;

pub(crate) fn run(_: &Arguments, small: bool) -> Shown {
    let Some(program) = static_program() else {
        if small {
            return Ok("skipped: no static program (scripts/static-build)".into());
        }
        return Err("no static program: build one with scripts/static-build".into());
    };
    if let Some(part) = missing_part() {
        skipped("empty-root", part);
        return Ok(format!("skipped: no {part}"));
    }
    let misses = Misses::default();
    let scene = Scene::new("empty-root");
    let root = scene.path("root");
    misses.check("the root", prepare(&root, &program));
    misses.check("nothing but the program", bare(&root));
    misses.check("its copy", bootstrapped(&root));
    misses.check("with /proc and /dev/null", furnished(&root));
    let size = fs::metadata(&program).map_or(0, |file| file.len());
    let start = match first_status(&scene, &program) {
        Ok(median) => median.as_secs_f64() * 1e3,
        Err(miss) => return Err(format!("a start: {miss}")),
    };
    misses.verdict(format!(
        "named what it misses; copied itself, served, proxied and ran a job; {size} bytes, {start:.1} ms from start to first Status (median of {STARTS})"
    ))
}

/// Returns the program if it is static, or else the newest result of `scripts/static-build`.
pub(crate) fn static_program() -> Option<PathBuf> {
    let own = crate::daemon::program();
    let target = own.parent()?.parent()?;
    let built =
        ["dist", "release"].map(|p| target.join("x86_64-unknown-linux-musl").join(p).join("step-runner"));
    let newest =
        built.into_iter().max_by_key(|program| fs::metadata(program).and_then(|file| file.modified()).ok());
    [Some(own), newest].into_iter().flatten().find(|program| is_static(program))
}

/// True if a 64-bit ELF program names no interpreter.
fn is_static(program: &Path) -> bool {
    const INTERPRETER: u32 = 3;
    let mut head = vec![0; 64 << 10];
    let Ok(length) = fs::File::open(program).and_then(|mut file| file.read(&mut head)) else { return false };
    head.truncate(length);
    let number = |at: usize, bytes: usize| {
        let field = head.get(at..at + bytes)?;
        Some(field.iter().rev().fold(0_u64, |number, &byte| number << 8 | u64::from(byte)))
    };
    let kind = |entry: u64| {
        let at = number(0x20, 8)? + entry * number(0x36, 2)?;
        number(at as usize, 4).map(|kind| kind as u32)
    };
    let Some(count) = number(0x38, 2).filter(|_| head.starts_with(b"\x7fELF\x02\x01")) else { return false };
    !(0..count).any(|entry| kind(entry) == Some(INTERPRETER))
}

fn missing_part() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("root");
    }
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--pid", "--fork", "chroot", "/", "true"]).stderr(Stdio::null());
    if unshare.status().is_ok_and(|status| status.success()) { None } else { Some("unshare and chroot") }
}

fn prepare(root: &Path, program: &Path) -> Check {
    let inside = root.join(PROGRAM.trim_start_matches('/'));
    let made = fs::create_dir(root).and_then(|()| fs::copy(program, &inside));
    made.and_then(|_| fs::set_permissions(inside, fs::Permissions::from_mode(0o755)))
        .map_err(|error| error.to_string())
}

/// Without any mount, each command works or names what is missing.
fn bare(root: &Path) -> Check {
    expect(&in_root(root, &["--version"])?, 0, "step-runner ")?;
    expect(&in_root(root, &["help", "recovery"])?, 0, "")?;
    expect(&in_root(root, &["proxy"])?, 1, "step-runner proxy: connect /tmp/step-runner.sock: No such file")?;
    expect(&in_root(root, &["serve"])?, 1, "/proc is not mounted")?;
    function(root)?;
    expect(&in_root(root, &["run", "/own"])?, 1, "set TMPDIR to a folder that can be written")?;
    fs::create_dir(root.join("tmp")).map_err(|error| error.to_string())?;
    expect(&in_root(root, &["run", "/own"])?, 1, "/proc is not mounted")
}

fn expect(output: &Output, code: i32, part: &str) -> Check {
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(code) && said.contains(part) {
        return Ok(());
    }
    Err(format!("{}, said {said:?}; expected {code} and {part:?}", output.status))
}

/// A process in the root. Dropped, it is killed with all its descendants.
struct Inside(Child);

impl Inside {
    fn start(root: &Path, words: &[&str]) -> Check<Self> {
        Self::start_program(root, PROGRAM, words)
    }

    fn start_program(root: &Path, program: &str, words: &[&str]) -> Check<Self> {
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-c", ENTER, "sh"])
            .arg(root)
            .arg(program);
        command.args(words).env_clear().env("PATH", PATH);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(fs::File::create(root.join("stderr")).map_err(|error| error.to_string())?);
        Ok(Self(command.spawn().map_err(|error| error.to_string())?))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Runs both forms of `bootstrap`, the second one over an existing copy.
fn bootstrapped(root: &Path) -> Check {
    let text = |error: std::io::Error| error.to_string();
    for words in [["bootstrap", "/opt/bin"].as_slice(), &["steps", "bootstrap", COPIED]] {
        let status = Inside::start(root, words)?.0.wait().map_err(text)?;
        let said = fs::read_to_string(root.join("stderr")).unwrap_or_default();
        if !status.success() || !said.is_empty() {
            return Err(format!("{words:?}: {status}: {said}"));
        }
    }
    let [own, copy] = [PROGRAM, COPIED].map(|path| root.join(path.trim_start_matches('/')));
    if fs::read(&own).map_err(text)? != fs::read(&copy).map_err(text)? {
        return Err("the copy differs".into());
    }
    let mode = fs::metadata(&copy).map_err(text)?.permissions().mode() & 0o7777;
    if mode == 0o755 { Ok(()) } else { Err(format!("the copy has mode {mode:o}")) }
}

fn furnished(root: &Path) -> Check {
    let said = || fs::read_to_string(root.join("stderr")).unwrap_or_default();
    let inside = Inside::start_program(root, COPIED, &["steps", "serve"])?;
    let served = proc::wait_until(PATIENCE, || {
        said().contains("step-runner is listening on socket /tmp/step-runner.sock\n")
    });
    served.ok_or_else(|| format!("no daemon: {}", said()))?;
    let asked = in_root(root, &["status", "--address", "/tmp/step-runner.sock"])?;
    expect(&asked, 0, "")?;
    expect(&in_root(root, &["proxy"])?, 0, "")?;
    expect(&submitted(root, "own/func.yml", None)?, 0, env!("CARGO_PKG_VERSION"))?;
    let shell = r#"[{"name": "s", "script": "echo x"}]"#;
    expect(&submitted(root, "shell.json", Some(shell))?, 1, "no shell: neither bash nor sh is in")?;
    let far = r#"[{"name": "s", "func": "https://nowhere.invalid/x@v1"}]"#;
    expect(&submitted(root, "far.json", Some(far))?, 1, "the name of the host cannot be resolved")?;
    // Its transfer has a limit of memory, which the allocator of a static program must not exceed from the start.
    let image =
        r#"[{"name": "s", "func": {"oci": {"registry": "nowhere.invalid", "repository": "x", "tag": "1"}}}]"#;
    expect(&submitted(root, "image.json", Some(image))?, 1, "the name of the host cannot be resolved")?;
    drop(inside);
    Ok(())
}

/// Runs the program in the root, beside the daemon.
fn in_root(root: &Path, words: &[&str]) -> Check<Output> {
    let mut command = Command::new("chroot");
    command.arg(root).arg(PROGRAM).args(words).env_clear().env("PATH", PATH).stdin(Stdio::null());
    command.output().map_err(|error| error.to_string())
}

/// Runs the job in this file with a client outside of the root, which uses the socket's path outside. Returns the
/// output.
fn submitted(root: &Path, name: &str, text: Option<&str>) -> Check<Output> {
    if let Some(text) = text {
        fs::write(root.join(name), text).map_err(|error| error.to_string())?;
    }
    let mut command = Command::new(crate::daemon::program());
    command.args(["run", "--work-dir", "/", "--address"]).arg(root.join("tmp/step-runner.sock"));
    command.arg(root.join(name)).stdin(Stdio::null());
    command.output().map_err(|error| error.to_string())
}

/// Makes a function that runs the program itself.
fn function(root: &Path) -> Check {
    let folder = root.join("own");
    let text = format!("spec: {{}}\n---\nexec: {{command: [{PROGRAM}, --version]}}\n");
    fs::create_dir(&folder)
        .and_then(|()| fs::write(folder.join("func.yml"), text))
        .map_err(|error| error.to_string())
}

/// A daemon outside of the root. Dropped, it is killed.
struct Served(Child);

impl Drop for Served {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Returns the median of the times from the start of a daemon to its first answer.
fn first_status(scene: &Scene, program: &Path) -> Check<Duration> {
    let text = |error: std::io::Error| error.to_string();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(text)?;
    let mut times = Vec::new();
    for number in 0..STARTS {
        let folder = scene.path(&format!("start{number}"));
        fs::create_dir(&folder).map_err(text)?;
        let socket = folder.join("s.sock");
        let mut command = Command::new(program);
        command.args(["serve", "--socket"]).arg(&socket).env_clear().env("PATH", PATH);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let begun = Instant::now();
        let mut served = Served(command.spawn().map_err(text)?);
        let mut marker = String::new();
        let stderr = served.0.stderr.take().ok_or("no stderr")?;
        BufReader::new(stderr).read_line(&mut marker).map_err(text)?;
        if !marker.starts_with("step-runner is listening on socket ") {
            return Err(format!("no daemon: {marker}"));
        }
        runtime.block_on(async {
            let asked = client::dial(&socket).await?.status(StatusRequest { id: String::new() }).await;
            asked.map_err(|status| status.to_string())
        })?;
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    Ok(times[STARTS / 2])
}
