//! What must be refused, with its code and reason, with nothing left behind and nobody else disturbed.
#![expect(clippy::unwrap_used, reason = "a broken scene fails the test")]

mod support;

use std::collections::BTreeMap;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use step_runner::pb::v1::{self, RunRequest, State};
use support::{Client, Daemon, Setup, contains, is_root, logs, names, refused, request, script, tree};
use tonic::Code;

/// Another job, which runs while bad things happen beside it.
struct Beside {
    client: Client,
    start_time: Option<prost_types::Timestamp>,
}

impl Beside {
    async fn start(daemon: &Daemon) -> Self {
        let client = daemon.client().await;
        let go = daemon.file("go");
        client
            .run("beside", &format!("echo on; until [ -e {} ]; do sleep 0.02; done; echo bye", go.display()))
            .await;
        client.prints("beside", "on").await;
        let start_time = client.status("beside").await.start_time;
        Self { client, start_time }
    }

    /// It runs as before, ends well, and nothing but it was there.
    async fn unaffected(self, daemon: &Daemon) {
        assert_eq!(daemon.folders().len(), 1, "something is left: {:?}", daemon.folders());
        let status = self.client.status("beside").await;
        assert_eq!((status.state(), &status.start_time), (State::Running, &self.start_time));
        std::fs::write(daemon.file("go"), "").unwrap();
        assert_eq!(self.client.ended("beside").await.exit_code, 0);
        assert_eq!(self.client.output("beside").await, "on\nbye\n");
    }
}

#[tokio::test]
async fn fault_70_ids_never_shape_a_path() {
    let daemon = Daemon::start();
    let beside = Beside::start(&daemon).await;
    let client = daemon.client().await;
    let victim = daemon.file("victim");
    std::fs::create_dir_all(victim.join("deep")).unwrap();
    std::fs::write(victim.join("deep/file"), "precious").unwrap();
    let before = tree(&victim);
    let long = "a".repeat(129);
    let longer = "../".repeat(10 << 10);
    let ids = [
        "",
        ".",
        "..",
        "../victim",
        "x/../../victim",
        "../../../victim",
        "/etc",
        "a/b",
        "a\\b",
        "a\0b",
        "\0",
        "a b",
        " a",
        "a\n",
        "-a",
        "_a",
        ".a",
        "ä",
        "a\u{202e}b",
        "😀",
        "a*",
        "$(id)",
        "~",
        &long,
        &longer,
    ];
    for id in ids {
        let invalid = Code::InvalidArgument;
        refused(client.try_run(request(id, &script("true"))).await, invalid, "invalid_id");
        refused(client.try_follow(id, 0).await, invalid, "invalid_id");
        refused(client.try_steps(id).await, invalid, "invalid_id");
        refused(client.try_cancel(id).await, invalid, "invalid_id");
        refused(client.try_finish(id).await, invalid, "invalid_id");
        if !id.is_empty() {
            refused(client.try_status(id).await, invalid, "invalid_id");
        }
    }
    assert_eq!(tree(&victim), before);
    beside.unaffected(&daemon).await;
}

#[tokio::test]
async fn every_allowed_id_works() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let long = "b".repeat(128);
    let ids = ["1", "a..b", "A", "a", "0._-:@+Z", "42-run", &long];
    for id in ids {
        client.run(id, "echo x").await;
    }
    for id in ids {
        assert_eq!(client.ended(id).await.exit_code, 0);
        assert_eq!(client.output(id).await, "x\n");
    }
    assert_eq!(client.jobs().await.len(), ids.len(), "case matters");
    for id in ids {
        client.finish(id).await;
    }
    assert_eq!(daemon.folders(), Vec::<String>::new());
}

#[tokio::test]
async fn fault_20_unknown_ids_are_not_found() {
    let daemon = Daemon::start();
    let beside = Beside::start(&daemon).await;
    let client = daemon.client().await;
    refused(client.try_follow("no", 0).await, Code::NotFound, "unknown_job");
    refused(client.try_follow("no", 7).await, Code::NotFound, "unknown_job");
    refused(client.try_steps("no").await, Code::NotFound, "unknown_job");
    refused(client.try_status("no").await, Code::NotFound, "unknown_job");
    refused(client.try_cancel("no").await, Code::NotFound, "unknown_job");
    client.finish("no").await;
    beside.unaffected(&daemon).await;
}

#[tokio::test]
async fn fault_20_offsets_outside_the_log_are_refused() {
    let daemon = Daemon::start();
    let beside = Beside::start(&daemon).await;
    let client = daemon.client().await;
    let running = i32::try_from(client.status("beside").await.log_bytes).unwrap();
    for offset in [-1, i32::MIN] {
        refused(client.try_follow("beside", offset).await, Code::InvalidArgument, "offset_negative");
    }
    for offset in [running + 1, i32::MAX] {
        refused(client.try_follow("beside", offset).await, Code::OutOfRange, "offset_past_end");
    }
    let status = client.run_to_end("1", &script("echo x")).await;
    let end = i32::try_from(status.log_bytes).unwrap();
    refused(client.try_follow("1", end + 1).await, Code::OutOfRange, "offset_past_end");
    refused(client.try_follow("1", -1).await, Code::InvalidArgument, "offset_negative");
    assert_eq!(client.follow("1", end).await.rest().await.unwrap(), b"");
    client.finish("1").await;
    beside.unaffected(&daemon).await;
}

