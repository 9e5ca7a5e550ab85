//! Processes as `/proc` shows them: descendants of a process, and the processes of a job whose keeper is dead
//! (service.md §6.5).
//!
//! A process belongs to a job if its environment holds the job's tag, if it is the job's reaper, if its parent belongs
//! to the job, or if it is in a group that a step of the job led. A process that forks while `/proc` is read can be
//! missed: callers repeat the sweep until it finds nothing twice.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::{self, Read};

use rustix::fs::{Mode, OFlags};

/// Name of the environment variable that holds the job's tag as 32 hex digits (service.md §6.5).
pub(crate) const TAG_VARIABLE: &str = "STEP_RUNNER_JOB";

/// Maximum number of bytes of an environment that are searched for the tag. The tag is in its last layer, but a
/// process of the job may have started programs with more variables.
const MAX_ENVIRONMENT: u64 = 4 << 20;

/// Maximum number of looks at the environment of a process that becomes another program. That takes a fraction of a
/// millisecond; a process can also hide its arguments, and must not hold us up.
const MAX_LOOKS: u32 = 100;

/// Longest line of `/proc/PID/stat` in bytes: 52 numbers and a name.
const MAX_STAT: usize = 2048;

/// A process as `/proc/PID/stat` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its id.
    pub pid: u32,
    /// Its parent.
    pub parent: u32,
    /// Its process group.
    pub group: u32,
    /// Its session.
    pub session: u32,
    /// Its start time in clock ticks since boot. With pid and boot id it identifies the process for ever.
    pub start_time: u64,
    /// True if it has ended and waits to be reaped.
    pub zombie: bool,
}

impl Process {
    /// Reads process `pid`; `None` if there is none.
    pub fn read(pid: u32) -> Option<Self> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file = rustix::fs::open(format!("/proc/{pid}/stat"), flags, Mode::empty()).ok()?;
        let mut stat = [0; MAX_STAT];
        let len = rustix::io::retry_on_intr(|| rustix::io::read(&file, &mut stat)).ok()?;
        Self::parse(pid, stat.get(..len)?)
    }

    /// Parses `PID (NAME) STATE PARENT GROUP SESSION …`. NAME may hold blanks and parentheses, so it ends at the last
    /// `)`.
    fn parse(pid: u32, stat: &[u8]) -> Option<Self> {
        let name_end = memchr::memrchr(b')', stat)?;
        let rest = std::str::from_utf8(stat.get(name_end + 2..)?).ok()?;
        let mut fields = rest.split(' ');
        let state = fields.next()?;
        let parent = fields.next()?.parse().ok()?;
        let group = fields.next()?.parse().ok()?;
        let session = fields.next()?.parse().ok()?;
        // The start time is field 22 of the line, the session field 6.
        let start_time = fields.nth(15)?.parse().ok()?;
        Some(Self { pid, parent, group, session, start_time, zombie: matches!(state, "Z" | "X") })
    }
}

/// Returns the letter of the state of process `pid` in `/proc/PID/stat`; `None` if there is none.
pub fn state_of(pid: u32) -> Option<char> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let name_end = memchr::memrchr(b')', &stat)?;
    stat.get(name_end + 2).map(|state| char::from(*state))
}

/// Marks by which processes of jobs are found.
#[derive(Clone, Debug, Default)]
pub(crate) struct Marks {
    /// Tags of all jobs. Any other tag comes from a step-runner inside a job and means nothing.
    pub(crate) tags: HashSet<u128>,
    /// Tags by groups that steps of the jobs led.
    pub(crate) groups: HashMap<u32, u128>,
}

/// Job of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// It is unknown.
    Unknown,
    /// The job with this tag.
    Job(u128),
}

/// Finds processes of jobs. Remembers their jobs: a process that clears its environment and loses its parent keeps its
/// job.
#[derive(Debug, Default)]
pub(crate) struct Sweeper {
    /// Tag of the job by pid and start time.
    known: HashMap<(u32, u64), u128>,
}

