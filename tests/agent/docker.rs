//! `docker-run://` at a real engine. `scripts/agent-docker` starts it, with the images of `tests/engine/engine.sh`.
#![expect(clippy::print_stdout, reason = "says why a test was skipped")]

use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::fake_gitlab::{FakeGitlab, RUNNER};
use crate::scene::Scene;
use crate::support::programs::write_program;
use crate::support::{kill, wait_for};

/// Variable with the process id of the engine. Without it there is none.
const ENGINE: &str = "STEP_RUNNER_TEST_ENGINE_PID";

/// A script that goes on when the test says so.
const WAITS: &str = "echo half; until test -e /tmp/go; do sleep 0.05; done";

/// Labels of the things of an agent.
const STATE: &str = "step-runner.state";

/// An agent whose jobs have containers of their own.
struct Engine {
    scene: Scene,
    pid: i32,
}

impl Engine {
    /// Makes an agent whose containers have no network but their own loopback. `more` are further settings of them.
    fn with(more: &str) -> Option<Self> {
        let pid = Self::pid()?;
        let entry = format!(
            "address = \"docker-run://\"\n[runners.docker]\nimage = \"plain\"\nnetwork = \"shared\"\nnetwork_base = \"none\"\npull_policy = \"if-not-present\"\n{more}\n"
        );
        Some(Self { scene: Scene::with("concurrent = 4", &entry), pid })
    }

    /// Returns the process of the engine, if there is one.
    fn pid() -> Option<i32> {
        let pid = std::env::var(ENGINE).ok().and_then(|text| text.parse().ok());
        if pid.is_none() {
            println!("skipped: no engine (scripts/agent-docker starts one)");
        }
        pid
    }

    fn start() -> Option<Self> {
        let mut engine = Self::with("")?;
        engine.scene.start();
        Some(engine)
    }

    /// Gives a job with these lines, in this image.
    fn job(&self, image: &Value, lines: &[&str]) -> u64 {
        self.scene.gitlab.add(|job| {
            job["image"] = image.clone();
            job["steps"][0]["script"] = json!(lines);
        })
    }

    /// Gives a job with these lines, which has a file `kept` in a cache.
    fn job_with_cache(&self, lines: &[&str]) -> u64 {
        self.scene.gitlab.add(|job| {
            job["cache"] =
                json!([{"key": "k", "paths": ["kept"], "policy": "pull-push", "when": "on_success"}]);
            job["steps"][0]["script"] = json!(lines);
        })
    }

    /// Returns the final update of a job and its trace.
    fn ended(&self, job: u64) -> (Value, String) {
        let ended = self.scene.gitlab.ended(job);
        assert_eq!(ended.finals.len(), 1, "{}", ended.text());
        (ended.finals[0].clone(), ended.text())
    }

    #[track_caller]
    fn succeeds(&self, job: u64) -> String {
        let (update, text) = self.ended(job);
        assert_eq!(update["state"], "success", "{text}");
        text
    }

    /// Asserts that a job fails for this reason, and that its trace says why.
    #[track_caller]
    fn fails(&self, job: u64, reason: &str, part: &str) -> String {
        let (update, text) = self.ended(job);
        assert_eq!(
            (&update["state"], &update["failure_reason"]),
            (&json!("failed"), &json!(reason)),
            "{text}"
        );
        assert!(text.contains(part), "{part:?} is not in\n{text}");
        text
    }

    /// Returns the name of the container of a job, once it is there.
    fn container(&self, job: u64) -> String {
        let of_job = format!("label=step-runner.job={job}");
        let words =
            ["ps", "--filter", &of_job, "--filter", "label=step-runner.role=build", "--format", "{{.Names}}"];
        let name = wait_for("the container", || Some(docker(&words)).filter(|name| !name.is_empty()));
        self.scene.wait_until_printed(job, "half");
        name
    }