#[tokio::test]
async fn broken_steps_are_refused_with_all_their_places_and_none_of_their_text() {
    let daemon = Daemon::start();
    let beside = Beside::start(&daemon).await;
    let client = daemon.client().await;
    // Steps, and the places of all errors in them.
    let cases: &[(&str, &[&str])] = &[
        ("", &["<steps>:1:1"]),
        ("canary", &["<steps>:1:1"]),
        ("[]", &["<steps>:1:1"]),
        ("{}", &["<steps>:1:3"]),
        ("- {name: a, script: 'canary'", &["<steps>:"]),
        ("- name: a\n\tscript: canary", &["<steps>:1:"]),
        ("- {name: a, script: canary}\n- {name: a b, script: canary}", &["<steps>:2:10"]),
        ("- {name: a, script: canary, script: canary}", &["<steps>:1:"]),
        ("- {script: canary}", &["<steps>:1:3"]),
        ("- {name: a}", &["<steps>:1:3"]),
        ("- {name: a, script: canary, func: ./canary}", &["<steps>:1:"]),
        ("- {name: a, script: canary, inputs: {x: canary}}", &["<steps>:1:"]),
        ("- {name: a, script: [canary]}", &["<steps>:1:21"]),
        ("- {name: a, script: canary, if: canary}", &["<steps>:1:29"]),
        ("- {name: a, func: canary}", &["<steps>:1:19"]),
        ("- {name: a, func: 'http://canary'}", &["<steps>:1:19"]),
        ("- {name: a, script: 'x ${{ 1 + }}'}", &["<steps>:1:"]),
        ("- {name: a, script: 'x ${{ canary'}", &["<steps>:1:"]),
        ("- {name: a, script: x, env: {'A B': canary}}", &["<steps>:1:30"]),
        ("- {name: a, script: x, env: {A: [canary]}}", &["<steps>:1:33"]),
        (
            "{}\n---\nrun:\n  - {name: 1a, script: canary}\n  - {name: b, scripts: canary}",
            &["<steps>:4:12", "<steps>:5:"],
        ),
        ("{}\n---\nrun: []", &["<steps>:3:6"]),
        ("{}\n---\nsteps: []", &["<steps>:3:1"]),
        ("{}\n---\nrun: [{name: a, script: x}]\nexec: {command: [x]}", &["<steps>:"]),
        ("{}\n---\nexec: {command: []}", &["<steps>:3:17"]),
        ("{}\n---\nexec: {command: canary}", &["<steps>:3:17"]),
        ("canary: 1\n---\nrun: [{name: a, script: x}]", &["<steps>:1:1"]),
        ("spec: {inputs: {a: {type: canary}}}\n---\nrun: [{name: a, script: x}]", &["<steps>:1:27"]),
        ("- &a [*a]", &["<steps>:1:"]),
        ("- {name: 'a\\0b', script: x}", &["<steps>:1:10"]),
    ];
    let mut wrong = Vec::new();
    for (steps, places) in cases {
        let text =
            refused(client.try_run(request("1", steps)).await, Code::InvalidArgument, "malformed_steps");
        let missing = places.iter().filter(|place| !text.contains(**place));
        wrong.extend(missing.map(|place| format!("{steps:?}: no {place} in: {text}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // The text of scripts never comes back.
    for (steps, _) in
        cases.iter().filter(|(steps, _)| steps.contains("script: canary") && !steps.contains("if"))
    {
        let text = client.try_run(request("1", steps)).await.unwrap_err().message().to_owned();
        assert!(!text.contains("canary"), "{steps:?}: {text}");
    }
    beside.unaffected(&daemon).await;
}

#[tokio::test]
async fn at_most_twenty_errors_are_told() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let bad: Vec<_> = (0..30).map(|n| format!("- {{name: '{n} x', script: y}}")).collect();
    let text = refused(
        client.try_run(request("1", &bad.join("\n"))).await,
        Code::InvalidArgument,
        "malformed_steps",
    );
    assert_eq!(text.matches("<steps>:").count(), 20, "{text}");
    assert!(text.contains("10 more"), "{text}");
}

/// `line` of each number, joined.
fn each(count: u32, line: impl Fn(u32) -> String) -> String {
    (0..count).map(line).collect()
}

/// The most memory the daemon has ever had, in MiB.
fn peak_memory(daemon: &Daemon) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    peak.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() / 1024
}

#[tokio::test]
async fn fault_66_hostile_steps_are_refused_within_bounded_memory() {
    let daemon = Daemon::start();
    let beside = Beside::start(&daemon).await;
    let client = daemon.client().await;
    let bomb = (0..30).fold("a0: &a0 [x]\n".to_owned(), |text, n| {
        format!("{text}a{}: &a{} [*a{n},*a{n},*a{n},*a{n},*a{n},*a{n},*a{n},*a{n},*a{n}]\n", n + 1, n + 1)
    });
    let keys: String = each(2_000, |n| format!("k{n}: 1, "));
    let key = "k".repeat(1_000);
    let step = |inputs: &str| format!("- {{name: a, func: ./x, inputs: {inputs}}}\n");
    let cases = [
        ("aliases of aliases", bomb),
        ("aliases of a long text", format!("- &a {}\n{}", "x".repeat(1 << 20), "- *a\n".repeat(10_000))),
        ("merged mappings", format!("- &a {{{keys}}}\n{}", "- {<<: [*a, *a]}\n".repeat(2_000))),
        ("flow depth", "[".repeat(100_000)),
        ("flow depth of mappings", "{a: ".repeat(100_000)),
        ("block depth", "- ".repeat(100_000)),
        ("documents", "---\n".repeat(1_000_000)),
        ("small values", step(&format!("{{a: [{}]}}", "1,".repeat(2_000_000)))),
        ("bad values", step(&format!("{{{key}: [{}]}}", ".inf,".repeat(100_000)))),
        ("unknown keys", each(10_000, |n| format!("{key}{n}: 1\n"))),
        ("expression depth", step(&format!("{{a: '{}'}}", "${{(".repeat(100_000)))),
        ("expressions", step(&format!("{{a: '{}'}}", "${{[1]}}".repeat(400_000)))),
        ("one long expression", step(&format!("{{a: '${{{{ {} }}}}'}}", "1 + ".repeat(250_000)))),
        ("zeros", "\0".repeat(1 << 20)),
        ("quotes", "\"".repeat(1 << 20)),
        ("anchors", "&a ".repeat(300_000)),
        ("tags", "!!a ".repeat(300_000)),
        ("colons", "a: ".repeat(300_000)),
        ("questions", "? ".repeat(300_000)),
        ("comments", "# \n".repeat(1_000_000)),
    ];
    for (what, steps) in cases {
        assert!(steps.len() <= 16 << 20, "{what}");
        let Err(status) = client.try_run(request("1", &steps)).await else { panic!("not refused: {what}") };
        assert_eq!(status.code(), Code::InvalidArgument, "{what}: {}", status.message());
        assert!(status.message().starts_with("malformed_steps: <steps>:"), "{what}: {}", status.message());
        assert!(status.message().len() < 32 << 10, "{what}: {} bytes", status.message().len());
    }
    let peak = peak_memory(&daemon);
    assert!(peak < MEMORY_BOUND, "{peak} MiB");
    beside.unaffected(&daemon).await;
}

/// MiB that the daemon may take for the worst of the texts and values that the language allows.
const MEMORY_BOUND: u64 = 512;

/// Runs steps that must fail with a message that holds each of `words`; nothing of the job stays.
async fn fails(client: &Client, steps: RunRequest, words: &[&str]) {
    // The same request again would be a late duplicate.
    static JOBS: AtomicU32 = AtomicU32::new(0);
    let id = format!("bad-{}", JOBS.fetch_add(1, Ordering::Relaxed));
    client.try_run(RunRequest { id: id.clone(), ..steps }).await.unwrap();
    let status = client.ended(&id).await;
    assert_eq!(status.state(), State::Failure, "{words:?}: {status:?}");
    let missing: Vec<_> = words.iter().filter(|word| !status.message.contains(**word)).collect();
    assert!(missing.is_empty(), "no {missing:?} in {}", status.message);
    client.finish(&id).await;
}

#[tokio::test]
async fn fault_66_hostile_definition_files_fail_their_own_job_within_bounded_memory() {
    let daemon = Daemon::start();
    let beside = Beside::start(&daemon).await;
    let client = daemon.client().await;
    let call = |inputs: &str| {
        let folder = daemon.file("f");
        request("1", &format!("- {{name: a, func: {}, inputs: {inputs}}}", folder.display()))
    };
    let exec = "---\nexec: {command: ['true']}\n";
    let megabyte = |text: &str| text.repeat((1 << 20) / text.len() - 100);
    let file = daemon.file("f/func.yml");
    std::fs::create_dir(daemon.file("f")).unwrap();
    let contents: [(Vec<u8>, &[&str]); 10] = [
        (b"spec: {}\n---\nexec: {command: ['\xff']}\n".to_vec(), &["func.yml"]),
        (b"\xff\xfes\0p\0".to_vec(), &["func.yml"]),
        (format!("spec: {{a: '\0'}}\n{exec}").into(), &["func.yml:1:"]),
        ("{}\n".into(), &["func.yml:2:1: definition missing"]),
        (vec![b' '; (1 << 20) + 1], &["larger than"]),
        (megabyte("[").into(), &["func.yml:1:", "deeper"]),
        (
            format!("spec: {{inputs: {{a: {{type: array, default: [{}]}}}}}}\n{exec}", megabyte("1,")).into(),
            &["func.yml:1:", "64 MiB"],
        ),
        (
            format!("spec: {{inputs: {{a: {{type: array, default: [{}]}}}}}}\n{exec}", megabyte(".inf, "))
                .into(),
            &["func.yml:1:", "default[19]", "more"],
        ),
        (
            format!(
                "spec: {{inputs: {{{}}}}}\n{exec}",
                each(12_000, |n| format!("i{n}: {{type: string}}, "))
            )
            .into(),
            &["input \"i0\" required, but not defined", "more"],
        ),
        (format!("spec: {{}}\n{exec}{}", megabyte("k: ")).into(), &["func.yml:4:"]),
    ];
    for (content, words) in contents {
        std::fs::write(&file, content).unwrap();
        fails(&client, call("{}"), &[&["step \"a\": failed to load: "], words].concat()).await;
    }
    std::fs::write(&file, format!("spec: {{}}\n{exec}")).unwrap();
    let given: String = each(12_000, |n| format!("j{n}: 1, "));
    fails(&client, call(&format!("{{{given}}}")), &["does not accept input with name"]).await;

    std::fs::File::create(&file).unwrap().set_len(10 << 30).unwrap();
    fails(&client, call("{}"), &["failed to load: ", "larger than"]).await;
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    fails(&client, call("{}"), &["failed to load: "]).await;
    std::fs::remove_dir(&file).unwrap();
    symlink(&file, &file).unwrap();
    fails(&client, call("{}"), &["failed to load: "]).await;
    std::fs::remove_file(&file).unwrap();
    assert!(Command::new("mkfifo").arg(&file).status().unwrap().success());
    fails(&client, call("{}"), &["failed to load: "]).await;
    let peak = peak_memory(&daemon);
    assert!(peak < MEMORY_BOUND, "{peak} MiB");
    beside.unaffected(&daemon).await;
}

#[tokio::test]
async fn fault_67_values_that_grow_without_end_fail_their_own_job_within_bounded_memory() {
    let daemon = Daemon::start();
    let beside = Beside::start(&daemon).await;
    let client = daemon.client().await;
    let path = daemon.path.display();
    let functions = [
        ("double", "inputs: {x: {type: array}}, outputs: {o: {type: array}}", "[inputs.x, inputs.x]"),
        ("nest", "inputs: {x: {type: array}}, outputs: {o: {type: array}}", "[[[[[[[[inputs.x]]]]]]]]"),
        ("text", "inputs: {x: {type: string}}, outputs: {o: {type: string}}", "inputs.x + inputs.x"),
    ];
    for (name, spec, output) in functions {
        std::fs::create_dir(daemon.file(name)).unwrap();
        let run = format!("run: [{{name: s, func: {path}/leaf}}]\noutputs: {{o: '${{{{ {output} }}}}'}}\n");
        std::fs::write(daemon.file(name).join("func.yml"), format!("spec: {{{spec}}}\n---\n{run}")).unwrap();
    }
    std::fs::create_dir(daemon.file("leaf")).unwrap();
    std::fs::write(daemon.file("leaf/func.yml"), "{}\n---\nexec: {command: ['true']}\n").unwrap();
    for (name, first, words) in [
        ("double", "[1]", "larger than 64 MiB"),
        ("nest", "[1]", "nested deeper"),
        ("text", "xxxxxxxx", "larger than 64 MiB"),
    ] {
        let mut steps = format!("- {{name: s0, func: {path}/{name}, inputs: {{x: {first}}}}}\n");
        for n in 1..40 {
            let input = format!("${{{{ steps.s{}.outputs.o }}}}", n - 1);
            let step = format!("- {{name: s{n}, func: {path}/{name}, inputs: {{x: '{input}'}}}}\n");
            steps.push_str(&step);
        }
        fails(&client, request("1", &steps), &["step \"s", words]).await;
    }
    let big = v1::Variable { key: "B".into(), value: "x".repeat(100 << 10), ..v1::Variable::default() };
    for expression in [
        format!("${{{{ vars.B{} }}}}", " + vars.B".repeat(700)),
        format!("${{{{ [{}] }}}}", "vars.B,".repeat(700)),
        "${{ vars.B }}".repeat(700),
    ] {
        let job = Some(v1::Job { variables: vec![big.clone()], ..v1::Job::default() });
        let steps = format!("- {{name: a, script: '{expression}'}}");
        let steps = RunRequest { job, ..request("1", &steps) };
        fails(&client, steps, &["step \"a\": failed to load: <steps>:1:"]).await;
    }
    let peak = peak_memory(&daemon);
    assert!(peak < MEMORY_BOUND, "{peak} MiB");
    beside.unaffected(&daemon).await;
}

#[tokio::test]
async fn fault_73_output_files_that_are_something_else_fail_their_own_job() {
    let daemon = Daemon::start();
    let beside = Beside::start(&daemon).await;
    let client = daemon.client().await;
    let victim = daemon.file("victim");
    std::fs::write(&victim, "{\"name\": \"o\", \"value\": \"stolen\"}\n").unwrap();
    std::fs::create_dir(daemon.file("f")).unwrap();
    let steps = format!("- {{name: a, func: {}}}", daemon.file("f").display());
    let define = |script: &str| {
        let command = serde_json::json!(["sh", "-c", script, "${{ output_file }}", victim]);
        let text = format!("spec: {{outputs: {{o: {{type: string}}}}}}\n---\nexec: {{command: {command}}}\n");
        std::fs::write(daemon.file("f/func.yml"), text).unwrap();
    };
    for (script, words) in [
        ("rm \"$0\"; mkfifo \"$0\"", "output file: "),
        ("ln -sf \"$1\" \"$0\"", "output file: "),
        ("ln -sf /dev/zero \"$0\"", "output file: "),
        ("rm \"$0\"; ln -s \"$0\" \"$0\"", "output file: "),
        ("rm \"$0\"; mkdir \"$0\"", "output file: "),
        ("truncate -s 10G \"$0\"", "16 MiB"),
        ("head -c 17000000 /dev/zero > \"$0\"", "16 MiB"),
        ("yes '' | head -c 2000000 > \"$0\"; echo x >> \"$0\"", "output file line 2000001"),
        ("rm \"$0\"", "output file: No such file"),
        ("printf '{\"name\":\"o\",\"va' > \"$0\"", "output file line 1: "),
        ("printf '\\377' > \"$0\"", "output file line 1: not UTF-8"),
        ("printf '\\0' > \"$0\"", "output file line 1: "),
        ("printf '\\357\\273\\277{\"name\":\"o\",\"value\":\"x\"}' > \"$0\"", "output file line 1: "),
        (
            "{ printf '{\"name\":\"o\",\"value\":['; yes 1, | head -c 900000 | tr -d '\\n'; printf '1]}'; } > \"$0\"",
            "expected string, got array",
        ),
        (
            "{ printf '{\"name\":\"o\",\"value\":'; yes [ | head -c 900000 | tr -d '\\n'; } > \"$0\"",
            "nested deeper",
        ),
    ] {
        define(script);
        fails(&client, request("1", &steps), &["step \"a\": ", words]).await;
    }
    // Something that is left goes on to replace the file while it is read: any end will do, but there is one.
    define(
        "(for i in $(seq 300); do mkfifo \"$0.f\"; mv \"$0.f\" \"$0\"; cp \"$1\" \"$0.c\"; mv \"$0.c\" \"$0\"; done) >/dev/null 2>&1 &",
    );
    for id in ["1", "2", "3", "4", "5"] {
        let status = client.run_to_end(id, &steps).await;
        assert!(matches!(status.state(), State::Success | State::Failure), "{status:?}");
        client.finish(id).await;
    }
    let peak = peak_memory(&daemon);
    assert!(peak < MEMORY_BOUND, "{peak} MiB");
    beside.unaffected(&daemon).await;
}

fn with_variables(variables: Vec<v1::Variable>) -> RunRequest {
    let job = Some(v1::Job { variables, ..v1::Job::default() });
    RunRequest { job, ..request("1", &script("true")) }
}

#[tokio::test]
async fn variables_that_cannot_be_are_refused() {
    let daemon = Daemon::start();
    let beside = Beside::start(&daemon).await;
    let client = daemon.client().await;
    let file = |key: &str| v1::Variable { key: key.into(), value: "canary".into(), file: true, masked: true };
    let plain = |key: &str, value: &str| v1::Variable {
        key: key.into(),
        value: value.into(),
        file: false,
        masked: false,
    };
    let long = "k".repeat(256);
    let bad = [
        plain("", "canary"),
        plain("A=B", "canary"),
        plain("A\0", "canary"),
        plain("A", "can\0ary"),
        plain("CI_STEPS_LOG_LEVEL", "canary"),
        file("a/b"),
        file("../escape"),
        file("a\\b"),
        file("."),
        file(".."),
        file(&long),
    ];
    for variable in bad {
        let key = variable.key.clone();
        let text = refused(
            client.try_run(with_variables(vec![plain("OK", "x"), variable])).await,
            Code::InvalidArgument,
            "invalid_variable",
        );
        assert!(!text.contains("canary"), "{key:?}: {text}");
    }
    for (key, value) in [("", "canary"), ("A=B", "canary"), ("A\0", "canary"), ("A", "can\0ary")] {
        let env = BTreeMap::from([(key.to_owned(), value.to_owned())]);
        let text = refused(
            client.try_run(RunRequest { env, ..request("1", &script("true")) }).await,
            Code::InvalidArgument,
            "invalid_variable",
        );
        assert!(!text.contains("canary"), "{key:?}: {text}");
    }
    beside.unaffected(&daemon).await;
}

#[tokio::test]
async fn working_directories_that_cannot_be_are_refused() {
    let daemon = Daemon::start();
    let beside = Beside::start(&daemon).await;
    let client = daemon.client().await;
    let file = daemon.file("file");
    std::fs::write(&file, "content").unwrap();
    let below = file.join("dir");
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let bad = [
        ("relative".to_owned(), Code::InvalidArgument, "invalid_path"),
        ("../x".to_owned(), Code::InvalidArgument, "invalid_path"),
        ("/tmp/a\0b".to_owned(), Code::InvalidArgument, "invalid_path"),
        (path(&file), Code::FailedPrecondition, "not_writable"),
        (path(&below), Code::FailedPrecondition, "not_writable"),
        ("/proc/no-such".to_owned(), Code::FailedPrecondition, "not_writable"),
    ];
    for (dir, code, reason) in bad {
        let run = RunRequest { work_dir: dir.clone(), ..request("1", &script("true")) };
        refused(client.try_run(run).await, code, reason);
        let variable = v1::Variable { key: "F".into(), value: "v".into(), file: true, masked: false };
        let job = Some(v1::Job { build_dir: dir, variables: vec![variable], ..v1::Job::default() });
        refused(client.try_run(RunRequest { job, ..request("1", &script("true")) }).await, code, reason);
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "content");
    assert!(!daemon.file("file.tmp").exists());
    beside.unaffected(&daemon).await;
}

#[tokio::test]
async fn fault_70_a_link_in_place_of_the_files_directory_is_refused() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let victim = daemon.file("victim");
    std::fs::create_dir(&victim).unwrap();
    symlink(&victim, daemon.file("build.tmp")).unwrap();
    let build_dir = daemon.file("build").to_str().unwrap().to_owned();
    let variable = v1::Variable { key: "F".into(), value: "v".into(), file: true, masked: false };
    let job = Some(v1::Job { build_dir, variables: vec![variable], ..v1::Job::default() });
    let run = RunRequest { job, ..request("1", &script("true")) };
    refused(client.try_run(run).await, Code::FailedPrecondition, "not_writable");
    assert_eq!(names(&victim), Vec::<String>::new());
    assert_eq!(daemon.folders(), Vec::<String>::new());
}

/// Asserts a start that was refused with this exit code; what was said.
fn refuses_to_start(setup: Setup, socket: &Path, code: i32) -> String {
    let start = Instant::now();
    let output = setup.refused(socket);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert!(!said.contains("is listening on socket"), "{said}");
    assert!(start.elapsed() < Duration::from_secs(5));
    said
}

#[test]
fn fault_53_a_socket_path_that_is_something_else_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "content").unwrap();
    let folder = dir.path().join("folder");
    std::fs::create_dir(&folder).unwrap();
    let link = dir.path().join("link");
    symlink(&file, &link).unwrap();
    let dangling = dir.path().join("dangling");
    symlink(dir.path().join("nothing"), &dangling).unwrap();
    for path in [&file, &folder, &link, &dangling] {
        let before = std::fs::symlink_metadata(path).unwrap();
        let said = refuses_to_start(Setup::new(), path, 1);
        assert!(said.contains(path.to_str().unwrap()), "{said}");
        let after = std::fs::symlink_metadata(path).unwrap();
        assert_eq!(before.file_type(), after.file_type());
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "content");
    assert!(!dir.path().join("nothing").exists());
    let long = dir.path().join("x".repeat(101));
    let said = refuses_to_start(Setup::new(), &long, 1);
    assert!(said.contains("100"), "{said}");
}

