//! A daemon that outlives its starter: `serve` in a session of its own, holding nothing of its starter
//! (custom-executor.md §6).
//!
//! The starter must know the process before the daemon does anything: if it died in between, nobody would know that
//! daemon. So the new process waits for a byte on its standard input, and ends if the input ends first.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::sweep::Process;
use super::{close_on_exec_from, host};
pub use step_runner_model::ProcessInfo;

/// A started process that waits for its release. If this is dropped, it ends without having done anything.
#[derive(Debug)]
pub struct Detached {
    child: Child,
    info: ProcessInfo,
}

/// A released process.
#[derive(Debug)]
pub struct Started(Child);

impl Detached {
    /// Starts this program with `words`, which must lead to [`become_serve`]. Its environment is `env` alone; both its
    /// output streams go to `log`.
    pub fn start(
        words: &[&OsStr],
        env: impl IntoIterator<Item = (OsString, OsString)>,
        log: &File,
    ) -> io::Result<Self> {
        let child = Command::new("/proc/self/exe")
            .arg0("step-runner")
            .args(words)
            .env_clear()
            .envs(env)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log.try_clone()?)
            .spawn()?;
        let pid = child.id();
        let start_time = Process::read(pid).map_or(0, |process| process.start_time);
        Ok(Self { child, info: ProcessInfo { boot_id: host::boot_id(), pid, start_time } })
    }

    /// Returns the identity of the process.
    pub const fn info(&self) -> &ProcessInfo {
        &self.info
    }

    /// Lets the process go on.
    pub fn release(mut self) -> io::Result<Started> {
        let mut gate = self.child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        gate.write_all(b"\n")?;
        Ok(Started(self.child))
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

/// Turns this process into `step-runner serve` with `options`, once its starter lets it go on. Returns only on failure.
pub fn become_serve(options: &[OsString]) -> io::Error {
    let prepare = || {
        let mut byte = [0];
        io::stdin().read_exact(&mut byte)?;
        rustix::process::setsid()?;
        close_on_exec_from(3)
    };
    match prepare() {
        Err(error) => error,
        Ok(()) => Command::new(own_program())
            .arg0("step-runner")
            .arg("serve")
            .args(options)
            .stdin(Stdio::null())
            .exec(),
    }
}

/// Returns the path of this program, valid after its file was replaced.
fn own_program() -> &'static Path {
    Path::new("/proc/self/exe")
}

/// Returns the process id; `None` if it would mean a group, or all processes.
fn pid(info: &ProcessInfo) -> Option<Pid> {
    i32::try_from(info.pid).ok().and_then(Pid::from_raw)
}

/// True if the process that `info` names lives. A zombie does not.
pub fn lives(info: &ProcessInfo) -> bool {
    find(info).is_some()
}

/// Returns the process that `info` names, if it lives and its number was not reused.
///
/// Callers send signals to it, and `info` may come from a file that somebody else has written. So it is never the first
/// process nor this one. Nothing is found if the kernel does not tell one boot from the next.
pub fn find(info: &ProcessInfo) -> Option<Process> {
    let number = pid(info)?.as_raw_nonzero().get();
    if number == 1 || info.pid == std::process::id() || info.boot_id.is_empty() {
        return None;
    }
    let process = Process::read(info.pid)?;
    let same = info.boot_id == host::boot_id() && process.start_time == info.start_time;
    (same && !process.zombie).then_some(process)
}

/// Blocks until the process that `info` names has ended, be it as a zombie that nobody reaps.
pub fn wait(info: &ProcessInfo) -> io::Result<()> {
    let Some(pid) = pid(info) else { return Ok(()) };
    let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => pidfd,
        Err(rustix::io::Errno::SRCH) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    // The descriptor keeps the number from being reused: if the process still matches, it is the one behind it.
    while lives(info) {
        rustix::io::retry_on_intr(|| poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], None))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A child, and its identity.
    fn child() -> (Child, ProcessInfo) {
        let child = Command::new("sleep").arg("600").spawn().unwrap();
        let start_time = Process::read(child.id()).unwrap().start_time;
        let info = ProcessInfo { pid: child.id(), start_time, boot_id: host::boot_id() };
        (child, info)
    }

    #[test]
    fn a_process_is_found_by_number_start_and_boot() {
        let (mut child, info) = child();
        assert!(lives(&info));
        assert!(!lives(&ProcessInfo { start_time: info.start_time + 1, ..info.clone() }));
        assert!(!lives(&ProcessInfo { boot_id: "another".into(), ..info.clone() }));
        assert!(!lives(&ProcessInfo { boot_id: String::new(), ..info.clone() }));
        child.kill().unwrap();
        wait(&info).unwrap();
        assert!(!lives(&info), "a zombie");
        child.wait().unwrap();
        wait(&info).unwrap();
    }

    #[test]
    fn no_record_means_the_first_process_this_one_or_a_group() {
        let boot_id = host::boot_id();
        let own = host::this_process();
        assert!(!lives(&own));
        let first = Process::read(1).unwrap();
        for (pid, start_time) in [
            (1, first.start_time),
            (0, 0),
            (0, own.start_time),
            (u32::MAX, own.start_time),
            (u32::MAX >> 1, own.start_time),
            (own.pid.wrapping_neg(), own.start_time),
        ] {
            let info = ProcessInfo { boot_id: boot_id.clone(), pid, start_time };
            assert_eq!(find(&info), None, "{pid}");
            wait(&info).unwrap();
        }
    }
}
