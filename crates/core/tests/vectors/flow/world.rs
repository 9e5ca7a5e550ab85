//! Runs a case: what the machine asks for happens as the case's script says, in virtual time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use indexmap::IndexMap;
use serde_json::{Map, Value as Json, json};
use step_runner_core::job::effect::{Effect, Spawn, StepNote};
use step_runner_core::job::event::{
    CallId, Event, FetchFailure, Fetched, FileContent, JobSpec, ProcessEnd, ProcessNumber, TimerId,
};
use step_runner_core::job::machine::{Machine, ROOT};
use step_runner_core::job::record;
use step_runner_lang::ast::Reference;
use step_runner_lang::diagnostic::Class;
use step_runner_lang::value::Value;
use step_runner_model::{CancelCause, ExitStatus, LogChannel, Outcome, StepOutcome};

use super::Manner;
use super::script::{duration, lines, reference_text, status};

/// Grace of a process between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(5);

/// A process or fetch under way.
struct Running {
    process: ProcessNumber,
    path: String,
    /// Number of its start among all.
    order: usize,
    script: Json,
    ends_at: Option<u64>,
    end: End,
    kill_at: Option<u64>,
}

#[derive(Clone)]
enum End {
    Process(ProcessEnd),
    Fetch(Result<Fetched, FetchFailure>),
}

/// The next event of a run.
enum Next {
    Ends(usize),
    Kill(usize),
    Timer(TimerId),
    TimeLimit,
    Call(Json),
}

/// A job in virtual time, with the processes that its case scripts.
pub(super) struct World<'c> {
    case: &'c Json,
    pub(super) manner: Manner,
    spec: JobSpec,
    machine: Machine,
    /// Events handled, with their times, encoded.
    record: Vec<Vec<u8>>,
    now: u64,
    is_down: bool,
    running: Vec<Running>,
    starts: BTreeMap<String, usize>,
    started: usize,
    timers: Vec<(TimerId, u64)>,
    time_limit: Option<u64>,
    calls: Vec<(u64, Json)>,
    /// Ends told so far.
    told: Vec<Event>,
    paths: BTreeMap<CallId, String>,
    /// Step whose attempt began last.
    latest: CallId,
    warnings: Vec<String>,
    pub(super) seen: Seen,
}

/// Everything that a case can expect.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) order: Vec<Json>,
    pub(super) status: BTreeMap<String, Json>,
    pub(super) begun: BTreeMap<String, u32>,
    pub(super) inputs: BTreeMap<String, Json>,
    pub(super) env: BTreeMap<String, Json>,
    pub(super) outputs: BTreeMap<String, Json>,
    pub(super) streams: BTreeMap<String, Json>,
    pub(super) follow: Vec<Json>,
    pub(super) finish: Option<(Outcome, u32)>,
    pub(super) error: Option<&'static str>,
    pub(super) log: Vec<String>,
}

fn micros(seconds: f64) -> u64 {
    (seconds * 1e6) as u64
}

fn seconds(micros: u64) -> Json {
    let whole = micros / 1_000_000;
    if whole * 1_000_000 == micros { json!(whole) } else { json!(micros as f64 / 1e6) }
}

