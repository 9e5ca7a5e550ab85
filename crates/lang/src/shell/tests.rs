//! Scripts that people write, and the line in each whose failure is lost.

use proptest::prelude::*;

use super::*;

/// Returns the line of the script whose failure is lost.
fn lost(script: &str) -> Option<&str> {
    lost_failure(script).map(|at| script.get(at..).unwrap().lines().next().unwrap().trim_end())
}

#[test]
fn a_line_before_the_last_one_loses_its_failure() {
    for (script, line) in [
        ("make\necho done", "make"),
        ("cd build\nmake", "cd build"),
        ("npm ci\nnpm test\n", "npm ci"),
        ("export CI=1\n. venv/bin/activate\npytest\n", ". venv/bin/activate"),
        ("set -x\nmake test\nrm -f out\n", "make test"),
        ("# build\n\nmake \\\n  all\necho ok\n", "make \\"),
        ("make; echo built\necho done", "make; echo built"),
        ("make | tee log\ncat log", "make | tee log"),
        ("  make\n  echo done", "make"),
        ("VERSION=$(git describe)\necho \"$VERSION\"", "VERSION=$(git describe)"),
        ("make ${{ inputs.target }}\necho '${{ vars.X }}'", "make ${{ inputs.target }}"),
        ("make\r\necho done\r\n", "make"),
    ] {
        assert_eq!(lost(script), Some(line), "{script}");
    }
}

#[test]
fn scripts_that_cannot_lose_a_failure_or_look_after_it_are_left_alone() {
    for script in [
        "",
        "make",
        "make; echo done",
        "make \\\n  all \\\n  test",
        "echo building\nmake",
        "# only a comment\nmake\n# and another\n",
        "export A=1 B=2\nmake",
        "until [ -e go ]; do sleep 0.1; done\necho done",
        "echo start\nprintf 'x\\n'\nmake",
        "set -e\nmake\necho done",
        "set -eu\nmake\necho done",
        "set -euo pipefail\nmake\necho done",
        "set -o errexit\nmake\necho done",
        "echo hello\n  set -ex\nmake\necho done",
        "make &&\n  make test &&\n  echo done",
        "make || exit\necho done",
        "[ -f x ] && rm x\nmake",
        "make\ncode=$?\nrm -f x\nexit $code",
        "trap 'exit 1' ERR\nmake\necho done",
    ] {
        assert_eq!(lost(script), None, "{script}");
    }
}

proptest! {
    #[test]
    fn any_text_has_a_line_or_none(script in "([a-zé#\\\\ \t\r\n]|set -e|echo|&&){0,40}") {
        if let Some(at) = lost_failure(&script) {
            prop_assert!(script.is_char_boundary(at) && at < script.len());
        }
    }
}
