//! Processes of an attempt, as the kernel shows them (custom-executor.md §9).
//!
//! Every file of an attempt is within reach of the job's scripts, and so is every process id in it. So no file says
//! which process is whose. A process proves itself by its user, its command line, its parents, or the environment that
//! it was started with. A script can make its own processes look like ours, which are then ended with it, but no other
//! process.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Signal, geteuid};

use super::state::AttemptFolder;
use step_runner_process::detached::{self, ProcessInfo};
use step_runner_process::group;
use step_runner_process::sweep::{self, Process};

/// First words of the arguments of every call.
const CALL: &[u8] = b"custom-executor";

/// Time between two looks at processes that are to end.
const PAUSE: Duration = Duration::from_millis(10);

/// Living processes of an attempt.
#[derive(Debug, Default)]
pub(super) struct Processes {
    /// Watchers of the private daemon.
    pub(super) watchers: Vec<Process>,
    /// Private daemons: one, except while something is wrong.
    pub(super) daemons: Vec<Process>,
    /// Keepers of private daemons.
    pub(super) keepers: Vec<Process>,
    /// Processes that steps have started, and helpers of daemon and keeper.
    pub(super) others: Vec<Process>,
}

/// What the command line of a process says that it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Watcher,
    Daemon,
    Keeper,
}

/// Paths in the command lines of an attempt's processes. They follow from its state folder alone.
struct Places {
    socket: PathBuf,
    /// The daemon's state folder, also with its links resolved.
    daemon_state: [PathBuf; 2],
    /// First folder of the daemon's `PATH`, which every script inherits.
    bin: PathBuf,
}

impl Places {
    fn of(state: &AttemptFolder) -> Self {
        let daemon_state = state.daemon_state();
        let real = state.real_path().join(daemon_state.file_name().unwrap_or_default());
        Self { socket: state.socket(), daemon_state: [daemon_state, real], bin: state.bin() }
    }

    /// Returns the role that the command line `line` shows.
    fn role(&self, line: &[Vec<u8>]) -> Option<Role> {
        let words = line.get(1..)?;
        match words.first()?.as_slice() {
            b"serve" => self.is_serve(words.get(1..)?).then_some(Role::Daemon),
            b"keeper" => {
                let [.., option, folder] = words else { return None };
                let is_ours = self.daemon_state.iter().any(|ours| is(folder, ours));
                (option == b"--state-dir" && is_ours).then_some(Role::Keeper)
            }
            CALL => {
                let options = words.iter().position(|word| word == b"--")?;
                self.is_serve(words.get(options + 1..)?).then_some(Role::Watcher)
            }
            _ => None,
        }
    }

    /// True if these are the first options of our daemon.
    fn is_serve(&self, options: &[Vec<u8>]) -> bool {
        let [first, socket, second, folder, ..] = options else { return false };
        first == b"--socket"
            && is(socket, &self.socket)
            && second == b"--state-dir"
            && is(folder, &self.daemon_state[0])
    }

    /// True if process `pid` was started with the `PATH` of our daemon.
    fn is_below_daemon(&self, pid: u32) -> bool {
        let is_ours = |path: &[u8]| {
            let first = path.split(|&byte| byte == b':').next().unwrap_or_default();
            is(first, &self.bin).then_some(())
        };
        sweep::find_variable(pid, "PATH", is_ours).is_some()
    }
}

fn is(word: &[u8], path: &Path) -> bool {
    OsStr::from_bytes(word) == path.as_os_str()
}

