//! Parts of the machine that tests need. Without a part its tests are skipped.

#![allow(clippy::print_stderr, reason = "says why a test was skipped")]
#![allow(
    clippy::allow_attributes,
    reason = "in a test program that may print everywhere `expect` would fail"
)]

/// What a machine has or has not: no package brings it.
const OF_THE_MACHINE: &[&str] = &["loop device", "permission to mount"];

/// Says that `test` was not made for want of a part. With `STEP_RUNNER_REQUIRE_PARTS` in the environment, as in the
/// gate, it has failed, unless the part cannot be installed.
pub(crate) fn skipped(test: &str, part: &str) {
    let required = std::env::var_os("STEP_RUNNER_REQUIRE_PARTS").is_some() && !OF_THE_MACHINE.contains(&part);
    assert!(!required, "{test}: no {part}, and STEP_RUNNER_REQUIRE_PARTS is set");
    eprintln!("{test}: skipped: no {part}");
}
