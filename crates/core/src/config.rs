//! Checked settings of the daemon (cli.md, "serve: settings").
//!
//! Each setting is declared once, in the table below: name, type, default, rule, documentation. The table yields the
//! fields of [`Config`], the options and environment variables (`cli` reads [`SETTINGS`]), the keys of the settings
//! file, and `--print-config`. This module is pure: callers pass files and the environment in as [`Layers`].

#[macro_use]
mod table;
mod load;
mod value;

use std::path::PathBuf;
use std::time::Duration;

pub use load::{ConfigErrors, Layers, Loaded, misspelt_variables};
pub use table::Setting;
pub use value::{
    Bytes, CgroupUse, Durability, JobLogFormat, Leftover, Limit, LogFormat, Mode, OnStop, OperatorLevel,
    QueuePolicy, Reflection, SettingValue, TomlType,
};

pub use crate::variables::EnvBase;

/// Largest log of a job. Every position in it must fit the int32 of the canonical service (service.md §3.2).
const MAX_LOG: u64 = 2_147_000_000;

/// Smallest log of a job. The 4 KiB reserved for the daemon's own lines must be a small part of it (logs.md §6).
const MIN_LOG: u64 = 64 << 10;

/// Longest cleanup after a stop (flow.md §9).
pub const MAX_CLEANUP: Duration = Duration::from_hours(24);

settings! {
    /// Socket to listen on; by default `step-runner.sock` in the temporary directory (service.md §1).
    socket: Option<PathBuf> = None;
    /// Permissions of the socket, octal. Peers are checked besides (connectors.md §2.1).
    socket_mode: Mode = Mode(0o600), "at most 0666" if |mode| mode.0 <= 0o666;
    /// User ids that may connect besides the daemon's own and root (service.md §1).
    allow_uids: Vec<u32> = Vec::new();
    /// Folder for jobs' records and logs; by default `SOCKET.state` if a socket is named, else
    /// `$XDG_STATE_HOME/step-runner`, else `$TMPDIR/step-runner-UID` (service.md §6.6).
    state_dir: Option<PathBuf> = None;
    /// Space to keep free on the state folder's file system: with less, new jobs are refused (service.md §3.7).
    state_limit: Bytes = Bytes(64 << 20);
    /// Room for fetched functions; those not used for longest are removed, none while a job uses it (language.md §7.7).
    cache_limit: Bytes = Bytes(2 << 30);
    /// What must survive: a crash of the daemon, or a power cut too, which costs syncs (service.md §6.6).
    durability: Durability = Durability::Crash;
    /// Connections at once, as far as descriptors allow; at the limit the oldest without a call is dropped
    /// (service.md §1.1).
    max_connections: u64 = 4_096, "at least 1" if |n| *n >= 1;
    /// Followers of one job at once (service.md §3.7).
    max_followers: u64 = 1_024, "at least 1" if |n| *n >= 1;
    /// Registered jobs of all states (service.md §3.7).
    max_jobs: u64 = 10_000, "at least 1" if |n| *n >= 1;
    /// Jobs running at once; 0: no limit (queue.md §2).
    max_running: u64 = 0;
    /// Requests of running jobs together; a running job takes about three times its request in memory (queue.md §2).
    max_running_bytes: Bytes = Bytes(128 << 20);
    /// Waiting jobs; 0: none may wait, `none`: no limit (queue.md §2).
    max_queued: Limit = Limit(Some(1_000));
    /// Waiting requests together, as received (queue.md §2).
    max_queued_bytes: Bytes = Bytes(64 << 20);
    /// Which waiting job starts next: the first, or one of the project that has the fewest running (queue.md §4).
    queue_policy: QueuePolicy = QueuePolicy::Fair;
    /// Jobs of one project running at once; `none`: no limit (queue.md §2).
    max_running_per_project: Limit = Limit(None), "at least 1, or `none`" if |limit| limit.0 != Some(0);
    /// Longest log of a job; later output is dropped with a mark (logs.md §6).
    log_limit: Bytes = Bytes(1 << 30), "65536 (64KiB) to 2147000000 (about 2GiB)" if |size| (MIN_LOG..=MAX_LOG).contains(&size.0);
    /// Ended jobs that no client finished are removed after this time; 0: never (service.md §6.3).
    stale_after: Duration = Duration::from_hours(1);
    /// After a restart no job is stale before this time, so that a client can come back (service.md §6.3).
    stale_floor: Duration = Duration::from_mins(10);
    /// Jobs are cancelled after running for this time; 0: never (service.md §6.3).
    runaway_after: Duration = Duration::from_hours(24);
    /// Jobs are cancelled after this time without a byte of output; 0: never (service.md §6.3).
    silent_after: Duration = Duration::from_hours(6);
    /// Waiting jobs are cancelled after this time; 0: never (service.md §6.3).
    queued_after: Duration = Duration::from_hours(24);
    /// How often the rules above are applied (service.md §6.3).
    reap_interval: Duration = Duration::from_secs(30), "at least 1s" if |time| *time >= Duration::from_secs(1);
    /// A repeated Run of a finished id is recognised for this time; 0: not at all (service.md §3.1).
    remember_finished: Duration = Duration::from_hours(1);
    /// Time between SIGTERM and SIGKILL when a job is cancelled (service.md §6.2).
    cancel_grace: Duration = Duration::from_secs(5);
    /// Time for the later steps with `when: always` after a stop of a job (flow.md §3.1).
    cleanup_timeout: Duration = Duration::from_mins(1), "more than 0, at most 24h" if |time| !time.is_zero() && *time <= MAX_CLEANUP;
    /// What a step leaves running: kept to the end of the job, or killed with the step (service.md §6.1).
    leftover: Leftover = Leftover::Keep;
    /// Time between SIGTERM and SIGKILL for what is left at the end of a job (service.md §6.1).
    leftover_grace: Duration = Duration::from_secs(1);
    /// How long to wait for processes after SIGKILL (service.md §6.2).
    kill_wait: Duration = Duration::from_secs(2);
    /// How long jobs go on without a daemon; 0: they end at once (service.md §6.4).
    keeper_wait: Duration = Duration::from_mins(10);
    /// What SIGTERM does to jobs: cancel them, or wait for them first (service.md §6.4).
    on_stop: OnStop = OnStop::Cancel;
    /// How long `on_stop = "drain"` waits (service.md §6.4).
    drain_timeout: Duration = Duration::from_hours(1);
    /// Time for jobs to end after the cancel of a stop: a container's usual 10 s must suffice (connectors.md §2.1).
    shutdown_grace: Duration = Duration::from_secs(5);
    /// End after this time without job and call; 0: never (service.md §1.2).
    idle_timeout: Duration = Duration::ZERO;
    /// End after this time as on SIGTERM; 0: never (service.md §1.2).
    max_lifetime: Duration = Duration::ZERO;
    /// What steps get of the daemon's own environment (variables.md §7).
    env_base: EnvBase = EnvBase::All;
    /// Names passed on besides with `env_base = "list"` (variables.md §7).
    env_pass: Vec<String> = Vec::new(), "names without `=`" if |names| names.iter().all(|name| !name.contains('='));
    /// Hide encoded forms of secrets too: base64, percent, JSON, shell, Python, XML (masking.md §2).
    mask_forms: bool = true;
    /// Hide each longer text inside of a secret that is a JSON text (variables.md §5).
    mask_json_members: bool = false;
    /// Hide what follows the known token prefixes, such as `glpat-` (masking.md §3).
    default_token_prefixes: bool = true;
    /// Use of a cgroup per job: where possible, always (else the daemon does not start), never (service.md §6.5).
    cgroup: CgroupUse = CgroupUse::Auto;
    /// Processes and threads of one job at once; 0: no limit. The smaller of this and the request's holds
    /// (service.md §3.1).
    limit_processes: u64 = 0;
    /// Memory of one job, swap included; 0: no limit. Over it the kernel ends processes of the job (service.md §3.1).
    limit_memory: Bytes = Bytes(0);
    /// Processors of one job, also parts of one; 0: no limit (service.md §3.1).
    limit_cpus: f64 = 0.0, "0, or 0.01 and more" if |cpus| cpus.is_finite() && (*cpus == 0.0 || *cpus >= 0.01);
    /// Open files of one process; 0: no limit (service.md §3.1).
    limit_open_files: u64 = 0;
    /// Logs of jobs in the service for GitLab Runner: with headers, without, or by the Runner's version
    /// (service.md §4.2).
    job_log_format: JobLogFormat = JobLogFormat::Auto;
    /// Users that may read the definitions of the services by gRPC reflection: the daemon's own user and root, all who
    /// may call, or nobody (service.md §1).
    reflection: Reflection = Reflection::Owner;
    /// Least level of the daemon's own log; by default `info`, under `steps serve` `warn` (connectors.md §2.1).
    log_level: Option<OperatorLevel> = None;
    /// File for the daemon's own log; by default stderr (connectors.md §2.1).
    log_file: Option<PathBuf> = None;
    /// Format of the daemon's own log; the option also takes the values of `--job-log-format` (cli.md).
    log_format: LogFormat = LogFormat::Text;
}

