//! Reads the two files of an invocation (language.md §12): outputs and exports, one JSON object per line.

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use step_runner_model::text;
use thiserror::Error;

use super::ast::Declaration;
use super::convert::contract::{ContractError, bind_outputs};
use super::convert::json::{self, JsonError, MemoryBudget};
use super::convert::number_to_plain;
use super::diagnostic::Class;
use super::value::{Data, Value};

/// Largest output or export file in bytes (language.md §6).
pub(crate) const FILE_LIMIT: usize = 16 * 1024 * 1024;
/// Longest line of such a file in bytes (language.md §6).
pub const LINE_LIMIT: usize = 1024 * 1024;

/// Longest variable that a process can be given on every machine, `NAME=VALUE` in bytes: 32 pages of 4 KiB, less the
/// NUL at its end.
const LONGEST_VARIABLE: usize = 128 * 1024 - 1;

/// Maximum number of bytes that the parsed values of one file may take (language.md §6).
const VALUES_LIMIT: usize = 64 * 1024 * 1024;

/// One of the two files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileKind {
    /// `output_file`.
    Output,
    /// `export_file`.
    Export,
}

impl FileKind {
    /// Returns the file's name in messages.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Output => "output file",
            Self::Export => "export file",
        }
    }
}

/// A file that cannot be used. It never shows the content of a line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Error)]
#[error("{message}")]
pub struct OutputFileError {
    /// [`Class::Malformed`], [`Class::Limit`], or a class of [`ContractError`].
    pub class: Class,
    /// The file.
    pub file: FileKind,
    /// Number of the bad line, counted from 1.
    pub line: Option<u32>,
    /// The mistake and the remedy.
    pub message: String,
}

impl OutputFileError {
    fn malformed(kind: FileKind, line: usize, why: &str) -> Self {
        Self {
            class: Class::Malformed,
            file: kind,
            line: u32::try_from(line).ok(),
            message: format!("{} line {line}: {why}", kind.label()),
        }
    }

    /// Makes the error for a line that is not the expected JSON. `shape` describes the expected form.
    fn json(kind: FileKind, line: usize, error: JsonError, shape: &str) -> Self {
        let (class, why) = match error {
            JsonError::Malformed { .. } => (Class::Malformed, shape),
            JsonError::OutOfRange => (Class::Malformed, "number out of range"),
            JsonError::TooDeep => (Class::Limit, "nested deeper than 128"),
            JsonError::TooLarge => (Class::Limit, "the values of the file take more than 64 MiB"),
        };
        Self { class, ..Self::malformed(kind, line, why) }
    }

    /// Returns the bad line of `content`, for readers who may see secrets.
    pub fn bad_line<'c>(&self, content: &'c [u8]) -> Option<&'c [u8]> {
        let index = usize::try_from(self.line?).ok()?.checked_sub(1)?;
        content.split(|byte| *byte == b'\n').nth(index)
    }
}

/// Joins several breaches of the interface into one error, with the class of the first.
impl From<Vec<ContractError>> for OutputFileError {
    fn from(errors: Vec<ContractError>) -> Self {
        Self {
            class: errors.first().map_or(Class::Type, |first| first.class),
            file: FileKind::Output,
            line: None,
            message: errors.into_iter().map(|error| error.message).collect::<Vec<_>>().join("; "),
        }
    }
}

/// Returns the outputs of an exec function: checked, with defaults filled in and sensitive ones marked.
pub fn read_outputs(
    content: &[u8],
    declared: &IndexMap<String, Declaration>,
) -> Result<IndexMap<String, Value>, OutputFileError> {
    Ok(bind_outputs(read_values(content, FileKind::Output)?, declared)?)
}

