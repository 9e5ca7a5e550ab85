//! Functions from Git repositories, run by the real program (language.md §7.3, §7.7).

use crate::git_server::{GitServer, Repository};
use crate::support::{Client, Daemon, Setup, logs, request, state, tree};
use serde_json::json;
use step_runner::pb::v1::{State, Status};

/// Returns a function that prints `text`.
fn prints(text: &str) -> String {
    format!("spec: {{}}\n---\nexec: {{command: [echo, {text}]}}\n")
}

/// Returns a list with one step that uses `func`.
fn uses(func: &str) -> String {
    json!([{"name": "s", "func": func}]).to_string()
}

/// Starts a daemon without proxies and without Git configuration of the user.
fn daemon() -> Daemon {
    let home = tempfile::tempdir().unwrap();
    Setup::new().env("HOME", home.path().to_str().unwrap()).env("NO_PROXY", "*").env("no_proxy", "*").start()
}

#[track_caller]
fn succeeded(status: &Status) {
    assert_eq!(state(status), State::Success, "{}", status.message);
}

/// Runs a job that must fail. Returns its message.
async fn failure(client: &Client, id: &str, func: &str) -> String {
    let status = client.run_to_end(id, &uses(func)).await;
    assert_eq!(state(&status), State::Failure, "{}", status.message);
    status.message
}

#[tokio::test]
async fn two_revisions_of_a_repository_run_at_the_same_time() {
    let Some(server) = GitServer::start("two_revisions_of_a_repository") else { return };
    let repository = server.repository("g/p");
    // Each function waits until the other one runs, then prints the file beside it.
    let meets = |own: &str, other: &str| {
        let script =
            format!("touch \"$0/{own}\"; until test -e \"$0/{other}\"; do sleep 0.01; done; cat \"$1/text\"");
        let command = json!(["sh", "-c", script, "${{ inputs.place }}", "${{ func_dir }}"]);
        format!("spec: {{inputs: {{place: {{type: string}}}}}}\n---\nexec: {{command: {command}}}\n")
    };
    repository.file("steps/meet/func.yml", &meets("one", "two")).file("steps/meet/text", "first").commit("1");
    repository.git(&["tag", "v1"]);
    repository
        .file("steps/meet/func.yml", &meets("two", "one"))
        .file("steps/meet/text", "second")
        .commit("2");
    let daemon = daemon();
    let client = daemon.client().await;
    let place = daemon.file("place");
    std::fs::create_dir(&place).unwrap();
    for (id, revision) in [("1", "v1"), ("2", "main")] {
        let func = format!("{}/-/meet@{revision}", server.url("g/p"));
        let steps = json!([{"name": "s", "func": func, "inputs": {"place": place}}]);
        client.run_steps(id, &steps.to_string()).await;
    }
    for (id, text) in [("1", "first"), ("2", "second")] {
        succeeded(&client.ended(id).await);
        assert_eq!(client.output(id).await.trim_end(), text);
    }
}

#[tokio::test]
async fn a_branch_that_moved_is_seen_at_the_next_load_and_a_tree_is_sent_once() {
    let Some(server) = GitServer::start("a_branch_that_moved_is_seen") else { return };
    let repository = server.repository("p");
    repository.file("steps/func.yml", &prints("first")).commit("1");
    let daemon = daemon();
    let client = daemon.client().await;
    let func = format!("{}@main", server.url("p"));
    for (id, packs) in [("1", 1), ("2", 0)] {
        succeeded(&client.run_to_end(id, &uses(&func)).await);
        assert_eq!((client.output(id).await.as_str(), server.packs()), ("first\n", packs));
    }
    repository.file("steps/func.yml", &prints("second")).commit("2");
    succeeded(&client.run_to_end("3", &uses(&func)).await);
    assert_eq!((client.output("3").await.as_str(), server.packs()), ("second\n", 1));
}

#[tokio::test]
async fn tags_and_commits_are_found_in_short_and_long_form() {
    let Some(server) = GitServer::start("tags_and_commits_are_found") else { return };
    let repository = server.repository("p");
    let first = repository.file("steps/a/my.yml", &prints("first")).commit("1");
    repository.file("steps/a/my.yml", &prints("second")).commit("2");
    repository.git(&["tag", "-a", "-m", "two", "v2"]);
    repository.file("steps/a/my.yml", &prints("third")).commit("3");
    let daemon = daemon();
    let client = daemon.client().await;
    let url = server.url("p");
    for (id, revision, text) in
        [("1", first.as_str(), "first\n"), ("2", first.get(..8).unwrap(), "first\n"), ("3", "v2", "second\n")]
    {
        succeeded(&client.run_to_end(id, &uses(&format!("{url}/-/a/my.yml@{revision}"))).await);
        assert_eq!(client.output(id).await, text);
    }
    let git = json!({"url": url, "rev": "${{ \"v2\" }}", "dir": "steps/a", "file": "my.yml"});
    let steps = json!([{"name": "s", "func": {"git": git}}]).to_string();
    succeeded(&client.run_to_end("4", &steps).await);
    assert_eq!(client.output("4").await, "second\n");
}