impl Processes {
    /// Finds the living processes of an attempt. This process is none of them.
    pub(super) fn of(state: &AttemptFolder) -> Self {
        let places = Places::of(state);
        let own = std::process::id();
        let all: Vec<_> = sweep::all().into_iter().filter(|process| process.pid != own).collect();
        let role = |process: &Process| {
            let role = places.role(&sweep::command_line(process.pid)?)?;
            // Somebody else's process may say anything.
            (sweep::user(process.pid) == Some(geteuid().as_raw())).then_some(role)
        };
        let mut roles: HashMap<u32, Role> =
            all.iter().filter_map(|process| Some((process.pid, role(process)?))).collect();
        let parents: HashMap<u32, u32> = all.iter().map(|process| (process.pid, process.parent)).collect();
        let with = |wanted: &[Role], roles: &HashMap<u32, Role>| -> HashSet<u32> {
            roles.iter().filter(|(_, role)| wanted.contains(role)).map(|(pid, _)| *pid).collect()
        };
        // What a keeper has started is a job's, whatever it says that it is.
        let keepers = with(&[Role::Keeper], &roles);
        roles.retain(|pid, _| !is_below(*pid, &keepers, &parents));
        let heads = with(&[Role::Watcher, Role::Daemon, Role::Keeper], &roles);
        let mut found = Self::default();
        for process in all.into_iter().filter(|process| !process.zombie) {
            match roles.get(&process.pid) {
                Some(Role::Watcher) => found.watchers.push(process),
                Some(Role::Daemon) => found.daemons.push(process),
                Some(Role::Keeper) => found.keepers.push(process),
                None if is_below(process.pid, &heads, &parents) || places.is_below_daemon(process.pid) => {
                    found.others.push(process);
                }
                None => {}
            }
        }
        found
    }

    /// Returns the daemon, if one lives.
    pub(super) fn daemon(&self) -> Option<ProcessInfo> {
        self.daemons.first().map(detached::info)
    }

    pub(super) fn is_empty(&self) -> bool {
        [&self.watchers, &self.daemons, &self.keepers, &self.others].iter().all(|list| list.is_empty())
    }

    /// True if a process is there that only a driver of this attempt starts.
    pub(super) fn has_own(&self) -> bool {
        [&self.watchers, &self.daemons, &self.keepers].iter().any(|list| !list.is_empty())
    }

    /// The lists, those first whose processes start others.
    fn lists_mut(&mut self) -> [&mut Vec<Process>; 4] {
        [&mut self.watchers, &mut self.daemons, &mut self.keepers, &mut self.others]
    }

    /// Continues daemon and keeper where a script has stopped them (SIGSTOP).
    pub(super) fn resume(&self) {
        signal(&self.daemons, &[Signal::CONT]);
        signal(&self.keepers, &[Signal::CONT]);
    }

    /// Returns a text for each process that is left.
    fn names(&self) -> Vec<String> {
        let lists = [
            (&self.watchers, "the watcher of the private daemon"),
            (&self.daemons, "the private daemon"),
            (&self.keepers, "the keeper of the private daemon"),
            (&self.others, "a process of the job"),
        ];
        let name = |(list, what): (&Vec<Process>, &'static str)| {
            let text = move |process: &Process| format!("{what} (process {}) does not end", process.pid);
            list.iter().map(text).collect::<Vec<_>>()
        };
        lists.into_iter().flat_map(name).collect()
    }
}

/// True if a process is a descendant of one of `ancestors`.
fn is_below(pid: u32, ancestors: &HashSet<u32>, parents: &HashMap<u32, u32>) -> bool {
    let line = std::iter::successors(parents.get(&pid).copied(), |at| parents.get(at).copied());
    // A table that was read while processes moved may hold a circle.
    line.take(parents.len()).any(|at| ancestors.contains(&at))
}

fn signal(processes: &[Process], signals: &[Signal]) {
    for process in processes {
        group::signal_process(process, signals);
    }
}

/// True if the process lives.
fn lives(process: &Process) -> bool {
    Process::read(process.pid).is_some_and(|now| now.start_time == process.start_time && !now.zombie)
}

/// Tells the daemon to end, and waits up to `limit` until it and its keeper have ended. A second signal, which comes
/// after the `grace`, ends the daemon's jobs at once. A stopped process is continued each time it is seen.
pub(super) fn end_gently(state: &AttemptFolder, grace: Duration, limit: Duration) {
    let start = Instant::now();
    let mut found = Processes::of(state);
    if found.daemons.is_empty() {
        return;
    }
    // A watcher has nothing to do for a daemon that ends on purpose.
    signal(&found.watchers, &[Signal::KILL]);
    signal(&found.daemons, &[Signal::TERM]);
    let mut again = Some(grace);
    while !(found.daemons.is_empty() && found.keepers.is_empty()) && start.elapsed() < limit {
        if again.take_if(|grace| start.elapsed() >= *grace).is_some() {
            signal(&found.daemons, &[Signal::TERM]);
        }
        found.resume();
        std::thread::sleep(PAUSE);
        found.daemons.retain(lives);
        found.keepers.retain(lives);
    }
}

