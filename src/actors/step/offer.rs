//! Prepares the start of a step before its turn: the offer to the keeper, with its premises.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::{SHELL_FOLDERS, SHELLS, StepActor, StepTask};
use crate::job::effect::Program;
use crate::job::event::CallId;
use crate::keeper::link::KeeperFrame;
use crate::keeper::protocol::{Request, SpawnAfter};
use crate::model::LogChannel;
use crate::process::command;
use crate::process::premise::{Absence, FunctionStamp, Premises, ProgramStamp};

impl StepActor {
    /// Returns the request to start the process once that of `after` has succeeded. `function` is the file that describes
    /// it. `None` if the start has to be prepared anew when it is due.
    pub(in crate::actors) fn offer(
        task: StepTask,
        after: CallId,
        lines: Vec<(LogChannel, String)>,
        function: Option<FunctionStamp>,
    ) -> Option<KeeperFrame> {
        let mut step = Self::new(task);
        // There is no process yet whose end anyone waits for.
        step.done = true;
        let spawn = step.spawn_step(0).ok()?;
        let (program, absent) = (ProgramStamp::of(&spawn.program)?, step.preferred_to(&spawn.program)?);
        let absent = absent.into_iter().map(Absence::of).collect::<Option<_>>()?;
        let premises = Premises { program, absent, function };
        KeeperFrame::of(Request::SpawnAfter(Box::new(SpawnAfter { after, lines, spawn, premises }))).ok()
    }

    /// Returns the files that would be run instead of `program` if they were there. `None` if that cannot be told.
    fn preferred_to(&self, program: &Path) -> Option<Vec<PathBuf>> {
        let StepTask { spawn, daemon_path, .. } = &self.task;
        let candidates: Vec<PathBuf> = match &spawn.program {
            Program::Command(argv) => {
                let name = argv.first()?;
                if name.contains('/') {
                    return Some(Vec::new());
                }
                let path = spawn
                    .env
                    .iter()
                    .find(|(name, _)| name == b"PATH")
                    .map(|(_, path)| OsStr::from_bytes(path));
                command::candidates(name, Path::new(&spawn.work_dir), path, daemon_path.as_deref()).collect()
            }
            Program::Script(_) => {
                let all = SHELLS
                    .into_iter()
                    .flat_map(|name| SHELL_FOLDERS.map(|folder| format!("{folder}/{name}")));
                all.map(PathBuf::from).collect()
            }
            Program::ScriptFile(_) | Program::LegacyScript(_) | Program::Builtin(_) => return None,
        };
        let at = candidates.iter().position(|candidate| candidate == program)?;
        Some(candidates.into_iter().take(at).collect())
    }
}
