//! A simulated world for a machine under test.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use indexmap::IndexMap;
use step_runner_lang::ast::Reference;
use step_runner_lang::diagnostic::Class;
use step_runner_lang::value::{Data, Value};
use step_runner_model::{ExitStatus, LogChannel, Outcome, StepOutcome, StepResult};

use crate::job::effect::{Effect, Program, Spawn, StepNote};
use crate::job::event::{Event, FetchFailure, Fetched, FileContent, JobSpec, ProcessEnd, ProcessNumber};
use crate::job::machine::{Machine, ROOT};
use crate::job::results::ResultTree;

/// A request that contains only `steps`.
pub(super) fn request(steps: &str) -> JobSpec {
    JobSpec {
        id: "1".into(),
        steps: steps.into(),
        file: None,
        inputs: IndexMap::new(),
        vars: IndexMap::new(),
        base_env: Arc::new(vec![(b"PATH".to_vec(), b"/bin".to_vec())]),
        env: IndexMap::new(),
        work_dir: "/job".into(),
        tmp_dir: "/state/tmp".into(),
        timeout: None,
        cancel_grace: None,
        default_grace: Duration::from_secs(5),
        cleanup_timeout: Duration::from_mins(1),
        members_at_a_time: 4,
        errexit: false,
        trace_sections: false,
    }
}

pub(super) fn text(text: &str) -> Value {
    Value::text(text)
}

pub(super) fn masked(text: &str) -> Value {
    Value { data: Data::String(text.into()), sensitive: true }
}

pub(super) type End = (Outcome, StepResult, Vec<(LogChannel, String)>);

/// Everything that a job did.
#[derive(Default)]
pub(super) struct Trace {
    /// Every effect but the last, in order.
    pub(super) effects: Vec<Effect>,
    pub(super) finish: Option<End>,
    tree: ResultTree,
}

impl Trace {
    /// Lines of the log, with their kind.
    pub(super) fn log(&self) -> Vec<String> {
        let early = self.effects.iter().filter_map(|effect| match effect {
            Effect::Log { kind, text } => Some((*kind, text.clone())),
            _ => None,
        });
        let last = self.finish.iter().flat_map(|(_, _, lines)| lines.clone());
        early
            .chain(last)
            .map(|(kind, text)| format!("{}{text}", if kind == LogChannel::Out { "O " } else { "E " }))
            .collect()
    }

    pub(super) fn spawns(&self) -> Vec<&Spawn> {
        self.effects
            .iter()
            .filter_map(|effect| match effect {
                Effect::Spawn(spawn) => Some(&**spawn),
                _ => None,
            })
            .collect()
    }

    /// Names of the processes started, in order.
    pub(super) fn started(&self) -> Vec<&str> {
        self.spawns().into_iter().map(|spawn| spawn.name.as_str()).collect()
    }

    pub(super) fn phrases(&self) -> Vec<String> {
        let phrases = self.effects.iter().filter_map(|effect| match effect {
            Effect::Phrases(phrases) => Some(phrases),
            _ => None,
        });
        phrases.flatten().map(|phrase| String::from_utf8(phrase.clone()).unwrap()).collect()
    }

    /// What was told of steps, in order.
    pub(super) fn notes(&self) -> Vec<&StepNote> {
        self.effects
            .iter()
            .filter_map(|effect| match effect {
                Effect::Note(note) => Some(&**note),
                _ => None,
            })
            .collect()
    }

    /// Results of the job's own list.
    pub(super) fn emitted(&self) -> Vec<&StepResult> {
        let is_own_end =
            |note: &&StepNote| note.parent == ROOT && note.result.outcome != StepOutcome::Unspecified;
        self.notes().into_iter().filter(is_own_end).map(|note| &note.result).collect()
    }

    pub(super) fn outcome(&self) -> &Outcome {
        &self.finish.as_ref().unwrap().0
    }

    pub(super) fn root(&self) -> &StepResult {
        &self.finish.as_ref().unwrap().1
    }
}

/// True if the process under way has succeeded, and its start said that this would end the job.
fn is_promised_end(trace: &Trace, event: &Event) -> bool {
    let is_success = matches!(event, Event::Exited { end: ProcessEnd::Exited(ExitStatus::Code(0)), .. });
    is_success && trace.spawns().last().is_some_and(|spawn| spawn.ends_job)
}

/// True if the job is over and its log holds nothing new.
fn is_quiet_end(effects: &[Effect]) -> bool {
    let (last, others) = effects.split_last().unwrap();
    let is_success = matches!(last, Effect::Finish { outcome, lines, .. }
        if *outcome == Outcome::success() && lines.is_empty());
    is_success && others.iter().all(|effect| matches!(effect, Effect::Note(_)))
}

/// Files that a fetch finds.
#[derive(Clone, Default)]
pub(super) struct World {
    files: BTreeMap<String, String>,
}

