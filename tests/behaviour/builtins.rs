//! Builtin functions in real jobs (language.md §17).

use std::os::unix::fs::symlink;
use std::path::Path;

use crate::support::registry::{DockerRegistry, PASSWORD, Scripted, USER, docker_config, response};
use crate::support::user::{ORDINARY, Place};
use crate::support::{
    Client, Daemon, Setup, contains, is_root, patiently, processes_with, request, script, state, wait_for,
};
use serde_json::{Value, json};
use step_runner::pb::v1::{self, RunRequest, State, Status};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

/// A job with its own directory.
struct Project {
    dir: tempfile::TempDir,
    variables: Vec<v1::Variable>,
}

impl Project {
    fn new(files: &[(&str, &str)]) -> Self {
        let project = Self { dir: tempfile::tempdir().unwrap(), variables: Vec::new() };
        for (path, text) in files {
            project.write(path, text);
        }
        project
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn variable(mut self, key: &str, value: &str, masked: bool) -> Self {
        let (key, value) = (key.to_owned(), value.to_owned());
        self.variables.push(v1::Variable { key, value, masked, ..v1::Variable::default() });
        self
    }

    fn request(&self, id: &str, steps: &Value) -> RunRequest {
        let build_dir = self.dir.path().to_str().unwrap().to_owned();
        let job = v1::Job { build_dir, variables: self.variables.clone(), ..v1::Job::default() };
        RunRequest { job: Some(job), ..request(id, &steps.to_string()) }
    }

    async fn run(&self, client: &Client, id: &str, steps: &Value) -> Status {
        client.try_run(self.request(id, steps)).await.unwrap();
        client.ended(id).await
    }
}

/// Asserts how the job ended. Shows its log otherwise.
async fn expect(client: &Client, status: &Status, expected: State, message: &str) {
    let log = client.log(&status.id).await;
    assert!(
        state(status) == expected && status.message.contains(message),
        "{status:?}\n{}",
        String::from_utf8_lossy(&log)
    );
}

fn legacy(inputs: &Value) -> Value {
    json!([{"name": "s", "step": "builtin://script_legacy", "inputs": inputs}])
}

/// Returns the lines that the steps printed.
async fn lines(client: &Client, id: &str) -> Vec<String> {
    client.output(id).await.lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn a_legacy_script_announces_its_commands_and_sees_job_variables() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let project =
        Project::new(&[]).variable("GREETING", "hello", false).variable("TOKEN", "s3cr3t-token", true);
    let script =
        json!(["echo \"$GREETING\"", "pwd", "echo $TOKEN", "head -n 1 \"$0\"", "echo one\necho two"]);
    let status = project.run(&client, "1", &legacy(&json!({"script": script}))).await;
    expect(&client, &status, State::Success, "").await;
    let shown = |command: &str| format!("\u{1b}[32;1m$ {command}\u{1b}[0;m");
    let printed = lines(&client, "1").await;
    assert_eq!(printed[..2], [shown("echo \"$GREETING\""), "hello".to_owned()]);
    assert_eq!(Path::new(&printed[3]), project.dir.path().canonicalize().unwrap());
    assert_eq!(printed[4..6], [shown("echo $TOKEN"), "[MASKED]".to_owned()]);
    assert!(printed[7].starts_with("#!/") && printed[7].ends_with("bash"), "{}", printed[7]);
    assert_eq!(printed[8..], [shown("echo one # collapsed multi-line command"), "one".into(), "two".into()]);
}

#[tokio::test]
async fn a_legacy_script_runs_in_sh_where_there_is_no_other_shell() {
    let shells = tempfile::tempdir().unwrap();
    for name in ["sh", "cat", "head"] {
        symlink(format!("/bin/{name}"), shells.path().join(name)).unwrap();
    }
    let daemon = Setup::new().env("PATH", shells.path().to_str().unwrap()).start();
    let client = daemon.client().await;
    let script = json!(["echo '\\n' \"it's\"", "head -n 1 \"$0\"", "(exit 7)", "echo never"]);
    let project = Project::new(&[]);
    let status =
        project.run(&client, "1", &legacy(&json!({"script": script, "check_for_errors": true}))).await;
    assert_eq!((state(&status), status.exit_code), (State::Failure, 7));
    let printed = lines(&client, "1").await;
    assert_eq!(printed[0], "\u{1b}[32;1m$ echo '\\n' \"it's\"\u{1b}[0;m");
    assert!(printed.contains(&format!("#!{}/sh", shells.path().display())), "{printed:?}");
    assert!(!printed.contains(&"never".to_owned()));
}

#[tokio::test]
async fn a_legacy_script_that_a_harmless_signal_ends_has_succeeded() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let project = Project::new(&[]);
    for (signal, expected) in [("USR1", State::Success), ("PIPE", State::Success), ("KILL", State::Failure)] {
        let steps = legacy(&json!({"script": [
            "echo '{\"name\":\"EXPORTED\",\"value\":\"kept\"}' >> '${{ export_file }}'",
            format!("kill -{signal} $$"),
        ]}));
        let mut steps = steps.as_array().unwrap().clone();
        steps.push(json!({"name": "after", "script": "echo after $EXPORTED"}));
        let status = project.run(&client, signal, &json!(steps)).await;
        expect(&client, &status, expected, "").await;
        let went_on = lines(&client, signal).await.contains(&"after kept".to_owned());
        assert_eq!(went_on, expected == State::Success);
    }
}

