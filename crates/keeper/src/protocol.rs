//! The protocol of daemon and keeper over `keeper.sock`.
//!
//! A frame is a little-endian `u32` length and that many bytes of postcard: [`ToKeeper`] one way, [`FromKeeper`] the
//! other. The daemon's first frame is [`Request::Hello`]; anything else before it closes the connection. The newest
//! connection replaces an older one (the daemon's state lock makes sure there is one daemon).
//!
//! **Every request may be repeated.** [`Request::Register`] is idempotent by key, [`Request::Record`] by `seq`. Lines,
//! phrases, places and the close are idempotent by `op`, starts and trees by the number of the process: `op` is a number
//! that counts up within a job and is the same when a later daemon replays the job. The keeper ignores an `op` it has
//! already done, so nothing is spawned or written twice. Requests of one connection are performed in order; a request with
//! id 0 gets no reply.
//!
//! Ends of steps and jobs are *state*, not only messages. The keeper keeps them until [`Request::Drop`] and repeats
//! them in [`Request::Resume`], so nothing is lost if a daemon dies between an exit and hearing of it.
//!
//! **Frames of the keeper are small.** The record of a job may have many megabytes, so it is read in pieces
//! ([`Request::ReadRecord`]). [`RegisteredJob`] holds what a daemon must know before that.

mod ends;

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use step_runner_model::{CallId, JobKey, LogChannel, ProcessNumber, ResourceLimits, Unenforceable};
use step_runner_process::cgroup::Usage;

pub use ends::{Closed, StartPart, StepEnd, StepEnded};

/// Version of this protocol and of the records that a keeper holds; raised when the format of either changes. A daemon
/// does not start while a keeper of another version lives. That keeper ends its jobs if no daemon of its own version
/// comes.
pub const PROTOCOL_VERSION: u32 = 13;

/// Largest frame in bytes: the largest request of a client (32 MiB) as a record, with its values once more.
pub const MAX_FRAME: usize = 80 << 20;

/// A frame of the daemon.
#[derive(Serialize, Deserialize)]
pub struct ToKeeper {
    /// Chosen by the daemon, unique in the connection; 0 = no reply wanted.
    pub id: u64,
    /// The request.
    pub request: Request,
}