impl Sweeper {
    /// Reads `/proc` once. Returns the living processes of all jobs in `marks`, with their tags.
    pub(crate) fn find(&mut self, marks: &Marks) -> io::Result<Vec<(Process, u128)>> {
        let table = read_table()?;
        let mut found = Vec::new();
        let mut owners: HashMap<u32, Owner> = HashMap::with_capacity(table.len());
        for &pid in table.keys() {
            let owner = self.owner(pid, marks, &table, &mut owners);
            if let Some(process) = table.get(&pid)
                && !process.zombie
                && let Owner::Job(tag) = owner
            {
                found.push((*process, tag));
            }
        }
        self.known.retain(|(pid, start_time), _| table.get(pid).is_some_and(|p| p.start_time == *start_time));
        Ok(found)
    }

    fn owner(
        &mut self,
        pid: u32,
        marks: &Marks,
        table: &HashMap<u32, Process>,
        owners: &mut HashMap<u32, Owner>,
    ) -> Owner {
        // Go up to an ancestor whose owner is known, then down again: each takes its parent's owner unless it has a
        // tag.
        let mut line = Vec::new();
        let mut at = pid;
        let mut owner = loop {
            if let Some(&known) = owners.get(&at) {
                break known;
            }
            let Some(process) = table.get(&at) else { break Owner::Unknown };
            // A table that was read while processes moved may hold a circle; no real chain is this long.
            if process.parent == 0 || line.len() > table.len() {
                break Owner::Unknown;
            }
            line.push(*process);
            at = process.parent;
        };
        for process in line.into_iter().rev() {
            let own = self.tag(&process, marks).map(Owner::Job);
            let group = marks.groups.get(&process.group).copied().map(Owner::Job);
            owner = match (own, owner, group) {
                (Some(own), _, _) => own,
                (None, Owner::Unknown, Some(group)) => group,
                (None, inherited, _) => inherited,
            };
            if let Owner::Job(tag) = owner {
                self.known.insert((process.pid, process.start_time), tag);
            }
            owners.insert(process.pid, owner);
        }
        owner
    }

    fn tag(&mut self, process: &Process, marks: &Marks) -> Option<u128> {
        let key = (process.pid, process.start_time);
        if let Some(&tag) = self.known.get(&key) {
            return Some(tag);
        }
        let tag = tag_of(process.pid).or_else(|| tag_of_reaper(process.pid));
        let tag = tag.filter(|tag| marks.tags.contains(tag))?;
        self.known.insert(key, tag);
        Some(tag)
    }
}

/// Returns all processes that `/proc` shows, zombies included.
pub fn all() -> Vec<Process> {
    read_table().unwrap_or_default().into_values().collect()
}

/// Returns the living descendants of process `ancestor`. One that forks meanwhile can be missed, and its descendants
/// too.
pub fn descendants(ancestor: u32) -> Vec<Process> {
    let table = read_table().unwrap_or_default();
    let mut children: HashMap<u32, Vec<Process>> = HashMap::new();
    for process in table.into_values() {
        children.entry(process.parent).or_default().push(process);
    }
    let mut found = Vec::new();
    let mut at = vec![ancestor];
    // Each list is taken once, so a circle ends; a table that was read while processes moved may have one.
    while let Some(parent) = at.pop() {
        for process in children.remove(&parent).unwrap_or_default() {
            at.push(process.pid);
            if !process.zombie {
                found.push(process);
            }
        }
    }
    found
}

/// Returns the living descendants of the processes `roots`, found from parent to child: the cost grows with their number,
/// not with that of all processes. One that forks meanwhile can be missed, and its descendants too. Returns nothing on a
/// kernel built without lists of children.
pub fn family(roots: &[u32]) -> Vec<Process> {
    let (mut found, mut at) = (Vec::new(), roots.to_vec());
    let mut seen: HashSet<u32> = roots.iter().copied().collect();
    while let Some(pid) = at.pop() {
        for child in children_of(pid).into_iter().filter(|child| seen.insert(*child)) {
            at.push(child);
            found.extend(Process::read(child).filter(|process| !process.zombie));
        }
    }
    found
}