#[tokio::test]
async fn what_cannot_be_called_is_refused_with_the_remedy() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let project = Project::new(&[]);
    for (id, step, message) in [
        ("1", json!({"step": "builtin://concrete", "inputs": {"config": "{}"}}), "FF_CONCRETE off"),
        (
            "2",
            json!({"func": "builtin://nothing"}),
            "was not found; known: script, script_legacy, step/oci/fetch",
        ),
        (
            "3",
            json!({"func": "builtin://function/oci/build", "inputs": {"version": [1]}}),
            "input \"version\": expected string, got array",
        ),
        (
            "4",
            json!({"func": "builtin://function/oci/publish", "inputs": {"to_repo": "x"}}),
            "step does not accept input with name \"to_repo\"",
        ),
    ] {
        let mut step = step;
        step["name"] = json!("s");
        let status = project.run(&client, id, &json!([step])).await;
        expect(&client, &status, State::Failure, message).await;
    }
}

/// Returns steps that build and publish the project's function as `version`.
fn release(registry: &str, version: &str) -> Vec<Value> {
    vec![
        json!({"name": "build", "func": "builtin://function/oci/build", "inputs": {
            "version": version,
            "common": {"files": {"func.yml": "func.yml"}},
            "platforms": {
                "linux/amd64": {"files": {"bin/tool": "out/tool"}},
                "linux/arm64": {"files": {"bin/tool": "out/tool"}, "variant": "v8"},
            },
        }}),
        json!({"name": "publish", "func": "builtin://function/oci/publish", "inputs": {
            "archive": "${{ steps.build.outputs.archive }}",
            "to_repository": format!("{registry}/group/tool"),
        }}),
    ]
}

fn tool() -> Project {
    let project = Project::new(&[
        (
            "func.yml",
            "spec: {inputs: {who: {type: string}}}\n---\nexec: {command: ['${{ func_dir }}/bin/tool', '${{ inputs.who }}']}\n",
        ),
        ("out/tool", "#!/bin/sh\necho \"tool says hello to $1\"\n"),
    ]);
    let path = project.dir.path().join("out/tool");
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    project
}

#[tokio::test]
async fn a_function_is_built_published_and_run_in_one_job() {
    let Some(registry) = DockerRegistry::start() else { return };
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let project = tool();
    let mut steps = release(&registry.address, "1.2.3");
    for (number, version) in ["1.2.3", "1.2", "1", "latest"].into_iter().enumerate() {
        let func = format!("{}/group/tool:{version}", registry.address);
        steps.push(json!({"name": format!("use{number}"), "func": func, "inputs": {"who": version}}));
    }
    steps.push(json!({"name": "pinned", "inputs": {"who": "digest"},
        "func": "${{ steps.publish.outputs.ref }}"}));
    steps.push(json!({"name": "tags", "script": "echo ${{ steps.publish.outputs.tags }}"}));
    let status = project.run(&client, "1", &json!(steps)).await;
    expect(&client, &status, State::Success, "").await;
    let printed = lines(&client, "1").await;
    for who in ["1.2.3", "1.2", "1", "latest", "digest"] {
        assert!(printed.contains(&format!("tool says hello to {who}")), "{printed:?}");
    }
    assert!(printed.contains(&"[1.2.3, 1.2, 1, latest]".to_owned()), "{printed:?}");
}

