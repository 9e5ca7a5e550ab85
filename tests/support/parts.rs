//! Parts of the machine that tests need. Without a part its tests are skipped.

#![allow(clippy::print_stderr, reason = "says why a test was skipped")]
#![allow(
    clippy::allow_attributes,
    reason = "in a test program that may print everywhere `expect` would fail"
)]

/// Parts that cannot be installed as a package.
const OF_THE_MACHINE: &[&str] = &["loop device", "permission to mount"];

/// Reports `test` as skipped because a part is missing. With `STEP_RUNNER_REQUIRE_PARTS` set, as in the gate, it fails
/// instead, unless the part cannot be installed.
pub(crate) fn skipped(test: &str, part: &str) {
    let required = std::env::var_os("STEP_RUNNER_REQUIRE_PARTS").is_some() && !OF_THE_MACHINE.contains(&part);
    assert!(!required, "{test}: no {part}, and STEP_RUNNER_REQUIRE_PARTS is set");
    eprintln!("{test}: skipped: no {part}");
}
