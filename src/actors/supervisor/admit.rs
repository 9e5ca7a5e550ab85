//! Admission: from a checked request to a registered job (service.md §3.1, order of work).

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use actix::{ActorFutureExt, Addr, ResponseActFuture, WrapFuture};

use super::remove::request_digest;
use super::{Stop, Supervisor, delete_later};
use crate::actors::admission::{Brief, JobActorSpec, Prepared};
use crate::actors::deliver;
use crate::actors::job::{Begin, HeldRequest, JobActor, JobParts};
use crate::actors::keeper_port::{Keeper, KeeperProblem};
use crate::actors::log_sink::LogFeed;
use crate::actors::redact::Redactor;
use crate::actors::registry::Reservation;
use crate::actors::trace_sink::TraceFeed;
use crate::actors::view::{JobView, JobViewState};
use crate::clock;
use crate::error::Chain;
use crate::keeper::link::LinkError;
use crate::keeper::protocol::{HoldJob, KeeperError, Reply, Request};
use crate::model::{JobKey, Reason, Refusal};
use crate::store::{
    self, JobFolder, JobRecord, MadeDirectory, RecordedLimits, RequestOrigin, StoreError, file_vars,
};

/// Liveness of the call that asked: dead when the call is over.
pub(in crate::actors) type Caller = std::sync::Weak<()>;

/// Minimum number of files and directories that a job and its keeper need.
const FILES_OF_A_JOB: u64 = 8;

/// Suggested delay before a client retries a temporary refusal.
pub(super) const RETRY: Duration = Duration::from_secs(1);

/// A job during its registration.
struct Admission {
    keeper: Keeper,
    prepared: Prepared,
    reservation: Reservation,
    caller: Caller,
    me: Addr<Supervisor>,
}

impl Supervisor {
    pub(super) fn admit(
        &mut self,
        prepared: Prepared,
        reservation: Reservation,
        caller: Caller,
        me: Addr<Self>,
    ) -> ResponseActFuture<Self, Result<(), Refusal>> {
        if let Err(refusal) = self.has_room().and_then(|()| self.goes_on(&caller)) {
            return Box::pin(actix::fut::ready(Err(refusal)));
        }
        let port = self.port.clone();
        let asked = me.clone();
        let keeper = async move { port.get(&asked).await };
        Box::pin(keeper.into_actor(self).then(move |keeper: Result<Keeper, KeeperProblem>, supervisor, _| {
            let boxed: ResponseActFuture<Self, Result<(), Refusal>> = match keeper {
                Ok(keeper) => supervisor.admit_with(Admission { keeper, prepared, reservation, caller, me }),
                Err(problem) => Box::pin(actix::fut::ready(Err(problem.into()))),
            };
            boxed
        }))
    }

    /// Checks that the job may still be registered: not if its caller has given up or a stop has begun.
    fn goes_on(&self, caller: &Caller) -> Result<(), Refusal> {
        if self.stop > Stop::No {
            return Err(Refusal::stopping());
        }
        if caller.strong_count() == 0 {
            return Err(Refusal::new(Reason::DeadlineExceeded, "the caller is gone"));
        }
        Ok(())
    }

    fn has_room(&self) -> Result<(), Refusal> {
        let max = self.config().max_jobs as usize;
        // The count includes the reservation of this very call.
        if self.registry.len() > max {
            let text = format!("{max} jobs are registered: finish some, or raise max_jobs");
            return Err(Refusal::for_now(Reason::TooManyJobs, text, RETRY));
        }
        // The first job needs a keeper, which cannot start on a full disk.
        let needed = self.config().state_limit.0.max(1);
        match self.state.free_space() {
            Ok(free) if free.bytes < needed => Err(Refusal::for_now(
                Reason::DiskFull,
                format!(
                    "{} bytes are free for state, {needed} are to be kept free (state_limit)",
                    free.bytes
                ),
                RETRY,
            )),
            Ok(free) if free.files.is_some_and(|files| files < FILES_OF_A_JOB) => Err(Refusal::for_now(
                Reason::DiskFull,
                "the file system of the state folder has no room for more files",
                RETRY,
            )),
            Ok(_) => Ok(()),
            Err(error) => Err(store_refusal(&error)),
        }
    }

