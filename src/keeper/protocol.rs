//! What daemon and keeper say to each other over `keeper.sock`.
//!
//! A frame is a little-endian `u32` length and that many bytes of postcard: [`ToKeeper`] one way, [`FromKeeper`] the
//! other. The daemon's first frame is [`Request::Hello`]; anything else before it closes the connection. The newest
//! connection replaces an older one (the daemon's state lock makes sure there is one daemon).
//!
//! **Everything may be asked twice.** [`Request::Hold`] is idempotent by key, [`Request::Record`] by `seq`, and what a
//! job's machine causes (lines, phrases, spawns, the close) by `op`: a number that counts up within a job and is the
//! same when a later daemon replays the job. The keeper ignores an `op` it has already done, so nothing is spawned or
//! written twice. Requests of one connection are performed in order; a request with id 0 gets no reply.
//!
//! Ends of steps and jobs are *state*, not only messages: they are kept until [`Request::Drop`] and told again by
//! [`Request::Resume`], so a daemon that died between an exit and hearing of it loses nothing.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::{ExitStatus, JobKey, Kind, Limits, Shortage, Unenforceable};
use crate::process::cgroup::Usage;

/// Version of this protocol, and of the records that a keeper holds: raised with the format of either part of them, too.
/// Daemon and keeper speak no other: a daemon does not start while a keeper of another one lives, which ends its jobs by
/// itself when no daemon of its own version comes.
pub const PROTOCOL_VERSION: u32 = 3;

/// Largest frame in bytes: the largest request of a client (32 MiB) as a record, with its values once more.
pub const MAX_FRAME: usize = 80 << 20;

/// A frame of the daemon.
#[derive(Serialize, Deserialize)]
pub struct ToKeeper {
    /// Chosen by the daemon, unique in the connection; 0 = no reply wanted.
    pub id: u64,
    /// What to do.
    pub request: Request,
}

/// What a daemon asks for. No `Debug`: requests hold environments and phrases.
#[derive(Serialize, Deserialize)]
pub enum Request {
    /// First frame of a connection. Reply: [`Reply::Hello`], also when the versions differ: then nothing else follows, and
    /// nothing has changed.
    Hello {
        /// The daemon's [`PROTOCOL_VERSION`].
        version: u32,
        /// Settings in force from now on.
        settings: KeeperSettings,
        /// Key for digests of requests; the first one a keeper hears stays in force.
        digest_key: [u8; 16],
    },
    /// Take a job: open its log, keep its record. Reply: [`Reply::Held`].
    Hold(Box<HoldJob>),
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
        kind: Kind,
        /// Text; of several lines each becomes an entry.
        text: String,
    },
    /// Start a step. What comes of it is told by [`FromKeeper::StepOver`], also when it could not start.
    Spawn(Box<SpawnStep>),
    /// Cancel (service.md §6.2): SIGTERM and SIGCONT to the running step's group, after `grace` SIGKILL to it and to
    /// everything else of the job. Asked again with a shorter grace, the shorter one counts.
    Stop {
        /// The job.
        key: JobKey,
        /// Time between SIGTERM and SIGKILL, counted from the first Stop.
        grace: Duration,
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
        lines: Vec<(Kind, String)>,
    },
    /// Forget a job. Processes that still live are killed.
    Drop {
        /// The job.
        key: JobKey,
    },
    /// Tell all about a held job. Reply: [`Reply::Resumed`].
    Resume {
        /// The job.
        key: JobKey,
    },
    /// Keep a finished id's digest for later daemons (service.md §3.1, Run after Finish).
    Remember(Remembered),
    /// The daemon stops gracefully: kill what is left, remove keeper.sock, end.
    Bye,
}

/// Settings that a daemon hands on (service.md §6).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeeperSettings {
    /// How long to go on without a daemon.
    pub keeper_wait: Duration,
    /// How long to wait for processes after SIGKILL.
    pub kill_wait: Duration,
    /// Grace for everything when no daemon came back.
    pub cancel_grace: Duration,
    /// What happens to processes a step leaves behind: `true` = they live to the job's end.
    pub leftover_keep: bool,
    /// At most so many remembered ids.
    pub max_remembered: u32,
    /// Remembered ids are dropped after this time.
    pub remember_for: Duration,
    /// The state folder is this daemon's alone and is removed when the keeper ends without a daemon (`run`).
    pub remove_state: bool,
}

/// A job to take. Values in here may be secrets: the keeper keeps them in memory only.
#[derive(Serialize, Deserialize)]
pub struct HoldJob {
    /// The job; its folder is `jobs/KEY` of the state folder and exists.
    pub key: JobKey,
    /// 128-bit tag, the value of `STEP_RUNNER_JOB` in every process of the job (service.md §6.5).
    pub tag: u128,
    /// First event of the record.
    pub record: Vec<u8>,
    /// Phrases, unprepared.
    pub phrases: Vec<Vec<u8>>,
    /// Token prefixes without the defaults.
    pub token_prefixes: Vec<String>,
    /// Encoded forms of phrases on (setting `mask_forms`).
    pub mask_forms: bool,
    /// Default token prefixes on (setting `default_token_prefixes`).
    pub default_prefixes: bool,
    /// `log_limit` in bytes (logs.md §6).
    pub log_limit: u64,
    /// What the job may use; the keeper has said that it can hold it to all of them.
    pub limits: Limits,
    /// Files to remove when no daemon comes back: file variables.
    pub secret_files: Vec<PathBuf>,
}

