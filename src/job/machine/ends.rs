//! How steps, functions and the job end: what they return, what a failure leaves, the tree of results
//! (language.md §14.1, §14.2 points 7 and 8, §14.4, §16).

use indexmap::IndexMap;

use crate::job::effect::Effect;
use crate::job::event::{FileContent, ProcessEnd};
use crate::lang::ast::{Body, Function, Outputs};
use crate::lang::convert::to_json;
use crate::lang::diagnostic::Diagnostic;
use crate::lang::output_file::{FileKind, OutputFileError};
use crate::lang::value::Value;
use crate::model::{ExecResult, ExitStatus, Kind, Outcome, StepResult, StepStatus};
use crate::plan::bind;
use crate::plan::returned::{self, Returned};

use super::frame::Leaf;
use super::{Machine, State, located};

/// Most findings of one file that a message lists, as many as an answer to Run (service.md §3.1).
const MAX_FINDINGS: usize = 20;

/// Most bytes of a bad line that are shown in debug mode.
const SHOWN_LINE: usize = 1024;

/// Why a step failed.
pub(super) struct Failure {
    /// Step that was not loaded: it has no result, so its name is in no frame (language.md §14.2).
    not_loaded: Option<String>,
    /// How many of the functions under way the message goes through; all of them without it.
    named: Option<usize>,
    /// What went wrong; at least one.
    details: Vec<String>,
    /// The process that failed.
    exit: Option<ExitStatus>,
}

impl Failure {
    /// Something went wrong with the step or function under way.
    pub(super) fn plain(detail: impl Into<String>) -> Self {
        Self { not_loaded: None, named: None, details: vec![detail.into()], exit: None }
    }

    /// The same with places in files.
    pub(super) fn at(diagnostics: &[Diagnostic]) -> Self {
        let mut details: Vec<String> = diagnostics.iter().take(MAX_FINDINGS).map(located).collect();
        if let Some(more) = diagnostics.len().checked_sub(MAX_FINDINGS).filter(|more| *more > 0) {
            details.push(format!("and {more} more"));
        }
        Self { not_loaded: None, named: None, details, exit: None }
    }

    /// A step could not be loaded.
    pub(super) fn loading(step: &str, diagnostics: &[Diagnostic]) -> Self {
        Self { not_loaded: Some(step.to_owned()), ..Self::at(diagnostics) }
    }

    /// The same for a step of one of the functions under way, the one at `index`.
    pub(super) fn loading_of(index: usize, step: &str, finding: Diagnostic) -> Self {
        Self { named: Some(index + 1), ..Self::loading(step, &[finding]) }
    }

    /// What a process returned cannot be used. A builtin's own file has no places that mean anything to people.
    fn returned(error: OutputFileError, function: &Function) -> Self {
        match &function.definition.body {
            Body::Exec(exec) if !function.file.starts_with("builtin://") => {
                let finding = Diagnostic::error(error.class, &function.file, exec.at, error.message);
                Self::at(&[finding.with_path("exec")])
            }
            _ => Self::plain(error.message),
        }
    }

    /// A process ended badly.
    fn process(status: ExitStatus) -> Self {
        Self { not_loaded: None, named: None, details: vec![format!("exec: {status}")], exit: Some(status) }
    }

    /// The same, and something had run short. How it ended stays the end of the message (language.md §14.4).
    fn short(of: &str, status: ExitStatus) -> Self {
        let detail = format!("{}: exec: {status}", one_line(of));
        Self { details: vec![detail], ..Self::process(status) }
    }
}

impl Machine {
    /// Starts the next step, or ends functions until there is one or the job is over.
    pub(super) fn proceed(&mut self) {
        loop {
            let Some(frame) = self.frames.last_mut() else { return };
            let next = frame.next;
            frame.next += 1;
            let loaded = std::sync::Arc::clone(&frame.loaded);
            let Body::Run(run) = &loaded.function.definition.body else { return };
            let ended = match run.steps.get(next) {
                Some(step) => self.begin_step(step).map(|()| false),
                None => self.end_sequence(),
            };
            match ended {
                Ok(true) => {}
                Ok(false) => return,
                Err(failure) => return self.fail(None, failure),
            }
        }
    }

    /// The last step of the innermost function has succeeded. Tells whether there is something to go on with.
    fn end_sequence(&mut self) -> Result<bool, Failure> {
        let outputs = self.sequence_outputs()?;
        let Some(frame) = self.frames.pop() else { return Ok(false) };
        let layers = frame.layers;
        let mut result = frame.into_result();
        result.outputs = to_json_map(&outputs);
        result.status = StepStatus::Success;
        Ok(self.succeeded(result, layers, outputs))
    }

