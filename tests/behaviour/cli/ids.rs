//! Ids that are taken, finished, or unknown.

use super::{Scene, failing_job, stderr, stdout};
use crate::fake::{Daemon, Job};

#[test]
fn an_id_that_is_taken_starts_nothing_new_and_that_is_said() {
    let job = Job { running: true, ..Job::default() };
    let scene = Scene::new(Daemon::with_job("43", job));
    let said = "step-runner: job 43 was started before (running); nothing new is started\n";
    for words in [
        ["submit", "builtin://x", "--id", "43"].as_slice(),
        &["run", "builtin://x", "--id", "43", "--detach"],
    ] {
        let output = scene.run(words);
        assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(0), "43\n"));
        assert_eq!(stderr(&output), said);
        let quiet = scene.run(&[words, &["--quiet"]].concat());
        assert_eq!((quiet.status.code(), stderr(&quiet).as_str()), (Some(0), ""));
    }
}

#[test]
fn fault_50_a_job_of_another_request_is_neither_followed_nor_removed() {
    let job = Job { running: true, ..Job::default() };
    let scene = Scene::new(Daemon::with_job("43", job));
    scene.daemon.script.lock().unwrap().other_content = true;
    for words in [["submit"].as_slice(), &["run"], &["run", "--detach"]] {
        let output = scene.run(&[words, &["builtin://x", "--id", "43"]].concat());
        assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(65), ""));
        let expected = "step-runner: job 43 was started before, with other content: nothing is started; choose another --id, or \
                        see what that job does with `step-runner follow 43`\n";
        assert_eq!(stderr(&output), expected);
    }
    assert!(scene.daemon.script.lock().unwrap().finished.is_empty());
}

#[test]
fn a_job_that_has_had_its_turn_is_not_passed_off_as_started() {
    let scene = Scene::new(Daemon::default());
    let at = "2026-11-20T10:00:00Z".to_owned();
    scene.daemon.script.lock().unwrap().remembered.insert("42".to_owned(), at);
    for words in [["submit"].as_slice(), &["run"], &["run", "--detach"]] {
        let output = scene.run(&[words, &["builtin://x", "--id", "42"]].concat());
        assert_eq!(output.status.code(), Some(65), "{output:?}");
        assert!(output.stdout.is_empty(), "{output:?}");
        let expected = "step-runner: job 42 was finished at 2026-11-20T10:00:00Z; nothing was started: it was the same job; \
                        choose another --id to run it again\n";
        assert_eq!(stderr(&output), expected);
    }
    assert_eq!(scene.daemon.script.lock().unwrap().starts, 0);
}

#[test]
fn a_job_that_is_not_there_is_named_as_what_it_is() {
    let scene = Scene::new(Daemon::with_job("1", failing_job()));
    let at = "2026-11-20T10:00:00Z".to_owned();
    scene.daemon.script.lock().unwrap().remembered.insert("42".to_owned(), at);
    for command in ["follow", "cancel", "status"] {
        for (id, said) in
            [("nope", "no job nope here"), ("42", "job 42 was finished at 2026-11-20T10:00:00Z")]
        {
            let output = scene.run(&[command, id]);
            assert_eq!(output.status.code(), Some(70), "{command} {id}");
            let text = stderr(&output);
            assert!(text.contains(said) && !text.contains("lost"), "{text}");
        }
    }
    for (id, said) in [
        ("nope", "step-runner: no job nope here; nothing to finish\n"),
        ("42", "step-runner: job 42 was finished at 2026-11-20T10:00:00Z; nothing to finish\n"),
        ("1", ""),
    ] {
        let output = scene.run(&["finish", id]);
        assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), said));
    }
    let output = scene.run(&["follow", "1", "--offset", "100000"]);
    let length = failing_job().log.len();
    let said = format!("offset 100000 is past the end of the log of job 1 ({length} bytes)");
    assert!(output.status.code() == Some(70) && stderr(&output).contains(&said), "{output:?}");
    let output = scene.run(&["follow", "1", "--offset", "1k"]);
    assert!(stderr(&output).contains("write a number of bytes"), "{output:?}");
}