/// Returns the exports, with booleans and numbers as text. Refuses names and values that an environment cannot hold.
pub fn read_exports(content: &[u8]) -> Result<IndexMap<String, String>, OutputFileError> {
    let kind = FileKind::Export;
    let mut exports = IndexMap::new();
    for_each_line(content, kind, |line, name, value| {
        if name.contains(['=', '\0']) {
            // What stands behind the `=` can be a value.
            let begin = name.split(['=', '\0']).next().unwrap_or_default();
            let why = format!("export \"{}…\": a name must hold neither \"=\" nor NUL", text::quote(begin));
            return Err(OutputFileError::malformed(kind, line, &why));
        }
        let text = match value.data {
            Data::String(text) => text,
            Data::Bool(truth) => truth.to_string(),
            Data::Number(number) => number_to_plain(number),
            Data::Null | Data::Array(_) | Data::Object(_) => {
                let why = format!(
                    "export \"{}\": expected string, number or boolean, got {}",
                    text::quote(&name),
                    value.type_name()
                );
                return Err(OutputFileError {
                    class: Class::Type,
                    ..OutputFileError::malformed(kind, line, &why)
                });
            }
        };
        fits_a_process(&name, &text, line)?;
        exports.insert(name, text);
        Ok(())
    })?;
    Ok(exports)
}

/// Checks that an environment can hold an export.
fn fits_a_process(name: &str, value: &str, line: usize) -> Result<(), OutputFileError> {
    let kind = FileKind::Export;
    let shown = text::quote(name);
    if value.contains('\0') {
        let why = format!("export \"{shown}\": the value holds NUL, which no variable of a process can hold");
        return Err(OutputFileError::malformed(kind, line, &why));
    }
    let bytes = name.len() + 1 + value.len();
    if bytes > LONGEST_VARIABLE {
        let why = format!(
            "export \"{shown}\": name and value have {bytes} bytes, and a variable of a process can have \
             {LONGEST_VARIABLE}: hand it over in a file, or as an output"
        );
        return Err(OutputFileError { class: Class::Limit, ..OutputFileError::malformed(kind, line, &why) });
    }
    Ok(())
}

/// Returns the outputs of an exec function with `outputs: delegate`. Its file is one JSON object in the form of a step
/// result, whose `outputs` are taken untyped (language.md §4).
pub fn read_delegated(content: &[u8]) -> Result<IndexMap<String, Value>, OutputFileError> {
    const SHAPE: &str = "expected one JSON step result";
    let kind = FileKind::Output;
    let text = checked_text(content, kind)?;
    let result = json::parse(text, &MemoryBudget::new(VALUES_LIMIT)).map_err(|error| match error {
        JsonError::Malformed { line } => OutputFileError::malformed(kind, line, SHAPE),
        _ => OutputFileError::json(kind, 1, error, SHAPE),
    })?;
    let Data::Object(result) = result.data else {
        return Err(OutputFileError::malformed(kind, 1, SHAPE));
    };
    match result.get("outputs").map(|outputs| &outputs.data) {
        None | Some(Data::Null) => Ok(IndexMap::new()),
        Some(Data::Object(outputs)) => Ok((**outputs).clone()),
        Some(_) => {
            Err(OutputFileError::malformed(kind, 1, "\"outputs\" of the step result must be an object"))
        }
    }
}

/// Returns all names of a file with their last values.
fn read_values(content: &[u8], kind: FileKind) -> Result<IndexMap<String, Value>, OutputFileError> {
    let mut values = IndexMap::new();
    for_each_line(content, kind, |_, name, value| {
        values.insert(name, value);
        Ok(())
    })?;
    Ok(values)
}

fn for_each_line(
    content: &[u8],
    kind: FileKind,
    mut visit: impl FnMut(usize, String, Value) -> Result<(), OutputFileError>,
) -> Result<(), OutputFileError> {
    let text = checked_text(content, kind)?;
    let room = MemoryBudget::new(VALUES_LIMIT);
    let mut begin = 0;
    let ends = memchr::memchr_iter(b'\n', content).chain(std::iter::once(content.len()));
    for (index, end) in ends.enumerate() {
        // A file of 16 MiB can hold as many lines, so an empty one must cost almost nothing.
        let at = std::mem::replace(&mut begin, end + 1);
        if at == end {
            continue;
        }
        let line = text.get(at..end).unwrap_or_default();
        let number = index + 1;
        if line.len() > LINE_LIMIT {
            return Err(OutputFileError {
                class: Class::Limit,
                ..OutputFileError::malformed(kind, number, "line longer than 1 MiB")
            });
        }
        let line = line.strip_suffix('\r').unwrap_or(line);
        if line.trim_matches([' ', '\t', '\r']).is_empty() {
            continue;
        }
        let (name, value) = read_line(line, number, kind, &room)?;
        visit(number, name, value)?;
    }
    Ok(())
}

