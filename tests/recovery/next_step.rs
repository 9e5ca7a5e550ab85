//! The keeper starts the next step without the daemon, unless the step before has changed a premise of that start.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::{end, freeze, wait_until_exists};
use crate::support::{Daemon, Setup, request, scripts, wait_for};
use rustix::process::Signal;
use std::time::Duration;
use step_runner::pb::v1::{RunRequest, State};
use tokio::time::Instant;

/// Makes a function that runs `text`, and returns its folder.
fn function(daemon: &Daemon, name: &str, text: &str) -> String {
    let folder = daemon.file(name);
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("func.yml"), format!("{{}}\n---\nexec: {{command: [sh, -c, '{text}']}}\n"))
        .unwrap();
    folder.display().to_string()
}

#[tokio::test]
async fn the_next_step_begins_while_the_daemon_hangs() {
    // With control groups where there are any, and with a reaper.
    for cgroup in ["auto", "off"] {
        let daemon = Setup::new().option("cgroup", cgroup).start();
        begins_while_it_hangs(&daemon).await;
    }
}

async fn begins_while_it_hangs(daemon: &Daemon) {
    let client = daemon.client().await;
    let (go, second, third) = (daemon.file("go"), daemon.file("second"), daemon.file("third"));
    let b = function(daemon, "b", &format!("touch {}", second.display()));
    let a = format!("echo on; {}", wait_until_exists(&go));
    let steps = format!(
        "[{{name: a, script: '{a}'}}, {{name: b, func: '{b}'}}, {{name: c, script: 'touch {}'}}]",
        third.display()
    );
    client.run_steps("1", &steps).await;
    client.prints("1", "on").await;
    freeze(daemon.pid());
    fs::write(&go, "").unwrap();
    wait_for("the next step", || second.exists().then_some(()));
    assert!(!third.exists(), "a daemon that hangs has offered one step");
    daemon.signal(Signal::CONT);
    assert_eq!(end(&client.ended("1").await), (State::Success, 0));
    assert!(third.exists());
}

#[tokio::test]
async fn fault_42_a_step_that_began_without_a_daemon_is_told_by_the_next_one() {
    let mut daemon = Daemon::start();
    let client = daemon.client().await;
    let (go, more) = (daemon.file("go"), daemon.file("more"));
    let b = function(&daemon, "b", "echo second");
    let a = format!("echo on; {}; echo first; touch {}", wait_until_exists(&go), more.display());
    let steps =
        format!("[{{name: a, script: '{a}'}}, {{name: b, func: '{b}'}}, {{name: c, script: echo third}}]");
    client.run_steps("1", &steps).await;
    client.prints("1", "on").await;
    daemon.kill();
    fs::write(&go, "").unwrap();
    let log = daemon.folder("1").join("log");
    wait_for("the next step", || fs::read_to_string(&log).unwrap().contains("O second\n").then_some(()));
    daemon.restart();
    let client = daemon.client().await;
    let status = client.ended("1").await;
    assert_eq!((end(&status), status.steps_done), ((State::Success, 0), 3), "{status:?}");
    assert_eq!(client.output("1").await, "on\nfirst\nsecond\nthird\n");
    let text = String::from_utf8(client.log("1").await).unwrap();
    let starts: Vec<_> =
        text.lines().filter_map(|line| line.split_once("Running step name=")).map(|(_, name)| name).collect();
    assert_eq!(starts, ["a", "b", "c"]);
    let results = client.steps("1").await;
    let names: Vec<_> = results.iter().map(|step| step.step.clone().unwrap_or_default().name).collect();
    assert_eq!(names, ["a", "b", "c", ""]);
}

#[tokio::test]
async fn a_step_can_change_the_function_of_the_next_one() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let old = function(&daemon, "old", "echo old");
    let new = function(&daemon, "new", "echo new");
    for (id, change) in [
        ("written", format!("cat {new}/func.yml > {old}/func.yml")),
        ("replaced", format!("mv {new}/func.yml {old}/func.yml")),
    ] {
        client.run_steps(id, &format!("[{{name: a, script: '{change}'}}, {{name: b, func: '{old}'}}]")).await;
        assert_eq!(end(&client.ended(id).await), (State::Success, 0));
        assert_eq!(client.output(id).await, "new\n", "{id}");
    }
    let gone = format!("[{{name: a, script: 'rm {old}/func.yml'}}, {{name: b, func: '{old}'}}]");
    client.run_steps("gone", &gone).await;
    let status = client.ended("gone").await;
    assert_eq!(status.state(), State::Failure);
    assert!(status.message.contains("failed to load"), "{}", status.message);
}

#[tokio::test]
async fn a_missing_interpreter_is_named_whoever_started_the_step() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let (program, folder) = (daemon.file("tool"), daemon.file("f"));
    fs::write(&program, "#!/no/such/interpreter\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(&folder).unwrap();
    let text = format!("{{}}\n---\nexec: {{command: ['{}']}}\n", program.display());
    fs::write(folder.join("func.yml"), text).unwrap();
    for (id, first) in [("1", "sleep 0.2"), ("2", "true ${{ output_file }}")] {
        let steps = format!("[{{name: a, script: '{first}'}}, {{name: b, func: '{}'}}]", folder.display());
        client.run_steps(id, &steps).await;
        let status = client.ended(id).await;
        assert_eq!(status.state(), State::Failure);
        assert!(
            status.message.contains("its interpreter /no/such/interpreter is not there"),
            "{}",
            status.message
        );
    }
}

