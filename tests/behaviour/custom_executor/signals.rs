//! A Runner that ends a stage (custom-executor.md §7.5).

use rustix::process::Signal;

use crate::custom_executor::runner::{Runner, Running, Seen};
use crate::support::{Daemon, Setup, wait_for};

/// Starts a stage and waits until its script has made the file `ready`.
fn ready(runner: &mut Runner, script: &str) -> Running {
    let ready = runner.file("ready");
    std::fs::remove_file(&ready).ok();
    let running =
        runner.start_stage("build_script", script.replace("READY", &format!("touch {}", ready.display())));
    wait_for("the script", || ready.exists().then_some(()));
    running
}

/// T6 in custom-executor.md §15.
#[test]
fn a_signal_cancels_gently_and_the_last_words_are_heard() {
    let daemon = Daemon::start();
    for (runner, signal) in [
        (Runner::new(), Signal::TERM),
        (Runner::shared(&daemon.socket), Signal::INT),
        (Runner::shared(&daemon.socket).option("--script-delivery=inline"), Signal::HUP),
    ] {
        let mut runner = runner.prepared();
        let script = "trap 'echo last words; exit 1' TERM; echo begun; READY; while :; do sleep 0.05; done";
        let running = ready(&mut runner, script);
        running.signal(signal);
        let call = running.end().is(&Seen::SystemFailure);
        assert_eq!(call.stdout(), "begun\nlast words\n");
        // bash can report the `sleep` that the signal ended.
        assert!(["", "Terminated\n"].contains(&&*call.stderr()), "{}", call.stderr());
        // Later stages run: a Runner goes on with after_script.
        runner.stage("after_script", "echo after").is(&Seen::Success);
        runner.call(&["cleanup"]).is(&Seen::Success);
        runner.left_nothing();
    }
}

/// T6: a signal to the process group does not end the connector, which carries the cancel.
#[test]
fn a_signal_leaves_the_connector_alone_until_the_end() {
    let daemon = Daemon::start();
    let program = env!("CARGO_BIN_EXE_step-runner");
    let address = format!("--address=cmd:{program} proxy --socket {}", daemon.socket.display());
    let mut runner = Runner::new().option(&address).prepared();
    let script = "trap 'echo last words; exit 1' TERM; echo begun; READY; while :; do sleep 0.05; done";
    let running = ready(&mut runner, script);
    running.signal(Signal::TERM);
    let call = running.end().is(&Seen::SystemFailure);
    assert_eq!(call.stdout(), "begun\nlast words\n", "{}", call.stderr());
    // A killed driver leaves no connector running. Its stage is left to cleanup.
    let running = ready(&mut runner, "READY; sleep 600");
    running.signal(Signal::KILL);
    drop(running.end());
    runner.call(&["cleanup"]).is(&Seen::Success);
    runner.left_nothing();
    assert_eq!(daemon.folders(), [""; 0]);
}

/// T6: a signal comes during output that only the driver reads.
#[test]
fn a_signal_during_output_ends_all_processes() {
    let mut runner = Runner::new().prepared();
    let running = ready(&mut runner, "READY; (while :; do echo line; done) & while :; do echo other; done");
    running.signal(Signal::TERM);
    running.end().is(&Seen::SystemFailure);
    let stage = runner.file("custom-executor1/script1");
    wait_for("the end of the script", || {
        crate::support::processes_with(stage.to_str().unwrap()).is_empty().then_some(())
    });
    runner.call(&["cleanup"]).is(&Seen::Success);
    runner.left_nothing();
}

