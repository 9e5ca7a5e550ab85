//! Commands for entries: `register`, `verify`, `unregister`.

use std::fs;
use std::process::{Command, Output};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;

use crate::fake_gitlab::http::Answer;
use crate::fake_gitlab::{ACCESS, FakeGitlab, Fault, REGISTRATION, RUNNER};
use crate::scene::Scene;
use crate::support::{kill, wait_for};

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Makes a folder without configuration, with files of all tokens.
fn scene() -> Scene {
    let scene = Scene::bare(FakeGitlab::start());
    for (name, token) in
        [("runner", RUNNER), ("registration", REGISTRATION), ("access", ACCESS), ("bad", "glrt-bad")]
    {
        fs::write(scene.path(name), format!("{token}\n")).unwrap();
    }
    scene
}

impl Scene {
    /// Runs `register` at the scene's server.
    fn register(&self, words: &[&str]) -> Output {
        self.registering(words).output().unwrap()
    }

    /// Returns the command. Words that name a file of the folder become its path.
    fn registering(&self, words: &[&str]) -> Command {
        let url = self.gitlab.url();
        let files = ["runner", "registration", "access", "bad", "empty"];
        let path = |word: &&str| {
            if files.contains(word) { self.path(word).display().to_string() } else { (*word).to_owned() }
        };
        let words: Vec<String> =
            ["register", "--url", &url].iter().map(path).chain(words.iter().map(path)).collect();
        self.command(&words.iter().map(String::as_str).collect::<Vec<_>>())
    }
}