#[tokio::test]
async fn a_function_reaches_others_of_its_tree_and_nothing_outside() {
    let Some(server) = GitServer::start("a_function_reaches_others_of_its_tree") else { return };
    let repository = server.repository("p");
    let daemon = daemon();
    let outside = daemon.file("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("func.yml"), prints("escaped")).unwrap();
    let outside = outside.to_str().unwrap();
    let up = "../".repeat(40);
    let runs = |func: &str| format!("spec: {{}}\n---\nrun: [{{name: inner, func: {func}}}]\n");
    repository
        .file("steps/outer/func.yml", &runs("../inner"))
        .file("steps/inner/func.yml", &prints("inside"))
        .file("steps/relative/func.yml", &runs(&format!("{up}.{outside}")))
        .file("steps/absolute/func.yml", &runs(outside))
        .file("steps/above/func.yml", &runs("../../.."))
        .link("steps/link", &format!("{up}.{outside}"))
        .commit("1");
    let client = daemon.client().await;
    let func = |name: &str| format!("{}/-/{name}@main", server.url("p"));
    succeeded(&client.run_to_end("1", &uses(&func("outer"))).await);
    assert_eq!(client.output("1").await, "inside\n");
    for name in ["relative", "absolute", "above"] {
        let message = failure(&client, name, &func(name)).await;
        assert!(message.contains("leaves the tree"), "{name}: {message}");
    }
    for name in ["link", "../../outside"] {
        let message = failure(&client, name.trim_start_matches("../"), &func(name)).await;
        assert!(message.contains("no func.yml") || message.contains("is outside of"), "{name}: {message}");
    }
}

#[tokio::test]
async fn credentials_of_a_private_repository_show_nowhere() {
    let Some(server) = GitServer::start("credentials_of_a_private_repository") else { return };
    let repository = server.repository("p");
    repository.file("steps/func.yml", &prints("let in")).commit("1");
    repository.git(&["tag", "v1"]);
    server.require("someone", "hunter2");
    let daemon = daemon();
    let client = daemon.client().await;
    let func = |login: &str, revision: &str| format!("{}@{revision}", server.url_as(login, "p"));
    succeeded(&client.run_to_end("good", &uses(&func("someone:hunter2", "v1"))).await);
    assert_eq!(client.output("good").await, "let in\n");
    let wrong = failure(&client, "wrong", &func("someone:hunter2222", "v1")).await;
    assert!(wrong.contains(&format!("cannot fetch from {}/p: credentials", server.host())), "{wrong}");
    let unknown = failure(&client, "unknown", &func("someone:hunter2", "v9")).await;
    assert!(unknown.contains(&format!("cannot find revision \"v9\" in {}/p", server.host())), "{unknown}");
    let missing = failure(&client, "missing", &format!("{}@v1", server.url("p"))).await;
    assert!(missing.contains("credentials are missing"), "{missing}");
    for id in ["good", "wrong", "unknown", "missing"] {
        let log = String::from_utf8(client.log(id).await).unwrap();
        for text in [&log, &client.status(id).await.message, &daemon.said()] {
            assert!(!text.contains("hunter2") && !text.contains("someone"), "{id}: {text}");
        }
        let results = format!("{:?}", client.steps(id).await);
        assert!(!results.contains("hunter2"), "{id}: {results}");
    }
    let kept = tree(&daemon.state_dir().join("cache"));
    assert!(kept.values().all(|content| !crate::support::contains(content, "hunter2")), "in the cache");
}

#[tokio::test]
async fn an_earlier_step_can_leave_credentials_for_a_later_one() {
    let Some(server) = GitServer::start("an_earlier_step_can_leave_credentials") else { return };
    let repository: Repository = server.repository("p");
    repository.file("steps/func.yml", &prints("let in")).commit("1");
    server.require("someone", "hunter2");
    let daemon = daemon();
    let client = daemon.client().await;
    let home = daemon.file("home");
    std::fs::create_dir(&home).unwrap();
    let netrc = "echo machine 127.0.0.1 login someone password hunter2 > \"$HOME/.netrc\"";
    let func = format!("{}@main", server.url("p"));
    let steps = json!([{"name": "a", "script": netrc}, {"name": "b", "func": func}]).to_string();
    let mut request = request("1", &steps);
    request.env.insert("HOME".to_owned(), home.to_str().unwrap().to_owned());
    client.try_run(request).await.unwrap();
    succeeded(&client.ended("1").await);
    let log = client.log("1").await;
    assert_eq!(String::from_utf8(logs::source(&log, "01O")).unwrap(), "let in\n");
}

/// Texts that could make Git or its helpers run a command, read a file, or prompt. `CANARY` stands for a file that a
/// command would make.
const PAYLOADS: [&str; 60] = [
    "-",
    "--",
    "-u",
    "--upload-pack=touch CANARY",
    "--upload-pack=touch${IFS}CANARY",
    "-utouch${IFS}CANARY",
    "--receive-pack=touch CANARY",
    "--exec=touch CANARY",
    "--config=core.sshCommand=touch CANARY",
    "-ccore.sshCommand=touch${IFS}CANARY",
    "--config=core.fsmonitor=touch CANARY",
    "--config=protocol.ext.allow=always",
    "--template=/tmp",
    "--reference=/",
    "--separate-git-dir=CANARY",
    "--output=CANARY",
    "-oProxyCommand=touch CANARY",
    "-oProxyCommand=touch${IFS}CANARY:p",
    "ext::sh -c touch% CANARY",
    "ext::sh -c touch%20CANARY",
    "ext::touch CANARY",
    "ext::touch${IFS}CANARY",
    "git::ext::touch CANARY",
    "http::ext::touch CANARY",
    "https::ext::touch CANARY",
    "fd::7",
    "fd::0,1/x",
    "testgit::CANARY",
    "transport::CANARY",
    "hg::CANARY",
    "file:///etc",
    "file://CANARY",
    "FILE:///etc",
    "file:CANARY",
    "/",
    "/etc/passwd",
    "../../../../../etc",
    "~/.ssh",
    "~root",
    "ssh://-oProxyCommand=touch${IFS}CANARY/p",
    "ssh://-oProxyCommand=touch%20CANARY/p",
    "ssh://h/-oProxyCommand=touch${IFS}CANARY",
    "ssh://u@h/p",
    "git+ssh://-oProxyCommand=touch${IFS}CANARY/p",
    "u@-oProxyCommand=touch${IFS}CANARY:p",
    "h:p",
    "git://127.0.0.1:1/p",
    "git://-x/p",
    "rsync://127.0.0.1/p",
    "ftp://127.0.0.1:1/p",
    "http://-oProxyCommand=x/p",
    "http://--upload-pack=touch/p",
    "http://127.0.0.1:1/p?x=$(touch CANARY)",
    "http://127.0.0.1:1/p#`touch CANARY`",
    "http://127.0.0.1:1/p;touch CANARY",
    "http://127.0.0.1:1/$(touch${IFS}CANARY)",
    "http://$(touch${IFS}CANARY)/p",
    "http://`touch CANARY`/p",
    "http://127.0.0.1:1/p\ntouch CANARY",
    "|touch CANARY",
];

#[tokio::test]
async fn fault_68_no_reference_makes_anything_run_or_be_read() {
    let Some(server) = GitServer::start("fault_68_no_reference_makes_anything_run_or_be_read") else {
        return;
    };
    let repository = server.repository("p");
    repository.file("steps/func.yml", &prints("fetched")).commit("1");
    let daemon = daemon();
    let client = daemon.client().await;
    let canary = daemon.file("canary");
    let work_dir = daemon.file("work");
    std::fs::create_dir(&work_dir).unwrap();
    let before = tree(&work_dir);
    let url = server.url("p");
    let mut jobs = 0;
    for payload in PAYLOADS {
        let payload = payload.replace("CANARY", canary.to_str().unwrap());
        let mut funcs = vec![
            json!(payload),
            json!(format!("{payload}@main")),
            json!({"git": {"url": payload, "rev": "main"}}),
        ];
        // Payloads that look like options, passed where the server's references are listed.
        if payload.starts_with("-u") || payload.starts_with("--o") {
            funcs.extend([
                json!({"git": {"url": url, "rev": payload}}),
                json!({"git": {"url": url, "rev": "main", "dir": payload}}),
                json!(format!("{url}@{payload}")),
            ]);
        }
        for func in funcs {
            jobs += 1;
            let id = jobs.to_string();
            let steps = json!([{"name": "s", "func": func}]).to_string();
            let mut run = request(&id, &steps);
            run.work_dir = work_dir.to_str().unwrap().to_owned();
            match client.try_run(run).await {
                Ok(()) => {
                    let status = client.ended(&id).await;
                    assert_eq!(state(&status), State::Failure, "{func}: {}", status.message);
                    client.finish(&id).await;
                }
                Err(refusal) => assert_eq!(refusal.code(), tonic::Code::InvalidArgument, "{func}: {refusal}"),
            }
            assert!(!canary.exists(), "{func}");
        }
    }
    assert_eq!(tree(&work_dir), before);
    // The same server still works.
    succeeded(&client.run_to_end("good", &uses(&format!("{url}@main"))).await);
}