/// Neither size nor times nor inode tell of the change.
#[tokio::test]
async fn a_step_can_change_the_function_of_the_next_one_without_a_trace() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let function = function(&daemon, "f", "echo old");
    let file = format!("{function}/func.yml");
    let mark = daemon.file("mark");
    for (id, word) in [("1", "new"), ("2", "odd"), ("3", "old")] {
        let change = format!(
            "touch -r {file} {0}; sed s/echo\\ .../echo\\ {word}/ {file} > {0}.text; cat {0}.text > {file}; touch -r {0} {file}",
            mark.display()
        );
        client
            .run_steps(id, &format!("[{{name: a, script: '{change}'}}, {{name: b, func: '{function}'}}]"))
            .await;
        assert_eq!(end(&client.ended(id).await), (State::Success, 0));
        assert_eq!(client.output(id).await, format!("{word}\n"));
    }
}

#[tokio::test]
async fn a_step_can_bring_the_program_of_the_next_one() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let [first, second] = ["first", "second"].map(|name| daemon.file(name));
    for folder in [&first, &second] {
        fs::create_dir(folder).unwrap();
    }
    let tool = second.join("tool");
    fs::write(&tool, "#!/bin/sh\necho old\n").unwrap();
    fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", first.display(), second.display());
    let folder = daemon.file("f");
    fs::create_dir(&folder).unwrap();
    fs::write(
        folder.join("func.yml"),
        format!("{{}}\n---\nenv: {{PATH: '{path}'}}\nexec: {{command: [tool]}}\n"),
    )
    .unwrap();
    let bring = format!(
        "printf \"#!/bin/sh\\necho new\\n\" > {0}/made; chmod 755 {0}/made; mv {0}/made {0}/tool",
        first.display()
    );
    let steps = format!("[{{name: a, script: '{bring}'}}, {{name: b, func: '{}'}}]", folder.display());
    client.run_steps("1", &steps).await;
    assert_eq!(end(&client.ended("1").await), (State::Success, 0));
    assert_eq!(client.output("1").await, "new\n");
    fs::remove_dir_all(&first).unwrap();
    let steps =
        format!("[{{name: a, script: 'rm {}'}}, {{name: b, func: '{}'}}]", tool.display(), folder.display());
    client.run_steps("2", &steps).await;
    let status = client.ended("2").await;
    assert_eq!(status.state(), State::Failure);
    assert!(status.message.contains("is in no folder"), "{}", status.message);
}

/// The keeper has started the second step when the daemon, which still knows of the first one only, asks for the end.
#[tokio::test]
async fn a_time_limit_at_the_boundary_leaves_the_second_step_the_grace_of_its_function() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let (go, done) = (daemon.file("go"), daemon.file("done"));
    let [first, second] = [("first", "50ms"), ("second", "60s")].map(|(name, grace)| {
        let folder = daemon.file(name);
        fs::create_dir(&folder).unwrap();
        (folder, grace)
    });
    let wait = wait_until_exists(&go);
    let trap = format!(
        "trap \"sleep 0.3; touch {}; exit 1\" TERM; echo runs; while :; do sleep 0.01; done",
        done.display()
    );
    for ((folder, grace), text) in [(&first, format!("echo on; {wait}")), (&second, trap)] {
        let text = format!("{{}}\n---\nexec: {{command: [sh, -c, '{text}'], cancel_timeout: {grace}}}\n");
        fs::write(folder.join("func.yml"), text).unwrap();
    }
    let steps =
        format!("[{{name: a, func: '{}'}}, {{name: b, func: '{}'}}]", first.0.display(), second.0.display());
    let (begun, limit) = (Instant::now(), prost_types::Duration { seconds: 3, nanos: 0 });
    client.try_run(RunRequest { timeout: Some(limit), ..request("1", &steps) }).await.unwrap();
    client.prints("1", "on").await;
    freeze(daemon.pid());
    fs::write(&go, "").unwrap();
    let log = daemon.folder("1").join("log");
    wait_for("the next step", || fs::read_to_string(&log).unwrap().contains("O runs\n").then_some(()));
    // Now both wait for the daemon: the end of the time, and the news of the keeper.
    tokio::time::sleep_until(begun + Duration::from_secs(4)).await;
    daemon.signal(Signal::CONT);
    assert_eq!(client.ended("1").await.state(), State::Timeout);
    assert!(done.exists(), "the second step was killed before its grace was over");
}

#[tokio::test]
async fn nothing_begins_behind_a_step_that_fails_or_leaves_a_process() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    client.run_steps("1", &scripts(&[("a", "exit 3"), ("b", "echo second")])).await;
    assert_eq!(end(&client.ended("1").await), (State::Failure, 3));
    assert_eq!(client.output("1").await, "");
    client.run_steps("2", &scripts(&[("a", "sleep 600 &"), ("b", "echo second")])).await;
    assert_eq!(end(&client.ended("2").await), (State::Success, 0));
    assert_eq!(client.output("2").await, "second\n");
}
