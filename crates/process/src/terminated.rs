//! Asks processes to end, each of them once: many programs take a second SIGTERM as "abort now".

use std::collections::HashSet;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::group::signal_process;
use super::sweep::Process;

/// Maximum number of looks for processes that were started while others were asked …
const LOOKS: u32 = 8;

/// … and the time after which no further look begins. Processes that still come then are killed at the end of the grace.
const LOOK_TIME: Duration = Duration::from_millis(20);

/// The processes of a job that were asked to end.
#[derive(Debug, Default)]
pub struct Terminated {
    /// Their ids and start times.
    asked: HashSet<(u32, u64)>,
}

impl Terminated {
    /// Sends SIGTERM to the processes that `find` returns, and then SIGCONT, so that a stopped process can act on it
    /// (service.md §6.2). Leaves out those that were asked before. Calls `find` again for processes that were started
    /// meanwhile.
    ///
    /// Parents come before their children: a shell whose child ends first would go on with its script. A signal to the
    /// whole process group is no choice, because it does not tell which processes got it.
    pub fn terminate(&mut self, find: impl Fn() -> Vec<Process>) {
        let begun = Instant::now();
        for _ in 0..LOOKS {
            let mut found = find();
            found.retain(|process| {
                !process.zombie && !self.asked.contains(&(process.pid, process.start_time))
            });
            found.sort_unstable_by_key(|process| (process.start_time, process.pid));
            let mut is_any = false;
            for process in found {
                // One that refuses the signal (set-user-id programs) is tried again with the rest of its job.
                if signal_process(&process, &[Signal::TERM, Signal::CONT]) {
                    is_any |= self.asked.insert((process.pid, process.start_time));
                }
            }
            if !is_any || begun.elapsed() >= LOOK_TIME {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};

    use super::*;

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
}
