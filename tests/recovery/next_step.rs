//! The keeper starts the next step without the daemon, unless the step before has changed a premise of that start.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use super::{end, freeze, wait_until_exists};
use crate::support::{Daemon, Setup, scripts, wait_for};
use rustix::process::Signal;
use step_runner::pb::v1::State;

/// Waits until a file has not changed for a tenth of a second: only then a change can be told by its time.
fn settle(path: &Path) {
    wait_for("the file to be old", || {
        let changed =
            fs::metadata(path).map(|found| found.ctime() * 1_000_000 + found.ctime_nsec() / 1_000).unwrap();
        (step_runner::clock::now_micros() - changed > 100_000).then_some(())
    });
}

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
    settle(&Path::new(&b).join("func.yml"));
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
    settle(&Path::new(&b).join("func.yml"));
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
    settle(&Path::new(&new).join("func.yml"));
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
    settle(&folder.join("func.yml"));
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
