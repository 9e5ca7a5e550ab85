//! The task of one job: it owns the record, performs the actions of [`Job`] one after another, and tells the agency what
//! concerns its slot (agent.md §5, §9). It may be killed between any two of them.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value as Json;
use tokio::sync::mpsc::{Receiver, Sender, UnboundedReceiver, UnboundedSender, channel};
use tokio::task::{AbortHandle, JoinHandle, block_in_place};
use tokio_util::sync::CancellationToken;

use super::answers::{is_answered, run_answer};
use super::api::{Api, Content, reply};
use super::clock::{Clock, wall};
use super::container::Fate;
use super::daemons::Daemons;
use super::environment::Environment;
use super::folder::JobFolder;
use super::follow::{self, OfJob};
use super::mask::Mask;
use super::order::{Engines, Failed, Order};
use super::request;
use super::settings::Settings;
use super::wanted::Wanted;
use step_runner_agent::answer::Answer;
use step_runner_agent::final_update::{TraceSum, body};
use step_runner_agent::lifecycle::{Action, CancelHow, Event, Job, RunAnswer};
use step_runner_agent::names::Names;
use step_runner_agent::outcome::{EnvironmentFailure, Outcome, Refusal};
use step_runner_agent::record::{Record, Stop};
use step_runner_agent::routing::{Base, Call};
use step_runner_agent::scheduler::EntryId;
use step_runner_ci::job::Job as CiJob;
use step_runner_client::Client;
use step_runner_model::JobId;
use step_runner_model::error::Chain;

/// Time between two tries to write a file of the record, on a disk that is full perhaps.
const DISK_AGAIN: Duration = Duration::from_secs(5);

/// Time between two looks for an environment that may have the job.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// Events that wait for the task. A log that comes faster than it can be stored waits in the daemon.
const EVENTS: usize = 16;

/// Time after a job's time limit for which an engine that does not answer is asked about the job.
const UNANSWERED: Duration = Duration::from_mins(10);

/// Time for which the container of a job lives beyond the job's time limit, if no agent takes it up.
const LEFT: Duration = Duration::from_hours(25);

/// What a job tells the agency.
#[derive(Debug)]
pub(super) enum News {
    /// Its slot is free.
    Ended(EntryId, String),
    /// Its record is gone.
    Closed(EntryId, String),
    /// Its preparation is over.
    Prepared(EntryId, bool),
}

/// What a job needs of the agent.
#[derive(Clone)]
pub(super) struct Surroundings {
    pub(super) clock: Clock,
    pub(super) daemons: Arc<Daemons>,
    pub(super) engines: Engines,
    pub(super) system_id: String,
    pub(super) news: UnboundedSender<News>,
}

/// What a job has of its entry, for as long as it lives.
pub(super) struct OfEntry {
    pub(super) settings: Settings,
    pub(super) server: Base,
    pub(super) api: Api,
}

/// An environment, and what the job asks of it.
type Asked = (Arc<Environment>, Wanted);

/// A job at work.
pub(super) struct JobTask {
    job: Job,
    folder: JobFolder,
    settings: Arc<Settings>,
    /// The description of the agent, with what the entry provides.
    info: Json,
    server: Base,
    api: Api,
    around: Surroundings,
    names: Names,
    events: Sender<Event>,
    coming: Receiver<Event>,
    stops: UnboundedReceiver<Stop>,
    following: Option<AbortHandle>,
    /// The job's environment, if it has one of its own.
    environment: Option<Arc<Environment>>,
    /// The preparation, and what stops it.
    preparing: Option<(CancellationToken, JoinHandle<()>)>,
}

