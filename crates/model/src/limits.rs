//! Limits on the resources of a job (service.md §3.1, `limits`).

use std::fmt;

use serde::{Deserialize, Serialize};

/// Limits of a job. `None` means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceLimits {
    /// Processes and threads at once.
    pub processes: Option<u64>,
    /// Bytes of memory, swap included.
    pub memory: Option<u64>,
    /// Processor time in microseconds per second of all processors together: 1,000,000 is one processor.
    pub cpu_micros: Option<u64>,
    /// Open files of each process.
    pub open_files: Option<u64>,
}

/// Names one of the [`ResourceLimits`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum LimitName {
    /// [`ResourceLimits::processes`].
    Processes,
    /// [`ResourceLimits::memory`].
    Memory,
    /// [`ResourceLimits::cpu_micros`].
    Cpus,
    /// [`ResourceLimits::open_files`].
    OpenFiles,
}

impl LimitName {
    /// All names.
    pub const ALL: [Self; 4] = [Self::Processes, Self::Memory, Self::Cpus, Self::OpenFiles];

    /// Returns the name used in requests. The setting has `limit_` in front.
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

impl ResourceLimits {
    /// Returns the value of one limit.
    pub const fn get(&self, name: LimitName) -> Option<u64> {
        match name {
            LimitName::Processes => self.processes,
            LimitName::Memory => self.memory,
            LimitName::Cpus => self.cpu_micros,
            LimitName::OpenFiles => self.open_files,
        }
    }

    /// Removes one limit.
    pub const fn remove(&mut self, name: LimitName) {
        match name {
            LimitName::Processes => self.processes = None,
            LimitName::Memory => self.memory = None,
            LimitName::Cpus => self.cpu_micros = None,
            LimitName::OpenFiles => self.open_files = None,
        }
    }

    /// Returns the names of the limits that are set.
    pub fn names(&self) -> impl Iterator<Item = LimitName> {
        let limits = *self;
        LimitName::ALL.into_iter().filter(move |&name| limits.get(name).is_some())
    }

    /// Returns the smaller of each pair of limits (service.md §3.1).
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

/// A limit that the host cannot enforce.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unenforceable {
    /// Name of the limit.
    pub limit: LimitName,
    /// The reason, and the remedy.
    pub why: String,
}

/// A resource that a process ran out of before it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Shortage {
    /// Memory: the kernel killed processes of the job to free some.
    Memory,
    /// Processes: the kernel refused processes or threads beyond the job's limit.
    Processes,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smaller_of_each_limit_holds() {
        let request =
            ResourceLimits { processes: Some(4), memory: Some(1 << 30), ..ResourceLimits::default() };
        let settings = ResourceLimits {
            processes: Some(8),
            memory: Some(1 << 20),
            open_files: Some(64),
            cpu_micros: None,
        };
        let both = ResourceLimits {
            processes: Some(4),
            memory: Some(1 << 20),
            open_files: Some(64),
            cpu_micros: None,
        };
        assert_eq!(request.smaller(settings), both);
        assert_eq!(settings.smaller(request), both);
        assert_eq!(request.smaller(ResourceLimits::default()), request);
        let names: Vec<_> = request.names().collect();
        assert_eq!(names, [LimitName::Processes, LimitName::Memory]);
    }
}
