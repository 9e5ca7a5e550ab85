//! Preparation and stages without faults.

use std::process::Command;

use crate::custom_executor::runner::{Runner, Seen};
use crate::support::{Daemon, is_alive, is_root};

/// Every stage that a Runner knows, and one that it could learn (custom-executor.md §2.5).
const STAGES: [&str; 16] = [
    "prepare_script",
    "get_sources",
    "clear_worktree",
    "restore_cache",
    "download_artifacts",
    "build_script",
    "step_script",
    "step_release",
    "after_script",
    "archive_cache",
    "archive_cache_on_failure",
    "upload_artifacts_on_success",
    "upload_artifact_on_success",
    "upload_artifacts_on_failure",
    "cleanup_file_variables",
    "prepare_executor",
];

/// Runs the scripts without the driver. Returns their output.
fn direct(scripts: &[(&str, &str)]) -> (String, String) {
    let (mut stdout, mut stderr) = (String::new(), String::new());
    for (_, script) in scripts {
        let output = Command::new("bash").args(["-c", script]).output().unwrap();
        stdout.push_str(std::str::from_utf8(&output.stdout).unwrap());
        stderr.push_str(std::str::from_utf8(&output.stderr).unwrap());
    }
    (stdout, stderr)
}

fn pass(mut runner: Runner) {
    let scripts = [
        ("prepare_script", "echo \"Running on $(hostname)...\""),
        ("get_sources", "printf '\\033[32;1mFetching\\033[0;m\\r\\n'; echo tell >&2"),
        ("restore_cache", "true"),
        ("build_script", "for i in 1 2 3; do echo line $i; echo err $i >&2; done; echo; printf 'a\\tb\\n'"),
        ("after_script", "echo after; exit 3"),
        ("archive_cache", "echo cache"),
        ("archive_cache_on_failure", "echo never"),
        ("cleanup_file_variables", "echo clean"),
    ];
    let played = runner.play(&scripts);
    assert_eq!(played.seen, Seen::Success, "{played:?}");
    let expected: Vec<_> =
        scripts.into_iter().filter(|(name, _)| *name != "archive_cache_on_failure").collect();
    let mut calls = vec!["config", "prepare"];
    calls.extend(expected.iter().map(|(name, _)| *name));
    calls.push("cleanup");
    assert_eq!(played.calls, calls);
    let (stdout, stderr) = direct(&expected);
    assert_eq!(String::from_utf8(played.stdout).unwrap(), stdout);
    let said = String::from_utf8(played.stderr).unwrap();
    let (own, of_scripts): (Vec<_>, Vec<_>) =
        said.lines().partition(|line| line.starts_with("step-runner: "));
    assert_eq!(of_scripts, stderr.lines().collect::<Vec<_>>());
    assert!(own.iter().all(|line| line.contains("warning: ")), "{own:?}");
    runner.left_nothing();
}

/// T1 in custom-executor.md §15.
#[test]
fn a_full_pass_runs_each_stage_once_and_prints_what_its_script_prints() {
    pass(Runner::new());
    let mut old = Runner::new();
    old.knows_job_env = false;
    pass(old);
}

/// T1 in custom-executor.md §15.
#[test]
fn a_full_pass_over_a_shared_daemon_leaves_it_as_it_was() {
    let daemon = Daemon::start();
    pass(Runner::shared(&daemon.socket));
    assert_eq!(daemon.folders(), [""; 0]);
}

/// T2 in custom-executor.md §15.
#[test]
fn exit_codes_reach_the_runner() {
    let mut runner = Runner::new().prepared();
    for code in [1, 2, 42, 255] {
        let call = runner.stage("build_script", format!("#!/usr/bin/env bash\nexit {code}"));
        assert_eq!(call.is(&Seen::BuildFailure(code)).stderr(), "");
        assert_eq!(std::fs::read_to_string(runner.code_file()).unwrap(), format!("{code}\n"));
    }
    runner.stage("build_script", "kill -9 $$").is(&Seen::BuildFailure(137));
    runner.stage("build_script", "#!/bin/sh\nexit 7").is(&Seen::BuildFailure(7));
    runner.stage("build_script", "exit 0").is(&Seen::Success);
    let missing = runner.stage("build_script", "#!/usr/bin/env no-such-shell\ntrue");
    missing.fails_with(&["failed without an exit code", "no-such-shell"]);
    runner.stage("build_script", "").is(&Seen::Success);
    assert!(!runner.code_file().exists());
    // A script need not be valid UTF-8.
    assert_eq!(runner.stage("build_script", b"printf '%s' '\xff\xfe'\n").stdout, b"\xff\xfe\n");
    runner.call(&["cleanup"]).is(&Seen::Success);
    runner.left_nothing();
}

/// T3 in custom-executor.md §15.
#[test]
fn a_code_that_an_earlier_stage_has_left_is_not_read_again() {
    let mut runner = Runner::new().prepared();
    std::fs::write(runner.code_file(), "7\n").unwrap();
    runner.stage("build_script", "true").is(&Seen::Success);
    assert!(!runner.code_file().exists());
    std::fs::write(runner.code_file(), "a long text\n").unwrap();
    runner.stage("build_script", "exit 3").is(&Seen::BuildFailure(3));
    std::fs::write(runner.code_file(), "7\n").unwrap();
    runner.call(&["run", "/no/such/script", "build_script"]).is(&Seen::SystemFailure);
    assert!(!runner.code_file().exists());
}