    /// Asserts that nothing of this agent is left at the engine.
    fn is_empty(&self) {
        self.scene.wait_until_closed();
        let state = std::fs::read_to_string(self.scene.path("state/id")).unwrap();
        assert_eq!(things(&format!("{STATE}={}", state.trim())), Vec::<String>::new());
        self.scene.gitlab.assert_clean();
    }
}

/// Runs `docker` and returns what it prints.
#[track_caller]
fn docker(words: &[&str]) -> String {
    let output = Command::new("docker").args(words).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    assert!(output.status.success(), "docker {words:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// Returns the names of containers, volumes and networks with a label.
fn things(label: &str) -> Vec<String> {
    let filter = format!("label={label}");
    let lists = [
        docker(&["ps", "--all", "--filter", &filter, "--format", "{{.Names}}"]),
        docker(&["volume", "ls", "--filter", &filter, "--format", "{{.Name}}"]),
        docker(&["network", "ls", "--filter", &filter, "--format", "{{.Name}}"]),
    ];
    lists.iter().flat_map(|list| list.split_whitespace()).map(str::to_owned).collect()
}

fn go_on(container: &str) {
    docker(&["exec", container, "touch", "/tmp/go"]);
}

#[test]
fn a27_a_job_runs_in_a_container_of_its_image_and_nothing_of_it_is_left() {
    let Some(engine) = Engine::start() else { return };
    let job = engine.scene.gitlab.add(|job| {
        let secret = json!({"key": "SECRET", "value": "canary-canary", "masked": true, "public": false});
        job["variables"].as_array_mut().unwrap().push(secret);
        job["steps"][0]["script"] = json!([
            WAITS,
            "echo $CI_DISPOSABLE_ENVIRONMENT in $PWD",
            "tr '\\0' ' ' </proc/1/cmdline",
            "echo $SECRET"
        ]);
    });
    let container = engine.container(job);
    let inspected = docker(&["inspect", &container]);
    for secret in ["canary-canary", RUNNER, &engine.scene.gitlab.world().jobs[&job].token] {
        assert!(!inspected.contains(secret), "{secret} in {inspected}");
    }
    go_on(&container);
    let text = engine.succeeds(job);
    assert!(
        text.contains("true in /builds/") && text.contains("/opt/step-runner/step-runner serve"),
        "{text}"
    );
    assert!(!text.contains("canary-canary"), "{text}");
    engine.is_empty();
}

/// `docker` that is refused once, as an engine does it to one of two that make a folder of a volume at the same moment.
const LATE_DOCKER: &str = r#"#!/bin/sh
PATH=${PATH#*:}
case "$*" in
*" cp - "*:/cache)
    if [ ! -e "$0.refused" ]; then
        : >"$0.refused"
        cat >/dev/null
        echo "Error response from daemon: Error processing tar file(exit status 1): mkdir /cache/104b703f: file exists" >&2
        exit 1
    fi
    ;;
esac
exec docker "$@"
"#;

#[test]
fn a27_a_folder_for_caches_that_another_job_makes_at_the_same_moment_is_there() {
    let Some(mut engine) = Engine::with("") else { return };
    let programs = engine.scene.path("programs");
    std::fs::create_dir(&programs).unwrap();
    write_program(&programs.join("docker"), LATE_DOCKER);
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    engine.scene.start_with(|command| _ = command.env("PATH", path));
    let job = engine.job_with_cache(&["echo made >kept"]);
    engine.succeeds(job);
    assert!(programs.join("docker.refused").exists(), "nothing was copied to the volume");
    engine.is_empty();
}

#[test]
fn a27_jobs_run_behind_every_kind_of_entrypoint_and_user() {
    let Some(engine) = Engine::start() else { return };
    let user = json!({"docker": {"user": "1000:1000"}});
    let images = [
        // Names of images may hold variables.
        json!({"name": "$KIND"}),
        json!({"name": "wrapper"}),
        json!({"name": "init"}),
        json!({"name": "shell", "entrypoint": [""]}),
        json!({"name": "plain", "executor_opts": user}),
    ];
    let lines = json!(["echo \"user $(id -u)\"", "touch made && echo made it"]);
    let jobs = images.map(|image| {
        let job = engine.scene.gitlab.add(|job| {
            job["variables"]
                .as_array_mut()
                .unwrap()
                .push(json!({"key": "KIND", "value": "shell", "public": true}));
            (job["image"], job["steps"][0]["script"]) = (image.clone(), lines.clone());
        });
        (job, image)
    });
    for (job, image) in jobs {
        let text = engine.succeeds(job);
        let user = if image["executor_opts"].is_null() { "user 0\n" } else { "user 1000\n" };
        assert!(text.contains(user) && text.contains("made it"), "{image}: {text}");
    }
    engine.is_empty();
}

#[test]
fn a29_an_image_that_cannot_be_had_is_told_with_its_reason() {
    let Some(mut engine) = Engine::with(
        "allowed_images = [\"plain\", \"local/*\", \"127.0.0.1:1/*\"]\nallowed_pull_policies = [\"never\", \"if-not-present\"]",
    ) else {
        return;
    };
    engine.scene.start();
    let never = json!({"name": "local/none", "pull_policy": "never"});
    for (image, reason, part) in [
        (json!({"name": "other"}), "runner_configuration_error", "allowed_images"),
        (json!({"name": "--privileged"}), "runner_configuration_error", "reference"),
        (never, "runner_configuration_error", "never pulled"),
        (
            json!({"name": "127.0.0.1:1/none:1"}),
            "runner_system_failure",
            "cannot pull the image 127.0.0.1:1/none:1",
        ),
        (
            json!({"name": "plain", "pull_policy": "always"}),
            "runner_configuration_error",
            "the entry allows never, if-not-present",
        ),
    ] {
        let job = engine.job(&image, &["echo never"]);
        let text = engine.fails(job, reason, part);
        assert!(!text.contains(" never\n"), "{text}");
    }
    engine.is_empty();
}

#[test]
fn a30_services_are_found_by_their_aliases_and_late_and_dead_ones_are_told() {
    let Some(mut engine) = Engine::with("wait_for_services_timeout = 10") else { return };
    engine.scene.start();
    let service = |name: &str, script: &str| json!({"name": "plain", "alias": name, "entrypoint": ["sh", "-c"], "command": [script]});
    let port = |number: &str| json!([{"key": "HEALTHCHECK_TCP_PORT", "value": number, "public": true}]);
    let late = engine.scene.gitlab.add(|job| {
        let mut web = service(
            "web db-1",
            "sleep 2; mkdir /www; echo from $NAME >/www/index.html; exec httpd -f -p 8080 -h /www",
        );
        web["variables"] = port("8080");
        web["variables"]
            .as_array_mut()
            .unwrap()
            .push(json!({"key": "NAME", "value": "the service", "public": true}));
        job["services"] = json!([web]);
        job["steps"][0]["script"] = json!(["wget -q -O - http://web:8080/ http://db-1:8080/"]);
    });
    let dead = engine.scene.gitlab.add(|job| {
        let mut broken = service("db", "echo cannot open the store; exit 3");
        broken["variables"] = port("5432");
        job["services"] = json!([broken]);
        job["steps"][0]["script"] = json!(["echo the job goes on"]);
    });
    assert_eq!(engine.succeeds(late).matches(" from the service\n").count(), 2, "{}", engine.succeeds(late));
    let text = engine.succeeds(dead);
    for part in ["WARNING: the service plain is not ready", "cannot open the store", " the job goes on\n"] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    engine.is_empty();
}

#[test]
fn a27_a_container_that_dies_fails_its_job_with_the_cause_and_the_rest_of_the_log() {
    let Some(engine) = Engine::start() else { return };
    for (words, cause) in [
        (&["kill"][..], "was killed while the job ran"),
        (&["stop", "--time", "0"], "was killed while the job ran"),
        (&["stop"], "ended with exit code 0 while the job ran"),
        (&["rm", "--force"], "was removed while the job ran"),
    ] {
        let job = engine.job(&json!(null), &["echo first", "echo last", WAITS]);
        let container = engine.container(job);
        docker(&[words, &[&container]].concat());
        let text = engine.fails(job, "runner_system_failure", cause);
        assert!(text.contains(" first\n") && text.contains(" last\n"), "{text}");
    }
    engine.is_empty();
}

#[test]
fn a27_a_container_that_was_stopped_while_there_was_no_agent_fails_its_job_with_the_cause() {
    let Some(mut engine) = Engine::start() else { return };
    let job = engine.job(&json!(null), &[WAITS]);
    let container = engine.container(job);
    engine.scene.kill();
    docker(&["stop", &container]);
    engine.scene.start();
    engine.fails(job, "runner_system_failure", "ended with exit code 0 while the job ran");
    engine.is_empty();
}

#[test]
fn a27_an_agent_that_dies_is_followed_by_the_next_in_each_phase() {
    let Some(mut engine) = Engine::with("wait_for_services_timeout = 600") else { return };
    engine.scene.start();
    // While its services are waited for, and again.
    let job = engine.scene.gitlab.add(|job| {
        let script = "until test -e /builds/go; do sleep 0.05; done; exec httpd -f -p 8080";
        let variables = json!([{"key": "HEALTHCHECK_TCP_PORT", "value": "8080", "public": true}]);
        job["services"] = json!([{"name": "plain", "alias": "web", "entrypoint": ["sh", "-c"], "command": [script], "variables": variables}]);
        job["steps"][0]["script"] = json!([WAITS, "echo after"]);
    });
    let service = || {
        let of_job = format!("label=step-runner.job={job}");
        let words = ["ps", "--filter", &of_job, "--format", "{{.Names}}"];
        wait_for("the containers", || {
            let names = docker(&words);
            let both: Vec<&str> = names.split_whitespace().collect();
            (both.len() == 2)
                .then(|| both.iter().find(|name| name.contains("svc")).map(|name| (*name).to_owned()))
        })
        .unwrap()
    };
    let id = |name: &str| docker(&["inspect", "--format", "{{.Id}}", name]);
    let first = id(&service());
    engine.scene.kill();
    engine.scene.start();
    // Another one has the same name.
    wait_for("a new preparation", || {
        let output =
            Command::new("docker").args(["inspect", "--format", "{{.Id}}", &service()]).output().unwrap();
        let now = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        (output.status.success() && now != first).then_some(())
    });
    docker(&["exec", &service(), "touch", "/builds/go"]);
    // While the job runs.
    let container = engine.container(job);
    engine.scene.kill();
    go_on(&container);
    engine.scene.start();
    let text = engine.succeeds(job);
    assert_eq!((text.matches(" half\n").count(), text.matches(" after\n").count()), (1, 1), "{text}");
    engine.is_empty();
}

#[test]
fn a27_an_engine_that_does_not_answer_for_a_while_costs_no_job() {
    let Some(engine) = Engine::start() else { return };
    let job = engine.job(&json!(null), &["for i in 1 2 3 4 5 6; do echo line $i; sleep 1; done"]);
    engine.scene.wait_until_printed(job, "line 2");
    kill(engine.pid, Signal::STOP);
    std::thread::sleep(Duration::from_secs(8));
    kill(engine.pid, Signal::CONT);
    let text = engine.succeeds(job);
    assert!((1..=6).all(|number| text.matches(&format!(" line {number}\n")).count() == 1), "{text}");
    engine.is_empty();
}

#[test]
fn a31_what_no_record_names_is_removed_and_what_is_another_s_stays() {
    let Some(mut engine) = Engine::start() else { return };
    let job = engine.job(&json!(null), &["echo done"]);
    engine.succeeds(job);
    engine.is_empty();
    engine.scene.signal(Signal::QUIT);
    assert_eq!(engine.scene.wait(), Some(0));
    let state = std::fs::read_to_string(engine.scene.path("state/id")).unwrap();
    let make = |name: &str, state: &str| {
        let label = format!("{STATE}={state}");
        docker(&["create", "--name", name, "--label", &label, "--network", "none", "plain", "sleep", "1"]);
        docker(&["volume", "create", "--label", &label, &format!("{name}.builds")]);
    };
    make("step-0123456789abcdef", state.trim());
    make("step-fedcba9876543210", "ffffffffffffffff");
    engine.scene.start();
    wait_for("the end of the orphans", || {
        things(&format!("{STATE}={}", state.trim())).is_empty().then_some(())
    });
    let other = format!("{STATE}=ffffffffffffffff");
    assert_eq!(things(&other), ["step-fedcba9876543210", "step-fedcba9876543210.builds"]);
    docker(&["rm", "step-fedcba9876543210"]);
    docker(&["volume", "rm", "step-fedcba9876543210.builds"]);
}

#[test]
fn a11_a_cancelled_job_runs_its_after_script_and_its_container_goes() {
    let Some(engine) = Engine::start() else { return };
    let job = engine.scene.gitlab.add(|job| {
        job["steps"][0]["script"] = json!([WAITS]);
        let after = json!({"name": "after_script", "script": ["echo tidied"], "timeout": 60, "when": "always", "allow_failure": true});
        job["steps"].as_array_mut().unwrap().push(after);
    });
    engine.container(job);
    engine.scene.gitlab.change(|world| world.jobs.get_mut(&job).unwrap().state = "canceling".to_owned());
    let ended = engine.scene.gitlab.ended(job);
    assert_eq!(ended.state, "canceled", "{}", ended.text());
    assert!(ended.text().contains(" tidied\n"), "{}", ended.text());
    engine.is_empty();
}

#[test]
fn a15_caches_outlive_the_containers_of_a_project() {
    let Some(engine) = Engine::start() else { return };
    engine.succeeds(engine.job_with_cache(&["echo of the first >kept"]));
    let text = engine.succeeds(engine.job_with_cache(&["cat kept"]));
    assert!(text.contains(" of the first\n"), "{text}");
    engine.is_empty();
}

#[test]
fn a32_the_jobs_of_an_imported_docker_runner_run_with_its_services_and_caches() {
    let Some(pid) = Engine::pid() else { return };
    let mut engine = Engine { scene: Scene::bare(FakeGitlab::start()), pid };
    engine.scene.import(
        r#"
concurrent = 10
check_interval = 1
connection_max_age = "15m0s"
shutdown_timeout = 60
[[runners]]
  name = "docker"
  url = "SERVER"
  id = 11
  token = "TOKEN"
  executor = "docker"
  output_limit = 8192
  environment = ["DEPLOY=no"]
  [runners.cache]
    MaxUploadedArchiveSize = 0
  [runners.docker]
    tls_verify = false
    image = "plain"
    privileged = false
    disable_entrypoint_overwrite = false
    oom_kill_disable = false
    disable_cache = false
    volumes = ["/cache", "/data"]
    shm_size = 67108864
    network_mode = "none"
    extra_hosts = ["mirror:127.0.0.2"]
    pull_policy = "if-not-present"
    allowed_images = ["plain"]
    wait_for_services_timeout = 30
    [[runners.docker.services]]
      name = "init"
      alias = "db"
"#,
    );
    engine.scene.start();
    engine.succeeds(engine.job_with_cache(&["echo of the first >kept"]));
    let text = engine.succeeds(engine.job_with_cache(&[
        "cat kept",
        "echo deploy $DEPLOY",
        "grep -E ' /(data|dev/shm) ' /proc/mounts",
    ]));
    for part in [" of the first\n", " deploy no\n", " /data "] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    engine.is_empty();
}
