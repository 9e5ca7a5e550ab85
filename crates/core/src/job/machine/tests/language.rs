//! Order, contexts and data flow (language.md §10–§14).

use step_runner_model::{EndClass, StepOutcome, StepStatus};

use super::world::{World, masked, request, text};
use crate::job::effect::{Effect, Program, Spawn};

fn env<'s>(spawn: &'s Spawn, name: &str) -> Option<&'s str> {
    let found = spawn.env.iter().find(|(key, _)| key == name.as_bytes())?;
    Some(std::str::from_utf8(&found.1).unwrap())
}

fn command(spawn: &Spawn) -> Vec<&str> {
    match &spawn.program {
        Program::Command(command) => command.iter().map(String::as_str).collect(),
        Program::Script(text) => vec![text],
        Program::ScriptFile(file) | Program::LegacyScript(file) => vec![&file.path, &file.text],
        Program::Builtin(builtin) => vec![&builtin.name, &builtin.path, &builtin.inputs],
    }
}

const LEAF: &str = "{}\n---\nexec: {command: [leaf]}\n";

#[test]
fn steps_run_in_order_and_each_is_announced() {
    let trace = World::new([("/job/leaf/func.yml", LEAF)])
        .run_steps("[{name: one, script: a}, {name: two, func: ./leaf}, {name: three, script: b}]");
    assert_eq!(
        trace.log(),
        ["O Running step name=one", "O Running step name=two", "O Running step name=three"]
    );
    assert_eq!(trace.started(), ["one", "two", "three"]);
    assert_eq!(trace.outcome().class, EndClass::Success);
    assert_eq!((trace.outcome().exit_code, trace.outcome().message.as_str()), (0, ""));
}

#[test]
fn the_first_failure_ends_the_list() {
    let trace = World::default()
        .run_steps("[{name: one, script: a}, {name: two, script: exit 3}, {name: three, script: b}]");
    assert_eq!(trace.started(), ["one", "two"]);
    assert_eq!(trace.outcome().class, EndClass::Failure);
    assert_eq!(
        (trace.outcome().exit_code, trace.outcome().message.as_str()),
        (3, "step \"two\": exec: exit status 3")
    );
    assert_eq!(trace.log().last().unwrap(), "E job failed: step \"two\": exec: exit status 3");
}

#[test]
fn a_sequence_prints_nothing_and_its_steps_run_in_its_place() {
    let world = World::new([
        (
            "/job/outer/func.yml",
            "{}\n---\nrun: [{name: in1, func: ../leaf}, {name: in2, func: ./sub/my.yml}]\n",
        ),
        ("/job/outer/sub/my.yml", "{}\n---\nrun: [{name: deep, script: x}]\n"),
        ("/job/leaf/step.yml", LEAF),
    ]);
    let trace = world.run_steps("[{name: a, func: ./outer}, {name: b, func: ./leaf}]");
    assert_eq!(trace.started(), ["in1", "deep", "b"]);
    assert_eq!(trace.log().len(), 3);
}

#[test]
fn a_function_is_looked_for_only_when_its_turn_has_come() {
    let trace = World::default().run_steps("[{name: a, script: exit 1}, {name: b, func: ./nowhere}]");
    assert!(!trace.effects.iter().any(|effect| matches!(effect, Effect::Fetch { .. })));
}

/// The worked example of language.md §13.
#[test]
fn layers_of_the_environment_stack_as_in_the_worked_example() {
    let world = World::new([
        (
            "/job/exporter/func.yml",
            "{}\n---\nexec: {command: [write, '${{ export_file }}', \"{\\\"name\\\":\\\"C\\\",\\\"value\\\":\\\"x\\\"}\\n{\\\"name\\\":\\\"D\\\",\\\"value\\\":\\\"x\\\"}\"]}\n",
        ),
        ("/job/leaf/func.yml", "{}\n---\nenv: {E: f}\nexec: {command: [leaf]}\n"),
    ]);
    let mut spec = request(
        "{}\n---\nenv: {R: '${{ env.B }}'}\nrun:\n  - {name: one, func: ./exporter}\n  - {name: two, func: ./leaf, env: {C: 's-${{ env.C }}', E: s}}\n  - {name: three, func: ./leaf}\n",
    );
    let base = [("A", "d"), ("B", "d"), ("C", "d")];
    spec.base_env = std::sync::Arc::new(base.map(|(key, value)| (key.into(), value.into())).to_vec());
    spec.env =
        [("B", "r"), ("C", "r")].map(|(key, value)| (key.to_owned(), value.to_owned())).into_iter().collect();
    let trace = world.run(&spec);
    assert_eq!(trace.outcome().message, "");
    let seen = |at: usize| {
        let spawn = trace.spawns()[at];
        ["A", "B", "R", "C", "D", "E"].map(|name| env(spawn, name).unwrap_or("-").to_owned()).join(" ")
    };
    assert_eq!(seen(0), "d r r r - -");
    assert_eq!(seen(1), "d r r s-x x f");
    assert_eq!(seen(2), "d r r x x f");

    let steps = spec.steps.replace("E: s}", "E: s}, inputs: {v: '${{ env.E }}'}");
    let trace = world.run(&crate::job::event::JobSpec { steps, ..spec });
    assert!(
        trace.outcome().message.starts_with("step \"two\": failed to load: "),
        "{}",
        trace.outcome().message
    );
    assert_eq!(trace.outcome().exit_code, -1);
}

