//! Fetching of functions through the whole program: caching, sharing, cancelling, recovery (language.md §7.7).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::git_server::{GitServer, Repository, Trouble};
use crate::support::registry::{DockerRegistry, PLAIN_LAYER};
use crate::support::{Client, Daemon, Setup, is_root, logs, names, until, wait_for};
use futures_util::future::join_all;
use step_runner::pb::v1::{State, Status};

fn end(status: &Status) -> (State, i32) {
    (status.state(), status.exit_code)
}

/// Returns a setup without proxies and without Git configuration of the user.
fn setup() -> Setup {
    Setup::new().env("HOME", "/nonexistent").env("NO_PROXY", "*").env("no_proxy", "*")
}

/// A function that prints a file in its folder.
const PRINTS: &str = "spec: {}\n---\nexec: {command: [cat, '${{ func_dir }}/text']}\n";

/// A function that prints a line, waits for a file `go` in the job's directory, then prints a file in its own folder.
const WAITS: &str = "spec: {}\n---\nexec: {command: [sh, -c, 'echo in; until [ -e \"$0\" ]; do sleep 0.02; done; cat \
                     ${{ func_dir }}/text', '${{ env.GO }}']}\n";

/// Makes the repository `g/p` with the function `name`, tagged `v1`. Returns it and the commit.
fn publish(server: &GitServer, name: &str, function: &str) -> (Repository, String) {
    let repository = server.repository("g/p");
    repository.file(&format!("steps/{name}/func.yml"), function);
    let commit = repository.file(&format!("steps/{name}/text"), "one\n").commit("one");
    repository.git(&["tag", "v1"]);
    (repository, commit)
}

/// Returns a list with one step `s`.
fn step(server: &GitServer, name: &str, revision: &str) -> String {
    format!("[{{name: s, func: 'http://{}/g/p/-/{name}@{revision}'}}]", server.host())
}

/// Returns the fetching processes of the daemon `pid`.
fn workers_of(pid: i32) -> Vec<i32> {
    let is_child = |worker: &i32| {
        let stat = fs::read_to_string(format!("/proc/{worker}/stat")).unwrap_or_default();
        stat.rsplit(')').next().and_then(|rest| rest.split(' ').nth(2)?.parse().ok()) == Some(pid)
    };
    crate::support::processes_with("step-runner\0fetch").into_iter().filter(is_child).collect()
}

/// Returns the names of complete trees and of unfinished ones.
fn cached(daemon: &Daemon) -> (Vec<String>, Vec<String>) {
    let cache = daemon.state_dir().join("cache");
    (names(&cache.join("git")), names(&cache.join("tmp")))
}

/// Waits for the third request of a fetch of a tag: it asks for the pack, which the server never completes.
fn pack_is_under_way(server: &GitServer) {
    let mut requests = 0;
    wait_for("a pack under way", || {
        requests += server.seen().len();
        (requests == 3).then_some(())
    });
}

/// Starts a job whose fetch the server never completes. Returns the pid of its worker.
async fn hanging(daemon: &Daemon, client: &Client, server: &GitServer, id: &str) -> i32 {
    server.seen();
    server.trouble(Trouble::SilentPack);
    client.run_steps(id, &step(server, "hello", "v1")).await;
    pack_is_under_way(server);
    let [worker] = workers_of(daemon.pid())[..] else { panic!("one worker") };
    worker
}

#[tokio::test]
async fn a_function_runs_and_the_log_says_what_was_fetched() {
    let Some(server) = GitServer::start("a_function_runs_and_the_log_says_what_was_fetched") else { return };
    let (repository, one) = publish(&server, "hello", PRINTS);
    let daemon = setup().start();
    let client = daemon.client().await;
    let steps = step(&server, "hello", "main").replace("http://", "http://user:secret@");
    assert_eq!(end(&client.run_to_end("1", &steps).await), (State::Success, 0));
    let two = repository.file("steps/hello/text", "two\n").commit("two");
    assert_eq!(end(&client.run_to_end("2", &steps).await), (State::Success, 0));
    for (id, text, commit) in [("1", "one\n", one), ("2", "two\n", two)] {
        assert_eq!(client.output(id).await, text, "a branch is asked for each time");
        let log = client.log(id).await;
        let pin = format!("Fetched step name=s from {}/g/p@main: commit {commit}", server.host());
        assert_eq!(logs::daemon_lines(&log), [pin, "Running step name=s".to_owned()]);
        assert!(!crate::support::contains(&log, "secret"));
    }
    wait_for("two trees and nothing else", || {
        let (trees, under_way) = cached(&daemon);
        (trees.len() == 2 && under_way.is_empty()).then_some(())
    });
}

