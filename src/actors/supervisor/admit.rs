//! Admission: from a checked request to a registered job (service.md §3.1, order of work).

use std::sync::Arc;

use actix::{Addr, AsyncContext, Context, Handler, Message, ResponseFuture};

use super::places::Placed;
use super::refusals::{RETRY, refusal, store_refusal};
use super::remove::request_digest;
use super::{Stop, Supervisor};
use crate::actors::admission::{Admit, Caller, PreparedJob};
use crate::actors::deliver;
use crate::actors::job::{JobActor, JobParts};
use crate::actors::keeper_port::Keeper;
use crate::actors::labels::MaskedLabels;
use crate::actors::log_sink::LogFeed;
use crate::actors::messages::{Abandon, Begin, JobBroken, RegisteredRequest, ToSupervisor};
use crate::actors::registry::Reservation;
use crate::actors::spec::JobActorSpec;
use crate::actors::trace_sink::TraceFeed;
use crate::actors::view::{JobView, JobViewState};
use crate::error::Chain;
use crate::files::Shortage;
use crate::keeper::link::LinkError;
use crate::keeper::protocol::{KeeperError, RegisterJob, Reply, Request};
use crate::model::{JobKey, Reason, Refusal, text};
use crate::request::RequestOrigin;
use crate::store::{self, JobFolder};

/// A job that the keeper was asked to take.
struct AskedJob {
    keeper: Keeper,
    folder: JobFolder,
    labels: MaskedLabels,
    reservation: Reservation,
    caller: Caller,
    view: Arc<JobView>,
    job: Addr<JobActor>,
}

/// Continues an admission that had to wait for a keeper.
#[derive(Message)]
#[rtype(result = "Result<(), Refusal>")]
pub(super) struct AdmitWith {
    keeper: Keeper,
    admit: Box<Admit>,
}

impl Handler<AdmitWith> for Supervisor {
    type Result = ResponseFuture<Result<(), Refusal>>;

    fn handle(&mut self, AdmitWith { keeper, admit }: AdmitWith, ctx: &mut Context<Self>) -> Self::Result {
        // The start of a keeper may have taken long.
        match self.goes_on(&admit.caller) {
            Ok(()) => self.admit_with(keeper, *admit, ctx.address()),
            Err(refusal) => Box::pin(std::future::ready(Err(refusal))),
        }
    }
}

/// Delivers the keeper's answer whether it takes a job.
#[derive(Message)]
#[rtype(result = "Result<(), Refusal>")]
pub(super) struct AdmitRegistered {
    registered: Result<Reply, LinkError>,
    asked: Box<AskedJob>,
}

impl Handler<AdmitRegistered> for Supervisor {
    type Result = Result<(), Refusal>;

    fn handle(
        &mut self,
        AdmitRegistered { registered, asked }: AdmitRegistered,
        ctx: &mut Context<Self>,
    ) -> Self::Result {
        self.admit_registered(registered, *asked, ctx.address())
    }
}

/// Begins one of the registered jobs that have a slot. In a burst of Runs, incoming messages are handled between two
/// such begins, so that answers come first: without this, 5,000 Runs at once take a third longer.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct BeginNext;

impl Handler<BeginNext> for Supervisor {
    type Result = ();

    fn handle(&mut self, _: BeginNext, ctx: &mut Context<Self>) {
        if let Some(job) = self.begins.pop_front() {
            deliver(&job, Begin { has_waited: false });
        }
        if !self.begins.is_empty() {
            begin_next_later(ctx.address());
        }
    }
}

fn begin_next_later(supervisor: Addr<Supervisor>) {
    actix::spawn(async move {
        tokio::task::yield_now().await;
        deliver(&supervisor, BeginNext);
    });
}

