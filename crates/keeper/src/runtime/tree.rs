//! The processes of a step as lines of the log, when its time limit has passed (flow.md §4).

use std::collections::{HashMap, HashSet};

use super::leftover::shown_command;
use super::masking::Masking;
use step_runner_log::words::DaemonLine;
use step_runner_model::LogChannel;
use step_runner_process::sweep::{Process, state_of};

/// Maximum number of lines.
const MAX_LINES: usize = 50;

/// Returns a line for each process, children below their parents: pid, parent, state, command. Commands are masked. Only
/// those of processes for which `is_proven` holds are shown: the command of another job's process may hold secrets that
/// `masking` does not know.
pub(super) fn lines(
    processes: &[Process],
    is_proven: impl Fn(&Process) -> bool,
    masking: &Masking,
) -> Vec<(LogChannel, String)> {
    let order = in_order(processes);
    let describe = |(process, depth): &(Process, usize)| {
        let command = if is_proven(process) { shown_command(process.pid, masking) } else { None };
        let command = command.filter(|command| !command.is_empty()).unwrap_or_else(|| "?".to_owned());
        let line = DaemonLine::Process {
            depth: *depth,
            pid: process.pid,
            parent: process.parent,
            state: state_of(process.pid).unwrap_or('?'),
            command: &command,
        };
        line.to_parts()
    };
    let mut lines: Vec<_> = order.iter().take(MAX_LINES).map(describe).collect();
    if order.len() > MAX_LINES {
        lines.pop();
        lines.push(DaemonLine::MoreProcesses { count: order.len() - MAX_LINES + 1 }.to_parts());
    }
    lines
}

/// Returns the processes with their depths, each before its children, siblings by pid.
fn in_order(processes: &[Process]) -> Vec<(Process, usize)> {
    let pids: HashSet<u32> = processes.iter().map(|process| process.pid).collect();
    let mut children: HashMap<Option<u32>, Vec<Process>> = HashMap::new();
    for process in processes {
        let parent = Some(process.parent).filter(|parent| pids.contains(parent) && *parent != process.pid);
        children.entry(parent).or_default().push(*process);
    }
    for siblings in children.values_mut() {
        siblings.sort_unstable_by_key(|process| process.pid);
    }
    let take = |children: &mut HashMap<_, Vec<Process>>, parent: Option<u32>, depth: usize| {
        let below = children.remove(&parent).unwrap_or_default();
        below.into_iter().rev().map(move |process| (process, depth)).collect::<Vec<_>>()
    };
    let mut waiting = take(&mut children, None, 0);
    let mut order = Vec::with_capacity(processes.len());
    while let Some((process, depth)) = waiting.pop() {
        order.push((process, depth));
        waiting.extend(take(&mut children, Some(process.pid), depth + 1));
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_stand_below_their_parents_and_siblings_by_number() {
        let process =
            |pid, parent| Process { pid, parent, group: 1, session: 1, start_time: 0, zombie: false };
        let all = [process(30, 10), process(20, 10), process(10, 1), process(21, 20), process(5, 1)];
        let order: Vec<(u32, usize)> = in_order(&all).iter().map(|(p, depth)| (p.pid, *depth)).collect();
        assert_eq!(order, [(5, 0), (10, 0), (20, 1), (21, 2), (30, 1)]);
    }

    #[test]
    fn a_forest_of_many_processes_is_cut_to_fifty_lines() {
        let process = |pid| Process { pid, parent: 1, group: 1, session: 1, start_time: 0, zombie: false };
        let all: Vec<Process> = (1_000_000_000..1_000_000_060).map(process).collect();
        let shown = lines(&all, |_| false, &Masking::none().unwrap());
        assert_eq!((shown.len(), shown.last().unwrap().1.as_str()), (50, "and 11 more processes"));
        assert_eq!(shown[0], (LogChannel::Err, "1000000000 (parent 1, state ?) ?".to_owned()));
    }
}
