//! Failures: message, exit code and results (language.md §14.4, §18; service.md §3.5).

use std::sync::Arc;

use step_runner_lang::diagnostic::Class;
use step_runner_lang::value::{Data, Value};
use step_runner_model::{ExitStatus, StepStatus, text};

use super::world::{Driven, World, request, text};
use crate::job::event::{Event, ProcessEnd};
use crate::job::machine::Machine;

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
        "spec:\n  outputs: {o: {type: number}}\n---\nrun: [{name: in, script: x}]\noutputs: {o: '${{ str(1) }}'}\n",
    ),
    ("/job/loop/func.yml", "{}\n---\nrun: [{name: again, func: ../loop}]\n"),
];

fn world(body: &str) -> World {
    let files = FILES.map(|(path, text)| (path, text.replace("BODY", body)));
    World::new(files.iter().map(|(path, text)| (*path, text.as_str())))
}

/// Message of a job with one step; true if the step has a result.
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
        // An error has a position only if people wrote the file.
        let has_place = step == "func: ./out";
        assert_eq!(message.contains("/job/out/func.yml:4:1: exec: "), has_place, "{message}");
        assert!(!message.contains("builtin://"), "{message}");
        assert!(has_result, "{message}");
    }
}

#[test]
fn failures_have_the_place_of_what_is_wrong_and_its_path() {
    for (step, place) in [
        ("func: ./nowhere", "<steps>:1:18: run[0].func: no func.yml"),
        ("func: 'builtin://nope'", "<steps>:1:18: run[0].func: builtin"),
        ("func: 'h/p@v1'", "<steps>:1:18: run[0].func: "),
        ("func: '${{ vars.NOPE }}'", "<steps>:1:28: run[0].func: vars.NOPE: "),
        ("script: '${{ vars.NOPE }}'", "<steps>:1:30: run[0].script: expand input \"script\": vars.NOPE: "),
        ("script: x, env: {A: b, Z: '${{ env.NOPE }}'}", "<steps>:1:47: run[0].env.Z: env.NOPE: "),
        ("script: x, env: {'${{ vars.NOPE }}': b}", "<steps>:1:39: run[0].env: vars.NOPE: "),
        (
            "func: ./need, inputs: {m: x, n: '${{ env.NOPE }}'}",
            "run[0].inputs.n: expand input \"n\": env.NOPE: ",
        ),
        (
            "func: ./need, inputs: {m: [1], n: x}",
            "<steps>:1:38: run[0].inputs.m: input \"m\": expected string, got array",
        ),
        (
            "func: ./need, inputs: {m: [1], n: x}",
            "; <steps>:1:46: run[0].inputs.n: input \"n\": expected number",
        ),
        ("func: ./badenv", "/job/badenv/func.yml:3:19: env.A: env.NOPE: "),
    ] {
        let (message, _) = fails(step, "");
        assert!(message.contains(place), "{message} / {place}");
    }
    let trace = world("").run_steps(
        "spec: {outputs: {o: {type: string}}}\n---\nrun: [{name: a, script: x}]\noutputs: {o: '${{ steps.a.outputs.v }}'}\n",
    );
    let message = &trace.outcome().message;
    assert!(
        message.contains(
            "<steps>:4:35: outputs.o: steps.a.outputs.v: \"v\" was not found (the step has no outputs)"
        ),
        "{message}"
    );
}

