//! Step results as JSON or text: `--results FILE`, `follow --steps`, `--output json`.

use std::fs::{OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::interrupts::Interrupts;
use super::states;
use super::states::printable;
use super::terminal;
use crate::error::{Exit, Failure};
use crate::lang::diagnostic::Class;
use crate::model::exit_code::STEP_TIMED_OUT;
use crate::pb::v1;
use crate::pb::v1::step_result::Outcome;

/// Returns a result with all results below it, under the names of the protocol (service.md §2.1). It omits the
/// interface and the definition: they are the function's own text.
pub(super) fn to_json(result: &v1::StepResult) -> Value {
    let mut json = json!({
        "step": result.step.as_ref().map(step),
        "status": result.status().as_str_name(),
        "outcome": outcome(result.outcome()),
        "reason": result.reason,
        "error_class": result.error_class,
        "attempts": result.attempts.iter().map(to_json).collect::<Vec<_>>(),
        "outputs": values(&result.outputs),
        "exports": texts(&result.exports),
        "env": texts(&result.env),
        "exec_result": result.exec_result.as_ref().map(|process| json!({
            "command": process.command,
            "work_dir": process.work_dir,
            "exit_code": process.exit_code,
        })),
        "sub_step_results": result.sub_step_results.iter().map(to_json).collect::<Vec<_>>(),
    });
    if let (Some(json), Value::Object(facts)) = (json.as_object_mut(), facts(result)) {
        json.extend(facts);
    }
    json
}

/// Returns the word for what became of a step; empty while it runs.
pub(super) fn outcome(outcome: Outcome) -> &'static str {
    outcome.as_str_name().strip_prefix("outcome_").filter(|_| outcome != Outcome::Unspecified).unwrap_or("")
}

/// Returns the exit code of a step, if a process of it ran: 124 if it ran into its time limit, whatever ended the process
/// (flow.md §4.2).
pub(super) fn exit_code(result: &v1::StepResult) -> Option<i32> {
    let process = result.exec_result.as_ref()?;
    let is_over = Class::of_word(&result.error_class) == Some(Class::Timeout);
    Some(if is_over { STEP_TIMED_OUT } else { process.exit_code })
}

/// Returns facts about the run of a step, as events show them.
pub(super) fn facts(result: &v1::StepResult) -> Value {
    json!({
        "number": result.number,
        "total": result.total,
        "place": result.place,
        "start_time": result.start_time.as_ref().and_then(states::time).map(states::rfc3339),
        "end_time": result.end_time.as_ref().and_then(states::time).map(states::rfc3339),
        "duration": took(result).map(|took| took.as_secs_f64()),
        "usage": result.usage.as_ref().map(states::usage),
    })
}

/// Returns the duration of a step as the daemon measured it, or `None` while it runs.
pub(super) fn took(result: &v1::StepResult) -> Option<Duration> {
    let [start, end] = [&result.start_time, &result.end_time].map(|at| at.as_ref().and_then(states::time));
    (end? - start?).to_std().ok()
}

fn step(step: &v1::Step) -> Value {
    json!({
        "name": step.name,
        "step": step.step.as_ref().map(|reference| json!({
            "protocol": reference.protocol().as_str_name(),
            "url": reference.url,
            "filename": reference.filename,
            "version": reference.version,
        })),
        "env": texts(&step.env),
        "inputs": values(&step.inputs),
    })
}

/// Converts a map to an object with sorted keys: maps of the protocol have no order.
fn sorted<'a, V: 'a>(
    map: impl IntoIterator<Item = (&'a String, &'a V)>,
    convert: impl Fn(&'a V) -> Value,
) -> Value {
    let mut pairs: Vec<_> = map.into_iter().collect();
    pairs.sort_by_key(|(name, _)| *name);
    Value::Object(
        pairs.into_iter().map(|(name, value)| (name.clone(), convert(value))).collect::<Map<_, _>>(),
    )
}

fn texts<'a>(map: impl IntoIterator<Item = (&'a String, &'a String)>) -> Value {
    sorted(map, |text| Value::from(text.as_str()))
}

pub(super) fn values<'a>(map: impl IntoIterator<Item = (&'a String, &'a prost_types::Value)>) -> Value {
    sorted(map, value)
}

