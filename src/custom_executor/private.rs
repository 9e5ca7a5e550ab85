//! The private daemon: started for one attempt, started again when it dies, ended with the attempt
//! (custom-executor.md §6, §8, §9).

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::environment::reaches_daemon;
use super::result::chain;
use super::state::{self, AttemptFolder, Lock, Meta};
use crate::client::Address;
use crate::error::{Exit, Failure};
use crate::net::{Socket, is_peer};
use crate::process::detached::{self, Detached, ProcessInfo, Started};
use crate::process::group;

/// Arguments that lead to [`detached::become_serve`].
pub(crate) const LAUNCH: [&str; 2] = ["custom-executor", "launch"];

/// Variables of `job_env`: the folder of the attempt, and the prefix of all its ids.
pub(super) const STATE_VARIABLE: &str = "STEP_RUNNER_CE_STATE";
pub(super) const PREFIX_VARIABLE: &str = "STEP_RUNNER_CE_PREFIX";

/// Time without job and call after which a private daemon ends.
const IDLE_TIMEOUT: &str = "2h";

/// Lines shown from the log of a daemon that did not start.
const LOG_LINES: usize = 20;

/// Time between two looks at the state of a process.
const PAUSE: Duration = Duration::from_millis(10);

/// Time for a daemon and its keeper to end by themselves, and after SIGKILL.
const END_TIME: Duration = Duration::from_secs(10);
const KILL_TIME: Duration = Duration::from_secs(2);

/// Starts the private daemon of `state` for the first time or again, as `meta` tells. The caller holds the lock
/// meanwhile.
pub(super) fn start(
    state: &AttemptFolder,
    _lock: &Lock,
    mut meta: Meta,
    limit: Duration,
) -> Result<Meta, Failure> {
    let lifetime = meta.daemon.take().map_or(0, |daemon| daemon.lifetime);
    let socket = state.socket();
    state.make_socket_folder()?;
    state.trim_log();
    let log = state.open_log()?;
    let options = options(&socket, &state.daemon_state(), lifetime);
    let words: Vec<&OsStr> = LAUNCH
        .iter()
        .map(OsStr::new)
        .chain([OsStr::new("--")])
        .chain(options.iter().map(OsString::as_os_str))
        .collect();
    let cannot = |error: std::io::Error| {
        Failure::new(Exit::Unreachable, format!("cannot start a private daemon: {}", chain(&error)))
    };
    let detached = Detached::start(&words, environment(&state.make_bin()?), &log).map_err(cannot)?;
    // Noted for every later call before the daemon does anything.
    meta.daemon = Some(state::PrivateDaemonRecord { process: detached.info().clone(), lifetime });
    meta.address = format!("unix:{}", socket.display());
    state.write_meta(&meta)?;
    let started = detached.release().map_err(cannot)?;
    wait_until_ready(state, started, &socket, limit)?;
    Ok(meta)
}

fn options(socket: &Path, daemon_state: &Path, lifetime: u64) -> Vec<OsString> {
    let pair = |name: &str, value: &OsStr| [OsString::from(name), value.to_owned()];
    let mut options = Vec::new();
    options.extend(pair("--socket", socket.as_os_str()));
    options.extend(pair("--state-dir", daemon_state.as_os_str()));
    options.extend(pair("--env-base", OsStr::new("all")));
    options.extend(pair("--idle-timeout", OsStr::new(IDLE_TIMEOUT)));
    options.extend(pair("--max-lifetime", OsStr::new(&format!("{lifetime}s"))));
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
        if connection.is_ok_and(|connection| is_peer(connection, started.pid())) {
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

pub(super) fn address(state: &AttemptFolder) -> Result<Address, Failure> {
    Ok(Address::Unix(Socket::named(state.socket()).map_err(|error| Failure::new(Exit::Failure, error))?))
}

/// Ends daemon and keeper: gently, then by force. Returns a text for each that still lives after that.
///
/// Boot, number and start time identify each process, whoever listens on the socket by now.
pub(super) fn end(state: &AttemptFolder, meta: &Meta) -> Vec<String> {
    const GENTLY: [(Signal, Duration); 2] = [(Signal::TERM, END_TIME), (Signal::KILL, KILL_TIME)];
    let daemon = meta.daemon.as_ref().map(|daemon| &daemon.process).filter(|daemon| detached::lives(daemon));
    // The keeper ends with a daemon that ends well. It takes no signal but SIGKILL, so the first only gives it time.
    let for_keeper = if daemon.is_some() { &GENTLY[..] } else { &[(Signal::KILL, KILL_TIME)] };
    let daemon = daemon.and_then(|daemon| end_process(daemon, "the private daemon", &GENTLY));
    let keeper = state.keeper();
    let keeper =
        keeper.and_then(|keeper| end_process(&keeper, "the keeper of the private daemon", for_keeper));
    daemon.into_iter().chain(keeper).collect()
}

/// Sends signals in their order, each with its time to act. Returns a text if the process survives.
fn end_process(info: &ProcessInfo, name: &str, signals: &[(Signal, Duration)]) -> Option<String> {
    for &(signal, limit) in signals {
        let process = detached::find(info)?;
        group::signal_process(&process, &[signal]);
        let start = Instant::now();
        while detached::lives(info) && start.elapsed() < limit {
            std::thread::sleep(PAUSE);
        }
    }
    detached::lives(info).then(|| format!("{name} (process {}) does not end", info.pid))
}

/// Returns the record of a private daemon that is yet to be started and may live for `lifetime`.
pub(super) fn planned(prefix: &str, lifetime: Duration) -> Meta {
    let nobody = ProcessInfo { boot_id: String::new(), pid: 0, start_time: 0 };
    let daemon = state::PrivateDaemonRecord { process: nobody, lifetime: lifetime.as_secs() };
    Meta {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        address: String::new(),
        prefix: prefix.to_owned(),
        daemon: Some(daemon),
    }
}
