//! Steps, definition files, values and output files.

use std::os::unix::fs::symlink;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use super::Beside;
use crate::support::{Client, Daemon, refused, request};
use step_runner::pb::v1::{self, RunRequest, State};
use tonic::Code;
use tonic_types::StatusExt;

#[tokio::test]
async fn every_finding_is_a_violation_with_its_place_and_class_and_masked() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let steps = "- {name: a b, script: x}\n- {name: b, script: x, hunter2-key: canary}\n";
    let masking = v1::Masking { phrases: vec!["hunter2-key".into()], ..v1::Masking::default() };
    let request = RunRequest { masking: Some(masking), ..request("42", steps) };
    let refused = client.try_run(request).await.unwrap_err();
    let details = refused.get_error_details();
    let info = details.error_info().unwrap();
    assert_eq!((info.reason.as_str(), info.domain.as_str()), ("malformed_steps", "step-runner"));
    assert_eq!((info.metadata["id"].as_str(), info.metadata["field"].as_str()), ("42", "steps"));
    let violations = &details.bad_request().unwrap().field_violations;
    let places: Vec<_> = violations.iter().map(|each| (each.field.as_str(), each.reason.as_str())).collect();
    assert_eq!(places, [("steps:1:10", "name"), ("steps:2:24", "schema")]);
    assert!(violations[1].description.contains("[MASKED]"), "{violations:?}");
    let all = format!("{details:?} {}", refused.message());
    assert!(!all.contains("hunter2") && !all.contains("canary"), "{all}");
}

#[tokio::test]
async fn broken_steps_are_refused_with_all_their_places_and_none_of_their_text() {
    let daemon = Daemon::start();
    let beside = Beside::start(&daemon).await;
    let client = daemon.client().await;
    // Steps, and the positions of all errors in them.
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
        ("- {name: a, script: canary, iff: canary}", &["<steps>:1:29"]),
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
    // Messages never quote the text of scripts.
    for (steps, _) in
        cases.iter().filter(|(steps, _)| steps.contains("script: canary") && !steps.contains("if"))
    {
        let text = client.try_run(request("1", steps)).await.unwrap_err().message().to_owned();
        assert!(!text.contains("canary"), "{steps:?}: {text}");
    }
    beside.unaffected(&daemon).await;
}

#[tokio::test]
async fn at_most_twenty_errors_are_told_eight_of_them_in_the_text() {
    let daemon = Daemon::start();
    let client = daemon.client().await;
    let bad: Vec<_> = (0..30).map(|n| format!("- {{name: '{n} x', script: y}}")).collect();
    let answer = client.try_run(request("1", &bad.join("\n"))).await;
    let violations = answer.as_ref().unwrap_err().get_details_bad_request().unwrap().field_violations;
    assert_eq!(violations.len(), 20);
    let text = refused(answer, Code::InvalidArgument, "malformed_steps");
    assert_eq!(text.matches("<steps>:").count(), 8, "{text}");
    assert!(text.contains("and 22 more"), "{text}");
}

/// Joins the lines that `line` returns for the numbers below `count`.
fn each(count: u32, line: impl Fn(u32) -> String) -> String {
    (0..count).map(line).collect()
}

/// Returns the peak memory of the daemon in MiB.
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

/// Memory in MiB that the daemon can use for the worst texts and values that the language allows.
const MEMORY_BOUND: u64 = 512;

/// Runs steps that must fail with a message that contains each of `words`. Nothing of the job must be left.
async fn fails(client: &Client, steps: RunRequest, words: &[&str]) {
    // Each request gets a new id: a repeated request would be taken for a late duplicate.
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
        (
            "members",
            "inputs: {x: {type: struct}}, outputs: {o: {type: struct}}",
            r#"{"a": inputs.x, "b": inputs.x}"#,
        ),
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
        ("members", "{k: 1}", "larger than 64 MiB"),
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
    // A left-over process keeps replacing the file while it is read. Success and failure are both fine, but the job
    // must end.
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
