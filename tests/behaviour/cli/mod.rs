//! Tests the program as users call it: messages, exit codes, output streams (cli.md).

mod away;
mod ends;
mod engines;
mod forged;
mod here;
mod ids;
mod options;
mod people;
mod settings;
mod spellings;
mod unwritten;
mod values;
mod watch;

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::fake::{Daemon, Job, entry, refusal, results};
use tonic::{Code, Status};

fn program(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_step-runner"));
    command.args(words).stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("STEP_RUNNER_") {
            command.env_remove(name);
        }
    }
    command.env_remove("NO_COLOR").env_remove("CLICOLOR_FORCE").env_remove("FORCE_COLOR").env_remove("CI");
    command
}

fn run(words: &[&str]) -> Output {
    program(words).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A fake daemon on its own socket and runtime.
struct Scene {
    folder: tempfile::TempDir,
    daemon: Daemon,
    _runtime: tokio::runtime::Runtime,
}

impl Scene {
    fn new(daemon: Daemon) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let entered = runtime.enter();
        drop(daemon.serve(&folder.path().join("s.sock")));
        drop(entered);
        Self { folder, daemon, _runtime: runtime }
    }

    fn socket(&self) -> String {
        self.path("s.sock")
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = program(words);
        command.args(["--socket", &self.socket()]).current_dir(self.folder.path());
        command
    }

    fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }
}

fn failing_job() -> Job {
    let log = [
        entry("00O", "Running step name=build"),
        entry("01O", "out of the step"),
        entry("01E", "err of the step"),
        entry("00E", "job failed: exit status 3"),
    ];
    let message = "step \"build\": exit status 3".to_owned();
    Job { log: log.concat(), results: results(&["build"], 3), exit_code: 3, message, ..Job::default() }
}

#[test]
fn usage_errors_end_with_2_and_say_nothing_on_stdout() {
    for words in [
        ["rum"].as_slice(),
        &["follow"],
        &["follow", "../x"],
        &["cancel"],
        &["status", "--address", "gopher://x"],
        &["status", "--address", "ssh://-oProxyCommand=x"],
        &["status", "--color", "sometimes"],
        &["run", "--detach", "x"],
        &["serve", "--max-running", "many"],
        &["serve", "--config", "/no/such/file"],
        &["help", "nothing"],
        &[],
    ] {
        let output = run(words);
        assert_eq!(output.status.code(), Some(2), "{words:?} {output:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{words:?} {output:?}");
    }
}

#[test]
fn a_socket_path_that_is_too_long_is_1() {
    let output = run(&["status", "--socket", &format!("/{}", "x".repeat(100))]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("101 bytes"));
}

#[test]
fn help_completions_and_manual_come_on_stdout() {
    for (words, part) in [
        (["--help"].as_slice(), "help exit-codes"),
        (&["--version"], "step-runner 0."),
        (&["run", "--help"], "Examples:"),
        (&["help", "exit-codes"], "124"),
        (&["help", "environment"], "NO_COLOR"),
        (&["help", "masking"], "--masked-var"),
        (&["help", "recovery"], "follow ID"),
        (&["help", "submit"], "Usage:"),
        (&["serve", "--help"], "STEP_RUNNER_MAX_RUNNING"),
        (&["completions", "bash"], "complete -F"),
        (&["completions", "zsh"], "#compdef step-runner"),
        (&["completions", "fish"], "complete -c step-runner"),
        (&["man"], ".TH step-runner"),
        (&["man", "run"], "masked"),
        (&["man", "finish"], ".nf\nstep\\-runner finish 42 43\n.fi"),
        (&["man", "steps", "serve"], ".TH step-runner-steps-serve"),
        (&["man", "doctor"], "control groups"),
        (&["doctor", "--help"], "shows no secret"),
    ] {
        let output = run(words);
        assert!(output.status.success() && output.stderr.is_empty(), "{words:?} {output:?}");
        assert!(stdout(&output).contains(part), "{words:?}: {}", stdout(&output));
    }
}

#[test]
fn commands_that_people_never_call_are_not_offered() {
    let help = stdout(&run(&["--help"]));
    assert!(!help.contains("keeper"), "{help}");
    for (shell, before, after) in [
        ("bash", "step__runner,", ")"),
        ("elvish", "cand ", " "),
        ("fish", "-a \"", "\""),
        ("powershell", "'", "'"),
        ("zsh", "\n'", ":"),
    ] {
        let script = stdout(&run(&["completions", shell]));
        let offers = |name: &str| script.contains(&format!("{before}{name}{after}"));
        assert!(offers("custom-executor"), "{shell}");
        for name in ["keeper", "reaper", "builtin", "fetch", "launch"] {
            assert!(!offers(name), "{shell}: {name}");
        }
    }
}

