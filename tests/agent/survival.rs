//! Deaths and absences: of the agent, of the daemon, of the server.

use std::fs;
use std::time::Duration;

use crate::fake_gitlab::Fault;
use crate::fake_gitlab::http::Answer;
use crate::jobs::waits_for;
use crate::scene::Scene;
use crate::support::{Daemon, wait_for};

#[test]
fn a09_agent_and_daemon_are_killed_in_the_middle_and_nothing_is_lost() {
    let mut scene = Scene::new();
    let go_on = scene.path("go-on");
    let lines = "for i in $(seq 1 500); do echo line $i; done";
    let job = scene.gitlab.add_script(&[lines, &waits_for(&go_on, "half"), "echo after"]);
    scene.start();
    scene.wait_until_printed(job, "half");
    scene.kill();
    scene.kill_daemon();
    fs::write(&go_on, "").unwrap();
    scene.start();
    let ended = scene.gitlab.ended(job);
    let text = ended.text();
    assert_eq!(ended.state, "success", "{text}");
    for mark in ["line 1", "line 500", "half", "after"] {
        assert_eq!(text.matches(&format!(" {mark}\n")).count(), 1, "{mark}");
    }
    scene.gitlab.assert_clean();
}

#[test]
fn a09_the_daemon_alone_is_killed_and_the_job_goes_on() {
    let mut scene = Scene::new();
    let go_on = scene.path("go-on");
    let job = scene.gitlab.add_script(&[&waits_for(&go_on, "half"), "echo after"]);
    scene.start();
    scene.wait_until_printed(job, "half");
    scene.kill_daemon();
    fs::write(&go_on, "").unwrap();
    let ended = scene.gitlab.ended(job);
    assert!(ended.state == "success" && ended.text().contains(" after\n"), "{}", ended.text());
}

#[test]
fn a23_a_job_ends_while_no_agent_is_there_and_is_reported_by_the_next() {
    let mut scene = Scene::new();
    let (go_on, done) = (scene.path("go-on"), scene.path("done"));
    let job = scene.gitlab.add_script(&[
        &waits_for(&go_on, "half"),
        "echo after; exit_code=4",
        &format!("touch {}; exit 4", done.display()),
    ]);
    scene.start();
    scene.wait_until_printed(job, "half");
    scene.kill();
    fs::write(&go_on, "").unwrap();
    wait_for("the end of the job", || done.exists().then_some(()));
    scene.start();
    let ended = scene.gitlab.ended(job);
    assert_eq!((&ended.finals[0]["exit_code"], ended.finals.len()), (&serde_json::json!(4), 1));
    assert!(ended.text().contains(" after\n"), "{}", ended.text());
    scene.wait_until_closed();
}

#[test]
fn a09_what_a_cut_off_deletion_has_left_is_removed() {
    let mut scene = Scene::new();
    let folder = scene.path("state/jobs/0123456789abcdef");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("tail"), "Job succeeded\n").unwrap();
    scene.start();
    wait_for("the agent", || scene.said().contains("the agent is ready").then_some(()));
    assert!(scene.records().is_empty() && !scene.said().contains("stays as it is"), "{}", scene.said());
}

#[test]
fn a09_a_record_that_cannot_be_read_stays_and_so_does_a_folder_of_somebody_else() {
    let mut scene = Scene::new();
    // A folder in its place can be opened, but not read.
    fs::create_dir_all(scene.path("state/jobs/0123456789abcdef/record")).unwrap();
    fs::create_dir_all(scene.path("state/jobs/lost+found")).unwrap();
    scene.start();
    wait_for("the agent", || scene.said().contains("the agent is ready").then_some(()));
    assert_eq!(scene.records(), ["0123456789abcdef", "lost+found"]);
    let said = scene.said();
    assert!(said.contains("jobs/0123456789abcdef stays as it is: the file cannot be read"), "{said}");
    assert!(!said.contains("lost+found"), "{said}");
}

