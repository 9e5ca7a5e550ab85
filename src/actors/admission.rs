//! Preparation of a request: variables, masking and the machine of a job that can be registered (service.md §3.1).
//!
//! Nothing here touches the disk or an actor. A request that fails here leaves nothing behind.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use parking_lot::RwLock;
use serde::{Deserialize, Serialize};

use super::labels::MaskedLabels;
use super::left_over::LeftOvers;
use super::limits::JobLimits;
use super::redact::{JobMasking, Redactor};
use super::step::{Known, what_is_known};
use super::sync_group::SyncGroup;
use crate::config::Config;
use crate::fetch::Fetcher;
use crate::job::event::{Event, JobSpec};
use crate::job::machine::Machine;
use crate::job::record;
use crate::lang::ast::flow::MEMBERS_AT_A_TIME;
use crate::lang::diagnostic::{Diagnostic, Severity};
use crate::lang::document;
use crate::lang::value::Value;
use crate::log::mask::{Masker, PhraseSet};
use crate::model::{JobId, Reason, Refusal};
use crate::process::limiter::refused_value;
use crate::queue;
use crate::request::{RequestOrigin, Run, RunEnvironment};
use crate::store::{JobFolder, JobRecord};
use crate::threads::{self, Work};
use crate::variables::{self, Base, FileVariable, LogLevel, Service, VariableError};

/// Maximum number of findings in the details of an answer (service.md §3.1).
const MAX_FINDINGS: usize = 20;

/// Maximum number of findings in the text of an answer, which shares a header list with the details.
const MAX_FINDINGS_IN_TEXT: usize = 8;

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
    work_dir: Option<String>,
    pub(super) fetcher: Arc<Fetcher>,
    /// With `durability = power`: brings all data to the disk before it is shown.
    pub(super) sync_group: Option<Arc<SyncGroup>>,
    /// What could not be removed of jobs.
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
    fn vars_dir(&self, id: &JobId) -> String {
        let temp_dir = self.base.get("TMPDIR").filter(|dir| dir.starts_with('/'));
        format!("{}/step-runner-output-{id}", temp_dir.as_deref().unwrap_or("/tmp").trim_end_matches('/'))
    }

    /// Returns layers 1 and 2 of a job's environment.
    fn base_env(&self, log_level: LogLevel) -> Arc<Vec<(Vec<u8>, Vec<u8>)>> {
        if log_level == self.log_level {
            return Arc::clone(&self.base_env);
        }
        Arc::new(with_log_level(&self.base, log_level))
    }

    /// Returns how many members of a group run at the same time by default: as many as the job has processors, at least 2,
    /// at most what a job has streams for (flow.md §5).
    fn members_at_a_time(&self, cpu_micros: Option<u64>) -> u8 {
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

/// Facts of a job that the actors need besides its machine. The keeper stores them, so that the next daemon has them
/// too. It holds secrets, so it has no `Debug`.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct JobActorSpec {
    pub(super) id: String,
    pub(super) digest: [u8; 32],
    pub(super) registered: i64,
    pub(super) origin: RequestOrigin,
    pub(super) phrases: Vec<Vec<u8>>,
    pub(super) token_prefixes: Vec<String>,
    pub(super) masking: JobMasking,
    /// Setting `log_limit` at registration, in bytes.
    pub(super) log_limit: u64,
    pub(super) files: Vec<FileVariable>,
    pub(super) timeout: Option<std::time::Duration>,
    /// True if the working directory is a folder of the job's own.
    pub(super) own_work_dir: bool,
    pub(super) work_dir: String,
    pub(super) file_base: Option<String>,
    pub(super) share: Share,
    pub(super) limits: Arc<JobLimits>,
}

/// Facts that decide when a job starts (queue.md §3).
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Share {
    pub(super) key: queue::ShareKey,
    pub(super) number: Option<u64>,
    /// Length of the request, or of its document with aliases unfolded if that is more.
    pub(super) bytes: u64,
}

impl Share {
    fn new(environment: &RunEnvironment, ci_job: &str, size: usize) -> Self {
        let variables = environment.variables();
        // If a name occurs several times, the last entry counts.
        let value =
            |key| variables.iter().rev().find(|variable| variable.key == key).map(|v| v.value.as_str());
        let key = queue::ShareKey::new(
            value("CI_SERVER_URL").unwrap_or_default(),
            value("CI_PROJECT_ID").unwrap_or_default(),
        );
        let number = queue::number(value("CI_JOB_ID").unwrap_or(ci_job));
        Self { key, number, bytes: size as u64 }
    }
}

