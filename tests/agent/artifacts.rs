//! Artifacts of jobs, at the double of GitLab.

use std::io::Read as _;

use serde_json::{Value, json};

use crate::fake_gitlab::http::Answer;
use crate::fake_gitlab::{Fault, Job};
use crate::scene::Scene;

/// A job that uploads an archive of these paths.
fn uploads(scene: &Scene, lines: &[&str], change: impl FnOnce(&mut Value)) -> u64 {
    scene.gitlab.add(|job| {
        job["steps"][0]["script"] = json!(lines);
        job["artifacts"] = json!([{
            "name": "made", "paths": ["out/", "link"], "exclude": ["out/*.tmp"], "when": "on_success",
            "artifact_type": "archive", "artifact_format": "zip", "expire_in": "1 week",
        }]);
        change(job);
    })
}

/// A job that wants the artifacts of another one.
fn downloads(scene: &Scene, from: u64, ended: &Job, lines: &[&str]) -> u64 {
    let token = ended.token.clone();
    scene.gitlab.add(|job| {
        let variables = job["variables"].as_array_mut().unwrap();
        variables.push(json!({"key": "GIT_STRATEGY", "value": "empty"}));
        job["steps"][0]["script"] = json!(lines);
        job["dependencies"] = json!([
            {"id": 1, "token": "glcbt-none", "name": "without", "artifacts_file": null},
            {"id": from, "token": token, "name": "first", "artifacts_file": {"filename": "made.zip", "size": 100}},
        ]);
    })
}

const MAKE: [&str; 3] = [
    "rm -rf out link",
    "mkdir -p out/empty; echo text >out/a; echo x >out/b.tmp",
    "ln -s out/a link; chmod 750 out/a",
];

#[test]
fn a16_artifacts_go_to_the_server_and_come_to_the_jobs_that_need_them() {
    let mut scene = Scene::new();
    scene.start();
    let first = uploads(&scene, &MAKE, |_| {});
    let ended = scene.gitlab.ended(first);
    assert_eq!(ended.state, "success", "{}", ended.text());
    let [(query, name, content)] = &ended.artifacts[..] else { panic!("{}", ended.text()) };
    assert_eq!(
        (query.as_str(), name.as_str()),
        ("artifact_format=zip&artifact_type=archive&expire_in=1+week", "made.zip")
    );
    assert!(content.starts_with(b"PK"), "{content:?}");
    let lines = ["cat link; ls out; test -x out/a && echo mode kept"];
    let second = downloads(&scene, first, &ended, &[&["rm -rf gone"], &lines[..]].concat());
    let text = scene.gitlab.ended(second).text();
    for part in [" text\n", " a\n", " empty\n", " mode kept\n"] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    assert!(!text.contains(" b.tmp\n") && !text.contains(&ended.token), "{text}");
    scene.gitlab.assert_clean();
}

#[test]
fn a16_reports_are_sent_in_their_own_formats_by_their_own_rules() {
    let mut scene = Scene::new();
    scene.start();
    let job = uploads(
        &scene,
        &["echo one >one.xml; echo two >two.xml; echo K=v >build.env; exit 3"],
        |job| {
            job["artifacts"] = json!([
                {"name": "never", "paths": ["one.xml"], "when": "on_success", "artifact_type": "archive", "artifact_format": "zip"},
                {"name": "junit", "paths": ["*.xml"], "when": "always", "artifact_type": "junit", "artifact_format": "gzip"},
                {"name": "metadata", "paths": ["build.env"], "when": "on_failure", "artifact_type": "dotenv", "artifact_format": "raw"},
                {"name": "nothing", "paths": ["none"], "when": "always", "artifact_type": "archive", "artifact_format": "zip"},
            ]);
        },
    );
    let ended = scene.gitlab.ended(job);
    assert_eq!(ended.finals[0]["exit_code"], 3, "{}", ended.text());
    let names: Vec<&str> = ended.artifacts.iter().map(|(_, name, _)| name.as_str()).collect();
    assert_eq!(names, ["junit.gz", "metadata"], "{}", ended.text());
    let mut reports = String::new();
    flate2::read::MultiGzDecoder::new(&ended.artifacts[0].2[..]).read_to_string(&mut reports).unwrap();
    assert_eq!((reports.as_str(), &ended.artifacts[1].2[..]), ("one\ntwo\n", &b"K=v\n"[..]));
    assert!(ended.text().contains("no file is there for \"none\""), "{}", ended.text());
    scene.gitlab.assert_clean();
}

#[test]
fn a16_a_server_that_fails_is_asked_again_and_a_refusal_is_final() {
    let mut scene = Scene::new();
    scene.start();
    let upload = |faults: usize, answer: Answer| {
        let job = uploads(&scene, &MAKE, |_| {});
        scene.gitlab.fault(&format!("POST /jobs/{job}/artifacts"), faults, Fault::Answer(answer));
        scene.gitlab.ended(job)
    };
    let ended = upload(2, Answer::status(500));
    assert_eq!((ended.state.as_str(), ended.artifacts.len()), ("success", 1), "{}", ended.text());
    for (answer, reason, part) in [
        (Answer::status(413), "script_failure", "larger than the server takes"),
        (Answer::status(403), "runner_system_failure", "refuses the job's token"),
        (
            Answer::status(307).header("Location", "http://elsewhere.test/x"),
            "runner_system_failure",
            "redirects to the host elsewhere.test",
        ),
    ] {
        let ended = upload(1, answer);
        assert_eq!(ended.finals[0]["failure_reason"], reason, "{}", ended.text());
        assert!(ended.text().contains(part) && ended.artifacts.is_empty(), "{part:?}: {}", ended.text());
    }
    let first = uploads(&scene, &MAKE, |_| {});
    let ended = scene.gitlab.ended(first);
    scene.gitlab.fault(
        &format!("GET /jobs/{first}/artifacts"),
        1,
        Fault::Answer(Answer::bytes(200, b"no archive".to_vec())),
    );
    let text = scene.gitlab.ended(downloads(&scene, first, &ended, &["echo never"])).text();
    assert!(text.contains("damaged or of an unknown kind") && !text.contains(" never\n"), "{text}");
}