fn checked_text(content: &[u8], kind: FileKind) -> Result<&str, OutputFileError> {
    if content.len() > FILE_LIMIT {
        return Err(OutputFileError {
            class: Class::Limit,
            file: kind,
            line: None,
            message: format!("{} is larger than 16 MiB", kind.label()),
        });
    }
    std::str::from_utf8(content).map_err(|error| {
        let valid = content.get(..error.valid_up_to()).unwrap_or_default();
        let line = memchr::memchr_iter(b'\n', valid).count() + 1;
        OutputFileError::malformed(kind, line, "not UTF-8")
    })
}

fn read_line(
    line: &str,
    number: usize,
    kind: FileKind,
    room: &MemoryBudget,
) -> Result<(String, Value), OutputFileError> {
    const SHAPE: &str = "expected one JSON object {\"name\": \"…\", \"value\": …} on the line";
    const OLD: &str =
        "the form key=value is no longer accepted: write {\"name\": \"key\", \"value\": \"value\"}";
    let malformed = |why| OutputFileError::malformed(kind, number, why);
    let [name, value] = json::members(line, ["name", "value"], room).map_err(|error| {
        OutputFileError::json(kind, number, error, if looks_old(line) { OLD } else { SHAPE })
    })?;
    let name = match name.map(|name| name.data) {
        Some(Data::String(name)) if !name.is_empty() => name,
        Some(_) => return Err(malformed("\"name\" must be a non-empty string")),
        None => return Err(malformed("\"name\" is missing")),
    };
    match value {
        None => Err(malformed("\"value\" is missing")),
        Some(Value { data: Data::Null, .. }) => Err(malformed("\"value\" must not be null")),
        Some(value) => Ok((name, value)),
    }
}