#[tokio::test]
async fn fault_52_of_two_daemons_on_a_path_the_second_ends() {
    let daemon = Daemon::start();
    let beside = Beside::start(&daemon).await;
    let expected = format!("already serving on {} (pid {})", daemon.socket.display(), daemon.pid());
    // With the same state folder, and with another one.
    let said = refuses_to_start(Setup::new(), &daemon.socket, 1);
    assert!(said.contains(&expected), "{said}");
    let other = daemon.file("other-state");
    let said = refuses_to_start(Setup::new().option("state-dir", other.to_str().unwrap()), &daemon.socket, 1);
    assert!(said.contains(&expected), "{said}");
    beside.unaffected(&daemon).await;
}

#[test]
fn fault_52_of_many_starters_exactly_one_wins() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s.sock");
    let mut starters: Vec<_> = (0..10)
        .map(|_| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_step-runner"));
            command.arg("serve").arg("--socket").arg(&socket).stderr(std::process::Stdio::null());
            command.spawn().unwrap()
        })
        .collect();
    support::wait_for("all but one to end", || {
        let ended = starters.iter_mut().filter_map(|starter| starter.try_wait().unwrap());
        let codes: Vec<_> = ended.map(|status| status.code()).collect();
        assert!(codes.iter().all(|code| *code == Some(1)), "{codes:?}");
        assert!(codes.len() < 10, "none is left");
        (codes.len() == 9).then_some(())
    });
    let winner =
        starters.iter_mut().find_map(|starter| starter.try_wait().unwrap().is_none().then_some(starter));
    let winner = winner.unwrap();
    let connected = std::os::unix::net::UnixStream::connect(&socket);
    winner.kill().unwrap();
    winner.wait().unwrap();
    connected.unwrap();
}

