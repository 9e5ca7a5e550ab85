//! A job's secret is only in the places where it must be (threat-model.md §4.3; faults.md rows 38 and 71).

mod derived;
mod encoded;
mod labels;

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::user::{ORDINARY, Place, command_as};
use crate::support::{Client, Daemon, Setup, contains, is_root, kill, request, script, tree, until};
use serde_json::json;
use step_runner::pb::v1::{self, RunRequest, State};

/// A secret of 32 bytes that occurs nowhere else.
const CANARY: &str = "c4nary_5d1f0a7b9e36c82f4417d0be9";

/// Returns a request with the canary as secret: in a variable, in a file, and as a phrase.
fn secret(id: &str, steps: &str) -> RunRequest {
    let variable =
        |key: &str, file| v1::Variable { key: key.into(), value: CANARY.into(), file, masked: true };
    let variables = vec![variable("WORD", false), variable("FILE", true)];
    let masking = v1::Masking { phrases: vec![CANARY.into()], token_prefixes: vec![] };
    let job = Some(v1::Job { variables, ..v1::Job::default() });
    RunRequest { job, masking: Some(masking), ..request(id, steps) }
}

/// Writes functions that take a secret, return one, and fail to start with an error that contains one.
fn functions(daemon: &Daemon) -> PathBuf {
    let folder = daemon.file("functions");
    for (name, text) in [
        (
            "returns",
            "spec: {inputs: {word: {type: string, sensitive: true}}, outputs: {word: {type: string, sensitive: true}}}\n---\n\
             exec: {command: [sh, -c, 'printf ''{\"name\":\"word\",\"value\":\"%s\"}'' \"$1\" > \"$0\"; echo \"$1\" >&2', '${{ output_file }}', '${{ inputs.word }}']}\n",
        ),
        (
            "starts",
            "spec: {inputs: {word: {type: string}}}\n---\nexec: {command: ['/${{ inputs.word }}/x']}\n",
        ),
        ("number", "spec: {inputs: {word: {type: number}}}\n---\nexec: {command: ['true']}\n"),
    ] {
        fs::create_dir_all(folder.join(name)).unwrap();
        fs::write(folder.join(name).join("func.yml"), text).unwrap();
    }
    folder
}

/// Returns jobs that bring the canary to every place that reports on a job: name, steps, and the expected state.
fn bad_and_good(folder: &Path) -> Vec<(&'static str, serde_json::Value, State)> {
    let function = |name: &str| folder.join(name);
    let word = "${{ vars.WORD }}";
    let exports = "echo '{\"name\":\"X\",\"value\":\"'$WORD'\"}' > ${{ export_file }}";
    vec![
        (
            "good",
            json!([
                {"name": "a", "script": format!("echo $WORD; cat $FILE; echo {CANARY} >&2; {exports}")},
                {"name": "b", "func": function("returns"), "inputs": {"word": word}, "env": {"E": word}},
                {"name": "c", "script": "echo $X ${{ steps.b.outputs.word }} ${{ vars.WORD }}"},
            ]),
            State::Success,
        ),
        ("script", json!([{"name": "a", "script": format!("{CANARY}; exit 3")}]), State::Failure),
        (
            "start",
            json!([{"name": "a", "func": function("starts"), "inputs": {"word": word}}]),
            State::Failure,
        ),
        (
            "type",
            json!([{"name": "a", "func": function("number"), "inputs": {"word": word}}]),
            State::Failure,
        ),
        ("input", json!([{"name": "a", "func": function("number"), "inputs": {CANARY: 1}}]), State::Failure),
        ("member", json!([{"name": "a", "script": "${{ env[vars.WORD] }}"}]), State::Failure),
        ("local", json!([{"name": "a", "func": format!("./{CANARY}")}]), State::Failure),
        ("computed", json!([{"name": "a", "func": "./${{ vars.WORD }}"}]), State::Failure),
        (
            "git",
            json!([{"name": "a", "func": format!("http://u:{CANARY}@127.0.0.1:1/{CANARY}@v1")}]),
            State::Failure,
        ),
        ("image", json!([{"name": "a", "func": format!("127.0.0.1:1/{CANARY}:1")}]), State::Failure),
        (
            "export",
            json!([{"name": "a", "script": "echo \"{\\\"name\\\":\\\"$WORD=\\\",\\\"value\\\":1}\" > ${{ export_file }}"}]),
            State::Failure,
        ),
        (
            "garbage",
            json!([{"name": "a", "script": "echo \"KEY=$WORD\" > ${{ export_file }}"}]),
            State::Failure,
        ),
        (
            "builtin",
            json!([{"name": "a", "func": "builtin://function/oci/publish", "inputs": {CANARY: CANARY}}]),
            State::Failure,
        ),
    ]
}