/// Returns the ids of the children of all threads of process `pid`.
fn children_of(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// Returns the children of this process, zombies included, from one file. On a kernel built without that file, reads
/// all processes and returns the living descendants instead.
pub fn own_children() -> Vec<Process> {
    own_children_except(|_| false)
}

/// Like [`own_children`], without those whose id is known.
pub fn own_children_except(is_known: impl Fn(u32) -> bool) -> Vec<Process> {
    if let Ok(children) = unknown_children(&is_known) {
        return children.into_iter().filter_map(Process::read).collect();
    }
    let mut found = descendants(std::process::id());
    found.retain(|process| !is_known(process.pid));
    found
}

/// Longest command line that is read, in bytes.
const MAX_COMMAND_LINE: u64 = 64 << 10;

/// Returns the arguments of process `pid`; `None` if there are none, they are too long, or it is gone.
pub fn command_line(pid: u32) -> Option<Vec<Vec<u8>>> {
    let mut bytes = Vec::new();
    let file = fs::File::open(format!("/proc/{pid}/cmdline")).ok()?;
    file.take(MAX_COMMAND_LINE).read_to_end(&mut bytes).ok()?;
    let is_whole = (bytes.len() as u64) < MAX_COMMAND_LINE && !bytes.is_empty();
    let arguments = bytes.strip_suffix(&[0]).unwrap_or(&bytes).split(|&byte| byte == 0);
    is_whole.then(|| arguments.map(<[u8]>::to_vec).collect())
}

/// Words on the command line that make this program a reaper; the job's tag follows. By the tag a daemon finds the
/// job's processes below a reaper whose keeper is dead: the rest of a reaper's `/proc` belongs to root.
pub(crate) const REAPER_WORDS: [&str; 2] = ["reaper", "--job"];

/// Returns the tag of the job whose reaper process `pid` is, by its command line.
pub(crate) fn tag_of_reaper(pid: u32) -> Option<u128> {
    let line = command_line(pid)?;
    let [_, reaper, job, tag, ..] = line.as_slice() else { return None };
    let is_reaper = [reaper, job].into_iter().zip(REAPER_WORDS).all(|(word, ours)| word == ours.as_bytes());
    u128::from_str_radix(std::str::from_utf8(tag).ok().filter(|_| is_reaper)?, 16).ok()
}

fn read_table() -> io::Result<HashMap<u32, Process>> {
    let mut table = HashMap::new();
    for entry in fs::read_dir("/proc")? {
        let Ok(entry) = entry else { continue };
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
        if let Some(process) = pid.and_then(Process::read) {
            table.insert(process.pid, process);
        }
    }
    Ok(table)
}

/// Returns the tag in the environment of process `pid`, if it can be read.
pub fn tag_of(pid: u32) -> Option<u128> {
    find_variable(pid, TAG_VARIABLE, |value| u128::from_str_radix(std::str::from_utf8(value).ok()?, 16).ok())
}

/// Returns what `read` makes of a value of variable `name` in the environment that process `pid` was started with, if
/// that can be read.
pub fn find_variable<T>(pid: u32, name: &str, read: impl Fn(&[u8]) -> Option<T>) -> Option<T> {
    environment(pid)?
        .split(|&byte| byte == 0)
        .find_map(|entry| read(entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?))
}

/// Returns the environment that process `pid` was started with, if it can be read. While a process becomes another
/// program, its environment reads empty for a moment: it is read again then.
fn environment(pid: u32) -> Option<Vec<u8>> {
    let read = || {
        let mut environment = Vec::new();
        let file = fs::File::open(format!("/proc/{pid}/environ")).ok()?;
        file.take(MAX_ENVIRONMENT).read_to_end(&mut environment).ok()?;
        Some(environment)
    };
    for _ in 0..MAX_LOOKS {
        let environment = read()?;
        if !environment.is_empty() {
            return Some(environment);
        }
        if !becomes_another_program(pid) {
            break;
        }
        std::thread::yield_now();
    }
    // It has no environment, or became the other program since it was read.
    read()
}

/// True if process `pid` has memory, but no arguments yet. Zombies and threads of the kernel have no memory.
fn becomes_another_program(pid: u32) -> bool {
    fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.is_empty())
        && fs::read(format!("/proc/{pid}/statm")).is_ok_and(|size| !size.starts_with(b"0 "))
}

