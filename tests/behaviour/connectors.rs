//! Runs the client's commands through process connectors. The program is real at both ends; `ssh`, `docker`, `podman`
//! and `kubectl` are fakes (connectors.md §4, §5).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::support::programs::write_program;
use crate::support::{Daemon, processes_with, wait_for};

/// Scripts of the fakes. `ssh` passes the remote command line to a shell, the others execute it.
const SSH: &str = r#"while [ "$1" != "--" ]; do shift; done; shift 2; exec sh -c "$*""#;
const EXEC: &str = r#"while [ "$1" != "step-runner" ]; do shift; done; exec "$@""#;

/// A daemon, and a folder with the fake programs that connect to it.
struct Scene {
    daemon: Daemon,
    bin: PathBuf,
}

impl Scene {
    fn new() -> Self {
        let daemon = Daemon::start();
        let bin = daemon.file("bin");
        fs::create_dir(&bin).unwrap();
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_step-runner"), bin.join("step-runner")).unwrap();
        let scene = Self { daemon, bin };
        scene.program("ssh", SSH);
        for name in ["docker", "podman", "kubectl"] {
            scene.program(name, EXEC);
        }
        scene
    }

    /// Writes a program of this name that first records its arguments.
    fn program(&self, name: &str, script: &str) {
        let path = self.bin.join(name);
        let noted = self.bin.join("arguments");
        let text = format!("#!/bin/sh\necho \"{name} $*\" >> '{}'\n{script}\n", noted.display());
        write_program(&path, &text);
    }

