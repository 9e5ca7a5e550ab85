//! How steps and functions begin (language.md §14.2 points 1 to 6).

use std::cell::Cell;
use std::sync::Arc;

use indexmap::IndexMap;

use crate::job::effect::{Effect, Program, ScriptFile, Spawn, StepFiles};
use crate::job::event::{CallId, FetchFailure, Fetched};
use crate::lang::ast::{Body, Exec, Reference, Step};
use crate::lang::convert::to_json;
use crate::lang::diagnostic::{Class, Diagnostic};
use crate::lang::eval::{self, Context, Steps};
use crate::lang::value::{Data, Text, Value};
use crate::model::{ExecResult, Kind, ReferenceInfo, StepInfo, StepResult};
use crate::plan::library::Loaded;
use crate::plan::locate::{self, Target};
use crate::plan::{bind, builtin};

use super::ends::Failure;
use super::frame::{Frame, Leaf, Loading, started};
use super::{Machine, Root, State};

/// Deepest nesting of calls (language.md §6); the steps of the job's own list have depth 1.
const MAX_DEPTH: usize = 64;

/// A function about to begin.
struct Call {
    id: CallId,
    files: StepFiles,
    loaded: Arc<Loaded>,
    /// `None` for the root.
    step: Option<StepInfo>,
    inputs: IndexMap<String, Value>,
    func_dir: Arc<str>,
    tree: Option<Arc<str>>,
    /// Environment frames that its step has put on top.
    layers: usize,
}

impl Machine {
    /// The job has its slot.
    pub(super) fn begin(&mut self, root: Root) {
        self.warn(&root.loaded.function.warnings);
        self.note_inputs(&root.inputs, &root.loaded);
        let (id, files) = self.next_call();
        self.enter(Call {
            id,
            files,
            loaded: root.loaded,
            step: None,
            inputs: root.inputs,
            func_dir: root.func_dir,
            tree: None,
            layers: 0,
        });
    }

