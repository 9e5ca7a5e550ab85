//! A daemon and a runtime that keep count: what happens is played to the core, and what must not be is noted.

mod runtime;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::core::{Body, Core, Event, LogView, ReplyTo, Serial};
use crate::protocol::{KeeperSettings, LogStorage, PROTOCOL_VERSION, RegisterJob, Request, SpawnStep};
use step_runner_model::{ExitStatus, JobKey, LogChannel, ProcessNumber, ResourceLimits, StepUsage};

/// Something that happens, mostly to the job of this number.
#[derive(Clone, Debug)]
pub(super) enum Happening {
    Register(u8),
    Spawn {
        job: u8,
        /// SIGTERM does not end its process.
        is_deaf: bool,
        /// Its success closes the job.
        closes: bool,
    },
    Exit {
        job: u8,
        /// Number of processes it leaves.
        left: u8,
        is_drained: bool,
    },
    /// The latest step is stopped.
    Stop {
        job: u8,
        grace: u64,
    },
    /// The processes of the latest step are written to the log.
    Show(u8),
    /// What all steps have left is to be ended.
    Clear {
        job: u8,
        grace: u64,
    },
    Close {
        job: u8,
        grace: u64,
    },
    Drop(u8),
    Resume(u8),
    /// The last request with a number comes again.
    Repeat(u8),
    Phrases {
        job: u8,
        later: bool,
    },
    Line(u8),
    /// The length of the log is asked for.
    Place(u8),
    /// No signal ends the job's processes for a while.
    Stick(u8),
    /// The disk refuses the log, or takes it again.
    Disk(u8),
    /// The next start fails, as its program is open for writing.
    Busy(u8),
    /// All phrases are prepared.
    Prepared,
    Pass(u64),
}

struct Running {
    process: ProcessNumber,
    is_deaf: bool,
}

/// A stop of one step: the time of the first request, and the end of the grace.
#[derive(Clone, Copy)]
struct StepStop {
    first: Instant,
    kill_at: Instant,
}

/// Plan of the processes of a job.
#[derive(Default)]
struct Whims {
    /// No signal ends them.
    is_stuck: bool,
    /// The next one is not started at first.
    is_busy: bool,
    /// The next one ignores SIGTERM.
    is_deaf: bool,
}

/// This runtime's part of a job.
#[derive(Default)]
struct Count {
    running: Vec<Running>,
    /// Processes that steps have left.
    left: BTreeMap<u32, u8>,
    stops: BTreeMap<u32, StepStop>,
    log: LogView,
    whims: Whims,
    /// No step may start any more.
    is_ended: bool,
    /// Time up to which the processes have their grace, once an end was asked for.
    kill_at: Option<Instant>,
    is_closed: bool,
}

impl Body for Count {
    fn log(&self) -> LogView {
        self.log
    }

    fn due(&self) -> Option<Instant> {
        None
    }
}

/// A job as its daemon knows it.
#[derive(Default)]
struct Daemon {
    op: u32,
    process: ProcessNumber,
    last: Option<fn(JobKey, u32, u32) -> Request>,
    processes: BTreeSet<u32>,
    ended: BTreeMap<u32, u32>,
    /// The step whose success closes the job, while it is not over.
    last_step: Option<u32>,
    closes: bool,
    closed: u32,
    /// Steps that wait until what others have left is ended.
    clears: BTreeSet<u32>,
    /// When the end was asked for first.
    first_end: Option<Instant>,
}

pub(super) struct Stage {
    core: Core<Count>,
    now: Instant,
    jobs: BTreeMap<u8, Daemon>,
    serials: BTreeMap<Serial, u8>,
    /// Processes that a signal has ended, which nobody was told yet.
    dead: Vec<(Serial, u32, ExitStatus)>,
    /// Phrases that are being prepared.
    preparing: Vec<Serial>,
    prepares_later: bool,
    asked: u64,
    replies: BTreeMap<u64, u32>,
    /// Lengths of logs that were asked for.
    pub(super) lengths: Vec<u64>,
    pub(super) wrongs: Vec<String>,
}

fn key(job: u8) -> JobKey {
    JobKey([job; 16])
}

fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

fn spawn(key: JobKey, _: u32, process: ProcessNumber) -> Request {
    spawn_with(key, process, None)
}

