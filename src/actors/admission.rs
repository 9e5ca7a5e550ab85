//! From a checked request to a job that can be registered: variables, masking, the machine (service.md §3.1).
//!
//! Nothing here touches the disk or an actor; a request that fails here leaves nothing behind.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use parking_lot::RwLock;
use serde::{Deserialize, Serialize};

use super::handle::RunRequest;
use super::limits::JobLimits;
use super::redact::JobMasking;
use super::sync_group::SyncGroup;
use crate::config::Config;
use crate::fetch::Fetcher;
use crate::job::event::{Event, JobSpec};
use crate::job::machine::Machine;
use crate::job::record;
use crate::lang::diagnostic::{Diagnostic, Severity};
use crate::lang::value::Value;
use crate::log::mask::{Masker, PhraseSet};
use crate::model::{JobId, Reason, Refusal};
use crate::process::limiter::refused_value;
use crate::queue;
use crate::store::{JobFolder, Origin};
use crate::variables::{self, Base, FileVariable, LogLevel, Service, VariableError};

/// Most findings in one answer (service.md §3.1).
const MAX_FINDINGS: usize = 20;

/// What a daemon has to offer to every request.
pub(super) struct Surroundings {
    /// Changes with SIGHUP.
    config: RwLock<Arc<Config>>,
    pub(super) base: Base,
    /// `base` as the machine takes it, shared by all jobs.
    base_env: Arc<Vec<(Vec<u8>, Vec<u8>)>>,
    /// Layer 2 in `base_env`.
    log_level: LogLevel,
    /// The socket as steps see it.
    pub(super) socket: Arc<Path>,
    /// `PATH` of the daemon.
    pub(super) daemon_path: Option<OsString>,
    /// What finds functions.
    pub(super) fetcher: Arc<Fetcher>,
    /// With `durability = power`: what brings everything to the disk before it is shown.
    pub(super) sync_group: Option<Arc<SyncGroup>>,
}

impl Surroundings {
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
            daemon_path,
            fetcher,
            sync_group,
        }
    }

    /// Settings in force now.
    pub(super) fn config(&self) -> Arc<Config> {
        Arc::clone(&self.config.read())
    }

    /// Other settings from now on.
    pub(super) fn set_config(&self, config: Config) {
        *self.config.write() = Arc::new(config);
    }

    /// Layers 1 and 2 for a job.
    fn base_env(&self, log_level: LogLevel) -> Arc<Vec<(Vec<u8>, Vec<u8>)>> {
        if log_level == self.log_level {
            return Arc::clone(&self.base_env);
        }
        Arc::new(with_log_level(&self.base, log_level))
    }
}

fn with_log_level(base: &Base, level: LogLevel) -> Vec<(Vec<u8>, Vec<u8>)> {
    let entry = |(name, value): (&OsStr, &OsStr)| (name.as_bytes().to_vec(), value.as_bytes().to_vec());
    let mut entries: Vec<_> =
        base.iter().filter(|(name, _)| *name != LogLevel::VARIABLE).map(entry).collect();
    entries.push((LogLevel::VARIABLE.into(), level.as_str().into()));
    entries
}

/// What the shell must know of a job besides its machine; kept by the keeper, so that the next daemon knows it too.
/// Holds secrets, so it has no `Debug`.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct ShellSpec {
    pub(super) id: String,
    pub(super) digest: [u8; 32],
    pub(super) registered: i64,
    pub(super) origin: Origin,
    pub(super) phrases: Vec<Vec<u8>>,
    pub(super) token_prefixes: Vec<String>,
    pub(super) masking: JobMasking,
    /// Setting `log_limit` when it was registered, bytes.
    pub(super) log_limit: u64,
    pub(super) files: Vec<FileVariable>,
    pub(super) timeout: Option<std::time::Duration>,
    /// The working directory is a folder of the job's own.
    pub(super) own_work_dir: bool,
    pub(super) work_dir: String,
    pub(super) file_base: Option<String>,
    pub(super) share: Share,
    pub(super) limits: JobLimits,
}

/// What a job's turn depends on (queue.md §3).
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Share {
    pub(super) key: queue::Key,
    pub(super) number: Option<u64>,
    /// Length of the request.
    pub(super) bytes: u64,
}

impl Share {
    fn new(variables: &variables::Request, ci_job: &str, size: usize) -> Self {
        let variables = variables.job.as_ref().map_or(&[][..], |job| &job.variables);
        // Of several entries of a name the last one counts.
        let value =
            |key| variables.iter().rev().find(|variable| variable.key == key).map(|v| v.value.as_str());
        let key = queue::Key::new(
            value("CI_SERVER_URL").unwrap_or_default(),
            value("CI_PROJECT_ID").unwrap_or_default(),
        );
        let number = queue::number(value("CI_JOB_ID").unwrap_or(ci_job));
        Self { key, number, bytes: size as u64 }
    }
}

/// First byte of every record. Raised whenever [`RecordHead`] or what follows it changes its shape, and the protocol's version
/// together with it (see [`record::FORMAT`]).
pub(super) const HEAD_FORMAT: u8 = 2;

/// First part of every record.
#[derive(Serialize, Deserialize)]
struct RecordHead {
    shell: ShellSpec,
    accepted: Vec<u8>,
}