    /// Begins a step of the innermost function: a builtin at once, else with the search for its function.
    pub(super) fn begin_step(&mut self, step: &Step) -> Result<(), Failure> {
        let (id, files) = self.next_call();
        let Some(caller) = self.frames.last() else { return Ok(()) };
        let caller_loaded = Arc::clone(&caller.loaded);
        let function = &caller_loaded.function;
        if self.frames.len() > MAX_DEPTH {
            let message = format!("functions call each other more than {MAX_DEPTH} levels deep");
            let finding = Diagnostic::error(Class::Limit, &function.file, step.at, message);
            return Err(Failure::loading(&step.name, &[finding.with_path(step.path.clone())]));
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
                self.push(Effect::Fetch { call: id, reference: reference.clone(), inside });
                self.state = State::Loading(Box::new(Loading { call: id, files, reference }));
                Ok(())
            }
        }
    }

    fn begin_builtin(
        &mut self,
        step: &Step,
        name: &str,
        id: CallId,
        files: StepFiles,
    ) -> Result<(), Failure> {
        let Some(caller) = self.frames.last() else { return Ok(()) };
        let loaded = builtin::find(name).map_err(|(class, message)| {
            let finding = Diagnostic::error(class, &caller.loaded.function.file, step.at, message);
            Failure::loading(&step.name, &[finding.with_path(step.path.clone())])
        })?;
        let func_dir = Arc::clone(&caller.func_dir);
        self.bind_and_enter(step, builtin::info(name), id, files, loaded, (func_dir, None))
    }

    /// A function has been found, or not.
    pub(super) fn fetched(&mut self, loading: Loading, result: &Result<Fetched, FetchFailure>) {
        if let Err(failure) = self.load(loading, result) {
            self.fail(None, failure);
        }
    }

    fn load(&mut self, loading: Loading, result: &Result<Fetched, FetchFailure>) -> Result<(), Failure> {
        let Some(caller) = self.frames.last() else { return Ok(()) };
        // What a fetched function finds beside itself belongs to the same tree.
        let inherited = caller.tree.clone().filter(|_| matches!(loading.reference, Reference::Local { .. }));
        let caller = Arc::clone(&caller.loaded);
        let Some(step) = self.current_step(&caller) else { return Ok(()) };
        let fetched = result.as_ref().map_err(|failure| {
            let finding = Diagnostic::error(failure.class, &caller.function.file, step.at, &failure.message);
            Failure::loading(&step.name, &[finding.with_path(step.path.clone())])
        })?;
        let (loaded, fresh) = self
            .library
            .load(&fetched.path, &fetched.text)
            .map_err(|findings| Failure::loading(&step.name, &findings))?;
        if fresh {
            self.warn(&loaded.function.warnings);
        }
        let filename = fetched.path.rsplit('/').next();
        let info = locate::info(&loading.reference, filename);
        let place = (fetched.dir.as_str().into(), fetched.tree.as_deref().map(Into::into).or(inherited));
        self.bind_and_enter(step, info, loading.call, loading.files, loaded, place)
    }

    /// The step of the innermost function, `caller`, that began last.
    fn current_step<'f>(&self, caller: &'f Loaded) -> Option<&'f Step> {
        let Body::Run(run) = &caller.function.definition.body else { return None };
        run.steps.get(self.frames.last()?.next.checked_sub(1)?)
    }

    /// Evaluates what `step` gives, in its caller's context, and begins the function.
    fn bind_and_enter(
        &mut self,
        step: &Step,
        reference: ReferenceInfo,
        id: CallId,
        files: StepFiles,
        loaded: Arc<Loaded>,
        (func_dir, tree): (Arc<str>, Option<Arc<str>>),
    ) -> Result<(), Failure> {
        let Some(caller) = self.frames.last() else { return Ok(()) };
        let is_script = reference.protocol == "dist";
        let (given, used, own_used) = {
            let view = self.view_of_frame(caller);
            // A script's text may name its own files: it has no other way to export (language.md §10).
            let own = self.view(&caller.inputs, &caller.steps, &caller.func_dir, &files);
            let inputs_view = if is_script { &own } else { &view };
            let declared = &loaded.function.spec.inputs;
            let given = bind::given(step, declared, &caller.loaded.function, inputs_view, &view);
            (given, view.files_used.get(), own.files_used.get())
        };
        self.make_files_if(used);
        let given = given.map_err(|findings| Failure::loading(&step.name, &findings))?;
        self.note_inputs(&given.inputs, &loaded);
        given.env.values().for_each(|text| self.note_text(text));
        let inputs =
            given.named.iter().filter_map(|name| Some((name.clone(), to_json(given.inputs.get(name)?))));
        let info = StepInfo {
            name: step.name.clone(),
            reference,
            env: given.env.iter().map(|(name, text)| (name.clone(), text.text.clone())).collect(),
            inputs: inputs.collect(),
        };
        self.environment.push(given.env);
        let call =
            Call { id, files, loaded, step: Some(info), inputs: given.inputs, func_dir, tree, layers: 1 };
        if is_script {
            self.enter_script(call, own_used);
        } else {
            self.enter(call);
        }
        Ok(())
    }

    /// Begins a function: its `env`, then its process or its steps.
    fn enter(&mut self, call: Call) {
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
        self.frames.push(Box::new(Frame {
            loaded: call.loaded,
            func_dir: call.func_dir,
            tree: call.tree,
            inputs: call.inputs,
            steps: Steps::new(),
            next: 0,
            layers: call.layers + 1,
            files: call.files,
            files_made: false,
            step: call.step.map(Box::new),
            env: self.environment.above_base(),
            sub_steps: Vec::new(),
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
                let shown = ExecResult { command: command.clone(), work_dir, exit_code: 0 };
                let layers = call.layers + 1;
                self.spawn(
                    call,
                    Program::Command(command),
                    shown,
                    exec.cancel_timeout,
                    layers,
                    used || env_used,
                );
            }
            Err(failure) => {
                let result = self.result_before_start(call);
                self.fail(Some(result), failure);
            }
        }
    }

    fn enter_script(&mut self, call: Call, files_used: bool) {
        let text = match call.inputs.get("script").map(|value| &value.data) {
            Some(Data::String(text)) => text.clone(),
            _ => String::new(),
        };
        let work_dir = self.constants.work_dir.to_string();
        let shown = ExecResult {
            command: vec!["sh".to_owned(), "-c".to_owned(), text.clone()],
            work_dir,
            exit_code: 0,
        };
        let program = if text.len() > builtin::LONGEST_ARGUMENT {
            Program::ScriptFile(ScriptFile {
                path: format!("{}/{}/script", self.constants.tmp_dir, call.id),
                text,
            })
        } else {
            Program::Script(text)
        };
        let layers = call.layers;
        self.spawn(call, program, shown, None, layers, files_used);
    }

    /// Result of a function whose process cannot even be described.
    fn result_before_start(&self, call: Call) -> StepResult {
        let definition = Some(call.loaded.definition());
        StepResult { definition, ..started(call.step, self.environment.above_base()) }
    }

    /// Starts the process of a function.
    fn spawn(
        &mut self,
        call: Call,
        program: Program,
        shown: ExecResult,
        cancel_timeout: Option<std::time::Duration>,
        layers: usize,
        files_used: bool,
    ) {
        let name = call.step.as_ref().map_or(ROOT, |step| step.name.as_str()).to_owned();
        let mut result = started(call.step, self.environment.above_base());
        let work_dir = shown.work_dir.clone();
        result.exec = Some(shown);
        self.log(Kind::Out, format!("Running step name={name}"));
        self.push(Effect::Spawn(Box::new(Spawn {
            call: call.id,
            name,
            program,
            env: self.environment.to_process(),
            work_dir,
            files: files_used.then_some(call.files),
        })));
        self.state = State::Running(Box::new(Leaf {
            call: call.id,
            loaded: call.loaded,
            layers,
            cancel_timeout,
            stopping: None,
            result,
        }));
    }

    /// What expressions of a run function see.
    pub(super) fn view_of_frame<'m>(&'m self, frame: &'m Frame) -> Context<'m> {
        self.view(&frame.inputs, &frame.steps, &frame.func_dir, &frame.files)
    }

    /// What expressions of a function see that is about to begin: none of its steps has run.
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
        }
    }

    /// Makes the files of the innermost function if an expression named one.
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

    fn note_text(&mut self, text: &Text) {
        self.secrets.note_text(text, &self.constants.vars);
    }
}

/// The root has no name of its own (language.md §1).
const ROOT: &str = "root";

/// Arguments and working directory, evaluated.
fn command_line(exec: &Exec, view: &Context<'_>) -> Result<(Vec<Text>, Option<Text>), Failure> {
    let at = |finding: Diagnostic| Failure::at(&[finding]);
    let command = exec
        .command
        .iter()
        .map(|part| eval::evaluate_text(part, view))
        .collect::<Result<Vec<_>, _>>()
        .map_err(at)?;
    let work_dir =
        exec.work_dir.as_ref().map(|path| eval::evaluate_text(path, view)).transpose().map_err(at)?;
    if command.first().is_none_or(|program| program.text.is_empty()) {
        return Err(Failure::plain("exec: the command is empty"));
    }
    Ok((command, work_dir.filter(|path| !path.text.is_empty())))
}