#[test]
fn a25_the_server_is_away_at_the_end_and_gets_the_result_when_it_is_back() {
    let mut scene = Scene::new();
    let go_on = scene.path("go-on");
    let job = scene.gitlab.add_script(&[&waits_for(&go_on, "half"), "echo after"]);
    scene.start();
    scene.wait_until_printed(job, "half");
    scene.gitlab.fault("P", 3, Fault::Reset);
    scene.gitlab.fault("P", 2, Fault::Answer(Answer::status(429).header("Retry-After", "1")));
    scene.gitlab.fault("P", 7, Fault::Answer(Answer::page(503)));
    fs::write(&go_on, "").unwrap();
    let ended = scene.gitlab.ended(job);
    assert!(ended.state == "success" && ended.text().contains(" after\n"), "{}", ended.text());
    assert_eq!(ended.finals.len(), 1);
    scene.gitlab.assert_clean();
}

#[test]
fn a26_one_403_without_a_status_ends_nothing_and_an_ended_job_is_left() {
    let mut scene = Scene::new();
    let go_on = scene.path("go-on");
    let job = scene.gitlab.add_script(&[&waits_for(&go_on, "half"), "echo after"]);
    scene.gitlab.fault(&format!("PATCH /jobs/{job}"), 1, Fault::Answer(Answer::status(403)));
    scene.start();
    scene.wait_until_printed(job, "half");
    fs::write(&go_on, "").unwrap();
    assert_eq!(scene.gitlab.ended(job).state, "success");
    let gone = scene.gitlab.add_script(&["while true; do echo tick; sleep 0.2; done"]);
    scene.gitlab.wait_for("the start", |world| world.jobs[&gone].text().contains("tick").then_some(()));
    scene.gitlab.change(|world| world.jobs.get_mut(&gone).unwrap().state = "canceled".to_owned());
    scene.wait_until_closed();
    assert!(scene.gitlab.world().jobs[&gone].finals.is_empty());
}

#[test]
fn a02_a_ticket_comes_back_and_the_server_may_hold_the_request() {
    let mut scene = Scene::new();
    scene.gitlab.change(|world| world.hold = Duration::from_mins(10));
    scene.start();
    let held = scene.gitlab.wait_for("a request that is held", |world| {
        let last = world.seen.last()?;
        last.headers.get("x-gitlab-last-update").cloned()
    });
    assert_eq!(held, "ticket/0+=;");
    let job = scene.gitlab.add_script(&["echo hello"]);
    assert_eq!(scene.gitlab.ended(job).state, "success");
    scene.gitlab.assert_clean();
}

#[test]
fn a_daemon_that_somebody_else_looks_after_runs_the_jobs() {
    let daemon = Daemon::start();
    let entry = format!(
        "address = \"{}\"\nbuilds_dir = \"{}\"",
        daemon.socket.display(),
        daemon.file("builds").display()
    );
    let mut scene = Scene::with("", &entry);
    scene.start();
    let job = scene.gitlab.add_script(&["pwd"]);
    let ended = scene.gitlab.ended(job);
    assert!(ended.state == "success", "{}", ended.text());
    assert!(ended.text().contains(&daemon.file("builds").display().to_string()), "{}", ended.text());
    assert!(!scene.path("state/daemon").exists());
    scene.wait_until_closed();
}

#[test]
fn a_changed_configuration_is_taken_and_a_wrong_one_is_told() {
    let mut scene = Scene::new();
    scene.start();
    let first = scene.gitlab.add_script(&["echo $FROM_ENTRY."]);
    assert!(scene.gitlab.ended(first).text().contains(" .\n"));
    let good = scene.config();
    scene.configure(&format!("{good}environment = [\"FROM_ENTRY=yes\"]\nlimit = \"x\"\n"));
    wait_for("the complaint", || scene.said().contains("the configuration stays as it was").then_some(()));
    let second = scene.gitlab.add_script(&["echo $FROM_ENTRY."]);
    assert!(scene.gitlab.ended(second).text().contains(" .\n"));
    scene.configure(&format!("{good}environment = [\"FROM_ENTRY=yes\"]\n"));
    wait_for("the new configuration", || scene.said().contains("was read again").then_some(()));
    let third = scene.gitlab.add_script(&["echo $FROM_ENTRY."]);
    assert!(scene.gitlab.ended(third).text().contains(" yes.\n"), "{}", scene.gitlab.ended(third).text());
}