/// Kills all processes of an attempt. Waits up to `limit` until none is left, and returns a text for each one that is.
pub(super) fn kill_all(state: &AttemptFolder, limit: Duration) -> Vec<String> {
    let start = Instant::now();
    // A process that loses its parent, or that is about to end, may show nothing more of the attempt: it is known from an
    // earlier look.
    let mut known = Processes::default();
    loop {
        let mut found = Processes::of(state);
        for (found, known) in found.lists_mut().into_iter().zip(known.lists_mut()) {
            known.retain(|process| lives(process) && !found.iter().any(|now| now.pid == process.pid));
            // The parent may be another one by now, so what was read of the process is read again.
            found.extend(known.iter().filter_map(|process| Process::read(process.pid)));
            known.clone_from(found);
        }
        if found.is_empty() {
            return Vec::new();
        }
        if start.elapsed() >= limit {
            return found.names();
        }
        // Those that start others come first.
        for list in found.lists_mut() {
            signal(list, &[Signal::KILL]);
        }
        std::thread::sleep(PAUSE);
    }
}

/// Kills the daemons of an attempt, for one that does not answer. Its jobs go on with their keeper.
pub(super) fn kill_daemons(state: &AttemptFolder, limit: Duration) {
    let start = Instant::now();
    let Processes { watchers, mut daemons, .. } = Processes::of(state);
    signal(&watchers, &[Signal::KILL]);
    while !daemons.is_empty() && start.elapsed() < limit {
        signal(&daemons, &[Signal::KILL]);
        std::thread::sleep(PAUSE);
        daemons.retain(lives);
    }
}

/// True if another call of the Runner works for the attempt whose private directory is `private_dir`.
pub(super) fn has_call(private_dir: &Path) -> bool {
    let own = std::process::id();
    let is_call = |process: &Process| {
        let is_ours = |value: &[u8]| is(value, private_dir).then_some(());
        process.pid != own
            && !process.zombie
            && sweep::command_line(process.pid)
                .is_some_and(|line| line.get(1).is_some_and(|word| word == CALL))
            && sweep::find_variable(process.pid, "TMPDIR", is_ours).is_some()
    };
    sweep::all().iter().any(is_call)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Identity;

    fn line(words: &[&str]) -> Vec<Vec<u8>> {
        words.iter().map(|word| word.as_bytes().to_vec()).collect()
    }

    #[test]
    fn fault_100_a_role_is_told_by_the_paths_of_the_attempt_alone() {
        let state = |attempt| AttemptFolder::new(Path::new("/r"), &Identity::new(Path::new(attempt), "1"));
        let places = Places::of(&state("/t/a"));
        let other = Places::of(&state("/t/b"));
        let serve = ["--socket", "/r/a/s", "--state-dir", "/r/a/d", "--env-base", "all"];
        let daemon = line(&[&["step-runner", "serve"][..], &serve].concat());
        let watcher = line(&[&["step-runner", "custom-executor", "watch", "--"][..], &serve].concat());
        let keeper = line(&["step-runner", "keeper", "--cgroup", "auto", "--state-dir", "/r/a/d"]);
        for (line, role) in [(&daemon, Role::Daemon), (&watcher, Role::Watcher), (&keeper, Role::Keeper)] {
            assert_eq!(places.role(line), Some(role));
            assert_eq!(other.role(line), None);
        }
        for stranger in [
            &[][..],
            &["step-runner"],
            &["step-runner", "serve"],
            &["step-runner", "serve", "--socket", "/r/a/s"],
            &["step-runner", "serve", "--socket", "/r/a/s", "--state-dir", "/r/a"],
            &["cat", "/r/a/s", "/r/a/d", "serve"],
            &["step-runner", "keeper", "--state-dir", "/r/a/d", "--more"],
            &["step-runner", "custom-executor", "cleanup"],
            &["vim", "keeper", "/r/a/d"],
        ] {
            assert_eq!(places.role(&line(stranger)), None, "{stranger:?}");
        }
    }

    #[test]
    fn descendants_are_told_also_from_a_table_with_a_circle() {
        let parents = HashMap::from([(5, 4), (4, 3), (3, 1), (8, 9), (9, 8)]);
        let heads = HashSet::from([3]);
        assert!(is_below(5, &heads, &parents) && is_below(4, &heads, &parents));
        assert!(
            !is_below(3, &heads, &parents)
                && !is_below(8, &heads, &parents)
                && !is_below(7, &heads, &parents)
        );
    }
}
