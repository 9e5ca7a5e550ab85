//! The command beside the daemon: `serve -- CMD` (connectors.md §2.1). The starter of the daemon decides through its
//! standard input whether the command runs at all.

use std::ffi::OsString;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::failure;
use crate::error::{Exit, Failure};
use crate::process::companion::{self, Companion, CompanionGroup};

/// Time between SIGTERM and SIGKILL for the command (connectors.md §2.1).
const COMMAND_GRACE: Duration = Duration::from_secs(5);

/// The process group of the command; clones share it.
#[derive(Clone, Default)]
pub(super) struct CommandGroup(Arc<Mutex<CommandState>>);

#[derive(Default)]
enum CommandState {
    #[default]
    NotStarted,
    Running(CompanionGroup),
    /// The command has ended, or must not be started any more.
    Over,
}

impl CommandGroup {
    /// Prevents a later start. Returns the group to end, if the command runs.
    pub(super) fn close(&self) -> Option<CompanionGroup> {
        match std::mem::replace(&mut *self.0.lock(), CommandState::Over) {
            CommandState::Running(group) => Some(group),
            CommandState::NotStarted | CommandState::Over => None,
        }
    }

    /// Starts the command. `None` if the daemon is ending already. A concurrent `close` waits for the start.
    fn start(&self, start: impl FnOnce() -> io::Result<Companion>) -> io::Result<Option<Companion>> {
        let mut life = self.0.lock();
        if matches!(*life, CommandState::Over) {
            return Ok(None);
        }
        let companion = start()?;
        *life = CommandState::Running(companion.group());
        Ok(Some(companion))
    }
}

/// Runs the command, if there is one, as soon as standard input has a byte. Returns its exit code, or 0 if standard
/// input ended first (connectors.md §2.1).
pub(super) async fn beside(
    command: Vec<OsString>,
    environment: [(&'static str, Option<OsString>); 2],
    oom_score_adj: Option<i32>,
    group: &CommandGroup,
) -> Result<u8, Failure> {
    if command.is_empty() {
        return std::future::pending().await;
    }
    let (done, ended) = tokio::sync::oneshot::channel();
    let group = group.clone();
    let run = move || -> io::Result<u8> {
        if !companion::wait_for_input()? {
            return Ok(0);
        }
        let start = || Companion::start(&command, &environment, oom_score_adj);
        let Some(companion) = group.start(start)? else { return Ok(0) };
        let code = companion.wait();
        group.close();
        code
    };
    // Use a separate thread: it may wait for ever, and the program must be able to end without it.
    let thread = std::thread::Builder::new().name("command".into()).spawn(move || drop(done.send(run())));
    thread.map_err(|e| failure("cannot start a thread", &e))?;
    match ended.await {
        Ok(Ok(code)) => Ok(code),
        Ok(Err(error)) => Err(failure("cannot run the command beside the daemon", &error)),
        Err(_) => Err(Failure::new(Exit::Defect, "the thread of the command beside the daemon died")),
    }
}

pub(super) async fn end_command(
    running: &CompanionGroup,
    mut beside: std::pin::Pin<&mut impl Future<Output = Result<u8, Failure>>>,
) -> Result<u8, Failure> {
    running.terminate();
    if let Ok(code) = tokio::time::timeout(COMMAND_GRACE, beside.as_mut()).await {
        return code;
    }
    running.kill();
    beside.await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleep() -> io::Result<Companion> {
        Companion::start(&["sleep".into(), "600".into()], &[], None)
    }

    #[test]
    fn a_stop_finds_the_command_or_keeps_it_from_starting() {
        let group = CommandGroup::default();
        let companion = group.start(sleep).unwrap().unwrap();
        group.close().unwrap().kill();
        assert_eq!(companion.wait().unwrap(), 128 + 9);

        let group = CommandGroup::default();
        assert!(group.close().is_none());
        assert!(group.start(|| panic!("it is started")).unwrap().is_none());
    }
}
