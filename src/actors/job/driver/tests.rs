//! Rules of the driver, one by one and over random schedules with deaths of daemons and keepers.

mod fixtures;
mod stage;

use std::time::Duration;

use proptest::prelude::*;

use super::waiting::{MAX_DIED, MAX_REFUSED};
use super::*;
use crate::actors::messages::NotRegistered;
use crate::job::event::FetchFailure;
use crate::journal::event::End;
use crate::lang::diagnostic::Class;
use crate::model::{CancelCause, EndClass, ExitStatus, Outcome};
use fixtures::{AT, machine, step_ended, storage_error};
use stage::{Happening, Stage, Story};

/// Lists of steps: simple ones, one with a nested list that is fetched, one whose failure is not the last step.
const STEPS: [&str; 4] = [
    "[{name: a, script: x}]",
    "[{name: a, script: x}, {name: b, script: y}, {name: c, script: z}]",
    "[{name: out, func: ./f}, {name: last, script: x}]",
    "[{name: out, func: ./f}, {name: again, func: ./f}]",
];

fn ask(cause: CancelCause) -> CancelAsk {
    CancelAsk { cause, grace_limit: None, force: false }
}

fn running() -> Driver {
    let mut driver = Driver::new(machine(STEPS[1]), None);
    assert!(driver.begin(false));
    handle(&mut driver, Event::Admitted { at: 0 });
    driver
}

fn waiting() -> Driver {
    Driver::new(machine(STEPS[0]), Some(RegisteredRequest::default()))
}

fn handle(driver: &mut Driver, event: Event) -> RecordToSend {
    match driver.event(event, AT) {
        EventReaction::Handled(record) => record,
        EventReaction::Deferred | EventReaction::Elsewhere(..) => {
            panic!("it is a small event, and the machine is here")
        }
    }
}

fn take(driver: &mut Driver, reaction: Reaction) {
    if let Reaction::Handle(event) = reaction {
        handle(driver, *event);
    }
}

/// Performs all actions and returns them.
fn actions(driver: &mut Driver) -> Vec<Action> {
    std::iter::from_fn(|| driver.next_action()).collect()
}

fn ending() -> Driver {
    let mut driver = running();
    let reaction = driver.defect("a defect".into(), false);
    take(&mut driver, reaction);
    assert!(actions(&mut driver).iter().any(|action| matches!(action, Action::Finish(Some(_)))));
    driver
}

/// Returns the event of a cancel that counts.
fn counted(reaction: CancelReaction) -> Option<Event> {
    match reaction.reaction {
        Reaction::Handle(event) => Some(*event),
        Reaction::Nothing | Reaction::Interrupt => None,
    }
}

#[test]
fn a_request_to_end_counts_once_unless_the_next_one_ends_the_job_sooner() {
    let mut driver = running();
    let mut is_counted = |cause, grace_limit, force| {
        let reaction = driver.cancel(CancelAsk { cause, grace_limit, force }, false);
        let is_accepted = reaction.is_accepted;
        let event = counted(reaction);
        assert_eq!(is_accepted, event.is_some());
        event.is_some_and(|event| event == Event::CancelAsked { cause, grace_limit, force })
    };
    let short = Some(Duration::from_secs(1));
    assert!(is_counted(CancelCause::Cancel, None, false));
    assert!(!is_counted(CancelCause::Cancel, None, false));
    assert!(!is_counted(CancelCause::TimeLimit, None, false));
    assert!(is_counted(CancelCause::Shutdown, short, false));
    assert!(!is_counted(CancelCause::Shutdown, short, false));
    assert!(is_counted(CancelCause::Finish, None, false), "a Finish after a cancel ends the job at once");
    assert!(!is_counted(CancelCause::Cancel, None, true), "nothing ends it sooner");
}

