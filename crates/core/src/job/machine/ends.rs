//! Ends of steps, functions and the job: returned values, failures and the tree of results (language.md §14.1, §14.2
//! points 7 and 8, §14.4, §16).

use indexmap::IndexMap;
use serde_json::Value as Json;
use step_runner_lang::ast::{Body, Function, Outputs};
use step_runner_lang::convert::to_json;
use step_runner_lang::diagnostic::Diagnostic;
use step_runner_lang::output_file::{FileKind, OutputFileError};
use step_runner_lang::value::{Data, Value};
use step_runner_log::mask::MASK_TEXT;
use step_runner_model::{ExecResult, ExitStatus, LogChannel, Outcome, StepResult, StepStatus};

use crate::job::effect::Effect;
use crate::job::event::{FileContent, ProcessEnd, Unusable};
use crate::plan::bind;
use crate::plan::returned::{self, ProcessOutputs};

use super::frame::{FunctionFrame, Leaf, Stopping};
use super::{Machine, MachineState, located};

/// Maximum number of findings of one file in a message, as in an answer to Run (service.md §3.1).
const MAX_FINDINGS: usize = 20;

/// Longest bad line in bytes that debug mode shows. Longer ones are left out: cutting before masking could split a
/// secret.
const MAX_SHOWN_LINE: usize = 64 << 10;

/// Room in bytes that must be left in the results beside a command, so that its success cannot fail for want of room:
/// more than the name of a shell, which becomes known when the process runs.
const SPARE_ROOM: usize = 1 << 20;

pub(super) struct Failure {
    /// Name of a step that was not loaded: it has no result, so its name is in no frame (language.md §14.2).
    not_loaded: Option<String>,
    /// Number of functions under way that the message names, outermost first; `None` for all.
    named: Option<usize>,
    /// Descriptions, at least one.
    details: Vec<String>,
    exit: Option<ExitStatus>,
}

impl Failure {
    /// A failure of the step or function under way.
    pub(super) fn plain(detail: impl Into<String>) -> Self {
        Self { not_loaded: None, named: None, details: vec![detail.into()], exit: None }
    }

    /// A failure with positions in files.
    pub(super) fn at(diagnostics: &[Diagnostic]) -> Self {
        let mut details: Vec<String> = diagnostics.iter().take(MAX_FINDINGS).map(located).collect();
        if let Some(more) = diagnostics.len().checked_sub(MAX_FINDINGS).filter(|more| *more > 0) {
            details.push(format!("and {more} more"));
        }
        Self { not_loaded: None, named: None, details, exit: None }
    }

    pub(super) fn loading(step: &str, diagnostics: &[Diagnostic]) -> Self {
        Self { not_loaded: Some(step.to_owned()), ..Self::at(diagnostics) }
    }

    /// A failure to load a step of the function under way at `index`.
    pub(super) fn loading_of(index: usize, step: &str, finding: Diagnostic) -> Self {
        Self { named: Some(index + 1), ..Self::loading(step, &[finding]) }
    }

    /// A failure because returned values cannot be used. Positions in a builtin's own file mean nothing to people.
    fn returned(error: OutputFileError, function: &Function) -> Self {
        match &function.definition.body {
            Body::Exec(exec) if !function.file.starts_with("builtin://") => {
                let finding = Diagnostic::error(error.class, &function.file, exec.at, error.message);
                Self::at(&[finding.with_path("exec")])
            }
            _ => Self::plain(error.message),
        }
    }

    fn process(status: ExitStatus) -> Self {
        Self { not_loaded: None, named: None, details: vec![format!("exec: {status}")], exit: Some(status) }
    }

