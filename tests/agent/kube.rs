//! `kube-run://` at a real cluster of one node. `scripts/agent-kube` starts it, with the images of `tests/engine/node.sh`.
#![expect(clippy::print_stdout, reason = "says why a test was skipped")]

use std::process::Command;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::fake_gitlab::{FakeGitlab, RUNNER};
use crate::scene::Scene;
use crate::support::{kill, processes_with, wait_for};

/// Variable with the configuration of the cluster's administrator. Without it there is no cluster.
const ADMIN: &str = "STEP_RUNNER_TEST_ADMIN";

/// Variable with a file that only the API server is started with.
const TOKENS: &str = "STEP_RUNNER_TEST_TOKENS";

/// A script that goes on when the test says so.
const WAITS: &str = "echo half; until test -e /tmp/go; do sleep 0.05; done";

/// There is no scheduler, no network for Pods, and no registry.
const TEMPLATE: &str = "
metadata: {labels: {team: ci}}
spec:
  nodeName: 127.0.0.1
  hostNetwork: true
  containers:
    - {name: program, imagePullPolicy: Never}
";

/// An agent whose jobs have Pods of their own.
struct Cluster {
    scene: Scene,
}

impl Cluster {
    /// Makes an agent. `more` are further settings of its Pods.
    fn with(more: &str) -> Option<Self> {
        if std::env::var_os(ADMIN).is_none() {
            println!("skipped: no cluster (scripts/agent-kube starts one)");
            return None;
        }
        let template = "@TEMPLATE@";
        let entry = format!(
            "address = \"kube-run://default\"\n[runners.kubernetes]\nimage = \"busybox:1\"\n\
             program_image = \"step-runner:0.1.0\"\npod_template = \"{template}\"\npull_policy = \"never\"\n{more}\n"
        );
        let scene = Scene::with("concurrent = 4", &entry);
        let path = scene.path("pod.yaml");
        std::fs::write(&path, TEMPLATE).unwrap();
        scene.configure(&scene.config().replace(template, &path.display().to_string()));
        Some(Self { scene })
    }

    fn start() -> Option<Self> {
        let mut cluster = Self::with("")?;
        cluster.scene.start();
        Some(cluster)
    }

    /// Gives a job with these lines, in this image.
    fn job(&self, image: &Value, lines: &[&str]) -> u64 {
        self.scene.gitlab.add(|job| {
            job["image"] = image.clone();
            job["steps"][0]["script"] = json!(lines);
        })
    }

    #[track_caller]
    fn succeeds(&self, job: u64) -> String {
        let ended = self.scene.gitlab.ended(job);
        assert_eq!(
            (ended.finals.len(), &ended.finals[0]["state"]),
            (1, &json!("success")),
            "{}",
            ended.text()
        );
        ended.text()
    }

    /// Asserts that a job fails for this reason, and that its trace says why.
    #[track_caller]
    fn fails(&self, job: u64, reason: &str, part: &str) -> String {
        let ended = self.scene.gitlab.ended(job);
        let (update, text) = (&ended.finals[0], ended.text());
        assert_eq!(
            (&update["state"], &update["failure_reason"]),
            (&json!("failed"), &json!(reason)),
            "{text}"
        );
        assert!(text.contains(part), "{part:?} is not in\n{text}");
        text
    }

    /// Returns the name of the Pod of a job, once its job has printed `half`.
    fn pod(&self, job: u64) -> String {
        self.scene.wait_until_printed(job, "half");
        let selector = format!("step-runner.job={job},step-runner.state={}", self.state());
        let name = kubectl(&["get", "pods", "--selector", &selector, "--output", "name"]);
        name.trim_start_matches("pod/").to_owned()
    }

    fn state(&self) -> String {
        std::fs::read_to_string(self.scene.path("state/id")).unwrap().trim().to_owned()
    }

