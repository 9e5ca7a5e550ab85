//! Start and end times of steps, and what is told of them.

use std::collections::BTreeMap;
use std::time::Duration;

use step_runner_model::{FinishedProcess, StepResult, StepStatus, StepUsage};

use super::world::{World, request};
use crate::job::effect::Effect;
use crate::job::event::Event;
use crate::job::machine::{Machine, ROOT};
use crate::job::results::ResultTree;

/// Time of the admission by the wall clock, and since boot.
const WALL: i64 = 1_700_000_000_000_000;
const BOOT: u64 = 5_000_000;

/// Runs a job whose processes take 100 µs and print ten bytes. Each event is handled 1 ms after the one before.
fn run(world: &World, steps: &str) -> Vec<Effect> {
    let mut machine = Machine::new(&request(steps)).unwrap_or_else(|findings| panic!("{findings:?}"));
    let (mut effects, mut now, mut log_len) = (Vec::new(), BOOT, 0);
    let mut event = Some(Event::Admitted { at: WALL });
    while let Some(mut next) = event.take() {
        if let Event::Exited { ran, .. } = &mut next {
            log_len += 10;
            let usage = StepUsage {
                user: Duration::from_micros(80),
                peak_memory: Some(log_len << 20),
                ..StepUsage::default()
            };
            *ran = Some(FinishedProcess { ended: now - 900, log_len, usage: Some(usage) });
        }
        for effect in machine.handle(&next, now) {
            event = world.answer(&effect).or(event);
            effects.push(effect);
        }
        now += 1_000;
    }
    effects
}

/// Path of each step that something is told of, its status, and microseconds since the job's start.
fn told(effects: &[Effect]) -> Vec<(String, StepStatus, i64)> {
    let mut paths = BTreeMap::from([(ROOT, String::new())]);
    let mut told = Vec::new();
    for effect in effects {
        let (path, result) = match effect {
            Effect::Note(note) => {
                let name = note.result.step.as_ref().map_or("", |step| step.name.as_str());
                let path = match note.call {
                    ROOT => String::new(),
                    _ => format!("{}/{name}", paths[&note.parent]),
                };
                paths.insert(note.call, path.clone());
                (if path.is_empty() { "/".to_owned() } else { path }, &note.result)
            }
            Effect::Finish { root, .. } => ("/".to_owned(), &**root),
            _ => continue,
        };
        let at = result.facts.end.or(result.facts.start).unwrap() - WALL;
        told.push((path, result.status, at));
    }
    told
}

/// Returns the result of the job with those of its steps.
fn whole(effects: &[Effect]) -> StepResult {
    let mut tree = ResultTree::default();
    for effect in effects {
        match effect {
            Effect::Note(note) => tree.add((**note).clone()),
            Effect::Finish { root, .. } => return tree.take_root((**root).clone()),
            _ => {}
        }
    }
    panic!("no end")
}

const NESTED: &str = "[{name: a, script: exit 0}, {name: b, func: ./f}]";

fn world(last: &str) -> World {
    let function =
        format!("{{}}\n---\nrun:\n- {{name: one, script: exit 0}}\n- {{name: two, script: {last}}}\n");
    World::new([("/job/f/func.yml", function.as_str())])
}

#[test]
fn starts_and_ends_are_told_in_order_with_times_of_one_clock() {
    use StepStatus::{Running, Success};
    let effects = run(&world("exit 0"), NESTED);
    let expected = [
        ("/", Running, 0),
        ("/a", Running, 0),
        ("/a", Success, 100),
        // The fetch of its function is part of the step.
        ("/b", Running, 1_000),
        ("/b/one", Running, 2_000),
        ("/b/one", Success, 2_100),
        ("/b/two", Running, 3_000),
        ("/b/two", Success, 3_100),
        ("/b", Success, 3_100),
        ("/", Success, 3_100),
    ];
    let expected: Vec<_> = expected.map(|(path, status, at)| (path.to_owned(), status, at)).into();
    assert_eq!(told(&effects), expected);
}