#[test]
fn fault_74_a_state_folder_that_is_a_link_or_open_to_others_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s.sock");
    let target = dir.path().join("target");
    std::fs::create_dir(&target).unwrap();
    std::fs::set_permissions(&target, std::fs::Permissions::from_mode(0o700)).unwrap();
    let link = dir.path().join("link");
    symlink(&target, &link).unwrap();
    let state = |path: &Path| Setup::new().option("state-dir", path.to_str().unwrap());
    let said = refuses_to_start(state(&link), &socket, 1);
    assert!(said.contains("symbolic link"), "{said}");
    let file = dir.path().join("file");
    std::fs::write(&file, "content").unwrap();
    refuses_to_start(state(&file), &socket, 1);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "content");
    let open = dir.path().join("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o755)).unwrap();
    refuses_to_start(state(&open), &socket, 1);
    assert_eq!(names(&open), Vec::<String>::new());
    assert_eq!(names(&target), Vec::<String>::new());
    assert!(!socket.exists());
}

#[test]
fn fault_74_a_state_folder_of_another_user_is_refused() {
    if !is_root("fault_74_a_state_folder_of_another_user_is_refused") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let foreign = dir.path().join("foreign");
    std::fs::create_dir(&foreign).unwrap();
    std::fs::set_permissions(&foreign, std::fs::Permissions::from_mode(0o700)).unwrap();
    std::os::unix::fs::chown(&foreign, Some(1_000), None).unwrap();
    let setup = Setup::new().option("state-dir", foreign.to_str().unwrap());
    let said = refuses_to_start(setup, &dir.path().join("s.sock"), 1);
    assert!(said.contains("1000"), "{said}");
    assert_eq!(names(&foreign), Vec::<String>::new());
}

