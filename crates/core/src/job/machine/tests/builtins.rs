//! Builtins (language.md §17).

use step_runner_lang::ast::Reference;
use step_runner_lang::diagnostic::Class;
use step_runner_lang::value::Value;
use step_runner_model::{CancelCause, EndClass, StepStatus};

use super::world::{Driven, World, masked, request, text};
use crate::job::effect::{Effect, Program, Spawn, Success};
use crate::job::event::{Event, FetchFailure, Fetched};
use crate::plan::builtin::LONGEST_ARGUMENT;

fn env<'s>(spawn: &'s Spawn, name: &str) -> Option<&'s str> {
    let mut found = spawn.env.iter().filter(|(key, _)| key == name.as_bytes());
    let value = found.next().map(|(_, value)| std::str::from_utf8(value).unwrap());
    assert!(found.next().is_none(), "{name} twice");
    value
}

const LEGACY: &str = "builtin://script_legacy";

#[test]
fn a_legacy_script_sees_all_job_variables_above_its_environment() {
    let mut spec =
        request(&format!("[{{name: a, func: '{LEGACY}', env: {{A: step}}, inputs: {{script: [x]}}}}]"));
    spec.env = [("A", "request"), ("B", "request")].map(|(k, v)| (k.into(), v.into())).into();
    spec.vars = [("A", text("variable")), ("C", masked("secret")), ("PATH", text("/vars"))]
        .map(|(k, v): (&str, Value)| (k.into(), v))
        .into();
    let trace = World::default().run(&spec);
    let spawn = trace.spawns()[0];
    assert_eq!(
        ["A", "B", "C", "PATH"].map(|name| env(spawn, name)),
        [Some("variable"), Some("request"), Some("secret"), Some("/vars")]
    );
    let Program::LegacyScript(file) = &spawn.program else { panic!("another program") };
    assert!(file.path.starts_with("/state/tmp/") && file.text.starts_with("trap exit 1 TERM\n"));
    assert_eq!(trace.root().sub_steps[0].env.get("A").unwrap(), "step");
}

#[test]
fn some_deaths_of_a_legacy_script_are_successes_and_of_a_script_none() {
    for (signal, succeeds) in [(1, true), (10, true), (12, true), (13, true), (9, false), (15, false)] {
        let legacy = format!("[{{name: a, func: '{LEGACY}', inputs: {{script: [signal {signal}]}}}}]");
        let trace = World::default().run_steps(&legacy);
        assert_eq!(trace.spawns()[0].success, Success::ExitCodeOrSignal);
        assert_eq!(trace.outcome().class == EndClass::Success, succeeds, "signal {signal}");
        let step = &trace.root().sub_steps[0];
        assert_eq!(step.exec.as_ref().unwrap().exit_code, -1);
        let plain = World::default().run_steps(&format!("[{{name: a, script: signal {signal}}}]"));
        assert_eq!(plain.root().sub_steps[0].status, StepStatus::Failure);
    }
}

#[test]
fn a_legacy_script_may_name_its_own_files() {
    let steps = format!(
        "[{{name: a, func: '{LEGACY}', inputs: {{script: ['write ${{{{ export_file }}}} {{\"name\":\"X\",\"value\":\"1\"}}']}}}}, {{name: b, script: b}}]"
    );
    let trace = World::default().run_steps(&steps);
    assert_eq!(trace.outcome().class, EndClass::Success, "{:?}", trace.log());
    assert_eq!(env(trace.spawns()[1], "X"), Some("1"));
}

#[test]
fn what_a_builtin_does_not_take_is_refused_at_its_place_before_it_runs() {
    for (inputs, message) in [
        ("script: [a], x: 1", "inputs.x: step does not accept input with name \"x\""),
        ("debug_trace: true", "input \"script\" required, but not defined"),
        ("script: a", "input \"script\": expected array, got string"),
        ("script: []", "inputs.script: input \"script\": expected at least one command, got an empty array"),
        ("script: [[a]]", "inputs.script: input \"script\": element 1: expected string, got array"),
        ("script: [a], debug_trace: 1", "input \"debug_trace\": expected boolean, got number"),
    ] {
        let steps = format!("[{{name: a, func: '{LEGACY}', inputs: {{{inputs}}}}}]");
        let trace = World::default().run_steps(&steps);
        assert!(trace.started().is_empty());
        let said = &trace.outcome().message;
        assert!(said.starts_with("step \"a\": failed to load: ") && said.contains(message), "{said}");
        assert!(trace.root().sub_steps.is_empty());
    }
}