    /// Asserts that nothing of this agent is left in the cluster.
    fn is_empty(&self) {
        self.scene.wait_until_closed();
        assert_eq!(things(&self.state()), "");
        self.scene.gitlab.assert_clean();
    }
}

/// Runs `kubectl` as the administrator and returns what it prints.
#[track_caller]
fn kubectl(words: &[&str]) -> String {
    let admin = std::env::var_os(ADMIN).unwrap();
    let output = Command::new("kubectl").env("KUBECONFIG", admin).args(words).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    assert!(output.status.success(), "kubectl {words:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// Returns the names of Pods and Secrets of a state.
fn things(state: &str) -> String {
    let selector = format!("step-runner.state={state}");
    kubectl(&["get", "pods,secrets", "--selector", &selector, "--output", "name"])
}

fn go_on(pod: &str) {
    kubectl(&["exec", pod, "--container", "build", "--", "touch", "/tmp/go"]);
}

#[test]
fn a28_a_job_runs_in_a_pod_of_its_image_and_nothing_of_it_is_left() {
    let Some(cluster) = Cluster::start() else { return };
    let job = cluster.scene.gitlab.add(|job| {
        let secret = json!({"key": "SECRET", "value": "canary-canary", "masked": true, "public": false});
        job["variables"].as_array_mut().unwrap().push(secret);
        job["steps"][0]["script"] = json!([
            WAITS,
            "echo $CI_DISPOSABLE_ENVIRONMENT in $PWD",
            "tr '\\0' ' ' </proc/1/cmdline",
            "ls -d /var/run/secrets/kubernetes.io || echo no account",
            "echo $SECRET"
        ]);
    });
    let pod = cluster.pod(job);
    let inspected = kubectl(&["get", "pod", &pod, "--output", "json"]);
    for secret in ["canary-canary", RUNNER, &cluster.scene.gitlab.world().jobs[&job].token] {
        assert!(!inspected.contains(secret), "{secret} in {inspected}");
    }
    assert!(inspected.contains("\"team\": \"ci\""), "{inspected}");
    go_on(&pod);
    let text = cluster.succeeds(job);
    for part in [
        "true in /builds/",
        "/opt/step-runner/step-runner serve",
        "no account",
        "with a Pod in the namespace default",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    assert!(!text.contains("canary-canary"), "{text}");
    cluster.is_empty();
}

#[test]
fn a28_jobs_run_behind_every_kind_of_entrypoint_and_user() {
    let Some(cluster) = Cluster::start() else { return };
    let user = json!({"kubernetes": {"user": "1000:1000"}});
    let images = [
        json!({"name": "busybox:1", "entrypoint": [""]}),
        json!({"name": "busybox:1", "entrypoint": ["/bin/sh", "-c", "exec \"$@\"", "sh"]}),
        // It passes on the first word alone.
        json!({"name": "busybox:1", "entrypoint": ["/bin/sh", "-c"]}),
        json!({"name": "busybox:1", "executor_opts": user}),
    ];
    let lines = ["echo \"user $(id -u)\"", "touch made && echo made it"];
    let jobs = images.map(|image| (cluster.job(&image, &lines), image));
    for (job, image) in jobs {
        let text = cluster.succeeds(job);
        let user = if image["executor_opts"].is_null() { "user 0\n" } else { "user 1000\n" };
        assert!(text.contains(user) && text.contains("made it"), "{image}: {text}");
    }
    cluster.is_empty();
}

#[test]
fn a29_an_image_that_cannot_be_had_is_told_with_its_reason() {
    let Some(mut cluster) = Cluster::with(
        "allowed_images = [\"busybox:*\", \"local/*\", \"127.0.0.1:1/*\"]\nallowed_pull_policies = [\"never\", \"always\"]",
    ) else {
        return;
    };
    cluster.scene.start();
    let root = json!({"kubernetes": {"user": "root"}});
    for (image, reason, part) in [
        (json!({"name": "other"}), "runner_configuration_error", "allowed_images"),
        (json!({"name": "--privileged"}), "runner_configuration_error", "reference"),
        (json!({"name": "local/none"}), "runner_configuration_error", "never pulled"),
        (
            json!({"name": "busybox:1", "executor_opts": root}),
            "runner_configuration_error",
            "users there are numbers",
        ),
        (json!({"name": "busybox:1", "entrypoint": ["/nowhere"]}), "runner_configuration_error", "/nowhere"),
        (
            json!({"name": "busybox:1", "entrypoint": ["/bin/false"]}),
            "runner_configuration_error",
            "entrypoint",
        ),
        (
            json!({"name": "127.0.0.1:1/none:1", "pull_policy": "always"}),
            "runner_system_failure",
            "cannot pull the image 127.0.0.1:1/none:1",
        ),
    ] {
        let job = cluster.job(&image, &["echo never"]);
        let text = cluster.fails(job, reason, part);
        assert!(!text.contains(" never\n"), "{text}");
    }
    cluster.is_empty();
}

#[test]
fn a30_services_are_found_by_their_aliases_and_late_and_dead_ones_are_told() {
    let Some(mut cluster) = Cluster::with("wait_for_services_timeout = 20") else { return };
    cluster.scene.start();
    let service = |name: &str, script: &str| json!({"name": "busybox:1", "alias": name, "entrypoint": ["sh", "-c"], "command": [script]});
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let late = cluster.scene.gitlab.add(|job| {
        let script = format!(
            "sleep 2; mkdir /www; echo from $NAME >/www/index.html; exec httpd -f -p 127.0.0.1:{port} -h /www"
        );
        let mut web = service("web db-1", &script);
        web["ports"] = json!([{"number": port, "name": "web", "protocol": "http"}]);
        web["variables"] = json!([{"key": "NAME", "value": "the service", "public": true}]);
        job["services"] = json!([web]);
        job["steps"][0]["script"] = json!([format!("wget -q -O - http://web:{port}/ http://db-1:{port}/")]);
    });
    let dead = cluster.scene.gitlab.add(|job| {
        let mut broken = service("db", "echo cannot open the store; exit 3");
        broken["variables"] = json!([{"key": "HEALTHCHECK_TCP_PORT", "value": "5432", "public": true}]);
        job["services"] = json!([broken]);
        job["steps"][0]["script"] = json!(["echo the job goes on"]);
    });
    let text = cluster.succeeds(late);
    assert_eq!(text.matches(" from the service\n").count(), 2, "{text}");
    let text = cluster.succeeds(dead);
    for part in ["WARNING: the service busybox:1 is not ready", "cannot open the store", " the job goes on\n"]
    {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    cluster.is_empty();
}

#[test]
fn a28_a_pod_that_is_removed_fails_its_job_with_the_cause() {
    let Some(cluster) = Cluster::start() else { return };
    let job = cluster.job(&json!(null), &["echo first", WAITS]);
    let pod = cluster.pod(job);
    kubectl(&["delete", "pod", &pod, "--force", "--grace-period=0"]);
    let text = cluster.fails(job, "runner_system_failure", "was removed while the job ran");
    assert!(text.contains(" first\n"), "{text}");
    cluster.is_empty();
}

#[test]
fn a28_an_agent_that_dies_is_followed_by_the_next_in_each_phase() {
    let Some(mut cluster) = Cluster::with("wait_for_services_timeout = 600") else { return };
    cluster.scene.start();
    // While its services are waited for: everything is made anew.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let job = cluster.scene.gitlab.add(|job| {
        let script = format!("until test -e /builds/go; do sleep 0.05; done; exec httpd -f -p 127.0.0.1:{port}");
        let variables = json!([{"key": "HEALTHCHECK_TCP_PORT", "value": port.to_string(), "public": true}]);
        job["services"] = json!([{"name": "busybox:1", "alias": "web", "entrypoint": ["sh", "-c"], "command": [script], "variables": variables}]);
        job["steps"][0]["script"] = json!([WAITS, "echo after"]);
    });
    let selector = format!("step-runner.job={job}");
    let running = || {
        let words = [
            "get",
            "pods",
            "--selector",
            &selector,
            "--output",
            "jsonpath={.items[*].metadata.uid} {.items[*].status.phase}",
        ];
        let text = kubectl(&words);
        let (uid, phase) = text.split_once(' ')?;
        (phase == "Running").then(|| uid.to_owned())
    };
    let first = wait_for("the Pod", running);
    cluster.scene.kill();
    cluster.scene.start();
    // Another one has the same name.
    wait_for("a new preparation", || running().filter(|now| *now != first));
    let pod = kubectl(&["get", "pods", "--selector", &selector, "--output", "name"]);
    let pod = pod.trim_start_matches("pod/").to_owned();
    kubectl(&["exec", &pod, "--container", "svc-0", "--", "touch", "/builds/go"]);
    // While the job runs.
    cluster.pod(job);
    cluster.scene.kill();
    go_on(&pod);
    cluster.scene.start();
    let text = cluster.succeeds(job);
    assert_eq!((text.matches(" half\n").count(), text.matches(" after\n").count()), (1, 1), "{text}");
    cluster.is_empty();
}

#[test]
fn a28_an_api_server_that_is_killed_costs_no_job() {
    let Some(cluster) = Cluster::start() else { return };
    let job = cluster.job(&json!(null), &["for i in 1 2 3 4 5 6; do echo line $i; sleep 1; done"]);
    cluster.scene.wait_until_printed(job, "line 2");
    // The node starts it again.
    let servers = processes_with(&std::env::var(TOKENS).unwrap());
    assert!(!servers.is_empty());
    for server in servers {
        kill(server, Signal::KILL);
    }
    let text = cluster.succeeds(job);
    assert!((1..=6).all(|number| text.matches(&format!(" line {number}\n")).count() == 1), "{text}");
    cluster.is_empty();
}

#[test]
fn a31_what_no_record_names_is_removed_and_what_is_another_s_stays() {
    let Some(mut cluster) = Cluster::start() else { return };
    let job = cluster.job(&json!(null), &["echo done"]);
    cluster.succeeds(job);
    cluster.is_empty();
    cluster.scene.signal(Signal::QUIT);
    assert_eq!(cluster.scene.wait(), Some(0));
    let make = |name: &str, state: &str| {
        let pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": {"step-runner.state": state}},
            "spec": {
                "nodeName": "127.0.0.1",
                "hostNetwork": true,
                "containers": [{"name": "build", "image": "busybox:1", "imagePullPolicy": "Never"}],
            },
        });
        let path = cluster.scene.path("orphan.json");
        std::fs::write(&path, pod.to_string()).unwrap();
        kubectl(&["create", "--filename", &path.display().to_string()]);
    };
    make("step-0123456789abcdef", &cluster.state());
    make("step-fedcba9876543210", "ffffffffffffffff");
    cluster.scene.start();
    wait_for("the end of the orphan", || things(&cluster.state()).is_empty().then_some(()));
    assert_eq!(things("ffffffffffffffff"), "pod/step-fedcba9876543210");
    kubectl(&["delete", "pod", "step-fedcba9876543210", "--grace-period=1"]);
}