#[test]
fn a_failure_ends_every_function_around_it_at_the_same_moment() {
    use StepStatus::Failure;
    let effects = run(&world("exit 3"), NESTED);
    let told = told(&effects);
    let expected = ["/b/two", "/b", "/"].map(|path| (path.to_owned(), Failure, 3_100));
    assert_eq!(told[told.len() - 3..], expected);
}

#[test]
fn a_result_tells_its_place_the_log_and_what_was_used() {
    let effects = run(&world("exit 0"), NESTED);
    let root = whole(&effects);
    let (a, b) = (&root.sub_steps[0].facts, &root.sub_steps[1].facts);
    let two = &root.sub_steps[1].sub_steps[1].facts;
    assert_eq!((a.number, a.total, a.steps, a.place.as_str()), (1, 2, None, "<steps>:1"));
    assert_eq!((b.number, b.total, b.steps), (2, 2, Some(2)));
    assert_eq!((two.number, two.total, two.place.as_str()), (2, 2, "/job/f/func.yml:5"));
    assert_eq!((root.facts.number, root.facts.total, root.facts.steps), (0, 0, Some(2)));
    assert_eq!(
        [a, b, two].map(|facts| (facts.log_start, facts.log_end)),
        [(Some(0), Some(10)), (Some(10), Some(30)), (Some(20), Some(30))]
    );
    assert_eq!(b.usage.unwrap().user, Duration::from_micros(160));
    assert_eq!(root.facts.usage.unwrap().user, Duration::from_micros(240));
    assert_eq!(root.facts.usage.unwrap().peak_memory, Some(30 << 20));
    assert_eq!(root.facts.usage.unwrap().read, None, "a part of the sum is not known");
}

#[test]
fn the_place_of_an_event_is_known_directly_behind_the_end_of_a_process() {
    let steps = "[{name: a, script: exit 0}, {name: b, script: exit 0}, {name: c, if: false, script: x}, \
                 {name: d, func: ./f}]";
    let effects = run(&world("exit 0"), steps);
    let places = effects.iter().filter_map(|effect| match effect {
        Effect::Note(note) => Some(note.place),
        _ => None,
    });
    // Behind the line about c, and when a function has come, only the keeper knows it.
    let (before, behind) = ([0, 0, 10, 10, 20].map(Some), [30, 30, 40, 40].map(Some));
    assert_eq!(places.collect::<Vec<_>>(), [&before[..], &[None; 3], &behind].concat());
}

#[test]
fn a_clock_that_steps_back_makes_no_step_end_before_its_start() {
    let mut machine = Machine::new(&request("[{name: a, script: exit 0}]")).unwrap_or_else(|_| panic!());
    machine.handle(&Event::Admitted { at: WALL }, BOOT);
    let end = crate::job::event::ProcessEnd::Exited(step_runner_model::ExitStatus::Code(0));
    let ran = Some(FinishedProcess { ended: 7, log_len: 1, usage: None });
    let over = Event::Exited { process: 1, end, shell: None, outputs: None, exports: None, ran };
    let effects = machine.handle(&over, BOOT - 1_000);
    let Some(Effect::Finish { root, .. }) = effects.last() else { panic!("no end") };
    assert_eq!((root.facts.start, root.facts.end), (Some(WALL), Some(WALL)));
}

#[test]
fn a_job_that_never_started_has_no_times() {
    let mut machine = Machine::new(&request("[{name: a, script: exit 0}]")).unwrap_or_else(|_| panic!());
    let cancel =
        Event::CancelAsked { cause: step_runner_model::CancelCause::Finish, grace_limit: None, force: false };
    let effects = machine.handle(&cancel, BOOT);
    let Some(Effect::Finish { root, .. }) = effects.last() else { panic!("no end") };
    assert_eq!(root.facts, step_runner_model::StepFacts::default());
}