/// A folder in which everybody may make files, as the system's temporary one, and a copy of the program there.
fn shared_folder() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o1777)).unwrap();
    let program = dir.path().join("step-runner");
    std::fs::copy(env!("CARGO_BIN_EXE_step-runner"), &program).unwrap();
    (dir, program)
}

/// The program as user 1000, with `folder` for temporary files.
fn as_ordinary_user(program: &Path, folder: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=1000", "--regid=1000", "--clear-groups"]).arg(program);
    command.env("TMPDIR", folder).env_remove("XDG_STATE_HOME").env_remove("STEP_RUNNER_SOCKET");
    command
}

/// The user who makes traps.
const ATTACKER: u32 = 1_001;

/// Makes something at a path, perhaps a way to a victim's file.
type Trap = fn(&Path, &Path);

#[test]
fn fault_74_paths_that_another_user_has_taken_are_refused_and_left_alone() {
    if !is_root("fault_74_paths_that_another_user_has_taken_are_refused_and_left_alone") {
        return;
    }
    let state = "step-runner-1000";
    let own = |path: &Path| std::os::unix::fs::lchown(path, Some(ATTACKER), Some(ATTACKER)).unwrap();
    let folder: Trap = |path, _| {
        std::fs::create_dir(path).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
    };
    let file: Trap = |path, _| {
        std::fs::write(path, "bait").unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666)).unwrap();
    };
    let link: Trap = |path, victim| symlink(victim, path).unwrap();
    let stale: Trap = |path, _| {
        drop(std::os::unix::net::UnixListener::bind(path).unwrap());
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
    };
    let cases: [(&str, Trap); 10] = [
        (state, folder),
        (state, file),
        (state, link),
        ("step-runner.sock", folder),
        ("step-runner.sock", file),
        ("step-runner.sock", link),
        ("step-runner.sock", stale),
        ("step-runner.sock.lock", file),
        ("step-runner.sock.lock", link),
        ("step-runner.sock.lock", folder),
    ];
    for (number, (name, trap)) in cases.into_iter().enumerate() {
        let (dir, program) = shared_folder();
        let victim = dir.path().join("victim");
        std::fs::write(&victim, "precious").unwrap();
        let path = dir.path().join(name);
        trap(&path, &victim);
        own(&path);
        let before = std::fs::symlink_metadata(&path).unwrap();
        let output = as_ordinary_user(&program, dir.path()).arg("serve").output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{number} {name}: {said}");
        assert!(said.contains(name) && !said.contains("is listening on"), "{number} {name}: {said}");
        let after = std::fs::symlink_metadata(&path).unwrap();
        assert_eq!((before.file_type(), before.len()), (after.file_type(), after.len()), "{number} {name}");
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious", "{number} {name}");
        if after.is_dir() {
            assert_eq!(names(&path), Vec::<String>::new(), "{number} {name}");
        }
    }
}

