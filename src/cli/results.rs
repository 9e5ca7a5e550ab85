//! Step results as JSON: `--results FILE`, `follow --steps`, `--output json`.

use std::fs::{OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use serde_json::{Map, Value, json};

use super::states::printable;
use crate::error::{Exit, Failure};
use crate::pb::v1;

/// A result with everything below it, under the names of the protocol (service.md §2.1). The interface and definition as
/// read are left out: they are the function's own text.
pub(super) fn to_json(result: &v1::StepResult) -> Value {
    json!({
        "step": result.step.as_ref().map(step),
        "status": result.status().as_str_name(),
        "outputs": values(&result.outputs),
        "exports": texts(&result.exports),
        "env": texts(&result.env),
        "exec_result": result.exec_result.as_ref().map(|process| json!({
            "command": process.command,
            "work_dir": process.work_dir,
            "exit_code": process.exit_code,
        })),
        "sub_step_results": result.sub_step_results.iter().map(to_json).collect::<Vec<_>>(),
    })
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

/// Maps of the protocol have no order; the output has one.
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

fn values<'a>(map: impl IntoIterator<Item = (&'a String, &'a prost_types::Value)>) -> Value {
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

/// `3`, not `3.0`: every number of the protocol is a double.
fn number_value(number: f64) -> Value {
    /// Doubles are exact up to here.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if number.fract() == 0.0 && number.abs() <= EXACT {
        Value::from(number as i64)
    } else {
        Value::from(number)
    }
}

/// Most outputs shown to people, and most characters of each.
const SHOWN: usize = 20;
const SHOWN_LENGTH: usize = 200;

/// What the function returned, for people: `name = value`, one a line.
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

/// Refuses a `--results FILE` that could not be written when the job has ended. The file itself is opened then: a job may
/// clean its folder.
pub(super) fn check(path: &Path) -> Result<(), Failure> {
    let refuse = |what: String, remedy: &str| {
        Err(Failure::new(Exit::Usage, format!("cannot write the results: {what}")).with_remedy(remedy))
    };
    if path.as_os_str() == "-" {
        let remedy = "name a file (./- if it is called so), or take them from --output json";
        return refuse("stdout carries the log".to_owned(), remedy);
    }
    match path.metadata() {
        Ok(found) if found.is_dir() => {
            return refuse(format!("{} is a folder", path.display()), "name a file in it");
        }
        // What is a pipe or a device would notice.
        Ok(found) if !found.is_file() => return Ok(()),
        _ => {}
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder.filter(|folder| !folder.exists()) {
        return refuse(format!("the folder {} does not exist", folder.display()), "make it first");
    }
    let refused = |error| refuse(format!("{}: {error}", path.display()), "name another --results");
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        // Only to see whether it can be made.
        Ok(_) => {
            drop(std::fs::remove_file(path));
            Ok(())
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            match OpenOptions::new().write(true).open(path) {
                Ok(_) => Ok(()),
                // A link to what is not there yet.
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

/// Writes `--results FILE`, readable by its owner only: results may hold what masking could not know.
pub(super) fn write(path: &Path, root: &v1::StepResult) -> Result<(), Failure> {
    let fail = |error: std::io::Error| {
        Failure::new(Exit::Failure, format!("cannot write the results to {}: {error}", path.display()))
    };
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path).map_err(fail)?;
    if file.metadata().map_err(fail)?.is_file() {
        file.set_permissions(Permissions::from_mode(0o600)).map_err(fail)?;
    }
    file.write_all(format!("{:#}\n", to_json(root)).as_bytes()).map_err(fail)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        write(&path, &root).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let read: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        assert_eq!(read["outputs"]["n"], json!(3));
        assert_eq!(read["status"], "success");
    }
}
