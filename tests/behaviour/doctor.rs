//! Tests `step-runner doctor` on a machine where everything works, and on one where parts are missing.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// Runs the program in a clean environment, below `folder`.
fn doctor(folder: &Path, words: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_step-runner"));
    command.args(["doctor"]).args(words).env_clear().current_dir(folder);
    command.env("PATH", std::env::var_os("PATH").unwrap()).env("TMPDIR", folder);
    command.env("XDG_STATE_HOME", folder.join("state"));
    command.envs(environment.iter().copied()).output().unwrap()
}

/// Returns the answer as JSON. Asserts that it agrees with the exit code.
fn checks(output: &Output) -> Value {
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    assert_eq!(answer["format"], 1);
    assert_eq!(output.status.code(), Some(i32::from(answer["state"] == "error")), "{answer:#}");
    assert!(output.stderr.is_empty(), "{output:?}");
    for check in answer["checks"].as_array().unwrap() {
        assert_eq!(check["remedy"].is_null(), check["state"] == "ok", "{check:#}");
    }
    answer
}

fn check<'a>(answer: &'a Value, name: &str) -> &'a Value {
    answer["checks"].as_array().unwrap().iter().find(|check| check["name"] == name).unwrap()
}

fn said(check: &Value) -> &str {
    check["found"].as_str().unwrap()
}

