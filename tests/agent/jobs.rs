//! Jobs from the server's answer to the final update.

use std::fs;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;

use crate::fake_gitlab::http::Answer;
use crate::fake_gitlab::{Fault, RUNNER};
use crate::scene::Scene;
use crate::support::{OwnSleep, wait_for};

/// Returns a script that prints `mark`, and goes on when the file appears.
pub(crate) fn waits_for(file: &std::path::Path, mark: &str) -> String {
    format!("echo {mark}; until test -e {}; do sleep 0.05; done", file.display())
}

#[test]
fn a07_a_job_runs_prints_and_ends() {
    let mut scene = Scene::new();
    let job = scene.gitlab.add_script(&["echo hello", "echo token $CI_JOB_TOKEN", "pwd"]);
    scene.start();
    let ended = scene.gitlab.ended(job);
    let text = ended.text();
    assert_eq!(ended.state, "success", "{text}");
    assert!(text.contains("Running with step-runner") && text.contains("hello"), "{text}");
    assert!(text.contains("token [MASKED]") && text.trim_end().ends_with("Job succeeded"), "{text}");
    assert!(text.contains("/builds/") && text.contains("/0/group/project"), "{text}");
    for mark in ["section_start:", "section_end:"] {
        let line = text.lines().find(|line| line.contains(mark) && line.contains(":step_script\r\u{1b}[0K"));
        let time = line.and_then(|line| line.split_once(mark)?.1.split_once(':')?.0.parse::<u64>().ok());
        assert!(time.is_some_and(|time| time > 1_700_000_000), "{text}");
    }
    assert_eq!((ended.running > 0, ended.finals.len()), (true, 1));
    scene.wait_until_closed();
    scene.gitlab.assert_clean();
    assert!(!scene.said().contains(RUNNER) && !scene.said().contains(&ended.token), "{}", scene.said());
}

#[test]
fn a08_the_result_of_a_job_has_its_reason_and_code() {
    let mut scene = Scene::new();
    scene.start();
    for (lines, state, reason, code) in [
        (&["exit 0"][..], "success", json!(null), json!(null)),
        (&["echo a", "exit 7"], "failed", json!("script_failure"), json!(7)),
        (&["kill -9 $$"], "failed", json!("script_failure"), json!(137)),
    ] {
        let job = scene.gitlab.add_script(lines);
        let update = scene.gitlab.ended(job).finals[0].clone();
        assert_eq!(update["state"], state, "{lines:?}: {update}");
        assert_eq!((&update["failure_reason"], &update["exit_code"]), (&reason, &code), "{lines:?}");
    }
    // The value of a secret is also the name of the step.
    let masked = scene.gitlab.add(|job| {
        let secret = json!({"key": "SECRET", "value": "step_script", "masked": true});
        job["variables"].as_array_mut().unwrap().push(secret);
        job["steps"][0]["script"] = json!(["exit 7"]);
    });
    let update = scene.gitlab.ended(masked).finals[0].clone();
    assert_eq!((&update["failure_reason"], &update["exit_code"]), (&json!("script_failure"), &json!(7)));
    let image = scene.gitlab.add(|job| {
        job["image"] = json!({"name": "alpine"});
        job["services"] = json!([{"name": "redis:7"}]);
    });
    let ended = scene.gitlab.ended(image);
    assert_eq!(ended.finals[0]["failure_reason"], "runner_configuration_error");
    assert!(ended.text().contains("image_policy"), "{}", ended.text());
    assert!(ended.text().contains("(alpine, redis:7)"), "{}", ended.text());
    let limit = scene.gitlab.add(|job| {
        job["runner_info"]["timeout"] = json!(1);
        job["steps"][0]["script"] = json!(["sleep 600"]);
    });
    assert_eq!(scene.gitlab.ended(limit).finals[0]["failure_reason"], "job_execution_timeout");
    scene.gitlab.assert_clean();
}