#[test]
fn unknown_jobs_are_70_but_for_finish() {
    let scene = Scene::new(Daemon::default());
    for command in ["follow", "cancel", "status"] {
        assert_eq!(scene.run(&[command, "nobody"]).status.code(), Some(70), "{command}");
    }
    assert!(scene.run(&["finish", "nobody"]).status.success());
}

#[test]
fn the_beginning_of_an_id_or_the_last_job_names_a_job() {
    let scene = Scene::new(Daemon::with_job("k7m2-x9qd-4tb", failing_job()));
    {
        let mut script = scene.daemon.script.lock().unwrap();
        for id in ["k7m3-0000-000", "build-12", "12345"] {
            script.jobs.insert(id.to_owned(), failing_job());
        }
    }
    let told = |words: &[&str]| {
        let output = scene.run(words);
        (output.status.code(), stdout(&output), stderr(&output))
    };
    for command in ["follow", "status", "cancel", "finish"] {
        let (code, out, err) = told(&[command, "k7m"]);
        assert!(
            (code == Some(70) || command == "finish") && !(out + &err).contains("x9qd"),
            "{command}: {err}"
        );
        let (code, _, err) = told(&[command, "1234"]);
        assert!(
            (code == Some(70) || command == "finish") && err.contains("no job 1234 here"),
            "{command}: {err}"
        );
    }
    let (code, out, err) = told(&["status", "build-1", "--output", "ids"]);
    assert_eq!((code, &*out, &*err), (Some(0), "build-12\n", "step-runner: job build-12\n"));
    // Nobody who finishes a job that is gone may end another one.
    let (_, _, err) = told(&["finish", "build-1"]);
    assert!(err.contains("no job build-1 here; nothing to finish"), "{err}");
    assert!(scene.daemon.script.lock().unwrap().jobs.contains_key("build-12"));
    let (code, _, err) = told(&["follow", "k7m2-x"]);
    assert!(code == Some(3) && err.contains("step-runner: job k7m2-x9qd-4tb"), "{err}");
    let (code, _, err) = told(&["-q", "cancel", "k7m2"]);
    assert_eq!((code, &*err), (Some(0), ""));
    scene.daemon.script.lock().unwrap().jobs.insert("k7m2-zzzz-zzz".to_owned(), failing_job());
    let (code, _, err) = told(&["cancel", "k7m2"]);
    assert!(code == Some(2) && err.contains("2 jobs begin with k7m2: k7m2-x9qd-4tb, k7m2-zzzz-zzz"), "{err}");
    let (code, out, _) = told(&["status", "--last", "--output", "ids"]);
    assert_eq!((code, &*out), (Some(0), "k7m3-0000-000\n"));
    let (code, _, err) = told(&["finish", "--last"]);
    assert!(code == Some(0) && err.contains("job k7m3-0000-000"), "{err}");
}

#[test]
fn without_jobs_that_is_said() {
    let scene = Scene::new(Daemon::default());
    assert_eq!(stdout(&scene.run(&["status"])), "no jobs\n");
    assert_eq!(stdout(&scene.run(&["status", "--output", "ids"])), "");
    let output = scene.run(&["follow", "--last"]);
    assert!(
        output.status.code() == Some(70) && stderr(&output).contains("the daemon has no job"),
        "{output:?}"
    );
}

#[test]
fn the_exit_code_is_the_one_of_follow_and_absent_until_the_end() {
    let cancelled = Job { exit_code: -2, ..failing_job() };
    let running = Job { running: true, ..Job::default() };
    for (job, code) in [(cancelled, Some(130)), (running, None)] {
        let scene = Scene::new(Daemon::with_job("42", job));
        let json: serde_json::Value =
            serde_json::from_str(&stdout(&scene.run(&["status", "--output", "json"]))).unwrap();
        let job = json["jobs"][0].as_object().unwrap();
        assert_eq!(job.get("exit_code").map(|code| code.as_i64().unwrap()), code);
        let table = stdout(&scene.run(&["status"]));
        let exit = table.lines().nth(1).unwrap().split_whitespace().nth(2).unwrap();
        assert_eq!(exit, code.map_or("-".to_owned(), |code| code.to_string()));
    }
}