    /// A failure after a shortage. The message still ends with the exit status (language.md §14.4).
    fn short(of: &str, status: ExitStatus) -> Self {
        let detail = format!("{of}: exec: {status}");
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

    /// Ends the innermost function after its last step has succeeded. True if the job goes on.
    fn end_sequence(&mut self) -> Result<bool, Failure> {
        let outputs = self.sequence_outputs()?;
        let Some(frame) = self.frames.pop() else { return Ok(false) };
        let (layers, made_files) = (frame.layers, frame.files_made.then_some(frame.call));
        let mut result = frame.into_result();
        result.outputs = to_json_map(&outputs);
        result.status = StepStatus::Success;
        let goes_on = self.succeeded(result, layers, outputs);
        if let Some(call) = made_files.filter(|_| goes_on) {
            self.push(Effect::RemoveFiles(call));
        }
        Ok(goes_on)
    }

    /// Returns the outputs of the innermost function (language.md §4).
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

    /// True if the job is over once a process of `function` that writes no file has succeeded. Its result so far is
    /// `result`. Nothing that a success evaluates or weighs may fail then: the log is closed before it happens.
    pub(super) fn ends_with(&self, function: &Function, result: &StepResult) -> bool {
        let is_last = |frame: &FunctionFrame| match &frame.loaded.function.definition.body {
            Body::Run(run) => frame.has_begun_all() && run.outputs.is_empty(),
            Body::Exec(_) => false,
        };
        let has_room = self.room.checked_sub(SPARE_ROOM).and_then(|room| result.take_returned_from(room));
        returns_nothing(&function.spec.outputs)
            && has_room.is_some()
            && self
                .frames
                .iter()
                .all(|frame| is_last(frame) && returns_nothing(&frame.loaded.function.spec.outputs))
    }

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
        let failure = match end {
            ProcessEnd::NotStarted(why) => Failure::plain(format!("exec: {why}")),
            ProcessEnd::Short { status, of } => Failure::short(of, *status),
            ProcessEnd::Exited(status) if !leaf.success.includes(*status) => Failure::process(*status),
            ProcessEnd::Exited(status) => {
                if let Some(Stopping { cause, .. }) = leaf.stopping {
                    set_exit_code(&mut leaf, Some(*status));
                    return self.stopped(cause, Some(leaf.into_result()));
                }
                let returned = self.returned(&leaf, outputs, exports);
                return self.returned_by(leaf, *status, returned);
            }
        };
        set_exit_code(&mut leaf, status);
        if let Some(Stopping { cause, .. }) = leaf.stopping {
            return self.stopped(cause, Some(leaf.into_result()));
        }
        self.fail(Some(leaf.into_result()), failure);
    }

    pub(super) fn returned(
        &self,
        leaf: &Leaf,
        outputs: Option<&FileContent>,
        exports: Option<&FileContent>,
    ) -> Result<ProcessOutputs, Unusable> {
        let (outputs, exports) = (content(outputs), content(exports));
        returned::of_process(&leaf.loaded.function.spec.outputs, outputs, exports).map_err(|error| {
            let content = if error.file == FileKind::Output { outputs } else { exports };
            let bad_line = content.ok().filter(|_| self.constants.debug);
            let line = bad_line.and_then(|content| error.bad_line(content)).map(<[u8]>::to_vec);
            Unusable { error, line }
        })
    }

    /// Takes the values of a process that has succeeded, even if a cancel came after its end.
    pub(super) fn returned_by(
        &mut self,
        mut leaf: Leaf,
        status: ExitStatus,
        returned: Result<ProcessOutputs, Unusable>,
    ) {
        set_exit_code(&mut leaf, Some(status));
        match returned {
            Ok(returned) => self.leaf_succeeded(leaf, returned),
            Err(Unusable { error, line }) => {
                self.show_bad_line(&error, line.as_deref());
                let failure = Failure::returned(error, &leaf.loaded.function);
                self.fail(Some(leaf.into_result()), failure);
            }
        }
    }

    /// Logs a line that could not be used, for a job in debug mode. It may hold a secret (language.md §12).
    fn show_bad_line(&mut self, error: &OutputFileError, line: Option<&[u8]>) {
        if let Some(line) = line {
            let shown = match line.len() {
                ..=MAX_SHOWN_LINE => format!("holds: {}", String::from_utf8_lossy(line)),
                length => format!("holds {length} bytes, too many to show"),
            };
            self.log(LogChannel::Err, format!("debug: {} {shown}", error.file.label()));
        }
    }

    fn leaf_succeeded(&mut self, leaf: Leaf, returned: ProcessOutputs) {
        self.note_outputs(&returned.outputs, &leaf.loaded.function.spec.outputs);
        self.secrets.note_written(&returned.written);
        let (call, has_files) = (leaf.call, leaf.has_files || leaf.has_program_file);
        let layers = leaf.layers;
        let mut result = leaf.into_result();
        result.outputs = to_json_map(&returned.outputs);
        result.exports.clone_from(&returned.exports);
        result.status = StepStatus::Success;
        self.environment.export(returned.exports);
        if self.succeeded(result, layers, returned.outputs) {
            if has_files {
                self.push(Effect::RemoveFiles(call));
            }
            self.proceed();
        }
    }

