//! Starts of steps and functions (language.md §14.2 points 1 to 6).

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use indexmap::IndexMap;
use step_runner_lang::ast::{Body, Exec, Function, Reference, Step};
use step_runner_lang::diagnostic::{Class, Diagnostic};
use step_runner_lang::document::CALL_LIMIT;
use step_runner_lang::eval::{self, Context, Steps};
use step_runner_lang::reference;
use step_runner_lang::value::{EvaluatedText, Value};
use step_runner_model::{ExecResult, LogChannel, ReferenceInfo, StepFacts, StepInfo, StepResult};

use crate::job::effect::{Effect, Program, Spawn, StepFiles, Success};
use crate::job::event::{CallId, FetchFailure, Fetched};
use crate::plan::library::Loaded;
use crate::plan::locate::{self, Target};
use crate::plan::{bind, builtin};

use super::ends::{Failure, to_shown};
use super::frame::{FunctionFrame, Leaf, Loading, started, step_before};
use super::{Machine, MachineState, Root};

/// A function about to begin.
pub(super) struct Call {
    pub(super) id: CallId,
    pub(super) files: StepFiles,
    pub(super) loaded: Arc<Loaded>,
    /// `None` for the root.
    pub(super) step: Option<StepInfo>,
    pub(super) inputs: IndexMap<String, Value>,
    pub(super) func_dir: Arc<str>,
    pub(super) tree: Option<Arc<str>>,
    /// Number of environment layers that its step has pushed.
    pub(super) layers: usize,
    pub(super) facts: StepFacts,
}

/// The process of a function.
pub(super) struct Process {
    pub(super) program: Program,
    /// The command as results show it.
    pub(super) command: Vec<String>,
    pub(super) work_dir: String,
    pub(super) cancel_timeout: Option<Duration>,
    pub(super) success: Success,
    /// True if something refers to its files.
    pub(super) files_used: bool,
}

impl Call {
    /// Creates the call of a loaded function, still without the inputs and facts that its step gives it. The last
    /// argument is its `func_dir` and, if it was fetched, the tree that it is in.
    pub(super) fn unbound(
        id: CallId,
        files: StepFiles,
        loaded: Arc<Loaded>,
        (func_dir, tree): (Arc<str>, Option<Arc<str>>),
    ) -> Self {
        let (inputs, facts) = (IndexMap::new(), StepFacts::default());
        Self { id, files, loaded, step: None, inputs, func_dir, tree, layers: 1, facts }
    }
}

impl Machine {
    pub(super) fn begin(&mut self, root: Root) {
        self.times.begin();
        self.warn(&root.loaded.function.warnings);
        self.note_inputs(&root.inputs, &root.loaded);
        let (id, files) = self.next_call();
        let call = Call::unbound(id, files, root.loaded, (root.func_dir, None));
        let facts = self.facts(&call.loaded, None);
        self.enter(Call { inputs: root.inputs, layers: 0, facts, ..call });
    }

    /// Begins a step of the innermost function: begins a builtin at once, and requests the fetch of any other function.
    pub(super) fn begin_step(&mut self, step: &Step) -> Result<(), Failure> {
        self.times.begin();
        let (id, files) = self.next_call();
        let Some(caller) = self.frames.last() else { return Ok(()) };
        let caller_loaded = Arc::clone(&caller.loaded);
        let function = &caller_loaded.function;
        if self.frames.len() > CALL_LIMIT {
            return Err(self.too_deep(step, function));
        }
        let (target, used) = {
            let view = self.view_of_frame(caller);
            (locate::target(step, function, &caller.func_dir, &view), view.files_used.get())
        };
        let inside = caller.tree.as_deref().map(str::to_owned);
        self.make_files_if(used);
        match target.map_err(|finding| Failure::loading(&step.name, &[finding]))? {
            Target::Builtin(name) => self.begin_builtin(step, &name, id, files),
            Target::Fetch(reference) => {
                let is_remote = matches!(reference, Reference::Git { .. } | Reference::Oci { .. });
                let environment = if is_remote { self.environment.to_process() } else { Vec::new() };
                for secret in reference::credentials(&reference) {
                    // Results hold the reference, and a server may echo it (language.md §16).
                    self.secrets.note_url_part(&secret);
                }
                let wanted = Box::new(reference.clone());
                self.push(Effect::Fetch { call: id, reference: wanted, inside, environment });
                self.state = MachineState::Loading(Box::new(Loading { call: id, files, reference }));
                Ok(())
            }
        }
    }