/// A request that can be registered.
pub(super) struct Prepared {
    pub(super) id: JobId,
    pub(super) folder: JobFolder,
    pub(super) labels: (String, String),
    pub(super) shell: ShellSpec,
    pub(super) phrase_set: PhraseSet,
    pub(super) machine: Machine,
    /// First part of the record.
    pub(super) head: Vec<u8>,
}

/// Checks everything about a request that can be checked without the disk.
pub(super) fn prepare(
    request: RunRequest,
    around: &Surroundings,
    folder: JobFolder,
    registered: i64,
) -> Result<Prepared, Refusal> {
    let RunRequest {
        id,
        digest,
        size,
        origin,
        labels,
        variables,
        steps,
        file,
        inputs,
        timeout,
        cancel_grace,
        limits,
    } = request;
    if let Some((limit, why)) =
        limits.names().find_map(|name| Some((name, refused_value(name, limits.get(name)?)?)))
    {
        return Err(Refusal::new(
            Reason::LimitUnavailable,
            format!("limit {limit} cannot be enforced: {why}"),
        ));
    }
    let share = Share::new(&variables, &labels.0, size);
    let own = |name| folder.path(name).to_string_lossy().into_owned();
    let vars = variables::prepare(&variables, rules(origin), &around.base, &own("vars"))
        .map_err(|e| variable_refusal(&e))?;
    let config = around.config();
    let masking = JobMasking::new(&config);
    // The keeper prepares the same phrases and writes the warnings about them to the job's log.
    let (phrase_set, _warnings) = PhraseSet::prepare(&vars.phrases, &vars.token_prefixes, &masking.config())
        .map_err(|e| Refusal::new(Reason::TooLarge, e.to_string()))?;
    let own_work_dir = vars.work_dir.is_none();
    let work_dir = vars.work_dir.unwrap_or_else(|| own("work"));
    let spec = JobSpec {
        id: id.to_string(),
        steps,
        file: file.clone(),
        inputs,
        vars: vars
            .vars
            .into_iter()
            .map(|(name, text)| {
                let sensitive = vars.sensitive.contains(&name);
                (name, Value { sensitive, ..Value::text(text) })
            })
            .collect(),
        base_env: around.base_env(vars.log_level),
        env: vars.env,
        work_dir: work_dir.clone(),
        tmp_dir: own("tmp"),
        timeout,
        cancel_grace,
        default_grace: config.cancel_grace,
    };
    let machine = Machine::new(&spec).map_err(|findings| malformed(&findings, &phrase_set))?;
    let accepted = record::encode(&Event::Accepted(Box::new(spec))).map_err(defect)?;
    let shell = ShellSpec {
        id: id.to_string(),
        digest,
        registered,
        origin,
        phrases: vars.phrases,
        token_prefixes: vars.token_prefixes,
        masking,
        log_limit: config.log_limit.0,
        files: vars.files,
        timeout,
        own_work_dir,
        work_dir,
        file_base: file,
        share,
        limits: JobLimits::new(limits, &config),
    };
    let head = RecordHead { shell: shell.clone(), accepted };
    let head = postcard::to_extend(&head, vec![HEAD_FORMAT]).map_err(defect)?;
    Ok(Prepared { id, folder, labels, shell, phrase_set, machine, head })
}

/// Rules for variables of a request that came through this service (variables.md §1).
const fn rules(origin: Origin) -> Service {
    match origin {
        Origin::V1 | Origin::V0 => Service::V1,
        Origin::Proto => Service::Proto,
    }
}

/// Completes a record's first part with the job's place in the queue, which is known last.
pub(super) fn seal(head: &mut Vec<u8>, place: &queue::Place) -> Result<(), Refusal> {
    head.extend(postcard::to_stdvec(place).map_err(defect)?);
    Ok(())
}

/// What a record's first part holds.
pub(super) struct Head {
    pub(super) shell: ShellSpec,
    pub(super) accepted: Event,
    pub(super) place: queue::Place,
}

/// Reads a record's first part; `None` if it is not one.
pub(super) fn read_head(head: &[u8]) -> Option<Head> {
    let head = head.strip_prefix(&[HEAD_FORMAT])?;
    let (RecordHead { shell, accepted }, place) = postcard::take_from_bytes(head).ok()?;
    let accepted = record::decode(&accepted).ok()?;
    Some(Head { shell, accepted, place: postcard::from_bytes(place).ok()? })
}

fn defect(error: impl std::fmt::Display) -> Refusal {
    Refusal::new(Reason::Internal, error.to_string())
}

fn variable_refusal(error: &VariableError) -> Refusal {
    Refusal::new(error.reason(), error.to_string())
}

/// Names of the steps may hold what the request itself wants hidden (masking.md §7).
fn malformed(findings: &[Diagnostic], phrases: &PhraseSet) -> Refusal {
    let errors: Vec<_> = findings.iter().filter(|f| f.severity == Severity::Error).collect();
    let mut text: Vec<_> = errors.iter().take(MAX_FINDINGS).map(ToString::to_string).collect();
    if errors.len() > MAX_FINDINGS {
        text.push(format!("and {} more", errors.len() - MAX_FINDINGS));
    }
    Refusal::new(Reason::MalformedSteps, Masker::compile(phrases).mask_str(&text.join("\n")))
}