/// Returns everything that the daemon reports on a job, with every error and its metadata.
async fn told(client: &Client, id: &str) -> String {
    let log = match client.try_follow(id, 0).await {
        Ok(follow) => follow.rest().await.map(|log| String::from_utf8_lossy(&log).into_owned()),
        Err(error) => Err(error),
    };
    let past = client.try_follow(id, i32::MAX).await.err();
    let parts = (log, client.try_status(id).await, client.try_steps(id).await, past, client.jobs().await);
    format!("{parts:#?}")
}

/// Returns what other processes can read of a process.
fn seen(pid: i32) -> Vec<(String, Vec<u8>)> {
    ["cmdline", "environ", "comm", "maps"]
        .map(|name| (format!("{name} of {pid}"), fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default()))
        .into()
}

/// Returns the files below the state folder, except those that a running job needs (service.md §6.6).
fn kept(daemon: &Daemon) -> BTreeMap<PathBuf, Vec<u8>> {
    let is_needed = |path: &PathBuf| {
        ["vars", "tmp", "work"].iter().any(|name| path.components().any(|c| c.as_os_str() == *name))
    };
    let mut all = tree(&daemon.state_dir());
    all.retain(|path, _| !is_needed(path) || path.starts_with(daemon.state_dir().join("cache")));
    all
}

#[tokio::test]
async fn fault_38_a_secret_is_in_no_answer_no_file_no_log_and_no_argument() {
    let mut daemon = Setup::new().option("log-level", "trace").start();
    let client = daemon.client().await;
    let folder = functions(&daemon);
    for (id, steps, state) in bad_and_good(&folder) {
        client.try_run(secret(id, &steps.to_string())).await.unwrap();
        let status = client.ended(id).await;
        assert_eq!(status.state(), state, "{id}: {status:?}");
    }
    // This job runs during the checks.
    let go = daemon.file("go");
    let waits = format!("echo on $WORD; until [ -e {} ]; do sleep 0.02; done; exit 3", go.display());
    client.try_run(secret("running", &script(&waits))).await.unwrap();
    client.prints("running", "on [MASKED]").await;
    for bad in [
        RunRequest { steps: format!("- {{name: a, script: '{CANARY}'"), ..secret("bad", "") },
        RunRequest { steps: format!("- {{name: a, script: x, {CANARY}: 1}}"), ..secret("bad", "") },
        RunRequest { work_dir: format!("relative/{CANARY}"), ..secret("bad", &script("true")) },
        RunRequest { work_dir: format!("/proc/{CANARY}"), ..secret("bad", &script("true")) },
    ] {
        let error = format!("{:#?}", client.try_run(bad).await.unwrap_err());
        assert!(!error.contains(CANARY), "{error}");
    }
    let look = async |daemon: &Daemon, client: &Client, when: &str| {
        for status in client.jobs().await {
            if status.finished {
                let told = told(client, &status.id).await;
                assert!(!told.contains(CANARY), "{when}: {}: {told}", status.id);
            }
        }
        let keeper = daemon.keeper_pid().unwrap();
        for (what, bytes) in [seen(daemon.pid()), seen(keeper)].concat() {
            assert!(!contains(&bytes, CANARY), "{when}: {what}");
        }
        for (path, bytes) in kept(daemon) {
            assert!(!contains(&bytes, CANARY), "{when}: {}", path.display());
            assert!(!path.to_string_lossy().contains(CANARY), "{when}: {}", path.display());
        }
        assert!(!daemon.said().contains(CANARY), "{when}: the operator's log: {}", daemon.said());
    };
    look(&daemon, &client, "while a job runs").await;
    daemon.kill();
    look_at_files(&daemon, "while there is no daemon");
    daemon.restart();
    let client = daemon.client().await;
    client.prints("running", "on [MASKED]").await;
    look(&daemon, &client, "after a restart").await;
    fs::write(&go, "").unwrap();
    assert_eq!(client.ended("running").await.exit_code, 3);
    look(&daemon, &client, "at the end").await;
    for status in client.jobs().await {
        client.finish(&status.id).await;
    }
    for (path, bytes) in tree(&daemon.state_dir()) {
        assert!(!contains(&bytes, CANARY), "after Finish: {}", path.display());
    }
}