/// Settings that a running daemon applies on SIGHUP. The others wait for its next start.
const LIVE: [&str; 29] = [
    "state_limit",
    "max_followers",
    "max_jobs",
    "max_running",
    "max_running_bytes",
    "max_queued",
    "max_queued_bytes",
    "queue_policy",
    "max_running_per_project",
    "log_limit",
    "stale_after",
    "stale_floor",
    "runaway_after",
    "silent_after",
    "queued_after",
    "cancel_grace",
    "cleanup_timeout",
    "leftover_grace",
    "limit_processes",
    "limit_memory",
    "limit_cpus",
    "limit_open_files",
    "on_stop",
    "drain_timeout",
    "shutdown_grace",
    "mask_forms",
    "mask_json_members",
    "default_token_prefixes",
    "job_log_format",
];

/// Outcome of reading the settings again.
#[derive(Debug)]
pub struct Reloaded {
    /// The settings in force now.
    pub config: Config,
    /// Names of changed settings that are in force.
    pub changed: Vec<&'static str>,
    /// Names of changed settings that wait for the next start.
    pub waiting: Vec<&'static str>,
}

impl Config {
    /// Returns the settings in force after reading `fresh` (cli.md §8).
    pub fn reloaded(&self, fresh: &Self) -> Reloaded {
        let mut config = self.clone();
        let (mut changed, mut waiting) = (Vec::new(), Vec::new());
        for setting in SETTINGS {
            let is_live = LIVE.contains(&setting.name);
            if is_live {
                (setting.take)(&mut config, fresh);
            }
            if setting.show(self) != setting.show(fresh) {
                if is_live { changed.push(setting.name) } else { waiting.push(setting.name) }
            }
        }
        Reloaded { config, changed, waiting }
    }
}

/// Returns the time limit of a rule; `None` for 0, which switches the rule off (service.md §6.3).
pub fn unless_zero(rule: Duration) -> Option<Duration> {
    (rule > Duration::ZERO).then_some(rule)
}

/// Longest duration of a setting. It keeps sums with clock readings far from overflow.
const MAX_DURATION: Duration = Duration::from_hours(100 * 365 * 24);

#[cfg(test)]
mod tests;
