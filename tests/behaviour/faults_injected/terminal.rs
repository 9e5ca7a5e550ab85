//! Defects of the live view, and the state in which they leave the terminal.

use std::process::Command;

use crate::session::{OVER, Session};
use crate::support::parts::skipped;

const JOB: &str = r"spec: {}
---
run:
  - name: step
    script: printf '\033[31mred\nnot yet complete'; sleep 600
";

#[test]
fn a_panic_of_the_live_view_leaves_a_terminal_in_order() {
    if Command::new("tmux").arg("-V").output().is_err() {
        return skipped("a panic of the live view", "tmux");
    }
    let session = Session::open(80, 24).unwrap();
    session.write("job.yml", JOB).unwrap();
    // The failpoint panics in the twentieth frame of a running job, when the live region and its colours are on the
    // screen.
    let failpoint = "FAILPOINTS='cli::view::frame=20*off->1*panic(payload)->off'";
    session.start(failpoint, "step-runner run job.yml --times none --id example").unwrap();
    session.over().unwrap();
    let screen = session.screen().unwrap();
    let lines: Vec<_> = screen.lines().collect();
    assert!(screen.contains("step-runner: internal error: panic at "), "{screen}");
    assert!(!screen.contains(|c: char| ('\u{2800}'..='\u{28ff}').contains(&c)), "a region is left: {screen}");
    assert!(lines.contains(&format!("{OVER}101").as_str()), "colours are left: {screen:?}");
    for flag in ["cursor_flag", "wrap_flag"] {
        assert_eq!(session.variable(flag).unwrap(), "1", "{flag}");
    }
}
