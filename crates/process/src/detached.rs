//! A daemon that outlives its starter: `serve` below a watcher, in a session of their own, which hold nothing of the
//! starter (custom-executor.md §6).
//!
//! A process must be known before it does anything: if its starter died in between, nobody would end it. This one is
//! known by its command line (custom-executor.md §9), which it has once it runs this program. So it waits for a byte on
//! its standard input, and ends if the input ends first.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::sweep::Process;
use super::{close_on_exec_from, host};
pub use step_runner_model::ProcessInfo;

/// A started process that waits for its release. If this is dropped, it ends without having done anything.
#[derive(Debug)]
pub struct Detached(Child);

/// A released process.
#[derive(Debug)]
pub struct Started(Child);

impl Detached {
    /// Starts this program with `words`, which must lead to [`become_watcher`]. Its environment is `env` alone; both its output
    /// streams go to `log`.
    pub fn start(
        words: &[&OsStr],
        env: impl IntoIterator<Item = (OsString, OsString)>,
        log: &File,
    ) -> io::Result<Self> {
        let child = Command::new(own_program())
            .arg0("step-runner")
            .args(words)
            .env_clear()
            .envs(env)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log.try_clone()?)
            .spawn()?;
        Ok(Self(child))
    }

    /// Lets the process go on.
    pub fn release(mut self) -> io::Result<Started> {
        let mut gate = self.0.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        gate.write_all(b"\n")?;
        Ok(Started(self.0))
    }
}

impl Started {
    /// Returns its process id.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Returns its exit status, if it has ended.
    pub fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.0.try_wait()
    }
}

/// Turns this process into the watcher that `words` lead to, once its starter lets it go on. What it has inherited is
/// closed by the change of the program. Returns only on failure.
pub fn become_watcher(words: &[OsString]) -> io::Error {
    let prepare = || {
        let mut byte = [0];
        io::stdin().read_exact(&mut byte)?;
        rustix::process::setsid()?;
        close_on_exec_from(3)
    };
    match prepare() {
        Err(error) => error,
        Ok(()) => Command::new(own_program()).arg0("step-runner").args(words).stdin(Stdio::null()).exec(),
    }
}

/// Starts `step-runner serve` with `options` below this process.
pub fn serve(options: &[OsString]) -> io::Result<Child> {
    Command::new(own_program()).arg0("step-runner").arg("serve").args(options).stdin(Stdio::null()).spawn()
}

/// Returns the path of this program, valid after its file was replaced.
fn own_program() -> &'static Path {
    Path::new("/proc/self/exe")
}

/// Returns the process id; `None` if it would mean a group, or all processes.
fn pid(info: &ProcessInfo) -> Option<Pid> {
    i32::try_from(info.pid).ok().and_then(Pid::from_raw)
}

/// True if the process that `info` names lives, and its number was not reused. A zombie does not. False if the kernel
/// does not tell one boot from the next.
pub fn lives(info: &ProcessInfo) -> bool {
    pid(info).is_some()
        && !info.boot_id.is_empty()
        && info.boot_id == host::boot_id()
        && Process::read(info.pid)
            .is_some_and(|process| process.start_time == info.start_time && !process.zombie)
}

/// Returns the identity of a process of this boot.
pub fn info(process: &Process) -> ProcessInfo {
    ProcessInfo { boot_id: host::boot_id(), pid: process.pid, start_time: process.start_time }
}

/// Blocks until the process that `info` names has ended, be it as a zombie that nobody reaps, or `limit` is over. True
/// if it has ended.
pub fn wait(info: &ProcessInfo, limit: Option<Duration>) -> io::Result<bool> {
    let Some(pid) = pid(info) else { return Ok(true) };
    let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => pidfd,
        Err(rustix::io::Errno::SRCH) => return Ok(true),
        Err(error) => return Err(error.into()),
    };
    let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
    // The descriptor keeps the number from being reused: if the process still matches, it is the one behind it.
    while lives(info) {
        let ready =
            rustix::io::retry_on_intr(|| poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], limit.as_ref()))?;
        if ready == 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A child, and its identity.
    fn child() -> (Child, ProcessInfo) {
        let child = Command::new("sleep").arg("600").spawn().unwrap();
        let info = info(&Process::read(child.id()).unwrap());
        (child, info)
    }

    #[test]
    fn a_process_is_known_by_number_start_and_boot() {
        let (mut child, info) = child();
        assert!(lives(&info));
        assert!(!lives(&ProcessInfo { start_time: info.start_time + 1, ..info.clone() }));
        assert!(!lives(&ProcessInfo { boot_id: "another".into(), ..info.clone() }));
        assert!(!lives(&ProcessInfo { boot_id: String::new(), ..info.clone() }));
        assert!(!wait(&info, Some(Duration::from_millis(1))).unwrap());
        child.kill().unwrap();
        assert!(wait(&info, None).unwrap());
        assert!(!lives(&info), "a zombie");
        child.wait().unwrap();
        assert!(wait(&info, None).unwrap());
    }

    #[test]
    fn no_record_means_a_group() {
        let own = host::this_process();
        for (pid, start_time) in [
            (0, 0),
            (0, own.start_time),
            (u32::MAX, own.start_time),
            (u32::MAX >> 1, own.start_time),
            (own.pid.wrapping_neg(), own.start_time),
        ] {
            let info = ProcessInfo { boot_id: own.boot_id.clone(), pid, start_time };
            assert!(!lives(&info), "{pid}");
            assert!(wait(&info, None).unwrap());
        }
    }
}