fn spawn_last(key: JobKey, _: u32, process: ProcessNumber) -> Request {
    spawn_with(key, process, Some(millis(1_000)))
}

fn spawn_with(key: JobKey, process: ProcessNumber, closes: Option<Duration>) -> Request {
    Request::Spawn(Box::new(SpawnStep {
        key,
        process,
        slot: 1,
        name: "s".to_owned(),
        program: "/bin/true".into(),
        argv: Vec::new(),
        env: Vec::new(),
        work_dir: "/".into(),
        watch_unfinished: false,
        closes,
    }))
}

fn line(key: JobKey, op: u32, _: u32) -> Request {
    Request::Line { key, op, kind: LogChannel::Out, text: "line".to_owned() }
}

impl Stage {
    pub(super) fn new(leftover_keep: bool) -> Self {
        let now = Instant::now();
        let mut stage = Self {
            core: Core::new(now),
            now,
            jobs: BTreeMap::new(),
            serials: BTreeMap::new(),
            dead: Vec::new(),
            preparing: Vec::new(),
            prepares_later: false,
            asked: 0,
            replies: BTreeMap::new(),
            lengths: Vec::new(),
            wrongs: Vec::new(),
        };
        let settings = KeeperSettings {
            keeper_wait: millis(60_000),
            kill_wait: millis(2_000),
            cancel_grace: millis(5_000),
            leftover_keep,
            max_remembered: 10,
            remember_for: millis(1_000),
            remove_state: false,
        };
        stage.ask(Request::Hello { version: PROTOCOL_VERSION, settings, digest_key: [0; 16] });
        stage
    }

    fn ask(&mut self, request: Request) {
        self.asked += 1;
        self.core.perform(ReplyTo { connection: 1, id: self.asked }, request, self.now);
        self.drive();
    }

    /// Sends a request with the next number of the job.
    fn order(&mut self, job: u8, request: fn(JobKey, u32, u32) -> Request) {
        let Some(daemon) = self.jobs.get_mut(&job) else { return };
        daemon.op += 1;
        daemon.last = Some(request);
        let (op, process) = (daemon.op, daemon.process);
        self.ask(request(key(job), op, process));
    }

    fn is_closing(&self, job: u8) -> bool {
        self.jobs.get(&job).is_some_and(|daemon| daemon.closes || daemon.last_step.is_some())
    }

    /// True if the daemon was told of the end of the job.
    pub(super) fn is_closed(&self, job: u8) -> bool {
        self.jobs.get(&job).is_some_and(|daemon| daemon.closed > 0)
    }

    /// Number of the job's steps whose end the daemon was told of.
    pub(super) fn ended(&self, job: u8) -> usize {
        self.jobs.get(&job).map_or(0, |daemon| daemon.ended.len())
    }

    fn serial(&self, job: u8) -> Option<Serial> {
        self.serials.iter().rev().find(|(_, of)| **of == job).map(|(serial, _)| *serial)
    }

    fn body(&mut self, job: u8) -> Option<&mut Count> {
        let serial = self.serial(job).filter(|_| self.jobs.contains_key(&job))?;
        self.core.get_mut(serial).map(|registered| &mut registered.body)
    }

