//! Reads the targets of `run` and `submit`: a file, a folder, a reference, or stdin (cli.md, "How FILE travels").

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;

use serde_json::Value;

use super::check::Precheck;
use super::ci_file;
use super::findings::{not_utf8, refused};
use super::inputs;
use super::inputs::Untyped;
use super::made::{beginning_of, escape, is_reference, name_of, shown};
use super::misnamed::rename;
use crate::error::{Exit, Failure};
use crate::lang::ast::{Body, Invocation, Reference, Step};
use crate::lang::document::{REQUEST_LIMIT, parse_function, parse_request};
use crate::lang::reference::DEFINITION_FILES;
use crate::plan::check::calling_steps;

const STDIN: &str = "<stdin>";

/// Remedy for a target that does not exist.
const TARGETS: &str = "name a function file, a folder that holds one, a reference, or - for stdin";

/// Document of a job and its name. It may hold secrets: no `Debug`.
pub(super) struct Document {
    /// `steps` of the request.
    pub(super) text: String,
    /// `file` of the request.
    pub(super) name: String,
    /// Inputs of the request. Inputs of a reference are in `text`, with its step.
    pub(super) inputs: Vec<(String, Value)>,
}

/// Reads the document that `target` names. `absolute` if the daemon sees the same files. `inputs` are `NAME=VALUE` as
/// given. With `check` the text is checked first.
pub(super) fn read(
    target: &str,
    absolute: bool,
    inputs: &[String],
    check: Option<&Precheck<'_>>,
) -> Result<Document, Failure> {
    // In a list of steps the target is written `step: TARGET`.
    let target = target.strip_prefix("step:").map_or(target, str::trim);
    if target == "-" {
        let text = read_all(std::io::stdin().lock(), "stdin")?;
        if let Some(check) = check {
            check.text(STDIN, &text)?;
        }
        return with_inputs(text, STDIN.to_owned(), inputs);
    }
    match std::fs::metadata(target) {
        Ok(found) if found.is_dir() => {
            let file =
                DEFINITION_FILES.iter().map(|name| Path::new(target).join(name)).find(|file| file.exists());
            let file = file.ok_or_else(|| {
                let ci_file = Path::new(target).join(ci_file::CI_FILE);
                if ci_file.is_file() {
                    return ci_file::wants_a_job(&ci_file);
                }
                let none = refuse(format!("there is neither {} in {target}", DEFINITION_FILES.join(" nor ")));
                none.with_remedy(rename(Path::new(target)).unwrap_or_else(|| TARGETS.to_owned()))
            })?;
            from_file(&file, absolute, inputs, check)
        }
        Ok(_) => from_file(Path::new(target), absolute, inputs, check),
        Err(_) if is_reference(target) => {
            let document = from_reference(target, inputs)?;
            if let Some(check) = check {
                check.reference(&document.name, &document.text)?;
            }
            Ok(document)
        }
        Err(_) if target.is_empty() => {
            Err(refuse("the name of the file is empty".into()).with_remedy(TARGETS))
        }
        Err(error) => Err(refuse(format!("cannot read {target}: {error}")).with_remedy(TARGETS)),
    }
}

fn from_file(
    file: &Path,
    absolute: bool,
    inputs: &[String],
    check: Option<&Precheck<'_>>,
) -> Result<Document, Failure> {
    let (text, name) = text_and_name(file, absolute)?;
    if ci_file::is_ci_file(file, &text) {
        return Err(ci_file::wants_a_job(file));
    }
    if let Some(check) = check {
        check.file(file, &file.display().to_string(), &text)?;
    }
    if file.file_name().is_some_and(|name| DEFINITION_FILES.iter().any(|known| name == *known)) {
        // By its name it is a function file, so a steps document alone is not enough (language.md §2).
        let shown = file.display().to_string();
        parse_function(&text, &shown).map_err(|findings| refused(&[(&findings, Some(&text))]))?;
    }
    with_inputs(text, name, inputs)
}

