//! Each row of the table of answers.
#![expect(clippy::unnecessary_wraps, reason = "an answer is a reply, and so is none")]

use proptest::prelude::*;

use super::*;
use crate::answer::{JobStatus, Unreachable};

fn at(seconds: u64) -> Moment {
    Moment::after_start(Duration::from_secs(seconds))
}

fn update() -> FinalUpdate {
    FinalUpdate::new(at(0), Duration::ZERO, false)
}

fn with_interval(status: u16, interval: &str) -> Reply {
    Ok(Answer { interval: Some(interval.to_owned()), ..Answer::status(status) })
}

fn with_status(status: u16, job: JobStatus) -> Reply {
    Ok(Answer { job_status: Some(job), ..Answer::status(status) })
}

#[test]
fn a10_each_answer_ends_or_repeats_the_update() {
    let taken = Next::Done(How::Taken);
    let unwanted = Next::Done(How::NotWanted);
    for (reply, next) in [
        (Ok(Answer::status(200)), taken),
        (with_status(200, JobStatus::Over), taken),
        (Ok(Answer::status(404)), unwanted),
        (with_status(403, JobStatus::Over), unwanted),
        (with_status(403, JobStatus::Other), unwanted),
        (with_status(500, JobStatus::Over), unwanted),
        (Ok(Answer::status(202)), Next::Again(at(3))),
        (with_interval(202, "2"), Next::Again(at(2))),
        (with_interval(202, "64"), Next::Again(at(64))),
        (with_interval(202, "65"), Next::Again(at(3))),
        (with_interval(202, "0"), Next::Again(at(3))),
        (with_interval(412, "1"), Next::TraceAgain(at(1))),
        (Ok(Answer::status(412)), Next::TraceAgain(at(3))),
        (Ok(Answer::status(403)), Next::Again(at(3))),
        (Ok(Answer::status(500)), Next::Again(at(1))),
        (Ok(Answer::status(429)), Next::Again(at(1))),
        (Ok(Answer::status(400)), Next::Again(at(1))),
        (Ok(Answer::status(401)), Next::Again(at(1))),
        (Err(Unreachable), Next::Again(at(1))),
    ] {
        assert_eq!(update().answered(&reply, at(0), Jitter(0)), next, "{reply:?}");
    }
}

#[test]
fn a25_failures_are_repeated_at_growing_intervals_until_the_server_is_back() {
    let mut update = update();
    let mut waits = Vec::new();
    for _ in 0..11 {
        let Next::Again(next) = update.answered(&Err(Unreachable), at(0), Jitter(0)) else { panic!("ended") };
        waits.push(next.since(at(0)).as_secs());
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
    assert_eq!(update.answered(&Ok(Answer::status(202)), at(0), Jitter(0)), Next::Again(at(3)));
    assert_eq!(update.answered(&Ok(Answer::status(503)), at(0), Jitter(0)), Next::Again(at(1)));
}

#[test]
fn a26_the_third_403_without_a_status_ends_the_update() {
    let mut update = update();
    let forbidden = Ok(Answer::status(403));
    assert_eq!(update.answered(&forbidden, at(0), Jitter(0)), Next::Again(at(3)));
    assert_eq!(update.answered(&forbidden, at(3), Jitter(0)), Next::Again(at(13)));
    assert_eq!(update.answered(&forbidden, at(13), Jitter(0)), Next::Done(How::NotWanted));
}

#[test]
fn a26_after_an_abort_any_answer_ends_the_update_but_none_does_not() {
    for status in [200, 202, 403, 412, 500] {
        let mut update = FinalUpdate::new(at(0), Duration::ZERO, true);
        assert!(matches!(update.answered(&Err(Unreachable), at(0), Jitter(0)), Next::Again(_)));
        let next = update.answered(&Ok(Answer::status(status)), at(1), Jitter(0));
        assert!(matches!(next, Next::Done(_)), "{status}");
    }
}

#[test]
fn a10_after_a_day_the_update_is_given_up() {
    let hours = |hours: u64| hours * 3_600;
    let mut update = FinalUpdate::new(at(0), Duration::from_hours(23), false);
    assert!(matches!(update.answered(&Err(Unreachable), at(0), Jitter(0)), Next::Again(_)));
    assert!(!update.is_too_late(at(hours(1) - 1)) && update.is_too_late(at(hours(1))));
    assert_eq!(update.answered(&Err(Unreachable), at(hours(1) - 1), Jitter(0)), Next::Done(How::GivenUp));
    let mut late = FinalUpdate::new(at(0), Duration::from_hours(30), false);
    assert_eq!(late.answered(&Err(Unreachable), at(0), Jitter(0)), Next::Done(How::GivenUp));
    assert_eq!(late.answered(&Ok(Answer::status(200)), at(0), Jitter(0)), Next::Done(How::Taken));
}

#[test]
fn a10_the_body_has_state_reason_code_and_checksum() {
    let token = Token::new("glcbt-x").unwrap();
    let info = json!({"name": "step-runner"});
    let failed =
        Outcome { state: State::Failed, reason: Some("script_failure".to_owned()), exit_code: Some(7) };
    let sum = TraceSum { len: 12, crc: 0xaf08_3b2d };
    assert_eq!(
        body(&token, &info, Some(&failed), Some(sum)),
        json!({
            "token": "glcbt-x", "info": {"name": "step-runner"}, "state": "failed",
            "failure_reason": "script_failure", "exit_code": 7, "checksum": "crc32:af083b2d",
            "output": {"checksum": "crc32:af083b2d", "bytesize": 12},
        })
    );
    let running = body(&token, &info, None, None);
    assert_eq!(running, json!({"token": "glcbt-x", "info": {"name": "step-runner"}, "state": "running"}));
}

proptest! {
    #[test]
    fn a10_no_answers_make_an_update_come_at_once_again(statuses in prop::collection::vec(100..600_u16, 1..60), jitter: u8) {
        let (mut update, mut now) = (update(), at(0));
        for status in statuses {
            match update.answered(&Ok(Answer::status(status)), now, Jitter(jitter)) {
                Next::Done(_) => break,
                Next::Again(next) | Next::TraceAgain(next) => {
                    prop_assert!(next.since(now) >= Duration::from_millis(500), "{status}");
                    now = next;
                }
            }
        }
    }
}
