//! The task of scheduler and configuration: it asks for jobs, starts their tasks, and ends the agent (agent.md §4).

mod jobs;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use sha2::{Digest as _, Sha256};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::MissedTickBehavior;

use super::api::{Api, Apis, CallResult, Content, reply};
use super::clock::Clock;
use super::configuration;
use super::daemons::Daemons;
use super::environment;
use super::info;
use super::job::{News, Surroundings};
use super::order::Engines;
use super::place::{State, system_id};
use super::program::Programs;
use super::rotation::Rotation;
use super::settings::{Provider, Settings};
use super::users;
use step_runner_agent::answer::Unreachable;
use step_runner_agent::config::{Config, Entry};
use step_runner_agent::record::{Record, Stop};
use step_runner_agent::routing::Call;
use step_runner_agent::scheduler::{Action, EntryId, Event, Exit, Once, RequestId, Scheduler, Signal, Told};
use step_runner_agent::tokens::Token;
use step_runner_model::error::{Exit as ExitCode, Failure};
use step_runner_model::text;
use step_runner_system::files::free_space;

/// Space that the state needs, in bytes. Below it no entry asks.
const SPACE: u64 = 64 << 20;

/// Time between two looks at the configuration's file and the free space.
const LOOK: Duration = Duration::from_secs(3);

/// Time between two looks for what earlier runs left at engines.
const SWEEP: Duration = Duration::from_hours(1);

/// What the agent is started with.
pub struct Options {
    /// Configuration.
    pub config: PathBuf,
    /// Folder of the state.
    pub state: PathBuf,
    /// At most one job.
    pub once: Option<Once>,
}

/// An entry at work.
struct Served {
    entry: Entry,
    settings: Settings,
    api: Api,
}

/// A job at work.
struct Running {
    entry: EntryId,
    /// Its record without the payload, while it holds a slot.
    slot: Option<Record>,
    stops: UnboundedSender<Stop>,
}

/// Messages of tasks.
enum Message {
    Answered(RequestId, EntryId, Token, CallResult),
    Environment(EntryId, bool),
    /// A token was replaced in the configuration.
    Rotated,
}

struct Agency {
    options: Options,
    state: State,
    scheduler: Scheduler,
    served: BTreeMap<EntryId, Served>,
    jobs: BTreeMap<String, Running>,
    around: Surroundings,
    rotation: Rotation,
    messages: UnboundedSender<Message>,
    /// True once it has taken a job.
    has_taken: bool,
    /// Actions that are still to be performed.
    actions: Vec<Action>,
    /// State of the file at the last reading.
    seen: Option<SystemTime>,
    /// True while there is too little space for the state.
    is_short: bool,
}

/// Runs the agent until a signal or its one job ends it. Returns its exit code.
pub async fn run(options: Options) -> Result<u8, Failure> {
    let config = configuration::read_to_use(&options.config, |_| true)?;
    let state = State::take(options.state.clone())?;
    let cannot = |error: std::io::Error| {
        let text = format!("cannot write the system id beside {}: {error}", options.config.display());
        Failure::new(ExitCode::Configuration, text)
    };
    let system_id = system_id(&options.config).map_err(cannot)?;
    let clock = Clock::start();
    let (news, reported) = unbounded_channel();
    let (messages, coming) = unbounded_channel();
    let daemons = Arc::new(Daemons::new(state.own_daemon()));
    let programs = Arc::new(Programs::new());
    let engines = Engines { programs, state: state.id.clone(), config: state.path.join("docker") };
    let around = Surroundings { clock, daemons, engines, system_id, news };
    let mut agency = Agency {
        scheduler: Scheduler::new(config.limits, options.once, clock.steady()),
        seen: changed(&options.config),
        options,
        state,
        served: BTreeMap::new(),
        jobs: BTreeMap::new(),
        around,
        rotation: Rotation::default(),
        messages,
        has_taken: false,
        actions: Vec::new(),
        is_short: false,
    };
    // Jobs of earlier agents hold their slots before any entry asks.
    agency.adopt(Apis::new(config.connection_max_age));
    agency.configure(&config)?;
    let exit = agency.serve(coming, reported).await?;
    Ok(match exit {
        Exit::Done | Exit::Detached => 0,
        Exit::Failed => 1,
    })
}

/// Returns the number of an entry: the same after a restart, and with another token if the server told a number.
fn number(entry: &Entry) -> EntryId {
    let who = entry.id.map_or_else(|| entry.token.fingerprint(), |id| id.to_string());
    let digest = Sha256::digest(format!("{}\n{who}", entry.url).as_bytes());
    let bytes = digest.first_chunk::<8>().copied().unwrap_or_default();
    EntryId(u64::from_be_bytes(bytes))
}

