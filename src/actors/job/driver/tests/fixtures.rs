//! A job, its machine, and reports about it.

use std::sync::Arc;
use std::time::Duration;

use indexmap::IndexMap;

use crate::actors::job::driver::RecordedMachine;
use crate::actors::messages::EndedStep;
use crate::actors::sync_group::NotSynced;
use crate::job::event::{JobSpec, ProcessEnd, ProcessNumber};
use crate::job::machine::Machine;
use crate::job::record::Recorder;
use crate::keeper::protocol::{StepEnd, StepEnded};
use crate::model::{ExitStatus, FinishedProcess, JobId, JobKey};
use crate::process::cgroup::Usage;

/// Time of all events.
pub(super) const AT: u64 = 7;

pub(super) fn key() -> JobKey {
    JobId::parse("1").unwrap().key()
}

pub(super) fn spec(steps: &str) -> JobSpec {
    JobSpec {
        id: "1".into(),
        steps: steps.into(),
        file: None,
        inputs: IndexMap::new(),
        vars: IndexMap::new(),
        base_env: Arc::default(),
        env: IndexMap::new(),
        work_dir: "/job".into(),
        tmp_dir: "/state/tmp".into(),
        timeout: None,
        cancel_grace: None,
        default_grace: Duration::from_secs(5),
        cleanup_timeout: Duration::from_mins(1),
        members_at_a_time: 2,
        errexit: false,
        trace_sections: false,
    }
}

pub(super) fn machine(steps: &str) -> RecordedMachine {
    RecordedMachine::new(key(), Machine::new(&spec(steps)).unwrap(), Recorder::default())
}

pub(super) fn step_ended(process: ProcessNumber, code: u8, closes: bool) -> StepEnded {
    StepEnded {
        process,
        end: StepEnd::Exited(ExitStatus::Code(code)),
        left: 0,
        shortage: None,
        usage: Usage::default(),
        ran: FinishedProcess { ended: AT, log_len: 0, usage: None },
        closes,
    }
}

/// The end of a process, as its step's actor tells it.
pub(super) fn ended(report: &StepEnded) -> EndedStep {
    let StepEnd::Exited(status) = report.end else { panic!("it was not started") };
    EndedStep {
        process: report.process,
        end: ProcessEnd::Exited(status),
        shell: None,
        outputs: None,
        exports: None,
        ran: Some(report.ran),
        closes: report.closes,
    }
}

pub(super) fn storage_error() -> NotSynced {
    NotSynced::new(&std::io::Error::other("sync"))
}