    /// Files the result of a step that has succeeded. The root's result ends the job. True if the job goes on.
    pub(super) fn succeeded(
        &mut self,
        mut result: StepResult,
        layers: usize,
        outputs: IndexMap<String, Value>,
    ) -> bool {
        self.note_end(&mut result);
        for _ in 0..layers {
            self.environment.pop();
        }
        if let Err(message) = self.keep_returned(&result) {
            self.fail(Some(result), Failure::plain(message));
            return false;
        }
        if let (Some(caller), Some(step)) = (self.frames.last_mut(), &result.step) {
            caller.steps.insert(step.name.clone(), outputs);
            self.file(result);
            return true;
        }
        self.over(Outcome::success(), Vec::new(), result);
        false
    }

    /// Ends the job because of `failure`. It concerns the step whose result is `under_way`, else the innermost function
    /// or one of its steps that has no result.
    pub(super) fn fail(&mut self, under_way: Option<StepResult>, failure: Failure) {
        let leaf = under_way.as_ref().and_then(|result| result.step.as_ref()).map(|step| step.name.as_str());
        let frames = self.frames.iter().take(failure.named.unwrap_or(usize::MAX));
        let mut prefix: String =
            frames.filter_map(|frame| frame.name()).chain(leaf).map(step_prefix).collect();
        if let Some(step) = &failure.not_loaded {
            prefix.push_str(&step_prefix(step));
            prefix.push_str("failed to load: ");
        }
        let message = format!("{prefix}{}", failure.details.join("; "));
        let mut details = failure.details.into_iter();
        let first = format!("job failed: {prefix}{}", details.next().unwrap_or_default());
        let lines = std::iter::once(first).chain(details).map(|line| (LogChannel::Err, line)).collect();
        let exit_code = failure.exit.map_or(-1, ExitStatus::job_code);
        let root = self.unwind(under_way, StepStatus::Failure);
        self.over(Outcome { exit_code, ..Outcome::failed(message) }, lines, root);
    }

    /// Ends everything under way with `status`, innermost first. Returns the root's result.
    pub(super) fn unwind(&mut self, under_way: Option<StepResult>, status: StepStatus) -> StepResult {
        let mut ended =
            under_way.or_else(|| self.frames.pop().map(|frame| frame.into_result())).unwrap_or_default();
        loop {
            ended.status = status;
            self.note_end(&mut ended);
            if self.frames.is_empty() {
                return ended;
            }
            self.file(ended);
            ended = self.frames.pop().map(|frame| frame.into_result()).unwrap_or_default();
        }
    }

    /// Adds a result to the tree. A result of the job's own list is emitted at once (service.md §3.3).
    fn file(&mut self, result: StepResult) {
        if self.frames.len() == 1 {
            self.push(Effect::Emit(Box::new(result.clone())));
        } else {
            self.tell_end(&result);
        }
        if let Some(caller) = self.frames.last_mut() {
            caller.sub_steps.push(result);
        }
    }

    pub(super) fn over(&mut self, outcome: Outcome, lines: Vec<(LogChannel, String)>, root: StepResult) {
        // The files of all steps are removed at the job's end.
        self.effects.retain(|effect| !matches!(effect, Effect::RemoveFiles(_)));
        self.push(Effect::Finish { outcome, root: Box::new(root), lines });
        self.state = MachineState::Over;
        self.frames.clear();
    }

    /// Notes sensitive values in outputs (language.md §11.5).
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

    /// Notes secrets in a value. `declared` is true if its declaration makes it sensitive.
    pub(super) fn note(&mut self, value: &Value, declared: bool) {
        if declared {
            self.secrets.note_declared(value);
        } else {
            self.secrets.note_derived(value, &self.constants.vars);
        }
    }
}

/// True if a function declares no outputs.
pub(super) fn returns_nothing(outputs: &Outputs) -> bool {
    matches!(outputs, Outputs::Declared(declared) if declared.is_empty())
}

fn set_exit_code(leaf: &mut Leaf, status: Option<ExitStatus>) {
    if let Some(exec) = &mut leaf.result.exec {
        exec.exit_code = ExecResult::code_of(status);
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

pub(super) fn to_json_map(values: &IndexMap<String, Value>) -> IndexMap<String, Json> {
    values.iter().map(|(name, value)| (name.clone(), to_shown(value))).collect()
}

/// Converts a value to the form in results. Sensitive texts are masked later, as phrases; sensitive numbers and
/// booleans are replaced here.
pub(super) fn to_shown(value: &Value) -> Json {
    match &value.data {
        Data::Bool(_) | Data::Number(_) if value.sensitive => Json::from(MASK_TEXT),
        Data::Array(items) => Json::Array(items.iter().map(to_shown).collect()),
        Data::Object(members) => {
            Json::Object(members.iter().map(|(key, member)| (key.clone(), to_shown(member))).collect())
        }
        Data::Null | Data::Bool(_) | Data::Number(_) | Data::String(_) => to_json(value),
    }
}
