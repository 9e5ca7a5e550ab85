//! Variables and directories of a request: the working directory and the one for file variables.

use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::Beside;
use crate::support::{Daemon, names, refused, request, script};
use step_runner::pb::v1::{self, RunRequest};
use tonic::Code;

fn with_variables(variables: Vec<v1::Variable>) -> RunRequest {
    let job = Some(v1::Job { variables, ..v1::Job::default() });
    RunRequest { job, ..request("1", &script("true")) }
}

#[tokio::test]
async fn variables_that_cannot_be_are_refused() {
    let daemon = Daemon::start();
    let beside = Beside::start(&daemon).await;
    let client = daemon.client().await;
    let file = |key: &str| v1::Variable { key: key.into(), value: "canary".into(), file: true, masked: true };
    let plain = |key: &str, value: &str| v1::Variable {
        key: key.into(),
        value: value.into(),
        file: false,
        masked: false,
    };
    let long = "k".repeat(256);
    let bad = [
        plain("", "canary"),
        plain("A=B", "canary"),
        plain("A\0", "canary"),
        plain("A", "can\0ary"),
        plain("CI_STEPS_LOG_LEVEL", "canary"),
        file("a/b"),
        file("../escape"),
        file("a\\b"),
        file("."),
        file(".."),
        file(&long),
    ];
    for variable in bad {
        let key = variable.key.clone();
        let text = refused(
            client.try_run(with_variables(vec![plain("OK", "x"), variable])).await,
            Code::InvalidArgument,
            "invalid_variable",
        );
        assert!(!text.contains("canary"), "{key:?}: {text}");
    }
    for (key, value) in [("", "canary"), ("A=B", "canary"), ("A\0", "canary"), ("A", "can\0ary")] {
        let env = BTreeMap::from([(key.to_owned(), value.to_owned())]);
        let text = refused(
            client.try_run(RunRequest { env, ..request("1", &script("true")) }).await,
            Code::InvalidArgument,
            "invalid_variable",
        );
        assert!(!text.contains("canary"), "{key:?}: {text}");
    }
    beside.unaffected(&daemon).await;
}

#[tokio::test]
async fn working_directories_that_cannot_be_are_refused() {
    let daemon = Daemon::start();
    let beside = Beside::start(&daemon).await;
    let client = daemon.client().await;
    let file = daemon.file("file");
    std::fs::write(&file, "content").unwrap();
    let below = file.join("dir");
    let (dangling, looping) = (daemon.file("dangling"), daemon.file("looping"));
    symlink("no-such", &dangling).unwrap();
    symlink("looping", &looping).unwrap();
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let bad = [
        ("relative".to_owned(), Code::InvalidArgument, "invalid_path"),
        ("../x".to_owned(), Code::InvalidArgument, "invalid_path"),
        ("/tmp/a\0b".to_owned(), Code::InvalidArgument, "invalid_path"),
        (path(&file), Code::FailedPrecondition, "not_writable"),
        (path(&below), Code::FailedPrecondition, "not_writable"),
        ("/proc/no-such".to_owned(), Code::FailedPrecondition, "not_writable"),
        (path(&dangling), Code::FailedPrecondition, "not_writable"),
        (path(&looping), Code::FailedPrecondition, "not_writable"),
    ];
    for (dir, code, reason) in bad {
        let run = RunRequest { work_dir: dir.clone(), ..request("1", &script("true")) };
        let text = refused(client.try_run(run).await, code, reason);
        let is_link = dir.ends_with("ing");
        assert_eq!(text.contains("cannot follow the symbolic link"), is_link, "{text}");
        let variable = v1::Variable { key: "F".into(), value: "v".into(), file: true, masked: false };
        let job = Some(v1::Job { build_dir: dir, variables: vec![variable], ..v1::Job::default() });
        refused(client.try_run(RunRequest { job, ..request("1", &script("true")) }).await, code, reason);
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "content");
    assert!(!daemon.file("file.tmp").exists());
    beside.unaffected(&daemon).await;
}

#[tokio::test]
async fn fault_70_a_link_in_place_of_the_files_directory_is_refused() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let victim = daemon.file("victim");
    std::fs::create_dir(&victim).unwrap();
    symlink(&victim, daemon.file("build.tmp")).unwrap();
    let build_dir = daemon.file("build").to_str().unwrap().to_owned();
    let variable = v1::Variable { key: "F".into(), value: "v".into(), file: true, masked: false };
    let job = Some(v1::Job { build_dir, variables: vec![variable], ..v1::Job::default() });
    let run = RunRequest { job, ..request("1", &script("true")) };
    refused(client.try_run(run).await, Code::FailedPrecondition, "not_writable");
    assert_eq!(names(&victim), Vec::<String>::new());
    assert_eq!(daemon.folders(), Vec::<String>::new());
}
