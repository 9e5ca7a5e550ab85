//! Bad input from operators and Runners (custom-executor.md §14).

use std::os::unix::fs::{PermissionsExt as _, symlink};

use crate::custom_executor::runner::{Runner, SYSTEM_FAILURE, Seen};
use crate::support::{Daemon, is_root};

#[test]
fn a_command_line_that_means_nothing_is_a_failure_of_the_system() {
    let runner = Runner::new();
    for words in [
        &[][..],
        &["resume"],
        &["--no-such-option", "prepare"],
        &["run"],
        &["run", "/tmp/script"],
        &["run", "/tmp/script", "build_script", "more"],
        &["prepare", "more"],
    ] {
        let call = runner.call(words).is(&Seen::SystemFailure);
        assert!(call.stderr().contains("Usage: step-runner custom-executor"), "{words:?}: {}", call.stderr());
        assert_eq!(call.stdout(), "", "{words:?}");
    }
    // The exit code is 2 if the Runner does not name one for system failures.
    let mut command = runner.command(&["resume"]);
    let output = command.env_remove("SYSTEM_FAILURE_EXIT_CODE").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn codes_that_the_runner_does_not_give_are_assumed_with_a_warning() {
    let runner = Runner::new();
    let mut command = runner.command(&["run", "/no/such", "build_script"]);
    let output = command.env("SYSTEM_FAILURE_EXIT_CODE", "many").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("warning: ") && said.contains("SYSTEM_FAILURE_EXIT_CODE"), "{said}");
}

#[test]
fn a_script_that_cannot_be_read_is_named() {
    let runner = Runner::new().prepared();
    let path = runner.file("missing");
    runner
        .call(&["run", path.to_str().unwrap(), "build_script"])
        .fails_with(&[&format!("script {}: No such file", path.display())]);
    runner.call(&["run", "/", "build_script"]).fails_with(&["script /: Is a directory"]);
}

#[test]
fn a_job_file_that_is_none_costs_a_warning() {
    let runner = Runner::new();
    let job = runner.file("job.json");
    std::fs::write(&job, "{\"token\": \"glpat-secret\"").unwrap();
    let mut runner = runner.env("JOB_RESPONSE_FILE", job.to_str().unwrap()).prepared();
    let call = runner.stage("build_script", "echo fine").is(&Seen::Success);
    assert_eq!(call.stdout(), "fine\n");
    assert!(call.stderr().contains("warning: JOB_RESPONSE_FILE") && !call.stderr().contains("secret"));
    std::fs::remove_file(job).unwrap();
    let call = runner.stage("build_script", "true").is(&Seen::Success);
    assert!(call.stderr().contains("No such file"), "{}", call.stderr());
}

#[test]
fn started_by_hand_only_config_works() {
    let program = env!("CARGO_BIN_EXE_step-runner");
    let by_hand = |words: &[&str]| {
        let mut command = std::process::Command::new(program);
        command.arg("custom-executor").args(words).env_clear().output().unwrap()
    };
    let config = by_hand(&["config"]);
    assert_eq!(config.status.code(), Some(0));
    let answer: serde_json::Value = serde_json::from_slice(&config.stdout).unwrap();
    assert_eq!(answer["driver"]["name"], "step-runner");
    assert!(answer.get("job_env").is_none());
    for words in [&["prepare"][..], &["run", "/dev/null", "x"], &["cleanup"]] {
        let output = by_hand(words);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{words:?}: {said}");
        assert!(said.contains("not started by a Custom executor"), "{words:?}: {said}");
    }
}

#[test]
fn a_state_root_that_cannot_be_used_is_named_with_its_owner() {
    let runner = Runner::new();
    let root = runner.file("state");
    std::fs::create_dir(&root).unwrap();
    std::fs::set_permissions(&root, std::fs::Permissions::from_mode(0o777)).unwrap();
    runner.call(&["prepare"]).fails_with(&[root.to_str().unwrap(), "mode 777", "--state-dir"]);
    std::fs::remove_dir(&root).unwrap();
    symlink(runner.tmpdir(), &root).unwrap();
    runner.call(&["prepare"]).fails_with(&["symbolic link"]);
    std::fs::remove_file(&root).unwrap();
    std::fs::write(&root, "").unwrap();
    runner.call(&["prepare"]).fails_with(&[root.to_str().unwrap(), "belongs to user"]);
    std::fs::remove_file(&root).unwrap();
    if is_root("a_state_root_that_cannot_be_used_is_named_with_its_owner") {
        std::fs::create_dir(&root).unwrap();
        std::os::unix::fs::chown(&root, Some(65_534), None).unwrap();
        runner.call(&["prepare"]).fails_with(&["belongs to user 65534"]);
        std::fs::remove_dir(&root).unwrap();
    }
    assert!(runner.processes().is_empty());
}

