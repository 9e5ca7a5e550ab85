//! Starts of functions: where they are, their fetch, their inputs (language.md §14.2 points 1 to 4).

use std::cell::Cell;
use std::sync::Arc;

use indexmap::IndexMap;
use step_runner_lang::ast::{Body, Function, Invocation, Reference, Step};
use step_runner_lang::diagnostic::{Class, Diagnostic};
use step_runner_lang::document::CALL_LIMIT;
use step_runner_lang::environment::Environment;
use step_runner_lang::eval::{Context, Steps, StepsAhead};
use step_runner_lang::reference;
use step_runner_lang::value::{EvaluatedText, Value};
use step_runner_log::words::{DaemonLine, FetchedVersion};
use step_runner_model::{ReferenceInfo, StepFacts, StepInfo, StepResult};

use crate::job::effect::{Effect, StepFiles};
use crate::job::event::{CallId, FetchFailure, Fetched, ProcessNumber};
use crate::plan::library::Loaded;
use crate::plan::locate::{self, Target};
use crate::plan::{bind, builtin};

use super::call::{Call, Domain, Entry, FetchedTree, Loading, StepAt, Work, steps_of};
use super::ends::to_shown;
use super::failure::Failure;
use super::{Machine, ROOT, Root};

impl Machine {
    /// Begins the job.
    pub(super) fn begin(&mut self, root: Root) {
        self.warn(&root.loaded.function.warnings);
        self.note_inputs(&root.inputs, &root.loaded);
        let facts = StepFacts { steps: own_steps(&root.loaded), ..self.times.start_facts() };
        // A process has a number from 1 on, also that of the root.
        let process = if facts.steps.is_none() { self.next_call() } else { ROOT };
        self.calls.insert(
            ROOT,
            Box::new(Call {
                parent: None,
                step: None,
                name: String::new(),
                member: None,
                domain: ROOT,
                exports: Some(Domain::default()),
                slot: 1,
                is_inside_member: false,
                depth: 0,
                groups: 0,
                process,
                attempts: None,
                stop: None,
                is_noted: true,
                usage: None,
                result: Box::new(StepResult { facts, ..StepResult::default() }),
                work: Work::Nothing,
            }),
        );
        self.note_start(ROOT);
        self.enter(Entry {
            id: ROOT,
            files: self.files_of(process),
            loaded: root.loaded,
            inputs: root.inputs,
            func_dir: root.func_dir,
            tree: None,
            environment: self.constants.environment.clone(),
        });
    }

    /// Begins the function of a step: begins a builtin at once, and requests the fetch of any other function.
    pub(super) fn begin_function(&mut self, id: CallId) {
        let (Some(at), Some(caller)) =
            (self.calls.get(&id).and_then(|call| call.step.clone()), self.caller(id))
        else {
            return;
        };
        if let Some(step) = at.get()
            && let Err(failure) = self.locate(id, step, caller)
        {
            self.attempt_failed(id, failure);
        }
    }

    fn locate(&mut self, id: CallId, step: &Step, caller: CallId) -> Result<(), Failure> {
        let Some(call) = self.calls.get(&id) else { return Ok(()) };
        let files = self.files_of(call.process);
        if call.depth > CALL_LIMIT {
            return Err(self.too_deep(id, step));
        }
        let (target, used, inside) = {
            let environment = self.environment_in(id, caller);
            let (Some(list), Some(view)) = (self.list(caller), self.view_of_list(caller, id, &environment))
            else {
                return Ok(());
            };
            let target = locate::target(step, &list.loaded.function, &list.func_dir, &view);
            (target, view.files_used.get(), list.tree.as_ref().map(|tree| tree.root.clone()))
        };
        self.make_files_if(caller, used);
        match target.map_err(|finding| Failure::loading(&[finding]))? {
            Target::Builtin(name) => self.begin_builtin(id, step, &name, files),
            Target::Fetch(reference) => {
                let is_remote = matches!(reference, Reference::Git { .. } | Reference::Oci { .. });
                let environment =
                    if is_remote { self.environment_in(id, caller).to_process() } else { Vec::new() };
                for secret in reference::credentials(&reference) {
                    // Results hold the reference, and a server may echo it (language.md §16).
                    self.secrets.note_url_part(&secret);
                }
                let wanted = Box::new(reference.clone());
                let Some(call) = self.calls.get_mut(&id) else { return Ok(()) };
                call.work = Work::Loading(Box::new(Loading { files, reference }));
                let process = call.process;
                self.push(Effect::Fetch { process, reference: wanted, inside, environment });
                Ok(())
            }
        }
    }

