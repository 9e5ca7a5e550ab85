//! Two cells of one instance behind a router: every request reaches the cell of its token, and no other one.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use crate::cell_scene::{Cells, count, token};
use crate::fake_gitlab::cell::old_job_token;
use crate::fake_gitlab::http::Answer;
use crate::fake_gitlab::{ACCESS, FakeGitlab, Fault, REGISTRATION, RUNNER};
use crate::git_server::GitServer;
use crate::jobs::waits_for;
use crate::sources::tools;
use crate::support::programs::write_program;
use crate::support::{tree, wait_for};

const ASK: &str = "POST /jobs/request";

#[test]
fn c01_jobs_of_two_cells_run_at_the_same_time_each_at_its_own() {
    let cells = Cells::start("concurrent = 4", "");
    let go_on = cells.scene.path("go-on");
    let jobs = [cells.one(), &cells.two]
        .map(|cell| (cell, cell.add_script(&[&waits_for(&go_on, "begun"), "echo done"])));
    for (cell, job) in jobs {
        cell.wait_for("both to run", |world| world.jobs[&job].text().contains(" begun\n").then_some(()));
    }
    fs::write(&go_on, "").unwrap();
    for (cell, job) in jobs {
        assert_eq!(cell.ended(job).state, "success");
    }
    cells.scene.wait_until_closed();
    for ((cell, job), (_, others)) in [(jobs[0], jobs[1]), (jobs[1], jobs[0])] {
        assert!(
            count(cell, &format!("PATCH /jobs/{job}/trace")) > 0
                && count(cell, &format!("PUT /jobs/{job}")) > 1
        );
        assert!(!cell.world().calls().iter().any(|call| call.contains(&others.to_string())));
    }
    cells.assert_apart(None);
}

/// Waits until a cell holds a request for a job. Returns the number of such requests.
fn held(cell: &FakeGitlab) -> usize {
    cell.wait_for("a request that is held", |world| {
        (world.held > 0).then(|| world.calls().iter().filter(|call| *call == ASK).count())
    })
}

#[test]
fn c02_a_job_comes_by_the_poll_that_its_cell_holds_and_the_other_poll_stays() {
    let cells = Cells::start("concurrent = 4", "");
    for cell in [cells.one(), &cells.two] {
        cell.change(|world| world.hold = Duration::from_mins(10));
    }
    let asked = [cells.one(), &cells.two].map(held);
    let job = cells.two.add_script(&["echo hello"]);
    // That the job came by the held request says more than a time: nothing was waited for.
    assert_eq!(cells.two.requests_before(job, ASK), asked[1]);
    assert_eq!(cells.two.ended(job).state, "success");
    assert_eq!((held(cells.one()), cells.one().world().held), (asked[0], 1));
    cells.assert_apart(None);
}

#[test]
fn c03_tickets_come_back_byte_for_byte_and_each_to_its_cell() {
    let cells = Cells::start("concurrent = 4", "");
    let printable: String = (b'!'..=b'~').map(char::from).collect();
    let long = printable.repeat(44);
    cells.two.change(|world| world.ticket.clone_from(&long));
    for cell in [cells.one(), &cells.two] {
        cell.change(|world| world.hold = Duration::from_mins(10));
        held(cell);
    }
    for (cell, wanted) in
        [(cells.one(), "ticket/0+=;".to_owned()), (&cells.two, format!("{long}ticket/0+=;"))]
    {
        let world = cell.world();
        let last = world.seen.last().unwrap();
        assert_eq!(last.headers.get("x-gitlab-last-update"), Some(&wanted));
        assert_eq!(last.json()["last_update"], json!(wanted));
    }
    assert!(long.len() > 4 << 10);
    for seen in &cells.one().world().seen {
        let ticket = seen.headers.get("x-gitlab-last-update");
        assert!(ticket.is_none_or(|ticket| ticket.starts_with("ticket/")), "cell 1 sees a ticket of cell 2");
    }
    cells.assert_apart(None);
}