/// A request of the daemon. No `Debug`: requests hold environments and phrases.
#[derive(Serialize, Deserialize)]
pub enum Request {
    /// First frame of a connection; repeated when settings were read again. Reply: [`Reply::Hello`]. If the versions
    /// differ, settings stay as they are, and any other request closes the connection.
    Hello {
        /// The daemon's [`PROTOCOL_VERSION`].
        version: u32,
        /// Settings in force from now on.
        settings: KeeperSettings,
        /// Key for digests of requests; the first one a keeper hears stays in force.
        digest_key: [u8; 16],
    },
    /// Take a job: open its log, keep its record. Reply: [`Reply::Registered`].
    Register(Box<RegisterJob>),
    /// Append an event to the job's record. Ignored if `seq` is below the number of events held.
    Record {
        /// The job.
        key: JobKey,
        /// Number of events before this one.
        seq: u32,
        /// The event, encoded by `job::record`.
        event: Vec<u8>,
    },
    /// Add phrases to the job's masking; the reply ([`Reply::Done`]) comes when every source uses them (masking.md §7).
    Phrases {
        /// The job.
        key: JobKey,
        /// See the module's text.
        op: u32,
        /// The phrases.
        phrases: Vec<Vec<u8>>,
    },
    /// Write a line of the daemon's own, masked, to the log (logs.md §2).
    Line {
        /// The job.
        key: JobKey,
        /// See the module's text.
        op: u32,
        /// `00O` or `00E`.
        kind: LogChannel,
        /// Text; it becomes one line after it was masked.
        text: String,
    },
    /// Keep the length of the log as the place of an event. Reply: [`Reply::Length`], the same for a repeated request.
    Place {
        /// The job.
        key: JobKey,
        /// See the module's text.
        op: u32,
    },
    /// Start a step. [`FromKeeper::StepEnded`] reports the result, also if it could not start.
    Spawn(Box<SpawnStep>),
    /// Stop a step (flow.md §3.1): send SIGTERM and SIGCONT to its group, and after `grace` SIGKILL to everything in its
    /// place. If repeated with a shorter grace, the shorter one counts.
    Stop {
        /// The job.
        key: JobKey,
        /// Its process.
        process: ProcessNumber,
        /// Time until SIGKILL, counted from the first request to stop the step.
        grace: Duration,
    },
    /// End the processes that steps have left (flow.md §4): SIGTERM, and SIGKILL after `grace`. Answered by
    /// [`FromKeeper::Cleared`], unless the job is ended meanwhile.
    Clear {
        /// The job.
        key: JobKey,
        /// The call that waits for it.
        call: CallId,
        /// The processes of the steps that have left them.
        processes: Vec<ProcessNumber>,
        /// Time until SIGKILL.
        grace: Duration,
    },
    /// Write the processes of running steps to the log, as a tree (flow.md §4). It has no `op`, because the stop behind it
    /// waits for no earlier request.
    ShowProcesses {
        /// The job.
        key: JobKey,
        /// Number of the attempt whose limit has passed. Ignored if its tree was asked for before.
        attempt: ProcessNumber,
        /// The processes of the steps.
        processes: Vec<ProcessNumber>,
    },
    /// Last request of a job (service.md §6.1, "Job", 2–5): end what it left running, flush, write `lines`, close the
    /// log. Answered by [`FromKeeper::Closed`].
    Close {
        /// The job.
        key: JobKey,
        /// See the module's text.
        op: u32,
        /// Grace for left-over processes; a Stop's own deadline wins.
        leftover_grace: Duration,
        /// The daemon's last lines.
        lines: Vec<(LogChannel, String)>,
    },
    /// Forget a job. Living processes of it are killed.
    Drop {
        /// The job.
        key: JobKey,
    },
    /// Report everything about a registered job except its record. Reply: [`Reply::Resumed`].
    Resume {
        /// The job.
        key: JobKey,
    },
    /// Read the job's record as a stream: each event is its length, a little-endian `u32`, and its bytes. Reply:
    /// [`Reply::Piece`].
    ReadRecord {
        /// The job.
        key: JobKey,
        /// Offset in the stream to begin at.
        offset: u64,
    },
    /// From now on report the job's unfinished lines as [`FromKeeper::Unfinished`]: a follower wants to see them.
    WatchUnfinished {
        /// The job.
        key: JobKey,
    },
    /// Read what jobs have used so far. Reply: [`Reply::Usages`].
    ReadUsages {
        /// The jobs; those that are not registered are left out of the reply.
        keys: Vec<JobKey>,
    },
    /// Keep a finished id's digest for later daemons (service.md §3.1, Run after Finish).
    Remember(Remembered),
    /// The daemon stops gracefully: kill remaining processes, remove keeper.sock, exit.
    Bye,
}

impl Request {
    /// Returns the question of a daemon that watches its keeper: any answer is a sign of life.
    pub const fn sign_of_life() -> Self {
        Self::ReadUsages { keys: Vec::new() }
    }

    /// True if this is [`Self::sign_of_life`], which comes every second and is no work.
    pub(crate) const fn is_sign_of_life(&self) -> bool {
        matches!(self, Self::ReadUsages { keys } if keys.is_empty())
    }
}

/// Settings that a daemon hands on (service.md §6).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeeperSettings {
    /// Time to go on without a daemon.
    pub keeper_wait: Duration,
    /// Time to wait for processes after SIGKILL.
    pub kill_wait: Duration,
    /// Grace for all processes when no daemon came back.
    pub cancel_grace: Duration,
    /// True if processes that a step leaves live to the job's end; else they are killed.
    pub leftover_keep: bool,
    /// Most ids to remember.
    pub max_remembered: u32,
    /// Remembered ids are dropped after this time.
    pub remember_for: Duration,
    /// True if the state folder is this daemon's alone (`run`): a keeper that ends without a daemon removes it.
    pub remove_state: bool,
}