#[tokio::test]
async fn a_version_is_published_once_and_older_releases_move_nothing() {
    let Some(registry) = DockerRegistry::start() else { return };
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let project = tool();
    let steps = |version: &str| json!(release(&registry.address, version));
    for (id, version) in [("1", "1.2.0"), ("2", "1.2.0"), ("3", "2.0.0-rc1")] {
        let status = project.run(&client, id, &steps(version)).await;
        expect(&client, &status, State::Success, "").await;
    }
    assert!(lines(&client, "2").await.iter().any(|line| line.ends_with("group/tool:1.2.0 is there already")));
    project.write("func.yml", "{}\n---\nexec: {command: [echo, older]}\n");
    let status = project.run(&client, "4", &steps("1.2.0")).await;
    assert_eq!((state(&status), status.exit_code), (State::Failure, 1));
    let log = client.log("4").await;
    assert!(contains(&log, "the version is published with other content"));
    let mut older = steps("1.1.9").as_array().unwrap().clone();
    for version in ["1.1", "1", "latest", "2.0.0-rc1"] {
        let func = format!("{}/group/tool:{version}", registry.address);
        let inputs = if version == "1.1" { json!({}) } else { json!({"who": version}) };
        older.push(json!({"name": "use", "func": func, "inputs": inputs}));
    }
    older.push(json!({"name": "gone", "func": format!("{}/group/tool:2", registry.address)}));
    let status = project.run(&client, "5", &json!(older)).await;
    expect(&client, &status, State::Failure, "step \"gone\": failed to load: ").await;
    let printed = lines(&client, "5").await;
    let said: Vec<_> =
        printed.iter().filter(|line| *line == "older" || line.starts_with("tool says")).collect();
    assert_eq!(
        said,
        ["older", "tool says hello to 1", "tool says hello to latest", "tool says hello to 2.0.0-rc1"]
    );
}

#[tokio::test]
async fn an_image_is_built_and_promoted_as_before() {
    let Some(registry) = DockerRegistry::start() else { return };
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let project = tool();
    let build = json!({"name": "build", "step": "dist://step/oci/build", "inputs": {
        "registry": registry.address, "repository": "nightly", "tag": "abc",
        "common": {"files": {"func.yml": "func.yml", "out": "/bin"}},
    }});
    let promote = json!({"name": "promote", "step": "dist://step/oci/promote", "inputs": {
        "from_image": "${{ steps.build.outputs.ref }}",
        "to_registry": registry.address, "to_repository": "stable/tool", "to_version": "3.0.1",
    }});
    let digest = "${{ steps.build.outputs.digest.algorithm }}:${{ steps.build.outputs.digest.hash }} ${{ steps.build.outputs.digest.value }}";
    let steps = json!([build, promote,
        {"name": "use", "step": format!("{}/stable/tool:3", registry.address), "inputs": {"who": "promoted"}},
        {"name": "digest", "script": format!("set -- {digest}; [ \"$1\" = \"$2\" ] && echo same")},
    ]);
    let status = project.run(&client, "1", &steps).await;
    expect(&client, &status, State::Success, "").await;
    let printed = lines(&client, "1").await;
    assert!(printed.contains(&"tool says hello to promoted".to_owned()), "{printed:?}");
    assert!(printed.contains(&"same".to_owned()), "{printed:?}");
    let status = project.run(&client, "2", &json!([build])).await;
    expect(&client, &status, State::Failure, "").await;
    assert!(contains(&client.log("2").await, "the tag exists: choose another tag"));
}

#[tokio::test]
async fn a_tree_is_fetched_for_the_steps_that_follow() {
    let Some(registry) = DockerRegistry::start() else { return };
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let mut steps = release(&registry.address, "1.0.0");
    let inputs = |path: &str| json!({"registry": registry.address, "repository": "group/tool", "tag": "", "step_path": path});
    steps.push(json!({"name": "fetch", "step": "builtin://step/oci/fetch", "inputs": inputs("")}));
    steps.push(json!({"name": "use", "step": "${{ steps.fetch.outputs.fetched_step_path }}", "inputs": {"who": "tree"}}));
    steps.push(json!({"name": "file", "step": "builtin://step/oci/fetch", "inputs": inputs("bin/tool")}));
    steps.push(json!({"name": "call", "script": "${{ steps.file.outputs.fetched_step_path }} file"}));
    steps.push(json!({"name": "again", "func": "${{ steps.file.outputs.ref }}", "inputs": {"who": "ref"}}));
    steps.push(json!({"name": "missing", "step": "builtin://step/oci/fetch", "inputs": inputs("no/such")}));
    let status = tool().run(&client, "1", &json!(steps)).await;
    expect(&client, &status, State::Failure, "step \"missing\": there is no no/such of ").await;
    let printed = lines(&client, "1").await;
    for who in ["tree", "file", "ref"] {
        assert!(printed.contains(&format!("tool says hello to {who}")), "{printed:?}");
    }
}

#[tokio::test]
async fn credentials_come_from_what_an_earlier_step_has_exported() {
    let Some(registry) = DockerRegistry::start_protected() else { return };
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let project = tool();
    let status = project.run(&client, "1", &json!(release(&registry.address, "1.0.0"))).await;
    expect(&client, &status, State::Failure, "").await;
    assert!(contains(&client.log("1").await, "set DOCKER_AUTH_CONFIG"));
    let exported =
        json!({"name": "DOCKER_AUTH_CONFIG", "value": docker_config(&registry.address, USER, PASSWORD)});
    let mut steps = vec![
        json!({"name": "log_in", "script": format!("cat > ${{{{ export_file }}}} <<'E'\n{exported}\nE\n")}),
    ];
    steps.extend(release(&registry.address, "1.0.0"));
    let status = project.run(&client, "2", &json!(steps)).await;
    expect(&client, &status, State::Success, "").await;
}

