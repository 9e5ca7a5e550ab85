//! Starts of builtins (language.md §17). [`builtin`]'s table defines their interfaces; this module chooses how each is
//! performed.

use std::sync::Arc;

use indexmap::IndexMap;
use step_runner_lang::ast::flow::FailureKind;
use step_runner_lang::ast::{Reference, Step, Template};
use step_runner_lang::convert::contract::ContractError;
use step_runner_lang::convert::to_json;
use step_runner_lang::diagnostic::{Class, Diagnostic};
use step_runner_lang::value::{Data, Value};
use step_runner_log::words::{DaemonLine, Warning};

use crate::job::effect::{BuiltinProgram, Effect, Program, ScriptFile, StepFiles, Success};
use crate::job::event::{CallId, FetchFailure, Fetched, ProcessNumber};
use crate::plan::builtin::{self, BuiltinKind};
use crate::plan::library::Loaded;
use crate::plan::{bind, locate, script_legacy};

use super::Machine;
use super::call::{AttemptEnd, Entry, Fetching, Work};
use super::enter::Process;
use super::failure::Failure;

/// Text before a script with `errexit`. It is no line of its own: a shell's report has the line as written. Not every
/// shell knows `pipefail`, and one that does not would end at the option.
const ERREXIT: &str = "set -e; if (set -o pipefail) 2>/dev/null; then set -o pipefail; fi; ";

/// Name of the steps of `ci/run` in messages.
const STEPS: &str = "<run>";

/// Job variable that names the folder of the runner's own files.
const PROJECT_DIR: &str = "RUNNER_TEMP_PROJECT_DIR";

impl Machine {
    pub(super) fn begin_builtin(
        &mut self,
        id: CallId,
        step: &Step,
        name: &str,
        files: StepFiles,
    ) -> Result<(), Failure> {
        let Some(caller) = self.caller(id).and_then(|caller| self.list(caller)) else { return Ok(()) };
        let func_dir = Arc::clone(&caller.func_dir);
        let loaded = builtin::find(name).map_err(|(class, message)| {
            let (at, path) = locate::place(step);
            let finding = Diagnostic::error(class, &caller.loaded.function.file, at, message);
            Failure::loading(&[finding.with_path(path)])
        })?;
        let entry = self.entry(id, files, loaded, (func_dir, None));
        self.bind_and_enter(step, builtin::info(name), entry, builtin::kind(name))
    }

    /// Begins a builtin whose inputs are bound. `files_used` is true if they name its files.
    pub(super) fn enter_builtin(
        &mut self,
        kind: BuiltinKind,
        step: &Step,
        entry: Entry,
        files_used: bool,
    ) -> Result<(), Failure> {
        if kind != BuiltinKind::ScriptLegacy {
            self.note_start_once(entry.id);
        }
        match kind {
            BuiltinKind::Script => self.enter_script(step, entry, files_used),
            BuiltinKind::ScriptLegacy => self.enter_script_legacy(step, entry, files_used)?,
            BuiltinKind::Fetch => self.enter_fetch(step, entry),
            BuiltinKind::Program => self.enter_program(entry),
            BuiltinKind::Steps => self.enter_steps(entry)?,
        }
        Ok(())
    }

    fn enter_script(&mut self, step: &Step, entry: Entry, files_used: bool) {
        let written = text_input(&entry, "script").to_owned();
        let errexit = step.errexit.map_or(self.constants.errexit, |errexit| errexit.is_on);
        let (option, text) =
            if errexit { ("-ec", format!("{ERREXIT}{written}")) } else { ("-c", written.clone()) };
        // Results show `sh` and the text as written. The actual shell is known only when it runs.
        let (program, arguments) = if text.len() > builtin::LONGEST_ARGUMENT {
            let path = self.file_of(&entry, "script");
            (Program::ScriptFile(ScriptFile { path: path.clone(), text }), vec![path])
        } else {
            (Program::Script(text), vec![option.to_owned(), written])
        };
        let command = [vec!["sh".to_owned()], arguments].concat();
        let process = self.process(program, command, files_used);
        let env = self.environment_at(&entry).to_process();
        self.spawn(entry, process, env);
    }

    fn enter_script_legacy(&mut self, step: &Step, entry: Entry, files_used: bool) -> Result<(), Failure> {
        let is_set =
            |name: &str| matches!(entry.inputs.get(name).map(|value| &value.data), Some(Data::Bool(true)));
        let script = entry.inputs.get("script").map_or(Err(String::new()), script_legacy::commands);
        let commands = script.map_err(|message| self.wrong_input(entry.id, step, "script", &message))?;
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
        self.note_start_once(entry.id);
        let path = self.file_of(&entry, "script");
        let command = vec!["sh".to_owned(), path.clone()];
        let process = Process {
            success: Success::ExitCodeOrSignal,
            ..self.process(Program::LegacyScript(ScriptFile { path, text }), command, files_used)
        };
        let env = self.environment_with_variables(&entry);
        self.spawn(entry, process, env);
        Ok(())
    }