#[test]
fn a_builtin_that_is_a_program_gets_its_inputs_in_a_file() {
    let mut spec = request(
        "[{name: a, func: 'dist://function/oci/publish', inputs: {to_repository: 'r.example/${{ vars.T }}'}}]",
    );
    spec.vars.insert("T".into(), masked("secret"));
    let trace = World::default().run(&spec);
    let spawn = trace.spawns()[0];
    let Program::Builtin(program) = &spawn.program else { panic!("another program") };
    assert_eq!(program.name, "function/oci/publish");
    assert_eq!(program.inputs, r#"{"archive":"function-image.tar","to_repository":"r.example/secret"}"#);
    assert!(spawn.files.is_some());
    let exec = trace.root().sub_steps[0].exec.as_ref().unwrap();
    assert_eq!(exec.command, ["step-runner", "builtin", "function/oci/publish"]);
    assert_eq!(trace.log()[0], "O Running step name=a");
    let said = &trace.outcome().message;
    assert!(said.starts_with("step \"a\": output \"ref\" was not written and has no default"), "{said}");
}

const FETCH: &str = "[{name: f, func: 'builtin://step/oci/fetch', inputs: {registry: R.example, repository: g/x, tag: '', step_path: a}}, {name: b, script: '${{ steps.f.outputs.fetched_step_path }} ${{ steps.f.outputs.ref }}'}]";

fn found() -> Fetched {
    Fetched {
        dir: "/cache/t/a".into(),
        path: "/cache/t/a".into(),
        text: String::new(),
        tree: Some("/cache/t".into()),
        version: Some("sha256:00".into()),
    }
}

#[test]
fn a_tree_is_fetched_without_a_process_and_its_place_returned() {
    let mut driven = Driven::new(&World::default(), &request(FETCH));
    driven.go_on();
    let Some(Effect::Fetch { process, reference, inside, environment }) = driven.trace.effects.pop() else {
        panic!("nothing fetched")
    };
    let Reference::Oci { registry, repository, tag, dir, files } = &*reference else { panic!("no image") };
    let parts = [registry, repository, tag, dir].map(|part| part.as_literal().unwrap());
    assert_eq!((parts, files.len()), (["R.example", "g/x", "latest", "a"], 0));
    assert!(inside.is_none() && !environment.is_empty());
    assert!(driven.trace.spawns().is_empty());
    driven.tell(&Event::Fetched { process, result: Ok(found()) });
    let [spawn] = driven.trace.spawns()[..] else { panic!("no second step") };
    let Program::Script(text) = &spawn.program else { panic!("no script") };
    assert_eq!(text, "/cache/t/a r.example/g/x@sha256:00");
    assert_eq!(
        driven.trace.log(),
        [
            "O Running step name=f",
            "O Fetched step name=f from r.example/g/x:latest: digest sha256:00",
            "O Running step name=b"
        ]
    );
    let result = driven.trace.emitted()[0];
    assert_eq!((result.status, result.exec.is_none()), (StepStatus::Success, true));
    assert_eq!(result.outputs.get("ref").unwrap(), "r.example/g/x@sha256:00");
}

#[test]
fn a_further_try_for_a_tree_is_logged_and_one_for_a_function_is_not() {
    for (steps, line) in [
        (FETCH, Some("E warning: step f: the registry failed: trying again in 0.5 s")),
        ("[{name: f, func: 'r.example/g/x:1'}]", None),
    ] {
        let mut driven = Driven::new(&World::default(), &request(steps));
        driven.go_on();
        let Some(Effect::Fetch { process, .. }) = driven.trace.effects.last() else { panic!("no fetch") };
        let why = "the registry failed: trying again in 0.5 s".to_owned();
        driven.tell(&Event::FetchRetried { process: *process, why });
        assert_eq!(driven.trace.log().iter().find(|line| line.contains("trying")).map(String::as_str), line);
    }
}

#[test]
fn a_tree_that_cannot_be_fetched_fails_its_step() {
    let mut driven = Driven::new(&World::default(), &request(FETCH));
    driven.go_on();
    let Some(Effect::Fetch { process, .. }) = driven.trace.effects.last() else { panic!("nothing fetched") };
    let failure = FetchFailure { class: Class::Fetch, message: "no such repository".into() };
    driven.tell(&Event::Fetched { process: *process, result: Err(failure) });
    assert_eq!(driven.trace.outcome().message, "step \"f\": no such repository");
    assert_eq!(driven.trace.root().sub_steps[0].status, StepStatus::Failure);
}

#[test]
fn a_tree_is_fetched_again_if_the_network_failed_and_for_no_other_reason() {
    let steps = FETCH.replace("{name: f, ", "{name: f, retry: {max: 1, when: fetch}, ");
    for (class, is_tried_again) in [(Class::Fetch, true), (Class::NotFound, false)] {
        let mut driven = Driven::new(&World::default(), &request(&steps));
        driven.go_on();
        let failure = FetchFailure { class, message: "no".into() };
        driven.tell(&Event::Fetched { process: 1, result: Err(failure) });
        assert_eq!(driven.trace.finish.is_none(), is_tried_again);
        let log = driven.trace.log();
        assert_eq!(log.iter().any(|line| line.starts_with("O Retrying step name=f ")), is_tried_again);
    }
}

#[test]
fn a_script_too_long_for_an_argument_is_a_file() {
    for (length, is_file) in [(LONGEST_ARGUMENT, false), (LONGEST_ARGUMENT + 1, true)] {
        let mut driven = Driven::new(
            &World::default(),
            &request(&format!("[{{name: a, script: {}}}]", "x".repeat(length))),
        );
        driven.go_on();
        match &driven.trace.spawns()[0].program {
            Program::Script(text) => assert!(!is_file && text.len() == length),
            Program::ScriptFile(file) => {
                assert!(is_file && file.text.len() == length && file.path == "/state/tmp/1/script");
            }
            _ => panic!("no script"),
        }
    }
}

#[test]
fn a_step_says_before_the_job_whether_a_failing_line_ends_its_script() {
    for (of_job, of_step, ends) in [
        (false, "", false),
        (true, "", true),
        (true, ", errexit: false", false),
        (false, ", errexit: true", true),
    ] {
        let mut spec = request(&format!("[{{name: a, script: x{of_step}}}]"));
        spec.errexit = of_job;
        let trace = World::default().run(&spec);
        let Program::Script(text) = &trace.spawns()[0].program else { panic!("no script") };
        assert_eq!((text.starts_with("set -e; "), text.ends_with('x')), (ends, true));
        let option = if ends { "-ec" } else { "-c" };
        assert_eq!(trace.root().sub_steps[0].exec.as_ref().unwrap().command, ["sh", option, "x"]);
    }
}

#[test]
fn a_cancel_while_a_tree_is_fetched_ends_its_step() {
    let mut driven = Driven::new(&World::default(), &request(FETCH));
    driven.go_on();
    driven.tell(&Event::CancelAsked { cause: CancelCause::Cancel, grace_limit: None, force: false });
    assert!(driven.machine.has_ended());
    assert_eq!(driven.trace.root().sub_steps[0].status, StepStatus::Cancelled);
}

#[test]
fn steps_of_a_text_are_a_function_without_inputs() {
    let run = |steps: &str| {
        let mut spec = request(
            "spec: {inputs: {token: {type: string, default: hidden}, text: {type: string}}}\n---\n\
             run: [{name: a, func: 'builtin://ci/run', inputs: {steps: '${{ inputs.text }}'}}]\n",
        );
        spec.inputs.insert("text".into(), text(steps));
        spec.vars.insert("X".into(), text("of the job"));
        World::default().run(&spec)
    };
    let trace = run(r#"[{"name":"in","script":"echo ${{ vars.X }}"},{"name":"out","script":"echo b"}]"#);
    assert_eq!(trace.outcome().class, EndClass::Success, "{:?}", trace.log());
    assert_eq!(trace.spawns().len(), 2);
    assert_eq!(trace.root().sub_steps[0].sub_steps.len(), 2);
    for (steps, part) in [
        (r#"[{"name":"in","script":"${{ inputs.token }}"}]"#, "\"token\" was not found"),
        ("[{name: in, scirpt: x}]", "<run>:1:"),
        ("spec: {inputs: {a: {type: string}}}\n---\nrun: [{name: b, script: c}]\n", "cannot have inputs"),
    ] {
        let said = run(steps).outcome().message.clone();
        assert!(said.contains(part), "{steps}: {said}");
    }
}
