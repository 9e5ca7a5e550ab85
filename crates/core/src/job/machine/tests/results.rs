//! The tree of results (language.md §16).

use step_runner_model::{StepResult, StepStatus};

use super::job::{Job, timers};
use super::world::{World, request, text};
use crate::job::effect::Effect;
use crate::job::event::Event;
use crate::job::results::ResultTree;
use serde_json::json;

const LEAF: &str = "spec:\n  inputs: {a: {type: string}, b: {type: number, default: 2}}\n---\nenv: {D: '${{ inputs.a }}'}\nexec: {command: [run, '${{ inputs.a }}', 1.50]}\n";

fn world() -> World {
    World::new([
        ("/job/leaf/func.yml", LEAF),
        (
            "/job/seq/step.yml",
            "{}\n---\nenv: {Q: q}\nrun: [{name: in, func: ../leaf, inputs: {a: x}, env: {S: s}}, {name: bad, script: exit 9}]\n",
        ),
    ])
}

#[test]
fn the_tree_mirrors_the_calls_down_to_the_failing_step() {
    let trace = world().run_steps(
        "[{name: one, func: ./leaf, inputs: {a: y}}, {name: two, func: ./seq}, {name: three, script: x}]",
    );
    let root = trace.root();
    assert_eq!(trace.outcome().message, "step \"two\": step \"bad\": exec: exit status 9");
    assert!(root.step.is_none());
    let [one, two] = &root.sub_steps[..] else { panic!("{} steps", root.sub_steps.len()) };
    assert_eq!(
        (root.status, one.status, two.status),
        (StepStatus::Failure, StepStatus::Success, StepStatus::Failure)
    );
    let names: Vec<_> = two.sub_steps.iter().map(|step| step.step.as_ref().unwrap().name.as_str()).collect();
    assert_eq!(names, ["in", "bad"]);
    assert_eq!(two.sub_steps[1].exec.as_ref().unwrap().exit_code, 9);
    let alone = root.sub_steps.iter().map(|step| StepResult { sub_steps: Vec::new(), ..step.clone() });
    assert!(trace.emitted().into_iter().cloned().eq(alone), "what was told is each step alone");
    assert_eq!(trace.emitted().len(), 2);
}

#[test]
fn a_result_shows_the_step_as_evaluated_and_the_function_as_read() {
    let mut spec =
        request("[{name: one, func: ./leaf, inputs: {a: '${{ vars.V }}'}, env: {S: '${{ vars.V }}'}}]");
    spec.vars.insert("V".into(), text("v"));
    spec.env.insert("REQ".into(), "r".into());
    let trace = world().run(&spec);
    let one = &trace.root().sub_steps[0];
    let step = one.step.as_ref().unwrap();
    assert_eq!(
        step.inputs.iter().map(|(name, value)| (name.as_str(), value.clone())).collect::<Vec<_>>(),
        [("a", json!("v"))]
    );
    assert_eq!(step.env["S"], "v");
    assert_eq!(step.reference.protocol, "local");
    assert_eq!(step.reference.path, ["job", "leaf"]);
    assert_eq!(step.reference.filename, "func.yml");
    assert_eq!(one.exec.as_ref().unwrap().command, ["run", "v", "1.50"]);
    assert_eq!(one.exec.as_ref().unwrap().work_dir, "/job");
    let env: Vec<_> = one.env.iter().map(|(key, value)| format!("{key}={value}")).collect();
    assert_eq!(env, ["REQ=r", "S=v", "D=v"]);
    assert_eq!(
        **one.definition.as_ref().unwrap(),
        json!({
            "spec": {"inputs": {"a": {"type": "string"}, "b": {"type": "number", "default": 2}}},
            "definition": {"env": {"D": "${{ inputs.a }}"}, "exec": {"command": ["run", "${{ inputs.a }}", "1.50"]}},
        })
    );
}

#[test]
fn the_definition_of_the_root_is_the_request() {
    for steps in [
        "[{name: one, script: x}]",
        "{run: [{name: one, script: x}]}",
        "{}\n---\nrun: [{name: one, script: x}]\n",
    ] {
        let trace = world().run_steps(steps);
        let expected = json!({"spec": {}, "definition": {"run": [{"name": "one", "script": "x"}]}});
        assert_eq!(**trace.root().definition.as_ref().unwrap(), expected, "{steps}");
    }
}