    /// Outputs of the innermost function (language.md §4).
    fn sequence_outputs(&mut self) -> Result<IndexMap<String, Value>, Failure> {
        let Some(frame) = self.frames.last() else { return Ok(IndexMap::new()) };
        let loaded = std::sync::Arc::clone(&frame.loaded);
        let function = &loaded.function;
        let Body::Run(run) = &function.definition.body else { return Ok(IndexMap::new()) };
        let declared = match &function.spec.outputs {
            Outputs::Declared(declared) => declared,
            Outputs::Delegate => {
                let named = run.delegate.as_deref().and_then(|name| frame.steps.get(name));
                return Ok(named.cloned().unwrap_or_default());
            }
        };
        let (evaluated, used) = {
            let view = self.view_of_frame(frame);
            (bind::outputs(run, declared, &view), view.files_used.get())
        };
        self.make_files_if(used);
        let evaluated = evaluated.map_err(|finding| Failure::at(&[finding]))?;
        let outputs =
            returned::of_sequence(evaluated, declared, function).map_err(|errors| Failure::at(&errors))?;
        self.note_outputs(&outputs, &function.spec.outputs);
        Ok(outputs)
    }

    /// A process is over.
    pub(super) fn exited(
        &mut self,
        mut leaf: Leaf,
        end: &ProcessEnd,
        outputs: Option<&FileContent>,
        exports: Option<&FileContent>,
    ) {
        let status = match end {
            ProcessEnd::Exited(status) | ProcessEnd::Short { status, .. } => Some(*status),
            ProcessEnd::NotStarted(_) => None,
        };
        if let Some(exec) = &mut leaf.result.exec {
            exec.exit_code = ExecResult::code_of(status);
        }
        if let Some((cause, _)) = leaf.stopping {
            return self.stopped(cause, Some(leaf.into_result()));
        }
        let declared = &leaf.loaded.function.spec.outputs;
        let returned = match end {
            ProcessEnd::NotStarted(why) => Err(Failure::plain(format!("exec: {why}"))),
            ProcessEnd::Short { status, of } => Err(Failure::short(of, *status)),
            ProcessEnd::Exited(status) if !leaf.success.includes(*status) => Err(Failure::process(*status)),
            ProcessEnd::Exited(_) => {
                let (outputs, exports) = (content(outputs), content(exports));
                returned::of_process(declared, outputs, exports).map_err(|error| {
                    self.show_bad_line(
                        &error,
                        if error.file == FileKind::Output { outputs } else { exports },
                    );
                    Failure::returned(error, &leaf.loaded.function)
                })
            }
        };
        match returned {
            Ok(returned) => self.leaf_succeeded(leaf, returned),
            Err(failure) => self.fail(Some(leaf.into_result()), failure),
        }
    }

    /// Shows a line that could not be used, which may hold a secret, to who asked for everything (language.md §12).
    fn show_bad_line(&mut self, error: &OutputFileError, content: returned::Content<'_>) {
        let bad_line = content.ok().and_then(|content| error.bad_line(content));
        if let (true, Some(line)) = (self.constants.debug, bad_line) {
            let shown = line.get(..SHOWN_LINE).unwrap_or(line);
            let text = format!("debug: {} holds: {}", error.file.label(), String::from_utf8_lossy(shown));
            self.log(Kind::Err, one_line(&text));
        }
    }

    fn leaf_succeeded(&mut self, leaf: Leaf, returned: Returned) {
        self.note_outputs(&returned.outputs, &leaf.loaded.function.spec.outputs);
        let layers = leaf.layers;
        let mut result = leaf.into_result();
        result.outputs = to_json_map(&returned.outputs);
        result.exports.clone_from(&returned.exports);
        result.status = StepStatus::Success;
        self.environment.export(returned.exports);
        if self.succeeded(result, layers, returned.outputs) {
            self.proceed();
        }
    }

    /// Files the result of a step that has succeeded; the job's own ends it. Tells whether there is something to go
    /// on with.
    pub(super) fn succeeded(
        &mut self,
        result: StepResult,
        layers: usize,
        outputs: IndexMap<String, Value>,
    ) -> bool {
        for _ in 0..layers {
            self.environment.pop();
        }
        if let (Some(caller), Some(step)) = (self.frames.last_mut(), &result.step) {
            caller.steps.insert(step.name.clone(), outputs);
            self.file(result);
            return true;
        }
        self.over(Outcome::success(), Vec::new(), result);
        false
    }