/// T4 in custom-executor.md §15.
#[test]
fn attempts_that_fail_are_cleaned_up_each() {
    let mut runner = Runner::new().option("--shell=no-such-shell");
    let played = runner.play(&[("build_script", "echo never")]);
    assert_eq!(played.seen, Seen::SystemFailure);
    assert_eq!(played.calls, ["config", "prepare", "cleanup"].repeat(3));
    let said = String::from_utf8(played.stderr).unwrap();
    assert_eq!(said.matches("`no-such-shell` is not to be found").count(), 3, "{said}");
    runner.left_nothing();
}

/// A mistake of the operator cannot be fixed by a retry.
#[test]
fn what_no_repetition_heals_ends_the_job_at_once() {
    for option in ["--address=gopher://x", "--address="] {
        let mut runner = Runner::new().option(option);
        let played = runner.play(&[("build_script", "echo never")]);
        assert_eq!(played.seen, Seen::BuildFailure(1), "{option}: {played:?}");
        assert_eq!(played.calls.iter().filter(|call| *call == "config").count(), 1, "{option}");
        runner.left_nothing();
    }
    let runner = Runner::new().option("--connect-timeout=soon");
    for call in ["config", "prepare"] {
        let said = runner.call(&[call]).is(&Seen::BuildFailure(1)).stderr();
        assert!(said.contains("--connect-timeout"), "{said}");
    }
    runner.call(&["cleanup"]).is(&Seen::SystemFailure);
}

/// T5: every call of the fake Runner reads both pipes to their ends.
#[test]
fn pipes_of_the_calls_end_while_the_private_daemon_lives() {
    let runner = Runner::new().prepared();
    let daemon = runner.daemon_pid();
    assert!(is_alive(daemon));
    // The daemon hides its descriptors from other processes of its user, so only root can read them.
    let is_root = is_root("pipes_of_the_calls_end_while_the_private_daemon_lives");
    let watcher = runner.process("watch").unwrap();
    let open = |fd: &str| std::fs::read_link(format!("/proc/{watcher}/fd/{fd}")).unwrap();
    assert_eq!([open("0"), open("1"), open("2")], ["/dev/null".into(), open("1"), open("1")]);
    for fd in ["0", "1", "2"].into_iter().filter(|_| is_root) {
        let target = std::fs::read_link(format!("/proc/{daemon}/fd/{fd}")).unwrap();
        let expected = if fd == "0" { "/dev/null".into() } else { runner.state().join("daemon.log") };
        assert_eq!(target, expected);
    }
    // The daemon and its watcher have their own process group and session.
    let watcher = runner.process("watch").unwrap().to_string();
    let stat = std::fs::read_to_string(format!("/proc/{daemon}/stat")).unwrap();
    let fields: Vec<_> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    assert_eq!([fields[1], fields[2], fields[3]], [&watcher; 3], "{stat}");
}

/// Variables for the driver's calls do not reach the scripts.
#[test]
fn a_private_daemon_has_a_clean_environment() {
    let mut runner = Runner::new()
        .variable("SECRET", "hidden")
        .env("OPERATOR", "kept")
        .env("STEP_RUNNER_CE_KEEP", "false")
        .prepared();
    let call = runner.stage("build_script", "env; pwd; command -v step-runner").is(&Seen::Success);
    let text = call.stdout();
    for absent in ["hidden", "BUILD_FAILURE", "SYSTEM_FAILURE", "STEP_RUNNER_CE_", "TMPDIR=", "JOB_RESPONSE"]
    {
        assert!(!text.contains(absent), "{absent}: {text}");
    }
    let program = runner.state().join("bin/step-runner");
    for present in
        ["OPERATOR=kept", "CI_JOB_ID=77", "STEP_RUNNER_STAGE=build_script", program.to_str().unwrap()]
    {
        assert!(text.contains(present), "{present}: {text}");
    }
}

#[test]
fn preparing_again_takes_the_daemon_that_runs() {
    let mut runner = Runner::new().prepared();
    let daemon = runner.daemon_pid();
    let again = runner.call(&["prepare"]).is(&Seen::Success);
    let socket = runner.state().join("s");
    let line =
        format!("Using step-runner daemon {} at unix:{}\n", env!("CARGO_PKG_VERSION"), socket.display());
    assert_eq!(again.stdout(), format!("step-runner: {line}"));
    assert_eq!(runner.daemon_pid(), daemon);
    runner.stage("build_script", "true").is(&Seen::Success);
    // A daemon that has died is replaced.
    crate::support::kill(daemon, rustix::process::Signal::KILL);
    crate::support::wait_for("the daemon's end", || (!is_alive(daemon)).then_some(()));
    runner.call(&["prepare"]).is(&Seen::Success);
    assert_ne!(runner.daemon_pid(), daemon);
    runner.stage("build_script", "true").is(&Seen::Success);
    runner.call(&["cleanup"]).is(&Seen::Success);
    runner.left_nothing();
}

