//! `step-runner builtin`: started by the keeper as the process of a step, never by people (language.md §17).

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::{CommandResult, in_runtime, terminal};
use crate::builtin::{self, BuiltinEnvironment, BuiltinValues};
use crate::error::{Exit, Failure};
use crate::process::{host, worker};

/// A function that ships with the program, as the process of a step
#[derive(clap::Args)]
#[command(hide = true)]
pub(super) struct Arguments {
    /// Name of the function
    name: String,
    /// File with its inputs, a JSON object; removed when it has been read
    #[arg(long, value_name = "FILE")]
    inputs: PathBuf,
    /// File to which outputs are appended
    #[arg(long, value_name = "FILE")]
    output_file: PathBuf,
}

pub(super) fn execute(arguments: Arguments) -> CommandResult {
    worker::end_first();
    // Inputs and environment may hold credentials.
    host::hide_memory()
        .map_err(|error| Failure::new(Exit::Failure, format!("cannot hide its memory: {error}")))?;
    if !builtin::starts_programs(&arguments.name) {
        worker::limit_memory(worker::MAX_IMAGE_MEMORY)
            .map_err(|error| Failure::new(Exit::Failure, format!("cannot limit its memory: {error}")))?;
    }
    in_runtime(run(arguments))
}

async fn run(Arguments { name, inputs, output_file }: Arguments) -> CommandResult {
    let failed = |error: &dyn std::fmt::Display| Failure::new(Exit::Failure, format!("{name}: {error}"));
    let values = read_inputs(&inputs).map_err(|error| failed(&format!("cannot read its inputs: {error}")))?;
    let work_dir = std::env::current_dir().map_err(|error| failed(&error))?;
    let scratch = inputs.parent().map_or_else(|| work_dir.clone(), Path::to_owned);
    let environment = BuiltinEnvironment {
        work_dir,
        scratch,
        variable: &|name| std::env::var(name).ok(),
        say: &|line| {
            // If nobody reads the line, the outputs still carry the result.
            writeln!(anstream::stdout(), "{line}").ok();
        },
    };
    let outputs = builtin::run(&name, &values, &environment).await;
    let outputs = match outputs {
        Ok(outputs) => outputs,
        Err(error) if error.code() == Exit::Failure.code() => {
            return Err(failed(&crate::error::Chain(&error)));
        }
        Err(error) => {
            terminal::say(&format!("step-runner: {name}: {}", crate::error::Chain(&error)));
            return Ok(error.code());
        }
    };
    write_outputs(&output_file, &outputs)
        .map_err(|error| failed(&format!("cannot write its outputs: {error}")))?;
    Ok(0)
}

fn read_inputs(path: &Path) -> std::io::Result<BuiltinValues> {
    let text = fs::read(path)?;
    fs::remove_file(path)?;
    Ok(serde_json::from_slice(&text)?)
}

/// Appends the outputs, each as a JSON line (language.md §12).
fn write_outputs(path: &Path, outputs: &BuiltinValues) -> std::io::Result<()> {
    let mut lines = String::new();
    for (name, value) in outputs {
        lines.push_str(&json!({"name": name, "value": value}).to_string());
        lines.push('\n');
    }
    File::options().append(true).open(path)?.write_all(lines.as_bytes())
}
