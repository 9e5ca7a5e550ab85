//! Return values of an invocation: outputs and exports of a process, outputs of a sequence (language.md §4, §12).

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use step_runner_lang::ast::{Body, Declaration, Function, Outputs, TemplateValue};
use step_runner_lang::convert::contract;
use step_runner_lang::diagnostic::{Class, Diagnostic, Position};
use step_runner_lang::output_file::{self, FileKind, OutputFileError};
use step_runner_lang::value::Value;

use super::secrets;

/// Values returned by a process that succeeded. It has no `Debug`, because it may hold secrets.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct ProcessOutputs {
    /// Outputs, checked and with defaults filled in.
    pub(crate) outputs: IndexMap<String, Value>,
    /// Exports, as texts for an environment.
    pub(crate) exports: IndexMap<String, String>,
    /// Numbers in sensitive outputs, as the process wrote them.
    pub(crate) written: Vec<String>,
}

impl ProcessOutputs {
    /// Values of a process that returned none.
    pub(crate) fn none() -> Self {
        Self { outputs: IndexMap::new(), exports: IndexMap::new(), written: Vec::new() }
    }
}

/// Content of a file, or the reason why it could not be read. A missing file counts as empty.
pub(crate) type Content<'a> = Result<&'a [u8], &'a str>;

/// Reads the two files of a process, outputs first.
pub(crate) fn of_process(
    declared: &Outputs,
    outputs: Content<'_>,
    exports: Content<'_>,
) -> Result<ProcessOutputs, OutputFileError> {
    let content = bytes(outputs, FileKind::Output)?;
    let outputs = match declared {
        Outputs::Declared(declared) => output_file::read_outputs(content, declared)?,
        Outputs::Delegate => output_file::read_delegated(content)?,
    };
    let exports = output_file::read_exports(bytes(exports, FileKind::Export)?)?;
    let written = match declared {
        Outputs::Declared(declared) => {
            let is_sensitive = |name: &String| declared.get(name).is_some_and(|output| output.sensitive);
            secrets::numbers_written(
                outputs.iter().filter(|(name, _)| is_sensitive(name)).map(|(_, value)| value),
                content,
            )
        }
        Outputs::Delegate => Vec::new(),
    };
    Ok(ProcessOutputs { outputs, exports, written })
}

fn bytes(content: Content<'_>, file: FileKind) -> Result<&[u8], OutputFileError> {
    content.map_err(|why| OutputFileError {
        class: Class::Malformed,
        file,
        line: None,
        message: format!("{}: {why}", file.label()),
    })
}

/// Checks the outputs of a run function against its interface. Undeclared ones are kept without a warning: reading the
/// file has given it already (language.md §4).
pub(crate) fn of_sequence(
    evaluated: IndexMap<String, Value>,
    declared: &IndexMap<String, Declaration>,
    function: &Function,
) -> Result<IndexMap<String, Value>, Vec<Diagnostic>> {
    contract::bind_sequence_outputs(evaluated, declared)
        .map(|(outputs, _undeclared)| outputs)
        .map_err(|errors| errors.into_iter().map(|error| broken_output(error, declared, function)).collect())
}

fn broken_output(
    error: contract::ContractError,
    declared: &IndexMap<String, Declaration>,
    function: &Function,
) -> Diagnostic {
    // Point to the expression of the value. For a missing value, point to the declaration.
    let made = match &function.definition.body {
        Body::Run(run) => run.outputs.get(&error.name).and_then(TemplateValue::at),
        Body::Exec(_) => None,
    };
    let promised = || declared.get(&error.name).map_or(Position::START, |output| output.at);
    let at = made.unwrap_or_else(promised);
    Diagnostic::error(error.class, &function.file, at, error.message)
        .with_path(format!("outputs.{}", error.name))
}