#[test]
fn force_follows_the_grace_and_the_second_signal() {
    let stubborn = "trap '' TERM; READY; while :; do sleep 0.05; done";
    let mut runner = Runner::new().option("--cancel-grace=300ms").prepared();
    let running = ready(&mut runner, stubborn);
    running.signal(Signal::TERM);
    running.end().is(&Seen::SystemFailure);
    runner.call(&["cleanup"]).is(&Seen::Success);
    runner.left_nothing();

    let daemon = Setup::new().option("cancel-grace", "1s").start();
    let mut runner = Runner::shared(&daemon.socket).option("--cancel-grace=1h").prepared();
    let running = ready(&mut runner, stubborn);
    running.signal(Signal::TERM);
    running.signal(Signal::INT);
    running.end().is(&Seen::SystemFailure);
}

#[test]
fn a_stage_that_ends_by_itself_meanwhile_keeps_its_result() {
    let mut runner = Runner::new().prepared();
    // The signal can reach the driver when the stage has ended but is still being followed.
    let running = ready(&mut runner, "trap 'exit 5' TERM; READY; sleep 0.2; exit 4");
    running.signal(Signal::TERM);
    assert!([Seen::SystemFailure, Seen::BuildFailure(4)].contains(&running.end().seen));
}

/// The Runner is gone, so nobody reads the driver's output.
#[test]
fn a_closed_reader_ends_the_stage() {
    let mut runner = Runner::new().prepared();
    let script = runner.script(b"while :; do echo line; done");
    let mut command = runner.command(&["run", script.to_str().unwrap(), "build_script"]);
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    let mut stderr = child.stderr.take().unwrap();
    let mut said = String::new();
    std::io::Read::read_to_string(&mut stderr, &mut said).unwrap();
    let status = wait_for("the driver", || child.try_wait().unwrap());
    assert_eq!(status.code(), Some(crate::custom_executor::runner::SYSTEM_FAILURE), "{said}");
    assert!(said.contains("nobody reads"), "{said}");
    wait_for("the end of the script", || {
        crate::support::processes_with(script.to_str().unwrap()).is_empty().then_some(())
    });
}

/// The driver must notice by itself that the Runner died: there is no signal and no `cleanup`, and a script without
/// output causes no broken pipe.
#[test]
fn the_death_of_the_runner_cancels_the_stage_gently() {
    let daemon = Daemon::start();
    for runner in [Runner::new(), Runner::shared(&daemon.socket)] {
        let mut runner = runner.prepared();
        let ready = runner.file("ready");
        let script = runner.script(
            format!(
                "trap 'echo last words; exit 1' TERM; echo begun; touch {}; while :; do sleep 0.05; done",
                ready.display()
            )
            .as_bytes(),
        );
        let mut command = runner.command_of_another(&["run", script.to_str().unwrap(), "build_script"]);
        let running = runner.started(&mut command);
        wait_for("the script", || ready.exists().then_some(()));
        crate::support::kill(running.pid(), Signal::KILL);
        // Only the driver still holds the pipes, so they close when it ends.
        assert_eq!(running.end().stdout(), "begun\nlast words\n");
        wait_for("the end of the script", || {
            crate::support::processes_with(script.to_str().unwrap()).is_empty().then_some(())
        });
        runner.call(&["cleanup"]).is(&Seen::Success);
        runner.left_nothing();
    }
    assert_eq!(daemon.folders(), [""; 0]);
}

/// A wrapper dies of the signal that the driver gets too. Together they count as one request to cancel, not two.
#[test]
fn the_death_of_a_wrapper_beside_a_signal_is_no_second_signal() {
    let mut runner = Runner::new().option("--cancel-grace=1h").prepared();
    let ready = runner.file("ready");
    let script = runner.script(
        format!(
            "trap 'sleep 0.3; echo last words; exit 1' TERM; touch {}; while :; do sleep 0.05; done",
            ready.display()
        )
        .as_bytes(),
    );
    let mut command = runner.command_of_another(&["run", script.to_str().unwrap(), "build_script"]);
    let running = runner.started(&mut command);
    wait_for("the script", || ready.exists().then_some(()));
    running.signal(Signal::TERM);
    assert_eq!(running.end().stdout(), "last words\n");
    runner.call(&["cleanup"]).is(&Seen::Success);
    runner.left_nothing();
}