/// Returns the text of a file and its name in the request.
fn text_and_name(file: &Path, absolute: bool) -> Result<(String, String), Failure> {
    let shown = file.display().to_string();
    let opened =
        std::fs::File::open(file).map_err(|error| refuse(format!("cannot read {shown}: {error}")))?;
    let text = read_all(opened, &shown)?;
    let name = if absolute {
        let path = std::path::absolute(file).map_err(|error| refuse(format!("{shown}: {error}")))?;
        path.display().to_string()
    } else {
        shown
    };
    Ok((text, name))
}

fn read_all(source: impl std::io::Read, name: &str) -> Result<String, Failure> {
    let mut bytes = Vec::new();
    source
        .take(REQUEST_LIMIT as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| refuse(format!("cannot read {name}: {error}")))?;
    if bytes.len() > REQUEST_LIMIT {
        return Err(refuse(format!("{name} is longer than {} MiB", REQUEST_LIMIT >> 20)));
    }
    String::from_utf8(bytes).map_err(|error| refused(&[(&[not_utf8(name, &error)], None)]))
}

/// Makes a list of one step named `run`, which gets the inputs.
fn from_reference(reference: &str, inputs: &[String]) -> Result<Document, Failure> {
    let mut given = BTreeMap::new();
    for input in inputs {
        let (name, value) = inputs::untyped(input)?;
        let text = match value {
            Untyped::Number(text) => text.to_owned(),
            Untyped::Value(value) => escape(value).to_string(),
        };
        given.insert(Value::from(name).to_string(), text);
    }
    // Written by hand: JSON alone cannot hold a number as it was given, but YAML can.
    let given: Vec<String> = given.into_iter().map(|(name, text)| format!("{name}: {text}")).collect();
    let begin = beginning_of(reference);
    let text = if given.is_empty() {
        format!("{begin}}}]")
    } else {
        format!("{begin}, \"inputs\": {{{}}}}}]", given.join(", "))
    };
    Ok(Document { text, name: name_of(reference), inputs: Vec::new() })
}

/// Returns the local references in the steps of a document, normalised.
pub(super) fn local_references(text: &str, file: &str) -> Vec<String> {
    let Ok(function) = parse_request(text, file) else { return Vec::new() };
    let Body::Run(run) = function.definition.body else { return Vec::new() };
    let local = |step: &Step| match &step.invokes {
        Invocation::Reference(Reference::Local { path, .. }, _) => Some(path.clone()),
        _ => None,
    };
    calling_steps(&run).filter_map(local).collect()
}

fn with_inputs(text: String, name: String, inputs: &[String]) -> Result<Document, Failure> {
    let inputs = inputs::read(&text, &shown(&name), inputs)?;
    Ok(Document { text, name, inputs })
}

fn refuse(message: String) -> Failure {
    Failure::new(Exit::Refused, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::made::is_of_reference;

    #[test]
    fn a_reference_is_a_list_of_one_step_with_literal_inputs() {
        let inputs = ["x=${{ y }}", "hash=7e12345", "version= 1.10", "x2=[0x1F]"].map(str::to_owned);
        let document = read("builtin://no/such", true, &inputs, None).ok().unwrap();
        assert!(is_of_reference(&document.text, "builtin://no/such"));
        let literal = ["\"hash\": 7e12345", "\"version\": 1.10", "\"x2\": [31"];
        assert!(literal.iter().all(|text| document.text.contains(text)), "{}", document.text);
        let document = read("builtin://no/such", true, &inputs[..1], None).ok().unwrap();
        let steps: Value = serde_json::from_str(&document.text).unwrap();
        assert_eq!(
            steps,
            serde_json::json!([{"name": "run", "func": "builtin://no/such", "inputs": {"x": "\\${{ y }}"}}])
        );
    }

    #[test]
    fn references_are_told_from_missing_files() {
        for reference in [
            "builtin://echo",
            "gitlab.com/g/p@v1",
            "https://h/p@v1",
            "reg.example.com/g/echo:1",
            "localhost/echo",
            "g/echo:1",
        ] {
            assert!(is_reference(reference), "{reference}");
        }
        for path in ["./x", "/x/y.yml", "func.yml", "../a@b", "steps/func.yml"] {
            assert!(!is_reference(path), "{path}");
        }
    }
}