fn changed(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|found| found.modified()).ok()
}

impl Agency {
    async fn serve(
        &mut self,
        mut coming: UnboundedReceiver<Message>,
        mut reported: UnboundedReceiver<News>,
    ) -> Result<Exit, Failure> {
        let listen = |kind| signal(kind).map_err(|error| Failure::new(ExitCode::Failure, error));
        let mut quit = listen(SignalKind::quit())?;
        let mut terminate = listen(SignalKind::terminate())?;
        let mut interrupt = listen(SignalKind::interrupt())?;
        let mut hang_up = listen(SignalKind::hangup())?;
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut sweep = tokio::time::interval(SWEEP);
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        tracing::info!(entries = self.served.len(), jobs = self.jobs.len(), "the agent is ready");
        loop {
            for action in std::mem::take(&mut self.actions) {
                if let Some(exit) = self.perform(action) {
                    return Ok(exit);
                }
            }
            let clock = self.around.clock;
            let wake = self.scheduler.wake(clock.steady());
            let event = tokio::select! {
                _ = quit.recv() => Event::Signal(Signal::Quit),
                _ = terminate.recv() => Event::Signal(Signal::Terminate),
                _ = interrupt.recv() => Event::Signal(Signal::Interrupt),
                _ = hang_up.recv() => self.reload(),
                Some(news) = reported.recv() => self.heard(news),
                Some(message) = coming.recv() => self.take(message),
                _ = look.tick() => self.look(),
                _ = sweep.tick() => self.sweep(),
                () = clock.reach(wake) => Event::Tick,
            };
            self.decide(event);
        }
    }

    /// Lets the scheduler decide about an event.
    fn decide(&mut self, event: Event) {
        self.actions.extend(self.scheduler.handle(event, self.around.clock.steady()));
    }

    /// Takes a configuration. One that cannot be served whole is not taken.
    fn configure(&mut self, config: &Config) -> Result<(), Failure> {
        let mut served = BTreeMap::new();
        for warning in &config.warnings {
            tracing::warn!("{warning}");
        }
        for entry in &config.entries {
            let settings = Settings::of(entry, |name| self.state.of_jobs(name)).map_err(|wrong| {
                let wrong: Vec<String> = wrong.iter().map(ToString::to_string).collect();
                Failure::new(ExitCode::Configuration, format!("{}: {}", entry.name, wrong.join(", ")))
            })?;
            if users::is_shared(entry) {
                tracing::warn!("{}", users::warning(entry));
            }
            let api = Api::of(&settings, entry.url.clone(), config.connection_max_age)
                .map_err(|error| Failure::new(ExitCode::Configuration, error))?;
            served.insert(number(entry), Served { entry: entry.clone(), settings, api });
        }
        self.served = served;
        let limits = self.served.iter().map(|(id, served)| (*id, served.entry.limits)).collect();
        self.decide(Event::Configured(config.limits, limits));
        Ok(())
    }

    /// Reads the configuration again. A wrong one is told once, and the old one stays.
    fn reload(&mut self) -> Event {
        self.seen = changed(&self.options.config);
        let read = configuration::read_to_use(&self.options.config, |_| true).map_err(Failure::from);
        match read.and_then(|config| self.configure(&config)) {
            Ok(()) => tracing::info!(entries = self.served.len(), "the configuration was read again"),
            Err(failure) => tracing::error!("the configuration stays as it was: {failure}"),
        }
        Event::Tick
    }

    /// Looks at what nobody tells of: the configuration's file and the free space.
    fn look(&mut self) -> Event {
        if changed(&self.options.config) != self.seen {
            return self.reload();
        }
        for (id, served) in &self.served {
            let messages = self.messages.clone();
            let tell = move || drop(messages.send(Message::Rotated));
            self.rotation.see_to(*id, &served.entry, &served.api, &self.around, &self.options.config, tell);
        }
        let is_enough = self.has_space();
        if self.is_short == is_enough {
            self.is_short = !is_enough;
            let path = self.state.path.display();
            if is_enough {
                tracing::info!("there is space for the state again at {path}");
            } else {
                let needed = text::size(SPACE);
                tracing::warn!(
                    "no space for the state at {path}, so no request for a job: {needed} are to be free"
                );
            }
        }
        Event::Disk { is_enough }
    }

    fn has_space(&self) -> bool {
        let free = fs::File::open(&self.state.path).and_then(free_space);
        free.is_ok_and(|free| free.shortage(SPACE).is_none())
    }