    fn admit_with(&mut self, mut admission: Admission) -> ResponseActFuture<Self, Result<(), Refusal>> {
        let Admission { keeper, prepared, .. } = &mut admission;
        let digest = request_digest(&keeper.digest_key, &prepared.shell.digest);
        // Through the compatible service a closed job runs again (service.md §3.1).
        let asks_again = matches!(prepared.shell.origin, RequestOrigin::Proto | RequestOrigin::ProtoPlain);
        if !asks_again
            && self.registry.remembered.lock().is_repeat(
                prepared.id.key(),
                digest,
                self.config().remember_finished,
            )
        {
            // A late duplicate of a finished job.
            return Box::pin(actix::fut::ready(Ok(())));
        }
        let enforceable = prepared.shell.limits.check(&keeper.unenforceable);
        if let Err(refusal) = enforceable.and_then(|()| self.enqueue(prepared)) {
            return Box::pin(actix::fut::ready(Err(refusal)));
        }
        let id = prepared.id.clone();
        let placed = match self.make_places(prepared) {
            Ok(placed) => placed,
            Err(refusal) => {
                self.leave_queue(&id);
                return Box::pin(actix::fut::ready(Err(refusal)));
            }
        };
        let hold = hold_request(&prepared.shell, id.key(), keeper, &placed.request, placed.tag, 0);
        let link = keeper.link.clone();
        let held = async move { link.ask(hold).await };
        Box::pin(held.into_actor(self).map(move |held, supervisor, _| {
            let admitted = supervisor.admit_held(held, admission, &placed);
            if admitted.is_err() {
                supervisor.leave_queue(&id);
            }
            admitted
        }))
    }

    /// Handles the keeper's answer: registers the job or undoes everything.
    fn admit_held(
        &mut self,
        held: Result<Reply, LinkError>,
        admission: Admission,
        placed: &Placed,
    ) -> Result<(), Refusal> {
        let Admission { keeper, prepared, caller, .. } = &admission;
        match held {
            Ok(Reply::Held { .. }) if keeper.link.is_over() => {
                Err(placed.undo(&prepared.folder, not_held(&LinkError::Gone)))
            }
            Ok(Reply::Held { log_inode, log_len }) => {
                if let Err(refusal) = self.goes_on(caller) {
                    keeper.link.tell_short(Request::Drop { key: prepared.id.key() });
                    return Err(placed.undo(&prepared.folder, refusal));
                }
                // Only now: a record without a keeper means that its keeper died (service.md §3.1).
                if let Err(error) = prepared.folder.write_record(&placed.record) {
                    keeper.link.tell_short(Request::Drop { key: prepared.id.key() });
                    return Err(placed.undo(&prepared.folder, store_refusal(&error)));
                }
                self.register(admission, placed, log_inode, log_len);
                Ok(())
            }
            Ok(_) => Err(placed.undo(&prepared.folder, not_held(&LinkError::Protocol))),
            Err(error) => Err(placed.undo(&prepared.folder, not_held(&error))),
        }
    }

    /// Makes the job's folder and its directories. On failure nothing is left behind.
    fn make_places(&self, prepared: &mut Prepared) -> Result<Placed, Refusal> {
        let JobActorSpec { work_dir, own_work_dir, files, .. } = &prepared.shell;
        if self.registry.is_broken(prepared.id.key()) {
            delete_later(prepared.folder.remove_set_aside().map_err(|e| store_refusal(&e))?);
            self.registry.mend(prepared.id.key());
        }
        let mut tag = [0; 16];
        getrandom::fill(&mut tag).map_err(|e| Refusal::new(Reason::Internal, e.to_string()))?;
        let tag = u128::from_le_bytes(tag);
        let directory = files.first().map(|file| file.directory.as_str());
        let own_vars = directory.is_some_and(|dir| Path::new(dir) == prepared.folder.path("vars"));
        let (record, request) = (self.recorded(&prepared.shell, tag), HeldRequest::default());
        let mut placed = Placed { tag, record, request };
        let folder = make_folder(&prepared.folder).and_then(|()| match self.context.sync_group {
            Some(_) => prepared.folder.begin_synced(),
            None => Ok(()),
        });
        let made = folder.map_err(|e| store_refusal(&e)).and_then(|()| {
            if let Some(directory) = directory.filter(|_| !own_vars) {
                placed.record.made_directory = probe(&prepared.folder, directory)?;
            }
            make_work_dir(&prepared.folder, work_dir, *own_work_dir)?;
            let brief = Brief::new(&prepared.shell, prepared.place.clone(), &placed.record).encode()?;
            placed.request.brief = brief.into();
            Ok(())
        });
        placed.request.head = std::mem::take(&mut prepared.head).into();
        match made {
            Ok(()) => Ok(placed),
            Err(refusal) => Err(placed.undo(&prepared.folder, refusal)),
        }
    }

    fn register(&mut self, admission: Admission, placed: &Placed, log_inode: u64, log_len: u64) {
        let Admission { keeper, prepared, reservation, me, .. } = admission;
        let Prepared { id, folder, shell, phrase_set, machine, .. } = prepared;
        let has_slot = self.queue.is_running(&id);
        let group = self.context.sync_group.clone();
        let seen = if group.is_some() { 0 } else { log_len };
        let log = LogFeed::growing(seen, group.clone(), &folder);
        log.announce(log_len);
        let trace = TraceFeed::growing(0, group);
        let view = JobView::new(id.clone(), shell.registered, log_inode, log, trace, JobViewState::default());
        let view = Arc::new(view.of_request(shell.digest, shell.origin));
        let job = JobActor::start_new(JobParts {
            view: Arc::clone(&view),
            context: Arc::clone(&self.context),
            folder,
            link: keeper.link,
            supervisor: me,
            machine,
            redactor: Redactor::new(phrase_set),
            shell,
            tag: placed.tag,
            encode: self.encode,
            waits_with: (!has_slot).then(|| placed.request.clone()),
        });
        reservation.register(view, job.clone());
        if has_slot {
            deliver(&job, Begin);
        }
    }
}