#[test]
fn c04_commands_reach_the_cell_of_the_token_or_of_the_path_or_the_default() {
    let cells = Cells::new();
    let url = cells.url();
    for (name, content) in [("two", token(2).as_str()), ("registration", REGISTRATION), ("access", ACCESS)] {
        fs::write(cells.scene.path(name), content).unwrap();
    }
    let file = |name: &str| cells.scene.path(name).display().to_string();
    let run = |words: &[&str]| {
        let (code, said) = cells.run(words);
        assert_eq!(code, Some(0), "{words:?}: {said}");
    };
    run(&["register", "--url", &url, "--token-file", &file("two"), "--name", "two"]);
    run(&["verify"]);
    let job = cells.two.add_script(&["echo hello"]);
    run(&["agent", "--once"]);
    assert_eq!(cells.two.ended(job).state, "success");
    run(&["unregister", "--name", "two"]);
    assert_eq!(cells.two.world().calls().last().unwrap(), "DELETE /runners/managers");
    assert_eq!(cells.one().world().calls(), Vec::<String>::new());
    let create = ["--create", "--runner-type", "instance_type", "--access-token-file"];
    for (base, cell) in [(url.clone(), cells.one()), (format!("{url}/cell-2"), &cells.two)] {
        for (words, call) in [
            (vec!["--registration-token-file", &file("registration")], "POST /runners"),
            ([&create[..], &[&file("access")]].concat(), "POST /user/runners"),
        ] {
            let before = [cells.one(), &cells.two].map(|cell| cell.world().seen.len());
            run(&[&["register", "--url", &base, "--name", call], &words[..]].concat());
            let calls = cell.world().calls();
            assert!(calls.iter().rev().take(2).any(|seen| seen == call), "{base}: {calls:?}");
            let other = usize::from(std::ptr::eq(cell, cells.one()));
            assert_eq!([cells.one(), &cells.two][other].world().seen.len(), before[other], "{base} {call}");
        }
    }
    cells.assert_apart(None);
}

#[test]
fn c04_a_token_is_replaced_by_the_cell_that_gave_it() {
    let mut cells = Cells::new();
    let life = "token_obtained_at = 2026-01-01T00:00:00Z\ntoken_expires_at = 2026-01-02T00:00:00Z";
    cells.configure("", &[("two", &cells.url(), &token(2), life)]);
    cells.scene.start();
    wait_for("another token", || (!cells.scene.config().contains(&token(2))).then_some(()));
    let job = cells.two.add_script(&["echo hello"]);
    assert_eq!(cells.two.ended(job).state, "success");
    assert_eq!(count(&cells.two, "POST /runners/reset_authentication_token"), 1);
    assert!(cells.one().world().seen.is_empty());
    cells.assert_apart(None);
}

/// Gives a job's payload a token of the older form.
fn with_old_token(job: &mut Value) {
    let old = old_job_token(job["id"].as_u64().unwrap());
    let new = job["token"].as_str().unwrap().to_owned();
    *job = serde_json::from_str(&job.to_string().replace(&new, &old)).unwrap();
}

#[test]
fn c05_an_old_job_token_works_in_the_default_cell_alone() {
    // One slot: a job that another cell refuses must not keep it.
    let cells = Cells::start("concurrent = 1", "");
    let started = cells.scene.path("started");
    let lost = cells.two.add(|job| {
        with_old_token(job);
        job["steps"][0]["script"] = json!([format!("touch {}", started.display())]);
    });
    let claim = format!("PUT /jobs/{lost}");
    cells.one().wait_for("the claim at the wrong cell", |world| world.calls().contains(&claim).then_some(()));
    for (cell, change) in
        [(cells.one(), None), (cells.one(), Some(with_old_token as fn(&mut Value))), (&cells.two, None)]
    {
        let job = cell.add(change.unwrap_or(|_| {}));
        assert_eq!(cell.ended(job).state, "success");
    }
    cells.scene.wait_until_closed();
    assert_eq!((count(cells.one(), &claim), count(&cells.two, &claim), started.exists()), (1, 0, false));
    assert_eq!(cells.two.world().jobs[&lost].state, "pending");
    cells.assert_apart(Some(&old_job_token(lost)));
}