#[test]
fn a05_a_job_that_is_refused_is_acknowledged_then_told_then_failed() {
    let mut scene = Scene::new();
    let job = scene.gitlab.add(|job| job["secrets"] = json!({"A": {}}));
    scene.start();
    let ended = scene.gitlab.ended(job);
    assert!(ended.text().contains("secrets"), "{}", ended.text());
    assert_eq!(ended.finals[0]["failure_reason"], "runner_system_failure");
    let empty = scene.gitlab.add(|job| {
        job["steps"] = json!([]);
        job.as_object_mut().unwrap().remove("git_info");
    });
    let ended = scene.gitlab.ended(empty);
    assert!(ended.text().contains("nothing to run"), "{}", ended.text());
    assert_eq!(ended.finals[0]["failure_reason"], "runner_system_failure");
    let calls = scene.gitlab.world().calls();
    let of_job: Vec<_> = calls.iter().filter(|call| call.contains(&job.to_string())).collect();
    let patch = format!("PATCH /jobs/{job}/trace?debug_trace=false");
    assert_eq!(of_job, [&format!("PUT /jobs/{job}"), &patch, &format!("PUT /jobs/{job}")]);
}

#[test]
fn a06_nothing_starts_before_the_server_has_acknowledged_and_another_s_job_is_left() {
    let mut scene = Scene::new();
    let started = scene.path("started");
    let job = scene.gitlab.add_script(&[&format!("touch {}", started.display())]);
    scene.gitlab.fault(&format!("PUT /jobs/{job}"), 6, Fault::Answer(Answer::status(503)));
    scene.gitlab.fault(&format!("PUT /jobs/{job}"), 1, Fault::Answer(Answer::status(404)));
    scene.start();
    scene.gitlab.wait_for("the last claim", |world| {
        let claims = world.calls().iter().filter(|call| **call == format!("PUT /jobs/{job}")).count();
        (claims == 7).then_some(())
    });
    scene.wait_until_closed();
    assert!(!started.exists());
    let next = scene.gitlab.add_script(&["echo next"]);
    assert_eq!(scene.gitlab.ended(next).state, "success");
    assert!(scene.gitlab.world().jobs[&job].finals.is_empty());
}

#[test]
fn a09_the_agent_is_killed_in_the_middle_and_the_trace_is_whole_and_comes_once() {
    let mut scene = Scene::new();
    let go_on = scene.path("go-on");
    let first = "for i in $(seq 1 2000); do echo line $i; done";
    let second = "for i in $(seq 2001 4000); do echo line $i; done";
    let job = scene.gitlab.add_script(&[first, &waits_for(&go_on, "half"), second]);
    scene.start();
    for round in 0..3 {
        scene.wait_until_printed(job, "line 2000");
        scene.kill();
        if round == 2 {
            fs::write(&go_on, "").unwrap();
        }
        scene.start();
    }
    let ended = scene.gitlab.ended(job);
    let text = ended.text();
    assert_eq!(ended.state, "success", "{text}");
    for number in 1..=4_000 {
        assert_eq!(text.matches(&format!(" line {number}\n")).count(), 1, "line {number}");
    }
    assert_eq!((ended.finals.len(), text.matches("Job succeeded").count()), (1, 1));
    scene.wait_until_closed();
    scene.gitlab.assert_clean();
}

#[test]
fn a09_ranges_that_the_server_corrects_and_answers_that_are_lost() {
    let mut scene = Scene::new();
    let go_on = scene.path("go-on");
    let job = scene.gitlab.add_script(&["echo first", &waits_for(&go_on, "wait"), "echo last"]);
    let trace = format!("PATCH /jobs/{job}/trace");
    // The server has the piece, and the agent does not know: it learns so from a 416.
    scene.gitlab.fault(&trace, 1, Fault::Lost);
    scene.gitlab.fault(&trace, 1, Fault::Answer(Answer::status(500)));
    scene.gitlab.fault(&trace, 1, Fault::Reset);
    scene.start();
    scene.gitlab.wait_for("the first line", |world| world.jobs[&job].text().contains("first").then_some(()));
    fs::write(&go_on, "").unwrap();
    let ended = scene.gitlab.ended(job);
    assert_eq!(ended.text().matches(" first\n").count(), 1, "{}", ended.text());
    assert_eq!(ended.text().matches(" last\n").count(), 1, "{}", ended.text());
    scene.gitlab.assert_clean();
}

