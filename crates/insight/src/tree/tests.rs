use super::*;

fn event(call: u32, parent: u32, name: &str, number: i32, stream: u32, outcome: Outcome) -> v1::StepEvent {
    let status = if outcome == Outcome::Unspecified { Status::Running } else { Status::Success };
    let step = (call != ROOT).then(|| v1::Step { name: name.into(), ..v1::Step::default() });
    let result = v1::StepResult {
        step,
        number,
        total: 3,
        status: status.into(),
        outcome: outcome.into(),
        ..v1::StepResult::default()
    };
    v1::StepEvent { call, parent, result: Some(result), log_bytes: 0, stream, member: false }
}

/// Returns the event of a further attempt.
fn again(event: v1::StepEvent) -> v1::StepEvent {
    let result =
        event.result.map(|result| v1::StepResult { attempts: vec![v1::StepResult::default()], ..result });
    v1::StepEvent { result, ..event }
}

fn at(log_bytes: i64, event: v1::StepEvent) -> v1::StepEvent {
    v1::StepEvent { log_bytes, ..event }
}

fn under_way(tree: &Tree) -> Vec<u32> {
    tree.under_way().map(|(call, _)| call).collect()
}

const OPEN: Outcome = Outcome::Unspecified;

#[test]
fn lines_belong_to_the_innermost_step_of_their_stream() {
    let mut tree = Tree::default();
    tree.take(&event(0, 0, "", 0, 1, OPEN));
    assert_eq!((tree.of_stream(1), tree.innermost()), (0, 0));
    tree.take(&event(1, 0, "group", 1, 1, OPEN));
    tree.take(&event(2, 1, "a", 1, 1, OPEN));
    assert_eq!(tree.id(2), "1.1");
    assert_eq!((tree.of_stream(1), tree.innermost(), tree.is_parallel()), (2, 2, false));
    tree.take(&event(3, 1, "b", 2, 2, OPEN));
    assert_eq!((tree.path(3).join("/"), tree.id(3)), ("group/b".into(), "1.2".into()));
    tree.take(&event(4, 3, "inner", 1, 2, OPEN));
    assert_eq!((tree.of_stream(1), tree.of_stream(2), tree.innermost()), (2, 4, 0));
    assert!(tree.is_parallel());
    assert_eq!(tree.take(&event(2, 1, "a", 1, 1, Outcome::Success)), Change::Ended);
    assert_eq!((tree.path(2).join("/"), tree.id(2)), ("group/a".into(), "1.1".into()));
    assert_eq!((tree.of_stream(1), tree.innermost()), (1, 4));
    assert_eq!(tree.take(&event(5, 1, "c", 3, 1, Outcome::Skipped)), Change::Skipped);
    assert_eq!(tree.get(5).map(|step| step.attempt), Some(0));
    assert_eq!(under_way(&tree), [0, 1, 3, 4]);
}

#[test]
fn a_step_that_ends_without_a_start_had_no_attempt() {
    let failed = event(1, 0, "a", 1, 1, Outcome::Failure);
    let mut tree = Tree::default();
    assert_eq!(tree.take(&failed), Change::Ended);
    assert_eq!(tree.get(1).map(|step| step.attempt), Some(0));
    // A client that came late gets the end alone, with the time of the start.
    let start_time = Some(prost_types::Timestamp::default());
    let result = failed.result.map(|result| v1::StepResult { start_time, ..result });
    let mut late = Tree::default();
    late.take(&v1::StepEvent { result, ..failed });
    assert_eq!(late.get(1).map(|step| step.attempt), Some(1));
}

#[test]
fn lines_of_the_daemon_belong_to_the_root_while_a_member_of_a_group_is_under_way() {
    let member = |event: v1::StepEvent| v1::StepEvent { member: true, ..event };
    let mut tree = Tree::default();
    tree.take(&event(1, 0, "group", 1, 1, OPEN));
    assert_eq!(tree.innermost(), 1);
    tree.take(&member(event(2, 1, "a", 1, 1, OPEN)));
    tree.take(&event(3, 2, "inner", 1, 1, OPEN));
    assert_eq!((tree.innermost(), tree.of_stream(1), tree.is_parallel()), (0, 3, false));
    tree.take(&member(event(2, 1, "a", 1, 1, Outcome::Success)));
    assert_eq!(tree.innermost(), 1);
}