/// First byte of every record. Raise it whenever [`RecordHead`] or the data after it changes shape, together with the
/// protocol's version (see [`record::FORMAT`]).
pub(super) const HEAD_FORMAT: u8 = 3;

/// First event of every record.
#[derive(Serialize, Deserialize)]
struct RecordHead {
    shell: JobActorSpec,
    accepted: Vec<u8>,
}

/// A request that can be registered.
pub(super) struct Prepared {
    pub(super) id: JobId,
    pub(super) folder: JobFolder,
    pub(super) labels: MaskedLabels,
    pub(super) shell: JobActorSpec,
    pub(super) redactor: Redactor,
    pub(super) machine: Machine,
    /// First event of the record.
    pub(super) head: Vec<u8>,
    /// Its place in the queue, once assigned.
    pub(super) place: Option<queue::Place>,
    /// True if the working directory that it names is there.
    pub(super) has_work_dir: bool,
    /// Field of the request that names the working directory; empty if none does.
    pub(super) work_dir_field: &'static str,
}

impl Prepared {
    /// Checks which of the directories that the request names exist. Missing ones are made later. The check can take
    /// long, because a file system may not respond. Errors are reported where the directories are made.
    pub(super) async fn look_at_places(&mut self, caller: Weak<()>) {
        let JobActorSpec { work_dir, own_work_dir, files, .. } = &self.shell;
        if !own_work_dir {
            self.has_work_dir = is_directory(work_dir.into(), Weak::clone(&caller)).await;
        }
        let vars_dir = files.first().map(|file| PathBuf::from(&file.directory));
        if let Some(vars_dir) = vars_dir.filter(|dir| *dir != self.folder.path("vars")) {
            is_directory(vars_dir, caller).await;
        }
    }
}

/// True if `path` is a directory. If only a lookup that may block can tell, another thread does it, unless the caller
/// has gone by then.
async fn is_directory(path: PathBuf, caller: Weak<()>) -> bool {
    match what_is_known(&path) {
        Known::Directory => true,
        Known::Otherwise => false,
        Known::Nothing => {
            let look = move || caller.strong_count() > 0 && path.is_dir();
            threads::run(Work::Lookups, look).await.unwrap_or_default()
        }
    }
}

/// Checks a request as far as possible without the disk.
pub(super) fn prepare(
    request: Run,
    context: &DaemonContext,
    folder: JobFolder,
    registered: i64,
) -> Result<Prepared, Refusal> {
    let Run {
        id,
        digest,
        size,
        origin,
        labels,
        environment,
        steps,
        file,
        inputs,
        timeout,
        cancel_grace,
        cleanup_timeout,
        errexit,
        trace_sections,
        limits,
    } = request;
    if let Some((limit, why)) =
        limits.names().find_map(|name| Some((name, refused_value(name, limits.get(name)?)?)))
    {
        return Err(Refusal::new(
            Reason::LimitUnavailable,
            format!("limit {limit} cannot be enforced: {why}"),
        )
        .about(format!("limits.{limit}")));
    }
    let mut share = Share::new(&environment, &labels.ci_job, size);
    let own = |name| folder.path(name).to_string_lossy().into_owned();
    let service = rules(origin);
    let vars_dir = match service {
        Service::V1 => own("vars"),
        Service::Proto => context.vars_dir(&id),
    };
    let mut vars = variables::prepare(&environment, service, &context.base, &vars_dir)
        .map_err(|e| variable_refusal(&e))?;
    let config = context.config();
    if config.mask_json_members {
        vars.add_json_members();
    }
    let masking = JobMasking::new(&config);
    // The keeper prepares the same phrases and writes the warnings about them to the job's log.
    let (phrase_set, _warnings) = PhraseSet::prepare(&vars.phrases, &vars.token_prefixes, &masking.config())
        .map_err(|e| Refusal::caused(Reason::TooLarge, &e).about("masking"))?;
    let mut redactor = Redactor::new(phrase_set.clone());
    let labels = MaskedLabels::new(labels, &mut redactor);
    let work_dir_field = work_dir_field(&environment);
    let given = vars.work_dir.or_else(|| context.work_dir.clone().filter(|_| service == Service::Proto));
    let own_work_dir = given.is_none();
    let work_dir = given.unwrap_or_else(|| own("work"));
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
        base_env: context.base_env(vars.log_level),
        env: vars.env,
        work_dir: work_dir.clone(),
        tmp_dir: own("tmp"),
        timeout,
        cancel_grace,
        default_grace: config.cancel_grace,
        cleanup_timeout: cleanup_timeout.unwrap_or(config.cleanup_timeout),
        members_at_a_time: context.members_at_a_time(limits.cpu_micros),
        errexit,
        trace_sections,
    };
    let machine = Machine::new(&spec).map_err(|findings| malformed(&findings, &phrase_set))?;
    if document::may_unfold(&spec.steps) {
        share.bytes = share.bytes.max(machine.document_size() as u64);
    }
    let accepted = record::encode(&Event::Accepted(Box::new(spec)), 0)
        .map_err(|error| Refusal::caused(Reason::Internal, &error))?;
    let shell = JobActorSpec {
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
        limits: Arc::new(JobLimits::new(limits, &config)),
    };
    let head = RecordHead { shell: shell.clone(), accepted };
    let head = postcard::to_extend(&head, vec![HEAD_FORMAT])
        .map_err(|error| Refusal::caused(Reason::Internal, &error))?;
    Ok(Prepared {
        id,
        folder,
        labels,
        shell,
        redactor,
        machine,
        head,
        place: None,
        has_work_dir: false,
        work_dir_field,
    })
}