    /// Ends the job because of `failure` in the step whose result is `under_way`, else in the innermost function or
    /// one of its steps that has no result.
    pub(super) fn fail(&mut self, under_way: Option<StepResult>, failure: Failure) {
        let leaf = under_way.as_ref().and_then(|result| result.step.as_ref()).map(|step| step.name.as_str());
        let frames = self.frames.iter().take(failure.named.unwrap_or(usize::MAX));
        let mut prefix: String =
            frames.filter_map(|frame| frame.name()).chain(leaf).map(step_prefix).collect();
        if let Some(step) = &failure.not_loaded {
            prefix.push_str(&step_prefix(step));
            prefix.push_str("failed to load: ");
        }
        let keep_words = failure.exit.is_some_and(|status| matches!(status, ExitStatus::Code(_)));
        let clean = |text: String| if keep_words { text } else { one_line(&text) };
        let message = clean(format!("{prefix}{}", failure.details.join("; ")));
        let mut details = failure.details.into_iter();
        let first = clean(format!("job failed: {prefix}{}", details.next().unwrap_or_default()));
        let lines = std::iter::once(first).chain(details.map(clean)).map(|line| (Kind::Err, line)).collect();
        let exit_code = failure.exit.map_or(-1, ExitStatus::job_code);
        let root = self.unwind(under_way, StepStatus::Failure);
        self.over(Outcome { exit_code, ..Outcome::failed(message) }, lines, root);
    }

    /// Ends everything under way with `status`, innermost first, and gives the root's result.
    pub(super) fn unwind(&mut self, under_way: Option<StepResult>, status: StepStatus) -> StepResult {
        let mut ended =
            under_way.or_else(|| self.frames.pop().map(|frame| frame.into_result())).unwrap_or_default();
        loop {
            ended.status = status;
            if self.frames.is_empty() {
                return ended;
            }
            self.file(ended);
            ended = self.frames.pop().map(|frame| frame.into_result()).unwrap_or_default();
        }
    }

    /// Hangs a result into the tree; one of the job's own list is shown at once (service.md §3.3).
    fn file(&mut self, result: StepResult) {
        if self.frames.len() == 1 {
            self.push(Effect::Emit(Box::new(result.clone())));
        }
        if let Some(caller) = self.frames.last_mut() {
            caller.sub_steps.push(result);
        }
    }

    /// The last effect.
    pub(super) fn over(&mut self, outcome: Outcome, lines: Vec<(Kind, String)>, root: StepResult) {
        self.push(Effect::Finish { outcome, root: Box::new(root), lines });
        self.state = State::Over;
        self.frames.clear();
    }

    /// Takes note of what is sensitive in outputs (language.md §11.5).
    fn note_outputs(&mut self, outputs: &IndexMap<String, Value>, declared: &Outputs) {
        for (name, value) in outputs {
            let sensitive = match declared {
                Outputs::Declared(declared) => {
                    declared.get(name).is_some_and(|declaration| declaration.sensitive)
                }
                Outputs::Delegate => false,
            };
            self.note(value, sensitive);
        }
    }

    /// Takes note of a value; `declared`: it is sensitive by declaration.
    pub(super) fn note(&mut self, value: &Value, declared: bool) {
        if declared {
            self.secrets.note_declared(value);
        } else {
            self.secrets.note_derived(value, &self.constants.vars);
        }
    }
}

fn content(file: Option<&FileContent>) -> returned::Content<'_> {
    match file {
        None => Ok(&[]),
        Some(FileContent::Bytes(bytes)) => Ok(bytes),
        Some(FileContent::Unreadable(why)) => Err(why),
    }
}

fn step_prefix(name: &str) -> String {
    format!("step \"{name}\": ")
}

pub(super) fn to_json_map(values: &IndexMap<String, Value>) -> IndexMap<String, serde_json::Value> {
    values.iter().map(|(name, value)| (name.clone(), to_json(value))).collect()
}

/// One line that cannot be taken for the end of a process: clients cut a message at these two words and read what
/// follows as a number (language.md §14.4).
pub(super) fn one_line(text: &str) -> String {
    text.replace(['\r', '\n'], " ").replace("exit status", "exit-status")
}
