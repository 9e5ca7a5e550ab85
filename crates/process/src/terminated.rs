//! Asks processes to end, each of them once: many programs take a second SIGTERM as "abort now".

use std::collections::HashMap;
use std::fs;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use rustix::time::{ClockId, clock_gettime};

use super::group::signal_process;
use super::sweep::Process;

/// Maximum number of looks for processes that were started while others were asked …
const LOOKS: u32 = 8;

/// … and the time after which no further look begins. Processes that still come then are killed at the end of the grace.
const LOOK_TIME: Duration = Duration::from_millis(20);

/// Units of a process's start time in a second: the kernel's USER_HZ.
const TICKS: u64 = 100;

/// The processes of a job that were asked to end.
#[derive(Debug, Default)]
pub struct Terminated {
    /// Their ids and start times, with the time at which each was asked, in the units of a start time.
    asked: HashMap<(u32, u64), u64>,
}

impl Terminated {
    /// Sends SIGTERM to the processes that `find` returns, and then SIGCONT, so that a stopped process can act on it
    /// (service.md §6.2). Leaves out those that were asked before. Calls `find` again for processes that were started
    /// meanwhile.
    ///
    /// Parents come before their children: a shell whose child ends first would go on with its script. A signal to the
    /// whole process group is no choice, because it does not tell which processes got it.
    ///
    /// What a process that handles SIGTERM starts after it was asked belongs to its cleanup, and is not asked. What it
    /// started before is asked: a shell waits for that before it acts on the signal.
    pub fn terminate(&mut self, find: impl Fn() -> Vec<Process>) {
        let begun = Instant::now();
        for _ in 0..LOOKS {
            let mut found = find();
            found.retain(|process| {
                !process.zombie && !self.asked.contains_key(&(process.pid, process.start_time))
            });
            // If the parent ends nevertheless, the next look finds the process with another parent. Decided before this
            // look asks anybody: what it has found was there before.
            let (cleanup, mut found): (Vec<_>, Vec<_>) =
                found.into_iter().partition(|process| self.is_for_cleanup(process));
            found.sort_unstable_by_key(|process| (process.start_time, process.pid));
            let mut is_any = !cleanup.is_empty();
            for process in found {
                let now = boot_time();
                // One that refuses the signal (set-user-id programs) is tried again with the rest of its job.
                if signal_process(&process, &[Signal::TERM, Signal::CONT]) {
                    is_any |= self.asked.insert((process.pid, process.start_time), now).is_none();
                }
            }
            if !is_any || begun.elapsed() >= LOOK_TIME {
                return;
            }
        }
    }

    /// True if the parent of `process` was asked before `process` was started, and handles that.
    fn is_for_cleanup(&self, process: &Process) -> bool {
        let parent = Process::read(process.parent).filter(|parent| !parent.zombie);
        parent.is_some_and(|parent| {
            let asked = self.asked.get(&(parent.pid, parent.start_time));
            asked.is_some_and(|asked| process.start_time >= *asked) && handles_term(parent.pid)
        })
    }
}

/// The time since the start of the system, in the units of a start time.
fn boot_time() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let (seconds, nanoseconds) = (now.tv_sec.cast_unsigned(), now.tv_nsec.cast_unsigned());
    seconds * TICKS + nanoseconds / (1_000_000_000 / TICKS)
}

/// True if process `pid` has a handler for SIGTERM.
fn handles_term(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // Bit 0 is signal 1.
    caught.is_some_and(|mask| mask >> (Signal::TERM.as_raw() - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};

    use super::*;
    use crate::sweep::descendants;

    #[test]
    fn fault_96_a_process_is_asked_to_end_once_however_often_it_is_found() {
        let script = "trap 'echo asked' TERM; echo ready; while read line; do echo $line; done";
        let mut child = Command::new("bash")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        let mut terminated = Terminated::default();
        let mut terminate = || terminated.terminate(|| Process::read(child.id()).into_iter().collect());
        terminate();
        assert_eq!(lines.next().unwrap().unwrap(), "asked");
        terminate();
        terminate();
        let mut input = child.stdin.take().unwrap();
        input.write_all(b"goes on\n").unwrap();
        assert_eq!(lines.next().unwrap().unwrap(), "goes on");
        drop(input);
        child.wait().unwrap();
    }

    #[test]
    fn fault_96_what_a_process_with_a_handler_waits_for_is_asked_with_it() {
        let script = "trap 'echo asked; exit' TERM; echo ready; sleep 600; echo went on";
        let mut child = Command::new("bash").args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        let family =
            || descendants(child.id()).into_iter().chain(Process::read(child.id())).collect::<Vec<_>>();
        while !family().iter().any(|process| process.pid != child.id()) {
            std::thread::yield_now();
        }
        Terminated::default().terminate(family);
        assert_eq!(lines.next().unwrap().unwrap(), "asked");
        child.wait().unwrap();
    }

    #[test]
    fn fault_96_what_a_handler_of_the_signal_starts_is_not_asked() {
        let cleanup = "trap 'echo cleanup asked' TERM; echo cleaning; read line; echo $line";
        let script =
            "trap 'bash -c \"$CLEANUP\"; exit' TERM; echo ready; while read line; do echo $line; done";
        let mut child = Command::new("bash")
            .args(["-c", script])
            .env("CLEANUP", cleanup)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        let lines = RefCell::new(lines);
        let looks = Cell::new(0);
        let family = || {
            looks.set(looks.get() + 1);
            if looks.get() == 2 {
                assert_eq!(lines.borrow_mut().next().unwrap().unwrap(), "cleaning");
            }
            let mut family = descendants(child.id());
            family.extend(Process::read(child.id()));
            family
        };
        Terminated::default().terminate(family);
        assert!(looks.get() >= 2);
        let mut input = child.stdin.take().unwrap();
        input.write_all(b"cleaned\n").unwrap();
        assert_eq!(lines.borrow_mut().next().unwrap().unwrap(), "cleaned");
        drop(input);
        child.wait().unwrap();
    }
}