    /// Returns the failure of the step that exceeds the nesting limit. If the calls form a cycle, it names the step
    /// that closes the cycle, because the deeper calls only repeat it.
    fn too_deep(&self, step: &Step, function: &Function) -> Failure {
        let message = format!("functions call each other more than {CALL_LIMIT} levels deep");
        let closing = self.circle().and_then(|index| {
            let frame = self.frames.get(index)?;
            Some((index, &frame.loaded.function, frame.current()?))
        });
        let finding = |step: &Step, function: &Function, message: String| {
            Diagnostic::error(Class::Limit, &function.file, step.at, message).with_path(step.path.clone())
        };
        match closing {
            Some((index, function, step)) => {
                let message =
                    format!("the function calls itself, directly or through others, without end: {message}");
                Failure::loading_of(index, &step.name, finding(step, function, message))
            }
            None => Failure::loading(&step.name, &[finding(step, function, message)]),
        }
    }

    /// Returns the index of the first function under way whose call closes a cycle: all later calls repeat the cycle.
    fn circle(&self) -> Option<usize> {
        let files: Vec<String> =
            self.frames.iter().map(|frame| locate::tidy(&frame.loaded.function.file)).collect();
        let count = files.len();
        let repeats =
            |length: &usize| files.get(count - length..) == files.get(count - 2 * length..count - length);
        let length = (1..=count / 2).find(repeats)?;
        let differs = |index: &usize| files.get(*index) != files.get(index + length);
        let start = (0..count - length).rev().find(differs).map_or(0, |index| index + 1);
        Some(start + length - 1)
    }

    pub(super) fn fetched(&mut self, loading: Loading, result: &Result<Fetched, FetchFailure>) {
        if let Err(failure) = self.load(loading, result) {
            self.fail(None, failure);
        }
    }

    fn load(&mut self, loading: Loading, result: &Result<Fetched, FetchFailure>) -> Result<(), Failure> {
        let Some(caller) = self.frames.last() else { return Ok(()) };
        // A local function beside a fetched function belongs to the same tree.
        let inherited = caller.tree.clone().filter(|_| matches!(loading.reference, Reference::Local { .. }));
        let caller = Arc::clone(&caller.loaded);
        let Some(step) = self.current_step(&caller) else { return Ok(()) };
        let fetched = result.as_ref().map_err(|failure| {
            let finding = Diagnostic::error(failure.class, &caller.function.file, step.at, &failure.message);
            Failure::loading(&step.name, &[finding.with_path(step.path.clone())])
        })?;
        if let Some(line) = pin(&step.name, &loading.reference, fetched) {
            self.log(LogChannel::Out, line);
        }
        let (loaded, fresh) = self
            .library
            .load(&fetched.path, &fetched.text)
            .map_err(|findings| Failure::loading(&step.name, &findings))?;
        if fresh {
            self.secrets.note_references(&loaded.function);
            self.warn(&loaded.function.warnings);
        }
        let filename = fetched.path.rsplit('/').next();
        let info = locate::info(&loading.reference, filename);
        let place = (fetched.dir.as_str().into(), fetched.tree.as_deref().map(Into::into).or(inherited));
        let call = Call::unbound(loading.call, loading.files, loaded, place);
        self.bind_and_enter(step, info, call, None)
    }