impl JobTask {
    /// Begins with a job that the server has just given, or that an earlier agent has left. Its record is on disk once
    /// the first actions are performed.
    pub(super) fn start(
        record: Record,
        is_new: bool,
        mut folder: JobFolder,
        of_entry: OfEntry,
        around: Surroundings,
        stops: UnboundedReceiver<Stop>,
    ) -> impl Future<Output = ()> + Send + 'static {
        let names = Names::new(&of_entry.server, record.job);
        let now = around.clock.now();
        let (job, actions) = if is_new {
            Job::take(record, now)
        } else {
            let disk = block_in_place(|| folder.disk());
            Job::resume(record, &disk, now)
        };
        let (events, coming) = channel(EVENTS);
        let OfEntry { settings, server, api } = of_entry;
        let (engines, name) = (around.engines.clone(), names.environment.clone());
        let environment =
            Environment::of(&settings, engines, name, job.record().job, folder.path()).map(Arc::new);
        let settings = Arc::new(settings);
        let task = Self {
            job,
            folder,
            info: super::info::info(&[], settings.has_environments()),
            settings,
            server,
            api,
            around,
            names,
            events,
            coming,
            stops,
            following: None,
            environment,
            preparing: None,
        };
        task.run(actions)
    }

    async fn run(mut self, mut actions: Vec<Action>) {
        loop {
            for action in std::mem::take(&mut actions) {
                self.perform(action).await;
            }
            if self.job.is_over() {
                return;
            }
            let wake = self.job.wake();
            let event = tokio::select! {
                Some(stop) = self.stops.recv() => Event::Stop(stop),
                Some(event) = self.coming.recv() => event,
                () = self.around.clock.reach(wake) => Event::Tick,
            };
            actions = self.job.handle(event, self.around.clock.now());
        }
    }

    async fn perform(&mut self, action: Action) {
        match action {
            Action::Store(record) => self.write(|folder| folder.store(&record)).await,
            Action::StoreHead(bytes) => self.write(|folder| folder.store_head(&bytes)).await,
            Action::CutHead(len) => self.write(|folder| folder.cut_head(len)).await,
            Action::CutTrace(len) => self.write(|folder| folder.cut_trace(len)).await,
            Action::Extend(bytes) => self.write(|folder| folder.extend(&bytes)).await,
            Action::StoreCheckpoint(checkpoint) => {
                self.write(|folder| folder.store_checkpoint(&checkpoint)).await;
            }
            Action::StoreTail(bytes) => self.write(|folder| folder.store_tail(&bytes)).await,
            Action::StoreSent(sent) => self.write(|folder| folder.store_sent(sent)).await,
            Action::DeleteRecord => {
                self.write(|folder| folder.delete()).await;
                self.tell(News::Closed);
            }
            Action::FreeSlot => self.tell(News::Ended),
            Action::PreparationOver { is_system_failure } => {
                self.around.news.send(News::Prepared(self.job.record().entry, is_system_failure)).ok();
            }
            Action::Claim => self.update(None, None, Event::Claimed),
            Action::SignOfLife(sum) => self.update(None, Some(sum), Event::Traced),
            Action::Report(outcome, sum) => {
                let state = if outcome.reason.is_none() { "success" } else { "failed" };
                let reason = outcome.reason.as_deref().unwrap_or_default();
                tracing::info!(job = self.job.record().job, state, reason, "the result goes to the server");
                self.update(Some(&outcome), Some(sum), Event::Reported);
            }
            Action::Append { from, to } => self.append(from, to).await,
            Action::Remove => self.remove(),
            Action::Prepare => self.prepare(),
            Action::Look => self.look(),
            Action::Run => self.submit(),
            Action::Follow(offset) => self.follow(offset),
            Action::Cancel(how) => self.cancel(how),
            Action::Finish => self.finish(),
            Action::Tell(text) => tracing::warn!(job = self.job.record().job, "{text}"),
        }
    }

    fn tell(&self, news: fn(EntryId, String) -> News) {
        self.around.news.send(news(self.job.record().entry, self.names.folder.clone())).ok();
    }

    /// Writes a file of the record. Nothing goes on before that: a disk that is full is tried again.
    async fn write(&mut self, mut work: impl FnMut(&mut JobFolder) -> io::Result<()>) {
        let mut is_told = false;
        while let Err(error) = block_in_place(|| work(&mut self.folder)) {
            if !is_told {
                let job = self.job.record().job;
                tracing::error!(job, error = %Chain(&error), "cannot write the record of a job: it waits");
                is_told = true;
            }
            tokio::time::sleep(DISK_AGAIN).await;
        }
    }

    /// Does something beside the task, which goes on with other events until its answer comes.
    fn answer(&self, work: impl Future<Output = Event> + Send + 'static) {
        let events = self.events.clone();
        tokio::spawn(async move { events.send(work.await).await.ok() });
    }

    /// Tells the server the state of the job.
    fn update(
        &self,
        outcome: Option<&Outcome>,
        sum: Option<TraceSum>,
        event: fn(step_runner_agent::answer::Reply) -> Event,
    ) {
        let record = self.job.record();
        let content = Content::Json(body(&record.token, &self.info, outcome, sum));
        let (api, token, job) = (self.api.clone(), record.token.clone(), record.job);
        self.answer(async move {
            let result = api.call(&Call::UpdateJob(job), &token, None, content).await;
            match &result {
                Ok(response) if response.is_page => {
                    tracing::warn!(job, "no answer to an update: {}", response.message(&token));
                }
                Ok(response) if response.answer.status >= 400 => {
                    tracing::warn!(job, "the server refuses an update: {}", response.message(&token));
                }
                Err(error) => tracing::warn!(job, error = %Chain(error), "no answer to an update"),
                Ok(_) => {}
            }
            event(reply(&result))
        });
    }

    /// Sends a piece of the trace.
    async fn append(&mut self, from: u64, to: u64) {
        let mut bytes = Vec::new();
        self.write(|folder| {
            bytes = folder.read(from, to)?;
            Ok(())
        })
        .await;
        let record = self.job.record();
        let call = Call::AppendTrace { job: record.job, debug: record.is_debug };
        let (api, token, job) = (self.api.clone(), record.token.clone(), record.job);
        self.answer(async move {
            let result = api.call(&call, &token, None, Content::Trace(from, bytes)).await;
            match &result {
                Ok(response) if is_refused(&response.answer) => {
                    tracing::warn!(
                        job,
                        "the server refuses a piece of the trace: {}",
                        response.message(&token)
                    );
                }
                Err(error) => {
                    tracing::warn!(job, error = %Chain(error), "no answer to a piece of the trace");
                }
                Ok(_) => {}
            }
            Event::Traced(reply(&result))
        });
    }

    /// Removes the job's environment, once nothing makes it any more. A daemon that several jobs use has nothing of one
    /// of them but the job itself.
    fn remove(&mut self) {
        let preparing = self.preparing.take();
        let Some(environment) = self.environment.clone() else {
            return self.answer(async { Event::Removed(true) });
        };
        if let Some(following) = self.following.take() {
            following.abort();
        }
        let daemons = Arc::clone(&self.around.daemons);
        self.answer(async move {
            if let Some((stop, task)) = preparing {
                stop.cancel();
                task.await.ok();
            }
            daemons.forget(&environment.address()).await;
            Event::Removed(environment.remove().await)
        });
    }

    /// Makes the job's environment, or looks if the daemon is there; and if the job can run in it.
    fn prepare(&mut self) {
        let record = self.job.record();
        let made = request::job(record, &self.settings, &self.server);
        let mut lines = vec![
            format!("Running with step-runner {}", super::info::VERSION),
            format!("  on {}, system ID {}", self.settings.name, self.around.system_id),
        ];
        let place = self.settings.address.clone();
        lines.push(match (&place, &self.environment) {
            (_, Some(environment)) => format!("  with {}", environment.place()),
            (Some(address), None) => format!("  with the daemon at {address}"),
            (None, None) => "  with a daemon of its own".to_owned(),
        });
        let mask = Mask::new(record, made.as_ref().ok().map(|(job, _)| job));
        let work = match made {
            Err(unusable) => Err((EnvironmentFailure::Configuration, unusable.0)),
            Ok((job, project)) => {
                lines.extend(request::warnings(&job, &self.settings).iter().map(|line| mask.line(line)));
                match request::refused(&job, &self.settings) {
                    Some(text) => Err((EnvironmentFailure::Configuration, text)),
                    None => self.wanted(&job, &project),
                }
            }
        };
        let stop = CancellationToken::new();
        let (events, daemons, stopped) =
            (self.events.clone(), Arc::clone(&self.around.daemons), stop.clone());
        let lifetime = record.timeout + LEFT;
        let task = tokio::spawn(async move {
            for line in lines {
                events.send(Event::Line(line)).await.ok();
            }
            let result = match work {
                Err((failure, text)) => Err((failure, mask.line(&text))),
                Ok(Some((environment, wanted))) => {
                    let order = Order { wanted: &wanted, mask: &mask, lifetime, events: &events };
                    match environment.prepare(order, &daemons, stopped).await {
                        Ok(()) => Ok(()),
                        Err(Failed::Environment(failure, text)) => Err((failure, text)),
                        Err(Failed::Lost(why)) => return drop(events.send(Event::Lost(why)).await),
                        Err(Failed::Stopped) => return,
                    }
                }
                Ok(None) => match daemons.client(place.as_deref()).await {
                    Ok(_) => Ok(()),
                    // One that dies at this moment is started again by the next preparation.
                    Err(text) => return drop(events.send(Event::Lost(text)).await),
                },
            };
            events.send(Event::Prepared(result)).await.ok();
        });
        self.preparing = Some((stop, task));
    }

    /// Returns what the job asks of an environment, if it has one of its own.
    fn wanted(&self, job: &CiJob, project: &str) -> Result<Option<Asked>, (EnvironmentFailure, String)> {
        let (Some(environment), Some(provider)) = (&self.environment, self.settings.provider()) else {
            return Ok(None);
        };
        let record = self.job.record();
        let wanted = Wanted::of(record, job, project, &self.settings, &provider, &self.server)?;
        Ok(Some((Arc::clone(environment), wanted)))
    }

    /// Returns the address of the job's daemon; `None`: the agent's own.
    fn address(&self) -> Option<String> {
        self.environment
            .as_ref()
            .map(|environment| environment.address())
            .or_else(|| self.settings.address.clone())
    }

    /// Returns a client of the job's daemon, in the future, and the daemon's id of the job.
    fn client(&self) -> (impl Future<Output = Result<Client, String>> + Send + use<>, Option<JobId>) {
        let (daemons, address) = (Arc::clone(&self.around.daemons), self.address());
        let client = async move { daemons.client(address.as_deref()).await };
        (client, JobId::parse(&self.names.daemon_job).ok())
    }

    /// Waits for the environment that may have the job, as long as the job waits for it.
    fn look(&self) {
        let events = self.events.clone();
        if let Some(environment) = self.environment.clone() {
            tokio::spawn(async move {
                tokio::select! {
                    runs = environment.look() => drop(events.send(Event::Looked(runs)).await),
                    () = events.closed() => {}
                }
            });
            return;
        }
        let (daemons, address) = (Arc::clone(&self.around.daemons), self.settings.address.clone());
        tokio::spawn(async move {
            while !events.is_closed() && daemons.client(address.as_deref()).await.is_err() {
                tokio::time::sleep(LOOK_AGAIN).await;
            }
            events.send(Event::Looked(true)).await.ok();
        });
    }

    fn submit(&self) {
        let request = request::request(self.job.record(), &self.settings, &self.server);
        let (client, _) = self.client();
        let (number, environment) = (self.job.record().job, self.environment.clone());
        self.answer(async move {
            let (request, stages) = match request {
                Ok(request) => request,
                Err(unusable) => return Event::RunAnswered(RunAnswer::Refused(Refusal::Content, unusable.0)),
            };
            let answer = match client.await {
                Ok(client) => run_answer(client.run(&request).await, stages),
                Err(text) => {
                    tracing::warn!(job = number, "the daemon is not there: {text}");
                    RunAnswer::None
                }
            };
            if let (RunAnswer::None, Some(environment)) = (&answer, environment)
                && let Some(why) = environment.end().await
            {
                return Event::Lost(why);
            }
            Event::RunAnswered(answer)
        });
    }

    fn follow(&mut self, offset: u64) {
        if let Some(old) = self.following.take() {
            old.abort();
        }
        let (client, id) = self.client();
        let (events, environment) = (self.events.clone(), self.environment.clone());
        let record = self.job.record();
        let stages = record.stages.clone();
        let until = record.acknowledged.unwrap_or(record.taken).0;
        let until = until.saturating_add(millis(record.timeout + UNANSWERED));
        let task = tokio::spawn(async move {
            let cause = match &environment {
                None => None,
                Some(environment) => match environment.fate().await {
                    Fate::Runs(cause) => cause,
                    Fate::Lost(why) => return drop(events.send(Event::Lost(why)).await),
                    Fate::Unknown(why) if wall().0 >= until => {
                        let text = format!("nobody could say what became of the job: {why}");
                        return drop(events.send(Event::Lost(text)).await);
                    }
                    Fate::Unknown(_) => return drop(events.send(Event::LogBroken).await),
                },
            };
            match (client.await, id) {
                (Ok(client), Some(id)) => {
                    let of_job = OfJob { stages, environment, cause };
                    follow::follow(client, id, offset, of_job, events).await;
                }
                _ => drop(events.send(Event::LogBroken).await),
            }
        });
        self.following = Some(task.abort_handle());
    }

    fn cancel(&self, how: CancelHow) {
        let (client, id) = self.client();
        self.answer(async move {
            let (Ok(client), Some(id)) = (client.await, id) else { return Event::CancelAnswered(false) };
            let result = match how {
                CancelHow::WithCleanup => client.cancel(&id).await,
                CancelHow::Gently | CancelHow::Forced => client.cancel_at_once(&id).await,
            };
            Event::CancelAnswered(is_answered(&result))
        });
    }

    /// Lets the daemon forget the job. One in an environment of the job goes with it.
    fn finish(&self) {
        if self.environment.is_some() {
            return self.answer(async { Event::FinishAnswered(true) });
        }
        let (client, id) = self.client();
        self.answer(async move {
            let (Ok(client), Some(id)) = (client.await, id) else { return Event::FinishAnswered(false) };
            Event::FinishAnswered(is_answered(&client.finish(&id).await))
        });
    }
}

/// True if the server refuses a piece of a trace, and does not say that the job is over or how much it has.
const fn is_refused(answer: &Answer) -> bool {
    answer.status >= 400 && answer.job_status.is_none() && answer.range.is_none()
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
