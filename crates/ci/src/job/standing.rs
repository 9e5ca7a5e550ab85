//! Places of jobs in a pipeline (ci.md §4).

/// Place of a job in a pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It would be in the pipeline, and start by itself after the jobs before it.
    Runs,
    /// The same, also after a failure: `when: always`.
    Always,
    /// It would be in the pipeline, but `when` says otherwise: `manual`, `delayed`, `on_failure`.
    Waits(String),
    /// It would not be in the pipeline, for this reason. It holds quotations
    /// ([`step_runner_model::text::for_people`]).
    Absent(String),
}

impl Standing {
    /// True if nobody and no failure is needed to start it. `delayed` starts by itself, after a time.
    pub fn starts_by_itself(&self) -> bool {
        match self {
            Self::Runs | Self::Always => true,
            Self::Waits(when) => when == "delayed",
            Self::Absent(_) => false,
        }
    }

    /// True if it would not be in the pipeline.
    pub const fn is_absent(&self) -> bool {
        matches!(self, Self::Absent(_))
    }
}