#[tokio::test]
async fn fault_74_a_client_does_not_speak_to_a_stranger_on_the_default_socket() {
    if !is_root("fault_74_a_client_does_not_speak_to_a_stranger_on_the_default_socket") {
        return;
    }
    let (dir, program) = shared_folder();
    let home = dir.path().join("attacker");
    std::fs::create_dir(&home).unwrap();
    std::os::unix::fs::chown(&home, Some(1_001), Some(1_001)).unwrap();
    let wrapper = ["setpriv", "--reuid=1001", "--regid=1001", "--clear-groups"];
    let daemon =
        Setup::new().program(&program).wrapper(&wrapper).option("socket-mode", "0666").start_in(&home);
    let default = dir.path().join("step-runner.sock");
    symlink(&daemon.socket, &default).unwrap();
    for call in [&["status"][..], &["proxy"]] {
        let mut command = as_ordinary_user(&program, dir.path());
        let output = command.args(call).stdin(std::process::Stdio::null()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains("user 1001"), "{call:?}: {said}");
    }
}

#[tokio::test]
async fn fault_46_a_state_folder_of_a_newer_format_is_not_touched() {
    let mut daemon = Daemon::start();
    daemon.client().await.run_to_end("1", &script("echo x")).await;
    daemon.stop();
    let json = daemon.state_dir().join("daemon.json");
    let text = std::fs::read_to_string(&json).unwrap();
    std::fs::write(&json, text.replace("\"format\":1", "\"format\":2")).unwrap();
    let before = tree(&daemon.state_dir());
    let said = refuses_to_start(Setup::new(), &daemon.socket, 78);
    assert!(said.contains('2'), "{said}");
    let mut after = tree(&daemon.state_dir());
    // The lock says who holds it last; it is no part of the state.
    after.insert(daemon.state_dir().join("lock"), before[&daemon.state_dir().join("lock")].clone());
    assert_eq!(before, after);
    std::fs::write(&json, text).unwrap();
    daemon.restart();
    assert_eq!(daemon.client().await.ended("1").await.exit_code, 0);
}