#[tokio::test]
async fn what_goes_to_this_machine_passes_no_proxy() {
    let Some(registry) = DockerRegistry::start_protected() else { return };
    let proxy = Scripted::start(|_| response("502 Bad Gateway", "", b""));
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let project = tool();
    let mut steps = release(&registry.address, "1.0.0");
    let address = format!("http://{}", proxy.address);
    steps[1]["env"] = json!({
        "DOCKER_AUTH_CONFIG": docker_config(&registry.address, USER, PASSWORD),
        "http_proxy": address, "HTTPS_PROXY": address, "ALL_PROXY": address,
    });
    let status = project.run(&client, "1", &json!(steps)).await;
    expect(&client, &status, State::Success, "").await;
    assert_eq!(proxy.heads(), [""; 0]);
}

#[tokio::test]
async fn a_cancel_ends_a_transfer_to_a_server_that_never_answers_and_secrets_stay_hidden() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let project = tool().variable("GROUP", "secret-group-name", true);
    let mut steps = release(&address, "1.0.0");
    steps[1]["inputs"]["to_repository"] = json!(format!("{address}/${{{{ vars.GROUP }}}}/tool"));
    client.try_run(project.request("1", &json!(steps))).await.unwrap();
    let (mut connection, _) = patiently("a connection", silent.accept()).await.unwrap();
    connection.read_u8().await.unwrap();
    // The arguments of the process name the file with its inputs.
    let inputs = format!("{}/tmp/", daemon.folder("1").canonicalize().unwrap().display());
    assert_eq!(processes_with(&inputs).len(), 1);
    assert_eq!(processes_with("secret-group-name"), [0_i32; 0], "an input is an argument");
    client.cancel("1").await;
    let status = client.ended("1").await;
    expect(&client, &status, State::Cancelled, "").await;
    wait_for("the end of the process", || processes_with(&inputs).is_empty().then_some(()));
    let results = client.steps("1").await;
    assert!(!contains(format!("{results:?}").as_bytes(), "secret-group-name"));
}

#[tokio::test]
async fn a_masked_input_is_masked_in_what_a_builtin_says() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let project = tool().variable("FILE", "secret-file-name", true);
    let steps = json!([{"name": "build", "func": "builtin://function/oci/build", "inputs": {
        "version": "1.0.0", "common": {"files": {"x": "${{ vars.FILE }}"}},
    }}]);
    let status = project.run(&client, "1", &steps).await;
    assert_eq!((state(&status), status.exit_code), (State::Failure, 1));
    let log = client.log("1").await;
    assert!(
        contains(&log, "cannot find the source") && contains(&log, "[MASKED]"),
        "{}",
        String::from_utf8_lossy(&log)
    );
    assert!(!contains(&log, "secret-file-name") && !status.message.contains("secret-file-name"));
}

#[tokio::test]
async fn a_builtin_runs_for_an_ordinary_user_after_its_program_was_replaced() {
    if !is_root("a_builtin_runs_for_an_ordinary_user_after_its_program_was_replaced") {
        return;
    }
    let place = Place::of(ORDINARY);
    let daemon = place.setup().start_in(place.path());
    let client = daemon.client().await;
    // Starts the keeper, which comes with the first job.
    client.run_to_end("1", &script("true")).await;
    std::fs::remove_file(&place.program).unwrap();
    let project = tool();
    std::os::unix::fs::chown(project.dir.path(), Some(ORDINARY), Some(ORDINARY)).unwrap();
    let steps = json!(release("localhost", "1.0.0")[..1]);
    let status = project.run(&client, "2", &steps).await;
    expect(&client, &status, State::Success, "").await;
    assert!(project.dir.path().join("function-image.tar").exists());
}

#[tokio::test]
async fn a_builtin_outlives_its_daemon() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let mut daemon = Daemon::start();
    let client = daemon.client().await;
    let project = tool();
    client.try_run(project.request("1", &json!(release(&address, "1.0.0")))).await.unwrap();
    let (connection, _) = patiently("a connection", silent.accept()).await.unwrap();
    daemon.kill();
    daemon.restart();
    let client = daemon.client().await;
    assert_eq!(state(&client.status("1").await), State::Running);
    drop((connection, silent));
    let status = client.ended("1").await;
    expect(&client, &status, State::Failure, "step \"publish\": exec: exit status 1").await;
    let results = client.steps("1").await;
    assert_eq!(results.last().unwrap().sub_step_results.len(), 2);
}
