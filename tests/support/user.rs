//! Unprivileged users. Tests that run as root start daemons and clients as these users.

use std::ffi::OsStr;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use super::Setup;

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

/// Copies a program. It uses another process: a child that another test forks meanwhile would inherit our descriptor
/// and keep the file open for writing.
pub(crate) fn copy_program(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg(from).arg(to).status().unwrap().success());
}

/// Writes a program. It uses another process, as [`copy_program`] does.
pub(crate) fn write_program(path: &Path, text: &str) {
    let mut writer = Command::new("sh");
    writer.args(["-c", "cat >\"$0\" && chmod 755 \"$0\""]).arg(path).stdin(Stdio::piped());
    let mut child = writer.spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
}

/// Adds a byte to the end of a program, which can still be executed then. It uses another process, as [`copy_program`] does.
pub(crate) fn change_program(path: &Path) {
    let status = Command::new("sh").args(["-c", "printf x >>\"$0\""]).arg(path).status().unwrap();
    assert!(status.success());
}