    /// Returns the failure of the step that exceeds the nesting limit. If the calls form a cycle, it names the step
    /// that closes the cycle, because the deeper calls only repeat it.
    fn too_deep(&self, id: CallId, step: &Step) -> Failure {
        let message = format!("functions call each other more than {CALL_LIMIT} levels deep");
        // The functions with steps around the step, outermost first, and the step of each that is under way.
        let mut around: Vec<(&Function, &Step)> = Vec::new();
        let mut current = Some(step);
        for (_, call) in self.chain(id) {
            if let (Some(list), Some(step)) = (call.list(), current) {
                around.push((&list.loaded.function, step));
                current = None;
            }
            current = call.step.as_ref().and_then(StepAt::get).or(current);
        }
        around.reverse();
        let finding = |step: &Step, function: &Function, message: String| {
            Diagnostic::error(Class::Limit, &function.file, step.at, message).with_path(step.path.clone())
        };
        let files: Vec<String> = around.iter().map(|(function, _)| locate::tidy(&function.file)).collect();
        let closing = circle(&files).and_then(|index| Some((index, around.get(index)?)));
        if let Some((index, (function, step))) = closing {
            let message =
                format!("the function calls itself, directly or through others, without end: {message}");
            return Failure::loading(&[finding(step, function, message)]).unnamed(around.len() - 1 - index);
        }
        let innermost = around.last().map(|(function, _)| *function);
        let diagnostics: Vec<Diagnostic> =
            innermost.map(|function| finding(step, function, message)).into_iter().collect();
        Failure::loading(&diagnostics)
    }

    pub(super) fn fetched(&mut self, process: ProcessNumber, result: &Result<Fetched, FetchFailure>) {
        let Some(id) = self.step_of(process) else { return };
        let Some(call) = self.calls.get_mut(&id) else { return };
        match std::mem::replace(&mut call.work, Work::Nothing) {
            Work::Loading(loading) => {
                if let Err(failure) = self.load(id, *loading, result) {
                    self.attempt_failed(id, failure);
                }
            }
            Work::Fetching(fetching) => self.tree_fetched(id, *fetching, result),
            work => call.work = work,
        }
    }

    fn load(
        &mut self,
        id: CallId,
        loading: Loading,
        result: &Result<Fetched, FetchFailure>,
    ) -> Result<(), Failure> {
        let (Some(at), Some(caller)) =
            (self.calls.get(&id).and_then(|call| call.step.clone()), self.caller(id))
        else {
            return Ok(());
        };
        let (Some(step), Some(list)) = (at.get(), self.list(caller)) else { return Ok(()) };
        // A local function beside a fetched function belongs to the same tree.
        let inherited = list.tree.clone().filter(|_| matches!(loading.reference, Reference::Local { .. }));
        let fetched = result.as_ref().map_err(|failure| {
            let file = &at.loaded.function.file;
            let (at, path) = locate::place(step);
            let finding = Diagnostic::error(failure.class, file, at, &failure.message);
            let loading = Failure::loading(&[finding.with_path(path)]);
            match failure.class {
                Class::Fetch => loading.of_kind(step_runner_lang::ast::flow::FailureKind::Fetch),
                _ => loading,
            }
        })?;
        self.log_version(&step.name, &loading.reference, fetched);
        let tree = FetchedTree::new(&loading.reference, fetched).map(Arc::new).or(inherited);
        let name = tree.as_ref().map(|tree| tree.name_of(&fetched.path));
        let (loaded, fresh) = self
            .library
            .load(name.as_deref().unwrap_or(&fetched.path), &fetched.text)
            .map_err(|findings| Failure::loading(&findings))?;
        if fresh {
            self.secrets.note_references(&loaded.function);
            self.warn(&loaded.function.warnings);
        }
        let filename = fetched.path.rsplit('/').next();
        let info = locate::info(&loading.reference, filename);
        let entry = self.entry(id, loading.files, loaded, (fetched.dir.as_str().into(), tree));
        self.bind_and_enter(step, info, entry, None)
    }