#[test]
fn a_state_folder_of_somebody_else_is_refused_by_prepare_and_cleanup() {
    let runner = Runner::new();
    std::fs::create_dir(runner.file("state")).unwrap();
    std::fs::set_permissions(runner.file("state"), std::fs::Permissions::from_mode(0o700)).unwrap();
    let victim = runner.file("victim");
    std::fs::create_dir(&victim).unwrap();
    std::fs::write(victim.join("file"), "kept").unwrap();
    symlink(&victim, runner.state()).unwrap();
    runner.call(&["prepare"]).fails_with(&["symbolic link"]);
    runner.call(&["cleanup"]).fails_with(&["symbolic link"]);
    assert_eq!(std::fs::read_to_string(victim.join("file")).unwrap(), "kept");
}

#[test]
fn templates_are_filled_in_or_refused() {
    let runner = Runner::new().variable("CI_PROJECT_PATH_SLUG", "a/../b").variable("CI_CONCURRENT_ID", "3");
    let answer = runner.call(&["--builds-dir=/srv/{job_id}/{concurrent_id}", "--isolated", "config"]);
    let answer: serde_json::Value = serde_json::from_slice(&answer.is(&Seen::Success).stdout).unwrap();
    assert_eq!(answer["builds_dir"], "/srv/77/3");
    assert_eq!(answer["builds_dir_is_shared"], false);
    assert!(answer.get("cache_dir").is_none() && answer.get("shell").is_none());
    for (option, part) in [
        ("--builds-dir=/srv/{runner_short}", "CI_RUNNER_SHORT_TOKEN"),
        ("--cache-dir=/srv/{project_slug}", "CI_PROJECT_PATH_SLUG"),
        ("--cache-dir=cache", "not absolute"),
        ("--cache-dir=/srv/{nope}", "unknown field {nope}"),
    ] {
        let call = runner.call(&[option, "config"]).fails_with(&[part]);
        assert!(call.stdout.is_empty() && !call.stderr().contains("a/../b"), "{}", call.stderr());
    }
}

#[test]
fn an_answer_that_nobody_reads_is_a_failure_of_the_system() {
    let runner = Runner::new();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let status = runner.command(&["config"]).stdout(full).status().unwrap();
    assert_eq!(status.code(), Some(SYSTEM_FAILURE));
}

#[test]
fn without_prepare_a_named_daemon_is_needed() {
    let mut runner = Runner::new();
    runner.stage("build_script", "echo never").fails_with(&["no daemon was prepared", "--address"]);
    let daemon = Daemon::start();
    let mut runner = Runner::shared(&daemon.socket);
    assert_eq!(runner.stage("build_script", "echo here").is(&Seen::Success).stdout(), "here\n");
    runner.call(&["cleanup"]).is(&Seen::Success);
    runner.left_nothing();
    assert_eq!(daemon.folders(), [""; 0]);
}

#[test]
fn a_daemon_that_does_not_start_shows_why() {
    let runner = Runner::new();
    // The daemon reads its own settings from the Runner's environment.
    let runner = runner.env("STEP_RUNNER_MAX_CONNECTIONS", "none at all");
    let call = runner.call(&["prepare"]).fails_with(&["did not start", "it has ended", "max_connections"]);
    assert!(call.stderr().lines().count() > 1, "{}", call.stderr());
    runner.call(&["cleanup"]).is(&Seen::Success);
    runner.left_nothing();
}

#[test]
fn a_daemon_that_is_not_there_is_named() {
    let runner = Runner::shared(std::path::Path::new("/no/such/socket")).option("--connect-timeout=100ms");
    runner.call(&["prepare"]).fails_with(&["cannot reach the daemon at unix:/no/such/socket"]);
    let runner = Runner::new();
    let file = runner.file("file");
    std::fs::write(&file, "").unwrap();
    let address = format!("--address=unix:{}", file.display());
    runner.call(&[&address, "prepare"]).fails_with(&[file.to_str().unwrap(), "is not a socket"]);
}

#[test]
fn a_code_file_that_cannot_be_written_leaves_a_failure_of_the_build() {
    let mut runner = Runner::new().prepared();
    let file = runner.tmpdir().join("no-such-folder/code");
    runner = runner.env("BUILD_EXIT_CODE_FILE", file.to_str().unwrap());
    let call = runner.stage("build_script", "exit 9").is(&Seen::BuildFailure(1));
    assert!(call.stderr().contains("exit code 9 cannot be written"), "{}", call.stderr());
    let mut old = Runner::new().prepared().without("BUILD_EXIT_CODE_FILE");
    let mut command = {
        let script = old.script(b"exit 9");
        old.command(&["run", script.to_str().unwrap(), "build_script"])
    };
    let call = old.started(command.env_remove("BUILD_EXIT_CODE_FILE")).end();
    assert_eq!(call.is(&Seen::BuildFailure(1)).stderr(), "");
}