#[test]
fn a_time_limit_shows_the_processes_before_it_stops_them_also_while_a_result_is_stored() {
    let mut driver = Driver::new(machine("[{name: a, timeout: 9s, script: x}]"), None);
    assert!(driver.begin(false));
    handle(&mut driver, Event::Admitted { at: 0 });
    let begun = actions(&mut driver);
    let limit = begun.iter().find_map(|action| match action {
        Action::Wake { timer, .. } => Some(*timer),
        _ => None,
    });
    driver.begin_await();
    handle(&mut driver, Event::Due { timer: limit.unwrap() });
    let passed = actions(&mut driver);
    assert!(matches!(passed[..], [Action::ShowProcesses { .. }, Action::Stop { .. }]), "{}", passed.len());
}

#[test]
fn a_finish_that_comes_first_leaves_the_grace() {
    let event = counted(running().cancel(ask(CancelCause::Finish), false));
    assert!(
        event == Some(Event::CancelAsked { cause: CancelCause::Finish, grace_limit: None, force: false })
    );
}

#[test]
fn a_cancel_after_the_end_is_decided_has_no_effect() {
    let mut driver = ending();
    assert!(!driver.cancel(ask(CancelCause::Finish), false).is_accepted);
    assert!(driver.closed(Closed::default()).is_some());
    assert!(!driver.cancel(ask(CancelCause::Finish), false).is_accepted);
}

#[test]
fn a_job_begins_once_and_not_after_a_cancel() {
    let mut driver = waiting();
    assert!(driver.begin(false));
    handle(&mut driver, Event::Admitted { at: 0 });
    assert!(!driver.begin(false));
    let mut driver = waiting();
    let CancelReaction { reaction, .. } = driver.cancel(ask(CancelCause::Cancel), false);
    take(&mut driver, reaction);
    assert!(!driver.begin(false));
}

#[test]
fn nothing_is_published_before_the_log_is_closed() {
    for mut driver in [waiting(), running(), ending()] {
        assert!(!driver.publish() && !driver.is_published());
    }
    let mut driver = ending();
    assert!(driver.closed(Closed::default()).is_some());
    assert!(driver.closed(Closed::default()).is_none(), "a second report has no effect");
    assert!(driver.publish() && driver.is_published());
    assert!(!driver.publish(), "an end is published once");
    let mut driver = running();
    assert!(matches!(driver.keeper_lost(), KeeperLoss::Interrupt));
    assert!(!driver.publish(), "results are left to collect");
    assert!(driver.collect_results(true, AT, 0).is_some());
    assert!(driver.publish());
}

#[test]
fn a_close_that_is_reported_early_waits_for_the_jobs_own_end() {
    let mut driver = running();
    assert!(driver.closed(Closed { log_len: 9, ..Closed::default() }).is_none());
    let reaction = driver.defect("a defect".into(), false);
    take(&mut driver, reaction);
    assert!(matches!(actions(&mut driver).pop(), Some(Action::Finish(_))));
    assert_eq!(driver.take_reported_close().unwrap().closed.log_len, 9);
}

#[test]
fn the_keepers_death_in_each_phase() {
    assert!(matches!(waiting().keeper_lost(), KeeperLoss::RegisterAgain(_)));
    let mut job = running();
    assert!(matches!(job.keeper_lost(), KeeperLoss::Interrupt));
    assert!(job.next_action().is_none(), "an interrupted job performs nothing");
    assert_eq!(job.collect_results(true, AT, 0).unwrap().outcome.class, EndClass::Interrupted);
    assert!(matches!(ending().keeper_lost(), KeeperLoss::Interrupt));
    let mut closed = ending();
    assert!(closed.closed(Closed::default()).is_some());
    assert!(matches!(closed.keeper_lost(), KeeperLoss::Nothing));
    assert!(closed.publish());
    assert!(matches!(closed.keeper_lost(), KeeperLoss::Nothing));
}