#[test]
fn a01_register_writes_an_entry_once_the_server_has_accepted_it() {
    let scene = scene();
    let output = scene.register(&["--token-file", "runner", "--name", "shell"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let config = scene.config();
    assert!(
        config.contains("name = \"shell\"") && config.contains("id = 11") && config.contains(RUNNER),
        "{config}"
    );
    assert!(!said(&output).contains(RUNNER), "{}", said(&output));
    let body = scene.gitlab.world().seen[0].json();
    assert_eq!(scene.gitlab.world().calls(), ["POST /runners/verify"]);
    assert_eq!(
        (&body["info"]["features"]["cancel_gracefully"], &body["info"]["shell"]),
        (&json!(true), &json!("bash"))
    );
    assert!(body["system_id"].as_str().unwrap().len() == 14, "{body}");
    scene.gitlab.assert_clean();
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &fs::metadata(scene.path("agent.toml")).unwrap().permissions(),
    );
    assert_eq!(mode & 0o777, 0o600);
    let written = scene.config();
    let output = scene.register(&["--token-file", "runner"]);
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    assert!(said(&output).contains("has this runner already, as the entry \"shell\""), "{}", said(&output));
    assert_eq!(scene.config(), written);
    scene.gitlab.fault("POST /runners", 1, Fault::Answer(Answer::status(400)));
    let output = scene.register(&["--registration-token-file", "registration"]);
    assert!(said(&output).contains("the server refuses the options"), "{}", said(&output));
}

#[test]
fn a01_mistakes_and_refusals_change_nothing() {
    let scene = scene();
    fs::write(scene.path("empty"), "\n").unwrap();
    for (words, code, told) in [
        (&["--token-file", "bad"][..], 1, "403 Forbidden"),
        (&["--token-file", "empty"], 2, "empty: the token is empty"),
        (&["--token-file", "runner", "--address", "/run/x.sock"], 3, "builds_dir"),
        (&["--token-file", "runner", "--builds-dir", "builds"], 3, "builds_dir is a relative path"),
        (&["--registration-token-file", "bad"], 1, "403 Forbidden"),
        (&[], 2, "no token is given"),
        (&["--token-file", "runner", "--tag-list", "a"], 2, "--tag-list"),
        (&["--token-file", "/nowhere"], 2, "/nowhere"),
        (&["--create", "--runner-type", "instance_type"], 2, "--access-token-file"),
        (&["--create", "--access-token-file", "access", "--runner-type", "group_type"], 2, "--group-id"),
        (
            &["--create", "--access-token-file", "bad", "--runner-type", "instance_type"],
            1,
            "401 Unauthorized",
        ),
    ] {
        let output = scene.register(words);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {}", said(&output));
        assert!(said(&output).contains(told), "{words:?}: {}", said(&output));
        assert!(!said(&output).contains("glrt-") && !said(&output).contains(ACCESS), "{}", said(&output));
        assert_eq!(scene.config(), "", "{words:?}");
    }
    scene.gitlab.fault("POST /runners", 1, Fault::Answer(Answer::page(200)));
    let output = scene.register(&["--token-file", "runner"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("not the API of a GitLab instance"), "{}", said(&output));
    scene.gitlab.fault("POST /runners", 5, Fault::Answer(Answer::page(502)));
    let output = scene.register(&["--token-file", "runner"]);
    assert!(
        said(&output).contains("status 502") && said(&output).contains("try again later"),
        "{}",
        said(&output)
    );
    scene.gitlab.fault(
        "POST /runners",
        1,
        Fault::Answer(Answer::status(307).header("Location", "http://evil.test/x")),
    );
    let output = scene.register(&["--token-file", "runner"]);
    assert!(said(&output).contains("evil.test"), "{}", said(&output));
    assert_eq!(scene.config(), "");
}

#[test]
fn a20_a_runner_is_created_or_registered_and_its_token_is_written() {
    let scene = scene();
    let output = scene.register(&[
        "--create",
        "--access-token-file",
        "access",
        "--runner-type",
        "project_type",
        "--project-id",
        "7",
        "--tag-list",
        "a,b",
    ]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let body = scene.gitlab.world().seen[0].json();
    assert_eq!((&body["runner_type"], &body["project_id"]), (&json!("project_type"), &json!(7)));
    assert_eq!((&body["run_untagged"], &body["locked"]), (&json!(false), &json!(true)));
    assert!(scene.config().contains("glrt-FakeMade1") && !scene.config().contains(ACCESS));
    let output = scene.register(&["--registration-token-file", "registration"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(scene.config().contains("glrtr-FakeMade2") && !scene.config().contains(REGISTRATION));
    scene.gitlab.assert_clean();
}

#[test]
fn a01_verify_tells_valid_from_refused_and_unregister_removes() {
    let scene = scene();
    assert_eq!(scene.run(&["verify"]).status.code(), Some(3));
    for name in ["one", "two"] {
        let token = if name == "one" { "runner" } else { "registration" };
        let option = if name == "one" { "--token-file" } else { "--registration-token-file" };
        assert!(scene.register(&[option, token, "--name", name]).status.success());
    }
    let output = scene.run(&["verify"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    scene.gitlab.change(|world| world.runners.remove(RUNNER));
    let output = scene.run(&["verify"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said(&output).contains("one: not valid") && said(&output).contains("two: valid"),
        "{}",
        said(&output)
    );
    assert_eq!(scene.run(&["verify", "--delete"]).status.code(), Some(1));
    assert!(!scene.config().contains("\"one\"") && scene.config().contains("\"two\""), "{}", scene.config());
    assert_eq!(scene.run(&["unregister"]).status.code(), Some(2));
    for answer in [Answer::status(200), Answer::json(200, &json!(null)), Answer::page(204)] {
        scene.gitlab.fault("DELETE /runners", 1, Fault::Answer(answer));
        let output = scene.run(&["unregister", "--name", "two"]);
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert!(scene.config().contains("\"two\""), "{}", said(&output));
    }
    let output = scene.run(&["unregister", "--name", "two"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(!scene.config().contains("[[runners]]"));
    assert_eq!(scene.gitlab.world().calls().last().unwrap(), "DELETE /runners");
}

#[test]
fn a32_a_runner_s_configuration_is_taken_over_and_only_read() {
    let scene = scene();
    let theirs = scene.path("config.toml");
    let text = format!(
        "concurrent = 2\n[[runners]]\nname = \"a\"\nurl = \"{0}\"\ntoken = \"{RUNNER}\"\nexecutor = \"shell\"\n\
         [[runners]]\nname = \"b\"\nurl = \"{0}\"\ntoken = \"glrt-x\"\nexecutor = \"custom\"\n\
         [[runners]]\nname = \"c\"\nurl = \"{0}\"\ntoken = \"glrt-other\"\nexecutor = \"kubernetes\"\n\
         [runners.kubernetes]\nnamespace = \"ci\"\ncpu_limit = \"2\"\n",
        scene.gitlab.url()
    );
    fs::write(&theirs, &text).unwrap();
    let path = theirs.display().to_string();
    let twice = text.replace("glrt-other", RUNNER);
    fs::write(scene.path("twice.toml"), &twice).unwrap();
    for words in [&["--check"][..], &[]] {
        let path = scene.path("twice.toml").display().to_string();
        let output = scene.run(&[&["register", "--import", &path][..], words].concat());
        assert_eq!((output.status.code(), scene.config()), (Some(3), String::new()), "{}", said(&output));
        assert!(said(&output).contains("as --import would write it:"), "{}", said(&output));
    }
    let output = scene.run(&["register", "--import", &path, "--check"]);
    assert_eq!((output.status.code(), scene.config()), (Some(1), String::new()), "{}", said(&output));
    let output = scene.run(&["register", "--import", &path]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(!said(&output).contains("glrt-"), "{}", said(&output));
    assert!(
        scene.config().contains("concurrent = 2") && scene.config().contains("name = \"a\""),
        "{}",
        scene.config()
    );
    assert!(!scene.config().contains("\"b\""));
    assert!(
        scene.config().contains("kube-run://ci") && said(&output).contains("program_image"),
        "{}",
        said(&output)
    );
    let template = fs::read_to_string(scene.path("agent.2.pod.json")).unwrap();
    assert!(scene.config().contains("agent.2.pod.json") && template.contains("\"cpu\": \"2\""), "{template}");
    assert_eq!(fs::read_to_string(&theirs).unwrap(), text);
    assert_eq!(scene.run(&["verify", "--name", "a"]).status.code(), Some(0));
}

#[test]
fn a32_the_job_of_an_imported_shell_runner_runs_as_it_did() {
    let mut scene = scene();
    let text = r#"
concurrent = 4
check_interval = 1
shutdown_timeout = 0
log_level = "info"
[session_server]
  session_timeout = 1800
[[runners]]
  name = "runner-host"
  url = "SERVER/"
  id = 11
  token = "TOKEN"
  token_obtained_at = 2026-11-22T22:20:51Z
  token_expires_at = 0001-01-01T00:00:00Z
  executor = "shell"
  shell = "bash"
  builds_dir = "FOLDER/builds"
  limit = 2
  environment = ["DEPLOY=no", "FF_TIMESTAMPS=false"]
  pre_clone_script = "echo before the sources"
  pre_build_script = "echo before the script"
  [runners.custom_build_dir]
  [runners.feature_flags]
    FF_USE_FASTZIP = true
  [runners.cache]
    Type = "s3"
    [runners.cache.s3]
      BucketName = "cache"
"#;
    let folder = scene.path("builds").parent().unwrap().display().to_string();
    scene.import(&text.replace("FOLDER", &folder));
    scene.start();
    let job = scene.gitlab.add_script(&["echo $DEPLOY in $PWD"]);
    let ended = scene.gitlab.ended(job);
    assert_eq!(ended.state, "success", "{}", ended.text());
    for part in ["before the sources\n", "before the script\n", &format!("no in {folder}/builds/")] {
        assert!(ended.text().contains(part), "{part:?} is not in\n{}", ended.text());
    }
}

#[test]
fn entries_that_this_version_cannot_serve_are_refused_at_the_start() {
    for (entry, told) in [
        ("address = \"docker-run://\"\nbuilds_dir = \"/a:b\"", "builds_dir: no volume can be at \"/a:b\""),
        ("address = \"kube-run://jobs\"", "no `program_image`"),
        ("address = \"ssh://ci@build7\"", "builds_dir"),
        ("builds_dir = \"builds\"", "builds_dir is a relative path"),
        ("require_separate_user = true", "its jobs would run as the agent's own user"),
        ("limit = \"x\"", "limit"),
    ] {
        let scene = Scene::with("", entry);
        for command in ["agent", "verify"] {
            let output = scene.run(&[command]);
            assert_eq!(output.status.code(), Some(3), "{command} {entry}: {}", said(&output));
            assert!(
                said(&output).contains(told) && !said(&output).contains(RUNNER),
                "{command} {entry}: {}",
                said(&output)
            );
        }
    }
}

#[test]
fn a06_a_token_is_replaced_before_it_expires_and_jobs_come_with_the_new_one() {
    let mut scene = Scene::with(
        "",
        "token_obtained_at = 2026-01-01T00:00:00Z\ntoken_expires_at = 2026-01-02T00:00:00Z\n# kept",
    );
    scene.start();
    wait_for("another token", || (!scene.config().contains(RUNNER)).then_some(()));
    assert!(
        scene.config().contains("glrt-FakeMade") && scene.config().contains("# kept"),
        "{}",
        scene.config()
    );
    assert!(scene.config().contains("token_expires_at = 0001-01-01T00:00:00Z"), "{}", scene.config());
    let job = scene.gitlab.add(|job| job["steps"][0]["script"] = json!(["echo done"]));
    assert_eq!(scene.gitlab.ended(job).finals[0]["state"], "success");
    let resets = scene.gitlab.world().calls();
    let resets = resets.iter().filter(|call| call.contains("reset_authentication_token")).count();
    assert_eq!(resets, 1);
    assert!(!scene.said().contains("glrt-"), "{}", scene.said());
    scene.gitlab.assert_clean();
}

#[test]
fn a06_what_a_person_writes_while_a_token_is_replaced_stays() {
    let mut scene =
        Scene::with("", "token_obtained_at = 2026-01-01T00:00:00Z\ntoken_expires_at = 2026-01-02T00:00:00Z");
    scene.gitlab.fault("POST /runners/reset_authentication_token", 1, Fault::Slow(Duration::from_secs(2)));
    scene.start();
    scene.gitlab.wait_for("the request", |world| {
        world.calls().iter().any(|call| call.contains("reset_authentication_token")).then_some(())
    });
    scene.configure(&format!("# by hand\n{}", scene.config()));
    wait_for("another token", || (!scene.config().contains(RUNNER)).then_some(()));
    assert!(scene.config().starts_with("# by hand\n"), "{}", scene.config());
}

#[test]
fn a20_a_runner_that_was_made_for_nothing_is_removed_at_the_server() {
    let scene = scene();
    let words = ["--create", "--access-token-file", "access", "--runner-type", "instance_type"];
    // The server has made it, and then refuses it.
    scene.gitlab.fault("POST /runners/verify", 1, Fault::Answer(Answer::status(403)));
    let output = scene.register(&words);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("is removed there"), "{}", said(&output));
    assert_eq!(scene.gitlab.world().runners.len(), 1, "the one that was there before");
    // A signal comes while the server thinks.
    for (call, signal, code) in
        [("POST /user/runners", Signal::INT, 130), ("POST /runners/verify", Signal::TERM, 143)]
    {
        scene.gitlab.fault(call, 1, Fault::Slow(Duration::from_secs(1)));
        let before = scene.gitlab.world().seen.len();
        let mut child = scene.registering(&words).spawn().unwrap();
        scene.gitlab.wait_for("the call", |world| {
            world.calls()[before..].iter().any(|seen| seen.starts_with(call)).then_some(())
        });
        kill(child.id().cast_signed(), signal);
        assert_eq!(child.wait().unwrap().code(), Some(code), "{call}");
        assert_eq!(scene.gitlab.world().runners.len(), 1, "{call}");
        assert_eq!(scene.config(), "");
    }
}

#[test]
fn a06_a_token_that_shall_stay_is_told_of_a_week_before_it_expires() {
    let soon = (chrono::Utc::now() + chrono::Duration::days(3)).format("%Y-%m-%dT%H:%M:%SZ");
    let mut scene = Scene::with(
        "",
        &format!("rotate = false\ntoken_obtained_at = 2026-01-01T00:00:00Z\ntoken_expires_at = {soon}"),
    );
    scene.start();
    wait_for("the warning", || scene.said().contains("its token expires in").then_some(()));
    assert!(scene.config().contains(RUNNER));
}
