//! The daemon's settings and services that every job uses.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use parking_lot::RwLock;

use super::left_over::LeftOvers;
use super::sync_group::SyncGroup;
use crate::config::Config;
use crate::fetch::Fetcher;
use crate::lang::ast::flow::MEMBERS_AT_A_TIME;
use crate::model::JobId;
use crate::variables::{Base, LogLevel};

/// The daemon's settings and services that every request uses.
pub(super) struct DaemonContext {
    /// Replaced on SIGHUP.
    config: RwLock<Arc<Config>>,
    pub(super) base: Base,
    /// `base` in the machine's form, shared by all jobs.
    base_env: Arc<Vec<(Vec<u8>, Vec<u8>)>>,
    /// Log level in `base_env` (layer 2).
    log_level: LogLevel,
    /// Path of the socket as steps see it.
    pub(super) socket: Arc<Path>,
    pub(super) daemon_path: Option<Arc<OsStr>>,
    /// Working directory of the daemon if its path is UTF-8. Jobs of the compatible service that name none run there.
    pub(super) work_dir: Option<String>,
    pub(super) fetcher: Arc<Fetcher>,
    /// With `durability = power`: brings all data to the disk before it is shown.
    pub(super) sync_group: Option<Arc<SyncGroup>>,
    /// Left-overs of jobs that could not be removed.
    pub(super) left_over: LeftOvers,
    /// Number of processors that the daemon may use. Read once: each look reads files of control groups.
    processors: u64,
}

impl DaemonContext {
    pub(super) fn new(
        config: Arc<Config>,
        base: Base,
        socket: Arc<Path>,
        daemon_path: Option<OsString>,
        fetcher: Arc<Fetcher>,
        sync_group: Option<Arc<SyncGroup>>,
    ) -> Self {
        let log_level =
            base.get(LogLevel::VARIABLE).and_then(|level| LogLevel::parse(&level)).unwrap_or_default();
        let base_env = Arc::new(with_log_level(&base, log_level));
        Self {
            config: RwLock::new(config),
            base,
            base_env,
            log_level,
            socket,
            daemon_path: daemon_path.map(Arc::from),
            work_dir: std::env::current_dir().ok().and_then(|dir| dir.into_os_string().into_string().ok()),
            fetcher,
            sync_group,
            left_over: LeftOvers::default(),
            processors: std::thread::available_parallelism().map_or(1, usize::from) as u64,
        }
    }

    pub(super) fn config(&self) -> Arc<Config> {
        Arc::clone(&self.config.read())
    }

    pub(super) fn set_config(&self, config: Config) {
        *self.config.write() = Arc::new(config);
    }

    /// Directory of file variables for a job of the compatible service whose request names none (service.md §4.1).
    pub(super) fn vars_dir(&self, id: &JobId) -> String {
        let temp_dir = self.base.get("TMPDIR").filter(|dir| dir.starts_with('/'));
        format!("{}/step-runner-output-{id}", temp_dir.as_deref().unwrap_or("/tmp").trim_end_matches('/'))
    }

    /// Returns layers 1 and 2 of a job's environment.
    pub(super) fn base_env(&self, log_level: LogLevel) -> Arc<Vec<(Vec<u8>, Vec<u8>)>> {
        if log_level == self.log_level {
            return Arc::clone(&self.base_env);
        }
        Arc::new(with_log_level(&self.base, log_level))
    }

    /// Returns how many members of a group run at the same time by default: as many as the job has processors, at least 2,
    /// at most what a job has streams for (flow.md §5).
    pub(super) fn members_at_a_time(&self, cpu_micros: Option<u64>) -> u8 {
        let here = self.processors;
        let of_job = cpu_micros.map_or(here, |micros| micros.div_ceil(1_000_000).min(here));
        of_job.clamp(2, u64::from(MEMBERS_AT_A_TIME)) as u8
    }
}

fn with_log_level(base: &Base, level: LogLevel) -> Vec<(Vec<u8>, Vec<u8>)> {
    let entry = |(name, value): (&OsStr, &OsStr)| (name.as_bytes().to_vec(), value.as_bytes().to_vec());
    let mut entries: Vec<_> =
        base.iter().filter(|(name, _)| *name != LogLevel::VARIABLE).map(entry).collect();
    entries.push((LogLevel::VARIABLE.into(), level.as_str().into()));
    entries
}