/// Returns the effective user id of process `pid`. The owner of its files in `/proc` is another one if its memory is
/// protected.
pub fn user(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    ids.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Returns the ids of this process's children whose `known` is false, zombies included. Reads one file, whatever else
/// runs on the host. It lists the children of the main thread, to which orphans come.
///
/// The list is complete. While the file is read, children are only added, at its end: a child goes when it is reaped,
/// and only the calling thread reaps. So if a subreaper that has reaped all it started sees none, nothing lives below
/// it: every descendant hangs below a child until that is reaped.
pub(crate) fn unknown_children(mut known: impl FnMut(u32) -> bool) -> io::Result<Vec<u32>> {
    let pid = std::process::id();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    let children = children.split_ascii_whitespace().filter_map(|pid| pid.parse().ok());
    Ok(children.filter(|&pid| !known(pid)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_blanks_and_parentheses_does_not_shift_the_fields() {
        let stat = b"42 (a) b (c) S 7 9 8 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 123456 1 2 3\n";
        let process =
            Process { pid: 42, parent: 7, group: 9, session: 8, start_time: 123_456, zombie: false };
        assert_eq!(Process::parse(42, stat), Some(process));
        assert_eq!(Process::parse(42, b"42 (x"), None);
        assert_eq!(Process::parse(42, b"42 (x) S 7"), None);
    }

    #[test]
    fn this_process_is_found_with_its_start_time() {
        let own = Process::read(std::process::id()).unwrap();
        assert!(!own.zombie);
        assert!(all().contains(&own));
        assert_eq!(user(own.pid), Some(rustix::process::geteuid().as_raw()));
        assert_eq!(user(u32::MAX), None);
        assert!(own.start_time > 0);
        assert_eq!(own.parent, std::os::unix::process::parent_id());
    }

    #[test]
    fn a_tagged_child_is_told_from_an_untagged_one_and_both_are_below() {
        let start = |tag: Option<u128>| {
            let mut command = std::process::Command::new("sleep");
            command.arg("30").env_remove(TAG_VARIABLE);
            if let Some(tag) = tag {
                command.env(TAG_VARIABLE, format!("{tag:032x}"));
            }
            command.spawn().unwrap()
        };
        let (mut tagged, mut plain) = (start(Some(7)), start(None));
        let mut marks = Marks { tags: HashSet::from([7]), ..Marks::default() };
        let mut inner = start(Some(8));
        let find = |marks: &Marks| Sweeper::default().find(marks).unwrap();
        let tag_of = |pid, marks: &Marks| {
            find(marks).iter().find(|(process, _)| process.pid == pid).map(|(_, tag)| *tag)
        };
        assert_eq!(tag_of(tagged.id(), &marks), Some(7));
        assert_eq!(tag_of(plain.id(), &marks), None);
        assert_eq!(tag_of(inner.id(), &marks), None, "a tag of nobody we know");
        let group = Process::read(plain.id()).unwrap().group;
        marks.groups = HashMap::from([(group, 9)]);
        assert_eq!(tag_of(plain.id(), &marks), Some(9));
        let below: Vec<u32> = descendants(std::process::id()).iter().map(|process| process.pid).collect();
        for child in [&tagged, &plain, &inner] {
            assert!(below.contains(&child.id()));
        }
        assert!(!below.contains(&std::process::id()));
        assert_eq!(command_line(plain.id()).unwrap(), [b"sleep".to_vec(), b"30".to_vec()]);
        for child in [&mut tagged, &mut plain, &mut inner] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}