fn value(value_: &prost_types::Value) -> Value {
    use prost_types::value::Kind;
    match &value_.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::BoolValue(truth)) => Value::from(*truth),
        Some(Kind::NumberValue(number)) => number_value(*number),
        Some(Kind::StringValue(text)) => Value::from(text.as_str()),
        Some(Kind::ListValue(list)) => list.values.iter().map(value).collect(),
        Some(Kind::StructValue(fields)) => values(&fields.fields),
    }
}

/// Returns `3`, not `3.0`, although every number of the protocol is a double.
fn number_value(number: f64) -> Value {
    /// Whole numbers up to here are exact as doubles.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if number.fract() == 0.0 && number.abs() <= EXACT {
        Value::from(number as i64)
    } else {
        Value::from(number)
    }
}

/// Maximum number of outputs shown to people, and of characters of each.
const SHOWN: usize = 20;
const SHOWN_LENGTH: usize = 200;

/// Returns the function's outputs for people, as lines `name = value`.
pub(super) fn outputs(root: &v1::StepResult) -> Vec<String> {
    let mut outputs: Vec<_> = root.outputs.iter().collect();
    outputs.sort_by_key(|(name, _)| *name);
    let line = |(name, returned): &(&String, &prost_types::Value)| {
        let text = match value(returned) {
            Value::String(text) => text,
            other => other.to_string(),
        };
        let text = printable(&text);
        match text.char_indices().nth(SHOWN_LENGTH) {
            Some((cut, _)) => format!("{name} = {}…", text.get(..cut).unwrap_or_default()),
            None => format!("{name} = {text}"),
        }
    };
    let mut lines: Vec<String> = outputs.iter().take(SHOWN).map(line).collect();
    if let Some(more @ 1..) = outputs.len().checked_sub(SHOWN) {
        lines.push(format!("and {more} more outputs; --results FILE has all"));
    }
    lines
}

/// Refuses, before the job starts, a `--results FILE` that cannot be written. The file is not kept open, because a job
/// may clean its folder.
pub(super) fn check(path: &Path) -> Result<(), Failure> {
    let refuse = |what: String, remedy: &str| {
        Err(Failure::new(Exit::Usage, format!("cannot write the results: {what}")).with_remedy(remedy))
    };
    if path.as_os_str() == "-" {
        let remedy = "name a file (./- for a file named -), or use --output json, which has the results too";
        return refuse("stdout carries the log".to_owned(), remedy);
    }
    match path.metadata() {
        Ok(found) if found.is_dir() => {
            return refuse(format!("{} is a folder", path.display()), "name a file in it");
        }
        // Opening a pipe or a device has effects, so it is not tried.
        Ok(found) if !found.is_file() => return Ok(()),
        _ => {}
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder.filter(|folder| !folder.exists()) {
        return refuse(format!("the folder {} does not exist", folder.display()), "make it first");
    }
    let refused = |error| refuse(format!("{}: {error}", path.display()), "name another --results");
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        // The file was only made as a test.
        Ok(_) => {
            drop(std::fs::remove_file(path));
            Ok(())
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            match OpenOptions::new().write(true).open(path) {
                Ok(_) => Ok(()),
                // A link to a file that does not exist yet.
                Err(error) if error.kind() == io::ErrorKind::NotFound => match path.read_link() {
                    Ok(target) => check(&folder.unwrap_or(Path::new("")).join(target)),
                    Err(error) => refused(error),
                },
                Err(error) => refused(error),
            }
        }
        Err(error) => refused(error),
    }
}

/// File that `--write-steps-results` writes in the current folder.
pub(super) const DEFAULT_FILE: &str = "step-results.json";

/// Programs that read the results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Readers {
    /// They know what this program writes.
    Own,
    /// They are made for GitLab's first step runner, as `--write-steps-results` says, and may refuse what it does not write.
    OfFirstStepRunner,
}

impl Readers {
    /// Returns the readers of a file, by whether it was asked for in the first step runner's way: by `--write-steps-results`, or
    /// by `CI_STEPS_DEBUG` alone.
    pub(super) const fn of(is_first_way: bool) -> Self {
        if is_first_way { Self::OfFirstStepRunner } else { Self::Own }
    }
}

