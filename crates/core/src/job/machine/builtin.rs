//! Starts of builtins (language.md §17). [`builtin`]'s table defines their interfaces; this module chooses how each is
//! performed.

use std::sync::Arc;

use indexmap::IndexMap;
use step_runner_lang::ast::{Reference, Step, Template};
use step_runner_lang::convert::contract::ContractError;
use step_runner_lang::convert::to_json;
use step_runner_lang::diagnostic::{Class, Diagnostic};
use step_runner_lang::value::{Data, Value};
use step_runner_model::{LogChannel as LogKind, StepStatus};

use crate::job::effect::{BuiltinProgram, Effect, Program, ScriptFile, StepFiles, Success};
use crate::job::event::{CallId, FetchFailure, Fetched};
use crate::plan::builtin::{self, BuiltinKind};
use crate::plan::{bind, script_legacy};

use super::ends::{Failure, to_json_map};
use super::start::{Call, Process, pin};
use super::{Machine, MachineState};

/// A builtin that waits for a tree to be fetched.
pub(super) struct Fetching {
    pub(super) call: Call,
    reference: Reference,
}

/// Job variable that names the folder of the runner's own files.
const PROJECT_DIR: &str = "RUNNER_TEMP_PROJECT_DIR";

impl Machine {
    pub(super) fn begin_builtin(
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
        let call = Call::unbound(id, files, loaded, (Arc::clone(&caller.func_dir), None));
        self.bind_and_enter(step, builtin::info(name), call, builtin::kind(name))
    }

    /// Begins a builtin whose inputs are bound. `files_used` is true if they name its files.
    pub(super) fn enter_builtin(
        &mut self,
        kind: BuiltinKind,
        step: &Step,
        call: Call,
        files_used: bool,
    ) -> Result<(), Failure> {
        if kind != BuiltinKind::ScriptLegacy {
            self.tell_start(call.step.as_ref(), &call.facts);
        }
        match kind {
            BuiltinKind::Script => self.enter_script(call, files_used),
            BuiltinKind::ScriptLegacy => self.enter_script_legacy(step, call, files_used)?,
            BuiltinKind::Fetch => self.enter_fetch(step, call),
            BuiltinKind::Program => self.enter_program(call),
        }
        Ok(())
    }

    fn enter_script(&mut self, call: Call, files_used: bool) {
        let text = text_input(&call, "script").to_owned();
        // Results show `sh`. The actual shell is known only when it runs.
        let (program, arguments) = if text.len() > builtin::LONGEST_ARGUMENT {
            let path = self.file_of(&call, "script");
            (Program::ScriptFile(ScriptFile { path: path.clone(), text }), vec![path])
        } else {
            (Program::Script(text.clone()), vec!["-c".to_owned(), text])
        };
        let command = [vec!["sh".to_owned()], arguments].concat();
        let process = self.process(program, command, files_used);
        let layers = call.layers;
        self.spawn(call, process, layers);
    }

    fn enter_script_legacy(&mut self, step: &Step, call: Call, files_used: bool) -> Result<(), Failure> {
        let is_set =
            |name: &str| matches!(call.inputs.get(name).map(|value| &value.data), Some(Data::Bool(true)));
        let script = call.inputs.get("script").map_or(Err(String::new()), script_legacy::commands);
        let commands = script.map_err(|message| self.wrong_input(step, "script", &message))?;
        let project_dir = self.constants.vars.get(PROJECT_DIR).and_then(as_text);
        let text = script_legacy::text(
            &commands,
            script_legacy::Options {
                debug_trace: is_set("debug_trace"),
                check_for_errors: is_set("check_for_errors"),
                trace_sections: is_set("trace_sections"),
                project_dir,
            },
        );
        // Only now the inputs are known to be valid.
        self.tell_start(call.step.as_ref(), &call.facts);
        let path = self.file_of(&call, "script");
        let command = vec!["sh".to_owned(), path.clone()];
        let process = Process {
            success: Success::ExitCodeOrSignal,
            ..self.process(Program::LegacyScript(ScriptFile { path, text }), command, files_used)
        };
        let (env, layers) = (self.environment_with_variables(), call.layers);
        self.spawn_with(call, process, layers, env);
        Ok(())
    }