    /// Returns the step of the innermost function, `caller`, that began last.
    fn current_step<'f>(&self, caller: &'f Loaded) -> Option<&'f Step> {
        step_before(caller, self.frames.last()?.next)
    }

    /// Evaluates the inputs and variables that `step` passes, in its caller's context, and begins the function. `kind`
    /// is set for a builtin.
    pub(super) fn bind_and_enter(
        &mut self,
        step: &Step,
        reference: ReferenceInfo,
        mut call: Call,
        kind: Option<builtin::BuiltinKind>,
    ) -> Result<(), Failure> {
        let Some(caller) = self.frames.last() else { return Ok(()) };
        let caller_file = Arc::clone(&caller.loaded.function.file);
        let (given, used, own_used) = {
            let view = self.view_of_frame(caller);
            // A script may name its own files: it has no other way to export (language.md §10).
            let own = self.view(&caller.inputs, &caller.steps, &caller.func_dir, &call.files);
            let inputs_view = if kind.is_some_and(builtin::BuiltinKind::is_script) { &own } else { &view };
            let declared = &call.loaded.function.spec.inputs;
            let given = bind::given(step, declared, &caller.loaded.function, inputs_view, &view);
            (given, view.files_used.get(), own.files_used.get())
        };
        self.make_files_if(used);
        let given = given.map_err(|findings| Failure::loading(&step.name, &findings))?;
        self.note_inputs(&given.inputs, &call.loaded);
        given.env.values().for_each(|text| self.note_text(text));
        let inputs =
            given.named.iter().filter_map(|name| Some((name.clone(), to_shown(given.inputs.get(name)?))));
        call.step = Some(StepInfo {
            name: step.name.clone(),
            reference,
            env: given.env.iter().map(|(name, text)| (name.clone(), text.text.clone())).collect(),
            inputs: inputs.collect(),
        });
        self.environment.push(given.env);
        if let Err(message) = self.keep_given(&given.inputs) {
            let finding = Diagnostic::error(Class::Limit, &caller_file, step.at, message);
            return Err(Failure::loading(&step.name, &[finding.with_path(step.path.clone())]));
        }
        call.inputs = given.inputs;
        call.facts = self.facts(&call.loaded, Some(step));
        if let Some(kind) = kind {
            return self.enter_builtin(kind, step, call, own_used);
        }
        self.enter(call);
        Ok(())
    }

    /// Begins a function: first its `env`, then its process or its steps.
    fn enter(&mut self, call: Call) {
        self.tell_start(call.step.as_ref(), &call.facts);
        let loaded = Arc::clone(&call.loaded);
        let definition = &loaded.function.definition;
        let (env, env_used) = {
            let view = self.view_of_call(&call);
            (eval::evaluate_definition_env(&definition.env, &view), view.files_used.get())
        };
        let env = match env {
            Ok(env) => env,
            Err(finding) => {
                let result = self.result_before_start(call);
                return self.fail(Some(result), Failure::at(&[finding]));
            }
        };
        env.values().for_each(|text| self.note_text(text));
        self.environment.push(env);
        match &definition.body {
            Body::Exec(exec) => self.enter_exec(call, exec, env_used),
            Body::Run(_) => self.enter_sequence(call, env_used),
        }
    }

    fn enter_sequence(&mut self, call: Call, env_used: bool) {
        self.frames.push(Box::new(FunctionFrame {
            loaded: call.loaded,
            func_dir: call.func_dir,
            tree: call.tree,
            inputs: call.inputs,
            steps: Steps::new(),
            next: 0,
            layers: call.layers + 1,
            files: call.files,
            call: call.id,
            files_made: false,
            step: call.step.map(Box::new),
            env: self.environment.above_base(),
            sub_steps: Vec::new(),
            facts: call.facts,
        }));
        self.make_files_if(env_used);
        self.proceed();
    }

    fn enter_exec(&mut self, call: Call, exec: &Exec, env_used: bool) {
        let (evaluated, used) = {
            let view = self.view_of_call(&call);
            (command_line(exec, &view), view.files_used.get())
        };
        match evaluated {
            Ok((command, work_dir)) => {
                command.iter().chain(&work_dir).for_each(|text| self.note_text(text));
                let work_dir = work_dir.map_or_else(
                    || self.constants.work_dir.to_string(),
                    |text| locate::absolute(&self.constants.work_dir, &text.text),
                );
                let command: Vec<String> = command.into_iter().map(|text| text.text).collect();
                let process = Process {
                    program: Program::Command(command.clone()),
                    command,
                    work_dir,
                    cancel_timeout: exec.cancel_timeout,
                    success: Success::ExitCode,
                    files_used: used || env_used,
                };
                let layers = call.layers + 1;
                self.spawn(call, process, layers);
            }
            Err(failure) => {
                let result = self.result_before_start(call);
                self.fail(Some(result), failure);
            }
        }
    }

    /// Returns the result of a function that has no process, or whose process could not be described.
    pub(super) fn result_before_start(&self, call: Call) -> StepResult {
        let definition = Some(call.loaded.definition());
        StepResult { definition, ..started(call.step, call.facts, self.environment.above_base()) }
    }

    /// Starts the process of a function. `layers` layers of the environment end with it.
    pub(super) fn spawn(&mut self, call: Call, process: Process, layers: usize) {
        let env = self.environment.to_process();
        self.spawn_with(call, process, layers, env);
    }

    /// Starts the process of a function with `env` as its whole environment.
    pub(super) fn spawn_with(
        &mut self,
        call: Call,
        process: Process,
        layers: usize,
        env: Vec<(Vec<u8>, Vec<u8>)>,
    ) {
        let Process { program, command, work_dir, cancel_timeout, success, files_used } = process;
        let name = self.announce(&call);
        let env = self.environment.placed(env, &work_dir);
        let mut result = started(call.step, call.facts, self.environment.above_base());
        result.exec = Some(ExecResult { command, work_dir: work_dir.clone(), exit_code: 0 });
        let ends_job = !files_used && self.ends_with(&call.loaded.function, &result);
        let has_program_file = program.has_file();
        self.push(Effect::Spawn(Box::new(Spawn {
            call: call.id,
            name,
            program,
            env,
            work_dir,
            success,
            files: files_used.then_some(call.files),
            ends_job,
        })));
        self.state = MachineState::Running(Box::new(Leaf {
            call: call.id,
            loaded: call.loaded,
            layers,
            cancel_timeout,
            success,
            has_files: files_used,
            has_program_file,
            stopping: None,
            result,
        }));
    }

    /// Logs the start of an exec function or a builtin (language.md §14.2). Returns the name of its step.
    pub(super) fn announce(&mut self, call: &Call) -> String {
        let name = call.step.as_ref().map_or(ROOT, |step| step.name.as_str()).to_owned();
        self.log(LogChannel::Out, format!("Running step name={name}"));
        name
    }

    pub(super) fn view_of_frame<'m>(&'m self, frame: &'m FunctionFrame) -> Context<'m> {
        self.view(&frame.inputs, &frame.steps, &frame.func_dir, &frame.files)
    }

    /// Returns the context for expressions of a function that is about to begin: none of its steps has run.
    fn view_of_call<'m>(&'m self, call: &'m Call) -> Context<'m> {
        self.view(&call.inputs, &self.constants.no_steps, &call.func_dir, &call.files)
    }

    fn view<'m>(
        &'m self,
        inputs: &'m IndexMap<String, Value>,
        steps: &'m Steps,
        func_dir: &'m str,
        files: &'m StepFiles,
    ) -> Context<'m> {
        Context {
            env: &self.environment,
            vars: &self.constants.vars,
            inputs,
            steps,
            func_dir,
            work_dir: &self.constants.work_dir,
            output_file: &files.output,
            export_file: &files.export,
            files_used: Cell::new(false),
            numbers: self.secrets.numbers(),
        }
    }

    /// Makes the files of the innermost function if an expression has named one.
    pub(super) fn make_files_if(&mut self, used: bool) {
        if !used {
            return;
        }
        if let Some(frame) = self.frames.last_mut()
            && !std::mem::replace(&mut frame.files_made, true)
        {
            let files = frame.files.clone();
            self.push(Effect::MakeFiles(files));
        }
    }

    fn note_inputs(&mut self, inputs: &IndexMap<String, Value>, loaded: &Loaded) {
        for (name, value) in inputs {
            let declaration = loaded.function.spec.inputs.get(name);
            self.note(value, declaration.is_some_and(|declaration| declaration.sensitive));
        }
    }

    fn note_text(&mut self, text: &EvaluatedText) {
        self.secrets.note_text(text, &self.constants.vars);
    }
}

/// Returns the log line that records the fetched version of a function (threat-model.md §4.6).
pub(super) fn pin(step: &str, reference: &Reference, fetched: &Fetched) -> Option<String> {
    let version = fetched.version.as_deref()?;
    let origin = reference::origin(reference)?;
    let what = if matches!(reference, Reference::Git { .. }) { "commit" } else { "digest" };
    Some(format!("Fetched step name={step} from {origin}: {what} {version}"))
}

/// Name of the root, which has no step (language.md §1).
const ROOT: &str = "root";

fn command_line(
    exec: &Exec,
    view: &Context<'_>,
) -> Result<(Vec<EvaluatedText>, Option<EvaluatedText>), Failure> {
    let at = |finding: Diagnostic| Failure::at(&[finding]);
    let command = eval::evaluate_texts(&exec.command, view).map_err(at)?;
    let work_dir =
        exec.work_dir.as_ref().map(|path| eval::evaluate_text(path, view)).transpose().map_err(at)?;
    if command.first().is_none_or(|program| program.text.is_empty()) {
        return Err(Failure::plain("exec: the command is empty"));
    }
    Ok((command, work_dir.filter(|path| !path.text.is_empty())))
}
