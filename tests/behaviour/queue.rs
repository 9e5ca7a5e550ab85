//! Admission as clients and operators see it (queue.md §9 Q2, Q5–Q8). Jobs block on a FIFO, so the test decides when
//! they end.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::support::{
    Client, Daemon, Setup, contains, kill, names, refused, request, script, until, wait_for,
};
use futures_util::future::join_all;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::Signal;
use serde_json::Value;
use step_runner::pb::v1::{Job, RunRequest, State, Status, Variable};
use tonic::Code;

/// A daemon with a settings file that the test can change. Its jobs end when the test says so.
struct Scene {
    folder: tempfile::TempDir,
    daemon: Daemon,
    client: Client,
    settings: Vec<(&'static str, String)>,
}

impl Scene {
    async fn new(settings: &[(&'static str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let settings: Vec<_> = settings.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        let file = folder.path().join("settings.toml");
        write_settings(&file, &settings);
        let daemon = Setup::new().option("config", file.to_str().unwrap()).start();
        let client = daemon.client().await;
        Self { folder, daemon, client, settings }
    }

    fn fifo(&self, id: &str) -> PathBuf {
        self.folder.path().join(format!("fifo-{id}"))
    }

    /// Returns a job that runs until [`Self::let_go`].
    fn request(&self, id: &str, variables: &[(&str, &str)]) -> RunRequest {
        let fifo = self.fifo(id);
        if !fifo.exists() {
            mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        }
        let variable = |(key, value): &(&str, &str)| Variable {
            key: (*key).to_owned(),
            value: (*value).to_owned(),
            ..Variable::default()
        };
        let job = Job {
            variables: variables.iter().map(variable).collect(),
            build_dir: self.folder.path().to_str().unwrap().to_owned(),
            ..Job::default()
        };
        RunRequest { job: Some(job), ..request(id, &script(&format!("cat '{}'", fifo.display()))) }
    }

    async fn run(&self, id: &str) {
        self.client.try_run(self.request(id, &[])).await.unwrap();
    }

    /// Passes `text` to a job and lets it end.
    async fn feed(&self, id: &str, text: &str) {
        let mut fifo = None;
        // A blocking open would wait for ever if the job never came.
        until("the job opens its FIFO", || {
            let mut options = File::options();
            fifo = options.write(true).custom_flags(libc::O_NONBLOCK).open(self.fifo(id)).ok();
            fifo.is_some()
        })
        .await;
        fifo.unwrap().write_all(text.as_bytes()).unwrap();
    }

    /// Ends a running job.
    async fn let_go(&self, id: &str) {
        self.feed(id, "").await;
        self.client.ended(id).await;
    }

    /// Sends a signal and waits for the line in which the daemon confirms that it has acted.
    fn operate(&self, signal: Signal, line: &str) {
        let before = self.daemon.said().matches(line).count();
        self.daemon.signal(signal);
        wait_for(line, || (self.daemon.said().matches(line).count() > before).then_some(()));
    }

    fn set(&mut self, name: &'static str, value: &str) {
        self.settings.retain(|(other, _)| *other != name);
        self.settings.push((name, value.to_owned()));
        write_settings(&self.folder.path().join("settings.toml"), &self.settings);
        self.operate(Signal::HUP, "settings were read again");
    }

    /// Returns the jobs that have started and not ended, in the order of their starts.
    async fn running(&self) -> Vec<String> {
        let mut jobs = self.client.jobs().await;
        jobs.retain(|job| job.start_time.is_some() && !job.finished);
        jobs.sort_by_key(|job| job.start_time.map(|at| (at.seconds, at.nanos)));
        jobs.into_iter().map(|job| job.id).collect()
    }

    async fn waiting(&self) -> BTreeSet<String> {
        let jobs = self.client.jobs().await;
        jobs.into_iter().filter(|job| job.state() == State::Queued).map(|job| job.id).collect()
    }

    async fn starts(&self, id: &str) -> Status {
        self.client.reaches(id, "running", |status| status.start_time.is_some()).await
    }
}

fn write_settings(file: &Path, settings: &[(&'static str, String)]) {
    let lines: Vec<_> = settings.iter().map(|(name, value)| format!("{name} = {value}\n")).collect();
    std::fs::write(file, lines.concat()).unwrap();
}

/// Q2: the vectors, through the calls.
#[tokio::test]
async fn vectors_hold_through_the_calls() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/queue-vectors.json");
    let file: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    for vector in file["vectors"].as_array().unwrap() {
        play(vector).await;
    }
}

async fn play(vector: &Value) {
    let name = vector["name"].as_str().unwrap();
    let limit = |key: &str| vector[key].as_u64().map_or("\"none\"".to_owned(), |n| n.to_string());
    let policy = format!("{:?}", vector["policy"].as_str().unwrap());
    let mut scene = Scene::new(&[
        ("queue_policy", &policy),
        ("max_running", &vector["max_running"].to_string()),
        ("max_queued", &limit("max_queued")),
        ("max_running_per_project", &limit("max_per_key")),
        // A vector can submit the same job again.
        ("remember_finished", "\"0\""),
    ])
    .await;
    let mut running: Vec<String> = Vec::new();
    for event in vector["events"].as_array().unwrap() {
        let id = event["id"].as_str().unwrap_or_default();
        let result = event["result"].as_str().unwrap();
        match (event["op"].as_str().unwrap(), result) {
            ("submit", result) => submit(&scene, id, event, result).await,
            ("cancel", "ignored") => drop(scene.client.try_cancel(id).await),
            ("cancel", "signalled") => scene.client.cancel(id).await,
            ("cancel", _) => {
                scene.client.cancel(id).await;
                let status = scene.client.ended(id).await;
                assert_eq!(
                    (status.state(), status.start_time),
                    (State::Cancelled, None),
                    "{name}: {status:?}"
                );
            }
            ("finish", "released") => {
                // A job that was cancelled has ended by itself.
                let status = scene.client.status(id).await;
                if status.state() == State::Running {
                    scene.let_go(id).await;
                }
                scene.client.ended(id).await;
                running.retain(|other| other != id);
            }
            ("forget", "forgotten") => scene.client.finish(id).await,
            ("finish" | "forget", _) => {}
            ("pause", _) => scene.operate(Signal::USR1, "admission is paused"),
            ("resume", _) => scene.operate(Signal::USR2, "admission goes on"),
            ("set_max", _) => scene.set("max_running", &event["n"].to_string()),
            other => panic!("{name}: {other:?}"),
        }
        let starts: Vec<_> =
            event["started"].as_array().unwrap().iter().map(|id| id.as_str().unwrap()).collect();
        for id in &starts {
            scene.starts(id).await;
        }
        running.extend(starts.iter().map(|id| (*id).to_owned()));
        let mut now = scene.running().await;
        // Cancelled jobs hold their slots until they have ended, which is soon.
        now.retain(|id| running.contains(id));
        assert!(
            now.ends_with(&starts.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>()),
            "{name} {event}: {now:?}"
        );
    }
    let expected: BTreeSet<_> = vector["end"]["queued"]
        .as_array()
        .unwrap()
        .iter()
        .map(|id| id.as_str().unwrap().to_owned())
        .collect();
    assert_eq!(scene.waiting().await, expected, "{name}");
}

async fn submit(scene: &Scene, id: &str, event: &Value, result: &str) {
    let variables = [("key", "CI_PROJECT_ID"), ("server", "CI_SERVER_URL"), ("number", "CI_JOB_ID")];
    let variables: Vec<_> =
        variables.iter().filter_map(|(field, key)| Some((*key, event[*field].as_str()?))).collect();
    let ran = scene.client.try_run(scene.request(id, &variables)).await;
    match result {
        "rejected" => {
            let text = refused(ran, Code::ResourceExhausted, "queue_full");
            assert!(text.contains("jobs waiting (limit "), "{text}");
            refused(scene.client.try_status(id).await, Code::NotFound, "unknown_job");
        }
        "queued" => {
            ran.unwrap();
            let status = scene.client.status(id).await;
            assert_eq!(
                (status.state(), status.finished, status.exit_code),
                (State::Queued, false, 0),
                "{event}"
            );
            assert_eq!((status.start_time, status.end_time), (None, None), "{event}");
        }
        _ => ran.unwrap(),
    }
}

/// Q5 in queue.md §9.
#[tokio::test]
async fn a_follower_that_came_before_the_start_sees_the_whole_log() {
    let scene = Scene::new(&[("max_running", "1")]).await;
    scene.run("first").await;
    let second = RunRequest { steps: script("echo second"), ..scene.request("second", &[]) };
    scene.client.try_run(second).await.unwrap();
    let follow = scene.client.follow("second", 0).await;
    assert!(scene.client.log_so_far("second").await.is_empty(), "nothing is written about waiting");
    scene.let_go("first").await;
    let log = follow.rest().await.unwrap();
    assert!(contains(&log, "second\n"));
    assert_eq!(scene.client.ended("second").await.state(), State::Success);
    until("the operator is told", || scene.daemon.said().contains("the job had to wait and starts now"))
        .await;
}

/// Q5 in queue.md §9.
#[tokio::test]
async fn a_waiting_job_that_is_finished_is_forgotten_and_never_runs() {
    let scene = Scene::new(&[("max_running", "1")]).await;
    scene.run("first").await;
    scene.run("second").await;
    let follow = scene.client.follow("second", 0).await;
    scene.client.finish("second").await;
    follow.rest().await.unwrap();
    refused(scene.client.try_status("second").await, Code::NotFound, "unknown_job");
    scene.let_go("first").await;
    assert!(scene.waiting().await.is_empty() && scene.running().await.is_empty());
}

/// Q6 in queue.md §9.
#[tokio::test]
async fn a_waiting_job_has_no_file_variable_on_disk() {
    let scene = Scene::new(&[("max_running", "1")]).await;
    scene.run("first").await;
    let mut second = scene.request("second", &[("CERT", "canary-7c1e")]);
    second.job.as_mut().unwrap().variables[0].file = true;
    scene.client.try_run(second).await.unwrap();
    let canary = |scene: &Scene| {
        let found = crate::support::tree(scene.folder.path())
            .into_values()
            .any(|content| contains(&content, "canary"));
        found
            || crate::support::tree(&scene.daemon.state_dir())
                .into_values()
                .any(|content| contains(&content, "canary"))
    };
    assert!(!canary(&scene));
    scene.client.cancel("second").await;
    scene.client.ended("second").await;
    assert!(!canary(&scene));
    scene.let_go("first").await;
}

/// Q6 in queue.md §9.
#[tokio::test]
async fn waiting_jobs_keep_their_order_when_the_daemon_is_killed() {
    let mut scene = Scene::new(&[("max_running", "1")]).await;
    for (id, project, number) in
        [("a", "1", "5"), ("b", "1", "9"), ("c", "2", "7"), ("d", "3", "6"), ("e", "3", "8")]
    {
        let request = scene.request(id, &[("CI_PROJECT_ID", project), ("CI_JOB_ID", number)]);
        scene.client.try_run(request).await.unwrap();
    }
    scene.daemon.kill();
    scene.daemon.restart();
    scene.client = scene.daemon.client().await;
    for id in ["a", "d", "c", "e", "b"] {
        scene.starts(id).await;
        assert_eq!(scene.running().await, [id]);
        scene.let_go(id).await;
    }
}

/// The death of a keeper ends the running jobs. Waiting jobs lose nothing.
#[tokio::test]
async fn waiting_jobs_outlive_their_keeper() {
    let scene = Scene::new(&[("max_running", "1")]).await;
    scene.run("first").await;
    scene.starts("first").await;
    scene.run("second").await;
    scene.run("third").await;
    kill(scene.daemon.keeper_pid().unwrap(), Signal::KILL);
    assert_eq!(scene.client.ended("first").await.state(), State::Interrupted);
    scene.let_go("second").await;
    scene.client.cancel("third").await;
    assert_eq!(scene.client.ended("third").await.state(), State::Cancelled);
    assert_eq!(scene.client.status("second").await.state(), State::Success);
}

/// A cancel of a waiting job that has no keeper is kept until it has one.
#[tokio::test]
async fn a_cancel_between_two_keepers_is_kept() {
    let scene = Scene::new(&[("max_running", "1")]).await;
    scene.run("first").await;
    scene.starts("first").await;
    scene.run("second").await;
    kill(scene.daemon.keeper_pid().unwrap(), Signal::KILL);
    wait_for("the end of the keeper", || scene.daemon.said().contains("the keeper is gone").then_some(()));
    scene.client.cancel("second").await;
    let second = scene.client.ended("second").await;
    assert_eq!((second.state(), second.start_time), (State::Cancelled, None), "{second:?}");
}

#[tokio::test]
async fn a_pause_can_be_ended_while_the_daemon_drains() {
    let mut scene = Scene::new(&[("max_running", "1"), ("on_stop", "\"drain\"")]).await;
    scene.operate(Signal::USR1, "admission is paused");
    scene.run("late").await;
    let follow = scene.client.follow("late", 0).await;
    scene.daemon.signal(Signal::TERM);
    scene.operate(Signal::USR2, "admission goes on");
    scene.feed("late", "drained\n").await;
    assert!(contains(&follow.rest().await.unwrap(), "drained\n"));
    assert_eq!(scene.daemon.wait(), Some(0));
}

/// Q7 in queue.md §9.
#[tokio::test]
async fn a_cancelled_job_keeps_its_slot_until_it_is_gone() {
    let scene = Scene::new(&[("max_running", "1"), ("cancel_grace", "\"1h\"")]).await;
    let steps = script(&format!("trap '' TERM; echo deaf; cat '{}'", scene.fifo("stubborn").display()));
    let stubborn = RunRequest { steps, ..scene.request("stubborn", &[]) };
    scene.client.try_run(stubborn).await.unwrap();
    scene.client.prints("stubborn", "deaf").await;
    scene.run("next").await;
    scene.client.cancel("stubborn").await;
    scene.client.reaches("stubborn", "cancelling", |status| status.state() == State::Cancelling).await;
    assert_eq!(scene.client.status("next").await.state(), State::Queued);
    scene.let_go("stubborn").await;
    scene.let_go("next").await;
}

/// Q8 in queue.md §9.
#[tokio::test]
async fn many_runs_of_one_id_start_one_job() {
    let scene = Scene::new(&[("max_running", "2"), ("max_queued", "0")]).await;
    let runs = (0..50).map(|_| scene.client.try_run(scene.request("one", &[])));
    assert!(join_all(runs).await.into_iter().all(|ran| ran.is_ok()));
    scene.run("other").await;
    assert_eq!(scene.client.jobs().await.len(), 2);
    let third = scene.client.try_run(scene.request("third", &[])).await;
    refused(third, Code::ResourceExhausted, "queue_full");
    scene.let_go("one").await;
    scene.let_go("other").await;
}

#[tokio::test]
async fn too_many_bytes_may_not_wait() {
    let scene = Scene::new(&[("max_running", "1"), ("max_queued_bytes", "\"64KiB\"")]).await;
    scene.run("first").await;
    let long = format!(": {}", "x".repeat(40 << 10));
    let waits = |id: &str| RunRequest { steps: script(&long), ..scene.request(id, &[]) };
    scene.client.try_run(waits("second")).await.unwrap();
    let text = refused(scene.client.try_run(waits("third")).await, Code::ResourceExhausted, "queue_full");
    assert!(text.contains("bytes of jobs waiting (limit 65536)"), "{text}");
    assert_eq!(names(&scene.daemon.state_dir().join("jobs")).len(), 2, "a rejected job leaves no trace");
    scene.let_go("first").await;
    scene.client.ended("second").await;
}

#[tokio::test]
async fn fault_106_a_job_waits_until_its_request_has_room_beside_those_that_run() {
    let mut scene =
        Scene::new(&[("max_running_bytes", "\"64KiB\""), ("max_queued_bytes", "\"100KiB\"")]).await;
    let long = |id: &str, kib: usize| {
        let text = format!(": {}; cat '{}'", "x".repeat(kib << 10), scene.fifo(id).display());
        RunRequest { steps: script(&text), ..scene.request(id, &[]) }
    };
    let set = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<BTreeSet<_>>();
    // One that is larger than the limit runs alone, and those behind it wait in their order, also a small one.
    for (id, kib) in [("huge", 70), ("second", 40), ("third", 40), ("small", 1)] {
        scene.client.try_run(long(id, kib)).await.unwrap();
    }
    scene.starts("huge").await;
    assert_eq!(scene.waiting().await, set(&["second", "third", "small"]));
    // What neither runs nor waits is refused for now.
    let text = refused(scene.client.try_run(long("fourth", 40)).await, Code::ResourceExhausted, "queue_full");
    assert!(text.contains("bytes of jobs waiting (limit 102400)"), "{text}");
    scene.let_go("huge").await;
    scene.starts("second").await;
    assert_eq!(scene.waiting().await, set(&["third", "small"]));
    // A higher limit holds at once.
    scene.set("max_running_bytes", "\"90KiB\"");
    for id in ["third", "small"] {
        scene.starts(id).await;
    }
    for id in ["second", "third", "small"] {
        scene.let_go(id).await;
    }
}

#[tokio::test]
async fn a_stop_cancels_what_waits() {
    let mut scene = Scene::new(&[("max_running", "1"), ("shutdown_grace", "\"600s\"")]).await;
    scene.run("first").await;
    scene.run("second").await;
    let follow = scene.client.follow("second", 0).await;
    scene.daemon.signal(Signal::TERM);
    assert!(contains(&follow.rest().await.unwrap(), "job cancelled"));
    assert_eq!(scene.daemon.wait(), Some(0));
}

#[tokio::test]
async fn bad_settings_leave_the_old_ones_in_force() {
    let scene = Scene::new(&[("max_running", "1")]).await;
    scene.run("first").await;
    scene.run("second").await;
    std::fs::write(scene.folder.path().join("settings.toml"), "max_running = \"many\"\n").unwrap();
    scene.operate(Signal::HUP, "the settings stay as they are");
    assert_eq!(scene.waiting().await, BTreeSet::from(["second".to_owned()]));
    std::fs::write(scene.folder.path().join("settings.toml"), "max_running = 2\nmax_connections = 7\n")
        .unwrap();
    scene.operate(Signal::HUP, "these settings take effect at the next start");
    scene.starts("second").await;
    scene.let_go("first").await;
    scene.let_go("second").await;
}

#[tokio::test]
async fn a_grace_that_was_read_again_reaches_the_keeper() {
    let mut scene = Scene::new(&[("keeper_wait", "\"1s\""), ("cancel_grace", "\"1h\"")]).await;
    let pid = scene.folder.path().join("pid");
    let stubborn = format!(
        "trap '' TERM; echo $$ > '{0}.new'; mv '{0}.new' '{0}'; while :; do sleep 1; done",
        pid.display()
    );
    scene.client.try_run(request("stubborn", &script(&stubborn))).await.unwrap();
    until("the job runs", || pid.exists()).await;
    scene.set("cancel_grace", "\"1ms\"");
    // The keeper processes requests in order: when it has run this job, it knows the grace.
    scene.run("next").await;
    scene.let_go("next").await;
    scene.daemon.kill();
    let pid = std::fs::read_to_string(&pid).unwrap().trim().parse().unwrap();
    until("the keeper has ended the job by force", || !crate::support::is_alive(pid)).await;
}
