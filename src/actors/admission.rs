//! Preparation of a request: variables, masking and the machine of a job that can be registered (service.md §3.1).
//!
//! Nothing here touches the disk or an actor. A request that fails here leaves nothing behind.

use std::path::PathBuf;
use std::sync::{Arc, Weak};

use actix::Message;

use super::context::DaemonContext;
use super::labels::MaskedLabels;
use super::limits::JobLimits;
use super::redact::{JobMasking, Redactor, UnmaskedRefusal};
use super::registry::Reservation;
use super::spec::{JobActorSpec, Share, encode_head};
use super::step::{Known, what_is_known};
use crate::job::event::JobSpec;
use crate::job::machine::Machine;
use crate::lang::diagnostic::{Diagnostic, Severity};
use crate::lang::document;
use crate::lang::value::Value;
use crate::log::mask::{Masker, PhraseSet};
use crate::model::{JobId, Reason, Refusal};
use crate::process::limiter::refused_value;
use crate::queue;
use crate::request::{RequestOrigin, Run, RunEnvironment};
use crate::store::JobFolder;
use crate::threads::{self, Work};
use crate::variables::{self, Service, VariableError};

/// Maximum number of findings in the details of an answer (service.md §3.1).
const MAX_FINDINGS: usize = 20;

/// Maximum number of findings in the text of an answer, which shares a header list with the details.
const MAX_FINDINGS_IN_TEXT: usize = 8;

/// Liveness of the call that asked: dead when the call is over.
pub(super) type Caller = Weak<()>;

/// Registers the job of a checked request. The supervisor takes it.
#[derive(Message)]
#[rtype(result = "Result<(), UnmaskedRefusal>")]
pub(super) struct Admit {
    pub(super) prepared: Box<PreparedJob>,
    pub(super) reservation: Reservation,
    pub(super) caller: Caller,
}

/// A request that can be registered.
pub(super) struct PreparedJob {
    pub(super) id: JobId,
    pub(super) folder: JobFolder,
    pub(super) labels: MaskedLabels,
    pub(super) spec: JobActorSpec,
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

impl PreparedJob {
    /// Checks which of the directories that the request names exist. Missing ones are made later. The check can take
    /// long, because a file system may not respond. Errors are reported where the directories are made.
    pub(super) async fn look_at_places(&mut self, caller: Caller) {
        let JobActorSpec { work_dir, own_work_dir, files, .. } = &self.spec;
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
async fn is_directory(path: PathBuf, caller: Caller) -> bool {
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
) -> Result<PreparedJob, Refusal> {
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
    let actor = JobActorSpec {
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
    let head = encode_head(&actor, spec)?;
    Ok(PreparedJob {
        id,
        folder,
        labels,
        spec: actor,
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