/// Removes the facts about the run from a result and from all results below it.
fn remove_facts(result: &mut Value) {
    let (Some(result), Value::Object(facts)) = (result.as_object_mut(), facts(&v1::StepResult::default()))
    else {
        return;
    };
    result.retain(|name, _| !facts.contains_key(name));
    if let Some(Value::Array(results)) = result.get_mut("sub_step_results") {
        results.iter_mut().for_each(remove_facts);
    }
}

/// True if `CI_STEPS_DEBUG` is set to a true value. GitLab's first step runner writes results then.
pub(super) fn is_debugged() -> bool {
    std::env::var("CI_STEPS_DEBUG")
        .is_ok_and(|text| matches!(&*text, "1" | "t" | "T" | "true" | "TRUE" | "True"))
}

/// Writes the results of a job that ended with `status` to `path`, unless a signal comes first: a pipe may have no reader. If the job has failed, a file
/// that cannot be written is only reported, because the exit code tells how the job ended.
pub(super) async fn write_root(
    path: PathBuf,
    root: Option<v1::StepResult>,
    status: &v1::Status,
    readers: Readers,
    interrupts: &mut Interrupts,
) -> Result<(), Failure> {
    let writing = tokio::task::spawn_blocking(move || {
        let root = root.ok_or_else(|| Failure::new(Exit::Failure, "the daemon sent no step results"))?;
        write(&path, &root, readers)
    });
    let written = async {
        writing.await.unwrap_or_else(|_| Err(Failure::new(Exit::Defect, "writing the results failed")))
    };
    match interrupts.unless_interrupted(written).await {
        Err(failure) if !failure.exit().is_by_signal() && interrupts.code(status) != 0 => {
            terminal::say(&format!("step-runner: {failure}"));
            Ok(())
        }
        written => written,
    }
}

/// Writes `--results FILE`, readable by its owner only: results may hold secrets that masking does not know.
fn write(path: &Path, root: &v1::StepResult, readers: Readers) -> Result<(), Failure> {
    let mut json = to_json(root);
    if readers == Readers::OfFirstStepRunner {
        remove_facts(&mut json);
    }
    let fail = |error: std::io::Error| {
        Failure::new(Exit::Failure, format!("cannot write the results to {}: {error}", path.display()))
    };
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path).map_err(fail)?;
    if file.metadata().map_err(fail)?.is_file() {
        file.set_permissions(Permissions::from_mode(0o600)).map_err(fail)?;
    }
    writeln!(file, "{json:#}").map_err(fail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_ran_into_its_time_limit_has_the_exit_code_124() {
        let process = v1::step_result::ExecResult { exit_code: -1, ..v1::step_result::ExecResult::default() };
        let mut result = v1::StepResult { exec_result: Some(process), ..v1::StepResult::default() };
        assert_eq!(exit_code(&result), Some(-1));
        result.error_class = "timeout".to_owned();
        assert_eq!(exit_code(&result), Some(124));
        assert_eq!(exit_code(&v1::StepResult::default()), None);
    }

    #[test]
    fn outputs_are_shown_in_order_on_one_line_each_and_cut() {
        use prost_types::value::Kind;
        let text = |text: &str| prost_types::Value { kind: Some(Kind::StringValue(text.to_owned())) };
        let mut root = v1::StepResult::default();
        root.outputs.insert("b".into(), text("two\n\x1b[31mlines"));
        root.outputs.insert("a".into(), prost_types::Value { kind: Some(Kind::NumberValue(3.0)) });
        root.outputs.insert("c".into(), text(&"é".repeat(SHOWN_LENGTH + 1)));
        let cut = format!("c = {}…", "é".repeat(SHOWN_LENGTH));
        assert_eq!(outputs(&root), ["a = 3", "b = two  [31mlines", cut.as_str()]);
    }

    #[test]
    fn results_are_for_their_owner_only_even_if_the_file_was_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r.json");
        std::fs::write(&path, "old and much longer than what comes ............................").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let mut root =
            v1::StepResult { status: v1::step_result::Status::Success as i32, ..Default::default() };
        let three = prost_types::Value { kind: Some(prost_types::value::Kind::NumberValue(3.0)) };
        root.outputs.insert("n".into(), three);
        write(&path, &root, Readers::Own).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let read: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        assert_eq!(read["outputs"]["n"], json!(3));
        assert_eq!(read["status"], "success");
    }
}