/// True if a line looks like the form before 0.2, `key=value`.
fn looks_old(line: &str) -> bool {
    line.split_once('=').is_some_and(|(key, _)| {
        let key = key.trim();
        !key.is_empty() && key.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '-' || c == '.')
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn exports(content: &str) -> Result<IndexMap<String, String>, OutputFileError> {
        read_exports(content.as_bytes())
    }

    #[test]
    fn carriage_returns_spaces_and_case_of_members_do_not_matter() {
        let read = exports("  { \"NAME\" : \"A\" , \"Value\" : \" x \" }\r\n   \r\n\t\n").unwrap();
        assert_eq!(read, IndexMap::from([("A".to_owned(), " x ".to_owned())]));
    }

    #[test]
    fn the_exact_member_name_wins_over_another_case() {
        let read = exports(r#"{"name": "A", "NAME": "B", "value": "1", "VALUE": "2"}"#).unwrap();
        assert_eq!(read, IndexMap::from([("A".to_owned(), "1".to_owned())]));
    }

    #[test]
    fn a_repeated_member_counts_with_its_last_value() {
        assert_eq!(exports(r#"{"name": "A", "value": 1, "value": true}"#).unwrap()["A"], "true");
    }

    #[test]
    fn the_old_form_gets_a_hint_and_its_text_is_not_shown() {
        let error = exports("TOKEN=hunter2\n").unwrap_err();
        assert_eq!((error.class, error.line), (Class::Malformed, Some(1)));
        assert!(error.message.starts_with("export file line 1: the form key=value"));
        assert!(!error.message.contains("hunter2"));
    }

    #[test]
    fn other_malformed_lines_are_named_by_their_number() {
        for bad in
            ["{}{}", "\u{feff}{\"name\":\"a\",\"value\":1}", r#"{"name":"a","value":"\ud800"}"#, "[1]", "x"]
        {
            let error = exports(&format!("\n{bad}\n")).unwrap_err();
            assert_eq!((error.class, error.line), (Class::Malformed, Some(2)), "{bad}");
        }
        let error = read_exports(b"\n\n\xff").unwrap_err();
        assert_eq!(error.line, Some(3));
    }

    #[test]
    fn fault_114_an_export_that_no_process_can_be_given_is_refused_and_named() {
        let value = |bytes: usize| "x".repeat(bytes);
        let line = |name: &str, value: &str| format!("\n{{\"name\": \"{name}\", \"value\": \"{value}\"}}\n");
        for (name, value, class, says) in [
            ("A=canary", value(1), Class::Malformed, "export \"A…\""),
            ("A\\u0000", value(1), Class::Malformed, "export \"A…\""),
            ("=canary", value(1), Class::Malformed, "export \"…\""),
            ("A", "canary\\u0000".to_owned(), Class::Malformed, "export \"A\": the value holds NUL"),
            (
                "A",
                value(LONGEST_VARIABLE - 1),
                Class::Limit,
                "export \"A\": name and value have 131072 bytes",
            ),
            ("A", value(500_000), Class::Limit, "a variable of a process can have 131071"),
        ] {
            let error = exports(&line(name, &value)).unwrap_err();
            assert_eq!((error.class, error.line), (class, Some(2)), "{name}");
            assert!(
                error.message.starts_with("export file line 2: ") && error.message.contains(says),
                "{error}"
            );
            assert!(!error.message.contains("canary") && error.message.len() < 300, "{error}");
        }
        let longest = value(LONGEST_VARIABLE - 2);
        assert_eq!(exports(&line("A", &longest)).unwrap()["A"].len(), LONGEST_VARIABLE - 2);
        assert_eq!(exports(r#"{"name": "A", "value": []}"#).unwrap_err().class, Class::Type);
    }

    #[test]
    fn limits_are_errors_not_losses() {
        let line = format!(r#"{{"name": "A", "value": "{}"}}"#, "x".repeat(LINE_LIMIT));
        assert_eq!(exports(&line).unwrap_err().class, Class::Limit);
        assert_eq!(read_exports(&vec![b'\n'; FILE_LIMIT + 1]).unwrap_err().class, Class::Limit);
        let line = format!(r#"{{"name": "A", "value": "{}"}}"#, "x".repeat(100_000));
        assert_eq!(exports(&line).unwrap()["A"].len(), 100_000);
    }

    #[test]
    fn many_small_values_are_refused_before_they_take_much() {
        let line = |n: usize| format!("{{\"name\": \"a{n}\", \"value\": [{}1]}}\n", "1,".repeat(500_000));
        let content: String = (0..3).map(line).collect();
        assert_eq!(exports(&line(0)).unwrap_err().class, Class::Type);
        let error = read_outputs(content.as_bytes(), &IndexMap::new()).unwrap_err();
        assert_eq!((error.class, error.line), (Class::Limit, Some(2)));
        let whole = format!("{{\"outputs\": {{\"a\": [{}1]}}}}", "1,".repeat(5_000_000));
        assert_eq!(read_delegated(whole.as_bytes()).unwrap_err().class, Class::Limit);
        let deep = format!("{{\"name\": \"a\", \"value\": {}", "[".repeat(1_000));
        assert_eq!(exports(&deep).unwrap_err().class, Class::Limit);
    }

    #[test]
    fn fault_76_blank_lines_are_passed_over() {
        let mut content = vec![b'\n'; FILE_LIMIT - 30];
        content.extend_from_slice(b"{\"name\": \"A\", \"value\": 1}");
        assert_eq!(read_exports(&content).unwrap()["A"], "1");
        content.extend_from_slice(b"\nx");
        let error = read_exports(&content).unwrap_err();
        assert_eq!(error.line, u32::try_from(FILE_LIMIT - 28).ok());
    }

    #[test]
    fn a_bad_line_can_be_shown_to_who_may_see_it() {
        let content = b"{\"name\": \"A\", \"value\": 1}\nTOKEN=x\nmore";
        let error = read_exports(content).unwrap_err();
        assert_eq!(error.bad_line(content), Some(&b"TOKEN=x"[..]));
    }

    #[test]
    fn a_delegating_process_writes_a_step_result() {
        let read = read_delegated(b"{\"status\": 2,\n \"outputs\": {\"a\": [1]}}").unwrap();
        assert!(read["a"] == Value::array([Value::plain(Data::Number(1.0))]));
        assert!(read_delegated(b"{}").unwrap().is_empty());
        assert_eq!(read_delegated(b"{}\n[").unwrap_err().line, Some(2));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(content in prop::collection::vec(any::<u8>(), 0..200)) {
            drop(read_exports(&content));
            drop(read_delegated(&content));
        }
    }
}