#[test]
fn a_further_attempt_ends_what_the_one_before_called() {
    let mut tree = Tree::default();
    tree.take(&event(1, 0, "f", 1, 1, OPEN));
    tree.take(&event(2, 1, "inner", 1, 1, OPEN));
    assert_eq!(tree.take(&again(event(1, 0, "f", 1, 1, OPEN))), Change::Again);
    assert_eq!(tree.get(1).map(|step| step.attempt), Some(2));
    assert_eq!(under_way(&tree), [1]);
}

#[test]
fn steps_under_way_stand_behind_the_step_that_they_belong_to() {
    let mut tree = Tree::default();
    for (call, parent) in [(0, 0), (1, 0), (2, 1), (3, 1), (5, 3), (4, 2)] {
        tree.take(&event(call, parent, "x", 1, call, OPEN));
    }
    assert_eq!(under_way(&tree), [0, 1, 2, 4, 3, 5]);
    tree.take(&again(event(2, 1, "x", 1, 2, OPEN)));
    assert_eq!(under_way(&tree), [0, 1, 3, 5, 2], "the one that began last is the last of its group");
    tree.take(&event(0, 0, "", 0, 1, Outcome::Failure));
    assert_eq!(under_way(&tree), [1, 3, 5, 2], "nobody saw their ends");
}

#[test]
fn numbers_that_make_no_tree_end_no_walk() {
    let mut tree = Tree::default();
    tree.take(&event(1, 2, "a", 1, 1, OPEN));
    tree.take(&event(2, 1, "b", 1, 1, OPEN));
    assert_eq!(tree.path(2), ["b"]);
    assert!(tree.last_output(2).is_some());
}

#[test]
fn the_last_output_of_a_step_is_that_of_its_last_attempt_and_of_the_last_step_within_it() {
    let mut tree = Tree::default();
    for event in [
        at(0, event(0, 0, "", 0, 1, OPEN)),
        at(0, event(1, 0, "f", 1, 1, OPEN)),
        at(10, event(2, 1, "a", 1, 1, OPEN)),
        at(20, event(2, 1, "a", 1, 1, Outcome::Success)),
        at(20, event(3, 1, "b", 2, 1, OPEN)),
        at(30, again(event(3, 1, "b", 2, 1, OPEN))),
        at(30, event(4, 0, "beside", 2, 2, OPEN)),
        at(40, event(3, 1, "b", 2, 1, Outcome::Failure)),
        at(40, event(1, 0, "f", 1, 1, Outcome::Failure)),
        at(40, event(5, 0, "skipped", 3, 1, Outcome::Skipped)),
    ] {
        tree.take(&event);
    }
    let writers = |call: u32| {
        let output = tree.last_output(call).unwrap();
        [15, 25, 35, 45].map(|place| output.writer(place, 1))
    };
    assert_eq!(writers(2), [Some(2), None, None, None]);
    assert_eq!(writers(3), [None, None, Some(3), None]);
    assert_eq!(writers(1), [None, None, Some(3), None]);
    assert_eq!(writers(0), [None, None, Some(3), Some(0)]);
    assert_eq!(tree.last_output(1).unwrap().writer(35, 2), None, "of a step beside it");
    assert!(tree.last_output(5).is_none() && tree.last_output(9).is_none());
}

#[test]
fn the_step_of_a_result_is_that_of_the_last_attempt_around_it() {
    let mut tree = Tree::default();
    tree.take(&event(1, 0, "f", 1, 1, OPEN));
    tree.take(&event(2, 1, "a", 1, 1, Outcome::Failure));
    tree.take(&again(event(1, 0, "f", 1, 1, OPEN)));
    tree.take(&event(3, 1, "a", 1, 1, Outcome::Failure));
    let result = |name: &str, number: i32| {
        let step = Some(v1::Step { name: name.into(), ..v1::Step::default() });
        v1::StepResult { step, number, ..v1::StepResult::default() }
    };
    let (f, a, other) = (result("f", 1), result("a", 1), result("b", 1));
    assert_eq!(tree.find(&[&f, &a]), Some(3));
    assert_eq!(tree.find(&[&f]), Some(1));
    assert_eq!(tree.find(&[]), Some(ROOT));
    assert_eq!(tree.find(&[&f, &other]), None);
}
