//! Private daemon of `ci`, and of a `run` without an address: part of this process, gone with it (cli.md, `run`).

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use tokio::time::timeout;

use super::interrupts::{Interrupts, LAST_ANSWER_WAIT};
use crate::app::PrivateDaemon;
use crate::config::{Config, EnvBase};
use crate::error::{Exit, Failure};
use crate::net::MAX_SOCKET_PATH;

/// Bytes that the names of folder and socket add to the path of the parent.
const ROOM: usize = "/step-runner-0123456789abcdef/step-runner.sock".len();

/// Starts a daemon on a new folder. After a signal, or several, the daemon is ended as soon as it has started: a start that
/// is given up would leave its folder.
pub(super) async fn start(env_base: EnvBase, interrupts: &mut Interrupts) -> Result<PrivateDaemon, Failure> {
    let starting = start_at_once(env_base);
    tokio::pin!(starting);
    let started = interrupts.unless_interrupted(&mut starting).await;
    if started.as_ref().is_err_and(|failure| failure.exit().is_by_signal()) {
        let tidy = async { end(starting.await?, true).await };
        // A start takes some milliseconds. Two signals in that time come from one hand, or from `timeout`.
        drop(timeout(LAST_ANSWER_WAIT, tidy).await);
    }
    started
}

async fn start_at_once(env_base: EnvBase) -> Result<PrivateDaemon, Failure> {
    let config = Config { env_base, ..Config::default() };
    blocking(move || {
        let parent = parent_for(std::env::temp_dir());
        let folder = make_folder(&parent).map_err(|error| {
            let text = format!("cannot make a folder for a private daemon in {}: {error}", parent.display());
            Failure::new(Exit::Failure, text).with_remedy("set TMPDIR to a folder that can be written")
        })?;
        PrivateDaemon::start(config, folder)
    })
    .await?
}

/// Ends the daemon and removes its folder. Its jobs get their grace, or are killed if `at_once`.
pub(super) async fn end(daemon: PrivateDaemon, at_once: bool) -> Result<(), Failure> {
    blocking(move || daemon.end(at_once)).await
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Failure> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|_| Failure::new(Exit::Defect, "the private daemon's thread died"))
}

/// Returns `wanted`, or `/tmp` if the path of a socket below it would be too long.
fn parent_for(wanted: PathBuf) -> PathBuf {
    if wanted.as_os_str().len() + ROOM <= MAX_SOCKET_PATH { wanted } else { PathBuf::from("/tmp") }
}

/// Makes a new folder, mode 0700, in `parent`.
fn make_folder(parent: &Path) -> io::Result<PathBuf> {
    /// Attempts to find a free name. Random names that are taken so often are no coincidence.
    const ATTEMPTS: usize = 8;
    let mut last = io::Error::other("no name is free");
    for _ in 0..ATTEMPTS {
        let random = getrandom::u64().map_err(|error| io::Error::other(error.to_string()))?;
        let folder = parent.join(format!("step-runner-{random:016x}"));
        match DirBuilder::new().mode(0o700).create(&folder) {
            Ok(()) => return Ok(folder),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn folders_are_private_and_new_and_short_enough_for_a_socket() {
        let parent = tempfile::tempdir().unwrap();
        let long = parent.path().join("x".repeat(80));
        std::fs::create_dir(&long).unwrap();
        for parent in [parent.path(), &long] {
            let folder = make_folder(&parent_for(parent.to_owned())).unwrap();
            assert_eq!(std::fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
            assert!(folder.join("step-runner.sock").as_os_str().len() <= MAX_SOCKET_PATH);
            std::fs::remove_dir(folder).unwrap();
        }
    }
}