    /// Creates the entry of a loaded function, still without its inputs. The last argument is its `func_dir` and, if it
    /// was fetched, the tree that it is in.
    pub(super) fn entry(
        &self,
        id: CallId,
        files: StepFiles,
        loaded: Arc<Loaded>,
        (func_dir, tree): (Arc<str>, Option<Arc<FetchedTree>>),
    ) -> Entry {
        let caller = self.caller(id).unwrap_or(ROOT);
        let environment = self.list(caller).map_or(&self.constants.environment, |list| &list.environment);
        Entry { id, files, loaded, inputs: IndexMap::new(), func_dir, tree, environment: environment.clone() }
    }

    /// Evaluates the inputs and variables that `step` passes, in its caller's context, and begins the function. `kind`
    /// is set for a builtin.
    pub(super) fn bind_and_enter(
        &mut self,
        step: &Step,
        reference: ReferenceInfo,
        mut entry: Entry,
        kind: Option<builtin::BuiltinKind>,
    ) -> Result<(), Failure> {
        let Some(caller) = self.caller(entry.id) else { return Ok(()) };
        let Some(list) = self.list(caller) else { return Ok(()) };
        let caller_file = Arc::clone(&list.loaded.function.file);
        let environment = self.environment_in(entry.id, caller);
        let (given, used, own_used) = {
            let (Some(view), Some(mut own)) = (
                self.view_of_list(caller, entry.id, &environment),
                self.view_of_list(caller, entry.id, &environment),
            ) else {
                return Ok(());
            };
            // A script may name its own files: it has no other way to export (language.md §10).
            (own.output_file, own.export_file) = (&entry.files.output, &entry.files.export);
            let inputs_view = if kind.is_some_and(builtin::BuiltinKind::is_script) { &own } else { &view };
            let declared = &entry.loaded.function.spec.inputs;
            let given = bind::given(step, declared, &list.loaded.function, inputs_view, &view);
            (given, view.files_used.get(), own.files_used.get())
        };
        self.make_files_if(caller, used);
        let given = given.map_err(|findings| Failure::loading(&findings))?;
        self.note_inputs(&given.inputs, &entry.loaded);
        given.env.values().for_each(|text| self.note_text(text));
        let shown = |name: &String| Some((name.clone(), to_shown(given.inputs.get(name)?)));
        let info = StepInfo {
            reference,
            env: given.env.iter().map(|(name, text)| (name.clone(), text.text.clone())).collect(),
            inputs: given.named.iter().filter_map(shown).collect(),
            ..StepInfo::default()
        };
        entry.environment = entry.environment.within(given.env);
        let exports = self.domain(entry.id).all;
        if let Err(message) = self.keep_given(&given.inputs, &entry.environment.clone().with_exports(exports))
        {
            let finding = Diagnostic::error(Class::Limit, &caller_file, step.at, message);
            return Err(Failure::loading(&[finding.with_path(step.path.clone())]));
        }
        entry.inputs = given.inputs;
        self.loaded(&entry, info);
        if let Some(kind) = kind {
            return self.enter_builtin(kind, step, entry, own_used);
        }
        self.note_start_once(entry.id);
        self.enter(entry);
        Ok(())
    }

    /// Adds to the result of a step what is known once its function is loaded.
    fn loaded(&mut self, entry: &Entry, info: StepInfo) {
        let Some(call) = self.calls.get_mut(&entry.id) else { return };
        call.result.step = Some(StepInfo { name: call.name.clone(), ..info });
        call.result.facts.steps = own_steps(&entry.loaded);
    }

    /// Logs the fetched version of a function (threat-model.md §4.6).
    pub(super) fn log_version(&mut self, name: &str, reference: &Reference, fetched: &Fetched) {
        let Some((version, origin)) = fetched.version.as_deref().zip(reference::origin(reference)) else {
            return;
        };
        let version = match reference {
            Reference::Git { .. } => FetchedVersion::Commit(version),
            _ => FetchedVersion::Digest(version),
        };
        self.log(&DaemonLine::Fetched { name, origin: &origin, version });
    }

    /// Returns the files of an attempt.
    pub(super) fn files_of(&self, process: ProcessNumber) -> StepFiles {
        let folder = format!("{}/{process}", self.constants.tmp_dir);
        StepFiles { output: format!("{folder}/output"), export: format!("{folder}/export") }
    }