#[test]
fn an_export_is_seen_after_its_function_has_ended_but_not_through_an_env_above_it() {
    let world = World::new([(
        "/job/outer/func.yml",
        "{}\n---\nrun:\n  - {name: exp, script: 'write ${{export_file}} {\"name\":\"X\",\"value\":1.50}'}\n  - {name: in, script: in}\n",
    )]);
    let trace = world.run_steps("[{name: outer, func: ./outer, env: {X: hidden}}, {name: after, script: a}]");
    let spawns = trace.spawns();
    assert_eq!(
        spawns.iter().map(|spawn| env(spawn, "X")).collect::<Vec<_>>(),
        [Some("hidden"), Some("hidden"), Some("1.5")]
    );
}

#[test]
fn exports_of_a_failed_process_are_not_applied_and_not_shown() {
    let trace = World::default().run_steps("[{name: a, script: 'exit 1 ${{ export_file }}'}]");
    assert!(trace.root().sub_steps[0].exports.is_empty());
}

const GREETER: &str = "spec:\n  inputs:\n    who: {type: string}\n    times: {type: number, default: 1}\n  outputs:\n    said: {type: string}\n    ok: {type: boolean, default: true}\n---\nexec: {command: [write, '${{ output_file }}', '{\"name\":\"said\",\"value\":\"hi ${{ inputs.who }} ${{ inputs.times }}\"}']}\n";

#[test]
fn outputs_of_a_step_are_inputs_of_the_next() {
    let world = World::new([("/job/greet/func.yml", GREETER)]);
    let trace = world.run_steps(
        "[{name: a, func: ./greet, inputs: {who: you}}, {name: b, func: ./greet, inputs: {who: '${{ steps.a.outputs.said }}', times: 2}}]",
    );
    assert_eq!(trace.outcome().message, "");
    let said = |at: usize| &trace.emitted()[at].outputs;
    assert_eq!(said(0)["said"], "hi you 1");
    assert_eq!(said(0)["ok"], true);
    assert_eq!(said(1)["said"], "hi hi you 1 2");
}

