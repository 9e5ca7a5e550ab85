//! The estimated work of events, and the limit on the data that a job keeps.

use step_runner_model::ExitStatus;

use super::job::{Job, spawns};
use super::world::{Driven, World, masked, request, text};
use crate::job::effect::Effect;
use crate::job::event::{Event, Fetched, FileContent, ProcessEnd};
use crate::job::machine::Machine;
use crate::plan::returned::ProcessOutputs;

const ADMITTED: Event = Event::Admitted { at: 0 };

fn exited(outputs: usize) -> Event {
    let outputs = Some(FileContent::Bytes(vec![b'\n'; outputs]));
    let end = ProcessEnd::Exited(ExitStatus::Code(0));
    Event::Exited { process: 1, end, shell: None, outputs, exports: None, ran: None }
}

#[test]
fn fault_76_large_work_is_told_from_small_before_it_is_done() {
    let is_small = |steps: &str, vars: usize, event: &Event| {
        let mut spec = request(steps);
        spec.vars.insert("A".into(), text(&"x".repeat(vars)));
        Driven::new(&World::default(), &spec).machine.is_small(event)
    };
    let plain = "[{name: a, script: 'echo ${{ vars.A }}'}]";
    assert!(is_small(plain, 10_000, &ADMITTED));
    assert!(is_small(plain, 10_000, &exited(1_000)));
    assert!(!is_small(plain, 10_000, &exited(1 << 20)), "a large file");
    assert!(!is_small(plain, 10 << 20, &ADMITTED), "a large value");
    let many = format!("[{{name: a, script: '{}'}}]", "${{ vars.A }}".repeat(1_000));
    assert!(!is_small(&many, 100_000, &ADMITTED), "a value named often");
    assert!(is_small(&many, 100, &ADMITTED));
    let nested = |depth: usize| format!("{}'\"'{}", "str([".repeat(depth), "])".repeat(depth));
    let doubled =
        |depth| format!("[{{name: a, script: 'echo ${{{{ {} }}}}'}}]", nested(depth).replace('\'', "''"));
    assert!(is_small(&doubled(3), 100, &ADMITTED));
    assert!(!is_small(&doubled(16), 100, &ADMITTED), "a text that doubles from call to call");
    assert!(!is_small(&doubled(50), 100, &ADMITTED));
    let ones = format!("[{}]", "1,".repeat(100));
    let unfolds =
        |times| format!("[{{name: a, func: ./f, inputs: {{o: [&a {ones},&b [{}]]}}}}]", "*a,".repeat(times));
    assert!(is_small(&unfolds(10), 1, &ADMITTED));
    assert!(!is_small(&unfolds(1_000), 1, &ADMITTED), "aliases");
    let long = format!("[{{name: a, script: '{}'}}]", "x".repeat(2 << 20));
    assert!(!is_small(&long, 1, &ADMITTED), "a long document");
}

#[test]
fn fault_76_functions_that_hand_on_more_than_they_get_are_large_before_their_values_are() {
    let files: Vec<(String, String)> = (0..20)
        .map(|at| {
            let text = format!(
                "spec:\n  inputs: {{x: {{type: string}}}}\n---\nrun: [{{name: d, func: ../f{}, \
                 inputs: {{x: '${{{{ inputs.x }}}}${{{{ inputs.x }}}}'}}}}]\n",
                at + 1
            );
            (format!("/job/f{at}/func.yml"), text)
        })
        .collect();
    let world = World::new(files.iter().map(|(path, text)| (path.as_str(), text.as_str())));
    let spec = request("[{name: d, func: ./f0, inputs: {x: 'xx'}}]");
    let mut job = Driven::new(&world, &spec);
    let mut depth = 0;
    while let Some(event) = &job.pending {
        if !job.machine.is_small(event) {
            break;
        }
        depth += 1;
        assert!(job.go_on());
    }
    assert!((2..15).contains(&depth), "{depth}");
}

#[test]
fn fault_76_a_job_keeps_no_more_than_its_results_may_hold() {
    let mut spec =
        request("[{name: a, script: x}, {name: b, script: x}, {name: c, script: x}, {name: d, script: x}]");
    spec.env.insert("A".into(), "x".repeat(40 << 20));
    let trace = World::default().run(&spec);
    let message = &trace.outcome().message;
    assert!(message.contains("step \"d\": failed to load: "), "{message}");
    assert!(message.contains("takes more than 128 MiB: hand large values over in files"), "{message}");
    assert_eq!(trace.started(), ["a", "b", "c"]);
}

#[test]
fn what_a_step_returns_counts_whichever_way_it_returns_it() {
    let large = "x".repeat(1 << 20);
    let file = |name: &str| [(name.to_owned(), large.clone())].into_iter().collect();
    let none = || ProcessOutputs::none();
    for (what, returned, shell) in [
        ("outputs", ProcessOutputs { outputs: [("a".to_owned(), text(&large))].into(), ..none() }, "sh"),
        ("exports", ProcessOutputs { exports: file("A"), ..none() }, "sh"),
        ("the command", none(), large.as_str()),
        ("nothing", none(), "sh"),
    ] {
        let steps = "[{name: a, script: 'x ${{ output_file }}'}, {name: b, script: x}]";
        let mut job = Job::begin(&World::default(), &request(steps));
        job.machine.room = large.len();
        let (status, shell) = (ExitStatus::Code(0), Some(shell.to_owned()));
        let returned = Box::new(Ok(returned));
        let ended = job.tell(Event::Returned { process: 1, status, shell, returned, ran: None });
        let is_over = matches!(ended.last(), Some(Effect::Finish { outcome, .. })
            if outcome.message.contains("step \"a\": limit: what the steps of this job are given and return"));
        assert_eq!(is_over, what != "nothing", "{what}");
    }
}