#[test]
fn images_and_services_are_not_silently_ignored() {
    let runner = Runner::new().variable("CI_JOB_IMAGE", "alpine:3");
    let said = runner.call(&["prepare"]).is(&Seen::Success).stderr();
    assert!(said.contains("image and services are not provided"), "{said}");
    assert!(!said.contains("alpine"), "{said}");
}

/// T10 in custom-executor.md §15.
#[test]
fn twenty_jobs_at_once_do_not_meet() {
    let daemon = Daemon::start();
    std::thread::scope(|scope| {
        for number in 0..20 {
            let socket = &daemon.socket;
            scope.spawn(move || {
                let private = number % 5 == 0;
                let runner = if private { Runner::new() } else { Runner::shared(socket) };
                let mut runner = runner.variable("CI_JOB_ID", &number.to_string());
                let script = format!("echo {number} $CI_JOB_ID; exit {number}");
                let played = runner.play(&[("get_sources", "echo sources"), ("build_script", &script)]);
                assert_eq!(
                    String::from_utf8(played.stdout).unwrap(),
                    format!("sources\n{number} {number}\n")
                );
                let expected = if number == 0 { Seen::Success } else { Seen::BuildFailure(number) };
                assert_eq!(played.seen, expected);
                runner.left_nothing();
            });
        }
    });
    assert_eq!(daemon.folders(), [""; 0]);
}

/// T11 in custom-executor.md §15.
#[test]
fn every_stage_runs_its_script_known_or_not() {
    let mut runner = Runner::new().prepared();
    let invented = ["an invented/one: $x", &"long".repeat(100)];
    for name in STAGES.into_iter().chain(invented) {
        let call = runner.stage(name, "printf '%s\\n' \"$STEP_RUNNER_STAGE\"").is(&Seen::Success);
        assert_eq!(call.stdout(), format!("{name}\n"));
    }
}

/// T12 in custom-executor.md §15.
#[test]
fn the_program_of_run_jobs_is_at_hand() {
    let mut runner = Runner::new().prepared();
    let call = runner.stage("build_script", "step-runner --version").is(&Seen::Success);
    assert!(call.stdout().starts_with(concat!("step-runner ", env!("CARGO_PKG_VERSION"), "\n")));
    // Writes the script as the Runner does for a job with `run:`.
    let script = |steps: &str| format!("export STEPS='{steps}'\nstep-runner ci");
    let call = runner.stage("step_script", script(r#"[{"name": "s", "script": "echo from run"}]"#));
    assert!(call.stdout().contains("from run\n"), "{}{}", call.stdout(), call.stderr());
    call.is(&Seen::Success);
    let call = runner.stage("step_script", script(r#"[{"name": "s", "script": "exit 5"}]"#));
    assert!(matches!(call.seen, Seen::BuildFailure(_)), "{}", call.stderr());
    runner.call(&["cleanup"]).is(&Seen::Success);
    runner.left_nothing();
}

/// T14 in custom-executor.md §15.
#[test]
fn secrets_of_the_job_are_in_no_file_of_the_daemon() {
    let daemon = Daemon::start();
    for runner in [Runner::new(), Runner::shared(&daemon.socket)] {
        let job = runner.file("job.json");
        let json = r#"{"id":77,"token":"job-token-0123456789","variables":[
            {"key":"A","value":"masked-value-1","masked":true},{"key":"B","value":"plain-value-2","masked":false}],
            "features":{"token_mask_prefixes":["tok-"]}}"#;
        std::fs::write(&job, json).unwrap();
        let mut runner = runner.env("JOB_RESPONSE_FILE", job.to_str().unwrap()).prepared();
        let (said, go) = (runner.file("said"), runner.file("go"));
        let script = format!(
            "echo job-token-0123456789 masked-value-1 plain-value-2 tok-abcdef; echo masked-value-1 >&2; touch {}; \
             until [ -e {} ]; do sleep 0.02; done",
            said.display(),
            go.display()
        );
        let running = runner.start_stage("build_script", script);
        crate::support::wait_for("the script", || said.exists().then_some(()));
        let folder =
            if runner.state().join("d").exists() { runner.state().join("d") } else { daemon.state_dir() };
        let plain = |tree: &std::collections::BTreeMap<_, Vec<u8>>, text: &str| {
            tree.values().any(|content| content.windows(text.len()).any(|part| part == text.as_bytes()))
        };
        let tree = crate::support::wait_for("the log", || {
            let tree = crate::support::tree(&folder);
            plain(&tree, "plain-value-2").then_some(tree)
        });
        for secret in ["job-token-0123456789", "masked-value-1", "tok-abcdef"] {
            assert!(!plain(&tree, secret), "{secret}");
        }
        std::fs::write(go, "").unwrap();
        let call = running.end().is(&Seen::Success);
        assert!(!call.stdout().contains("masked-value-1") && call.stdout().contains("plain-value-2"));
        runner.call(&["cleanup"]).is(&Seen::Success);
        runner.left_nothing();
    }
}
