//! Properties of the core over random requests, exits and times, with a runtime that only keeps count.

mod stage;

use proptest::prelude::*;

use stage::{Happening, Stage};

fn happening() -> impl Strategy<Value = Happening> {
    let job = 0_u8..3;
    prop_oneof![
        3 => job.clone().prop_map(Happening::Register),
        8 => (job.clone(), any::<bool>(), any::<bool>())
            .prop_map(|(job, is_deaf, closes)| Happening::Spawn { job, is_deaf, closes }),
        8 => (job.clone(), 0_u8..4, any::<bool>())
            .prop_map(|(job, left, is_drained)| Happening::Exit { job, left, is_drained }),
        3 => (job.clone(), 0_u64..4_000).prop_map(|(job, grace)| Happening::Stop { job, grace }),
        1 => job.clone().prop_map(Happening::Show),
        2 => (job.clone(), 0_u64..2_000).prop_map(|(job, grace)| Happening::Clear { job, grace }),
        3 => (job.clone(), 0_u64..2_000).prop_map(|(job, grace)| Happening::Close { job, grace }),
        1 => job.clone().prop_map(Happening::Drop),
        2 => job.clone().prop_map(Happening::Resume),
        2 => job.clone().prop_map(Happening::Repeat),
        2 => (job.clone(), any::<bool>()).prop_map(|(job, later)| Happening::Phrases { job, later }),
        2 => job.clone().prop_map(Happening::Line),
        1 => job.clone().prop_map(Happening::Place),
        1 => job.clone().prop_map(Happening::Stick),
        1 => job.clone().prop_map(Happening::Disk),
        1 => job.prop_map(Happening::Busy),
        6 => (0_u64..3_000).prop_map(Happening::Pass),
        1 => Just(Happening::Prepared),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_step_and_every_job_has_one_end_and_nothing_is_left(
        leftover_keep in any::<bool>(),
        happenings in proptest::collection::vec(happening(), 1..60),
    ) {
        let mut stage = Stage::new(leftover_keep);
        for happening in happenings {
            stage.play(&happening);
        }
        stage.end();
        prop_assert!(stage.wrongs.is_empty(), "{:#?}", stage.wrongs);
    }
}

/// A process that nothing ends is given up once, not first as that of its step and then as what the step left.
#[test]
fn a_step_whose_process_cannot_be_killed_is_over_before_its_job_if_leftovers_are_killed() {
    let mut stage = Stage::new(false);
    for happening in [
        Happening::Register(0),
        Happening::Stick(0),
        Happening::Spawn { job: 0, is_deaf: false, closes: false },
        Happening::Close { job: 0, grace: 1_000 },
        Happening::Pass(5_000),
    ] {
        stage.play(&happening);
    }
    stage.end();
    assert!(stage.wrongs.is_empty(), "{:#?}", stage.wrongs);
}

/// A daemon that replays the job asks again (see [`crate::protocol`]).
#[test]
fn the_processes_of_an_attempt_are_shown_once() {
    let mut stage = Stage::new(true);
    stage.play(&Happening::Register(0));
    let spawn = Happening::Spawn { job: 0, is_deaf: false, closes: false };
    for (happening, len) in [
        (spawn.clone(), 0),
        (Happening::Show(0), 10),
        (Happening::Show(0), 10),
        (spawn, 10),
        (Happening::Show(0), 20),
    ] {
        stage.play(&happening);
        assert_eq!(stage.log_len(0), len);
    }
    stage.end();
    assert!(stage.wrongs.is_empty(), "{:#?}", stage.wrongs);
}

/// The job goes on meanwhile, and nothing of it is killed within the grace (flow.md §3.1).
#[test]
fn what_a_stopped_step_has_left_is_killed_after_its_grace() {
    let mut stage = Stage::new(true);
    for happening in [
        Happening::Register(0),
        Happening::Spawn { job: 0, is_deaf: true, closes: false },
        Happening::Stop { job: 0, grace: 1_000 },
        Happening::Exit { job: 0, left: 2, is_drained: true },
        Happening::Spawn { job: 0, is_deaf: false, closes: false },
        Happening::Pass(990),
    ] {
        stage.play(&happening);
    }
    assert_eq!((stage.ended(0), stage.left(0)), (1, 2), "the step is over, its grace is not");
    stage.play(&Happening::Pass(10));
    assert_eq!((stage.ended(0), stage.left(0)), (1, 0), "the next step runs on");
    stage.end();
    assert!(stage.wrongs.is_empty(), "{:#?}", stage.wrongs);
}

/// It is over by itself, so what it has left lives to the end of the job (service.md §6.1).
#[test]
fn a_stop_behind_the_end_of_its_process_does_not_end_what_the_step_has_left() {
    let mut stage = Stage::new(true);
    for happening in [
        Happening::Register(0),
        Happening::Spawn { job: 0, is_deaf: false, closes: false },
        Happening::Exit { job: 0, left: 2, is_drained: false },
        Happening::Stop { job: 0, grace: 1_000 },
        Happening::Pass(3_000),
    ] {
        stage.play(&happening);
    }
    assert_eq!((stage.ended(0), stage.left(0)), (1, 2));
    stage.end();
    assert!(stage.wrongs.is_empty(), "{:#?}", stage.wrongs);
}

/// A job whose last step has succeeded is closed without a question: both ends are told together.
#[test]
fn the_success_of_its_last_step_closes_a_job_unless_an_end_was_asked_for() {
    let last = Happening::Spawn { job: 0, is_deaf: false, closes: true };
    let exit = |left| Happening::Exit { job: 0, left, is_drained: true };
    let stop = Happening::Stop { job: 0, grace: 1_000 };
    for (happenings, closes) in [
        (vec![last.clone(), exit(0)], true),
        (vec![last.clone(), exit(1)], false),
        (vec![last.clone(), stop, exit(0)], false),
    ] {
        let mut stage = Stage::new(true);
        stage.play(&Happening::Register(0));
        for happening in happenings {
            stage.play(&happening);
        }
        assert_eq!(stage.is_closed(0), closes);
        stage.end();
        assert!(stage.wrongs.is_empty(), "{:#?}", stage.wrongs);
    }
}

/// A frame behind the end of a job could reach a new job with its key.
#[test]
fn no_length_is_told_of_a_job_behind_its_end() {
    let mut stage = Stage::new(true);
    for happening in [
        Happening::Register(0),
        Happening::Line(0),
        Happening::Close { job: 0, grace: 0 },
        Happening::Pass(1_000),
    ] {
        stage.play(&happening);
    }
    assert!(stage.is_closed(0));
    stage.end();
    assert!(stage.wrongs.is_empty(), "{:#?}", stage.wrongs);
}

/// The processes of the dropped job live on, so it is closed only when they are given up.
#[test]
fn lengths_of_a_new_job_are_told_while_a_dropped_one_with_its_key_is_closed() {
    let mut stage = Stage::new(false);
    for happening in [
        Happening::Register(0),
        Happening::Spawn { job: 0, is_deaf: false, closes: false },
        Happening::Stick(0),
        Happening::Close { job: 0, grace: 0 },
        Happening::Drop(0),
        Happening::Register(0),
        Happening::Line(0),
        Happening::Pass(2_010),
    ] {
        stage.play(&happening);
    }
    stage.end();
    assert!(stage.wrongs.is_empty(), "{:#?}", stage.wrongs);
}

/// A keeper that has forgotten a job owes nobody an answer.
#[test]
fn requests_that_wait_for_phrases_are_answered_when_their_job_is_dropped() {
    let mut stage = Stage::new(true);
    for happening in [
        Happening::Register(0),
        Happening::Phrases { job: 0, later: true },
        Happening::Line(0),
        Happening::Drop(0),
    ] {
        stage.play(&happening);
    }
    stage.end();
    assert!(stage.wrongs.is_empty(), "{:#?}", stage.wrongs);
}

/// Each daemon that replays the job places its events alike.
#[test]
fn the_length_of_the_log_is_kept_for_a_daemon_that_asks_again() {
    let mut stage = Stage::new(true);
    stage.play(&Happening::Register(0));
    stage.play(&Happening::Line(0));
    stage.play(&Happening::Place(0));
    assert_eq!(stage.lengths, [10]);
    stage.play(&Happening::Repeat(0));
    stage.play(&Happening::Line(0));
    stage.play(&Happening::Place(0));
    assert_eq!(stage.lengths, [10, 10, 20]);
    stage.end();
    assert!(stage.wrongs.is_empty(), "{:#?}", stage.wrongs);
}