/// A job to take. Values in here may be secrets: the keeper keeps them in memory only.
#[derive(Serialize, Deserialize)]
pub struct RegisterJob {
    /// The job; its folder is `jobs/KEY` of the state folder and exists.
    pub key: JobKey,
    /// 128-bit tag, the value of `STEP_RUNNER_JOB` in every process of the job (service.md §6.5).
    pub tag: u128,
    /// First event of the record.
    pub record: Vec<u8>,
    /// A few hundred bytes that a later daemon reads before the record (see `actors::admission`).
    pub brief: Vec<u8>,
    /// Phrases, unprepared.
    pub phrases: Vec<Vec<u8>>,
    /// Token prefixes without the defaults.
    pub token_prefixes: Vec<String>,
    /// True to mask encoded forms of phrases (setting `mask_forms`).
    pub mask_forms: bool,
    /// True to mask by the default token prefixes (setting `default_token_prefixes`).
    pub default_prefixes: bool,
    /// Length of the log that followers may have seen: 0 for a new job, more for one that a dead keeper held. Nobody
    /// has seen the bytes behind it.
    pub log_len: u64,
    /// `log_limit` in bytes (logs.md §6).
    pub log_limit: u64,
    /// Limits of the job. The keeper has said that it can enforce all of them.
    pub limits: ResourceLimits,
    /// Files to remove when no daemon comes back: file variables.
    pub secret_files: Vec<PathBuf>,
}

/// A step to start.
#[derive(Serialize, Deserialize)]
pub struct SpawnStep {
    /// The job.
    pub key: JobKey,
    /// Number of the process, counted by the job's machine. A process that was asked for before is not started again.
    pub process: ProcessNumber,
    /// Number of the stream that it writes, 1 to 14 (flow.md §5).
    pub slot: u8,
    /// Name for the line about left-over processes.
    pub name: String,
    /// Executable, already looked up; a path.
    pub program: PathBuf,
    /// All arguments, the first included, without NUL.
    pub argv: Vec<String>,
    /// `NAME=VALUE` entries: the whole environment, the tag and the socket included.
    pub env: Vec<Vec<u8>>,
    /// Working directory.
    pub work_dir: PathBuf,
    /// True if a follower wants to see unfinished lines ([`Request::WatchUnfinished`]).
    pub watch_unfinished: bool,
    /// Set if exit code 0 ends the job: the keeper then closes it, without lines, as if [`Request::Close`] had come
    /// with this grace. It does not if an end of the job was requested before.
    pub closes: Option<Duration>,
}

/// A finished id and the digest of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remembered {
    /// The id's key.
    pub key: JobKey,
    /// Keyed digest of the request.
    pub digest: [u8; 16],
    /// When it was finished, microseconds since the epoch.
    pub at: i64,
}

/// A frame of the keeper.
#[derive(Debug, Serialize, Deserialize)]
pub enum FromKeeper {
    /// Answer to the request with this id.
    Reply {
        /// The request's id.
        id: u64,
        /// Its result.
        reply: Result<Reply, KeeperError>,
    },
    /// Logs that grew, with their lengths; at most one per job every few milliseconds.
    Lengths(Vec<(JobKey, u64)>),
    /// A step has ended: its process has, and its pipes were drained or the time for that has passed (service.md §6.1,
    /// "Step").
    StepEnded {
        /// The job.
        key: JobKey,
        /// The report.
        ended: StepEnded,
    },
    /// Nothing is left of what [`Request::Clear`] was to end, or it cannot be killed.
    Cleared {
        /// The job.
        key: JobKey,
        /// The call that waits for it.
        call: CallId,
    },
    /// A line for the operator's log, without secrets.
    Notice(String),
    /// The job's log is closed, and no process of the job is left except `unkilled`.
    Closed {
        /// The job.
        key: JobKey,
        /// The report.
        closed: Closed,
    },
    /// The disk refuses the log of a job, or takes it again.
    Storage {
        /// The job.
        key: JobKey,
        /// The present state.
        storage: LogStorage,
    },
    /// The last line of a step's output is unfinished, or the unfinished line reported before has ended. Unfinished
    /// lines of a source are reported at most once every [`super::UNFINISHED_EVERY`].
    Unfinished {
        /// The job.
        key: JobKey,
        /// Number of the stream of the line.
        slot: u8,
        /// Channel of the line.
        channel: LogChannel,
        /// Length of the log before the line.
        log_len: u64,
        /// The masked entry so far (logs.md §1), without a line feed; empty if the line has ended.
        entry: SecretBytes,
    },
}

