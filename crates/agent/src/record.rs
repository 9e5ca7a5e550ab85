//! What a job's agent keeps on disk, so that another one can go on after `kill -9` (agent.md §9).
//!
//! The caller writes a record before it acts on it. So a record never says less than what was done.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use crate::outcome::{JobEnd, Outcome};
use crate::scheduler::EntryId;
use crate::sealed::{self, Unusable};
use crate::time::WallTime;
use crate::tokens::Token;
use crate::trace::Form;

/// Kind and version of the file.
const KIND: &str = "record";
const VERSION: u32 = 1;

/// Times that an environment is prepared for one job.
pub const PREPARATIONS: u32 = 3;

/// Phase of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// The server's answer was read. The server has not been told that the job runs.
    Taken,
    /// The server has acknowledged the job. Nothing of it has run.
    Preparing,
    /// The daemon may have the job: a script may have run.
    Submitted,
    /// The daemon has the job.
    Running,
    /// The job has ended and its log is read to its end. All files are on disk.
    Ended,
    /// The server knows the result.
    Reported,
}

/// Who wants a job to end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// Somebody cancelled it at the server.
    pub cancel: bool,
    /// The server has ended it.
    pub abort: bool,
    /// The agent was stopped so that its jobs fail.
    pub stop: Option<Stop>,
}

/// How the stop of an agent ends a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stop {
    /// Processes get time to end.
    Gently,
    /// Processes are killed.
    Forced,
}

impl Wanted {
    /// True if somebody wants the job to end.
    pub const fn is_any(self) -> bool {
        self.cancel || self.abort || self.stop.is_some()
    }
}

/// The record of one job. `Debug` shows nothing of token, payload and settings.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Phase.
    pub phase: Phase,
    /// Number of the entry in this configuration.
    pub entry: EntryId,
    /// Address of the server.
    pub server: String,
    /// Settings of the entry as the caller wants them back, without its token.
    pub settings: Json,
    /// Number of the job.
    pub job: u64,
    /// Token of the job.
    pub token: Token,
    /// Number of the project.
    pub project: Option<u64>,
    /// Reasons of failures that the server knows.
    pub failure_reasons: BTreeSet<String>,
    /// True if the trace has times.
    pub has_timestamps: bool,
    /// True if the job prints each of its commands.
    pub is_debug: bool,
    /// Longest trace in bytes.
    pub output_limit: u64,
    /// Time limit of the job.
    pub timeout: Duration,
    /// Time for a preparation, and for the daemon to take the job.
    pub prepare_timeout: Duration,
    /// `CI_CONCURRENT_ID` and `CI_CONCURRENT_PROJECT_ID`.
    pub concurrent: (u32, u32),
    /// Time at which the job was taken.
    pub taken: WallTime,
    /// Time at which the server acknowledged it.
    pub acknowledged: Option<WallTime>,
    /// Time limit in the request: a repeated request must be the same.
    pub time_limit: Option<Duration>,
    /// Preparations that were begun.
    pub preparations: u32,
    /// Who wants the job to end.
    pub wanted: Wanted,
    /// How it ended.
    pub end: Option<JobEnd>,
    /// Time at which it ended.
    pub ended: Option<WallTime>,
    /// True if Run may have been sent.
    pub was_submitted: bool,
    /// Names of the job's steps, once the daemon has it: results show them masked.
    #[serde(default)]
    pub stages: Vec<String>,
    /// The job as the server sent it, until the daemon has it.
    pub payload: Option<String>,
    /// Why the payload is refused.
    pub refused: Option<String>,
}

impl std::fmt::Debug for Record {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Record");
        shown.field("phase", &self.phase).field("job", &self.job).field("wanted", &self.wanted);
        shown.field("end", &self.end).finish_non_exhaustive()
    }
}

impl Record {
    /// Encodes the record as a file.
    pub fn encode(&self) -> Result<Vec<u8>, serde_json::Error> {
        sealed::encode(KIND, VERSION, self)
    }

    /// Decodes a file.
    pub fn decode(file: &[u8]) -> Result<Self, Unusable> {
        sealed::decode(KIND, VERSION, file)
    }

    /// True if the job holds a slot.
    pub fn holds_slot(&self) -> bool {
        self.phase < Phase::Ended
    }

    /// Returns the form of the trace.
    pub const fn form(&self) -> Form {
        if self.has_timestamps { Form::Entries } else { Form::Lines }
    }

    /// Returns what the server is told about the end.
    pub fn outcome(&self) -> Option<Outcome> {
        self.end.as_ref().map(|end| Outcome::of(end, &self.failure_reasons))
    }
}