#[test]
fn c06_each_dependency_is_downloaded_with_its_own_token_and_no_other() {
    let cells = Cells::start("", "");
    let made = ["first", "second"].map(|name| {
        let job = cells.two.add(|job| {
            job["steps"][0]["script"] = json!([format!("echo {name} >{name}")]);
            job["artifacts"] = json!([{
                "name": "made", "paths": [name], "when": "on_success", "artifact_type": "archive", "artifact_format": "zip",
            }]);
        });
        let ended = cells.two.ended(job);
        assert_eq!(ended.state, "success", "{}", ended.text());
        (job, ended.token)
    });
    let job = cells.two.add(|job| {
        job["steps"][0]["script"] = json!(["cat first second"]);
        let variables = job["variables"].as_array_mut().unwrap();
        variables.push(json!({"key": "GIT_STRATEGY", "value": "empty"}));
        let dependencies = made.iter().map(|(id, token)| {
            json!({"id": id, "token": token, "name": "made", "artifacts_file": {"filename": "made.zip", "size": 100}})
        });
        job["dependencies"] = dependencies.collect();
    });
    let ended = cells.two.ended(job);
    assert!(ended.state == "success" && ended.text().contains(" second\n"), "{}", ended.text());
    let world = cells.two.world();
    for (id, token) in &made {
        let path = format!("/jobs/{id}/artifacts");
        let downloads: Vec<_> =
            world.seen.iter().filter(|seen| seen.method == "GET" && seen.path.starts_with(&path)).collect();
        assert_eq!(downloads.len(), 1);
        assert_eq!(downloads[0].headers.get("job-token"), Some(token));
        let shown = format!("{:?}", downloads[0]);
        let others = world.jobs.values().filter(|job| job.token != *token);
        assert!(others.into_iter().all(|job| !shown.contains(&job.token)), "{shown}");
    }
    drop(world);
    cells.assert_apart(None);
}

/// A `git` that writes its arguments into a file beside itself before it works.
const GIT: &str = "#!/bin/sh\nprintf '%s\\n' \"$@\" >>\"$0.log\"\nPATH=${PATH#*:} exec git \"$@\"\n";

/// Gives a job these sources, for which the server wants the job's token.
fn with_sources(job: &mut Value, server: &GitServer, sha: &str) {
    server.require("gitlab-ci-token", job["token"].as_str().unwrap());
    job["git_info"]["sha"] = json!(sha);
    job["git_info"]["depth"] = json!(0);
    let variables = job["variables"].as_array_mut().unwrap();
    variables.retain(|variable| variable["key"] != "GIT_STRATEGY");
    job["steps"][0]["script"] = json!(["cat text", ": >left"]);
}

/// Asserts that cell 1 got no more of Git than requests without credentials. Git shows its own only after it was asked
/// for them, and what shows none goes to the default cell.
fn assert_that_only_questions_went_astray(cells: &Cells) {
    for seen in &cells.one().world().seen {
        assert!(seen.path.starts_with("/group/project.git/info/refs"), "{}", seen.path);
        assert!(!seen.headers.contains_key("authorization"));
    }
    assert!(count(&cells.two, "POST /group/project.git/git-upload-pack") > 0);
    cells.assert_apart(None);
}

#[test]
fn c07_sources_are_cloned_and_fetched_from_the_cell_of_the_job_s_token() {
    let Some(server) = GitServer::start("c07_sources_are_cloned_and_fetched") else { return };
    let repository = server.repository("group/project.git");
    let first = repository.file("text", "one\n").commit("first");
    let second = repository.file("text", "two\n").commit("second");
    let mut cells = Cells::new();
    cells.configure("", &[("two", &cells.url(), &token(2), "")]);
    cells.two.serve_git(server.host());
    let programs = cells.scene.path("programs");
    fs::create_dir(&programs).unwrap();
    write_program(&programs.join("git"), GIT);
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    cells.scene.start_with(|command| _ = command.env("PATH", path));
    for (sha, wanted) in [(&first, "one"), (&second, "two")] {
        let job = cells.two.add(|job| with_sources(job, &server, sha));
        let ended = cells.two.ended(job);
        assert!(
            ended.state == "success" && ended.text().contains(&format!(" {wanted}\n")),
            "{}",
            ended.text()
        );
        let log = fs::read(programs.join("git.log")).unwrap();
        let builds = tree(&cells.scene.path("state/builds"));
        let texts = [ended.trace, log].into_iter().chain(builds.into_values());
        for text in texts {
            assert!(!text.windows(ended.token.len()).any(|part| part == ended.token.as_bytes()));
        }
    }
    assert_that_only_questions_went_astray(&cells);
}