#[tokio::test]
async fn what_is_not_there_is_said_by_name() {
    let Some(server) = GitServer::start("what_is_not_there_is_said_by_name") else { return };
    publish(&server, "hello", PRINTS);
    let daemon = setup().start();
    let client = daemon.client().await;
    let host = server.host();
    for (id, steps, expected) in [
        ("1", step(&server, "none", "v1"), format!("no func.yml or step.yml in steps/none of {host}/g/p@v1")),
        ("2", step(&server, "hello", "v9"), format!("cannot find revision \"v9\" in {host}/g/p")),
        (
            "3",
            format!("[{{name: s, func: {{git: {{url: 'http://{host}/g/p', rev: v1, dir: ../..}}}}}}]"),
            format!("\"../..\" is outside of {host}/g/p@v1"),
        ),
    ] {
        let status = client.run_to_end(id, &steps).await;
        assert_eq!(end(&status), (State::Failure, -1));
        assert!(status.message.contains(&expected), "{}", status.message);
    }
}

#[tokio::test]
async fn a_credential_that_a_step_exports_serves_the_next_fetch() {
    let test = "a_credential_that_a_step_exports_serves_the_next_fetch";
    let Some(server) = GitServer::start(test) else { return };
    publish(&server, "hello", PRINTS);
    server.require("user", "secret");
    let daemon = setup().start();
    let client = daemon.client().await;
    let status = client.run_to_end("anonymous", &step(&server, "hello", "v1")).await;
    assert_eq!(end(&status), (State::Failure, -1));
    let netrc = daemon.file("netrc");
    fs::write(&netrc, "machine 127.0.0.1 login user password secret\n").unwrap();
    let export = format!("{{\"name\":\"NETRC\",\"value\":\"{}\"}}", netrc.display());
    let steps = format!(
        "[{{name: login, script: 'echo ''{}'' > ${{{{ export_file }}}}'}}, {}",
        export.replace('\'', "''"),
        step(&server, "hello", "v1").trim_start_matches('[')
    );
    let status = client.run_to_end("logged-in", &steps).await;
    assert_eq!(end(&status), (State::Success, 0), "{status:?}");
    assert_eq!(client.output("logged-in").await, "one\n");
}

#[tokio::test]
async fn twenty_jobs_at_once_share_one_transfer() {
    let Some(server) = GitServer::start("twenty_jobs_at_once_share_one_transfer") else { return };
    publish(&server, "hello", PRINTS);
    let daemon = setup().start();
    let client = daemon.client().await;
    let steps = step(&server, "hello", "v1");
    let run = async |id: usize| client.run_to_end(&id.to_string(), &steps).await;
    for status in join_all((0..20).map(run)).await {
        assert_eq!(end(&status), (State::Success, 0), "{status:?}");
    }
    let seen = server.seen();
    assert_eq!(seen.iter().filter(|seen| seen.pack).count(), 1);
    assert!(
        seen.iter().filter(|seen| seen.target.contains("info/refs")).count() >= 20,
        "each asks for itself"
    );
    assert_eq!(cached(&daemon).0.len(), 1);
}

/// Starts a registry with the image `g/p:1`. Returns it and the digest.
async fn registry() -> Option<(DockerRegistry, String)> {
    let start = || {
        let registry = DockerRegistry::start()?;
        let mut tar = tar::Builder::new(Vec::new());
        for (path, content) in [("hello/func.yml", PRINTS), ("hello/text", "one\n")] {
            let mut header = tar::Header::new_ustar();
            header.set_size(content.len() as u64);
            header.set_mode(0o644);
            tar.append_data(&mut header, path, content.as_bytes()).unwrap();
        }
        let digest = registry.push("g/p", "1", &[(PLAIN_LAYER, tar.into_inner().unwrap())]);
        Some((registry, digest))
    };
    tokio::task::spawn_blocking(start).await.unwrap()
}

#[tokio::test]
async fn an_image_runs_and_only_its_digest_does_without_the_registry() {
    let Some((registry, digest)) = registry().await else { return };
    let address = registry.address.clone();
    let mut daemon = setup().start();
    let client = daemon.client().await;
    let by_tag = format!("[{{name: s, func: '{address}/g/p:1 hello'}}]");
    let by_digest = format!("[{{name: s, func: '{address}/g/p@{digest} hello'}}]");
    for (id, steps, what) in [("tag", &by_tag, ":1"), ("digest", &by_digest, &format!("@{digest}"))] {
        assert_eq!(end(&client.run_to_end(id, steps).await), (State::Success, 0));
        assert_eq!(client.output(id).await, "one\n");
        let pin = format!("Fetched step name=s from {address}/g/p{what}: digest {digest}");
        assert_eq!(logs::daemon_lines(&client.log(id).await)[0], pin);
    }
    assert_eq!(names(&daemon.state_dir().join("cache/oci")).len(), 1);
    drop(registry);
    assert_eq!(end(&client.run_to_end("again", &by_digest).await), (State::Success, 0));
    assert_eq!(end(&client.run_to_end("stale", &by_tag).await), (State::Failure, -1));
    // The daemon keeps in memory only who can read what, so it asks the registry again after a restart.
    daemon.kill();
    daemon.restart();
    let status = daemon.client().await.run_to_end("restarted", &by_digest).await;
    assert_eq!(end(&status), (State::Failure, -1));
}