#[tokio::test]
async fn fault_44_damaged_records_cost_only_their_own_job() {
    let mut daemon = Daemon::start();
    let client = daemon.client().await;
    let mut damages: Vec<(&str, Damage)> = Vec::new();
    for file in ["job.json", "journal", "steps"] {
        for part in 0..12 {
            damages.push((file, Damage::Flip(part)));
        }
        damages.push((file, Damage::Cut));
        damages.push((file, Damage::Empty));
        damages.push((file, Damage::Garbage));
        damages.push((file, Damage::Directory));
        damages.push((file, Damage::Link));
    }
    let mut before = Vec::new();
    for n in 0..damages.len() {
        let id = format!("damaged-{n}");
        let status = client.run_to_end(&id, &script(&format!("echo {n}"))).await;
        before.push((status, client.log(&id).await, client.steps(&id).await));
    }
    let whole = client.run_to_end("whole", &script("echo whole")).await;
    daemon.stop();
    for (n, (file, damage)) in damages.iter().enumerate() {
        damage.apply(&daemon.folder(&format!("damaged-{n}")).join(file));
    }
    std::fs::write(daemon.state_dir().join("jobs/stray"), "no folder").unwrap();
    std::fs::create_dir(daemon.state_dir().join("jobs/0123456789abcdef0123456789abcdef")).unwrap();
    daemon.restart();
    let client = daemon.client().await;
    assert_eq!(client.status("whole").await, whole);
    assert_eq!(client.output("whole").await, "whole\n");
    for (n, (damage, (status, log, steps))) in damages.iter().zip(before).enumerate() {
        let id = format!("damaged-{n}");
        match client.try_status(&id).await {
            Ok(known) if interrupted(&known) => {}
            Ok(known) => {
                assert_eq!(known, status, "{damage:?}");
                assert_eq!(client.log(&id).await, log, "{damage:?}");
                match client.try_steps(&id).await {
                    Ok(found) => assert_eq!(found, steps, "{damage:?}"),
                    lost => drop(refused(lost, Code::DataLoss, "data_loss")),
                }
            }
            // Set aside: every call says so, Run starts a new job, Finish takes it away.
            lost => {
                refused(lost, Code::DataLoss, "data_loss");
                refused(client.try_follow(&id, 0).await, Code::DataLoss, "data_loss");
                refused(client.try_steps(&id).await, Code::DataLoss, "data_loss");
                refused(client.try_cancel(&id).await, Code::DataLoss, "data_loss");
                if n % 2 == 0 {
                    client.run(&id, "echo anew").await;
                    assert_eq!(client.ended(&id).await.exit_code, 0);
                    assert_eq!(client.output(&id).await, "anew\n");
                }
            }
        }
        client.finish(&id).await;
        refused(client.try_status(&id).await, Code::NotFound, "unknown_job");
    }
    client.finish("whole").await;
    assert_eq!(names(&daemon.state_dir().join("broken")), Vec::<String>::new());
}

/// A journal that lost its end record tells of a job that nobody holds any more.
fn interrupted(status: &v1::Status) -> bool {
    (status.state(), status.exit_code) == (State::Interrupted, -4)
}

/// What happens to a file of a job.
#[derive(Debug)]
enum Damage {
    /// One bit, at this twelfth of the file.
    Flip(usize),
    Cut,
    Empty,
    Garbage,
    Directory,
    Link,
}