/// Secrets shorter than 8 bytes have no encoded forms. Where the language quotes one, it is masked all the same.
#[tokio::test]
async fn fault_35_a_short_secret_is_hidden_where_an_expression_quotes_it() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let variable = |key: &str, value: &str, masked| v1::Variable {
        key: key.into(),
        value: value.into(),
        masked,
        ..v1::Variable::default()
    };
    let variables = vec![variable("T", "a\"b", true), variable("OPEN", "c\"d", false)];
    for (id, value, shown) in [
        ("env", "${{ str([env.T]) }}", r#"["[MASKED]"]"#),
        ("whole", "${{ str({x: env}.x.T) }}", "[MASKED]"),
        ("vars", "${{ str([vars.T]) }}", r#"["[MASKED]"]"#),
        ("open", "${{ str([env.OPEN]) }}", r#"["c\"d"]"#),
    ] {
        let job = Some(v1::Job { variables: variables.clone(), ..v1::Job::default() });
        let steps = script(&format!("printf '%s\\n' '{value}'"));
        client.try_run(RunRequest { job, ..request(id, &steps) }).await.unwrap();
        assert_eq!(client.ended(id).await.exit_code, 0, "{id}");
        assert_eq!(client.output(id).await, format!("{shown}\n"), "{id}");
        let results = format!("{:?}", client.steps(id).await);
        assert!(!results.contains(r#"a\\\"b"#) && !results.contains(r#"a\"b"#), "{id}: {results}");
    }
}

fn look_at_files(daemon: &Daemon, when: &str) {
    for (path, bytes) in kept(daemon) {
        assert!(!contains(&bytes, CANARY), "{when}: {}", path.display());
    }
}

/// Counts the copies of `text` in the writable memory of a process.
fn copies_in_memory(pid: i32, text: &str) -> usize {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let mut memory = fs::File::open(format!("/proc/{pid}/mem")).unwrap();
    let mut copies = 0;
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        let (range, rights) = (words.next().unwrap(), words.next().unwrap());
        if !rights.starts_with("rw") {
            continue;
        }
        let (start, end) = range.split_once('-').unwrap();
        let [start, end] = [start, end].map(|address| u64::from_str_radix(address, 16).unwrap());
        let mut bytes = vec![0; (end - start) as usize];
        memory.seek(SeekFrom::Start(start)).unwrap();
        // Pages that are not mapped end the read.
        let mut read = 0;
        while let Ok(more @ 1..) = memory.read(&mut bytes[read..]) {
            read += more;
        }
        copies += memchr::memmem::find_iter(&bytes[..read], text).count();
    }
    copies
}

#[tokio::test]
async fn fault_38_after_finish_no_copy_of_a_secret_is_in_memory() {
    if !is_root("fault_38_after_finish_no_copy_of_a_secret_is_in_memory") {
        return;
    }
    let mut daemon = Daemon::start();
    let folder = functions(&daemon);
    let client = daemon.client().await;
    // Starts the keeper, and does the work that is done only once.
    client.run("beside", "echo on; exec sleep 600").await;
    client.prints("beside", "on").await;
    let held = || [daemon.pid(), daemon.keeper_pid().unwrap()].map(|pid| copies_in_memory(pid, CANARY));
    assert_eq!(held(), [0, 0], "before");
    {
        let client = daemon.client().await;
        client.try_run(secret("alive", &script("echo on $WORD; exec sleep 600"))).await.unwrap();
        client.prints("alive", "on").await;
        let [in_daemon, in_keeper] = held();
        assert!(in_daemon > 0 && in_keeper > 0, "the search finds what is there: {in_daemon}, {in_keeper}");
        for (id, steps, _) in bad_and_good(&folder) {
            client.try_run(secret(id, &steps.to_string())).await.unwrap();
            client.ended(id).await;
            client.steps(id).await;
            client.finish(id).await;
        }
        assert_eq!(client.jobs().await.len(), 2);
    }
    // The new daemon gets the job from the keeper.
    daemon.kill();
    daemon.restart();
    let client = daemon.client().await;
    let held = || [daemon.pid(), daemon.keeper_pid().unwrap()].map(|pid| copies_in_memory(pid, CANARY));
    client.prints("alive", "on").await;
    let [in_daemon, in_keeper] = held();
    assert!(in_daemon > 0 && in_keeper > 0, "{in_daemon}, {in_keeper}");
    client.finish("alive").await;
    // Other work overwrites what is left in stacks and in buffers of connections.
    for id in ["x", "y", "z"] {
        client.run_to_end(id, &script("echo x; echo y >&2")).await;
        client.finish(id).await;
    }
    // Connections and threads end a little later, so this waits.
    until("no copy is left in daemon and keeper", || held() == [0, 0]).await;
    client.finish("beside").await;
}

#[tokio::test]
async fn fault_71_the_daemons_environment_reaches_steps_as_the_setting_says() {
    for base in ["all", "list"] {
        let setup = Setup::new()
            .env("OF_DAEMON", CANARY)
            .env("STEP_RUNNER_LOG_LEVEL", "info")
            .env("CI_JOB_TOKEN", CANARY)
            .option("env-base", base);
        let daemon = setup.start();
        let client = daemon.client().await;
        // A variable of the job reaches the step whatever the setting.
        let variable = v1::Variable { key: "OF_JOB".into(), value: "1".into(), ..v1::Variable::default() };
        let job = Some(v1::Job { variables: vec![variable], ..v1::Job::default() });
        let steps = script("env; tr '\\0' '\\n' < /proc/self/environ");
        client.try_run(RunRequest { job, ..request("1", &steps) }).await.unwrap();
        assert_eq!(client.ended("1").await.exit_code, 0);
        let output = client.output("1").await;
        assert!(output.contains("OF_JOB=1\n") && output.contains("PATH="), "{output}");
        assert!(!output.contains("STEP_RUNNER_LOG_LEVEL"), "its own settings: {output}");
        assert_eq!(output.contains("OF_DAEMON="), base == "all", "{base}: {output}");
        assert!(base == "all" || !output.contains(CANARY), "{base}: {output}");
        // Only root can read the keeper's environment.
        if is_root("fault_71_the_daemons_environment_reaches_steps_as_the_setting_says") {
            let keeper = daemon.keeper_pid().unwrap();
            let environ = fs::read(format!("/proc/{keeper}/environ")).unwrap();
            assert!(!contains(&environ, CANARY), "the keeper needs none of it");
        }
    }
}

#[tokio::test]
async fn fault_71_neither_a_step_of_the_same_user_nor_another_user_reads_what_the_daemon_holds() {
    if !is_root("fault_71_neither_a_step_of_the_same_user_nor_another_user_reads_what_the_daemon_holds") {
        return;
    }
    let place = Place::of(ORDINARY);
    let setup = place.setup().env("OF_DAEMON", CANARY).option("env-base", "list");
    let daemon = setup.start_in(place.path());
    let client = daemon.client().await;
    // `$PPID` of a step is the keeper, or the reaper of its job.
    let text = format!(
        "for pid in $PPID {}; do for file in environ mem maps fd/0 exe cwd; do \
         if cat /proc/$pid/$file >/dev/null 2>&1 || readlink /proc/$pid/$file; then echo $file is readable; fi; done; \
         kill -0 $pid && echo $pid lives; done; id -u",
        daemon.pid()
    );
    assert_eq!(client.run_to_end("1", &script(&text)).await.exit_code, 0);
    let output = client.output("1").await;
    assert!(output.ends_with("1000\n") && !output.contains("readable"), "{output}");
    assert_eq!(output.matches("lives").count(), 2, "{output}");
    for pid in [daemon.pid(), daemon.keeper_pid().unwrap()] {
        // The `/proc` files of a process that cannot be dumped belong to root.
        assert_eq!(fs::metadata(format!("/proc/{pid}/environ")).unwrap().uid(), 0, "{pid} can be dumped");
        let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
        let core = limits.lines().find_map(|line| line.strip_prefix("Max core file size")).unwrap();
        assert_eq!(core.split_whitespace().next(), Some("0"), "core dumps of {pid}");
        for user in [ORDINARY, 1_001] {
            let environ = format!("/proc/{pid}/environ");
            let output = command_as(user, "cat").arg(&environ).output().unwrap();
            assert!(!output.status.success() && output.stdout.is_empty(), "{user}: {output:?}");
        }
    }
}

#[test]
fn fault_38_a_run_without_daemon_shows_no_secret_and_leaves_none() {
    let dir = tempfile::tempdir().unwrap();
    let temporary = dir.path().join("tmp");
    fs::create_dir(&temporary).unwrap();
    let text = "spec: {}\n---\nrun:\n- {name: a, script: 'echo $TOKEN; echo ${{ vars.TOKEN }} >&2'}\n\
                - {name: b, script: 'echo ${{ env[vars.TOKEN] }}'}\n";
    fs::write(dir.path().join("func.yml"), text).unwrap();
    for output in ["plain", "pretty", "raw"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_step-runner"));
        command.args(["-vv", "run", "func.yml", "--masked-var", "TOKEN", "--env-base", "list"]);
        command.args(["--output", output, "--results", "results.json"]);
        command.current_dir(dir.path()).env("TOKEN", CANARY).env("TMPDIR", &temporary);
        let output = command.output().unwrap();
        let said =
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(!output.status.success() && said.contains("[MASKED]"), "{said}");
        assert!(!said.contains(CANARY), "{said}");
        let results = fs::read_to_string(dir.path().join("results.json")).unwrap();
        assert!(results.contains("[MASKED]") && !results.contains(CANARY), "{results}");
        fs::remove_file(dir.path().join("results.json")).unwrap();
    }
    crate::support::wait_for("an empty folder", || {
        crate::support::names(&temporary).is_empty().then_some(())
    });
}

#[test]
fn fault_38_what_a_command_says_of_a_local_document_shows_no_secret() {
    let dir = tempfile::tempdir().unwrap();
    let wrong = format!("- name: a\n  {CANARY}: 1\n  script: x\n");
    let fails = format!("[{{name: a, func: './x${{{{ \\\"y\\\" }}}}', env: {{T: {CANARY}}}}}]\n");
    let named = format!("- name: {CANARY}\n  script: exit 3\n");
    // An excerpt of 140 columns cuts this line within the secret, wherever it begins.
    let long: Vec<String> = (0..24)
        .map(|n| {
            format!("- name: a\n  script: x\n  k: 1 # {}{CANARY}{}\n", "x".repeat(110 + n), "y".repeat(200))
        })
        .collect();
    let long = long.iter().map(|text| (text, ["run", "-", "--no-check"].as_slice()));
    for (text, words) in [
        (&wrong, ["run", "-"].as_slice()),
        (&wrong, &["run", "-", "--no-check"]),
        (&wrong, &["run", "-", "--no-check", "--color", "always"]),
        (&fails, &["run", "-", "--no-check"]),
        (&named, &["run", "-", "--id", CANARY]),
        (&named, &["run", "-", "--output", "pretty", "--color", "always"]),
    ]
    .into_iter()
    .chain(long)
    {
        fs::write(dir.path().join("steps"), text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_step-runner"));
        command.args(words).args(["--masked-var", "TOKEN"]).current_dir(dir.path()).env("TOKEN", CANARY);
        command.stdin(fs::File::open(dir.path().join("steps")).unwrap());
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{words:?}: {said}");
        assert!(text.len() > 200 || said.contains("[MASKED]"), "{words:?}: {said}");
        let has_piece = CANARY
            .as_bytes()
            .windows(6)
            .any(|piece| contains(said.as_bytes(), str::from_utf8(piece).unwrap()));
        assert!(!has_piece, "{words:?}: {said}");
        assert!(!String::from_utf8_lossy(&output.stdout).contains(CANARY), "{words:?}: {output:?}");
    }
}

#[test]
fn fault_38_no_excerpt_shows_the_password_of_a_url_or_a_value_that_the_job_made_secret() {
    let dir = tempfile::tempdir().unwrap();
    let function = "spec: {inputs: {t: {type: string, sensitive: true}, n: {type: number}}}\n---\nexec: {command: [\"true\"]}\n";
    fs::create_dir(dir.path().join("f")).unwrap();
    fs::write(dir.path().join("f/func.yml"), function).unwrap();
    let url = format!("- {{name: a, func: \"https://user:{CANARY}@127.0.0.1:1/x@v1\"");
    let value = format!("- {{name: a, func: ./f, inputs: {{t: {CANARY}, n: \"${{{{ vars.N }}}}\"}}}}\n");
    for (text, words, place) in [
        (format!("{url}}}\n"), ["run", "steps.yml"].as_slice(), "at         steps.yml:1:"),
        (format!("{url}, ifs: x}}\n"), &["run", "steps.yml"], "--> steps.yml:1:"),
        (format!("{url}, ifs: x}}\n"), &["check", "steps.yml"], "--> steps.yml:1:"),
        (value, &["run", "--no-check", "--var", "N=x", "steps.yml"], "at         steps.yml:1:"),
    ] {
        fs::write(dir.path().join("steps.yml"), &text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_step-runner"));
        let output = command.args(words).current_dir(dir.path()).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(!output.status.success() && said.contains(place), "{words:?}: {said}");
        assert!(!said.contains(CANARY), "{words:?}: {said}");
    }
}

/// The document that is made of a reference has a name, which stands in messages and in the job's log.
#[test]
fn fault_38_a_reference_on_the_command_line_shows_its_login_nowhere() {
    let dir = tempfile::tempdir().unwrap();
    for reference in [
        format!("http://user:{CANARY}@127.0.0.1:1/g/r.git@v1"),
        format!("http://{CANARY}@127.0.0.1:1/g/r.git@v1"),
        format!("http://user:{CANARY}@127.0.0.1:1/g/r.git@"),
        format!("ssh://user:{CANARY}@127.0.0.1/g/r.git@v1"),
        format!("user:{CANARY}@127.0.0.1/g"),
    ] {
        for words in [&["run"][..], &["run", "--dry-run"], &["run", "--output", "json"], &["check"]] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_step-runner"));
            let output = command.args(words).arg(&reference).current_dir(dir.path()).output().unwrap();
            let said = [output.stdout, output.stderr].concat();
            let said = String::from_utf8_lossy(&said);
            assert!(said.contains("127.0.0.1") && !said.contains(CANARY), "{words:?} {reference}: {said}");
        }
    }
}

#[tokio::test]
async fn fault_38_a_crash_leaves_no_core_dump() {
    let mut daemon = Daemon::start();
    let client = daemon.client().await;
    client.try_run(secret("1", &script("echo on; exec sleep 600"))).await.unwrap();
    client.prints("1", "on").await;
    let limits = |pid| fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    for pid in [daemon.pid(), daemon.keeper_pid().unwrap()] {
        let limits = limits(pid);
        let core = limits.lines().find_map(|line| line.strip_prefix("Max core file size")).unwrap();
        assert_eq!(core.split_whitespace().next(), Some("0"), "{limits}");
    }
    kill(daemon.pid(), rustix::process::Signal::ABORT);
    assert_eq!(daemon.wait(), None, "ended by a signal");
    look_at_files(&daemon, "after a crash");
}
