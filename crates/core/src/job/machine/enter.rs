//! Entering a function: its process, or its list of steps (language.md §14.2 points 5 and 6).

use std::sync::Arc;
use std::time::Duration;

use step_runner_lang::ast::{Body, Exec};
use step_runner_lang::diagnostic::Class;
use step_runner_lang::eval::{self, Context, Steps};
use step_runner_lang::value::EvaluatedText;
use step_runner_log::words::DaemonLine;
use step_runner_model::ExecResult;

use crate::job::effect::{Effect, Program, Spawn, Success};
use crate::job::event::{CallId, ProcessNumber};
use crate::plan::locate;

use super::Machine;
use super::call::{Call, Entry, Leaf, List, Work, steps_of};
use super::failure::Failure;

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

impl Machine {
    /// Begins a function: first its `env`, then its process or its steps.
    pub(super) fn enter(&mut self, mut entry: Entry) {
        let loaded = Arc::clone(&entry.loaded);
        let definition = &loaded.function.definition;
        let (env, env_used) = {
            let environment = self.environment_at(&entry);
            let view = self.view_of_entry(&entry, &environment);
            (eval::evaluate_definition_env(&definition.env, &view), view.files_used.get())
        };
        let env = match env {
            Ok(env) => env,
            Err(finding) => {
                self.define(&entry);
                return self.attempt_failed(entry.id, Failure::at(&[finding]));
            }
        };
        env.values().for_each(|text| self.note_text(text));
        entry.environment = entry.environment.within(env);
        match &definition.body {
            Body::Exec(exec) => self.enter_exec(entry, exec, env_used),
            Body::Run(_) => self.enter_list(entry, env_used),
        }
    }

    fn enter_list(&mut self, entry: Entry, env_used: bool) {
        self.define(&entry);
        let id = entry.id;
        let is_plain = steps_of(&entry.loaded).iter().all(|step| step.flow.is_none());
        let Some(call) = self.calls.get_mut(&id) else { return };
        call.work = Work::List(Box::new(List {
            loaded: entry.loaded,
            func_dir: entry.func_dir,
            tree: entry.tree,
            inputs: entry.inputs,
            steps: Steps::new(),
            next: 0,
            is_plain,
            failure: None,
            cancelled: None,
            files: entry.files,
            files_made: false,
            environment: entry.environment,
        }));
        self.make_files_if(id, env_used);
        self.ready.push_front(id);
    }

    fn enter_exec(&mut self, entry: Entry, exec: &Exec, env_used: bool) {
        let (evaluated, used) = {
            let environment = self.environment_at(&entry);
            let view = self.view_of_entry(&entry, &environment);
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
                let env = self.environment_at(&entry).to_process();
                self.spawn(entry, process, env);
            }
            Err(failure) => {
                self.define(&entry);
                self.attempt_failed(entry.id, failure);
            }
        }
    }

    /// Adds definition and environment of a function to its result.
    pub(super) fn define(&mut self, entry: &Entry) {
        let env = self.environment_at(entry).above_base();
        if let Some(call) = self.calls.get_mut(&entry.id) {
            call.result.definition = Some(entry.loaded.definition());
            call.result.env = env;
        }
    }

    /// Starts the process of a function with `env` as its whole environment.
    pub(super) fn spawn(&mut self, entry: Entry, process: Process, env: Vec<(Vec<u8>, Vec<u8>)>) {
        let Process { program, command, work_dir, cancel_timeout, success, files_used } = process;
        self.announce(entry.id);
        self.define(&entry);
        let Some(call) = self.calls.get_mut(&entry.id) else { return };
        call.result.exec = Some(ExecResult { command, work_dir: work_dir.clone(), exit_code: 0 });
        let (process, slot, name) = (call.process, call.slot, name_of(call).to_owned());
        let ends_job =
            !files_used && !self.constants.trace_sections && self.ends_with(entry.id, &entry.loaded.function);
        let has_files = files_used || program.has_file();
        let env = entry.environment.placed(env, &work_dir);
        self.push(Effect::Spawn(Box::new(Spawn {
            process,
            name,
            slot,
            program,
            env,
            work_dir,
            success,
            files: files_used.then_some(entry.files),
            ends_job,
        })));
        self.note_process(entry.id, process);
        let leaf = Leaf { loaded: entry.loaded, cancel_timeout, success, has_files, ends_job, grace: None };
        if let Some(call) = self.calls.get_mut(&entry.id) {
            call.work = Work::Running(Box::new(leaf));
        }
    }

    /// Notes a process for the steps around it that may be tried again: what it leaves is ended before that.
    fn note_process(&mut self, id: CallId, process: ProcessNumber) {
        let around: Vec<CallId> = self.chain(id).map(|(id, _)| id).collect();
        for id in around {
            let Some(call) = self.calls.get_mut(&id) else { continue };
            let can_retry = call.flow().is_some_and(|flow| flow.retry.is_some());
            if let Some(attempts) = call.attempts.as_mut().filter(|_| can_retry) {
                attempts.processes.push(process);
            }
        }
    }

    /// Logs the start of an exec function or a builtin (language.md §14.2).
    pub(super) fn announce(&mut self, id: CallId) {
        let Some(call) = self.calls.get(&id) else { return };
        let (name, stream) = (name_of(call).to_owned(), call.is_inside_member.then_some(call.slot));
        self.log(&DaemonLine::Started { name: &name, stream });
    }
}

/// Returns the name of a call in the log. The root has no step (language.md §1).
fn name_of(call: &Call) -> &str {
    if call.parent.is_none() { "root" } else { &call.name }
}

fn command_line(
    exec: &Exec,
    view: &Context<'_>,
) -> Result<(Vec<EvaluatedText>, Option<EvaluatedText>), Failure> {
    let command = eval::evaluate_texts(&exec.command, view).map_err(|finding| {
        let path = format!("exec.command{}", finding.path);
        Failure::at(&[finding.with_path(path)])
    })?;
    let work_dir = exec.work_dir.as_ref().map(|path| eval::evaluate_text(path, view)).transpose();
    let work_dir = work_dir.map_err(|finding| Failure::at(&[finding.with_path("exec.work_dir")]))?;
    if command.first().is_none_or(|program| program.text.is_empty()) {
        return Err(Failure::plain(Class::Exec, "exec: the command is empty"));
    }
    Ok((command, work_dir.filter(|path| !path.text.is_empty())))
}