#[test]
fn a28_verify_names_the_rights_that_an_account_lacks() {
    let Some(mut cluster) = Cluster::with("") else { return };
    let output = cluster.scene.run(&["verify"]);
    assert_eq!(
        (output.status.code(), String::from_utf8_lossy(&output.stdout)),
        (Some(0), "shell: valid\n".into())
    );
    // The account of clients has no rights here.
    let other = std::path::Path::new(&std::env::var_os(ADMIN).unwrap()).with_file_name("client.conf");
    let output = cluster.scene.command(&["verify"]).env("KUBECONFIG", &other).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
    for right in ["create pods in", "create pods/exec in", "delete secrets in the namespace default"] {
        assert!(text.contains(&format!("shell: no right to {right}")), "{right} is not in {text}");
    }
    cluster.scene.start_with(|command| {
        command.env("KUBECONFIG", &other);
    });
    wait_for("the reason", || cluster.scene.said().contains("agent-rights.yaml").then_some(()));
    assert!(!cluster.scene.gitlab.world().calls().iter().any(|call| call.contains("jobs/request")));
}

#[test]
fn a11_a_cancelled_job_runs_its_after_script_and_its_pod_goes() {
    let Some(cluster) = Cluster::start() else { return };
    let job = cluster.scene.gitlab.add(|job| {
        job["steps"][0]["script"] = json!([WAITS]);
        let after = json!({"name": "after_script", "script": ["echo tidied"], "timeout": 60, "when": "always", "allow_failure": true});
        job["steps"].as_array_mut().unwrap().push(after);
    });
    cluster.pod(job);
    cluster.scene.gitlab.change(|world| world.jobs.get_mut(&job).unwrap().state = "canceling".to_owned());
    let ended = cluster.scene.gitlab.ended(job);
    assert_eq!(ended.state, "canceled", "{}", ended.text());
    assert!(ended.text().contains(" tidied\n"), "{}", ended.text());
    cluster.is_empty();
}

