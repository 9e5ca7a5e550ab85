//! Cancels, time limits and defects at every point of a job's life (language.md §15, service.md §6.2).

use std::time::Duration;

use step_runner_model::{CancelCause, EndClass, StepOutcome, StepStatus};

use super::world::{Driven, World, request};
use crate::job::effect::Effect;
use crate::job::event::{Event, JobSpec, ProcessEnd};

fn cancel(cause: CancelCause) -> Event {
    Event::CancelAsked { cause, grace_limit: None, force: false }
}

fn limited(cause: CancelCause, seconds: u64) -> Event {
    Event::CancelAsked { cause, grace_limit: Some(Duration::from_secs(seconds)), force: false }
}

fn world() -> World {
    World::new([
        ("/job/seq/func.yml", "{}\n---\nrun: [{name: in, func: ../leaf}, {name: never, script: x}]\n"),
        ("/job/leaf/func.yml", "{}\n---\nexec: {command: [leaf], cancel_timeout: 8s}\n"),
    ])
}

/// A sequence whose first step runs a process: calls 1 `out`, 2 `in`.
fn nested() -> JobSpec {
    request("[{name: out, func: ./seq}, {name: last, script: x}]")
}

fn stops(driven: &Driven) -> Vec<u64> {
    let stops = driven.trace.effects.iter().filter_map(|effect| match effect {
        Effect::Stop { grace, .. } => Some(grace.as_secs()),
        _ => None,
    });
    stops.collect()
}

#[test]
fn a_queued_job_ends_at_once() {
    let mut driven = Driven::new(&world(), &nested());
    driven.tell(&cancel(CancelCause::QueuedTooLong));
    assert_eq!(driven.trace.outcome().class, EndClass::Cancelled);
    assert_eq!(driven.trace.outcome().exit_code, -2);
    assert!(driven.trace.effects.is_empty());
    let root = driven.trace.root();
    assert_eq!((root.status, root.outcome), (StepStatus::Cancelled, StepOutcome::Cancelled));
    assert!(driven.trace.root().definition.is_some(), "what would have run is known");
    assert_eq!(driven.trace.log(), ["E job cancelled: it waited too long for a free slot"]);
    driven.tell(&Event::Admitted { at: 0 });
}

#[test]
fn while_a_function_is_fetched_the_job_ends_at_once_and_a_late_answer_is_ignored() {
    let mut driven = Driven::new(&world(), &nested());
    driven.go_on_to(2);
    assert!(matches!(driven.pending, Some(Event::Fetched { .. })));
    driven.tell(&cancel(CancelCause::Cancel));
    assert!(stops(&driven).is_empty());
    assert_eq!(driven.trace.outcome().class, EndClass::Cancelled);
    driven.go_on();
    let out = &driven.trace.root().sub_steps[0];
    assert_eq!((out.status, out.sub_steps.len()), (StepStatus::Cancelled, 0));
}

#[test]
fn a_running_process_is_stopped_and_everything_around_it_is_cancelled_even_if_it_ends_well() {
    let mut driven = Driven::new(&world(), &nested());
    driven.go_on_to(2);
    driven.go_on();
    driven.tell(&cancel(CancelCause::Finish));
    assert_eq!(stops(&driven), [8]);
    assert!(driven.trace.finish.is_none());
    driven.go_on();
    assert_eq!(driven.trace.outcome().class, EndClass::Cancelled);
    let root = driven.trace.root();
    let statuses = [root.status, root.sub_steps[0].status, root.sub_steps[0].sub_steps[0].status];
    assert_eq!(statuses, [StepStatus::Cancelled; 3]);
    assert_eq!(root.sub_steps[0].sub_steps[0].exec.as_ref().unwrap().exit_code, 0);
    assert_eq!(driven.trace.started(), ["in"]);
    assert_eq!(driven.trace.emitted().len(), 1);
    assert_eq!(
        driven.trace.log().last().unwrap(),
        "E job cancelled: a client finished the job before its end"
    );
}

/// The keeper has closed the log by then, so the job's log says nothing of the cancel.
#[test]
fn a_cancel_behind_the_process_that_ended_the_job_changes_nothing() {
    let mut driven = Driven::new(&World::default(), &request("[{name: a, script: x}]"));
    driven.go_on();
    driven.tell(&cancel(CancelCause::Cancel));
    let Some(Event::Exited { process, end: ProcessEnd::Exited(status), .. }) = driven.pending.take() else {
        panic!("nothing runs")
    };
    driven.tell(&Event::returned_nothing(process, status, None, None));
    assert_eq!(driven.trace.outcome().class, EndClass::Success);
    assert_eq!(driven.trace.root().sub_steps[0].status, StepStatus::Success);
}

#[test]
fn outputs_and_exports_of_a_stopped_step_are_not_read() {
    let mut driven = Driven::new(
        &World::default(),
        &request("[{name: a, script: 'write ${{ export_file }} {\"name\":\"A\",\"value\":\"b\"}'}]"),
    );
    driven.go_on();
    driven.tell(&cancel(CancelCause::Cancel));
    driven.go_on();
    assert!(driven.trace.root().sub_steps[0].exports.is_empty());
}

