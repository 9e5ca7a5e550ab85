//! Which processes belong to a job, read from `/proc` (service.md §6.5): for hosts without a usable control group,
//! and for a daemon that finds the remains of a dead keeper.
//!
//! A process belongs to a job if its environment holds the job's tag, if its parent does, or if it is in a group
//! that a step of the job led. A process that forks while `/proc` is read can be missed: callers repeat the sweep
//! until it finds nothing twice.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::{self, Read};

use rustix::fs::{Mode, OFlags};

/// Name of the environment variable that holds the job's tag as 32 hex digits (service.md §6.5).
pub const TAG_VARIABLE: &str = "STEP_RUNNER_JOB";

/// Most of an environment that is searched for the tag, in bytes. The tag is its last layer, but programs may have
/// been started with more variables than these by a process of the job.
const MAX_ENVIRONMENT: u64 = 4 << 20;

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
    /// When it started, in clock ticks since the host did. With pid and boot id it names the process for ever.
    pub start_time: u64,
    /// It has ended and waits to be reaped.
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

    /// `PID (NAME) STATE PARENT GROUP …`; NAME may hold blanks and parentheses, so it ends at the last `)`.
    fn parse(pid: u32, stat: &[u8]) -> Option<Self> {
        let name_end = memchr::memrchr(b')', stat)?;
        let rest = std::str::from_utf8(stat.get(name_end + 2..)?).ok()?;
        let mut fields = rest.split(' ');
        let state = fields.next()?;
        let parent = fields.next()?.parse().ok()?;
        let group = fields.next()?.parse().ok()?;
        // The start time is field 22 of the line, the group field 5.
        let start_time = fields.nth(16)?.parse().ok()?;
        Some(Self { pid, parent, group, start_time, zombie: matches!(state, "Z" | "X") })
    }
}

/// What tells the jobs apart.
#[derive(Clone, Debug, Default)]
pub struct Marks {
    /// Tags of all jobs. Any other tag was given by a step-runner inside one of them and says nothing.
    pub tags: HashSet<u128>,
    /// Tags by groups that steps of the jobs led.
    pub groups: HashMap<u32, u128>,
}

/// Where to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// At the descendants of this process: a keeper that is alive is the ancestor of all that its jobs started.
    Below(u32),
    /// At every process of the host: the keeper is gone.
    Everywhere,
}

/// What is known of a process's job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Not within the [`Scope`].
    Outside,
    /// Within it, but nothing tells its job.
    Unknown,
    /// The job with this tag.
    Job(u128),
}

/// Finds processes of jobs. Remembers whose they were: one that cleans its environment and loses its parent keeps its job.
#[derive(Debug, Default)]
pub struct Sweeper {
    /// Tag of the job by pid and start time.
    known: HashMap<(u32, u64), u128>,
}

/// A living process within the scope, and whose it is; never [`Owner::Outside`].
pub type Found = (Process, Owner);

impl Sweeper {
    /// Reads `/proc` once.
    pub fn find(&mut self, scope: Scope, marks: &Marks) -> io::Result<Vec<Found>> {
        let table = read_table()?;
        let mut found: Vec<Found> = Vec::new();
        let mut owners: HashMap<u32, Owner> = HashMap::with_capacity(table.len());
        for &pid in table.keys().filter(|&&pid| scope != Scope::Below(pid)) {
            let owner = self.owner(pid, scope, marks, &table, &mut owners);
            if let Some(process) = table.get(&pid)
                && !process.zombie
                && owner != Owner::Outside
            {
                found.push((*process, owner));
            }
        }
        self.known.retain(|(pid, start_time), _| table.get(pid).is_some_and(|p| p.start_time == *start_time));
        Ok(found)
    }

    /// Whose `process` is by its own tag or group alone, without looking at its ancestors.
    pub fn owner_of(&mut self, process: &Process, marks: &Marks) -> Owner {
        let tag = self.tag(process, marks).or_else(|| marks.groups.get(&process.group).copied());
        tag.map_or(Owner::Unknown, Owner::Job)
    }