impl<'c> World<'c> {
    pub(super) fn new(case: &'c Json, manner: Manner) -> Self {
        let request = &case["request"];
        let texts = |name: &str| -> IndexMap<String, String> {
            let members = request[name].as_object().into_iter().flatten();
            members.map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned())).collect()
        };
        let number = |name: &str, default: f64| request[name].as_f64().unwrap_or(default);
        let spec = JobSpec {
            id: "1".into(),
            steps: case["documents"]["<steps>"].as_str().unwrap_or_default().into(),
            file: None,
            inputs: IndexMap::new(),
            vars: texts("vars").into_iter().map(|(name, text)| (name, Value::text(text))).collect(),
            base_env: Arc::new(Vec::new()),
            env: texts("env"),
            work_dir: "/job".into(),
            tmp_dir: "/state/tmp".into(),
            timeout: None,
            cancel_grace: request["cancel_grace"].as_f64().map(Duration::from_secs_f64),
            default_grace: GRACE,
            cleanup_timeout: Duration::from_secs_f64(number("cleanup_timeout", 60.0)),
            members_at_a_time: (number("processors", 4.0) as u8).clamp(2, 14),
            errexit: false,
            trace_sections: false,
        };
        let machine = Machine::new(&spec).unwrap_or_else(|findings| panic!("{findings:?}"));
        let calls = case["calls"].as_array().into_iter().flatten();
        Self {
            case,
            manner,
            spec,
            machine,
            record: Vec::new(),
            now: 0,
            is_down: false,
            running: Vec::new(),
            starts: BTreeMap::new(),
            started: 0,
            timers: Vec::new(),
            time_limit: request["timeout"].as_f64().map(micros),
            calls: calls.map(|call| (micros(call["at"].as_f64().unwrap_or(0.0)), call.clone())).collect(),
            told: Vec::new(),
            paths: BTreeMap::from([(0, String::new())]),
            latest: 0,
            warnings: Vec::new(),
            seen: Seen::default(),
        }
    }

    pub(super) fn run(&mut self) {
        self.handle(&Event::Admitted { at: 0 });
        for _ in 0..10_000 {
            if self.seen.finish.is_some() {
                return;
            }
            let Some((at, next)) = self.next() else { return };
            self.now = self.now.max(at);
            self.happen(next);
        }
    }

    /// Returns what happens next: ends by time and order of start, then timers as they were set, then calls.
    fn next(&mut self) -> Option<(u64, Next)> {
        let calls = self.calls.iter().enumerate().map(|(index, (at, _))| (*at, 3, index));
        let mut due: Vec<(u64, u8, usize)> = calls.collect();
        if !self.is_down {
            for (index, running) in self.running.iter().enumerate() {
                due.extend(running.ends_at.map(|at| (at, 0, index)));
                due.extend(running.kill_at.map(|at| (at, 1, index)));
            }
            due.extend(self.time_limit.map(|at| (at, 2, 0)));
            due.extend(self.timers.iter().enumerate().map(|(index, (_, at))| (*at, 2, index + 1)));
            let overdue: Vec<_> =
                due.iter().filter(|(at, kind, _)| *kind < 3 && *at <= self.now).copied().collect();
            if !overdue.is_empty() {
                // What came due while nobody was there happens in the order of kinds.
                let key = |&(at, kind, index): &(u64, u8, usize)| match kind {
                    0 => (0, at, self.running[index].order),
                    1 => (1, at, index),
                    _ => (2, 0, index),
                };
                let &(_, kind, index) = overdue.iter().min_by_key(|item| key(item))?;
                return Some((self.now, self.take(kind, index)));
            }
        }
        let key = |&(at, kind, index): &(u64, u8, usize)| {
            (at.max(self.now), kind, if kind == 0 { self.running[index].order } else { index })
        };
        let &(at, kind, index) = due.iter().min_by_key(|item| key(item))?;
        Some((at, self.take(kind, index)))
    }

    fn take(&mut self, kind: u8, index: usize) -> Next {
        match (kind, index) {
            (0, index) => Next::Ends(index),
            (1, index) => Next::Kill(index),
            (2, 0) => {
                self.time_limit = None;
                Next::TimeLimit
            }
            (2, index) => Next::Timer(self.timers.remove(index - 1).0),
            (_, index) => Next::Call(self.calls.remove(index).1),
        }
    }

    fn happen(&mut self, next: Next) {
        let cancel = |cause, grace_limit, force| Event::CancelAsked { cause, grace_limit, force };
        match next {
            Next::Ends(index) => {
                let running = self.running.remove(index);
                self.ends(running);
            }
            Next::Kill(index) => self.kill(index),
            Next::Timer(timer) => {
                if self.machine.awaits(timer) {
                    self.handle(&Event::Due { timer });
                }
            }
            Next::TimeLimit => self.handle(&cancel(CancelCause::TimeLimit, None, false)),
            Next::Call(call) => match call["do"].as_str().unwrap_or_default() {
                "cancel" => {
                    let force = call["force"].as_bool().unwrap_or_default();
                    self.handle(&cancel(CancelCause::Cancel, None, force));
                }
                "finish" => self.handle(&cancel(CancelCause::Finish, None, false)),
                "stop" => {
                    let grace = self.case["request"]["shutdown_grace"].as_f64().unwrap_or(5.0);
                    let grace = Some(Duration::from_secs_f64(grace));
                    self.handle(&cancel(CancelCause::Shutdown, grace, false));
                }
                "down" => self.is_down = true,
                "up" => {
                    self.is_down = false;
                    self.rebuild();
                }
                "repeat" => {
                    for event in self.told.clone() {
                        self.handle(&event);
                    }
                }
                other => panic!("call {other}"),
            },
        }
    }

    fn kill(&mut self, index: usize) {
        let running = &mut self.running[index];
        running.kill_at = None;
        running.ends_at = Some(self.now);
        running.end = End::Process(ProcessEnd::Exited(ExitStatus::Signal(9)));
        let path = running.path.clone();
        self.event("kill", &path, []);
    }

    /// Tells that a process or fetch has ended.
    fn ends(&mut self, running: Running) {
        let process = running.process;
        let event = match running.end {
            End::Fetch(result) => Event::Fetched { process, result },
            End::Process(end) => {
                let file = |name: &str| lines(running.script[name].as_object()).map(FileContent::Bytes);
                let malformed = running.script["malformed"].as_bool().unwrap_or_default();
                let outputs =
                    if malformed { Some(FileContent::Bytes(b"nonsense".to_vec())) } else { file("outputs") };
                let exports = file("exports");
                Event::Exited { process, end, shell: None, outputs, exports, ran: None }
            }
        };
        self.tell(&self.machine.read_files(event));
    }

    fn tell(&mut self, event: &Event) {
        self.told.push(event.clone());
        self.handle(event);
        if self.manner == Manner::Twice {
            self.handle(event);
        }
    }

    fn handle(&mut self, event: &Event) {
        self.record.push(record::encode(event, self.now).expect("an event can be recorded"));
        let effects = self.machine.handle(event, self.now);
        if self.manner == Manner::Replayed {
            self.rebuild();
        }
        let mut cleared = Vec::new();
        for effect in effects {
            assert!(self.seen.finish.is_none(), "an effect after the last: {effect:?}");
            cleared.extend(self.effect(effect));
        }
        for call in cleared {
            self.handle(&Event::Cleared { call });
        }
    }

    /// Makes the machine anew from the record.
    fn rebuild(&mut self) {
        self.machine = Machine::new(&self.spec).unwrap_or_else(|findings| panic!("{findings:?}"));
        for encoded in &self.record {
            let (event, at) = record::decode(encoded).expect("what was recorded can be read");
            self.machine.handle(&event, at);
        }
    }

    /// Performs an effect. Returns the step that can go on at once because nothing is left of it.
    fn effect(&mut self, effect: Effect) -> Option<CallId> {
        match effect {
            Effect::Fetch { process, reference, .. } => self.fetch(process, &reference),
            Effect::Spawn(spawn) => self.spawn(&spawn),
            Effect::StopFetch(process) => self.running.retain(|running| running.process != process),
            Effect::Stop { process, grace } => self.stop(process, grace),
            Effect::ShowProcesses { call, .. } => {
                let path = self.paths[&call].clone();
                self.event("tree", &path, []);
            }
            Effect::Clear { call, .. } => return Some(call),
            Effect::Wake { timer, at } => self.timers.push((timer, at)),
            Effect::Note(note) if note.call == ROOT => {}
            Effect::Note(note) => self.note(*note),
            Effect::Log { kind, text } => self.log(kind, text),
            Effect::Finish { outcome, root, lines, allowed_failures } => {
                self.seen.error = root.error_class;
                self.seen.finish = Some((outcome, allowed_failures));
                self.seen.log.extend(lines.into_iter().map(|(_, line)| line));
            }
            Effect::MakeFiles(_) | Effect::RemoveFiles(_) | Effect::Phrases(_) => {}
        }
        None
    }

    /// Returns the script of the next start at a path.
    fn script(&mut self, path: &str, is_new: bool) -> Json {
        let items = self.case["ends"][path].as_array().cloned().unwrap_or_default();
        let count = self.starts.entry(path.to_owned()).or_default();
        *count += usize::from(is_new);
        let index = count.saturating_sub(1).min(items.len().saturating_sub(1));
        items.get(index).cloned().unwrap_or_else(|| json!({}))
    }

    /// Returns the path of the step whose attempt has this process or fetch.
    fn path_of(&mut self, process: ProcessNumber) -> String {
        if !self.paths.contains_key(&process) {
            let latest = self.paths.get(&self.latest).cloned().unwrap_or_default();
            self.paths.insert(process, latest);
        }
        self.paths[&process].clone()
    }

    fn fetch(&mut self, process: ProcessNumber, reference: &Reference) {
        let name = reference_text(reference);
        let path = if self.latest == 0 { String::new() } else { self.path_of(process) };
        let script = self.script(&path, true);
        let fetch = &script["fetch"];
        let error = fetch["error"].as_str().map(|class| FetchFailure {
            class: if class == "fetch" { Class::Fetch } else { Class::NotFound },
            message: "cannot be fetched".into(),
        });
        let found = self.case["documents"][&name].as_str().map(|text| Fetched {
            dir: name.clone(),
            path: format!("{name}/func.yml"),
            text: text.to_owned(),
            tree: None,
            version: None,
        });
        let missing = || FetchFailure { class: Class::NotFound, message: format!("{name} was not found") };
        let result = error.map_or_else(|| found.ok_or_else(missing), Err);
        match fetch["after"].as_f64() {
            Some(after) => self.start(process, path, script, Some(micros(after)), End::Fetch(result)),
            // It takes no time: what follows from it comes before the other effects of the event.
            None => self.tell(&Event::Fetched { process, result }),
        }
    }

    fn spawn(&mut self, spawn: &Spawn) {
        let path = self.path_of(spawn.process);
        let was_fetched = self
            .told
            .iter()
            .any(|event| matches!(event, Event::Fetched { process, .. } if *process == spawn.process));
        let script = self.script(&path, !was_fetched);
        self.seen.streams.insert(path.clone(), json!(format!("{:02x}", spawn.slot)));
        let env: Map<String, Json> = spawn
            .env
            .iter()
            .map(|(name, value)| {
                (String::from_utf8_lossy(name).into_owned(), json!(String::from_utf8_lossy(value)))
            })
            .collect();
        self.seen.env.insert(path.clone(), Json::Object(env));
        let never = script["never"].as_bool().unwrap_or_default();
        let not_started = script["not_started"].as_str().map(|why| ProcessEnd::NotStarted(why.to_owned()));
        let after = if not_started.is_some() { 0.0 } else { script["after"].as_f64().unwrap_or(1.0) };
        let end = not_started.unwrap_or_else(|| ProcessEnd::Exited(status(&script)));
        self.start(spawn.process, path, script, (!never).then(|| micros(after)), End::Process(end));
    }

    fn start(&mut self, process: ProcessNumber, path: String, script: Json, after: Option<u64>, end: End) {
        self.started += 1;
        let (order, ends_at) = (self.started, after.map(|after| self.now + after));
        self.running.push(Running { process, path, order, script, ends_at, end, kill_at: None });
    }

    fn stop(&mut self, process: ProcessNumber, grace: Duration) {
        let now = self.now;
        let Some(running) = self.running.iter_mut().find(|running| running.process == process) else {
            return;
        };
        let path = running.path.clone();
        let is_first = running.kill_at.is_none();
        running.kill_at = Some(now + micros(grace.as_secs_f64()));
        if !is_first {
            return;
        }
        let on_term = running.script.get("on_term").cloned();
        let ends = match on_term {
            None => Some((0, ProcessEnd::Exited(ExitStatus::Signal(15)))),
            Some(Json::Null) => None,
            Some(script) => {
                let after = micros(script["after"].as_f64().unwrap_or(1.0));
                Some((after, ProcessEnd::Exited(status(&script))))
            }
        };
        if let Some((after, end)) = ends {
            let at = now + after;
            if running.ends_at.is_none_or(|ends_at| at < ends_at) {
                running.ends_at = Some(at);
                running.end = End::Process(end);
            }
        }
        self.event("term", &path, []);
    }

    fn note(&mut self, note: StepNote) {
        let result = note.result;
        let name = result.step.as_ref().map(|step| step.name.clone()).unwrap_or_default();
        let parent = self.paths[&note.parent].clone();
        let path = if parent.is_empty() { name } else { format!("{parent}/{name}") };
        self.paths.insert(note.call, path.clone());
        let attempts = result.attempts.len() as u32 + 1;
        if result.outcome == StepOutcome::Unspecified {
            self.latest = note.call;
            self.seen.begun.insert(path.clone(), attempts);
            // Steps inside are those of the last run.
            return self.event("start", &path, [json!(attempts)]);
        }
        for warning in std::mem::take(&mut self.warnings) {
            self.event("warn", &path, [json!(warning)]);
        }
        let begun = if result.outcome == StepOutcome::Skipped {
            0
        } else {
            self.seen.begun.get(&path).copied().unwrap_or(0)
        };
        let outcome = result.outcome.word();
        self.seen.status.insert(path.clone(), json!([outcome, result.exit_code, begun]));
        let inputs = result.step.map(|step| step.inputs).unwrap_or_default();
        self.seen.inputs.insert(path.clone(), json!(inputs));
        self.seen.outputs.insert(path.clone(), json!(result.outputs));
        if note.parent == 0 {
            self.seen.follow.push(json!([seconds(self.now), path]));
        }
        match result.outcome {
            StepOutcome::Skipped => self.event("skip", &path, [json!(result.reason)]),
            _ => self.event("end", &path, [json!(outcome)]),
        }
    }

    fn log(&mut self, kind: LogChannel, text: String) {
        if let Some(line) = text.strip_prefix("Retrying step name=") {
            let (name, rest) = line.split_once(" (attempt ").expect("the name ends");
            let path = self.paths.values().rfind(|path| path.rsplit('/').next() == Some(name));
            let path = path.cloned().unwrap_or_default();
            let (next, rest) = rest.split_once(" of ").expect("a number");
            let (of, rest) = rest.split_once(") in ").expect("a number");
            let delay = rest.split_once(':').expect("a delay").0;
            let number = |text: &str| json!(text.parse::<u64>().expect("a number"));
            self.event("retry", &path, [number(next), number(of), seconds(micros(duration(delay)))]);
        }
        if kind == LogChannel::Err && text.starts_with("warning: ") {
            self.warnings.push(text.clone());
        }
        self.seen.log.push(text);
    }

    fn event<const N: usize>(&mut self, event: &str, path: &str, more: [Json; N]) {
        let mut line = vec![seconds(self.now), json!(event), json!(path)];
        line.extend(more);
        self.seen.order.push(Json::Array(line));
    }
}
