//! Finds the program of a step, and makes its arguments.

use std::path::{Path, PathBuf};

use super::{StepActor, StepTask, no_shell, write_private};
use crate::error::Chain;
use crate::job::effect::{BuiltinProgram, Program, ScriptFile};
use crate::process::command;

/// Folders that are searched for shells before `PATH` (language.md §17 `script`).
pub(super) const SHELL_FOLDERS: [&str; 3] = ["/usr/local/bin", "/usr/bin", "/bin"];

/// Names of shells, the preferred one first.
pub(super) const SHELLS: [&str; 2] = ["bash", "sh"];

/// The program that the keeper runs, as its child sees it: correct even if the file was replaced or removed.
const OURSELVES: &str = "/proc/self/exe";

impl StepActor {
    /// Finds the program, and returns the name of the shell if it is one. Writes nothing.
    pub(super) fn find(&self) -> Result<(PathBuf, Option<String>), String> {
        let of_shell = |(shell, name)| (shell, Some(name));
        match &self.task.spawn.program {
            Program::Command(argv) => Ok((self.look_up(argv.first().map_or("", String::as_str))?, None)),
            Program::Script(_) | Program::ScriptFile(_) => self.shell().map(of_shell),
            Program::LegacyScript(_) => self.shell_by_name().map(of_shell),
            Program::Builtin(_) => Ok((OURSELVES.into(), None)),
        }
    }

    /// Writes the file that the program reads, if it reads one, and returns the arguments.
    pub(super) fn arguments(&self, program: &Path, shell: Option<String>) -> Result<Vec<String>, String> {
        let write = |what: &str, path: &str, text: &str| {
            write_private(&self.task.folder, Path::new(path), text)
                .map_err(|e| format!("cannot write the {what} to {path}: {e}"))
        };
        let shell = shell.unwrap_or_default();
        Ok(match &self.task.spawn.program {
            Program::Command(argv) => argv.clone(),
            // `--` ends the options of a shell: no text of a script is one.
            Program::Script(text) => vec![shell, "-c".into(), "--".into(), text.clone()],
            Program::ScriptFile(ScriptFile { path, text }) => {
                write("script", path, text)?;
                vec![shell, path.clone()]
            }
            Program::LegacyScript(ScriptFile { path, text }) => {
                write("script", path, &format!("#!{}\n{text}", program.display()))?;
                vec![shell, path.clone()]
            }
            Program::Builtin(BuiltinProgram { name, path, inputs }) => {
                write("inputs", path, inputs)?;
                let output = self.task.spawn.files.as_ref().map_or("", |files| files.output.as_str());
                let argv = ["step-runner", "builtin", name, "--inputs", path, "--output-file", output];
                argv.map(str::to_owned).to_vec()
            }
        })
    }

    pub(super) fn look_up(&self, name: &str) -> Result<PathBuf, String> {
        let StepTask { spawn, daemon_path, .. } = &self.task;
        command::lookup(name, Path::new(&spawn.work_dir), self.task.step_path(), daemon_path.as_deref())
            .map_err(|e| Chain(&e).to_string())
    }

    /// Finds a shell: first in the usual folders, then in `PATH` (language.md §17 `script`).
    fn shell(&self) -> Result<(PathBuf, String), String> {
        self.shell_in_folders().or_else(|| self.shell_in_path()).ok_or_else(no_shell)
    }

    /// Finds a shell: first in `PATH`, then in the usual folders (language.md §17 `script_legacy`).
    fn shell_by_name(&self) -> Result<(PathBuf, String), String> {
        self.shell_in_path().or_else(|| self.shell_in_folders()).ok_or_else(no_shell)
    }

    /// Returns the name of the shell that runs a script which an earlier daemon has started.
    pub(super) fn name_of_shell(&self) -> Option<String> {
        let shell = match &self.task.spawn.program {
            Program::Script(_) | Program::ScriptFile(_) => self.shell(),
            Program::LegacyScript(_) => self.shell_by_name(),
            Program::Command(_) | Program::Builtin(_) => return None,
        };
        shell.ok().map(|(_, name)| name)
    }

    fn shell_in_folders(&self) -> Option<(PathBuf, String)> {
        let all = SHELLS.into_iter().flat_map(|name| SHELL_FOLDERS.map(|folder| (folder, name)));
        all.map(|(folder, name)| (format!("{folder}/{name}"), name))
            .find(|(path, _)| self.look_up(path).is_ok())
            .map(|(path, name)| (path.into(), name.to_owned()))
    }

    fn shell_in_path(&self) -> Option<(PathBuf, String)> {
        SHELLS.into_iter().find_map(|name| Some((self.look_up(name).ok()?, name.to_owned())))
    }
}