#[tokio::test]
async fn a_cancel_ends_a_fetch_at_once() {
    let Some(server) = GitServer::start("a_cancel_ends_a_fetch_at_once") else { return };
    publish(&server, "hello", PRINTS);
    let daemon = setup().start();
    let client = daemon.client().await;
    let worker = hanging(&daemon, &client, &server, "1").await;
    client.cancel("1").await;
    assert_eq!(end(&client.ended("1").await), (State::Cancelled, -2));
    until("the worker is gone", || !crate::support::is_alive(worker)).await;
    until("its files are gone", || cached(&daemon).1.is_empty()).await;
    assert!(cached(&daemon).0.is_empty());
    server.trouble(Trouble::None);
    assert_eq!(end(&client.run_to_end("2", &step(&server, "hello", "v1")).await), (State::Success, 0));
}

#[tokio::test]
async fn a_killed_daemon_leaves_neither_worker_nor_half_a_tree_and_the_next_one_fetches_again() {
    let test = "a_killed_daemon_leaves_neither_worker_nor_half_a_tree";
    let Some(server) = GitServer::start(test) else { return };
    publish(&server, "hello", PRINTS);
    let mut daemon = setup().start();
    let worker = hanging(&daemon, &daemon.client().await, &server, "1").await;
    daemon.kill();
    until("the worker is gone", || !crate::support::is_alive(worker)).await;
    assert!(cached(&daemon).0.is_empty());
    server.trouble(Trouble::None);
    daemon.restart();
    let client = daemon.client().await;
    assert_eq!(end(&client.ended("1").await), (State::Success, 0));
    assert_eq!(client.output("1").await, "one\n");
    assert_eq!(cached(&daemon).0.len(), 1);
    until("what was left is gone", || cached(&daemon).1.is_empty()).await;
}

#[tokio::test]
async fn a_tree_is_evicted_when_no_job_uses_it_and_no_earlier() {
    let Some(server) = GitServer::start("a_tree_is_evicted_when_no_job_uses_it_and_no_earlier") else {
        return;
    };
    let (repository, _) = publish(&server, "waits", WAITS);
    repository.file("steps/hello/func.yml", PRINTS).file("steps/hello/text", "two\n").commit("two");
    let mut daemon = setup().option("cache-limit", "1").start();
    let go = daemon.file("go");
    let client = daemon.client().await;
    let uses = step(&server, "waits", "v1");
    client.run_steps("uses", &format!("{{env: {{GO: '{}'}}, run: {uses}}}", go.display())).await;
    client.prints("uses", " 01O in\n").await;
    let other = step(&server, "hello", "main");
    for round in 1..=2 {
        assert_eq!(end(&client.run_to_end(&format!("other-{round}"), &other).await), (State::Success, 0));
        until("the other tree is evicted", || cached(&daemon).0.len() == 1).await;
    }
    // A restarted daemon knows which tree the job uses.
    daemon.kill();
    daemon.restart();
    let client = daemon.client().await;
    assert_eq!(end(&client.run_to_end("other-3", &other).await), (State::Success, 0));
    until("the other tree is evicted", || cached(&daemon).0.len() == 1).await;
    fs::write(&go, "").unwrap();
    assert_eq!(end(&client.ended("uses").await), (State::Success, 0));
    assert_eq!(client.output("uses").await, "in\none\n");
    until("nothing is left", || cached(&daemon) == (vec![], vec![])).await;
}

#[test]
fn a_run_without_daemon_fetches_and_leaves_nothing_behind() {
    let Some(server) = GitServer::start("a_run_without_daemon_fetches_and_leaves_nothing_behind") else {
        return;
    };
    publish(&server, "hello", PRINTS);
    let folder = tempfile::tempdir().unwrap();
    let temporary: PathBuf = folder.path().join("tmp");
    fs::create_dir(&temporary).unwrap();
    let document = folder.path().join("func.yml");
    fs::write(&document, format!("spec: {{}}\n---\nrun: {}\n", step(&server, "hello", "v1"))).unwrap();
    let run = |document: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_step-runner"));
        command.arg("run").arg(document).current_dir(folder.path()).env("TMPDIR", &temporary);
        command.env("HOME", "/nonexistent").env("NO_PROXY", "*").env("no_proxy", "*");
        command
    };
    let output = run(&document).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("one"));
    wait_for("an empty folder", || names(&temporary).is_empty().then_some(()));
    // `run` is killed during a fetch.
    server.trouble(Trouble::SilentPack);
    server.seen();
    let mut killed = run(&document).spawn().unwrap();
    pack_is_under_way(&server);
    let workers = workers_of(killed.id() as i32);
    assert_eq!(workers.len(), 1);
    killed.kill().unwrap();
    killed.wait().unwrap();
    wait_for("the worker's end", || {
        workers.iter().all(|worker| !crate::support::is_alive(*worker)).then_some(())
    });
    wait_for("an empty folder", || names(&temporary).is_empty().then_some(()));
}