#[test]
fn every_part_of_the_machine_is_looked_at_and_nothing_is_changed() {
    let folder = tempfile::tempdir().unwrap();
    let answer = checks(&doctor(folder.path(), &["--output", "json"], &[]));
    let names: Vec<&str> =
        answer["checks"].as_array().unwrap().iter().map(|check| check["name"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        [
            "kernel",
            "control_groups",
            "job_limits",
            "namespaces",
            "open_files",
            "processes",
            "state_folder",
            "left_over",
            "temporary_folder",
            "socket",
            "shell",
            "git",
            "certificates",
            "proxy",
            "clock"
        ]
    );
    for name in ["kernel", "shell", "git", "proxy", "clock", "socket"] {
        assert_eq!(check(&answer, name)["state"], "ok", "{answer:#}");
    }
    assert!(said(check(&answer, "state_folder")).contains("state/step-runner"), "{answer:#}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_state_folder_that_serve_refuses_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("open")).unwrap();
    std::fs::set_permissions(folder.path().join("open"), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::symlink("open", folder.path().join("link")).unwrap();
    for (name, found) in
        [("open", "open to others (mode 0755)"), ("link", "a symbolic link"), ("link/", "a symbolic link")]
    {
        let output = doctor(folder.path(), &["--output", "json", "--state-dir", name], &[]);
        let answer = checks(&output);
        let check = check(&answer, "state_folder");
        assert_eq!(check["state"], "error", "{check:#}");
        assert!(said(check).contains(found), "{check:#}");
    }
}

#[test]
fn a_state_folder_that_another_user_owns_is_an_error_with_its_cause() {
    // Root can look everywhere.
    if rustix::process::geteuid().is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("closed/state")).unwrap();
    std::fs::set_permissions(folder.path().join("closed"), std::fs::Permissions::from_mode(0o000)).unwrap();
    let answer = checks(&doctor(folder.path(), &["--output", "json", "--state-dir", "closed/state"], &[]));
    let check = check(&answer, "state_folder");
    assert_eq!(check["state"], "error", "{check:#}");
    assert!(said(check).contains("Permission denied"), "{check:#}");
    std::fs::set_permissions(folder.path().join("closed"), std::fs::Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn what_is_missing_is_an_error_with_its_remedy() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("file"), "").unwrap();
    let long = format!("/{}", "x".repeat(100));
    let output = doctor(
        folder.path(),
        &["--output", "json", "--state-dir", "file"],
        &[
            ("PATH", "/nonexistent"),
            ("SSL_CERT_FILE", "/nonexistent"),
            ("https_proxy", "http://user:s3cret@[broken"),
            ("STEP_RUNNER_SOCKET", &long),
            ("TMPDIR", "/nonexistent/s"),
        ],
    );
    assert_eq!(output.status.code(), Some(1));
    let answer = checks(&output);
    for (name, found, remedy) in [
        ("shell", "neither bash nor sh", "install a shell"),
        ("certificates", "SSL_CERT_FILE", "unset the variable"),
        ("proxy", "https_proxy", "unset the variable"),
        ("socket", "101 bytes", "--socket"),
        ("state_folder", "not a directory", "--state-dir"),
        ("temporary_folder", "/nonexistent/s is no folder", "TMPDIR"),
    ] {
        let check = check(&answer, name);
        assert_eq!(check["state"], "error", "{check:#}");
        assert!(said(check).contains(found), "{check:#}");
        assert!(check["remedy"].as_str().unwrap().contains(remedy), "{check:#}");
    }
    assert!(check(&answer, "left_over")["remedy"].as_str().unwrap().contains("--state-dir"), "{answer:#}");
    assert!(said(check(&answer, "git")).contains("not installed"), "{answer:#}");
    assert!(!String::from_utf8_lossy(&output.stdout).contains("s3cret"));
    let people = doctor(folder.path(), &["--color", "never"], &[("PATH", "/nonexistent")]);
    let text = String::from_utf8(people.stdout).unwrap();
    assert_eq!(people.status.code(), Some(1), "{text}");
    assert!(text.contains("\nerror    shell             neither bash nor sh"), "{text}");
    assert!(text.contains("try: install a shell, or extend PATH\n"), "{text}");
    let quiet = doctor(folder.path(), &["-q"], &[("PATH", "/nonexistent")]);
    assert!(!String::from_utf8(quiet.stdout).unwrap().contains("ok  "));
}

#[test]
fn a_proxy_is_shown_without_its_password() {
    let folder = tempfile::tempdir().unwrap();
    for (environment, state, found) in [
        (
            &[("HTTPS_PROXY", "http://user:s3cret@proxy.example:3128")][..],
            "ok",
            "HTTPS_PROXY = http://proxy.example:3128",
        ),
        (
            &[("http_proxy", "user:s3cret@proxy.example:3128"), ("no_proxy", "a.example")],
            "ok",
            "proxy.example:3128",
        ),
        (
            &[("http_proxy", "http://a:s3cret@b:1"), ("HTTP_PROXY", "http://a:s3cret@c:1")],
            "warning",
            "HTTP_PROXY and http_proxy differ",
        ),
    ] {
        let output = doctor(folder.path(), &["--output", "json"], environment);
        let answer = checks(&output);
        let proxy = check(&answer, "proxy");
        assert_eq!(proxy["state"], state, "{proxy:#}");
        assert!(said(proxy).contains(found), "{proxy:#}");
        assert!(!String::from_utf8_lossy(&output.stdout).contains("s3cret"), "{proxy:#}");
    }
}

#[test]
fn a_socket_is_told_by_what_is_behind_it() {
    let folder = tempfile::tempdir().unwrap();
    let look = |name: &str| {
        let path = folder.path().join(name);
        let answer =
            checks(&doctor(folder.path(), &["--output", "json", "--socket", path.to_str().unwrap()], &[]));
        check(&answer, "socket").clone()
    };
    let listener = UnixListener::bind(folder.path().join("live")).unwrap();
    assert!(said(&look("live")).starts_with("a daemon listens on "));
    drop(listener);
    assert!(said(&look("live")).contains("any more; one can be started"));
    std::fs::write(folder.path().join("file"), "").unwrap();
    assert_eq!(look("file")["state"], "error");
    assert!(said(&look("none")).starts_with("no daemon listens on "));
    std::fs::create_dir(folder.path().join("closed")).unwrap();
    std::fs::set_permissions(folder.path().join("closed"), std::fs::Permissions::from_mode(0o500)).unwrap();
    // Root can write everywhere.
    let expected = if rustix::process::geteuid().is_root() { "ok" } else { "error" };
    assert_eq!(look("closed/s")["state"], expected);
}

/// The daemon of this environment would refuse jobs, so doctor must say so, and no earlier than the daemon.
#[test]
fn the_space_that_is_needed_is_that_of_the_setting_in_force() {
    let folder = tempfile::tempdir().unwrap();
    for (limit, is_refused) in [("8000000TiB", true), ("1KiB", false), ("nonsense", false)] {
        let environment = [("STEP_RUNNER_STATE_LIMIT", limit)];
        let answer = checks(&doctor(folder.path(), &["--output", "json"], &environment));
        let found = said(check(&answer, "state_folder")).to_owned();
        assert_eq!(found.contains("refused as disk_full"), is_refused, "{limit}: {found}");
    }
}