/// Returns the field that names the working directory, as `steprunner.v1` has it; empty if none does.
fn work_dir_field(environment: &RunEnvironment) -> &'static str {
    if environment.job.as_ref().is_some_and(|job| !job.build_dir.is_empty()) {
        "job.build_dir"
    } else if environment.work_dir.is_empty() {
        ""
    } else {
        "work_dir"
    }
}

/// Returns the rules for variables of requests from this service (variables.md §1).
const fn rules(origin: RequestOrigin) -> Service {
    match origin {
        RequestOrigin::V1 | RequestOrigin::V0 => Service::V1,
        RequestOrigin::Proto | RequestOrigin::ProtoPlain => Service::Proto,
    }
}

pub(super) struct Head {
    pub(super) shell: JobActorSpec,
    pub(super) accepted: Event,
}

/// Decodes the first event of a record; `None` if it cannot be read.
pub(super) fn read_head(head: &[u8]) -> Option<Head> {
    let head = head.strip_prefix(&[HEAD_FORMAT])?;
    let RecordHead { shell, accepted } = postcard::from_bytes(head).ok()?;
    let (accepted, _) = record::decode(&accepted).ok()?;
    Some(Head { shell, accepted })
}

/// Facts of a job that a daemon needs before it has read the record. The keeper stores them beside the record.
#[derive(Serialize, Deserialize)]
pub(super) struct Brief {
    /// See [`JobActorSpec`].
    pub(super) digest: [u8; 32],
    pub(super) share: Share,
    pub(super) place: Option<queue::Place>,
    /// Contents of `job.json`.
    record: String,
}

impl Brief {
    /// Makes the brief of a job from its request and its record on disk.
    pub(super) fn new(shell: &JobActorSpec, place: Option<queue::Place>, record: &JobRecord) -> Self {
        let record = serde_json::to_string(record).unwrap_or_default();
        Self { digest: shell.digest, share: shell.share.clone(), place, record }
    }

    pub(super) fn encode(&self) -> Result<Vec<u8>, Refusal> {
        postcard::to_extend(self, vec![HEAD_FORMAT])
            .map_err(|error| Refusal::caused(Reason::Internal, &error))
    }

    /// Decodes a brief; `None` if it cannot be read.
    pub(super) fn decode(brief: &[u8]) -> Option<Self> {
        postcard::from_bytes(brief.strip_prefix(&[HEAD_FORMAT])?).ok()
    }

    /// Returns the record on disk, the content of `job.json`.
    pub(super) fn record(&self) -> Option<JobRecord> {
        serde_json::from_str(&self.record).ok()
    }
}

fn variable_refusal(error: &VariableError) -> Refusal {
    Refusal::caused(error.reason(), error).about(error.field())
}

/// Refuses steps with errors. The text is masked: names of steps may contain secrets of the request (masking.md §7).
fn malformed(findings: &[Diagnostic], phrases: &PhraseSet) -> Refusal {
    let errors: Vec<_> = findings.iter().filter(|f| f.severity == Severity::Error).collect();
    let masker = Masker::compile(phrases);
    let shown = |text: &str| masker.mask(text).for_people();
    let mut text: Vec<_> =
        errors.iter().take(MAX_FINDINGS_IN_TEXT).map(|finding| finding.unmasked()).collect();
    if errors.len() > MAX_FINDINGS_IN_TEXT {
        text.push(format!("and {} more", errors.len() - MAX_FINDINGS_IN_TEXT));
    }
    let violations = errors.iter().take(MAX_FINDINGS).map(|finding| finding.violation("steps", shown));
    Refusal {
        violations: violations.collect(),
        ..Refusal::new(Reason::MalformedSteps, shown(&text.join("\n"))).about("steps")
    }
}