#[tokio::test]
async fn fault_72_nothing_that_a_step_exports_reaches_what_fetches() {
    let test = "fault_72_nothing_that_a_step_exports_reaches_what_fetches";
    let Some(server) = GitServer::start(test) else { return };
    publish(&server, "hello", "spec: {}\n---\nexec: {command: [/bin/echo, fetched]}\n");
    let daemon = setup().start();
    let client = daemon.client().await;
    let (canary, tools, home) = (daemon.file("canary"), daemon.file("tools"), daemon.file("home"));
    fs::create_dir(&tools).unwrap();
    fs::create_dir(&home).unwrap();
    let trap = format!("#!/bin/sh\necho \"$0\" >> {}\nexit 1\n", canary.display());
    for tool in ["git", "ssh", "tar", "gzip", "zstd", "unzip", "curl", "askpass", "env.sh", "step-runner"] {
        fs::write(tools.join(tool), &trap).unwrap();
        let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(tools.join(tool), executable).unwrap();
    }
    let config = format!(
        "[core]\n sshCommand = {0}/ssh\n fsmonitor = {0}/git\n hooksPath = {0}\n[credential]\n helper = {0}/askpass\n\
         [url \"ext::{0}/git\"]\n insteadOf = http://\n",
        tools.display()
    );
    fs::write(home.join(".gitconfig"), &config).unwrap();
    let tool = |name: &str| tools.join(name).to_str().unwrap().to_owned();
    let config = home.join(".gitconfig").to_str().unwrap().to_owned();
    let exports = [
        ("PATH", tools.to_str().unwrap().to_owned()),
        ("LD_PRELOAD", tool("evil.so")),
        ("LD_LIBRARY_PATH", tools.to_str().unwrap().to_owned()),
        ("LD_AUDIT", tool("evil.so")),
        ("BASH_ENV", tool("env.sh")),
        ("ENV", tool("env.sh")),
        ("NODE_OPTIONS", "--require=/evil.js".to_owned()),
        ("GIT_SSH_COMMAND", tool("ssh")),
        ("GIT_ASKPASS", tool("askpass")),
        ("SSH_ASKPASS", tool("askpass")),
        ("GIT_PROXY_COMMAND", tool("git")),
        ("GIT_EXEC_PATH", tools.to_str().unwrap().to_owned()),
        ("GIT_CONFIG_GLOBAL", config),
        ("GIT_CONFIG_COUNT", "1".to_owned()),
        ("GIT_CONFIG_KEY_0", "core.sshCommand".to_owned()),
        ("GIT_CONFIG_VALUE_0", tool("ssh")),
        ("HOME", home.to_str().unwrap().to_owned()),
    ];
    let lines: String = exports
        .iter()
        .map(|(name, value)| serde_json::json!({"name": name, "value": value}).to_string() + "\n")
        .collect();
    fs::write(daemon.file("exports"), lines).unwrap();
    let export = format!("cat {} > ${{{{ export_file }}}}", daemon.file("exports").display());
    let func = format!("http://{}/g/p/-/hello@v1", server.host());
    let steps = serde_json::json!([{"name": "a", "script": export}, {"name": "b", "func": func}]).to_string();

    // Starts a fetch that hangs, so that its worker keeps running.
    server.seen();
    server.trouble(Trouble::SilentPack);
    client.run_steps("hangs", &steps).await;
    pack_is_under_way(&server);
    let [worker] = workers_of(daemon.pid())[..] else { panic!("one worker") };
    // Other processes of the user cannot read the worker's environment or memory.
    if is_root(test) {
        assert_eq!(fs::read(format!("/proc/{worker}/environ")).unwrap(), b"", "its environment");
        let maps = fs::read_to_string(format!("/proc/{worker}/maps")).unwrap();
        assert!(!maps.contains("evil"), "{maps}");
    }
    client.cancel("hangs").await;
    client.ended("hangs").await;
    server.trouble(Trouble::None);
    // Now the pack arrives whole.
    assert_eq!(end(&client.run_to_end("works", &steps).await), (State::Success, 0));
    assert_eq!(client.output("works").await, "fetched\n");
    assert!(!canary.exists(), "{:?}", fs::read_to_string(&canary));
}
