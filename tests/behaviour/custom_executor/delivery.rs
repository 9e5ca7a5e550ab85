//! The ways in which a script reaches the daemon (custom-executor.md §7.3).

use crate::custom_executor::runner::{Runner, Seen};
use crate::support::user::{ORDINARY, Place};
use crate::support::{Daemon, is_root};

/// T13 in custom-executor.md §15.
#[test]
fn inline_scripts_arrive_as_they_are() {
    let daemon = Daemon::start();
    let mut runner = Runner::shared(&daemon.socket).option("--script-delivery=inline").prepared();
    // Neither the daemon nor a shell on the way must expand any of this.
    let script = b"printf '%s\\n' '$HOME ${CI_JOB_ID} $$ ${{ job.id }}' \"it's \\\"so\\\"\" '\xff\xfe\x01\t`id`'\nexit 9\n";
    let call = runner.stage("build_script", script).is(&Seen::BuildFailure(9));
    let expected = b"$HOME ${CI_JOB_ID} $$ ${{ job.id }}\nit's \"so\"\n\xff\xfe\x01\t`id`\n";
    assert_eq!(call.stdout, expected);

    let long = format!("#!/usr/bin/env bash\n: '{}'\necho end", "x$y\n".repeat(3 << 18));
    assert!(long.len() >= 3 << 20);
    assert_eq!(runner.stage("build_script", long).is(&Seen::Success).stdout(), "end\n");

    runner.stage("build_script", "").is(&Seen::Success);
    runner.stage("build_script", "kill -9 $$").is(&Seen::BuildFailure(137));
    runner.stage("build_script", "#!/usr/bin/env no-such-shell\n").is(&Seen::BuildFailure(127));
    let umask = runner.stage("build_script", "umask; env | grep STEP_RUNNER_CE_").is(&Seen::BuildFailure(1));
    assert_eq!(umask.stdout().len(), 5, "{}", umask.stdout());
    runner.call(&["cleanup"]).is(&Seen::Success);
    runner.left_nothing();
    assert_eq!(daemon.folders(), [""; 0]);
}

#[test]
fn a_script_that_is_too_large_is_refused_with_both_sizes() {
    let daemon = Daemon::start();
    let mut runner = Runner::shared(&daemon.socket).option("--script-delivery=inline").prepared();
    let call = runner.stage("build_script", "#".repeat(7_000_000));
    call.fails_with(&["7000000 bytes", "8388608 bytes"]);
    // Delivered as a file, the same script is accepted.
    let mut runner = Runner::shared(&daemon.socket).prepared();
    runner.stage("build_script", "#".repeat(7_000_000)).is(&Seen::Success);
}

/// A daemon of another user cannot read the script file.
#[test]
fn a_script_that_the_daemon_cannot_read_is_no_failure_of_the_build() {
    if !is_root("a_script_that_the_daemon_cannot_read_is_no_failure_of_the_build") {
        return;
    }
    let place = Place::of(ORDINARY);
    let daemon = place.setup().start_in(place.path());
    let mut runner = Runner::shared(&daemon.socket).variable("CI_BUILDS_DIR", "").prepared();
    let call = runner.stage("build_script", "#!/usr/bin/env bash\necho never");
    let said = call.is(&Seen::SystemFailure).stderr();
    let own = said.lines().find(|line| line.starts_with("step-runner: ")).unwrap_or_default();
    assert!(
        own.contains("cannot read") && own.contains("--script-delivery inline"),
        "beside the shell's: {said}"
    );
    // The shell's own exit code for "not found" is passed on.
    let mut inline = Runner::shared(&daemon.socket)
        .variable("CI_BUILDS_DIR", "")
        .option("--script-delivery=inline")
        .prepared();
    inline.stage("build_script", "no-such-program").is(&Seen::BuildFailure(127));
    assert_eq!(inline.stage("build_script", "echo here").is(&Seen::Success).stdout(), "here\n");
}

#[test]
fn merged_streams_come_in_the_order_of_lines() {
    let mut runner = Runner::new().option("--merge-streams").prepared();
    // Two pipes have no common order, so each line waits until the one before it is in the log.
    let script = format!(
        "logged() {{ until grep -qs \"$1\\$\" {}/d/jobs/*/log; do sleep 0.01; done; }}\n\
         for i in 1 2 3; do echo o$i; logged o$i; echo e$i >&2; logged e$i; done",
        runner.state().display()
    );
    let call = runner.stage("build_script", script).is(&Seen::Success);
    assert_eq!((call.stdout(), call.stderr()), ("o1\ne1\no2\ne2\no3\ne3\n".into(), String::new()));
}