    pub(super) fn play(&mut self, happening: &Happening) {
        match *happening {
            Happening::Register(job) => self.register(job),
            // Behind its last step, a daemon asks for nothing more before that is over.
            Happening::Spawn { job, .. } if self.is_closing(job) => {}
            Happening::Spawn { job, is_deaf, closes } => {
                let mut closes = closes;
                if let Some(body) = self.body(job) {
                    body.whims.is_deaf = is_deaf;
                }
                if let Some(daemon) = self.jobs.get_mut(&job) {
                    // A last step has no other beside it.
                    closes &= daemon.processes.iter().all(|process| daemon.ended.contains_key(process));
                    daemon.process += 1;
                    daemon.processes.insert(daemon.process);
                    daemon.last_step = closes.then_some(daemon.process);
                    self.order(job, if closes { spawn_last } else { spawn });
                }
            }
            Happening::Exit { job, left, is_drained } => self.exit(job, left, is_drained),
            Happening::Stop { job, grace } => self.stop(job, millis(grace)),
            Happening::Show(job) => {
                let Some(daemon) = self.jobs.get(&job) else { return };
                let (key, process) = (key(job), daemon.process);
                self.ask(Request::ShowProcesses { key, attempt: process, processes: vec![process] });
            }
            Happening::Clear { job, .. } if self.is_closing(job) => {}
            Happening::Clear { job, grace } => {
                let is_ended = self.body(job).is_none_or(|body| body.is_ended);
                let Some(daemon) = self.jobs.get_mut(&job).filter(|_| !is_ended) else { return };
                let processes: Vec<u32> = daemon.ended.keys().copied().collect();
                daemon.clears.insert(daemon.process);
                let call = daemon.process;
                self.ask(Request::Clear { key: key(job), call, processes, grace: millis(grace) });
            }
            Happening::Close { job, grace } => self.close(job, grace),
            Happening::Drop(job) => {
                if self.jobs.remove(&job).is_some()
                    && let Some(registered) = self.serial(job).and_then(|serial| self.core.get_mut(serial))
                {
                    registered.body.kill_at = Some(self.now);
                    registered.body.is_ended = true;
                }
                self.ask(Request::Drop { key: key(job) });
            }
            Happening::Resume(job) => self.ask(Request::Resume { key: key(job) }),
            Happening::Repeat(job) => {
                let Some(daemon) = self.jobs.get(&job) else { return };
                if let Some(last) = daemon.last {
                    let (op, process) = (daemon.op, daemon.process);
                    self.ask(last(key(job), op, process));
                }
            }
            Happening::Phrases { job, .. } | Happening::Line(job) | Happening::Place(job)
                if self.is_closing(job) => {}
            Happening::Phrases { job, later } => {
                self.prepares_later = later;
                self.order(job, |key, op, _| Request::Phrases { key, op, phrases: Vec::new() });
            }
            Happening::Line(job) => self.order(job, line),
            Happening::Place(job) => self.order(job, |key, op, _| Request::Place { key, op }),
            Happening::Stick(job) => {
                if let Some(body) = self.body(job) {
                    body.whims.is_stuck = true;
                }
            }
            Happening::Disk(job) => self.disk(job),
            Happening::Busy(job) => {
                if let Some(body) = self.body(job) {
                    body.whims.is_busy = true;
                }
            }
            Happening::Prepared => self.prepare(),
            Happening::Pass(time) => self.pass(self.now + millis(time)),
        }
    }

    fn register(&mut self, job: u8) {
        self.jobs.entry(job).or_default();
        self.ask(Request::Register(Box::new(RegisterJob {
            key: key(job),
            tag: 1,
            record: b"first".to_vec(),
            brief: Vec::new(),
            phrases: Vec::new(),
            token_prefixes: Vec::new(),
            mask_forms: true,
            default_prefixes: true,
            log_len: 0,
            log_limit: 1 << 30,
            limits: ResourceLimits::default(),
            secret_files: Vec::new(),
        })));
    }

    /// The model of the grace: it counts from the first request, and the shortest one wins.
    fn note_end(&mut self, job: u8, grace: u64) {
        let now = self.now;
        let Some(daemon) = self.jobs.get_mut(&job) else { return };
        let kill_at = *daemon.first_end.get_or_insert(now) + millis(grace);
        if let Some(body) = self.body(job) {
            body.kill_at = Some(body.kill_at.map_or(kill_at, |before| before.min(kill_at)));
        }
    }

    /// Stops the latest step of a job.
    fn stop(&mut self, job: u8, grace: Duration) {
        let now = self.now;
        let Some(daemon) = self.jobs.get(&job) else { return };
        let process = daemon.process;
        let is_open = daemon.processes.contains(&process) && !daemon.ended.contains_key(&process);
        if let Some(body) = self.body(job).filter(|_| is_open) {
            let stop = body.stops.entry(process).or_insert(StepStop { first: now, kill_at: now + grace });
            stop.kill_at = stop.kill_at.min(stop.first + grace);
        }
        self.ask(Request::Stop { key: key(job), process, grace });
    }

    /// From now on no step may start.
    fn note_last_start(&mut self, job: u8) {
        if let Some(body) = self.body(job) {
            body.is_ended = true;
        }
    }

