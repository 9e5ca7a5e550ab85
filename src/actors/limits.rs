//! Limits of jobs: the smaller ones of request and settings, as far as the keeper can enforce them (service.md §3.1).

use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::model::{Reason, Refusal, ResourceLimits, Shortage, Unenforceable};

/// Limits of one job. Later changes of the settings do not affect them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct JobLimits {
    asked: ResourceLimits,
    /// The smaller ones of request and settings.
    all: ResourceLimits,
}

impl JobLimits {
    pub(super) fn new(asked: ResourceLimits, config: &Config) -> Self {
        Self { asked, all: asked.smaller(of_settings(config)) }
    }

    pub(super) const fn all(&self) -> ResourceLimits {
        self.all
    }

    /// Refuses a request for a limit that the keeper cannot enforce; it must not run without the limit.
    pub(super) fn check(&self, unenforceable: &[Unenforceable]) -> Result<(), Refusal> {
        match unenforceable.iter().find(|one| self.asked.get(one.limit).is_some()) {
            None => Ok(()),
            Some(Unenforceable { limit, why }) => Err(Refusal::new(
                Reason::LimitUnavailable,
                format!("limit {limit} cannot be enforced here: {why}; or leave it out"),
            )
            .about(format!("limits.{limit}"))),
        }
    }

    /// Limits to enforce. Limits from settings that the keeper cannot enforce are dropped; the operator was told.
    pub(super) fn to_hold(self, unenforceable: &[Unenforceable]) -> ResourceLimits {
        let mut limits = self.all;
        for one in unenforceable.iter().filter(|one| self.asked.get(one.limit).is_none()) {
            limits.remove(one.limit);
        }
        limits
    }

    /// Describes the shortage that ended a process of the job. It precedes the exit status in the message.
    pub(super) fn explain(&self, shortage: Shortage) -> String {
        match (shortage, self.all.memory, self.all.processes) {
            (Shortage::Memory, Some(bytes), _) => {
                format!("oom-killed: out of memory: the job's memory limit is {bytes} bytes (limit_memory)")
            }
            (Shortage::Memory, None, _) => {
                "oom-killed: out of memory: the host or its container has no more".into()
            }
            (Shortage::Processes, _, Some(most)) => {
                format!("resource: the job has reached its limit of {most} processes (limit_processes)")
            }
            (Shortage::Processes, _, None) => "resource: no more processes are allowed here".into(),
        }
    }
}

/// Limits from the settings, for every job.
pub(super) fn of_settings(config: &Config) -> ResourceLimits {
    let unless_zero = |value| Some(value).filter(|&value| value > 0);
    ResourceLimits {
        processes: unless_zero(config.limit_processes),
        memory: unless_zero(config.limit_memory.0),
        cpu_micros: unless_zero((config.limit_cpus * 1e6).ceil() as u64),
        open_files: unless_zero(config.limit_open_files),
    }
}

/// Warns the operator of limits in the settings that are not enforced.
pub(super) fn warn_of_settings(config: &Config, unenforceable: &[Unenforceable]) {
    let limits = of_settings(config);
    let broken: Vec<_> = unenforceable
        .iter()
        .filter(|one| limits.get(one.limit).is_some())
        .map(|Unenforceable { limit, why }| format!("limit_{limit}: {why}"))
        .collect();
    if !broken.is_empty() {
        tracing::warn!(
            "jobs run without these limits, because this host cannot enforce them: {}",
            broken.join("; ")
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Bytes;
    use crate::model::LimitName;

    fn no(limit: LimitName) -> Vec<Unenforceable> {
        vec![Unenforceable { limit, why: "no controller".into() }]
    }

    #[test]
    fn what_only_the_settings_ask_for_is_left_out_where_it_cannot_be_held() {
        let config = Config { limit_memory: Bytes(1 << 20), limit_processes: 9, ..Config::default() };
        let asked = ResourceLimits { processes: Some(4), ..ResourceLimits::default() };
        let limits = JobLimits::new(asked, &config);
        assert_eq!(limits.all(), ResourceLimits { memory: Some(1 << 20), ..asked });
        assert!(limits.check(&no(LimitName::Memory)).is_ok());
        assert_eq!(limits.to_hold(&no(LimitName::Memory)), asked);
        let refusal = limits.check(&no(LimitName::Processes)).unwrap_err();
        assert_eq!(refusal.reason, Reason::LimitUnavailable);
        assert!(refusal.text.contains("limit processes") && refusal.text.contains("no controller"));
        assert_eq!(limits.to_hold(&no(LimitName::Processes)), limits.all(), "the keeper fails its steps");
    }
}