/// Returns the completions that bash offers for the last of `words`, using the script that the program prints. The
/// command is the program itself.
fn completed(words: &str) -> Vec<String> {
    let typist = r#"source "$1"; shift
        program="$1"; shift; set -- "" "$1"
        COMP_WORDS=($2)
        COMP_WORDS[0]=$program
        [[ $2 == *" " ]] && COMP_WORDS+=("")
        COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 ))
        _step__runner "$program" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
        printf '%s\n' "${COMPREPLY[@]}""#;
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("script");
    std::fs::write(&script, run(&["completions", "bash"]).stdout).unwrap();
    let output = Command::new("bash")
        .args(["-c", typist, "bash"])
        .arg(script)
        .arg(env!("CARGO_BIN_EXE_step-runner"))
        .arg(words)
        .output()
        .unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{words}: {output:?}");
    stdout(&output).split_whitespace().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_options_values_and_topics() {
    if Command::new("bash").arg("--version").output().is_err() {
        return crate::support::parts::skipped("bash_completes_commands_options_values_and_topics", "bash");
    }
    for (words, expected) in [
        ("step-runner sub", ["submit"].as_slice()),
        ("step-runner --vers", &["--version"]),
        ("step-runner run --ou", &["--output"]),
        ("step-runner run --output ", &["pretty", "plain", "raw", "json"]),
        ("step-runner submit --det", &[]),
        ("step-runner check --output g", &["gitlab"]),
        ("step-runner steps bo", &["bootstrap"]),
        ("step-runner steps serve --sock", &["--socket", "--socket-mode"]),
        ("step-runner custom-executor cl", &["cleanup"]),
        ("step-runner help exi", &["exit-codes"]),
        ("step-runner man cus", &["custom-executor"]),
        ("step-runner doc", &["doctor"]),
        ("step-runner doctor --output j", &["json"]),
        ("step-runner completions f", &["fish"]),
        ("step-runner keep", &[]),
        ("step-runner run --inputs", &[]),
        ("step-runner run --env-base l", &["list"]),
        ("step-runner check --allow sh", &["shell"]),
    ] {
        assert_eq!(completed(words), expected, "{words}");
    }
    let scene = Scene::new(Daemon::with_job("build-42", failing_job()));
    for command in ["follow", "status", "cancel", "finish"] {
        let words = format!("step-runner {command} --socket {} bu", scene.socket());
        assert_eq!(completed(&words), ["build-42"], "{command}");
    }
}

#[test]
fn help_never_shows_the_value_of_a_variable() {
    let mut command = program(&["run", "--help"]);
    let output = command.env("STEP_RUNNER_ENV", "TOKEN=hunter2").output().unwrap();
    assert!(!stdout(&output).contains("hunter2"));
}

#[test]
fn colours_follow_pipes_and_variables() {
    let has_escape = |command: &mut Command| command.output().unwrap().stdout.contains(&0x1b);
    assert!(!has_escape(&mut program(&["--help"])));
    assert!(has_escape(program(&["--help"]).env("CLICOLOR_FORCE", "1")));
    assert!(has_escape(&mut program(&["--color", "always", "--help"])));
    assert!(!has_escape(program(&["--color=never", "--help"]).env("CLICOLOR_FORCE", "1")));
    assert!(!has_escape(program(&["--help"]).env("NO_COLOR", "1")));
    assert!(has_escape(program(&["--help"]).env("FORCE_COLOR", "1")));
    assert!(!has_escape(program(&["--help"]).env("FORCE_COLOR", "1").env("NO_COLOR", "1")));
    assert!(!has_escape(program(&["--color", "never", "--help"]).env("FORCE_COLOR", "1")));
}