impl World {
    pub(super) fn new<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        Self { files: files.into_iter().map(|(path, text)| (path.to_owned(), text.to_owned())).collect() }
    }

    /// Runs a job to its end.
    pub(super) fn run(&self, spec: &JobSpec) -> Trace {
        let mut machine = Machine::new(spec).unwrap_or_else(|findings| panic!("{findings:?}"));
        let mut trace = Trace::default();
        let mut event = Some(Event::Admitted { at: 0 });
        while let Some(next) = event.take() {
            let effects = machine.handle(&next, 0);
            if is_promised_end(&trace, &next) {
                assert!(is_quiet_end(&effects), "the job's end was promised: {effects:?}");
            }
            for effect in effects {
                assert!(trace.finish.is_none(), "an effect after the last");
                if let Some(answer) = self.answer(&effect) {
                    assert!(event.replace(answer).is_none(), "two things at a time");
                }
                trace.add(effect);
            }
        }
        assert!(machine.has_ended(), "the job hangs");
        trace
    }

    pub(super) fn run_steps(&self, steps: &str) -> Trace {
        self.run(&request(steps))
    }

    pub(super) fn answer(&self, effect: &Effect) -> Option<Event> {
        match effect {
            Effect::Fetch { process, reference, .. } => {
                Some(Event::Fetched { process: *process, result: self.find(reference) })
            }
            Effect::Spawn(spawn) => Some(Self::exit(spawn)),
            _ => None,
        }
    }

    pub(super) fn find(&self, reference: &Reference) -> Result<Fetched, FetchFailure> {
        let Reference::Local { path, files } = reference else {
            return Err(FetchFailure { class: Class::Fetch, message: "not supported".into() });
        };
        assert!(path.starts_with('/'), "{path}");
        let dir = normal(path);
        let found = files.iter().find_map(|file| {
            let path = format!("{dir}/{file}");
            let text = self.files.get(&path)?.clone();
            Some(Fetched { dir: dir.clone(), path, text, tree: None, version: None })
        });
        found.ok_or_else(|| FetchFailure {
            class: Class::NotFound,
            message: format!("no {} in {dir}", files.join(" or ")),
        })
    }

    /// Ends a process as its command line says: `exit N`, `signal N`, `missing`, `write FILE TEXT …`; anything else
    /// succeeds.
    fn exit(spawn: &Spawn) -> Event {
        let words: Vec<String> = match &spawn.program {
            Program::Command(command) => command.clone(),
            Program::Script(text) => text.split(' ').map(str::to_owned).collect(),
            Program::ScriptFile(_) | Program::Builtin(_) => Vec::new(),
            Program::LegacyScript(file) => {
                file.text.lines().last().unwrap().split(' ').map(str::to_owned).collect()
            }
        };
        let number = || words.get(1).and_then(|word| word.parse().ok()).unwrap();
        let end = match words.first().map(String::as_str) {
            Some("exit") => ProcessEnd::Exited(ExitStatus::Code(number())),
            Some("signal") => ProcessEnd::Exited(ExitStatus::Signal(number())),
            Some("missing") => ProcessEnd::NotStarted("\"missing\" was not found in PATH".into()),
            _ => ProcessEnd::Exited(ExitStatus::Code(0)),
        };
        let (mut outputs, mut exports) = (None, None);
        if let (Some("write"), Some(files)) = (words.first().map(String::as_str), &spawn.files) {
            for pair in words[1..].chunks(2) {
                let content = Some(FileContent::Bytes(pair[1].clone().into_bytes()));
                match &pair[0] {
                    path if *path == files.output => outputs = content,
                    path if *path == files.export => exports = content,
                    path => panic!("{path} is no file of {}", spawn.name),
                }
            }
        }
        Event::Exited { process: spawn.process, end, shell: None, outputs, exports, ran: None }
    }
}

impl Trace {
    pub(super) fn add(&mut self, effect: Effect) {
        match effect {
            Effect::Finish { outcome, root, lines, .. } => {
                self.finish = Some((outcome, self.tree.take_root(*root), lines));
            }
            effect => {
                if let Effect::Note(note) = &effect {
                    self.tree.add((**note).clone());
                }
                self.effects.push(effect);
            }
        }
    }
}

/// A machine driven by hand.
pub(super) struct Driven {
    pub(super) machine: Machine,
    pub(super) trace: Trace,
    pub(super) pending: Option<Event>,
    world: World,
}

impl Driven {
    pub(super) fn new(world: &World, spec: &JobSpec) -> Self {
        let machine = Machine::new(spec).unwrap_or_else(|findings| panic!("{findings:?}"));
        Self {
            machine,
            trace: Trace::default(),
            pending: Some(Event::Admitted { at: 0 }),
            world: world.clone(),
        }
    }

    pub(super) fn tell(&mut self, event: &Event) {
        for effect in self.machine.handle(event, 0) {
            assert!(self.trace.finish.is_none(), "an effect after the last");
            if let Some(answer) = self.world.answer(&effect) {
                self.pending = Some(answer);
            }
            self.trace.add(effect);
        }
    }

    pub(super) fn go_on(&mut self) -> bool {
        match self.pending.take() {
            Some(event) => {
                self.tell(&event);
                true
            }
            None => false,
        }
    }

    /// Feeds events until the machine waits for `call`.
    pub(super) fn go_on_to(&mut self, process: ProcessNumber) {
        while !matches!(&self.pending, Some(Event::Exited { process: id, .. } | Event::Fetched { process: id, .. }) if *id == process)
        {
            assert!(self.go_on(), "process {process} never began");
        }
    }
}

/// Returns `path` without `.`, `..` and empty segments.
fn normal(path: &str) -> String {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}