    /// Removes what earlier runs left at the engines of the entries.
    fn sweep(&self) -> Event {
        let mut all: Vec<Provider> = Vec::new();
        for provider in self.served.values().filter_map(|served| served.settings.provider()) {
            if !all.iter().any(|other| other.shares_place_with(&provider)) {
                all.push(provider);
            }
        }
        let (engines, jobs) = (self.around.engines.clone(), self.state.jobs());
        tokio::spawn(async move {
            for provider in all {
                environment::sweep(&engines, &provider, &jobs).await;
            }
        });
        Event::Tick
    }

    fn heard(&mut self, news: News) -> Event {
        match news {
            News::Ended(entry, folder) => {
                if let Some(job) = self.jobs.get_mut(&folder) {
                    job.slot = None;
                }
                Event::JobEnded(entry)
            }
            News::Closed(entry, folder) => {
                self.jobs.remove(&folder);
                Event::JobClosed(entry)
            }
            News::Prepared(entry, is_system_failure) => Event::Prepared { entry, is_system_failure },
        }
    }

    fn take(&mut self, message: Message) -> Event {
        match message {
            Message::Rotated => self.reload(),
            Message::Environment(entry, is_there) => Event::Environment { entry, is_there },
            Message::Answered(request, entry, token, result) => {
                let has_job = self.answered(entry, &result);
                let current = self.served.get(&entry).map(|served| &served.entry.token);
                // A refusal of a token that was replaced meanwhile says nothing about the runner.
                let is_refused =
                    result.as_ref().is_ok_and(|response| matches!(response.answer.status, 403 | 422));
                let is_old = is_refused && current.is_some_and(|current| *current != token);
                let reply = if is_old { Err(Unreachable) } else { reply(&result) };
                Event::Answered { request, reply, has_job, jitter: super::clock::jitter() }
            }
        }
    }

    fn perform(&mut self, action: Action) -> Option<Exit> {
        match action {
            Action::Ask { entry, request, ticket } => {
                let served = self.served.get(&entry)?;
                let Entry { token, labels, .. } = &served.entry;
                let has_images = served.settings.has_environments();
                let body =
                    info::request_body(token, &self.around.system_id, labels, has_images, ticket.as_ref());
                let (api, token, messages) = (served.api.clone(), token.clone(), self.messages.clone());
                tokio::spawn(async move {
                    let call = Call::RequestJob;
                    let result = api.call(&call, &token, ticket.as_ref(), Content::Json(body)).await;
                    messages.send(Message::Answered(request, entry, token, result)).ok();
                });
            }
            Action::CheckEnvironment(entry) => {
                let settings = &self.served.get(&entry)?.settings;
                let (address, provider) = (settings.address.clone(), settings.provider());
                let (around, messages) = (self.around.clone(), self.messages.clone());
                tokio::spawn(async move {
                    let answer = match provider {
                        Some(provider) => environment::check(&around.engines, &provider).await,
                        None => match around.daemons.client(address.as_deref()).await {
                            Ok(client) => {
                                client.overview().await.map(drop).map_err(|error| error.to_string())
                            }
                            Err(text) => Err(text),
                        },
                    };
                    if let Err(text) = &answer {
                        tracing::warn!("no environment for jobs, so no request for one: {text}");
                    }
                    messages.send(Message::Environment(entry, answer.is_ok())).ok();
                });
            }
            Action::Tell(entry, told) => self.say(entry, told),
            Action::EndJobs { force } => {
                let stop = if force { Stop::Forced } else { Stop::Gently };
                for job in self.jobs.values() {
                    job.stops.send(stop).ok();
                }
            }
            Action::Exit(exit) => {
                if self.options.once.is_some() && !self.has_taken {
                    tracing::info!("no job came in time");
                }
                tracing::info!(jobs = self.jobs.len(), "the agent ends");
                return Some(exit);
            }
        }
        None
    }

    fn say(&self, entry: EntryId, told: Told) {
        let name = self.served.get(&entry).map_or("an entry that is gone", |served| &served.entry.name);
        match told {
            Told::Unhealthy(time) => tracing::error!(
                runner = name,
                "the server refuses this runner: it asks again in {}; run `step-runner verify`",
                humantime::format_duration(time)
            ),
            Told::Healthy => tracing::info!(runner = name, "the server answers this runner again"),
            Told::NoEnvironment => {
                tracing::warn!(runner = name, "its daemon does not answer: it asks for no job until it does");
            }
            Told::CannotPrepare(time) => tracing::error!(
                runner = name,
                "its jobs cannot be prepared on this machine: it asks again in {}",
                humantime::format_duration(time)
            ),
        }
    }
}
