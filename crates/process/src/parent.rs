//! The process that started this one, and its death.

use std::io;
use std::thread;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, getppid, pidfd_open};
use step_runner_model::ProcessInfo;

use super::detached;
use super::sweep::Process;

/// Calls `on_end` on a thread of its own when the process that started this one has ended. The end of a parent in
/// another PID namespace cannot be seen: `on_end` is never called then.
pub fn watch(on_end: impl FnOnce() + Send + 'static) -> io::Result<()> {
    match getppid() {
        Some(pid) => watch_process(pid, getppid, on_end),
        None => Ok(()),
    }
}

/// Returns the identity of the process that started this one; `None` if it is in another PID namespace or has just ended.
pub fn info() -> Option<ProcessInfo> {
    let pid = getppid()?;
    let process = Process::read(pid.as_raw_nonzero().get().unsigned_abs())?;
    // If it were dead by now, this process would have another parent.
    (getppid() == Some(pid)).then(|| detached::info(&process))
}

/// Watches `pid`. It counts as dead if it is not the `parent` any more once its descriptor is open.
fn watch_process(
    pid: Pid,
    parent: impl Fn() -> Option<Pid>,
    on_end: impl FnOnce() + Send + 'static,
) -> io::Result<()> {
    let pidfd = pidfd_open(pid, PidfdFlags::empty());
    // The kernel gives the children of a dead process another parent. So if `pid` is still ours, the descriptor is our
    // parent's.
    if parent() != Some(pid) {
        on_end();
        return Ok(());
    }
    let pidfd = pidfd?;
    let wait = move || {
        if rustix::io::retry_on_intr(|| poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], None)).is_ok() {
            on_end();
        }
    };
    // The thread ends with this process.
    thread::Builder::new().name("parent".into()).spawn(wait).map(drop)
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn the_end_of_a_parent_is_told_also_if_it_came_first() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = Pid::from_child(&child);
        let (tell, told) = mpsc::channel();
        let first = tell.clone();
        watch_process(pid, || Some(pid), move || first.send(()).unwrap()).unwrap();
        assert_eq!(told.try_recv(), Err(mpsc::TryRecvError::Empty));
        child.kill().unwrap();
        told.recv().unwrap();
        child.wait().unwrap();
        watch_process(pid, getppid, move || tell.send(()).unwrap()).unwrap();
        told.recv().unwrap();
    }
}
