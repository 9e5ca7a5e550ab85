//! Prepares the start of a step before its turn: the offer to the keeper, with its premises.

use std::path::{Path, PathBuf};

use super::at_hand::shells_in_folders;
use super::{StepActor, StepTask};
use crate::job::effect::Program;
use crate::job::event::CallId;
use crate::keeper::link::KeeperFrame;
use crate::keeper::protocol::{Request, SpawnAfter};
use crate::model::LogChannel;
use crate::process::premise::{Absence, FunctionStamp, Premises, ProgramStamp};

impl StepActor {
    /// Returns the request to start the process once that of `after` has succeeded. `function` identifies the file
    /// that the step's function was read from. `None` if the start must be prepared when it is due.
    pub(in crate::actors) fn offer(
        task: StepTask,
        after: CallId,
        lines: Vec<(LogChannel, String)>,
        function: Option<FunctionStamp>,
    ) -> Option<KeeperFrame> {
        let mut step = Self::new(task);
        let spawn = step.spawn_step(0).ok()?;
        let (program, absent) = (ProgramStamp::of(&spawn.program)?, step.preferred_to(&spawn.program)?);
        let absent = absent.into_iter().map(Absence::of).collect::<Option<_>>()?;
        let premises = Premises { program, absent, function };
        KeeperFrame::of(Request::SpawnAfter(Box::new(SpawnAfter { after, lines, spawn, premises }))).ok()
    }

    /// Returns the files that would be run instead of `program` if they existed. `None` if that is unknown.
    fn preferred_to(&self, program: &Path) -> Option<Vec<PathBuf>> {
        let candidates: Vec<PathBuf> = match &self.task.spawn.program {
            Program::Command(argv) => {
                let name = argv.first()?;
                if name.contains('/') {
                    return Some(Vec::new());
                }
                self.task.in_path(name).collect()
            }
            Program::Script(_) => shells_in_folders().collect(),
            Program::ScriptFile(_) | Program::LegacyScript(_) | Program::Builtin(_) => return None,
        };
        let at = candidates.iter().position(|candidate| candidate == program)?;
        Some(candidates.into_iter().take(at).collect())
    }
}
