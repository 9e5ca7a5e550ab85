//! Checks the peers of `keeper.sock`: lets a daemon in, and refuses processes below the keeper. A peer can read the
//! records of all jobs, so a step of the same user must not connect (docs/operate/threat-model.md).

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::UCred;
use rustix::process::{Pid, PidfdFlags};
use rustix::time::ClockId;

use step_runner_process::ancestry::may_be_below;
use step_runner_process::cgroup::Pool;
use step_runner_process::sweep::Process;
use step_runner_process::{PeerHandle, peer_handle};

/// Minimum time between two reports of refused peers.
const TOLD_EVERY: Duration = Duration::from_mins(1);

/// Minimum age, in clock ticks (10 ms), of a peer for whose process the kernel gives no handle. A younger process may
/// have got the number of the one that connected and has ended.
const MIN_AGE_TICKS: u64 = 2;

/// Refused peers, for the operator's log.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    told: Option<Instant>,
    untold: u32,
}

/// True if the process that connected `socket` may speak for a daemon. It must be of our user or root, alive, not below
/// this process and not in a control group of a job.
pub(super) fn is_trusted(socket: &OwnedFd, peer: &UCred, pool: Option<&Pool>) -> bool {
    let own = rustix::process::geteuid();
    if peer.uid != own && !peer.uid.is_root() {
        return false;
    }
    let pid = peer.pid.as_raw_nonzero().get() as u32;
    let (handle, is_sure) = match peer_handle(socket.as_fd()) {
        PeerHandle::Known(handle) => (handle, true),
        PeerHandle::Gone => return false,
        PeerHandle::Unsupported => match rustix::process::pidfd_open(peer.pid, PidfdFlags::empty()) {
            Ok(handle) => (handle, false),
            Err(_) => return false,
        },
    };
    let is_job = may_be_below(pid, std::process::id()) || pool.is_some_and(|pool| pool.holds(pid));
    // Ask this last: if the process behind the handle lives, everything above was read of that process.
    !is_job && lives(&handle) && (is_sure || is_old_enough(pid))
}

/// True if the process behind `pidfd` lives, so its number is still its own.
fn lives(pidfd: &OwnedFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&now)) == Ok(0)
}

fn is_old_enough(pid: u32) -> bool {
    const TICK: u64 = 10_000_000;
    let now = rustix::time::clock_gettime(ClockId::Boottime);
    let now = now.tv_sec as u64 * (1_000_000_000 / TICK) + now.tv_nsec as u64 / TICK;
    Process::read(pid).is_some_and(|process| process.start_time + MIN_AGE_TICKS <= now)
}

impl Refusals {
    /// Counts a refused peer. Returns a line for the operator, at most one per [`TOLD_EVERY`].
    pub(super) fn add(&mut self, pid: Option<Pid>, now: Instant) -> Option<String> {
        if self.told.is_some_and(|told| now < told + TOLD_EVERY) {
            self.untold += 1;
            return None;
        }
        self.told = Some(now);
        let pid = pid.map_or(0, |pid| pid.as_raw_nonzero().get());
        let more = match std::mem::take(&mut self.untold) {
            0 => String::new(),
            untold => format!(" ({untold} more since the last such line)"),
        };
        Some(format!("keeper.sock: refused process {pid}: it is a job's or another user's{more}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_told_once_a_minute_with_their_number() {
        let mut refusals = Refusals::default();
        let now = Instant::now();
        let pid = Pid::from_raw(7);
        assert!(refusals.add(pid, now).is_some_and(|text| text.contains("process 7")));
        assert_eq!(refusals.add(pid, now + Duration::from_secs(59)), None);
        assert_eq!(refusals.add(pid, now + Duration::from_secs(59)), None);
        let text = refusals.add(pid, now + Duration::from_mins(1)).unwrap();
        assert!(text.ends_with("(2 more since the last such line)"), "{text}");
    }
}