#[test]
fn a10_the_final_update_is_repeated_until_the_server_has_it() {
    let mut scene = Scene::new();
    let job = scene.gitlab.add_script(&["echo hello"]);
    scene.gitlab.fault(&format!("PUT /jobs/{job}"), 1, Fault::Slow(Duration::ZERO));
    for answer in [
        Answer::status(202),
        // Pages of something before the server.
        Answer::page(200),
        Answer::page(404),
        Answer::status(500),
        Answer::status(412).header("X-GitLab-Trace-Update-Interval", "1"),
    ] {
        let answer = answer.header("X-GitLab-Trace-Update-Interval", "1");
        scene.gitlab.fault(&format!("PUT /jobs/{job}"), 1, Fault::Answer(answer));
    }
    scene.start();
    let ended = scene.gitlab.ended(job);
    scene.wait_until_closed();
    let world = scene.gitlab.world();
    let finals: Vec<_> = (world.seen.iter())
        .filter(|request| request.path == format!("/jobs/{job}") && request.json()["state"] != "running")
        .map(|request| request.body.clone())
        .collect();
    assert_eq!(finals.len(), 6);
    assert!(finals.iter().all(|body| *body == finals[0]), "each is the same, byte for byte");
    assert_eq!(ended.finals.len(), 1);
}

#[test]
fn a11_a_cancel_by_the_server_ends_the_job_after_its_after_script() {
    let mut scene = Scene::new();
    let sleep = OwnSleep::new();
    let job = scene.gitlab.add(|job| {
        job["steps"] = json!([
            {"name": "script", "script": ["echo begun", sleep.to_string()]},
            {"name": "after_script", "script": ["echo after $CI_JOB_STATUS"]},
        ]);
    });
    scene.start();
    scene.gitlab.wait_for("the start", |world| world.jobs[&job].text().contains("begun").then_some(()));
    wait_for("the command", || (!sleep.processes().is_empty()).then_some(()));
    scene.gitlab.change(|world| world.jobs.get_mut(&job).unwrap().state = "canceling".to_owned());
    let ended = scene.gitlab.ended(job);
    assert_eq!(ended.state, "canceled");
    assert!(ended.text().contains("after canceled"), "{}", ended.text());
    assert_eq!(ended.finals[0]["failure_reason"], "job_canceled");
    assert!(sleep.processes().is_empty());
}

#[test]
fn a14_sigterm_leaves_jobs_to_the_next_agent_and_sigquit_ends_with_the_last() {
    let mut scene = Scene::new();
    let go_on = scene.path("go-on");
    let job = scene.gitlab.add_script(&[&waits_for(&go_on, "begun"), "echo done"]);
    scene.start();
    scene.gitlab.wait_for("the start", |world| world.jobs[&job].text().contains("begun").then_some(()));
    scene.signal(Signal::TERM);
    assert_eq!(scene.wait(), Some(0));
    assert_eq!(scene.records().len(), 1);
    fs::write(&go_on, "").unwrap();
    scene.start();
    assert_eq!(scene.gitlab.ended(job).state, "success");
    let last = scene.gitlab.add_script(&["echo last"]);
    scene.gitlab.wait_for("the claim", |world| (world.jobs[&last].running > 0).then_some(()));
    scene.signal(Signal::QUIT);
    assert_eq!(scene.wait(), Some(0));
    assert_eq!(scene.gitlab.ended(last).state, "success");
    assert!(scene.records().is_empty());
}

#[test]
fn a14_sigint_ends_jobs_and_the_exit_code_says_so() {
    let mut scene = Scene::new();
    let sleep = OwnSleep::new();
    let job = scene.gitlab.add_script(&["echo begun", &sleep.to_string()]);
    scene.start();
    scene.gitlab.wait_for("the start", |world| world.jobs[&job].text().contains("begun").then_some(()));
    scene.signal(Signal::INT);
    assert_eq!(scene.wait(), Some(1));
    let ended = scene.gitlab.ended(job);
    assert_eq!(ended.finals[0]["failure_reason"], "runner_interrupted");
    assert!(ended.text().contains("Job failed: the agent was stopped"), "{}", ended.text());
    assert!(sleep.processes().is_empty());
}

