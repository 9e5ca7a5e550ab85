//! Parts of the machine that tests need. Without a part its tests are skipped.

#![allow(clippy::print_stderr, reason = "says why a test was skipped")]
#![allow(
    clippy::allow_attributes,
    reason = "in a test program that may print everywhere `expect` would fail"
)]

/// Parts that cannot be installed as a package.
const OF_THE_MACHINE: &[&str] =
    &["loop device", "permission to mount", "namespaces of mounts and processes", "immutable files"];

/// Returns false, and reports `test` as skipped, where root cannot make namespaces of mounts and processes: in many
/// containers, and in a root folder that is no mount.
#[allow(dead_code, reason = "not every test program makes namespaces")]
pub(crate) fn has_namespaces(test: &str) -> bool {
    let made = std::process::Command::new("unshare").args(["--mount", "--pid", "--fork", "true"]).output();
    let has = made.is_ok_and(|output| output.status.success());
    if !has {
        skipped(test, "namespaces of mounts and processes");
    }
    has
}

/// Returns false, and reports `test` as skipped, where the machine lacks a program.
#[allow(dead_code, reason = "not every test program starts others")]
pub(crate) fn has_program(test: &str, program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let has = std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
    if !has {
        skipped(test, program);
    }
    has
}

/// Reports `test` as skipped because a part is missing. With `STEP_RUNNER_REQUIRE_PARTS` set, as in the gate, it fails
/// instead, unless the part cannot be installed.
pub(crate) fn skipped(test: &str, part: &str) {
    let required = std::env::var_os("STEP_RUNNER_REQUIRE_PARTS").is_some() && !OF_THE_MACHINE.contains(&part);
    assert!(!required, "{test}: no {part}, and STEP_RUNNER_REQUIRE_PARTS is set");
    eprintln!("{test}: skipped: no {part}");
}