impl Supervisor {
    /// The contents of `job.json`, except for a directory that was made for the job.
    pub(super) fn recorded(&self, shell: &JobActorSpec, tag: u128) -> JobRecord {
        let digest = u128::from_be_bytes(request_digest(&self.port.digest_key(), &shell.digest));
        JobRecord {
            id: shell.id.clone(),
            registered: shell.registered,
            registered_boot: Some(clock::boot_micros()),
            origin: shell.origin,
            work_dir: shell.work_dir.clone(),
            files: shell.files.iter().map(|file| file.path.clone()).collect(),
            made_directory: None,
            tag: format!("{tag:032x}"),
            boot_id: self.boot_id.to_string(),
            digest: Some(format!("{digest:032x}")),
            limits: RecordedLimits {
                timeout: shell.timeout.and_then(|t| u64::try_from(t.as_micros()).ok()),
                cancel_grace: None,
                resources: shell.limits.all(),
            },
        }
    }
}

/// Folder and directories made for a job that is not registered yet.
struct Placed {
    tag: u128,
    /// Written once the keeper holds the job.
    record: JobRecord,
    request: HeldRequest,
}

impl Placed {
    /// Removes everything that was made. Returns `refusal` unchanged.
    fn undo(&self, folder: &JobFolder, refusal: Refusal) -> Refusal {
        if let Some(made) = &self.record.made_directory {
            drop(file_vars::remove_directory(made));
        }
        folder.discard();
        refusal
    }
}

/// Makes the folder. One that is in the way is removed: it was left by a crash before its Run was answered.
fn make_folder(folder: &JobFolder) -> Result<(), StoreError> {
    match folder.make() {
        Err(error) if error.source.kind() == std::io::ErrorKind::AlreadyExists => {
            delete_later(folder.begin_removal()?);
            folder.make()
        }
        made => made,
    }
}

/// Makes and probes the directory of file variables; `Some` if it did not exist.
fn probe(folder: &JobFolder, directory: &str) -> Result<Option<MadeDirectory>, Refusal> {
    if !Path::new(directory).exists() {
        folder.note_making(directory).map_err(|e| store_refusal(&e))?;
    }
    file_vars::probe(folder.key(), directory).map_err(|e| refusal(e.reason(), Chain(&e).to_string()))
}

fn make_work_dir(folder: &JobFolder, work_dir: &str, own: bool) -> Result<(), Refusal> {
    if own {
        return folder.make_dir("work").map(drop).map_err(|e| store_refusal(&e));
    }
    crate::store::make_work_dir(Path::new(work_dir))
        .map_err(|e| refusal(e.reason(), format!("work_dir: {}", Chain(&e))))
}

pub(super) fn hold_request(
    shell: &JobActorSpec,
    key: JobKey,
    keeper: &Keeper,
    request: &HeldRequest,
    tag: u128,
    log_len: u64,
) -> Request {
    Request::Hold(Box::new(HoldJob {
        key,
        tag,
        record: request.head.to_vec(),
        brief: request.brief.to_vec(),
        phrases: shell.phrases.clone(),
        token_prefixes: shell.token_prefixes.clone(),
        mask_forms: shell.masking.forms,
        default_prefixes: shell.masking.default_prefixes,
        log_len,
        log_limit: shell.log_limit,
        limits: shell.limits.to_hold(&keeper.unenforceable),
        secret_files: shell.files.iter().map(|file| file.path.clone().into()).collect(),
    }))
}

fn not_held(error: &LinkError) -> Refusal {
    let reason = match error {
        LinkError::Refused(KeeperError::Log { errno, .. }) => {
            let reason = store::reason_of(&std::io::Error::from_raw_os_error(*errno));
            return refusal(reason, Chain(error).to_string());
        }
        LinkError::TooLarge(_) | LinkError::Refused(KeeperError::Masking(_)) => Reason::TooLarge,
        LinkError::Gone
        | LinkError::Silent
        | LinkError::Protocol
        | LinkError::Refused(KeeperError::UnknownJob) => Reason::KeeperUnavailable,
    };
    refusal(reason, format!("the keeper did not take the job: {}", Chain(error)))
}

fn store_refusal(error: &StoreError) -> Refusal {
    refusal(error.reason(), Chain(error).to_string())
}

/// Builds a refusal, with a retry delay if a retry may help.
fn refusal(reason: Reason, text: String) -> Refusal {
    Refusal { retry_after: reason.may_pass().then_some(RETRY), ..Refusal::new(reason, text) }
}