#[test]
fn the_keepers_death_during_an_await_counts_after_it() {
    let mut driver = running();
    driver.begin_await();
    driver.begin_await();
    assert!(driver.defer_keeper_loss());
    driver.end_await();
    assert!(!driver.take_deferred_loss());
    driver.end_await();
    assert!(driver.take_deferred_loss());
    assert!(!driver.take_deferred_loss() && !driver.defer_keeper_loss());
}

#[test]
fn a_waiting_job_keeps_requests_for_the_next_keeper() {
    let mut driver = waiting();
    assert!(!driver.begin(true), "its keeper is gone, though nobody has said so");
    assert!(driver.cancel(ask(CancelCause::Cancel), true).is_accepted);
    assert!(!driver.cancel(ask(CancelCause::Finish), true).is_accepted, "it is journalled once");
    let WaitingRequests { begin, cancel, defect } = driver.registered_again().unwrap();
    assert!(begin && defect.is_none());
    assert_eq!(cancel, Some(ask(CancelCause::Finish)));
}

#[test]
fn a_waiting_job_gives_up_after_too_many_keepers() {
    let mut driver = waiting();
    driver.keeper_lost();
    for _ in 1..MAX_DIED {
        assert!(driver.not_registered(NotRegistered::Died) == NextAttempt::Nothing);
    }
    assert!(driver.not_registered(NotRegistered::Died) == NextAttempt::Interrupt);
    let mut driver = waiting();
    driver.keeper_lost();
    let pauses: Vec<u64> = (1..MAX_REFUSED)
        .map(|_| match driver.not_registered(NotRegistered::NotNow) {
            NextAttempt::After(pause) => pause.as_secs(),
            NextAttempt::Nothing | NextAttempt::Interrupt => panic!("too early"),
        })
        .collect();
    assert_eq!(pauses[..7], [1, 2, 4, 8, 16, 30, 30]);
    assert!(driver.not_registered(NotRegistered::NotNow) == NextAttempt::Interrupt);
    let mut driver = waiting();
    driver.keeper_lost();
    assert!(driver.not_registered(NotRegistered::Impossible) == NextAttempt::Interrupt);
}

#[test]
fn a_waiting_job_that_is_to_end_needs_no_keeper() {
    let mut driver = waiting();
    driver.keeper_lost();
    assert_eq!(driver.not_registered(NotRegistered::NotNow), NextAttempt::After(Duration::from_secs(1)));
    let cancel = driver.cancel(ask(CancelCause::Cancel), true);
    assert!(cancel.is_accepted && matches!(cancel.reaction, Reaction::Interrupt));
    let job = driver.collect_results(false, AT, 0).unwrap();
    assert!(job.outcome == Outcome::stopped(CancelCause::Cancel));
}

#[test]
fn a_cancel_counts_while_a_job_without_keeper_ends() {
    let mut driver = waiting();
    driver.keeper_lost();
    assert!(driver.not_registered(NotRegistered::Impossible) == NextAttempt::Interrupt);
    assert!(driver.cancel(ask(CancelCause::Cancel), true).is_accepted);
    assert_eq!(driver.collect_results(false, AT, 0).unwrap().outcome.class, EndClass::Cancelled);
}

#[test]
fn storage_loss_in_each_phase() {
    let is_broken = |reaction: Reaction| matches!(reaction, Reaction::Handle(event) if matches!(*event, Event::Broken { .. }));
    let mut job = running();
    assert!(is_broken(job.storage_lost(storage_error(), false)));
    assert!(matches!(job.storage_lost(storage_error(), false), Reaction::Nothing), "it fails the job once");
    assert!(is_broken(waiting().storage_lost(storage_error(), false)));
    let mut lost = waiting();
    lost.keeper_lost();
    assert!(matches!(lost.storage_lost(storage_error(), true), Reaction::Nothing));
    assert!(lost.registered_again().unwrap().defect.is_some(), "it waits for the next keeper");
    let mut job = ending();
    assert!(matches!(job.storage_lost(storage_error(), false), Reaction::Nothing));
    assert!(job.closed(Closed::default()).is_some());
    assert!(job.take_storage_loss().is_some(), "the end becomes a failure");
    assert!(matches!(job.storage_lost(storage_error(), false), Reaction::Nothing));
    assert!(job.take_storage_loss().is_some());
}

