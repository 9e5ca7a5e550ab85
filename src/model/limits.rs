//! What a job may use (service.md §3.1, `limits`).

use std::fmt;

use serde::{Deserialize, Serialize};

/// Limits of a job; `None` = none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Processes and threads at once.
    pub processes: Option<u64>,
    /// Bytes of memory, swap included.
    pub memory: Option<u64>,
    /// Processor time in microseconds per second of all processors together: 1,000,000 is one processor.
    pub cpu_micros: Option<u64>,
    /// Open files of each process.
    pub open_files: Option<u64>,
}

/// One of the [`Limits`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum LimitName {
    /// [`Limits::processes`].
    Processes,
    /// [`Limits::memory`].
    Memory,
    /// [`Limits::cpu_micros`].
    Cpus,
    /// [`Limits::open_files`].
    OpenFiles,
}

impl LimitName {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Processes, Self::Memory, Self::Cpus, Self::OpenFiles];

    /// As in a request; the setting has `limit_` in front.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Processes => "processes",
            Self::Memory => "memory",
            Self::Cpus => "cpus",
            Self::OpenFiles => "open_files",
        }
    }
}

impl fmt::Display for LimitName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Limits {
    /// The value of one of them.
    pub const fn get(&self, name: LimitName) -> Option<u64> {
        match name {
            LimitName::Processes => self.processes,
            LimitName::Memory => self.memory,
            LimitName::Cpus => self.cpu_micros,
            LimitName::OpenFiles => self.open_files,
        }
    }

    /// Takes one of them away.
    pub const fn remove(&mut self, name: LimitName) {
        match name {
            LimitName::Processes => self.processes = None,
            LimitName::Memory => self.memory = None,
            LimitName::Cpus => self.cpu_micros = None,
            LimitName::OpenFiles => self.open_files = None,
        }
    }

    /// Names of those that are set.
    pub fn names(&self) -> impl Iterator<Item = LimitName> {
        let limits = *self;
        LimitName::ALL.into_iter().filter(move |&name| limits.get(name).is_some())
    }

    /// The smaller one of each (service.md §3.1).
    #[must_use]
    pub fn smaller(self, other: Self) -> Self {
        let smaller = |name| [self.get(name), other.get(name)].into_iter().flatten().min();
        Self {
            processes: smaller(LimitName::Processes),
            memory: smaller(LimitName::Memory),
            cpu_micros: smaller(LimitName::Cpus),
            open_files: smaller(LimitName::OpenFiles),
        }
    }
}

/// A limit that cannot be enforced on a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unenforceable {
    /// Which.
    pub limit: LimitName,
    /// Why, and what would make it possible.
    pub why: String,
}

/// What a process ran out of before it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Shortage {
    /// The kernel killed processes of the job for want of memory.
    Memory,
    /// The kernel refused processes or threads beyond the job's limit.
    Processes,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smaller_of_each_limit_holds() {
        let request = Limits { processes: Some(4), memory: Some(1 << 30), ..Limits::default() };
        let settings =
            Limits { processes: Some(8), memory: Some(1 << 20), open_files: Some(64), cpu_micros: None };
        let both =
            Limits { processes: Some(4), memory: Some(1 << 20), open_files: Some(64), cpu_micros: None };
        assert_eq!(request.smaller(settings), both);
        assert_eq!(settings.smaller(request), both);
        assert_eq!(request.smaller(Limits::default()), request);
        let names: Vec<_> = request.names().collect();
        assert_eq!(names, [LimitName::Processes, LimitName::Memory]);
    }
}