#[test]
fn a_builtin_shows_its_interface_and_its_script() {
    let trace = world().run_steps("[{name: one, script: hello}]");
    let one = &trace.root().sub_steps[0];
    assert_eq!(one.step.as_ref().unwrap().inputs["script"], "hello");
    assert_eq!(one.step.as_ref().unwrap().reference.protocol, "dist");
    assert_eq!(one.step.as_ref().unwrap().reference.path, ["script"]);
    assert_eq!(one.exec.as_ref().unwrap().command.last().unwrap(), "hello");
}

#[test]
fn what_a_job_keeps_has_bounded_size() {
    use crate::job::machine::call::{Call, Leaf, List};
    use std::mem::size_of;
    let sizes = [
        size_of::<crate::job::machine::Machine>(),
        size_of::<Call>(),
        size_of::<List>(),
        size_of::<Leaf>(),
        size_of::<step_runner_model::StepResult>(),
    ];
    let bounds = [640, 256, 560, 80, 1024];
    assert!(sizes.iter().zip(bounds).all(|(size, bound)| *size <= bound), "{sizes:?}");
}

#[test]
fn a_function_whose_process_cannot_be_described_is_in_the_tree_as_read() {
    let world = World::new([("/job/none/func.yml", "{}\n---\nexec: {command: ['${{ env.NOPE }}']}\n")]);
    let trace = world.run_steps("[{name: a, func: ./none}]");
    let [step] = &trace.root().sub_steps[..] else { panic!("not one step") };
    assert_eq!(step.status, StepStatus::Failure);
    assert!(step.definition.is_some() && step.exec.is_none());
}

#[test]
fn the_start_of_a_process_tells_whether_its_success_ends_the_job() {
    let world = World::new([
        ("/job/leaf/func.yml", "{}\n---\nexec: {command: [leaf]}\n"),
        ("/job/seq/func.yml", "{}\n---\nrun: [{name: a, func: ../leaf}, {name: b, script: b}]\n"),
        (
            "/job/gives/func.yml",
            "spec: {outputs: {o: {type: string, default: d}}}\n---\nexec: {command: [leaf]}\n",
        ),
        (
            "/job/passes/func.yml",
            "spec: {outputs: {o: {type: string}}}\n---\nrun: [{name: a, script: a}]\noutputs: {o: x}\n",
        ),
        (
            "/job/hands/func.yml",
            "spec: {outputs: delegate}\n---\nrun: [{name: a, func: ../leaf}]\ndelegate: a\n",
        ),
    ]);
    let ends = |steps: &str| -> Vec<bool> {
        world.run_steps(steps).spawns().into_iter().map(|spawn| spawn.ends_job).collect()
    };
    assert_eq!(ends("[{name: one, script: x}]"), [true]);
    assert_eq!(ends("[{name: one, script: x}, {name: two, func: ./seq}]"), [false, false, true]);
    assert_eq!(ends("[{name: one, func: ./seq}, {name: two, script: x}]"), [false, false, true]);
    // Values may be unusable, and are read before the end.
    assert_eq!(ends("[{name: one, func: ./gives}]"), [false]);
    assert_eq!(ends("[{name: one, func: ./passes}]"), [false]);
    assert_eq!(ends("[{name: one, func: ./hands}]"), [false]);
    assert_eq!(ends("[{name: one, script: 'x ${{ output_file }}'}]"), [false]);
}

#[test]
fn a_part_of_the_tree_is_the_part_of_the_whole_and_shows_the_last_attempt_only() {
    let text = "{}\n---\nrun: [{name: in, script: x}, {name: on, script: y}]\n";
    let world = World::new([("/job/f/func.yml", text)]);
    let mut job = Job::begin(&world, &request("[{name: a, retry: 1, func: ./f}, {name: z, script: z}]"));
    job.exit("in", 0);
    let failed = job.exit("on", 1);
    let [timer] = timers(&failed)[..] else { panic!("no delay") };
    job.tell(Event::Cleared { call: 1 });
    job.tell(Event::Due { timer });
    job.exit("in", 0);
    job.exit("on", 0);
    let mut tree = ResultTree::default();
    for effect in &job.effects {
        if let Effect::Note(note) = effect {
            tree.add((**note).clone());
        }
    }
    let a = tree.subtree(1).unwrap();
    assert_eq!(a.status, StepStatus::Success);
    let names: Vec<_> = a.sub_steps.iter().map(|step| step.step.as_ref().unwrap().name.as_str()).collect();
    assert_eq!(names, ["in", "on"]);
    assert!(tree.subtree(99).is_none());
    let root = tree.take_root(StepResult::default());
    assert!(root.sub_steps[0] == a);
    assert_eq!(root.sub_steps.len(), 2);
}