#[test]
fn the_grace_is_the_least_of_all_that_bound_it() {
    let grace = |request_bound: Option<u64>, event: &Event, steps: &str| {
        let mut spec = request(steps);
        spec.cancel_grace = request_bound.map(Duration::from_secs);
        let mut driven = Driven::new(&world(), &spec);
        driven.go_on_to(1);
        if matches!(driven.pending, Some(Event::Fetched { .. })) {
            driven.go_on();
        }
        driven.tell(event);
        stops(&driven)
    };
    let (script, leaf) = ("[{name: a, script: x}]", "[{name: a, func: ./leaf}]");
    assert_eq!(grace(None, &cancel(CancelCause::Cancel), script), [5]);
    assert_eq!(grace(None, &cancel(CancelCause::Cancel), leaf), [8]);
    assert_eq!(grace(Some(2), &cancel(CancelCause::Cancel), leaf), [2]);
    assert_eq!(grace(Some(20), &cancel(CancelCause::Cancel), script), [5]);
    assert_eq!(grace(Some(3), &limited(CancelCause::Shutdown, 1), leaf), [1]);
    assert_eq!(grace(None, &limited(CancelCause::Shutdown, 60), leaf), [8]);
}

#[test]
fn the_first_cause_counts_and_only_a_shorter_grace_is_told_again() {
    let mut driven = Driven::new(&World::default(), &request("[{name: a, script: x}]"));
    driven.go_on();
    driven.tell(&cancel(CancelCause::TimeLimit));
    driven.tell(&cancel(CancelCause::Cancel));
    driven.tell(&limited(CancelCause::Finish, 1));
    driven.tell(&limited(CancelCause::Shutdown, 3));
    driven.tell(&limited(CancelCause::Finish, 0));
    assert_eq!(stops(&driven), [5, 0], "a Finish after a stop ends the job at once");
    driven.go_on();
    assert_eq!((driven.trace.outcome().class, driven.trace.outcome().exit_code), (EndClass::Timeout, -3));
    assert_eq!(
        driven.trace.log().last().unwrap(),
        "E job ended by time limit: the time limit of the request is over"
    );
}

#[test]
fn a_job_that_has_ended_by_itself_keeps_its_result() {
    let mut driven = Driven::new(&World::default(), &request("[{name: a, script: exit 3}]"));
    while driven.go_on() {}
    driven.tell(&cancel(CancelCause::Cancel));
    driven.tell(&Event::Broken { message: "late".into() });
    assert_eq!(driven.trace.outcome().exit_code, 3);
}

#[test]
fn death_by_sigkill_without_a_cancel_is_a_failure() {
    let trace = World::default().run_steps("[{name: a, script: signal 9}]");
    assert_eq!(trace.outcome().message, "step \"a\": exec: signal: killed");
    assert_eq!((trace.outcome().class, trace.outcome().exit_code), (EndClass::Failure, 137));
    assert_eq!(trace.root().sub_steps[0].exec.as_ref().unwrap().exit_code, -1);
}

#[test]
fn a_defect_of_the_daemon_fails_the_job_wherever_it_is() {
    let broken = Event::Broken { message: "actor panicked\nwith exit status 1".into() };
    for steps_before in 0..6 {
        let mut driven = Driven::new(&world(), &nested());
        for _ in 0..steps_before {
            driven.go_on();
        }
        driven.tell(&broken);
        if driven.trace.outcome().class == EndClass::Success {
            continue;
        }
        assert_eq!(driven.trace.outcome().message, "internal: actor panicked\nwith exit status 1");
        assert!(!driven.trace.outcome().tells_exit_status());
        let root = driven.trace.root();
        assert_eq!((root.status, root.outcome), (StepStatus::Failure, StepOutcome::Failure));
        assert!(driven.trace.log().last().unwrap().starts_with("E job failed: internal: "));
        while driven.go_on() {}
    }
}

#[test]
fn a_job_that_cannot_begin_fails_without_a_step() {
    let mut driven = Driven::new(&world(), &nested());
    driven.tell(&Event::Unprepared { message: "cannot write file variable \"A\"".into() });
    assert_eq!((driven.trace.outcome().class, driven.trace.outcome().exit_code), (EndClass::Failure, -1));
    assert_eq!(driven.trace.log(), ["E job failed: cannot write file variable \"A\""]);
    let root = driven.trace.root();
    assert!(root.sub_steps.is_empty());
    assert_eq!((root.status, root.outcome), (StepStatus::Failure, StepOutcome::Failure));
}

#[test]
fn phrases_of_an_event_that_panicked_are_not_lost() {
    let mut machine = crate::job::machine::Machine::new(&request("[{name: a, script: x}]")).unwrap();
    machine.phase = crate::job::machine::Phase::Handling;
    machine.effects.push(Effect::Phrases(vec![b"secret".to_vec()]));
    machine.effects.push(Effect::Stop { process: 1, grace: Duration::ZERO });
    let effects = machine.handle(&Event::Broken { message: "panic".into() }, 0);
    assert!(matches!(effects[..], [Effect::Phrases(_), Effect::Finish { .. }]), "{effects:?}");
}

#[test]
fn a_defect_met_while_a_cancel_is_under_way_leaves_the_job_cancelled() {
    let mut driven = Driven::new(&World::default(), &request("[{name: a, script: x}]"));
    driven.go_on();
    driven.tell(&cancel(CancelCause::Silent));
    driven.tell(&Event::Broken { message: "x".into() });
    assert_eq!(driven.trace.outcome().class, EndClass::Timeout);
}
