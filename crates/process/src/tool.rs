//! Programs that a stage of a CI job runs and waits for: `git`, and shells for its hooks.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

/// A program to run. Its output goes where that of this process goes. Its standard input is empty.
#[derive(Debug)]
pub struct Tool {
    command: Command,
}

/// The end of a program whose error output was read.
#[derive(Debug)]
pub struct ToolEnd {
    /// Its exit status.
    pub status: ExitStatus,
    /// Its standard error.
    pub stderr: Vec<u8>,
}

impl Tool {
    /// Names the program, the folder to run it in, and its arguments.
    pub fn new(program: &str, folder: &Path, arguments: impl IntoIterator<Item = OsString>) -> Self {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(folder).stdin(Stdio::null());
        Self { command }
    }

    /// Sets variables of its environment, beside those of this process.
    #[must_use]
    pub fn variables(mut self, variables: impl IntoIterator<Item = (String, OsString)>) -> Self {
        self.command.envs(variables);
        self
    }

    /// Runs it to its end.
    pub fn run(mut self) -> io::Result<ExitStatus> {
        self.command.status()
    }

    /// Runs it to its end and returns what it wrote to standard error. Its standard output goes on to ours.
    pub fn run_with_errors(mut self) -> io::Result<ToolEnd> {
        let output = self.command.stdout(Stdio::inherit()).stderr(Stdio::piped()).output()?;
        Ok(ToolEnd { status: output.status, stderr: output.stderr })
    }

    /// Runs it to its end and returns what it wrote to standard output; `None` if it failed. What it wrote to standard
    /// error is dropped.
    pub fn answer(mut self) -> io::Result<Option<Vec<u8>>> {
        let output = self.command.stderr(Stdio::null()).output()?;
        Ok(output.status.success().then_some(output.stdout))
    }
}

/// Returns the path of a program in `PATH`, if it is there.
pub fn find(program: &str) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders).map(|folder| folder.join(program)).find(|path| path.is_file())
}