#[test]
fn a_defect_after_the_last_step_has_closed_the_job_does_not_fail_it() {
    let mut driver = Driver::new(machine(STEPS[0]), None);
    assert!(driver.begin(false));
    handle(&mut driver, Event::Admitted { at: 0 });
    let Some(Action::Spawn { spawn, .. }) = actions(&mut driver).pop() else { panic!("its step starts") };
    let last = step_ended(spawn.process, 0, true);
    assert!(driver.launched(last.process).is_none());
    assert!(driver.step_ended(last.clone()).is_some());
    let reaction = driver.defect("a defect".into(), false);
    assert!(matches!(&reaction, Reaction::Handle(event)
        if **event == Event::returned_nothing(last.process, ExitStatus::Code(0), None, Some(last.ran))));
    take(&mut driver, reaction);
    let end = actions(&mut driver).pop();
    assert!(matches!(end, Some(Action::Finish(None))), "no request closes what is closed");
    assert!(driver.closed(Closed::default()).unwrap().outcome == Outcome::success());
}

#[test]
fn inputs_wait_in_order_while_the_machine_is_away() {
    let mut driver = running();
    let message = "x".repeat(8 << 20);
    let late = Event::Fetched { process: 99, result: Err(FetchFailure { class: Class::Fetch, message }) };
    let EventReaction::Elsewhere(mut machine, event) = driver.event(late, AT) else {
        panic!("a large event")
    };
    let CancelReaction { reaction: Reaction::Handle(cancel), .. } =
        driver.cancel(ask(CancelCause::Cancel), false)
    else {
        panic!("it counts")
    };
    assert!(matches!(driver.event(*cancel, AT), EventReaction::Deferred));
    assert!(driver.cannot_mask("a reason".into(), AT).is_none());
    assert!(driver.next_deferred().is_none(), "the machine is away");
    let handled = machine.handle(event, AT);
    driver.came_back(*machine, handled);
    assert!(driver.next_action().is_none(), "no process starts before the masking is decided");
    let deferred: Vec<_> = std::iter::from_fn(|| driver.next_deferred()).collect();
    let [DeferredInput::Event(cancel), DeferredInput::Unmasked { op, message }] = &deferred[..] else {
        panic!("another order")
    };
    assert!(matches!(cancel, Event::CancelAsked { .. }));
    assert!(driver.end_unmasked(*op, message.clone(), AT).is_ok());
    assert!(matches!(&actions(&mut driver)[..], [Action::Finish(Some(_))]));
    assert_eq!(driver.closed(Closed::default()).unwrap().outcome.message, "a reason");
}

#[test]
fn the_end_tells_of_processes_that_live_on_and_of_a_damaged_log() {
    let closed = Closed { unkilled: vec![1, 2], ..Closed::default() };
    let cancelled = Outcome { message: "cancelled".into(), ..Outcome::success() };
    assert_eq!(outcome_at_close(cancelled, &closed).message, "cancelled; 2 processes could not be killed");
    assert_eq!(outcome_at_close(Outcome::success(), &closed).message, "2 processes could not be killed");
    let damaged = Closed { log_damaged: true, ..Closed::default() };
    assert_eq!(outcome_at_close(Outcome::success(), &damaged).class, EndClass::Failure);
}

#[test]
fn an_end_that_is_not_on_the_disk_is_a_failure_from_what_was_shown() {
    let end = |lost_from| End { lost_from, ..End::new(Outcome::success(), 0, 90, 1) };
    for (lost_from, expected) in [(None, 40), (Some(20), 20), (Some(60), 40)] {
        let lost = end_at_loss(end(lost_from), &storage_error(), 40);
        assert_eq!((lost.lost_from, lost.outcome.class), (Some(expected), EndClass::Failure));
    }
}