#[test]
fn c07_sources_come_from_the_cell_of_the_job_s_token_without_the_program_git_too() {
    let Some(server) = GitServer::start("c07_sources_come_without_the_program_git") else { return };
    let repository = server.repository("group/project.git");
    let sha = repository.file("text", "one\n").commit("first");
    let mut cells = Cells::new();
    cells.configure("", &[("two", &cells.url(), &token(2), "")]);
    cells.two.serve_git(server.host());
    let tools = tools(&cells.scene);
    cells.scene.start_with(|command| _ = command.env("PATH", tools));
    let job = cells.two.add(|job| with_sources(job, &server, &sha));
    let ended = cells.two.ended(job);
    assert!(ended.state == "success" && ended.text().contains(" one\n"), "{}", ended.text());
    assert_that_only_questions_went_astray(&cells);
}

#[test]
fn c10_a_redirect_is_followed_to_hosts_of_the_list_alone() {
    for (lines, code) in [("", 1), ("allowed_redirect_hosts = [\"127.0.0.2\"]", 0)] {
        let cells = Cells::new();
        let elsewhere = FakeGitlab::start_at("127.0.0.2:0", "");
        elsewhere.change(|world| world.add_runner(token(2), 2));
        cells.configure("", &[("two", &cells.url(), &token(2), lines)]);
        let there = format!("{}/api/v4/runners/verify", elsewhere.url());
        cells.two.fault("POST /runners", 1, Fault::Answer(Answer::status(307).header("Location", &there)));
        let (found, said) = cells.run(&["verify"]);
        assert_eq!(found, Some(code), "{said}");
        if code == 0 {
            let (sent, followed) = (cells.two.world().seen[0].clone(), elsewhere.world().seen[0].clone());
            assert_eq!((sent.method, sent.path, sent.body), (followed.method, followed.path, followed.body));
        } else {
            assert!(said.contains("127.0.0.2") && elsewhere.world().seen.is_empty(), "{said}");
        }
        cells.assert_apart(None);
    }
}

#[test]
fn c11_a_job_that_another_has_claimed_is_left_alone() {
    let cells = Cells::start("concurrent = 1", "");
    let started = cells.scene.path("started");
    cells.two.fault("PUT /jobs/", 1, Fault::Answer(Answer::status(409)));
    let lost = cells.two.add_script(&[&format!("touch {}", started.display())]);
    let next = cells.two.add_script(&["echo next"]);
    assert_eq!(cells.two.ended(next).state, "success");
    cells.scene.wait_until_closed();
    let calls = cells.two.world().calls();
    let of_lost: Vec<_> = calls.iter().filter(|call| call.contains(&format!("/jobs/{lost}"))).collect();
    assert_eq!(of_lost, [&format!("PUT /jobs/{lost}")]);
    assert!(!started.exists());
    cells.assert_apart(None);
}

#[test]
fn c12_an_instance_runner_works_for_the_default_cell() {
    let mut cells = Cells::new();
    cells.one().change(|world| world.add_runner(RUNNER.to_owned(), 11));
    cells.configure("", &[("instance", &cells.url(), RUNNER, "")]);
    cells.scene.start();
    let job = cells.one().add_script(&["echo hello"]);
    assert_eq!(cells.one().ended(job).state, "success");
    assert!(cells.two.world().seen.is_empty());
    cells.assert_apart(None);
}

#[test]
fn c14_two_tokens_in_one_request_are_refused_by_the_cell() {
    let cells = Cells::new();
    let body = json!({"token": token(1)}).to_string();
    let host = cells.url().replace("http://", "");
    let mut stream = TcpStream::connect(&host).unwrap();
    let head = format!(
        "POST /api/v4/runners/verify HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nRUNNER-TOKEN: {}\r\n",
        token(2)
    );
    write!(stream, "{head}Content-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert_eq!((count(&cells.two, "POST /runners/verify"), cells.one().world().seen.len()), (1, 0));
    assert!(cells.two.world().breaches.iter().any(|breach| breach.contains("another token")));
}