impl Damage {
    fn apply(&self, file: &Path) {
        let mut bytes = std::fs::read(file).unwrap();
        match self {
            Self::Flip(part) => {
                let at = bytes.len() * part / 12;
                bytes[at] ^= 1 << (part % 8);
            }
            Self::Cut => bytes.truncate(bytes.len() / 2),
            Self::Empty => bytes.clear(),
            Self::Garbage => bytes = vec![0xff; 1 << 20],
            Self::Directory => {
                std::fs::remove_file(file).unwrap();
                return std::fs::create_dir(file).unwrap();
            }
            Self::Link => {
                std::fs::remove_file(file).unwrap();
                return symlink("/dev/zero", file).unwrap();
            }
        }
        std::fs::write(file, bytes).unwrap();
    }
}

/// A file system of its own, unmounted in the end.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(path: &Path, size: &str) -> Self {
        std::fs::create_dir_all(path).unwrap();
        let options = format!("size={size},mode=0700");
        let status = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(path).status();
        assert!(status.unwrap().success());
        Self(path.to_owned())
    }

    /// Leaves no block free.
    fn fill(&self) -> PathBuf {
        let path = self.0.join("filler");
        let mut file = std::fs::File::create(&path).unwrap();
        for size in [64 << 10, 4 << 10] {
            while std::io::Write::write_all(&mut file, &vec![1; size]).is_ok() {}
        }
        path
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        Command::new("umount").arg("-l").arg(&self.0).status().ok();
    }
}

#[tokio::test]
async fn a_full_disk_refuses_jobs_and_holds_running_ones() {
    if !is_root("a_full_disk_refuses_jobs_and_holds_running_ones") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let disk = SmallDisk::mount(&dir.path().join("s.sock.state"), "4m");
    let daemon = Setup::new().option("state-limit", "0").start_in(dir.path());
    let client = daemon.client().await;
    let go = daemon.file("go");
    let text = format!(
        "echo on; until [ -e {go} ]; do sleep 0.02; done; mv {go} {go}ne; head -c 300000 /dev/zero | tr '\\0' x; echo; echo bye",
        go = go.display()
    );
    client.run("1", &text).await;
    client.prints("1", "on").await;
    let filler = disk.fill();
    let before = daemon.folders();
    for n in 0..3 {
        let run = client.try_run(request(&format!("refused-{n}"), &script("true"))).await;
        refused(run, Code::ResourceExhausted, "disk_full");
    }
    assert_eq!(daemon.folders(), before);
    std::fs::write(&go, "").unwrap();
    support::until("the job writes", || daemon.file("gone").exists()).await;
    // It writes more than a pipe takes, so it has to wait.
    assert!(!client.status("1").await.finished);
    std::fs::remove_file(&filler).unwrap();
    assert_eq!(client.ended("1").await.exit_code, 0);
    let output = client.output("1").await;
    assert_eq!(output.trim_matches(|c| c == 'x'), "on\n".to_owned() + &"x".repeat(300_000) + "\nbye\n");
    assert_eq!(client.run_to_end("2", &script("echo again")).await.exit_code, 0);
}

#[tokio::test]
async fn too_little_space_refuses_jobs_early() {
    let daemon = Setup::new().option("state-limit", "1000000GiB").start();
    let client = daemon.client().await;
    let run = client.try_run(request("1", &script("true"))).await;
    refused(run, Code::ResourceExhausted, "disk_full");
    assert_eq!(daemon.folders(), Vec::<String>::new());
}

#[tokio::test]
async fn a_log_that_others_touched_is_data_loss_never_another_files_bytes() {
    let daemon = Daemon::start();
    let beside = Beside::start(&daemon).await;
    let client = daemon.client().await;
    let secret = daemon.file("secret");
    std::fs::write(&secret, "canary\n".repeat(10_000)).unwrap();
    for harm in ["truncate", "remove", "link", "replace"] {
        let go = daemon.file(&format!("go-{harm}"));
        let text = format!("seq 1 1000; until [ -e {} ]; do sleep 0.02; done; seq 1 1000", go.display());
        client.run(harm, &text).await;
        let mut follow = client.follow(harm, 0).await;
        follow.until("1000").await;
        let log = daemon.folder(harm).join("log");
        match harm {
            "truncate" => std::fs::File::options().write(true).open(&log).unwrap().set_len(100).unwrap(),
            "remove" => std::fs::remove_file(&log).unwrap(),
            "link" => {
                std::fs::remove_file(&log).unwrap();
                symlink(&secret, &log).unwrap();
            }
            _ => {
                std::fs::remove_file(&log).unwrap();
                std::fs::copy(&secret, &log).unwrap();
            }
        }
        refused(client.try_follow(harm, 0).await, Code::DataLoss, "data_loss");
        std::fs::write(&go, "").unwrap();
        match follow.rest().await {
            // Its open file still holds the bytes, if only the name was harmed.
            Ok(bytes) => {
                assert_ne!(harm, "truncate");
                assert_eq!(logs::source(&bytes, "01O"), support::numbered(1_000, "").repeat(2).into_bytes());
            }
            lost => drop(refused(lost, Code::DataLoss, "data_loss")),
        }
        let status = client.reaches(harm, "it ends", |status| status.finished).await;
        assert_eq!(status.exit_code, 0, "the job itself does not notice");
        let late = client.try_follow(harm, 0).await;
        refused(late, Code::DataLoss, "data_loss");
        client.finish(harm).await;
        assert!(secret.exists());
    }
    assert!(!contains(&client.log_so_far("beside").await, "canary"));
    beside.unaffected(&daemon).await;
}