/// Its success could still fail for want of room, so the log must not be closed before.
#[test]
fn a_process_that_leaves_little_room_does_not_end_the_job_by_itself() {
    for (room, ends_job) in [(1 << 19, false), (2 << 20, true)] {
        let mut machine = Machine::new(&request("[{name: a, script: x}]")).unwrap();
        machine.room = room;
        let effects = machine.handle(&ADMITTED, 0);
        let [spawn] = spawns(&effects)[..] else { panic!("nothing begins") };
        assert_eq!(spawn.ends_job, ends_job, "{room}");
    }
}

const LEAF: &str = "{}\n---\nexec: {command: [leaf]}\n";

fn fetched(text: &str) -> Event {
    let (dir, path, text) = ("/f".to_owned(), "/f/func.yml".to_owned(), text.to_owned());
    Event::Fetched { process: 1, result: Ok(Fetched { dir, path, text, tree: None, version: None }) }
}

#[test]
fn expressions_of_a_function_count_before_it_is_read() {
    let mut spec = request("[{name: a, func: ./f}]");
    spec.vars.insert("A".into(), text(&"x".repeat(100_000)));
    let mut machine = Machine::new(&spec).unwrap();
    machine.handle(&ADMITTED, 0);
    let with = |more: &str| fetched(&format!("{LEAF}# {more}\n"));
    assert!(machine.is_small(&with("")));
    assert!(machine.is_small(&with("${{ vars.A }} and ${{ vars.A }}")));
    assert!(!machine.is_small(&with(&"${{ vars.A }}".repeat(20))), "a value named often");
    assert!(!machine.is_small(&with("\\x24")), "an escape may spell anything");
    assert!(!machine.is_small(&with("&a [*a, *a]")), "aliases repeat what they name");
    assert!(!machine.is_small(&with(&"x".repeat(1 << 17))), "a long text");
}

#[test]
fn each_secret_that_a_text_is_searched_for_counts() {
    let is_small = |secrets: usize| {
        let mut spec = request("[{name: a, func: 'https://u:pass@h.example/p@v1'}]");
        spec.vars.insert("A".into(), text(&"x".repeat(200_000)));
        for secret in 0..secrets {
            spec.vars.insert(format!("S{secret}"), masked("secret"));
        }
        Machine::new(&spec).unwrap().is_small(&ADMITTED)
    };
    assert!(is_small(0));
    assert!(is_small(16), "three searches of 200 KB");
    assert!(!is_small(64), "nine searches");
}

#[test]
fn exports_in_force_count() {
    let is_small = |count: usize| {
        let mut job = Job::begin(&World::default(), &request("[{name: a, script: x}, {name: b, script: x}]"));
        let line =
            |at| format!("{{\"name\":\"A_NAME_AS_LONG_{at}\",\"value\":\"{}\"}}\n", "x".repeat(100_000));
        job.export("a", &(0..count).map(line).collect::<String>());
        job.machine.is_small(&exited_of(job.process("b").process))
    };
    assert!(is_small(1));
    assert!(!is_small(6), "as exports, and in the environment of the step");
}

fn exited_of(process: u32) -> Event {
    let end = ProcessEnd::Exited(ExitStatus::Code(0));
    Event::Exited { process, end, shell: None, outputs: None, exports: None, ran: None }
}

#[test]
fn an_event_weighs_what_the_functions_around_its_own_call_see() {
    let function = "spec: {inputs: {x: {type: string}}}\n---\nrun: [{name: in, script: '${{ str(1) }}'}, \
                    {name: on, script: '${{ inputs.x }}'}]\n";
    let world = World::new([("/job/f/func.yml", function)]);
    let long = "x".repeat(300_000);
    let steps = format!(
        "[{{name: g, parallel: [{{name: m, func: ./f, inputs: {{x: {long}}}}}, {{name: n, script: x}}]}}, {{name: z, script: x}}]"
    );
    let job = Job::begin(&world, &request(&steps));
    let (inner, other) = (job.process("in").process, job.process("n").process);
    assert!(!job.machine.is_small(&exited_of(inner)), "it makes a step see the long input");
    assert!(job.machine.is_small(&exited_of(other)));
}

#[test]
fn documents_count_while_their_functions_are_under_way() {
    let steps = "[{name: a, func: ./f}]";
    let inner = "{}\n---\nrun: [{name: in, script: x}, {name: on, script: x}]\n";
    let mut queued = Machine::new(&request(steps)).unwrap();
    let alone = queued.document_size();
    assert!(alone >= steps.len());
    queued.handle(&ADMITTED, 0);
    assert_eq!(queued.document_size(), alone);
    queued.handle(&fetched(inner), 0);
    assert!(queued.document_size() >= alone + inner.len());
}