#[test]
fn follow_splits_streams_and_ends_as_the_job_with_a_summary_last() {
    let scene = Scene::new(Daemon::with_job("42", failing_job()));
    let output = scene.run(&["follow", "42"]);
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(stdout(&output), "out of the step\n");
    let text = stderr(&output);
    for part in
        ["err of the step", "job 42 failed\n", "step       build", "sh -c 'exit 3'", "exit code  3", "try: "]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    // With these options the log does not show the failure above the summary, so the summary names it.
    let end = failing_job().log.len().to_string();
    for words in [["--merge"].as_slice(), &["--output", "raw"], &["--offset", &end]] {
        let text = stderr(&scene.run(&[["follow", "42"].as_slice(), words].concat()));
        assert!(text.contains("job 42 failed: step \"build\": exit status 3"), "{words:?} {text}");
    }
    assert!(!stderr(&scene.run(&["follow", "42", "--quiet"])).contains("try: "));
}

#[test]
fn raw_output_is_the_log_byte_by_byte_and_offset_counts_its_bytes() {
    let scene = Scene::new(Daemon::with_job("42", failing_job()));
    assert_eq!(scene.run(&["follow", "42", "--output", "raw"]).stdout, failing_job().log);
    let from = scene.run(&["follow", "42", "--output", "raw", "--offset", "10"]).stdout;
    assert_eq!(from, failing_job().log[10..]);
}

#[test]
fn json_output_is_one_event_a_line() {
    let scene = Scene::new(Daemon::with_job("42", failing_job()));
    let text = stdout(&scene.run(&["follow", "42", "--output", "json"]));
    let events: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let kinds = |kind: &str| events.iter().filter(|event| event["event"] == kind).count();
    assert_eq!((kinds("log"), kinds("step"), kinds("end")), (4, 2, 1));
    assert_eq!(events.last().unwrap()["job"]["exit_code"], 3);
}

#[test]
fn pretty_shows_the_end_of_a_step_under_its_output() {
    let mut job = failing_job();
    job.log = [
        entry("00O", "Running step name=a"),
        entry("01O", "A"),
        entry("00O", "Running step name=b"),
        entry("01O", "B"),
    ]
    .concat();
    job.results = results(&["a", "b"], 3);
    let scene = Scene::new(Daemon::with_job("42", job));
    let text = stdout(&scene.run(&["follow", "42", "--output", "pretty"]));
    let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part}: {text}"));
    assert!(at("out  A") < at("step a succeeded") && at("out  B") < at("step b failed"), "{text}");
    assert!(text.contains("exit code 3"), "{text}");
}

#[test]
fn steps_are_json_lines_with_the_tree_last() {
    let scene = Scene::new(Daemon::with_job("42", failing_job()));
    let output = scene.run(&["follow", "42", "--steps"]);
    let lines: Vec<serde_json::Value> =
        stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["step"]["name"], "build");
    assert_eq!(lines[1]["sub_step_results"][0]["exec_result"]["exit_code"], 3);
    assert_eq!(output.status.code(), Some(3));
}

#[test]
fn run_sends_the_document_follows_it_writes_results_and_finishes() {
    let daemon = Daemon::default();
    daemon.script.lock().unwrap().next = Some(failing_job());
    let scene = Scene::new(daemon);
    std::fs::write(
        scene.path("func.yml"),
        "spec: {inputs: {n: {type: string}}}\n---\nrun: [{name: build, script: exit 3}]\n",
    )
    .unwrap();
    let output = scene
        .command(&["run", "--id", "7", "--input", "n=3", "--results", "r.json", "--masked-var", "TOKEN"])
        .args(["--timeout", "90s", "--limit", "memory=1Mi"])
        .env("TOKEN", "hunter2")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(stderr(&output).contains("func.yml:3"), "{output:?}");
    assert!(!stdout(&output).contains("hunter2") && !stderr(&output).contains("hunter2"));
    let results = Path::new(&scene.path("r.json")).to_owned();
    assert_eq!(std::fs::metadata(&results).unwrap().permissions().mode() & 0o777, 0o600);
    let script = scene.daemon.script.lock().unwrap();
    let request = &script.runs[0];
    let folder = scene.folder.path().canonicalize().unwrap();
    assert_eq!(Path::new(&request.file), folder.join("./func.yml"));
    assert_eq!(Path::new(&request.work_dir), folder);
    assert_eq!(request.timeout.as_ref().unwrap().seconds, 90);
    assert_eq!(request.limits.as_ref().unwrap().memory, 1 << 20);
    assert_eq!(request.inputs["n"].kind, Some(prost_types::value::Kind::StringValue("3".into())));
    let variable = &request.job.as_ref().unwrap().variables[0];
    assert_eq!((variable.key.as_str(), variable.value.as_str(), variable.masked), ("TOKEN", "hunter2", true));
    assert_eq!(script.finished, ["7"]);
}

