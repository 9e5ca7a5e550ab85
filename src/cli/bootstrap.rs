//! `step-runner bootstrap` and `step-runner steps bootstrap` (connectors.md §2.3).

use std::path::{Path, PathBuf};

use super::CommandResult;
use crate::bootstrap::{self, Form};
use crate::error::{Exit, Failure};

/// Copy this program into the folder DEST
///
/// Writes nothing if an identical copy is there already, and replaces any other file, even a copy that is running. Also
/// copies `ca-certs.pem` and `git` from the root folder, where a helper image has them, to the same place.
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  step-runner bootstrap /opt/step-runner            copies to /opt/step-runner/step-runner
  step-runner steps bootstrap /opt/bin/runner       copies to /opt/bin/runner")]
pub(super) struct Arguments {
    /// Folder, made if it is missing
    #[arg(value_name = "DEST")]
    destination: PathBuf,
}

/// Copy this program to DEST
///
/// DEST is the file; if it is a folder or ends in `/`, the file is `step-runner` in it. Writes nothing if an identical copy
/// is there already, and replaces any other file, even a copy that is running. Also copies `ca-certs.pem` and `git` from
/// the root folder, where a helper image has them, to the same place.
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  step-runner steps bootstrap /opt/bin/runner       copies to /opt/bin/runner
  step-runner steps bootstrap /opt/bin/             copies to /opt/bin/step-runner")]
pub(super) struct StepsArguments {
    /// File or folder
    #[arg(value_name = "DEST")]
    destination: PathBuf,
}

pub(super) fn execute(arguments: &Arguments) -> CommandResult {
    install(&arguments.destination, Form::Folder)
}

pub(super) fn execute_steps(arguments: &StepsArguments) -> CommandResult {
    install(&arguments.destination, Form::FileOrFolder)
}

fn install(destination: &Path, form: Form) -> CommandResult {
    if destination.as_os_str().is_empty() {
        return Err(Failure::new(Exit::Usage, "DEST is empty"));
    }
    let file = bootstrap::destination(destination, form);
    bootstrap::install(&file, Path::new("/")).map_err(|error| Failure::new(Exit::Failure, error))?;
    Ok(0)
}