    /// Returns the environment in force for the step `id` of the list `caller`.
    pub(super) fn environment_in(&self, id: CallId, caller: CallId) -> Environment {
        let environment = self.list(caller).map_or(&self.constants.environment, |list| &list.environment);
        environment.clone().with_exports(self.domain(id).all)
    }

    /// Returns the environment in force inside of a function that is about to begin.
    pub(super) fn environment_at(&self, entry: &Entry) -> Environment {
        entry.environment.clone().with_exports(self.domain(entry.id).all)
    }

    /// Returns the context of the list `caller` for its step `id`, which may be a group or a member of one.
    pub(super) fn view_of_list<'m>(
        &'m self,
        caller: CallId,
        id: CallId,
        environment: &'m Environment,
    ) -> Option<Context<'m>> {
        let list = self.list(caller)?;
        let member = self.calls.get(&id).filter(|_| id != caller).and_then(|call| call.member.as_ref());
        let view = self.view(&list.inputs, &list.steps, &list.func_dir, &list.files, environment);
        let steps = steps_of(&list.loaded);
        let own = self.calls.get(&id).filter(|_| id != caller).and_then(|call| call.step.as_ref());
        let group = own.and_then(|own| steps.get(own.index)).map_or(&[][..], Step::members);
        let ahead = StepsAhead { list: steps, group };
        let matrix = member.and_then(|member| member.values.as_deref());
        // The members of a group see the state before it (flow.md §5).
        let inside = self.chain(id).take_while(|(around, _)| *around != caller);
        let before = inside.filter_map(|(_, call)| call.group()).map(|group| group.before).next();
        Some(Context { run: Some(before.unwrap_or_else(|| list.state())), matrix, ahead, ..view })
    }

    /// Returns the context for expressions of a function that is about to begin: none of its steps has run.
    pub(super) fn view_of_entry<'m>(&'m self, entry: &'m Entry, environment: &'m Environment) -> Context<'m> {
        self.view(&entry.inputs, &self.constants.no_steps, &entry.func_dir, &entry.files, environment)
    }

    fn view<'m>(
        &'m self,
        inputs: &'m IndexMap<String, Value>,
        steps: &'m Steps,
        func_dir: &'m str,
        files: &'m StepFiles,
        env: &'m Environment,
    ) -> Context<'m> {
        Context {
            env,
            vars: &self.constants.vars,
            inputs,
            steps,
            ahead: StepsAhead::default(),
            run: None,
            matrix: None,
            func_dir,
            work_dir: &self.constants.work_dir,
            output_file: &files.output,
            export_file: &files.export,
            files_used: Cell::new(false),
            numbers: self.secrets.numbers(),
        }
    }

    /// Makes the files of a function with steps if an expression has named one.
    pub(super) fn make_files_if(&mut self, list: CallId, used: bool) {
        if !used {
            return;
        }
        if let Some(list) = self.list_mut(list)
            && !std::mem::replace(&mut list.files_made, true)
        {
            let files = list.files.clone();
            self.push(Effect::MakeFiles(files));
        }
    }

    fn note_inputs(&mut self, inputs: &IndexMap<String, Value>, loaded: &Loaded) {
        for (name, value) in inputs {
            let declaration = loaded.function.spec.inputs.get(name);
            self.note(value, declaration.is_some_and(|declaration| declaration.sensitive));
        }
    }

    pub(super) fn note_text(&mut self, text: &EvaluatedText) {
        self.secrets.note_text(text, &self.constants.vars);
    }
}

/// Returns the index of the first function whose call closes a cycle, given the files of the functions under way: all
/// later calls repeat the cycle.
fn circle(files: &[String]) -> Option<usize> {
    let count = files.len();
    let repeats =
        |length: &usize| files.get(count - length..) == files.get(count - 2 * length..count - length);
    let length = (1..=count / 2).find(repeats)?;
    let differs = |index: &usize| files.get(*index) != files.get(index + length);
    let start = (0..count - length).rev().find(differs).map_or(0, |index| index + 1);
    Some(start + length - 1)
}

/// Returns the number of a function's own steps.
fn own_steps(loaded: &Loaded) -> Option<u32> {
    match &loaded.function.definition.body {
        Body::Run(run) => Some(run.steps.len() as u32),
        Body::Exec(_) => None,
    }
}

/// True if a step calls a function, which a group does not.
pub(super) const fn calls_a_function(step: &Step) -> bool {
    !matches!(step.invokes, Invocation::Group(_))
}