/// Runs a job to its end. A daemon is killed after each of these numbers of sends and writes.
fn run(mut stage: Stage, deaths: &[u8]) -> (Story, Vec<String>) {
    for after in deaths {
        stage.play(Happening::DaemonDies(*after));
        while stage.is_doomed() && !stage.is_over() {
            stage.play(Happening::Begin);
            stage.play(Happening::Answer);
        }
    }
    stage.end();
    (stage.story, stage.wrongs)
}

fn happening() -> impl Strategy<Value = Happening> {
    let cause = prop_oneof![
        Just(CancelCause::Cancel),
        Just(CancelCause::Finish),
        Just(CancelCause::Shutdown),
        Just(CancelCause::TimeLimit)
    ];
    let refusal =
        prop_oneof![Just(NotRegistered::Died), Just(NotRegistered::NotNow), Just(NotRegistered::Impossible)];
    prop_oneof![
        3 => Just(Happening::Begin),
        2 => (cause, proptest::option::of(0_u64..9)).prop_map(|(cause, limit)| Happening::Cancel(cause, limit)),
        20 => Just(Happening::Answer),
        3 => Just(Happening::Exit),
        1 => Just(Happening::Defect),
        1 => Just(Happening::StorageLost),
        1 => Just(Happening::KeeperDies),
        3 => proptest::option::of(refusal).prop_map(Happening::Registered),
        3 => (0_u8..9).prop_map(Happening::DaemonDies),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    /// An effect that an earlier daemon performed is never performed again, and the numbers go on without a hole.
    #[test]
    fn many_daemons_do_what_one_does(
        steps in prop::sample::select(STEPS.to_vec()),
        codes in proptest::collection::vec(0_u8..2, 0..5),
        deaths in proptest::collection::vec(0_u8..12, 1..8),
    ) {
        let stage = || Stage::new(steps, false, &codes);
        let (alone, wrongs) = run(stage(), &[]);
        prop_assert!(wrongs.is_empty(), "{wrongs:#?}");
        let (story, wrongs) = run(stage(), &deaths);
        prop_assert!(wrongs.is_empty(), "{wrongs:#?}");
        prop_assert_eq!(&story.requests, &alone.requests);
        prop_assert!(story.stored == alone.stored, "other results");
        prop_assert!(story.ends == alone.ends, "another end");
    }

    #[test]
    fn every_job_has_one_end_whatever_happens(
        steps in prop::sample::select(STEPS.to_vec()),
        waits in any::<bool>(),
        codes in proptest::collection::vec(0_u8..2, 0..5),
        happenings in proptest::collection::vec(happening(), 1..60),
    ) {
        let mut stage = Stage::new(steps, waits, &codes);
        for happening in happenings {
            stage.play(happening);
            let cancels = stage.cancels();
            prop_assert!(cancels <= 4, "{cancels} requests to end are recorded");
        }
        stage.end();
        prop_assert!(stage.wrongs.is_empty(), "{:#?}", stage.wrongs);
    }
}

/// The last step has closed the job while the result of the one before it is stored.
#[test]
fn a_defect_during_an_await_tells_the_end_of_the_last_step_once() {
    use Happening::{Answer, Begin, Defect, Exit};
    let steps = "[{name: a, script: x}, {name: b, script: y}, {name: c, script: z}]";
    for answers in 0..8 {
        let mut stage = Stage::new(steps, false, &[]);
        stage.play(Begin);
        for happening in std::iter::repeat_n(Answer, answers).chain([Exit, Defect]) {
            stage.play(happening);
        }
        stage.end();
        assert!(stage.wrongs.is_empty(), "{answers}: {:#?}", stage.wrongs);
    }
}
