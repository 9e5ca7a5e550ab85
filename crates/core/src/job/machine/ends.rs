//! Ends of processes, and the values that they return (language.md §12, §14.2 points 7 and 8, §16).

use indexmap::IndexMap;
use serde_json::Value as Json;
use step_runner_lang::ast::Outputs;
use step_runner_lang::convert::to_json;
use step_runner_lang::output_file::{FileKind, OutputFileError};
use step_runner_lang::value::{Data, Value};
use step_runner_log::mask::MASK_TEXT;
use step_runner_log::words::DaemonLine;
use step_runner_model::{ExecResult, ExitStatus, FinishedProcess};

use crate::job::event::{CallId, FileContent, ProcessEnd, ProcessNumber, Unusable};
use crate::plan::returned::{self, ProcessOutputs};

use super::Machine;
use super::call::{AttemptEnd, Leaf, Work};
use super::failure::Failure;

/// Longest bad line in bytes that debug mode shows. Longer ones are left out: cutting before masking could split a
/// secret.
const MAX_SHOWN_LINE: usize = 64 << 10;

/// Room in bytes that must be left in the results beside a command, so that its success cannot fail for want of room:
/// more than the name of a shell, which becomes known when the process runs.
const SPARE_ROOM: usize = 1 << 20;

impl Machine {
    /// Notes the usage and the shell of a process that is over: results show the command as it ran (language.md §16).
    /// Returns the step that waits for it.
    pub(super) fn ran(
        &mut self,
        process: ProcessNumber,
        ran: Option<&FinishedProcess>,
        shell: Option<&str>,
    ) -> Option<CallId> {
        let step = self.step_of(process)?;
        let call = self.calls.get_mut(&step).filter(|call| matches!(call.work, Work::Running(_)))?;
        self.times.ran(ran);
        call.result.facts.usage = ran.and_then(|ran| ran.usage);
        let program = call.result.exec.as_mut().and_then(|exec| exec.command.first_mut());
        if let (Some(program), Some(shell)) = (program, shell) {
            shell.clone_into(program);
        }
        Some(step)
    }

    pub(super) fn exited(
        &mut self,
        id: CallId,
        end: &ProcessEnd,
        outputs: Option<&FileContent>,
        exports: Option<&FileContent>,
    ) {
        let Some(call) = self.calls.get(&id) else { return };
        let Work::Running(leaf) = &call.work else { return };
        let status = match end {
            ProcessEnd::Exited(status) | ProcessEnd::Short { status, .. } => Some(*status),
            ProcessEnd::NotStarted(_) => None,
        };
        let failure = match end {
            ProcessEnd::NotStarted(why) => Failure::not_started(why),
            ProcessEnd::Short { status, of } => Failure::short(of, *status),
            ProcessEnd::Exited(status) if !leaf.success.includes(*status) => Failure::process(*status),
            ProcessEnd::Exited(status) => {
                if call.stop.is_some() {
                    self.set_exit_code(id, Some(*status));
                    return self.attempt_ended(id, AttemptEnd::Cancelled);
                }
                let returned = self.returned(leaf, outputs, exports);
                return self.returned_by(id, *status, returned);
            }
        };
        self.set_exit_code(id, status);
        self.attempt_failed(id, failure);
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

    /// Takes the values of a process that has succeeded, even if a stop came after its end.
    pub(super) fn returned_by(
        &mut self,
        id: CallId,
        status: ExitStatus,
        returned: Result<ProcessOutputs, Unusable>,
    ) {
        self.set_exit_code(id, Some(status));
        let Some(call) = self.calls.get(&id) else { return };
        let Work::Running(leaf) = &call.work else { return };
        let loaded = std::sync::Arc::clone(&leaf.loaded);
        if leaf.ends_job {
            // The keeper has closed the log already: the stop came too late.
            self.forget_stops();
        }
        let function = &loaded.function;
        match returned {
            Ok(returned) => {
                self.note_outputs(&returned.outputs, &function.spec.outputs);
                self.secrets.note_written(&returned.written);
                let domain = self.domain(id).with(returned.exports.clone());
                self.set_domain(id, domain);
                if let Some(call) = self.calls.get_mut(&id) {
                    call.result.exports = returned.exports;
                }
                self.attempt_ended(id, AttemptEnd::Success(returned.outputs));
            }
            Err(Unusable { error, line }) => {
                self.show_bad_line(&error, line.as_deref());
                self.attempt_failed(id, Failure::returned(error, function));
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
            self.log(&DaemonLine::Debug(&format!("{} {shown}", error.file.label())));
        }
    }

    fn set_exit_code(&mut self, id: CallId, status: Option<ExitStatus>) {
        if let Some(exec) = self.calls.get_mut(&id).and_then(|call| call.result.exec.as_mut()) {
            exec.exit_code = ExecResult::code_of(status);
        }
    }

    /// True if the success of a process cannot fail for want of room in the results.
    pub(super) fn has_room_for(&self, id: CallId) -> bool {
        let left = self.room.checked_sub(SPARE_ROOM);
        let result = self.calls.get(&id).map(|call| &call.result);
        left.zip(result).and_then(|(left, result)| result.take_returned_from(left)).is_some()
    }

    /// Notes sensitive values in outputs (language.md §11.5).
    pub(super) fn note_outputs(&mut self, outputs: &IndexMap<String, Value>, declared: &Outputs) {
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

fn content(file: Option<&FileContent>) -> returned::Content<'_> {
    match file {
        None => Ok(&[]),
        Some(FileContent::Bytes(bytes)) => Ok(bytes),
        Some(FileContent::Unreadable(why)) => Err(why),
    }
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