#[test]
fn a32_the_jobs_of_an_imported_kubernetes_runner_run_with_its_template() {
    if std::env::var_os(ADMIN).is_none() {
        println!("skipped: no cluster (scripts/agent-kube starts one)");
        return;
    }
    let mut cluster = Cluster { scene: Scene::bare(FakeGitlab::start()) };
    cluster.scene.import(
        r#"
concurrent = 10
check_interval = 1
[[runners]]
  name = "kubernetes"
  url = "SERVER"
  id = 11
  token = "TOKEN"
  executor = "kubernetes"
  environment = ["DEPLOY=no"]
  [runners.kubernetes]
    host = ""
    bearer_token_overwrite_allowed = false
    image = "busybox:1"
    namespace = "default"
    pull_policy = "never"
    privileged = false
    poll_timeout = 180
    memory_limit = "96Mi"
    [runners.kubernetes.pod_labels]
      team = "imported"
    [[runners.kubernetes.volumes.empty_dir]]
      name = "scratch"
      mount_path = "/scratch"
      medium = "Memory"
"#,
    );
    // What this cluster lacks: scheduler, network for Pods, registry.
    let path = cluster.scene.path("agent.1.pod.json");
    let mut template: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    template["spec"]["nodeName"] = json!("127.0.0.1");
    template["spec"]["hostNetwork"] = json!(true);
    let program = json!({"name": "program", "imagePullPolicy": "Never"});
    template["spec"]["containers"].as_array_mut().unwrap().push(program);
    std::fs::write(&path, template.to_string()).unwrap();
    let table = "[runners.kubernetes]\n";
    let image = format!("{table}program_image = \"step-runner:0.1.0\"\n");
    cluster.scene.configure(&cluster.scene.config().replace(table, &image));
    cluster.scene.start();
    let job = cluster.job(&json!(null), &[WAITS, "echo deploy $DEPLOY", "grep ' /scratch ' /proc/mounts"]);
    let pod = cluster.pod(job);
    let inspected = kubectl(&["get", "pod", &pod, "--output", "json"]);
    for part in ["\"team\": \"imported\"", "\"memory\": \"96Mi\""] {
        assert!(inspected.contains(part), "{part} is not in {inspected}");
    }
    go_on(&pod);
    let text = cluster.succeeds(job);
    assert!(text.contains(" deploy no\n") && text.contains(" /scratch tmpfs "), "{text}");
    cluster.is_empty();
}