#[test]
fn an_entry_whose_jobs_this_machine_cannot_prepare_asks_for_no_more() {
    let mut scene = Scene::with("", "builds_dir = \"/proc/nowhere\"");
    let jobs: Vec<u64> = (0..5).map(|_| scene.gitlab.add_script(&["echo never"])).collect();
    scene.start();
    wait_for("the stop", || scene.said().contains("its jobs cannot be prepared").then_some(()));
    assert!(scene.said().contains("could not be prepared on this machine: "), "{}", scene.said());
    let world = scene.gitlab.world();
    let failed = jobs.iter().filter(|job| world.jobs[*job].state != "pending").count();
    // Requests that were out when the third job failed may have brought more.
    assert!((3..5).contains(&failed) || world.jobs.values().any(|job| job.state == "pending"), "{failed}");
}

#[test]
fn a24_a_second_agent_names_the_first() {
    let mut scene = Scene::new();
    scene.start();
    wait_for("the first agent", || scene.said().contains("the agent is ready").then_some(()));
    let second = scene.run(&["agent"]);
    let said = String::from_utf8(second.stderr).unwrap();
    assert_eq!(second.status.code(), Some(3), "{said}");
    assert!(said.contains("another agent uses the folder") && said.contains("pid"), "{said}");
}

#[test]
fn once_takes_one_job_or_ends_without_one() {
    let scene = Scene::new();
    let output = scene.run(&["agent", "--once", "--wait", "0"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no job came in time"), "{output:?}");
    let (first, second) = (scene.gitlab.add_script(&["exit 3"]), scene.gitlab.add_script(&["exit 0"]));
    let output = scene.run(&["agent", "--once"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(scene.gitlab.ended(first).state, "failed");
    assert_eq!(scene.gitlab.world().jobs[&second].state, "pending");
}

#[test]
fn paths_may_be_relative() {
    let scene = Scene::new();
    let job = scene.gitlab.add_script(&["pwd"]);
    let mut command = scene.command(&["agent", "--once", "--config", "agent.toml", "--state-dir", "state"]);
    let output = command.current_dir(scene.path("")).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let ended = scene.gitlab.ended(job);
    let builds = scene.path("state/builds").display().to_string();
    assert!(ended.state == "success" && ended.text().contains(&builds), "{}", ended.text());
}

#[test]
fn a15_a_cache_comes_back_in_the_next_job() {
    let mut scene = Scene::new();
    scene.start();
    let cached = |script: &str| {
        scene.gitlab.add(|job| {
            job["cache"] = json!([{"key": "k", "paths": ["kept"], "policy": "pull-push"}]);
            job["steps"][0]["script"] = json!([script]);
        })
    };
    let first = cached("echo 1 > kept");
    assert_eq!(scene.gitlab.ended(first).state, "success", "{}", scene.gitlab.ended(first).text());
    fs::remove_dir_all(scene.path("state/builds")).unwrap();
    let second = cached("cat kept");
    assert_eq!(scene.gitlab.ended(second).state, "success", "{}", scene.gitlab.ended(second).text());
    // One that cannot be kept costs no other.
    let some = |script: &str| {
        scene.gitlab.add(|job| {
            let cache =
                |key: serde_json::Value| json!({"key": key, "paths": ["kept"], "policy": "pull-push"});
            job["cache"] = json!([cache(json!("$NOTHING")), cache(json!(null)), cache(json!("last"))]);
            job["steps"][0]["script"] = json!([script]);
        })
    };
    let ended = scene.gitlab.ended(some("echo 2 > kept"));
    for part in ["its key is empty", "Cache job/main: 1 file saved", "Cache last: 1 file saved"] {
        assert!(ended.text().contains(part), "{part} is not in {}", ended.text());
    }
}
