//! Programs that tests make. Each is written by another process: a child that another test forks meanwhile would inherit our
//! descriptor, and the kernel runs no file that is open for writing.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// Copies a program.
pub(crate) fn copy_program(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg(from).arg(to).status().unwrap().success());
}

/// Writes a program.
pub(crate) fn write_program(path: &Path, text: &str) {
    let mut writer = Command::new("sh");
    writer.args(["-c", "cat >\"$0\" && chmod 755 \"$0\""]).arg(path).stdin(Stdio::piped());
    let mut child = writer.spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
}

/// Adds a byte to the end of a program, which can still be executed then.
pub(crate) fn change_program(path: &Path) {
    let status = Command::new("sh").args(["-c", "printf x >>\"$0\""]).arg(path).status().unwrap();
    assert!(status.success());
}