    /// Returns the command lines of the fake programs so far.
    fn arguments(&self) -> Vec<String> {
        let text = fs::read_to_string(self.bin.join("arguments")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_step-runner"));
        let path = format!("{}:{}", self.bin.display(), std::env::var("PATH").unwrap());
        command.args(words).env("PATH", path).stdin(Stdio::null()).current_dir(&self.daemon.path);
        command
    }

    /// Runs the client and asserts its exit code. Returns stdout and stderr.
    fn call(&self, words: &[&str], code: i32) -> (String, String) {
        said(&self.command(words).output().unwrap(), words, code)
    }

    fn socket(&self) -> &str {
        self.daemon.socket.to_str().unwrap()
    }

    fn write(&self, name: &str, text: &str) -> String {
        fs::write(self.daemon.file(name), text).unwrap();
        name.to_owned()
    }
}

#[track_caller]
fn said(output: &Output, words: &[&str], code: i32) -> (String, String) {
    let [stdout, stderr] =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    assert_eq!(output.status.code(), Some(code), "{words:?}: {stdout}{stderr}");
    (stdout, stderr)
}

#[test]
fn every_command_works_through_every_connector() {
    let scene = Scene::new();
    let socket = scene.socket();
    let proxy = format!("step-runner proxy --socket {socket}");
    let quoted = format!("'step-runner' 'proxy' '--socket' '{socket}'");
    let job = scene.write("job.yml", "spec: {}\n---\nrun: [{name: s, script: echo hello; exit 7}]\n");
    for (address, line) in [
        (
            format!("ssh://ci@build7:2222{socket}"),
            format!("ssh -T -o BatchMode=yes -p 2222 -- ci@build7 {quoted}"),
        ),
        (format!("docker://job{socket}?user=7"), format!("docker exec -i --user 7 job {proxy}")),
        (format!("podman://job{socket}"), format!("podman exec -i job {proxy}")),
        (
            format!("kube://c@ci/pod/build?socket={socket}"),
            format!("kubectl --context c -n ci exec -i pod -c build -- {proxy}"),
        ),
        (format!("cmd:ssh -- h {proxy}"), format!("ssh -- h {proxy}")),
    ] {
        let (scheme, _) = address.split_once(':').unwrap();
        let call = |words: &[&str], code| scene.call(&[words, &["--address", &address]].concat(), code);
        let (stdout, stderr) = call(&["run", &job], 7);
        assert!(stdout.contains("hello") && stderr.contains("job.yml:3"), "{stdout}{stderr}");
        assert_eq!(call(&["submit", "--id", scheme, &job], 0).0, format!("{scheme}\n"));
        assert!(call(&["follow", scheme], 7).0.contains("hello"));
        assert!(call(&["status", scheme], 0).0.contains("failure"));
        call(&["cancel", scheme], 0);
        call(&["finish", scheme], 0);
        assert!(call(&["follow", scheme], 70).1.contains(&format!("job {scheme} was finished at ")));
        let noted = scene.arguments();
        assert!(noted.len() >= 7 && noted.iter().all(|noted| *noted == line), "{noted:?}");
        fs::remove_file(scene.bin.join("arguments")).unwrap();
    }
    // The proxies ended with the client that started them.
    let left = || processes_with(&format!("proxy\0--socket\0{socket}")).is_empty();
    wait_for("the end of all proxies", || left().then_some(()));
}

#[test]
fn via_is_an_address_and_names_of_files_travel_as_given() {
    let scene = Scene::new();
    let via = format!("step-runner proxy --socket '{}'", scene.socket());
    let job = scene.write("job.yml", "spec: {}\n---\nrun: [{name: s, script: pwd}]\n");
    let (stdout, _) = scene.call(&["run", "--via", &via, "--output", "plain", &job], 0);
    let own = format!("{}\n", scene.daemon.path.canonicalize().unwrap().display());
    assert!(!stdout.contains(&own), "the job does not run where its client is: {stdout}");
    let wrong = scene.write("wrong.yml", "spec: {}\n---\nrun: 7\n");
    let (_, stderr) = scene.call(&["run", "--via", &via, &wrong], 65);
    assert!(stderr.contains("wrong.yml:3") && !stderr.contains("/wrong.yml"), "{stderr}");
    let both = scene.call(&["status", "--via", "x", "--address", "/s"], 2).1;
    assert!(both.contains("--via"), "{both}");
}

#[test]
fn addresses_that_cannot_be_are_usage_errors_that_name_the_part() {
    let scene = Scene::new();
    for (address, part) in [
        ("gopher://x", "unknown scheme `gopher`"),
        ("ssh://-oProxyCommand=touch%20x", "host"),
        ("docker://--privileged", "container"),
        ("kube://ci", "no pod"),
        ("docker://c?api=1", "unknown key `api`"),
        ("ssh://ci:hunter2@h", "password"),
        ("cmd:", "no command"),
    ] {
        let (_, stderr) = scene.call(&["status", "--address", address], 2);
        assert!(stderr.contains(part) && !stderr.contains("hunter2"), "{address}: {stderr}");
    }
    assert!(scene.arguments().is_empty());
}

#[test]
fn what_cannot_be_mended_is_told_at_once_with_its_remedy() {
    let scene = Scene::new();
    let proxy = "exec step-runner proxy --socket \"$SOCKET\"";
    for (script, parts) in [
        (
            format!("echo 'Welcome to build7'; echo 'be nice'; {proxy}"),
            [
                "not from a step-runner daemon; the output was \"Welcome to build7\\nbe nice",
                "must print nothing",
            ],
        ),
        (
            "echo 'sh: step-runner: not found' >&2; exit 127".to_owned(),
            ["not found", "step-runner bootstrap"],
        ),
        (
            "echo 'OCI runtime exec failed: exec failed: exec: \"step-runner\": no such file'; exit 126"
                .to_owned(),
            ["OCI runtime", "bootstrap"],
        ),
        (
            "echo 'ci@h: Permission denied (publickey).' >&2; exit 255".to_owned(),
            ["access is refused: ci@h: Permission denied (publickey).", "check user, key"],
        ),
        (
            "echo 'ssh: Could not resolve hostname h: Name or service not known' >&2; exit 255".to_owned(),
            ["the host is unknown", "correct the host"],
        ),
    ] {
        scene.program("ssh", &script);
        let words = ["status", "--address", "ssh://h"];
        let output = scene.command(&words).env("SOCKET", scene.socket()).output().unwrap();
        let (_, stderr) = said(&output, &words, 69);
        assert!(parts.iter().all(|part| stderr.contains(part)), "{script}: {stderr}");
        assert_eq!(scene.arguments().len(), 1, "{script}: it was tried again");
        fs::remove_file(scene.bin.join("arguments")).unwrap();
    }
    let missing = scene.call(&["status", "--via", "no-such-program"], 69).1;
    assert!(missing.contains("`no-such-program` is not installed"), "{missing}");
}

#[test]
fn what_may_pass_is_tried_again_and_its_last_lines_are_told() {
    let scene = Scene::new();
    let socket = scene.daemon.file("no-daemon").display().to_string();
    for (script, part) in [
        ("echo 'Connection refused' >&2; exit 255", "takes no more sessions: Connection refused"),
        (
            format!("exec step-runner proxy --socket {socket}").as_str(),
            format!("no daemon listens there yet: step-runner proxy: connect {socket}").as_str(),
        ),
        ("kill -9 $$", "the connection ended"),
        (r"printf '\000\000\030'; kill -9 $$", "the connection ended"),
        ("exec >&-; exec sleep 1", "the connection ended"),
    ] {
        scene.program("ssh", script);
        let words = ["status", "--address", "ssh://h", "--connect-timeout", "1ms"];
        let (_, stderr) = scene.call(&words, 69);
        assert!(stderr.contains(part), "{script}: {stderr}");
        assert_eq!(scene.arguments().len(), 2, "{script}");
        fs::remove_file(scene.bin.join("arguments")).unwrap();
    }
    // The third attempt succeeds.
    let count = scene.bin.join("arguments");
    let flaky = format!("[ $(wc -l < '{}') -ge 3 ] || exit 255\n{SSH}", count.display());
    scene.program("ssh", &flaky);
    scene.call(&["status", "--address", &format!("ssh://h{}", scene.socket())], 0);
    assert_eq!(scene.arguments().len(), 3);
}

#[test]
fn fault_22_a_daemon_that_dies_with_the_line_open_is_followed_on() {
    let mut scene = Scene::new();
    let address = format!("docker://job{}", scene.socket());
    let (go, out) = (scene.daemon.file("go"), scene.daemon.file("out"));
    let script =
        format!("echo begun; until [ -e '{}' ]; do sleep 0.05; done; echo over; exit 3", go.display());
    let job = scene.write("job.yml", &format!("spec: {{}}\n---\nrun: [{{name: s, script: \"{script}\"}}]\n"));
    scene.call(&["submit", "--id", "j", "--address", &address, &job], 0);
    let words = ["follow", "j", "--address", &address, "--output", "plain"];
    let file = fs::File::create(&out).unwrap();
    let mut follower = scene.command(&words).stdout(file).stderr(Stdio::null()).spawn().unwrap();
    let shows = |text: &str| fs::read_to_string(&out).unwrap().contains(text).then_some(());
    wait_for("the first line", || shows("begun"));
    scene.daemon.kill();
    scene.daemon.restart();
    fs::write(&go, "").unwrap();
    assert_eq!(wait_for("its end", || follower.try_wait().unwrap()).code(), Some(3));
    let text = fs::read_to_string(&out).unwrap();
    assert!(text.matches("begun").count() == 1 && text.matches("over").count() == 1, "{text}");
    assert!(scene.arguments().len() >= 3);
}

#[test]
fn a_connector_that_was_killed_is_started_again_at_the_same_byte() {
    let scene = Scene::new();
    let address = format!("podman://job{}", scene.socket());
    let go = scene.daemon.file("go");
    let script = format!("echo begun; until [ -e '{}' ]; do sleep 0.05; done; echo over", go.display());
    let job = scene.write("job.yml", &format!("spec: {{}}\n---\nrun: [{{name: s, script: \"{script}\"}}]\n"));
    let out = scene.daemon.file("out");
    let words = ["run", "--address", &address, "--output", "plain", &job];
    let file = fs::File::create(&out).unwrap();
    let mut running = scene.command(&words).stdout(file).stderr(Stdio::null()).spawn().unwrap();
    let shows = |text: &str| fs::read_to_string(&out).unwrap().contains(text).then_some(());
    wait_for("the first line", || shows("begun"));
    kill_proxies(&scene.daemon.socket);
    fs::write(&go, "").unwrap();
    assert_eq!(wait_for("its end", || running.try_wait().unwrap()).code(), Some(0));
    let text = fs::read_to_string(&out).unwrap();
    assert!(text.matches("begun").count() == 1 && text.matches("over").count() == 1, "{text}");
}

#[test]
fn a_container_that_is_started_again_is_waited_for_and_one_that_is_gone_is_not() {
    let scene = Scene::new();
    let address = format!("docker://job{}", scene.socket());
    let (go, state) = (scene.daemon.file("go"), scene.daemon.file("state"));
    let script =
        format!("echo begun; until [ -e '{}' ]; do sleep 0.05; done; echo over; exit 3", go.display());
    let job = scene.write("job.yml", &format!("spec: {{}}\n---\nrun: [{{name: s, script: \"{script}\"}}]\n"));
    // Makes `docker` fail with this message, once or always.
    let refusing = |said: &str, once: bool| {
        fs::write(&state, said).unwrap();
        let then = if once { format!("rm '{}'; ", state.display()) } else { String::new() };
        let refuse = format!("if [ -e '{0}' ]; then cat '{0}' >&2; {then}exit 1; fi", state.display());
        scene.program("docker", &format!("{refuse}\n{EXEC}"));
    };
    for (said, once, code) in [
        ("Error response from daemon: container 1f is not running", true, 3),
        ("Error response from daemon: No such container: job", false, 69),
    ] {
        fs::remove_file(&go).ok();
        scene.call(&["submit", "--id", &code.to_string(), "--address", &address, &job], 0);
        let out = scene.daemon.file("out");
        let words = ["follow", &code.to_string(), "--address", &address, "--output", "plain"];
        let file = fs::File::create(&out).unwrap();
        let mut follower = scene.command(&words).stdout(file).stderr(Stdio::piped()).spawn().unwrap();
        let begun = || fs::read_to_string(&out).unwrap().contains("begun").then_some(());
        wait_for("the first line", begun);
        refusing(said, once);
        kill_proxies(&scene.daemon.socket);
        wait_for("the refusal", || (!once || !state.exists()).then_some(()));
        fs::write(&go, "").unwrap();
        assert_eq!(wait_for("its end", || follower.try_wait().unwrap()).code(), Some(code), "{said}");
    }
    // A client that never had a connection does not retry.
    refusing("Error response from daemon: container 1f is not running", true);
    let (_, stderr) = scene.call(&["status", "--address", &address], 69);
    assert!(stderr.contains("the container does not run") && stderr.contains("start it"), "{stderr}");
}

fn kill_proxies(socket: &Path) {
    for pid in processes_with(&format!("proxy\0--socket\0{}", socket.display())) {
        crate::support::kill(pid, rustix::process::Signal::KILL);
    }
}