    /// Begins the steps of a text: a function without inputs, whose references start from the job's directory (ci.md §1).
    fn enter_steps(&mut self, mut entry: Entry) -> Result<(), Failure> {
        let loaded = Loaded::request(text_input(&entry, "steps"), Some(STEPS))
            .map_err(|findings| Failure::loading(&findings))?;
        if !loaded.function.spec.inputs.is_empty() {
            return Err(Failure::plain(Class::Schema, "the steps cannot have inputs"));
        }
        entry.loaded = Arc::new(loaded);
        entry.inputs = IndexMap::new();
        entry.func_dir = Arc::clone(&self.constants.work_dir);
        self.enter(entry);
        Ok(())
    }

    fn enter_fetch(&mut self, step: &Step, entry: Entry) {
        let file = &entry.loaded.function.file;
        let text = |name| Template::literal(text_input(&entry, name), file, step.at);
        let tag = match text_input(&entry, "tag") {
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
        self.announce(entry.id);
        let environment = self.environment_at(&entry).to_process();
        let wanted = Box::new(reference.clone());
        self.define(&entry);
        let Some(call) = self.calls.get_mut(&entry.id) else { return };
        let process = call.process;
        call.work = Work::Fetching(Box::new(Fetching { entry, reference }));
        self.push(Effect::Fetch { process, reference: wanted, inside: None, environment });
    }

    pub(super) fn tree_fetched(
        &mut self,
        id: CallId,
        Fetching { entry, reference }: Fetching,
        result: &Result<Fetched, FetchFailure>,
    ) {
        let fetched = match result {
            Ok(fetched) => fetched,
            Err(failure) => {
                let failed = Failure::plain(failure.class, &failure.message);
                let failed =
                    if failure.class == Class::Fetch { failed.of_kind(FailureKind::Fetch) } else { failed };
                return self.attempt_failed(id, failed);
            }
        };
        self.log_version(&self.name_of(id), &reference, fetched);
        let repository =
            [text_input(&entry, "registry").to_lowercase(), text_input(&entry, "repository").to_owned()];
        let image = format!("{}@{}", repository.join("/"), fetched.version.as_deref().unwrap_or_default());
        let outputs = IndexMap::from([
            ("fetched_step_path".to_owned(), Value::text(&fetched.path)),
            ("ref".to_owned(), Value::text(image)),
        ]);
        self.attempt_ended(id, AttemptEnd::Success(outputs));
    }

    /// Logs that a builtin's fetch is tried again. Of a function's only the operator's log tells (language.md §7.7).
    pub(super) fn fetch_retried(&mut self, process: ProcessNumber, why: &str) {
        let Some(id) = self.step_of(process) else { return };
        if self.calls.get(&id).is_some_and(|call| matches!(call.work, Work::Fetching(_))) {
            let text = format!("step {}: {why}", self.name_of(id));
            self.log(&DaemonLine::Warning(Warning::Text(&text)));
        }
    }

    fn enter_program(&mut self, entry: Entry) {
        let name = entry.loaded.function.file.strip_prefix("builtin://").unwrap_or_default().to_owned();
        let command = vec!["step-runner".to_owned(), "builtin".to_owned(), name.clone()];
        let path = self.file_of(&entry, "inputs");
        let inputs = entry.inputs.iter().map(|(name, value)| (name.clone(), to_json(value)));
        let inputs = inputs.collect::<serde_json::Value>().to_string();
        let program = Program::Builtin(BuiltinProgram { name, path, inputs });
        // Like every program it returns its outputs through its file.
        let process = self.process(program, command, true);
        let env = self.environment_at(&entry).to_process();
        self.spawn(entry, process, env);
    }

    fn process(&self, program: Program, command: Vec<String>, files_used: bool) -> Process {
        let work_dir = self.constants.work_dir.to_string();
        let success = Success::ExitCode;
        Process { program, command, work_dir, cancel_timeout: None, success, files_used }
    }

    fn file_of(&self, entry: &Entry, name: &str) -> String {
        let process = self.calls.get(&entry.id).map_or(entry.id, |call| call.process);
        format!("{}/{process}/{name}", self.constants.tmp_dir)
    }

    /// Returns the environment with the job variables above all layers.
    fn environment_with_variables(&self, entry: &Entry) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut env: IndexMap<Vec<u8>, Vec<u8>> =
            self.environment_at(entry).to_process().into_iter().collect();
        let vars = self.constants.vars.iter();
        env.extend(vars.filter_map(|(name, value)| {
            Some((name.as_bytes().to_vec(), as_text(value)?.as_bytes().to_vec()))
        }));
        env.into_iter().collect()
    }

    /// Describes an input of `id` that its type allows but its builtin does not.
    fn wrong_input(&self, id: CallId, step: &Step, name: &str, message: &str) -> Failure {
        let message = format!("input \"{name}\": {message}");
        let error = ContractError { class: Class::Type, name: name.to_owned(), message };
        match self.caller(id).and_then(|caller| self.list(caller)) {
            Some(caller) => Failure::loading(&[bind::refused(step, &caller.loaded.function, error)]),
            None => Failure::plain(Class::Type, error.message),
        }
    }
}

fn text_input<'e>(entry: &'e Entry, name: &str) -> &'e str {
    entry.inputs.get(name).and_then(as_text).unwrap_or_default()
}

const fn as_text(value: &Value) -> Option<&str> {
    match &value.data {
        Data::String(text) => Some(text.as_str()),
        _ => None,
    }
}
