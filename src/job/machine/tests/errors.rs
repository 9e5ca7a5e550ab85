//! Failures: their text, their exit code and what they leave (language.md §14.4, §18; service.md §3.5).

use super::world::{World, request, text};
use crate::job::machine::Machine;
use crate::lang::diagnostic::Class;
use crate::lang::value::{Data, Value};
use crate::model::StepStatus;

const FILES: [(&str, &str); 9] = [
    (
        "/job/need/func.yml",
        "spec:\n  inputs: {m: {type: string}, n: {type: number, default: 1}}\n---\nexec: {command: [x]}\n",
    ),
    (
        "/job/out/func.yml",
        "spec:\n  outputs: {s: {type: string}}\n---\nexec: {command: [write, '${{ output_file }}', 'BODY']}\n",
    ),
    ("/job/broken/func.yml", "spec: {}\n---\nexec: {command: []}\nfoo: 1\n"),
    ("/job/missing/func.yml", "{}\n---\nexec: {command: [missing]}\n"),
    ("/job/empty/func.yml", "{}\n---\nexec: {command: ['${{ env.EMPTY }}']}\n"),
    ("/job/badenv/func.yml", "{}\n---\nenv: {A: '${{ env.NOPE }}'}\nexec: {command: [x]}\n"),
    ("/job/seqenv/func.yml", "{}\n---\nenv: {A: '${{ env.NOPE }}'}\nrun: [{name: in, script: x}]\n"),
    (
        "/job/seqout/func.yml",
        "spec:\n  outputs: {o: {type: number}}\n---\nrun: [{name: in, script: x}]\noutputs: {o: text}\n",
    ),
    ("/job/loop/func.yml", "{}\n---\nrun: [{name: again, func: ../loop}]\n"),
];

fn world(body: &str) -> World {
    let files = FILES.map(|(path, text)| (path, text.replace("BODY", body)));
    World::new(files.iter().map(|(path, text)| (*path, text.as_str())))
}

/// Message of a job with one step, and whether the step has a result.
fn fails(step: &str, body: &str) -> (String, bool) {
    let mut spec = request(&format!("[{{name: a, {step}}}]"));
    spec.env.insert("EMPTY".into(), String::new());
    spec.vars.insert("NUM".into(), text("7"));
    let trace = world(body).run(&spec);
    let outcome = trace.outcome();
    assert_eq!(outcome.exit_code, -1, "{}", outcome.message);
    assert!(!outcome.message.contains("exit status"), "{}", outcome.message);
    assert!(trace.log().iter().any(|line| {
        line.strip_prefix("E job failed: ").is_some_and(|text| outcome.message.starts_with(text))
    }));
    assert_eq!(trace.root().status, StepStatus::Failure);
    let steps = &trace.root().sub_steps;
    assert!(steps.iter().all(|step| step.status == StepStatus::Failure));
    assert_eq!(trace.emitted().len(), steps.len());
    (outcome.message.clone(), !steps.is_empty())
}

#[test]
fn what_cannot_be_loaded_says_so_and_leaves_no_result() {
    for (step, part) in [
        ("func: ./nowhere", "no func.yml or step.yml in /job/nowhere"),
        ("func: ./broken", "/job/broken/func.yml:3:"),
        ("func: ./need", "input \"m\" required, but not defined"),
        ("func: ./need, inputs: {m: a, z: 1}", "step does not accept input with name \"z\""),
        ("func: ./need, inputs: {m: [1]}", "input \"m\": expected string, got array"),
        ("func: ./need, inputs: {m: a, n: '${{ vars.NUM }}'}", "input \"n\": expected number, got string"),
        ("func: ./need, inputs: {m: '${{ inputs.q }}'}", "\"q\" was not found"),
        ("func: ./need, inputs: {m: '${{ 1 / 0 }}'}", "division by zero"),
        ("script: x, env: {A: '${{ steps.a }}'}", "\"a\" was not found"),
        ("func: 'builtin://nope'", "known: script"),
        ("func: 'https://example.com/a/b@v1'", "not supported"),
        ("func: '${{ vars.NOPE }}'", "\"NOPE\" was not found"),
    ] {
        let (message, has_result) = fails(step, "");
        assert!(message.starts_with("step \"a\": failed to load: "), "{message}");
        assert!(message.contains(part), "{message} / {part}");
        assert!(message.contains(".yml") || message.contains("<steps>:1:"), "no place: {message}");
        assert!(!has_result, "{message}");
    }
}