/// What a starting agent does with a record that it cannot use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// It stays, is named once, and holds no slot.
    Keep(Unusable),
    /// It was never whole, so nothing was done for it, or the job was over: the folder is removed.
    Remove,
}

/// Decides about a record that cannot be used; `None`: it is not there. It is the first file that is written, and the
/// first that is deleted. `has_files` is true if the folder has more than the record.
pub fn unreadable(why: Option<Unusable>, has_files: bool) -> Unreadable {
    match why {
        None => Unreadable::Remove,
        Some(Unusable::Torn) if !has_files => Unreadable::Remove,
        Some(why) => Unreadable::Keep(why),
    }
}

/// Returns the lowest numbers that no running job has: over the entry, and over the entry's jobs of the same project.
pub fn concurrent_ids<'r>(running: impl Iterator<Item = &'r Record>, project: Option<u64>) -> (u32, u32) {
    let (mut of_entry, mut of_project) = (BTreeSet::new(), BTreeSet::new());
    for record in running.filter(|record| record.holds_slot()) {
        of_entry.insert(record.concurrent.0);
        if record.project == project {
            of_project.insert(record.concurrent.1);
        }
    }
    let lowest = |taken: &BTreeSet<u32>| (0..u32::MAX).find(|id| !taken.contains(id)).unwrap_or(u32::MAX);
    (lowest(&of_entry), lowest(&of_project))
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A record of a job that was just taken.
    pub(crate) fn record(job: u64) -> Record {
        Record {
            phase: Phase::Taken,
            entry: EntryId(0),
            server: "https://gitlab.test".to_owned(),
            settings: Json::Null,
            job,
            token: Token::new("glcbt-64_secretsecret").unwrap(),
            project: Some(5),
            failure_reasons: BTreeSet::new(),
            has_timestamps: true,
            is_debug: false,
            output_limit: 4 << 20,
            timeout: Duration::from_hours(1),
            prepare_timeout: Duration::from_mins(10),
            concurrent: (0, 0),
            taken: WallTime(1_000_000),
            acknowledged: None,
            time_limit: None,
            preparations: 0,
            wanted: Wanted::default(),
            end: None,
            ended: None,
            was_submitted: false,
            stages: Vec::new(),
            payload: Some("{\"id\": 1}".to_owned()),
            refused: None,
        }
    }

    #[test]
    fn a09_a_record_comes_back_as_it_was_and_shows_no_secret() {
        let mut record = record(1001);
        record.end = Some(JobEnd::Ended { code: 3, failed: None });
        record.wanted.stop = Some(Stop::Gently);
        let file = record.encode().unwrap();
        assert_eq!(Record::decode(&file).unwrap(), record);
        assert!(!format!("{record:?}").contains("secret"));
    }

    #[test]
    fn a09_records_that_cannot_be_used_are_kept_unless_they_were_never_whole() {
        for (why, has_files, is_kept) in [
            (Unusable::Torn, false, false),
            (Unusable::Torn, true, true),
            (Unusable::Unread("Permission denied".to_owned()), false, true),
            (Unusable::Damaged, false, true),
            (Unusable::Newer(9), false, true),
            (Unusable::Foreign, false, true),
        ] {
            let wanted = if is_kept { Unreadable::Keep(why.clone()) } else { Unreadable::Remove };
            assert_eq!(unreadable(Some(why.clone()), has_files), wanted, "{why:?}");
        }
        // The deletion of its folder was cut off.
        assert_eq!(unreadable(None, true), Unreadable::Remove);
    }

    #[test]
    fn a_running_job_holds_its_slot_and_numbers_until_it_has_ended() {
        let mut all: Vec<Record> = (0..4).map(record).collect();
        for (record, concurrent) in all.iter_mut().zip([(0, 0), (1, 0), (3, 1), (2, 2)]) {
            record.concurrent = concurrent;
        }
        all[1].project = Some(9);
        all[3].phase = Phase::Ended;
        assert_eq!(concurrent_ids(all.iter(), Some(5)), (2, 2));
        assert_eq!(concurrent_ids(all.iter(), Some(9)), (2, 1));
        assert_eq!(concurrent_ids(all.iter(), None), (2, 0));
        assert_eq!(concurrent_ids([].iter(), None), (0, 0));
    }

    proptest! {
        #[test]
        fn a09_no_bytes_break_the_decoder(bytes: Vec<u8>, at: prop::sample::Index, byte: u8) {
            prop_assert!(Record::decode(&bytes).is_err());
            let mut file = record(1).encode().unwrap();
            let at = at.index(file.len());
            file[at] = byte;
            prop_assert!(Record::decode(&file).is_err() || Record::decode(&file) == Ok(record(1)));
        }
    }
}
