//! Processes that steps leave running: finds the step that left each, and lists them for the log (service.md §6.1,
//! "Step").

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use super::masking::Masking;
use step_runner_model::ProcessNumber;
use step_runner_process::sweep::{Process, command_line};

/// Maximum number of processes that one line names.
const MAX_NAMED: usize = 5;

/// Maximum number of characters of a command that one line shows.
const MAX_COMMAND: usize = 80;

/// Left-over processes of one job.
#[derive(Default)]
pub(super) struct Leftovers {
    /// Groups of the running steps, by the number of the process.
    running: Vec<(ProcessNumber, u32)>,
    /// Groups of earlier steps.
    groups: HashSet<u32>,
    /// Sessions that left-over processes lead or led.
    sessions: HashSet<u32>,
    /// Left-over processes by id and start time.
    known: HashSet<(u32, u64)>,
}

impl Leftovers {
    /// Begins a step with this process, which leads `group`.
    pub(super) fn begin(&mut self, process: ProcessNumber, group: u32) {
        self.running.push((process, group));
        // Process ids are reused: the group with this number is the new one.
        self.groups.remove(&group);
        self.sessions.remove(&group);
    }

    /// True if the process is in the process group of a step. That a step left it shows nothing: a process of another job
    /// that has moved into this job's control group is counted, too.
    pub(super) fn has(&self, process: &Process) -> bool {
        self.running.iter().any(|(_, group)| process.group == *group) || self.groups.contains(&process.group)
    }

    /// Ends the step with this process. `survivors` are all living processes of the job but those of other running steps.
    /// Returns those that this step left, by pid.
    pub(super) fn of_step(&mut self, number: ProcessNumber, survivors: &[Process]) -> Vec<Process> {
        let index = self.running.iter().position(|(running, _)| *running == number);
        let group = index.map(|index| self.running.swap_remove(index).1);
        let by_pid: HashMap<u32, &Process> = survivors.iter().map(|process| (process.pid, process)).collect();
        let (mut earlier, mut new) = (Vec::new(), Vec::new());
        for process in survivors {
            if self.is_of_earlier_step(process, group, &by_pid) { &mut earlier } else { &mut new }
                .push(*process);
        }
        new.sort_unstable_by_key(|process| process.pid);
        self.groups.extend(group);
        self.known = survivors.iter().map(|process| (process.pid, process.start_time)).collect();
        let led = survivors.iter().filter(|process| process.session == process.pid);
        self.sessions.extend(led.map(|process| process.session));
        new
    }

    /// True if an earlier step left the process or one of its ancestors, or they are in a group or session of such a
    /// step.
    fn is_of_earlier_step(
        &self,
        process: &Process,
        group: Option<u32>,
        by_pid: &HashMap<u32, &Process>,
    ) -> bool {
        let mut at = process;
        // The chain of parents is no longer than the list, even if processes moved while it was read.
        for _ in 0..=by_pid.len() {
            if Some(at.group) == group {
                return false;
            }
            if self.known.contains(&(at.pid, at.start_time))
                || self.groups.contains(&at.group)
                || self.sessions.contains(&at.session)
            {
                return true;
            }
            let Some(parent) = by_pid.get(&at.parent) else { return false };
            at = parent;
        }
        false
    }
}

/// Returns the list of processes that a step left. Commands are masked whole, then shortened. Only those of processes for
/// which `is_proven` holds are shown: the command of another job's process may hold secrets that `masking` does not know.
pub(super) fn listed(left: &[Process], is_proven: impl Fn(&Process) -> bool, masking: &Masking) -> String {
    let mut text = String::new();
    for (index, process) in left.iter().take(MAX_NAMED).enumerate() {
        let separator = if index == 0 { "" } else { ", " };
        // Writing to a string does not fail.
        write!(text, "{separator}{}", process.pid).ok();
        if is_proven(process)
            && let Some(command) = shown_command(process.pid, masking)
        {
            write!(text, " ({command})").ok();
        }
    }
    if left.len() > MAX_NAMED {
        write!(text, " and {} more", left.len() - MAX_NAMED).ok();
    }
    text
}

/// Returns the command of process `pid` as shown to people. `None` if it cannot be read or is no text.
pub(super) fn shown_command(pid: u32, masking: &Masking) -> Option<String> {
    let command = String::from_utf8(command_line(pid)?.join(&b' ')).ok()?;
    Some(shortened(&masking.mask(&command).into_data()))
}

/// Returns the text on one line, cut to [`MAX_COMMAND`] characters.
fn shortened(masked: &str) -> String {
    let mut characters = masked.chars().map(|c| if c.is_control() { ' ' } else { c });
    let mut text: String = characters.by_ref().take(MAX_COMMAND).collect();
    if characters.next().is_some() {
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn process(pid: u32, parent: u32, group: u32, session: u32) -> Process {
        Process { pid, parent, group, session, start_time: 7, zombie: false }
    }

    fn pids(processes: &[Process]) -> Vec<u32> {
        processes.iter().map(|process| process.pid).collect()
    }

    #[test]
    fn fault_87_a_process_counts_for_the_step_that_left_it_and_for_no_later_one() {
        let mut left = Leftovers::default();
        left.begin(1, 10);
        let server = process(12, 1, 12, 12);
        let plain = process(11, 1, 10, 1);
        assert_eq!(pids(&left.of_step(1, &[server, plain])), [11, 12]);
        left.begin(2, 20);
        // A child of the server, a process of its session that lost its parent, and one of the first step's group.
        let child = process(21, 12, 21, 21);
        let orphan = process(22, 1, 23, 12);
        let in_group = process(24, 1, 10, 1);
        let own = process(25, 1, 20, 1);
        let own_session = process(26, 1, 26, 26);
        let all = [server, plain, child, orphan, in_group, own, own_session];
        assert_eq!(pids(&left.of_step(2, &all)), [25, 26]);
        left.begin(3, 30);
        assert_eq!(pids(&left.of_step(3, &all)), [0; 0]);
    }

    #[test]
    fn fault_87_a_group_whose_number_comes_round_is_the_new_steps() {
        let mut left = Leftovers::default();
        left.begin(1, 10);
        left.of_step(1, &[]);
        left.begin(2, 10);
        assert_eq!(pids(&left.of_step(2, &[process(11, 1, 10, 1)])), [11]);
    }

    #[test]
    fn a_long_command_is_cut_and_shown_on_one_line() {
        assert_eq!(shortened("a\nb\tc"), "a b c");
        assert_eq!(shortened(&"ä".repeat(80)), "ä".repeat(80));
        assert_eq!(shortened(&"ä".repeat(81)), format!("{}…", "ä".repeat(80)));
    }
}
