//! Tells whether a process is a descendant of another.

use super::sweep::Process;

/// Maximum number of reads of the chain of parents until two agree.
const TRIES: u32 = 64;

/// Longest chain of parents that is followed. A process further down does not count as a descendant.
const MAX_GENERATIONS: usize = 4096;

/// True if process `pid` is `ancestor` or its descendant, and also if that cannot be told, for example because `pid`
/// has ended.
///
/// If a parent ends while the chain is read, its child gets another parent, and the parent's pid may be reused. So a
/// chain counts only if two reads of it agree. If `ancestor` is a child subreaper, no descendant is missed: a process
/// that loses its parent becomes a child of `ancestor`.
pub fn may_be_below(pid: u32, ancestor: u32) -> bool {
    let mut before = None;
    for _ in 0..TRIES {
        let line = parents(pid, ancestor);
        if line.is_some() && line == before {
            return line.is_none_or(|line| line.iter().any(|process| process.pid == ancestor));
        }
        before = line;
    }
    true
}

/// Returns process `pid`, its parent, and so on up to `ancestor` or the first process. `None` if one of them has just
/// ended.
fn parents(pid: u32, ancestor: u32) -> Option<Vec<Process>> {
    let mut line = Vec::new();
    let mut at = pid;
    while at != 0 && line.len() < MAX_GENERATIONS {
        // Its state may change between two reads, which means nothing here.
        let process = Process { zombie: false, ..Process::read(at)? };
        line.push(process);
        if at == ancestor {
            break;
        }
        at = process.parent;
    }
    Some(line)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn children_and_their_children_are_below_and_nobody_else() {
        let own = std::process::id();
        let mut child = Command::new("sh")
            .args(["-c", "sleep 600 & echo $!; wait"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut text = [0; 16];
        let len = child.stdout.as_mut().unwrap().read(&mut text).unwrap();
        let grandchild: u32 = std::str::from_utf8(&text[..len]).unwrap().trim().parse().unwrap();
        assert!(may_be_below(child.id(), own));
        assert!(may_be_below(grandchild, own));
        assert!(may_be_below(grandchild, child.id()));
        assert!(!may_be_below(own, child.id()));
        assert!(!may_be_below(1, own));
        rustix::process::kill_process(
            rustix::process::Pid::from_raw(grandchild as i32).unwrap(),
            rustix::process::Signal::KILL,
        )
        .unwrap();
        let gone = child.id();
        child.wait().unwrap();
        assert!(may_be_below(gone, own), "a process that is gone tells nothing");
    }
}