/// A step to start.
#[derive(Serialize, Deserialize)]
pub struct SpawnStep {
    /// The job.
    pub key: JobKey,
    /// See the module's text.
    pub op: u32,
    /// Number of the step within the job, counted by its machine.
    pub step: u32,
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
}

/// A finished id and what was asked under it.
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
        /// What came of it.
        reply: Result<Reply, KeeperError>,
    },
    /// Logs that grew, with their lengths; at most one per job every few milliseconds.
    Lengths(Vec<(JobKey, u64)>),
    /// A step is over: its process ended and its pipes were drained as far as they are (service.md §6.1, "Step").
    StepOver {
        /// The job.
        key: JobKey,
        /// The step.
        over: StepOver,
    },
    /// For the operator's log; holds nothing secret.
    Notice(String),
    /// The job's log is closed and nothing of the job lives any more (but for `unkilled`).
    Closed {
        /// The job.
        key: JobKey,
        /// What to report.
        closed: Closed,
    },
}

/// Answers.
#[derive(Debug, Serialize, Deserialize)]
pub enum Reply {
    /// To [`Request::Hello`].
    Hello {
        /// The keeper's [`PROTOCOL_VERSION`].
        version: u32,
        /// Its process id.
        pid: u32,
        /// Directory of its control group; `None`: jobs are followed by their tags.
        cgroup: Option<PathBuf>,
        /// Jobs it holds.
        jobs: Vec<JobKey>,
        /// Finished ids it remembers.
        remembered: Vec<Remembered>,
        /// Key for digests of requests, in force as long as this keeper lives.
        digest_key: [u8; 16],
        /// Limits that it cannot hold jobs to.
        unenforceable: Vec<Unenforceable>,
    },
    /// To [`Request::Hold`].
    Held {
        /// Inode of the log file, so that a reader knows it reads the right one.
        log_inode: u64,
        /// Its length.
        log_len: u64,
    },
    /// To [`Request::Resume`].
    Resumed(Box<HeldJob>),
    /// To everything else.
    Done,
}

/// All the keeper knows about a job.
#[derive(Debug, Serialize, Deserialize)]
pub struct HeldJob {
    /// The tag of [`HoldJob`].
    pub tag: u128,
    /// All events of the record, the first one included.
    #[serde(with = "secret_bytes")]
    pub record: SecretBytes,
    /// Largest `op` done; 0 = none.
    pub last_op: u32,
    /// Steps that were started and are over, in order.
    pub over: Vec<StepOver>,
    /// Set if the log is closed.
    pub closed: Option<Closed>,
    /// Inode of the log file.
    pub log_inode: u64,
    /// Its length.
    pub log_len: u64,
}

/// Events of a record; they hold what the request held, so `Debug` shows only their number.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct SecretBytes(pub Vec<Vec<u8>>);

impl std::fmt::Debug for SecretBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "[{} events]", self.0.len())
    }
}

mod secret_bytes {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::SecretBytes;

    pub(super) fn serialize<S: Serializer>(bytes: &SecretBytes, to: S) -> Result<S::Ok, S::Error> {
        bytes.0.serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<SecretBytes, D::Error> {
        Vec::deserialize(from).map(SecretBytes)
    }
}

/// End of a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepOver {
    /// The step.
    pub step: u32,
    /// How its process ended, or why there was none.
    pub end: StepEnd,
    /// Processes it left running.
    pub left: u32,
    /// What ran short while it ran.
    pub shortage: Option<Shortage>,
    /// What the job has used so far.
    pub usage: Usage,
}

/// How a step's process ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StepEnd {
    /// It ran and ended.
    Exited(ExitStatus),
    /// It could not be started.
    NotStarted {
        /// What failed: `work_dir`, `exec`, `fork`, `pipe`, `cgroup`, `limits`, `arguments` (a NUL byte in one), or `cancelled`: an
        /// end of the job was asked for before.
        what: String,
        /// The system's error number.
        errno: i32,
    },
}

/// End of a job at the keeper.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Closed {
    /// Final length of the log.
    pub log_len: u64,
    /// Processes that could not be killed within `kill_wait`.
    pub unkilled: Vec<u32>,
    /// CPU time of all processes of the job, where the kernel told.
    pub cpu_time: Option<Duration>,
    /// Peak memory in bytes, where the kernel told.
    pub peak_memory: Option<u64>,
    /// The log could not be written to its end; its last state is kept (logs.md §6).
    pub log_damaged: bool,
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum KeeperError {
    /// The key is not held.
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
    /// Phrases over a limit of masking.md §8.
    #[error("masking: {0}")]
    Masking(String),
}