    fn close(&mut self, job: u8, grace: u64) {
        let Some(daemon) = self.jobs.get_mut(&job).filter(|daemon| !daemon.closes) else { return };
        daemon.closes = true;
        daemon.op += 1;
        daemon.last = None;
        let op = daemon.op;
        if daemon.first_end.is_none() {
            self.note_end(job, grace);
        }
        let is_blocked = self
            .serial(job)
            .and_then(|serial| self.core.get(serial))
            .is_some_and(|registered| registered.job.is_blocked());
        if !is_blocked {
            self.note_last_start(job);
        }
        let lines = vec![(LogChannel::Out, "last".to_owned())];
        self.ask(Request::Close { key: key(job), op, leftover_grace: millis(grace), lines });
    }

    fn exit(&mut self, job: u8, left: u8, is_drained: bool) {
        let Some(serial) = self.serial(job) else { return };
        let Some(body) = self.core.get_mut(serial).map(|registered| &mut registered.body) else { return };
        if let Some(Running { process, .. }) = body.running.pop() {
            *body.left.entry(process).or_default() += left;
            let is_drained = is_drained || left == 0;
            let (status, usage) = (ExitStatus::Code(0), Some(StepUsage::default()));
            self.tell(serial, Event::Exited { process, status, usage, is_drained });
        }
    }

    fn tell(&mut self, serial: Serial, event: Event) {
        self.core.on(serial, event, self.now);
        self.drive();
        self.core.settle(serial);
        self.drive();
    }

    fn disk(&mut self, job: u8) {
        let Some(body) = self.body(job) else { return };
        if body.log.is_waiting() {
            body.log.storage = LogStorage::Fine;
            if let Some(serial) = self.serial(job) {
                self.tell(serial, Event::DiskTakes);
            }
        } else if !body.is_closed {
            body.log.storage = LogStorage::Waiting { errno: 28 };
        }
    }

    fn prepare(&mut self) {
        while let Some(serial) = self.preparing.pop() {
            self.core.prepared(serial, Ok(&[]), self.now);
            self.drive();
        }
    }

    fn drive(&mut self) {
        loop {
            while let Some(action) = self.core.next_action() {
                self.act(action);
            }
            if let Some((serial, process, status)) = self.dead.pop() {
                let usage = Some(StepUsage::default());
                self.tell(serial, Event::Exited { process, status, usage, is_drained: true });
            } else if let Some(serial) = self.core.start_next(self.now) {
                while let Some(action) = self.core.next_action() {
                    self.act(action);
                }
                self.core.settle(serial);
            } else {
                return;
            }
        }
    }

    /// Closes and drops all jobs. Then each request has one answer, each step one end, and nothing is left.
    pub(super) fn end(&mut self) {
        let jobs: Vec<u8> = self.jobs.keys().copied().collect();
        self.prepare();
        for job in &jobs {
            if self.body(*job).is_some_and(|body| body.log.is_waiting()) {
                self.disk(*job);
            }
            self.close(*job, 1_000);
        }
        self.pass(self.now + millis(20_000));
        for job in &jobs {
            let daemon = &self.jobs[job];
            if daemon.closed != 1 {
                self.wrongs.push(format!("job {job} was closed {} times", daemon.closed));
            }
            let wrong = daemon.processes.iter().find(|process| daemon.ended.get(process) != Some(&1));
            if let Some(process) = wrong {
                self.wrongs
                    .push(format!("process {process} of job {job} is not over once: {:?}", daemon.ended));
            }
        }
        let serials: Vec<Serial> = self.serials.keys().copied().collect();
        for serial in serials {
            if let Some(registered) = self.core.get_mut(serial) {
                registered.body.whims.is_stuck = false;
            }
        }
        for job in jobs {
            self.play(&Happening::Drop(job));
        }
        self.pass(self.now + millis(100_000));
        if !self.core.is_empty() {
            self.wrongs.push("jobs are left".to_owned());
        }
        let wrong = (1..=self.asked).find(|id| self.replies.get(id) != Some(&1));
        if let Some(id) = wrong {
            self.wrongs.push(format!("request {id} has {:?} answers", self.replies.get(&id)));
        }
    }
}