#[test]
fn what_fails_after_the_start_leaves_a_result() {
    for (step, body, part) in [
        ("func: ./missing", "", "exec: \"missing\" was not found in PATH"),
        ("func: ./empty", "", "exec: the command is empty"),
        ("func: ./badenv", "", "\"NOPE\" was not found"),
        ("func: ./seqenv", "", "\"NOPE\" was not found"),
        ("func: ./seqout", "", "output \"o\": expected number, got string"),
        ("func: ./out", "", "output \"s\" was not written and has no default"),
        ("func: ./out", "{\"name\":\"s\",\"value\":1}", "output \"s\": expected string, got number"),
        ("func: ./out", "{\"name\":\"k\",\"value\":1}", "output \"k\" is not declared in the spec"),
        ("func: ./out", "s=1", "output file line 1: "),
        ("script: 'write ${{export_file}} {\"name\":\"k\",\"value\":[]}'", "", "export"),
    ] {
        let (message, has_result) = fails(step, body);
        assert!(message.starts_with("step \"a\": ") && !message.contains("failed to load"), "{message}");
        assert!(message.contains(part), "{message} / {part}");
        assert!(has_result, "{message}");
    }
}

#[test]
fn all_findings_of_a_file_are_reported_each_on_its_line() {
    let trace = world("").run_steps("[{name: a, func: ./broken}]");
    let lines = trace.log();
    assert!(lines.len() >= 2, "{lines:?}");
    assert!(
        lines[0].starts_with("E job failed: step \"a\": failed to load: /job/broken/func.yml:"),
        "{lines:?}"
    );
    assert!(lines[1].starts_with("E ") && lines[1].contains("/job/broken/func.yml:"), "{lines:?}");
}

#[test]
fn calls_nest_sixty_four_deep_and_no_deeper() {
    let trace = world("").run_steps("[{name: a, func: ./loop}]");
    let message = &trace.outcome().message;
    assert!(message.contains("failed to load") && message.contains("64 levels"), "{message}");
    let mut depth = 0;
    let mut result = trace.root();
    while let Some(step) = result.sub_steps.first() {
        result = step;
        depth += 1;
    }
    assert_eq!(depth, 64);
}

#[test]
fn nothing_that_is_no_exit_status_looks_like_one() {
    let mut spec = request("[{name: a, func: './exit status 5'}]");
    spec.file = Some("/exit status 7/func.yml".into());
    let trace = World::default().run(&spec);
    assert!(!trace.outcome().message.contains("exit status"), "{}", trace.outcome().message);
    assert!(trace.log().iter().all(|line| !line.contains("exit status")));
}

#[test]
fn an_unusable_request_makes_no_machine() {
    let classes = |steps: &str, inputs: &[(&str, Value)]| {
        let mut spec = request(steps);
        spec.inputs = inputs.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        let findings = Machine::new(&spec).err().unwrap_or_default();
        findings.into_iter().map(|finding| finding.class).collect::<Vec<_>>()
    };
    let root = "spec: {inputs: {n: {type: number}}}\n---\nrun: [{name: a, script: x}]\n";
    assert_eq!(classes(root, &[]), [Class::Missing]);
    assert_eq!(classes(root, &[("n", text("1"))]), [Class::Type]);
    assert_eq!(classes("[{name: a, script: x}]", &[("n", text("1"))]), [Class::Undeclared]);
    assert_eq!(classes(root, &[("n", Value::plain(Data::Number(1.0)))]), []);
    assert!(!classes("run: [", &[]).is_empty());
}

#[test]
fn warnings_of_a_file_are_shown_once() {
    let world = World::new([("/job/w/func.yml", "{}\n---\nexec: {command: [x]}\nlater: 1\n")]);
    let spec = request("{}\n---\nrun: [{name: a, func: ./w}, {name: b, func: ./w}]\nnext: 1\n");
    let log = world.run(&spec).log();
    let warnings: Vec<_> = log.iter().filter(|line| line.starts_with("E warning: ")).collect();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings[0].starts_with("E warning: <steps>:4:1: "), "{warnings:?}");
    assert!(warnings[1].starts_with("E warning: /job/w/func.yml:4:1: "), "{warnings:?}");
}
