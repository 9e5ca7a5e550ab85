//! Unprivileged users. Tests that run as root start daemons and clients as these users.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use super::Setup;
use super::programs::copy_program;

/// User id and group id for most tests.
pub(crate) const ORDINARY: u32 = 1_000;

/// Returns a user id that only one test uses: the kernel counts a user's processes on the whole machine.
pub(crate) fn lonely() -> u32 {
    static MADE: AtomicU32 = AtomicU32::new(0);
    // Containers can be limited to user ids up to 65,535.
    20_000 + (std::process::id() * 8 + MADE.fetch_add(1, Ordering::Relaxed)) % 40_000
}

/// A folder of a user that others can enter, with a copy of the program. The user cannot always read the original.
pub(crate) struct Place {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) program: PathBuf,
    user: u32,
}

impl Place {
    pub(crate) fn of(user: u32) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(dir.path(), Some(user), Some(user)).unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let program = copy_of_the_program(dir.path());
        Self { dir, program, user }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Returns a setup that runs the daemon as the user.
    pub(crate) fn setup(&self) -> Setup {
        let words = words(self.user);
        Setup::new().program(&self.program).wrapper(&words.each_ref().map(String::as_str))
    }
}

/// Returns the start of a command line that runs a command as `user`.
pub(crate) fn words(user: u32) -> [String; 4] {
    let (own, group) = (format!("--reuid={user}"), format!("--regid={user}"));
    ["setpriv".to_owned(), own, group, "--clear-groups".to_owned()]
}

/// Returns a command that runs `program` as `user`.
pub(crate) fn command_as(user: u32, program: impl AsRef<OsStr>) -> Command {
    let [setpriv, options @ ..] = words(user);
    let mut command = Command::new(setpriv);
    command.args(options).arg(program);
    command
}

/// Copies the program into `folder` and returns the path.
pub(crate) fn copy_of_the_program(folder: &Path) -> PathBuf {
    let program = folder.join("step-runner");
    copy_program(env!("CARGO_BIN_EXE_step-runner").as_ref(), &program);
    program
}