    fn enter_fetch(&mut self, step: &Step, call: Call) {
        let file = &call.loaded.function.file;
        let text = |name| Template::literal(text_input(&call, name), file, step.at);
        let tag = match text_input(&call, "tag") {
            "" => "latest",
            tag => tag,
        };
        let reference = Reference::Oci {
            registry: text("registry"),
            repository: text("repository"),
            tag: Template::literal(tag, file, step.at),
            dir: text("step_path"),
            files: Vec::new(),
        };
        self.announce(&call);
        let environment = self.environment.to_process();
        let wanted = Box::new(reference.clone());
        self.push(Effect::Fetch { call: call.id, reference: wanted, inside: None, environment });
        self.state = MachineState::Fetching(Box::new(Fetching { call, reference }));
    }

    pub(super) fn tree_fetched(
        &mut self,
        Fetching { call, reference }: Fetching,
        result: &Result<Fetched, FetchFailure>,
    ) {
        let layers = call.layers;
        let repository =
            [text_input(&call, "registry").to_lowercase(), text_input(&call, "repository").to_owned()];
        let step = call.step.as_ref().map(|step| step.name.clone()).unwrap_or_default();
        let mut result_of_step = self.result_before_start(call);
        let fetched = match result {
            Ok(fetched) => fetched,
            Err(failure) => return self.fail(Some(result_of_step), Failure::plain(&failure.message)),
        };
        if let Some(line) = pin(&step, &reference, fetched) {
            self.log(LogKind::Out, line);
        }
        let image = format!("{}@{}", repository.join("/"), fetched.version.as_deref().unwrap_or_default());
        let outputs = IndexMap::from([
            ("fetched_step_path".to_owned(), Value::text(&fetched.path)),
            ("ref".to_owned(), Value::text(image)),
        ]);
        result_of_step.outputs = to_json_map(&outputs);
        result_of_step.status = StepStatus::Success;
        if self.succeeded(result_of_step, layers, outputs) {
            self.proceed();
        }
    }

    fn enter_program(&mut self, call: Call) {
        let name = call.loaded.function.file.strip_prefix("builtin://").unwrap_or_default().to_owned();
        let command = vec!["step-runner".to_owned(), "builtin".to_owned(), name.clone()];
        let path = self.file_of(&call, "inputs");
        let inputs = call.inputs.iter().map(|(name, value)| (name.clone(), to_json(value)));
        let inputs = inputs.collect::<serde_json::Value>().to_string();
        let program = Program::Builtin(BuiltinProgram { name, path, inputs });
        // Like every program it returns its outputs through its file.
        let process = self.process(program, command, true);
        let layers = call.layers;
        self.spawn(call, process, layers);
    }

    fn process(&self, program: Program, command: Vec<String>, files_used: bool) -> Process {
        let work_dir = self.constants.work_dir.to_string();
        let success = Success::ExitCode;
        Process { program, command, work_dir, cancel_timeout: None, success, files_used }
    }

    fn file_of(&self, call: &Call, name: &str) -> String {
        format!("{}/{}/{name}", self.constants.tmp_dir, call.id)
    }

    /// Returns the environment with the job variables above all layers.
    fn environment_with_variables(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut env: IndexMap<Vec<u8>, Vec<u8>> = self.environment.to_process().into_iter().collect();
        let vars = self.constants.vars.iter();
        env.extend(vars.filter_map(|(name, value)| {
            Some((name.as_bytes().to_vec(), as_text(value)?.as_bytes().to_vec()))
        }));
        env.into_iter().collect()
    }

    /// Describes an input that its type allows but its builtin does not.
    fn wrong_input(&self, step: &Step, name: &str, message: &str) -> Failure {
        let message = format!("input \"{name}\": {message}");
        let error = ContractError { class: Class::Type, name: name.to_owned(), message };
        match self.frames.last() {
            Some(caller) => {
                let finding = bind::refused(step, &caller.loaded.function, error);
                Failure::loading(&step.name, &[finding])
            }
            None => Failure::plain(error.message),
        }
    }
}

fn text_input<'c>(call: &'c Call, name: &str) -> &'c str {
    call.inputs.get(name).and_then(as_text).unwrap_or_default()
}

const fn as_text(value: &Value) -> Option<&str> {
    match &value.data {
        Data::String(text) => Some(text.as_str()),
        _ => None,
    }
}
