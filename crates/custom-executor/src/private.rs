//! The private daemon: started for one attempt, started again when it dies (custom-executor.md §6, §8).

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::time::{Duration, Instant};

use super::environment::reaches_daemon;
use super::processes::Processes;
use super::result::chain;
use super::state::{AttemptFolder, Lock};
use super::{Driver, LIFETIME, LIFETIME_MARGIN};
use step_runner_client::Address;
use step_runner_client::net::{Socket, is_peer};
use step_runner_model::error::{Exit, Failure};
use step_runner_process::detached::{Detached, Started};
use step_runner_process::sweep::Process;

/// Variables of `job_env`: the folder of the attempt, and the prefix of all its ids.
pub(super) const STATE_VARIABLE: &str = "STEP_RUNNER_CE_STATE";
pub(super) const PREFIX_VARIABLE: &str = "STEP_RUNNER_CE_PREFIX";

/// Time without job and call after which a private daemon ends. A stage that comes later starts it again, which takes a
/// fraction of a second. It holds memory until then, also for a Runner that has died.
const IDLE_TIMEOUT: &str = "10m";

/// Lines shown from the log of a daemon that did not start.
const LOG_LINES: usize = 20;

/// Time between two looks at the state of a process.
const PAUSE: Duration = Duration::from_millis(10);

/// Starts the private daemon of `state`, of which none lives, for the first time or again. The caller holds the lock
/// meanwhile.
pub(super) fn start(driver: &Driver, state: &AttemptFolder, _lock: &Lock) -> Result<(), Failure> {
    let socket = state.socket();
    state.make_place_for_socket()?;
    state.trim_log();
    let log = state.open_log()?;
    let mut words = watcher(driver, state)?;
    words.push("--".into());
    words.extend(options(&socket, &state.daemon_state(), lifetime(driver)));
    let words: Vec<&OsStr> = words.iter().map(OsString::as_os_str).collect();
    let cannot = |error: std::io::Error| {
        Failure::new(Exit::Unreachable, format!("cannot start a private daemon: {}", chain(&error)))
    };
    let detached = Detached::start(&words, environment(&state.make_bin()?), &log).map_err(cannot)?;
    let started = detached.release().map_err(cannot)?;
    wait_until_ready(state, started, &socket, driver.options.start_timeout)
}

/// Returns the longest lifetime of a daemon that is started now.
fn lifetime(driver: &Driver) -> Duration {
    let limit = driver.job_response().timeout.or(driver.environment.job.timeout);
    limit.map_or(LIFETIME, |limit| limit + LIFETIME_MARGIN)
}

/// Returns the words that lead to [`super::abandoned::watch`], without those for `serve`.
fn watcher(driver: &Driver, state: &AttemptFolder) -> Result<Vec<OsString>, Failure> {
    let owner = driver.owner()?;
    let time = |time: Duration| humantime::format_duration(time).to_string();
    let mut words: Vec<OsString> = vec!["custom-executor".into(), "--state-dir".into(), state.root().into()];
    words.extend(["--start-timeout".into(), time(driver.options.start_timeout).into()]);
    words.extend(["--abandon-after".into(), time(driver.options.abandon_after).into()]);
    if driver.options.keep {
        words.push("--keep".into());
    }
    words.extend(["launch".into(), "--private-dir".into(), owner.private_dir.into()]);
    words.push(format!("--job-id={}", driver.identity()?.job()).into());
    if let Some(runner) = owner.runner {
        words.push(format!("--runner={}:{}", runner.pid, runner.start_time).into());
    }
    Ok(words)
}

fn options(socket: &Path, daemon_state: &Path, lifetime: Duration) -> Vec<OsString> {
    let pair = |name: &str, value: &OsStr| [OsString::from(name), value.to_owned()];
    let mut options = Vec::new();
    // These two come first: they tell whose daemon it is (`processes`).
    options.extend(pair("--socket", socket.as_os_str()));
    options.extend(pair("--state-dir", daemon_state.as_os_str()));
    options.extend(pair("--env-base", OsStr::new("all")));
    options.extend(pair("--idle-timeout", OsStr::new(IDLE_TIMEOUT)));
    options.extend(pair("--max-lifetime", OsStr::new(&format!("{}s", lifetime.as_secs()))));
    options
}

/// Returns the environment of the daemon, and so of every script. `bin` comes first in its `PATH`.
fn environment(bin: &Path) -> Vec<(OsString, OsString)> {
    let mut variables: Vec<_> =
        std::env::vars_os().filter(|(name, _)| name.to_str().is_none_or(reaches_daemon)).collect();
    let path = variables.iter().position(|(name, _)| name == "PATH").map(|at| variables.swap_remove(at).1);
    let mut folders = bin.as_os_str().to_owned();
    folders.push(":");
    folders.push(path.unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into()));
    variables.push(("PATH".into(), folders));
    variables
}

fn wait_until_ready(
    state: &AttemptFolder,
    mut started: Started,
    socket: &Path,
    limit: Duration,
) -> Result<(), Failure> {
    let start = Instant::now();
    let why = loop {
        // A daemon that nobody knows of any more may listen there. Then this one ends, and says why.
        let connection = std::os::unix::net::UnixStream::connect(socket);
        if connection.is_ok_and(|connection| listens(&connection, state, started.pid())) {
            return Ok(());
        }
        match started.ended() {
            Ok(None) if start.elapsed() < limit => std::thread::sleep(PAUSE),
            Ok(None) => {
                break format!(
                    "it did not accept connections within {} (--start-timeout)",
                    humantime::format_duration(limit)
                );
            }
            Ok(Some(status)) => break format!("it has ended ({status})"),
            Err(error) => break chain(&error),
        }
    };
    let mut message = format!("the private daemon did not start: {why}");
    let tail = state.log_tail(LOG_LINES);
    if !tail.is_empty() {
        // The log keeps its lines: the message is printed with our name before each.
        message.push_str("; the end of its log:\n");
        message.push_str(&tail.join("\n"));
    }
    Err(Failure::new(Exit::Unreachable, message))
}

/// True if the daemon below this watcher listens at the other end.
fn listens(connection: &std::os::unix::net::UnixStream, state: &AttemptFolder, watcher: u32) -> bool {
    let is_new = |daemon: &&Process| daemon.parent == watcher;
    Processes::of(state).daemons.iter().find(is_new).is_some_and(|daemon| is_peer(connection, daemon.pid))
}

pub(super) fn address(state: &AttemptFolder) -> Result<Address, Failure> {
    Ok(Address::Unix(Socket::named(state.socket()).map_err(|error| Failure::new(Exit::Failure, error))?))
}