#[test]
fn a_step_that_comes_later_is_told_from_one_that_is_not_there() {
    let later = "\"b\" was not found (the step stands at line 2; only steps before this one can be used)";
    let beside = "\"n\" was not found (members of a group do not see each other: they run side by side)";
    let group = |member: &str| {
        format!(
            "- name: g\n  parallel:\n  - {{name: m, {member}}}\n  - {{name: n, script: x}}\n- {{name: b, script: x}}"
        )
    };
    for (steps, told) in [
        ("- {name: a, script: '${{ steps.b.outputs.x }}'}\n- {name: b, script: x}".to_owned(), later),
        ("- {name: a, script: '${{ steps[\"b\"].outputs.x }}'}\n- {name: b, script: x}".to_owned(), later),
        (
            "- {name: a, script: x}\n- {name: b, script: x, if: '${{ steps.b.status == 1 }}'}".to_owned(),
            later,
        ),
        (
            "- {name: a, script: '${{ steps.c.outputs.x }}'}\n- {name: b, script: x}".to_owned(),
            "\"c\" was not found (no step of this list comes before)",
        ),
        (group("script: '${{ steps.n.outputs.x }}'"), beside),
        (group("if: '${{ steps.n.status == 1 }}', script: x"), beside),
        (group("script: '${{ steps.b.outputs.x }}'"), "\"b\" was not found (the step stands at line 5; "),
    ] {
        let trace = world("").run_steps(&steps);
        let message = &trace.outcome().message;
        assert!(message.contains(told), "{steps}: {message}");
    }
}

#[test]
fn a_delegate_that_has_failed_is_shown_where_it_is_named() {
    let run = "run: [{name: a, func: ../badenv, continue_on_error: true}]";
    let text = format!("spec: {{outputs: delegate}}\n---\n{run}\ndelegate: a\n");
    let files =
        FILES.map(|(path, text)| (path, text)).into_iter().chain([("/job/d/func.yml", text.as_str())]);
    let trace = World::new(files).run_steps("[{name: s, func: ./d}]");
    let message = &trace.outcome().message;
    assert!(
        message.contains("/job/d/func.yml:4:11: delegate: the outputs of step \"a\" were not found"),
        "{message}"
    );
}