#[test]
fn a_sequence_returns_what_its_templates_say_and_a_delegate_what_its_step_said() {
    let world = World::new([
        ("/job/greet/func.yml", GREETER),
        (
            "/job/seq/func.yml",
            "spec:\n  outputs:\n    twice: {type: array}\n    n: {type: number, default: 7}\n---\nrun: [{name: g, func: ../greet, inputs: {who: x}}]\noutputs: {twice: ['${{ steps.g.outputs.said }}', 2], extra: '${{ func_dir }}'}\n",
        ),
        (
            "/job/del/func.yml",
            "spec: {outputs: delegate}\n---\nrun: [{name: g, func: ../greet, inputs: {who: y}}]\ndelegate: g\n",
        ),
    ]);
    let trace = world.run_steps(
        "[{name: seq, func: ./seq}, {name: del, func: ./del}, {name: use, script: '${{ steps.seq.outputs.twice }}${{ steps.del.outputs.said }}'}]",
    );
    assert_eq!(trace.outcome().message, "");
    assert_eq!(command(trace.spawns()[2]), [r#"["hi x 1", 2]hi y 1"#]);
    let seq = &trace.emitted()[0].outputs;
    assert_eq!(seq["n"], 7);
    assert_eq!(seq["extra"], "/job/seq");
    let warnings: Vec<_> = trace.log().into_iter().filter(|line| line.starts_with("E warning: ")).collect();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("/job/seq/func.yml:") && warnings[0].contains("extra"), "{warnings:?}");
}

#[test]
fn the_old_way_of_delegating_reads_one_step_result() {
    let world = World::new([(
        "/job/old/func.yml",
        "spec: {outputs: delegate}\n---\nexec: {command: [write, '${{ output_file }}', '{\"status\": 2, \"outputs\": {\"a\": [1]}}']}\n",
    )]);
    let trace = world.run_steps("[{name: old, func: ./old}]");
    assert_eq!(trace.emitted()[0].outputs["a"], serde_json::json!([1]));
}

#[test]
fn a_callee_sees_neither_steps_nor_inputs_of_its_caller() {
    let world =
        World::new([("/job/leaf/func.yml", "{}\n---\nexec: {command: ['${{ steps.a.outputs.x }}']}\n")]);
    let trace = world.run_steps("[{name: a, script: x}, {name: b, func: ./leaf}]");
    assert!(
        trace.outcome().message.starts_with("step \"b\": /job/leaf/func.yml:3:"),
        "{}",
        trace.outcome().message
    );
}

#[test]
fn relative_references_start_from_the_folder_of_the_caller() {
    let mut spec = request("{}\n---\nrun: [{name: a, func: ./x}]\n");
    spec.file = Some("/src/here/func.yml".into());
    let world = World::new([
        ("/src/here/x/func.yml", "{}\n---\nrun: [{name: b, func: '${{ \"./y\" }}'}]\n"),
        ("/src/here/x/y/func.yml", "{}\n---\nexec: {command: ['${{ func_dir }}', '${{ work_dir }}']}\n"),
    ]);
    let trace = world.run(&spec);
    assert_eq!(trace.outcome().message, "");
    assert_eq!(command(trace.spawns()[0]), ["/src/here/x/y", "/job"]);
}

#[test]
fn a_reference_by_expression_is_evaluated_once() {
    let mut spec = request("[{name: a, func: '${{ vars.F }}'}]");
    spec.vars.insert("F".into(), text("./leaf"));
    let world = World::new([("/job/leaf/func.yml", LEAF)]);
    assert_eq!(world.run(&spec).started(), ["a"]);
    spec.vars.insert("F".into(), text("${{ vars.X }}"));
    let message = world.run(&spec).outcome().message.clone();
    assert!(message.starts_with("step \"a\": failed to load: <steps>:1:"), "{message}");
}

#[test]
fn files_are_made_only_for_attempts_that_name_them() {
    let world = World::new([
        ("/job/leaf/func.yml", LEAF),
        ("/job/names/func.yml", "{}\n---\nenv: {O: '${{ output_file }}'}\nexec: {command: [x]}\n"),
    ]);
    let trace = world.run_steps("[{name: a, func: ./leaf}, {name: b, func: ./names}, {name: c, script: x}]");
    let files: Vec<_> =
        trace.spawns().iter().map(|spawn| spawn.files.clone().map(|files| files.output)).collect();
    assert_eq!(files, [None, Some("/state/tmp/2/output".into()), None]);
    assert_eq!(env(trace.spawns()[1], "O"), Some("/state/tmp/2/output"));
}

#[test]
fn files_of_a_sequence_are_made_when_it_hands_them_on() {
    let world = World::new([("/job/leaf/func.yml", LEAF)]);
    let trace = world.run_steps(
        "[{name: a, func: ./leaf, env: {O: '${{ output_file }}'}}, {name: b, script: x, env: {O: '${{ export_file }}'}}]",
    );
    let made: Vec<_> = trace
        .effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::MakeFiles(files) => Some(files.output.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(made, ["/state/tmp/0/output"]);
    assert_eq!(env(trace.spawns()[0], "O"), Some("/state/tmp/0/output"));
    assert_eq!(env(trace.spawns()[1], "O"), Some("/state/tmp/0/export"));
    assert_eq!(trace.spawns()[1].files, None);
}

#[test]
fn script_and_its_builtin_are_the_same() {
    for steps in [
        "[{name: a, script: 'echo ${{ vars.X }}'}]",
        "[{name: a, func: 'builtin://script', inputs: {script: 'echo ${{ vars.X }}'}}]",
        "[{name: a, step: 'dist://script', inputs: {script: 'echo ${{ vars.X }}'}}]",
    ] {
        let mut spec = request(steps);
        spec.vars.insert("X".into(), text("x"));
        let trace = World::default().run(&spec);
        assert_eq!(command(trace.spawns()[0]), ["echo x"], "{steps}");
        assert_eq!(trace.spawns()[0].work_dir, "/job");
    }
}

#[test]
fn a_script_too_long_for_an_argument_goes_through_a_file() {
    let long = "x".repeat(128 * 1024);
    let trace = World::default().run_steps(&format!("[{{name: a, script: {long}}}]"));
    assert_eq!(command(trace.spawns()[0])[0], "/state/tmp/1/script");
    let trace = World::default().run_steps(&format!("[{{name: a, script: {}}}]", "x".repeat(128 * 1024 - 1)));
    assert_eq!(command(trace.spawns()[0]).len(), 1);
}

#[test]
fn a_process_starts_where_its_definition_says() {
    let leaf = |dir: &str| format!("{{}}\n---\nexec: {{command: [x], work_dir: '{dir}'}}\n");
    for (dir, expected) in
        [("/abs", "/abs"), ("sub", "/job/sub"), ("./sub", "/job/sub"), ("", "/job"), (".", "/job")]
    {
        let trace = World::new([("/job/l/func.yml", leaf(dir).as_str())]).run_steps("[{name: a, func: ./l}]");
        assert_eq!(trace.spawns()[0].work_dir, expected);
    }
}

#[test]
fn the_root_may_have_an_interface_of_its_own() {
    let mut spec = request(
        "spec:\n  inputs: {n: {type: number}, s: {type: string, default: d}}\n  outputs: {o: {type: number}}\n---\nrun: [{name: a, script: '${{ inputs.s }}${{ inputs.n }}'}]\noutputs: {o: '${{ inputs.n }}'}\n",
    );
    spec.inputs.insert(
        "n".into(),
        step_runner_lang::value::Value::plain(step_runner_lang::value::Data::Number(2.0)),
    );
    let trace = World::default().run(&spec);
    assert_eq!(command(trace.spawns()[0]), ["d2"]);
    assert_eq!(trace.root().outputs["o"], 2);
}

#[test]
fn a_root_that_is_one_process_has_no_steps() {
    let trace = World::default().run_steps("{exec: {command: [exit, '4']}}");
    assert_eq!(trace.outcome().message, "exec: exit status 4");
    assert_eq!(trace.outcome().exit_code, 4);
    assert!(trace.emitted().is_empty());
    assert_eq!(trace.root().status, StepStatus::Failure);
    assert_eq!(trace.root().exec.as_ref().unwrap().exit_code, 4);
    assert!(trace.root().step.is_none());
}

#[test]
fn a_secret_that_a_computed_text_writes_otherwise_is_a_phrase_as_written_there() {
    let leaf = "{}\n---\nexec: {command: [x, '${{ str([env.E]) }}']}\n";
    let world = World::new([("/job/f/func.yml", leaf)]);
    for steps in [
        "[{name: a, func: ./f, env: {E: '${{ vars.M }}'}}]",
        "[{name: a, script: x, env: {E: '${{ str([vars.M]) }}'}}]",
    ] {
        let mut spec = request(steps);
        spec.vars.insert("M".into(), masked("a\"b"));
        assert_eq!(world.run(&spec).phrases(), ["a\\\"b"], "{steps}");
    }
}

#[test]
fn files_of_a_sequence_are_made_once_and_only_when_named() {
    for (steps, times) in [
        ("[{name: a, script: x}]", 0),
        ("[{name: a, script: x, env: {O: '${{ output_file }}'}}]", 1),
        (
            "[{name: a, script: x, env: {O: '${{ output_file }}'}}, {name: b, script: x, env: {O: '${{ export_file }}'}}, {name: c, script: x, env: {O: '${{ output_file }}'}}]",
            1,
        ),
    ] {
        let trace = World::default().run_steps(steps);
        let made = trace.effects.iter().filter(|effect| matches!(effect, Effect::MakeFiles(_)));
        assert_eq!(made.count(), times, "{steps}");
    }
}

#[test]
fn sensitive_values_are_phrases_before_anything_shows_them() {
    let world = World::new([(
        "/job/f/func.yml",
        "spec:\n  inputs: {k: {type: string, sensitive: true}}\n  outputs: {o: {type: string, sensitive: true}}\n---\nexec: {command: [write, '${{ output_file }}', '{\"name\":\"o\",\"value\":\"out-secret\"}', '${{ export_file }}', '']}\n",
    )]);
    let mut spec =
        request("[{name: a, func: ./f, inputs: {k: in-secret}}, {name: b, script: 'echo ${{ vars.M }}!'}]");
    spec.vars.insert("M".into(), masked("variable"));
    let trace = world.run(&spec);
    assert_eq!(trace.outcome().message, "");
    assert_eq!(trace.phrases(), ["in-secret", "out-secret"]);
    let place = |wanted: fn(&Effect) -> bool| trace.effects.iter().position(wanted).unwrap();
    let spawn = place(|effect| matches!(effect, Effect::Spawn(_)));
    let emit = place(
        |effect| matches!(effect, Effect::Note(note) if note.result.outcome != StepOutcome::Unspecified),
    );
    let phrases: Vec<_> =
        (0..trace.effects.len()).filter(|&at| matches!(trace.effects[at], Effect::Phrases(_))).collect();
    assert!(phrases[0] < spawn && spawn < phrases[1] && phrases[1] < emit, "{:?}", trace.effects);
}

#[test]
fn fault_81_numbers_as_a_step_wrote_them_are_phrases_for_a_replay_too() {
    use crate::job::event::Event;
    use crate::job::record;
    let world = World::new([(
        "/job/f/func.yml",
        "spec:\n  outputs: {big: {type: number, sensitive: true}, open: {type: number}}\n---\nexec: {command: [write, '${{ output_file }}', \"{\\\"name\\\":\\\"big\\\",\\\"value\\\":12345678901234567890}\\n{\\\"name\\\":\\\"open\\\",\\\"value\\\":7.50}\"]}\n",
    )]);
    let mut job = super::world::Driven::new(&world, &request("[{name: a, func: ./f}]"));
    let exited = loop {
        match job.pending.take() {
            Some(event @ Event::Exited { .. }) => break event,
            Some(event) => job.tell(&event),
            None => panic!("nothing runs"),
        }
    };
    let read = job.machine.read_files(exited);
    assert!(matches!(read, Event::Returned { .. }));
    let (replayed, _) = record::decode(&record::encode(&read, 0).unwrap()).unwrap();
    assert!(replayed == read);
    job.tell(&replayed);
    assert_eq!(job.trace.phrases(), ["12345678901234567000", "12345678901234567890"]);
    let outputs = &job.trace.emitted()[0].outputs;
    assert_eq!((&outputs["big"], &outputs["open"]), (&"[MASKED]".into(), &7.5.into()));
}

#[test]
fn what_a_fetched_function_calls_must_stay_in_its_tree() {
    use crate::job::event::{Event, Fetched};
    let mut machine = crate::job::machine::Machine::new(&request("[{name: a, func: 'host/x@v1'}]")).unwrap();
    let call = |effects: &[Effect]| match effects.last() {
        Some(Effect::Fetch { process, inside, .. }) => (*process, inside.clone()),
        other => panic!("{other:?}"),
    };
    let sequence = "{}\n---\nrun: [{name: in, func: ../other}]\n".to_owned();
    let mut expected = None;
    let mut effects = machine.handle(&Event::Admitted { at: 0 }, 0);
    for tree in [Some("/cache/tree".to_owned()), None, None] {
        let (id, inside) = call(&effects);
        assert_eq!(inside, expected);
        let dir = "/cache/tree/f".to_owned();
        let fetched =
            Fetched { path: format!("{dir}/func.yml"), dir, text: sequence.clone(), tree, version: None };
        effects = machine.handle(&Event::Fetched { process: id, result: Ok(fetched) }, 0);
        expected = Some("/cache/tree".to_owned());
    }
}

#[test]
fn a_thousand_equal_steps_share_one_definition() {
    let steps: Vec<_> = (0..1000).map(|at| format!("{{name: s{at}, func: ./leaf}}")).collect();
    let world = World::new([("/job/leaf/func.yml", LEAF)]);
    let trace = world.run_steps(&format!("[{}]", steps.join(", ")));
    let first = trace.root().sub_steps[0].definition.as_ref().unwrap();
    assert_eq!(trace.root().sub_steps.len(), 1000);
    assert!(
        trace
            .root()
            .sub_steps
            .iter()
            .all(|step| std::sync::Arc::ptr_eq(step.definition.as_ref().unwrap(), first))
    );
}

#[test]
fn references_of_a_named_document_are_relative_to_its_folder_if_the_name_is_absolute() {
    for (file, found) in [
        (Some("/steps.yml"), "/f/func.yml"),
        (Some("/docs/steps.yml"), "/docs/f/func.yml"),
        (Some("docs/steps.yml"), "/job/f/func.yml"),
        (Some("steps.yml"), "/job/f/func.yml"),
        (None, "/job/f/func.yml"),
    ] {
        let world = World::new([(found, "{}\n---\nexec: {command: [leaf]}\n")]);
        let mut spec = request("[{name: a, func: ./f}]");
        spec.file = file.map(str::to_owned);
        assert_eq!(world.run(&spec).started(), ["a"], "{file:?}");
    }
}