impl Supervisor {
    /// Admits a job. The futures of calls must not live in this actor's context, because it polls all of them with
    /// each message.
    pub(super) fn admit(&mut self, admit: Admit, me: Addr<Self>) -> ResponseFuture<Result<(), Refusal>> {
        if let Err(refusal) = self.has_room().and_then(|()| self.goes_on(&admit.caller)) {
            return Box::pin(std::future::ready(Err(refusal)));
        }
        let keeper = self.port.now().filter(|keeper| !keeper.link.is_over() && !self.port.is_silent());
        if let Some(keeper) = keeper {
            return self.admit_with(keeper, admit, me);
        }
        let port = self.port.clone();
        Box::pin(async move {
            port.answers().await?;
            let keeper = port.get(&me.clone().recipient()).await?;
            let admit = Box::new(admit);
            me.send(AdmitWith { keeper, admit }).await.map_err(|_| Refusal::stopping())?
        })
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
        self.has_disk_space()
    }

    fn has_disk_space(&self) -> Result<(), Refusal> {
        // The first job needs a keeper, which cannot start on a full disk.
        let needed = self.config().state_limit.0.max(1);
        let free = self.state.free_space().map_err(|error| store_refusal(&error))?;
        let message = match free.shortage(needed) {
            None => return Ok(()),
            Some(Shortage::Bytes(free)) => {
                let [free, needed] = [free, needed].map(text::size);
                format!("{free} are free for state, {needed} are to be kept free (state_limit)")
            }
            Some(Shortage::Files) => {
                "the file system of the state folder has no room for more files".to_owned()
            }
        };
        Err(Refusal::for_now(Reason::DiskFull, message, RETRY))
    }

    fn admit_with(
        &mut self,
        keeper: Keeper,
        mut admit: Admit,
        me: Addr<Self>,
    ) -> ResponseFuture<Result<(), Refusal>> {
        let prepared = &mut *admit.prepared;
        let digest = request_digest(&keeper.digest_key, &prepared.spec.digest);
        // Through the compatible service a closed job runs again (service.md §3.1).
        let asks_again = matches!(prepared.spec.origin, RequestOrigin::Proto | RequestOrigin::ProtoPlain);
        if !asks_again
            && self.registry.remembered.lock().is_repeat(
                prepared.id.key(),
                digest,
                self.config().remember_finished,
            )
        {
            // A late duplicate of a finished job.
            return Box::pin(std::future::ready(Ok(())));
        }
        let enforceable = prepared.spec.limits.check(&keeper.unenforceable);
        if let Err(refusal) = enforceable.and_then(|()| self.enqueue(prepared)) {
            return Box::pin(std::future::ready(Err(refusal)));
        }
        let id = prepared.id.clone();
        let placed = match self.make_places(prepared) {
            Ok(placed) => placed,
            Err(refusal) => {
                self.leave_queue(&id);
                return Box::pin(std::future::ready(Err(refusal)));
            }
        };
        let (asked, request) = self.start_asking(keeper, admit, placed, &me);
        let (port, link) = (self.port.clone(), asked.keeper.link.clone());
        Box::pin(async move {
            let registered = port.unless_silent(link.ask(request)).await.unwrap_or(Err(LinkError::Silent));
            me.send(AdmitRegistered { registered, asked: Box::new(asked) })
                .await
                .map_err(|_| Refusal::stopping())?
        })
    }

    /// Makes the actor of a job, and the request to the keeper to take the job. The job is registered, and begins, once
    /// the keeper has it.
    fn start_asking(
        &mut self,
        keeper: Keeper,
        admit: Admit,
        placed: Placed,
        me: &Addr<Self>,
    ) -> (AskedJob, Request) {
        let Admit { mut prepared, reservation, caller } = admit;
        let key = prepared.id.key();
        let request = register_request(&prepared.spec, key, &keeper, &placed.request, placed.tag, 0);
        let has_slot = self.queue.is_running(&prepared.id);
        let folder = prepared.folder.clone();
        let labels = std::mem::take(&mut prepared.labels);
        let (view, job) = self.start_job(&keeper, *prepared, placed, me, has_slot);
        (AskedJob { keeper, folder, labels, reservation, caller, view, job }, request)
    }