#[test]
fn the_remedy_for_a_missing_variable_is_for_variables() {
    for (condition, helps) in
        [("vars.X", true), ("env.NOPE == 1", true), ("steps.c.outputs.x", false), ("nope", false)]
    {
        let trace = world("").run_steps(&format!("[{{name: a, script: x, if: '${{{{ {condition} }}}}'}}]"));
        let message = &trace.outcome().message;
        assert_eq!(message.contains("write bool(vars.NAME || \"\")"), helps, "{message}");
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
fn the_step_that_closes_a_circle_of_functions_is_named_and_what_leads_to_it() {
    // Each function with the functions that it calls; the last of them is part of the circle.
    for (calls, leads_to) in [
        (&["a:a"][..], r#"step "s": step "to_a": failed to load: /job/a/func.yml:5:"#),
        (&["a:b", "b:a"], r#"step "s": step "to_b": step "to_a": failed to load: /job/b/func.yml:5:"#),
        (
            &["a:b", "b:c", "c:d", "d:b"],
            r#"step "s": step "to_b": step "to_c": step "to_d": step "to_b": failed to load: /job/d/func.yml:5:"#,
        ),
        (
            &["a:b", "b:c", "c:c"],
            r#"step "s": step "to_b": step "to_c": step "to_c": failed to load: /job/c/func.yml:5:"#,
        ),
    ] {
        let files = calls.iter().map(|call| {
            let (from, to) = call.split_once(':').unwrap();
            let steps = format!("  - {{name: before, script: x}}\n  - {{name: to_{to}, func: ../{to}}}\n");
            (format!("/job/{from}/func.yml"), format!("{{}}\n---\nrun:\n{steps}"))
        });
        let files: Vec<_> = files.collect();
        let world = World::new(files.iter().map(|(path, text)| (path.as_str(), text.as_str())));
        let trace = world.run_steps("[{name: s, func: ./a}]");
        let message = &trace.outcome().message;
        assert!(message.starts_with(leads_to), "{message}");
        assert!(message.contains("calls itself, directly or through others, without end"), "{message}");
    }
}

#[test]
fn a_chain_of_functions_that_is_too_long_is_no_circle() {
    let path = |number: usize| format!("/job/f{number}/func.yml");
    let text = |number: usize| format!("{{}}\n---\nrun: [{{name: next, func: ../f{}}}]\n", number + 1);
    let files: Vec<_> = (0..70).map(|number| (path(number), text(number))).collect();
    let world = World::new(files.iter().map(|(path, text)| (path.as_str(), text.as_str())));
    let trace = world.run_steps("[{name: s, func: ./f0}]");
    let message = &trace.outcome().message;
    assert!(message.contains(": failed to load: /job/f63/func.yml:3:"), "{message}");
    assert!(message.contains("64 levels") && !message.contains("calls itself"), "{message}");
}

#[test]
fn a_result_shows_the_shell_that_ran_the_script() {
    for (shell, shown) in [(None, "sh"), (Some("bash"), "bash")] {
        let mut job = Driven::new(&World::default(), &request("[{name: a, script: x}]"));
        assert!(job.go_on(), "admitted");
        let Some(Event::Exited { process, end, .. }) = job.pending.take() else { panic!("nothing runs") };
        job.tell(&Event::Exited {
            process,
            end,
            shell: shell.map(str::to_owned),
            outputs: None,
            exports: None,
            ran: None,
        });
        let exec = job.trace.root().sub_steps[0].exec.as_ref().unwrap();
        assert_eq!(exec.command, [shown, "-c", "x"]);
    }
}

#[test]
fn nothing_that_is_no_exit_status_looks_like_one() {
    let mut spec = request("[{name: a, func: './exit status 5'}]");
    spec.file = Some("/exit status 7/func.yml".into());
    let trace = World::default().run(&spec);
    assert!(!trace.outcome().tells_exit_status(), "{}", trace.outcome().message);
    assert!(trace.log().iter().all(|line| text::told_exit_status(line).is_none()));
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

#[test]
fn what_ran_short_stands_before_how_the_process_ended() {
    let mut job = Driven::new(&World::default(), &request("[{name: a, script: x}]"));
    assert!(job.go_on(), "admitted");
    let Some(Event::Exited { process, .. }) = job.pending.take() else { panic!("nothing runs") };
    let end = ProcessEnd::Short { status: ExitStatus::Signal(9), of: "out of\nmemory".to_owned() };
    job.tell(&Event::Exited { process, end, shell: None, outputs: None, exports: None, ran: None });
    let message = text::on_one_line(&job.trace.outcome().message);
    assert!(message.ends_with(": out of memory: exec: signal: killed"), "{message}");
}

#[test]
fn of_many_findings_the_first_twenty_are_shown_and_the_rest_counted() {
    for (findings, last) in [(20, None), (21, Some("and 1 more")), (25, Some("and 5 more"))] {
        let inputs: Vec<String> = (0..findings).map(|n| format!("    i{n}: {{type: nothing}}\n")).collect();
        let file = format!("spec:\n  inputs:\n{}---\nexec: {{command: [x]}}\n", inputs.concat());
        let trace =
            World::new([("/job/many/func.yml", file.as_str())]).run_steps("[{name: a, func: ./many}]");
        let message = &trace.outcome().message;
        assert_eq!(message.contains(" more"), last.is_some(), "{message}");
        assert!(last.is_none_or(|last| message.ends_with(last)), "{message}");
    }
}

#[test]
fn a_line_that_cannot_be_used_is_shown_to_who_asked_for_everything_only() {
    for (function, file) in [("out", "output"), ("exports", "export")] {
        for level in ["debug", "info"] {
            let exports = "{}\n---\nexec: {command: [write, '${{ export_file }}', 'oops']}\n";
            let mut spec = request(&format!("[{{name: a, func: ./{function}}}]"));
            spec.base_env = Arc::new(vec![(b"CI_STEPS_LOG_LEVEL".to_vec(), level.into())]);
            let out = FILES[1].1.replace("BODY", "oops");
            let world = World::new([("/job/out/func.yml", out.as_str()), ("/job/exports/func.yml", exports)]);
            let log = world.run(&spec).log();
            let shown =
                log.iter().any(|line| line.starts_with("E debug: ") && line.ends_with(" holds: oops"));
            assert_eq!(shown, level == "debug", "{log:?}");
            assert!(log.iter().any(|line| line.contains(file)), "{log:?}");
        }
    }
}