/// State of the disk for the log of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum LogStorage {
    /// The disk takes all bytes.
    #[default]
    Fine,
    /// The disk refuses: the job's output waits in its pipes.
    Waiting {
        /// The system's error number.
        errno: i32,
    },
    /// The disk has refused for long: output is dropped.
    Dropping {
        /// The system's error number.
        errno: i32,
    },
}

/// A successful reply.
#[derive(Debug, Serialize, Deserialize)]
pub enum Reply {
    /// To [`Request::Hello`].
    Hello {
        /// The keeper's [`PROTOCOL_VERSION`].
        version: u32,
        /// Its process id.
        pid: u32,
        /// Directory of its control group; `None`: reapers hold the processes of jobs together.
        cgroup: Option<PathBuf>,
        /// Jobs it holds.
        jobs: Vec<JobKey>,
        /// Finished ids it remembers.
        remembered: Vec<Remembered>,
        /// Key for digests of requests, in force as long as this keeper lives.
        digest_key: [u8; 16],
        /// Limits that it cannot enforce.
        unenforceable: Vec<Unenforceable>,
    },
    /// To [`Request::Register`].
    Registered {
        /// Inode of the log file, so that a reader knows it reads the right one.
        log_inode: u64,
        /// Its length.
        log_len: u64,
    },
    /// To [`Request::Resume`].
    Resumed(Box<RegisteredJob>),
    /// To [`Request::ReadRecord`]: a piece of the stream, at most 1 MiB; empty at its end.
    Piece(SecretBytes),
    /// To [`Request::ReadUsages`].
    Usages(Vec<(JobKey, Usage)>),
    /// To [`Request::Place`].
    Length(u64),
    /// To everything else.
    Done,
}

/// All the keeper knows about a job except its record.
#[derive(Debug, Serialize, Deserialize)]
pub struct RegisteredJob {
    /// The tag of [`RegisterJob`].
    pub tag: u128,
    /// The brief of [`RegisterJob`].
    pub brief: SecretBytes,
    /// Events in the record, the first one included.
    pub events: u32,
    /// Length of the record as a stream.
    pub record_len: u64,
    /// Largest `op` done; 0 = none.
    pub last_op: u32,
    /// Answers to [`Request::Place`] by `op`.
    pub places: Vec<(u32, u64)>,
    /// Steps that have ended, in order.
    pub ended: Vec<StepEnded>,
    /// Processes that were asked for and have not ended.
    pub running: Vec<ProcessNumber>,
    /// Set if the log is closed.
    pub closed: Option<Closed>,
    /// Inode of the log file.
    pub log_inode: u64,
    /// Its length.
    pub log_len: u64,
}

/// Bytes that may hold secrets of a request. `Debug` shows only their number.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct SecretBytes(pub Vec<u8>);

impl std::fmt::Debug for SecretBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "[{} bytes]", self.0.len())
    }
}

/// Serialises the bytes as one block, because a mebibyte takes milliseconds byte by byte.
impl Serialize for SecretBytes {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for SecretBytes {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Block;
        impl serde::de::Visitor<'_> for Block {
            type Value = SecretBytes;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<SecretBytes, E> {
                Ok(SecretBytes(bytes.to_vec()))
            }
        }
        from.deserialize_byte_buf(Block)
    }
}

/// Failure of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum KeeperError {
    /// No job is registered by this key.
    #[error("the keeper does not hold this job")]
    UnknownJob,
    /// The log could not be opened.
    #[error("cannot open the job's log: {message}")]
    Log {
        /// The system's error number.
        errno: i32,
        /// Its text.
        message: String,
    },
    /// The phrases exceed a limit of masking.md §8.
    #[error("masking: {0}")]
    Masking(String),
}