    /// Handles the keeper's answer: registers the job or undoes everything.
    fn admit_registered(
        &mut self,
        registered: Result<Reply, LinkError>,
        asked: AskedJob,
        me: Addr<Self>,
    ) -> Result<(), Refusal> {
        let AskedJob { keeper, view, .. } = &asked;
        let taken = match registered {
            Ok(Reply::Registered { .. }) if keeper.link.is_over() => Err(not_registered(&LinkError::Gone)),
            Ok(Reply::Registered { log_inode, log_len }) => {
                view.opened_log(log_inode, log_len);
                self.goes_on(&asked.caller)
                    .inspect_err(|_| keeper.link.tell_short(Request::Drop { key: view.key }))
            }
            Ok(_) => Err(not_registered(&LinkError::Protocol)),
            Err(error) => {
                if matches!(error, LinkError::Silent) {
                    // It takes the job when it goes on.
                    keeper.link.tell_short(Request::Drop { key: view.key });
                }
                Err(not_registered(&error))
            }
        };
        match taken {
            Ok(()) => {
                self.register(asked, me);
                Ok(())
            }
            Err(refusal) => {
                deliver(&asked.job, Abandon);
                if let Err(left) = asked.folder.remove_file_variables() {
                    tracing::warn!(error = %Chain(&left), job = %asked.view.id, "file variables of a refused job were not removed");
                }
                asked.folder.discard();
                self.leave_queue(&asked.view.id);
                Err(refusal)
            }
        }
    }

    fn register(&mut self, asked: AskedJob, me: Addr<Self>) {
        let AskedJob { labels, reservation, view, job, .. } = asked;
        let id = view.id.clone();
        labels.tell_registered(&id);
        reservation.register(view, job.clone());
        if !job.connected() {
            // A defect ended the job before anyone could know of it.
            deliver(&me, JobBroken(id));
        } else if self.queue.is_running(&id) {
            self.begins.push_back(job.recipient());
            if self.begins.len() == 1 {
                begin_next_later(me);
            }
        }
    }

    fn start_job(
        &self,
        keeper: &Keeper,
        prepared: PreparedJob,
        placed: Placed,
        me: &Addr<Self>,
        has_slot: bool,
    ) -> (Arc<JobView>, Addr<JobActor>) {
        let PreparedJob { id, folder, spec, redactor, machine, .. } = prepared;
        let group = self.context.sync_group.clone();
        let log = LogFeed::growing(0, group.clone(), &folder);
        let trace = TraceFeed::growing(group);
        let view = JobView::new(id, spec.registered, 0, log, trace, JobViewState::default());
        let view = Arc::new(view.of_request(spec.digest, spec.origin));
        let job = JobActor::start_new(JobParts {
            view: Arc::clone(&view),
            context: Arc::clone(&self.context),
            folder,
            link: keeper.link.clone(),
            supervisor: ToSupervisor::new(me),
            machine,
            redactor,
            spec,
            tag: placed.tag,
            encode: self.encode,
            waits_with: (!has_slot).then_some(placed.request),
        });
        (view, job)
    }
}

pub(super) fn register_request(
    spec: &JobActorSpec,
    key: JobKey,
    keeper: &Keeper,
    request: &RegisteredRequest,
    tag: u128,
    log_len: u64,
) -> Request {
    Request::Register(Box::new(RegisterJob {
        key,
        tag,
        record: request.head.to_vec(),
        brief: request.brief.to_vec(),
        phrases: spec.phrases.clone(),
        token_prefixes: spec.token_prefixes.clone(),
        mask_forms: spec.masking.forms,
        default_prefixes: spec.masking.default_prefixes,
        log_len,
        log_limit: spec.log_limit,
        limits: spec.limits.to_hold(&keeper.unenforceable),
        secret_files: spec.files.iter().map(|file| file.path.clone().into()).collect(),
    }))
}

fn not_registered(error: &LinkError) -> Refusal {
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
