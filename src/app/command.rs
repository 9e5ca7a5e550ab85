//! The command beside the daemon: `serve -- CMD` (connectors.md §2.1). Whoever starts the daemon decides by its standard
//! input whether it runs at all.

use std::ffi::OsString;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::failure;
use crate::error::{Exit, Failure};
use crate::process::companion::{self, Companion, CompanionGroup};

/// Time between SIGTERM and SIGKILL for the command beside the daemon (connectors.md §2.1).
const COMMAND_GRACE: Duration = Duration::from_secs(5);

/// The process group of the command beside the daemon, once it runs.
pub(super) type Group = Arc<Mutex<Option<CompanionGroup>>>;

/// Runs the command beside the daemon, if there is one, as soon as standard input has a byte; its exit code, or 0 if
/// standard input ended before (connectors.md §2.1).
pub(super) async fn beside(
    command: Vec<OsString>,
    environment: [(&'static str, Option<OsString>); 2],
    oom_score_adj: Option<i32>,
    group: &Group,
) -> Result<u8, Failure> {
    if command.is_empty() {
        return std::future::pending().await;
    }
    let (done, ended) = tokio::sync::oneshot::channel();
    let group = Arc::clone(group);
    let run = move || -> io::Result<u8> {
        if !companion::wait_for_input()? {
            return Ok(0);
        }
        let companion = Companion::start(&command, &environment, oom_score_adj)?;
        *group.lock() = Some(companion.group());
        let code = companion.wait();
        *group.lock() = None;
        code
    };
    // A thread of its own: it may wait for ever, and the program must be able to end without it.
    let thread = std::thread::Builder::new().name("command".into()).spawn(move || drop(done.send(run())));
    thread.map_err(|e| failure("cannot start a thread", &e))?;
    match ended.await {
        Ok(Ok(code)) => Ok(code),
        Ok(Err(error)) => Err(failure("cannot run the command beside the daemon", &error)),
        Err(_) => Err(Failure::new(Exit::Defect, "the thread of the command beside the daemon died")),
    }
}

/// Ends the command beside the daemon; its exit code.
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