#[test]
fn kept_jobs_are_not_finished_and_detached_ones_print_their_id() {
    let daemon = Daemon::default();
    daemon.script.lock().unwrap().next = Some(Job { results: results(&[], 0), ..Job::default() });
    let scene = Scene::new(daemon);
    assert!(scene.run(&["run", "builtin://x", "--keep"]).status.success());
    for words in
        [["submit", "builtin://x", "--id", "8"].as_slice(), &["run", "builtin://x", "--id", "8", "--detach"]]
    {
        assert_eq!(stdout(&scene.run(words)), "8\n");
    }
    assert!(scene.daemon.script.lock().unwrap().finished.is_empty());
}

#[test]
fn refusals_are_65_for_good_and_75_for_now() {
    let scene = Scene::new(Daemon::default());
    let fail = |status: Status| {
        scene.daemon.script.lock().unwrap().run_failures = std::iter::repeat_n(status, 100).collect();
        scene.run(&["submit", "builtin://x", "--connect-timeout", "2s"])
    };
    let output = fail(refusal(Code::InvalidArgument, "malformed_steps", "<steps>:1:1: expected a list", &[]));
    assert_eq!(output.status.code(), Some(65));
    assert!(stderr(&output).contains("expected a list"));
    assert_eq!(fail(refusal(Code::ResourceExhausted, "queue_full", "full", &[])).status.code(), Some(75));
}

#[test]
fn missing_documents_are_65_before_anything_is_sent() {
    let scene = Scene::new(Daemon::default());
    for target in ["missing.yml", "."] {
        let output = scene.run(&["submit", target]);
        assert_eq!(output.status.code(), Some(65), "{output:?}");
    }
    assert!(scene.daemon.script.lock().unwrap().runs.is_empty());
}

#[test]
fn status_is_a_table_or_json() {
    let scene = Scene::new(Daemon::with_job("42", failing_job()));
    let table = stdout(&scene.run(&["status"]));
    assert!(table.starts_with("ID") && table.contains("failure"), "{table}");
    let json: serde_json::Value =
        serde_json::from_str(&stdout(&scene.run(&["status", "42", "--output", "json"]))).unwrap();
    assert_eq!(json["jobs"][0]["id"], "42");
    assert!(scene.run(&["status", "42", "--watch"]).status.success());
}

#[test]
fn the_address_comes_from_option_then_variable() {
    let scene = Scene::new(Daemon::with_job("42", failing_job()));
    let mut by_variable = program(&["status"]);
    assert!(by_variable.env("STEP_RUNNER_SOCKET", scene.socket()).output().unwrap().status.success());
    let mut by_address = program(&["status"]);
    let address = format!("unix://{}", scene.socket());
    assert!(by_address.env("STEP_RUNNER_ADDRESS", address).output().unwrap().status.success());
}

#[test]
fn an_option_wins_over_the_variable_of_another_way_to_the_daemon() {
    let scene = Scene::new(Daemon::with_job("42", failing_job()));
    let socket = scene.socket();
    let address = format!("unix://{socket}");
    let via = format!("{} proxy --socket {socket}", env!("CARGO_BIN_EXE_step-runner"));
    let ways = [("--address", &address), ("--socket", &socket), ("--via", &via)];
    for (option, way) in ways {
        for variable in ["STEP_RUNNER_ADDRESS", "STEP_RUNNER_VIA", "STEP_RUNNER_SOCKET"] {
            let mut command = program(&["status", "42", option, way]);
            // Variables of other options still apply.
            command.env(variable, "/nonexistent/s.sock").env("STEP_RUNNER_OUTPUT", "json");
            let output = command.env("STEP_RUNNER_CONNECT_TIMEOUT", "1ms").output().unwrap();
            assert!(output.status.success(), "{option}, {variable}: {}", stderr(&output));
        }
    }
    // Two on the command line, or two variables, are an error: none has priority.
    let both = run(&["status", "--address", &address, "--via", &via]);
    assert_eq!(both.status.code(), Some(2), "{}", stderr(&both));
    let both = program(&["status"])
        .env("STEP_RUNNER_ADDRESS", &address)
        .env("STEP_RUNNER_VIA", &via)
        .output()
        .unwrap();
    assert_eq!(both.status.code(), Some(2), "{}", stderr(&both));
    let output =
        scene.command(&["follow", "42", "--steps"]).env("STEP_RUNNER_OUTPUT", "plain").output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
}
