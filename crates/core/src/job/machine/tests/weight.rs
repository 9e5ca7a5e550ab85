//! The estimated work of events, and the limit on the data that a job keeps.

use step_runner_model::ExitStatus;

use super::world::{Driven, World, request, text};
use crate::job::event::{Event, FileContent, ProcessEnd};

const ADMITTED: Event = Event::Admitted { at: 0 };

fn exited(outputs: usize) -> Event {
    let outputs = Some(FileContent::Bytes(vec![b'\n'; outputs]));
    let end = ProcessEnd::Exited(ExitStatus::Code(0));
    Event::Exited { call: 1, end, shell: None, outputs, exports: None, ran: None }
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