    fn owner(
        &mut self,
        pid: u32,
        scope: Scope,
        marks: &Marks,
        table: &HashMap<u32, Process>,
        owners: &mut HashMap<u32, Owner>,
    ) -> Owner {
        // Up to an ancestor whose owner is known; then down again, each taking its parent's owner unless it has a tag.
        let mut line = Vec::new();
        let mut at = pid;
        let mut owner = loop {
            if scope == Scope::Below(at) {
                break Owner::Unknown;
            }
            if let Some(&known) = owners.get(&at) {
                break known;
            }
            let Some(process) = table.get(&at) else { break outside(scope) };
            // A table that was read while processes moved may hold a circle; no real line is this long.
            if process.parent == 0 || line.len() > table.len() {
                break outside(scope);
            }
            line.push(*process);
            at = process.parent;
        };
        for process in line.into_iter().rev() {
            if owner != Owner::Outside {
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
        let tag = read_tag(process.pid).filter(|tag| marks.tags.contains(tag))?;
        self.known.insert(key, tag);
        Some(tag)
    }
}

/// Of a process whose line of parents ends without meeting anything known.
const fn outside(scope: Scope) -> Owner {
    match scope {
        Scope::Below(_) => Owner::Outside,
        Scope::Everywhere => Owner::Unknown,
    }
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

/// Tag in the environment of process `pid`, if it can be read.
fn read_tag(pid: u32) -> Option<u128> {
    let mut environment = Vec::new();
    let file = fs::File::open(format!("/proc/{pid}/environ")).ok()?;
    file.take(MAX_ENVIRONMENT).read_to_end(&mut environment).ok()?;
    environment.split(|&byte| byte == 0).find_map(|entry| {
        let value = entry.strip_prefix(TAG_VARIABLE.as_bytes())?.strip_prefix(b"=")?;
        u128::from_str_radix(std::str::from_utf8(value).ok()?, 16).ok()
    })
}

/// Process ids of this process's children whose `known` is false, zombies included. Cheap: one file, whatever else runs
/// on the host. Orphans come to the main thread, whose children these are.
///
/// Complete: while the file is read children only come, at the end of the list, as they go when they are reaped, and that is
/// for the thread that calls this to do. So where a subreaper that has reaped all it started sees none here, nothing lives
/// below it: a process that has lost its parents hangs below such a child, until that is reaped.
pub fn unknown_children(mut known: impl FnMut(u32) -> bool) -> io::Result<Vec<u32>> {
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
        let stat = b"42 (a) b (c) S 7 9 9 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 123456 1 2 3\n";
        let process = Process { pid: 42, parent: 7, group: 9, start_time: 123_456, zombie: false };
        assert_eq!(Process::parse(42, stat), Some(process));
        assert_eq!(Process::parse(42, b"42 (x"), None);
        assert_eq!(Process::parse(42, b"42 (x) S 7"), None);
    }

    #[test]
    fn this_process_is_found_with_its_start_time() {
        let own = Process::read(std::process::id()).unwrap();
        assert!(!own.zombie);
        assert!(own.start_time > 0);
        assert_eq!(own.parent, std::os::unix::process::parent_id());
    }

    #[test]
    fn a_tagged_child_is_told_from_an_untagged_one() {
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
        // The environment of a process reads empty for a moment after it became its program.
        let until = std::time::Instant::now() + std::time::Duration::from_mins(1);
        while read_tag(tagged.id()).is_none() && std::time::Instant::now() < until {
            std::thread::yield_now();
        }
        let found = Sweeper::default().find(Scope::Below(std::process::id()), &marks).unwrap();
        let tag_of = |pid| found.iter().find(|(process, _)| process.pid == pid).map(|(_, tag)| *tag);
        assert_eq!(tag_of(tagged.id()), Some(Owner::Job(7)));
        assert_eq!(tag_of(plain.id()), Some(Owner::Unknown));
        assert_eq!(tag_of(inner.id()), Some(Owner::Unknown), "a tag of nobody we know");
        assert_eq!(tag_of(1), None);
        marks.groups = HashMap::from([(found.iter().find(|(p, _)| p.pid == plain.id()).unwrap().0.group, 9)]);
        let by_group = Sweeper::default().find(Scope::Everywhere, &marks).unwrap();
        assert!(by_group.iter().any(|(process, tag)| process.pid == plain.id() && *tag == Owner::Job(9)));
        for child in [&mut tagged, &mut plain, &mut inner] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}
