//! Each row of the tables of claims, cancels and restarts.
#![expect(clippy::unnecessary_wraps, reason = "an answer is a reply, and so is none")]

use std::time::Duration;

use super::*;
use crate::answer::{Answer, JobStatus, Unreachable};
use crate::outcome::State;
use crate::record::tests::record;
use crate::sealed::Unusable;
use crate::time::{Jitter, WallTime};

fn now(seconds: u64) -> Now {
    let steady = Moment::after_start(Duration::from_secs(seconds));
    Now { steady, wall: WallTime(1_000_000 + seconds * 1_000), jitter: Jitter(0) }
}

fn status(status: u16) -> Reply {
    Ok(Answer::status(status))
}

fn with(status: u16, job: JobStatus) -> Reply {
    Ok(Answer { job_status: Some(job), ..Answer::status(status) })
}

/// Returns short names of actions.
fn names(actions: &[Action]) -> Vec<String> {
    let name = |action: &Action| match action {
        Action::Store(record) => format!("store {:?}", record.phase).to_lowercase(),
        Action::Append { from, to } => format!("append {from}-{to}"),
        Action::Report(outcome, _) => format!("report {:?}", outcome.state).to_lowercase(),
        Action::Follow(offset) => format!("follow {offset}"),
        Action::Cancel(how) => format!("cancel {how:?}").to_lowercase(),
        other => {
            let shown = format!("{other:?}");
            shown.split(['(', ' ']).next().unwrap_or_default().to_lowercase()
        }
    };
    actions.iter().map(name).collect()
}

/// A job in a phase, at second 10.
fn job_in(phase: Phase) -> Job {
    let (mut job, _) = Job::take(record(1001), now(0));
    if phase == Phase::Taken {
        return job;
    }
    job.handle(Event::Claimed(status(200)), now(1));
    job.handle(Event::Line("Preparing".to_owned()), now(1));
    if phase == Phase::Preparing {
        return job;
    }
    job.handle(Event::Removed(true), now(2));
    job.handle(Event::Prepared(Ok(())), now(3));
    if phase == Phase::Submitted {
        return job;
    }
    job.handle(Event::RunAnswered(RunAnswer::Accepted(Vec::new())), now(4));
    job.handle(Event::Log(log()), now(5));
    if phase == Phase::Running {
        return job;
    }
    job.handle(Event::LogEnded, now(9));
    job.handle(Event::Ended(end(0)), now(10));
    if phase == Phase::Reported {
        job.handle(Event::Removed(false), now(10));
        job.handle(Event::FinishAnswered(false), now(10));
        job.handle(Event::Removed(false), now(10));
        job.handle(Event::Traced(status(202)), now(10));
        job.handle(Event::Traced(status(202)), now(10));
        job.handle(Event::Reported(status(200)), now(10));
    }
    job
}

fn log() -> Vec<u8> {
    b"2026-11-28T01:02:03.000004Z 01O hello\n".to_vec()
}

fn end(code: i32) -> DaemonEnd {
    DaemonEnd { code, failed: None, is_stop: false, message: "the words of the daemon".to_owned() }
}

/// What is on disk for a job in this phase, without a trace.
fn disk() -> Disk {
    Disk {
        head: Vec::new(),
        trace: Vec::new(),
        checkpoint: Err(Unusable::Torn),
        tail: b"tail\n".to_vec(),
        sent: 0,
    }
}

#[test]
fn a06_nothing_starts_before_the_server_has_acknowledged_the_job() {
    let (_, actions) = Job::take(record(1001), now(0));
    assert_eq!(names(&actions), ["store taken", "claim"]);
    for reply in [status(400), status(403), status(404), status(409), status(401), status(422)] {
        let mut job = job_in(Phase::Taken);
        assert_eq!(names(&job.handle(Event::Claimed(reply), now(1))), ["freeslot", "deleterecord"]);
        assert!(job.is_over() && job.wake().is_none());
    }
    for code in [200, 403, 500] {
        let actions = job_in(Phase::Taken).handle(Event::Claimed(with(code, JobStatus::Over)), now(1));
        assert_eq!(names(&actions), ["freeslot", "deleterecord"], "no further call");
    }
}

#[test]
fn a06_without_an_answer_the_claim_is_repeated_until_the_time_limit_is_over() {
    let mut job = job_in(Phase::Taken);
    let (mut waits, mut at) = (Vec::new(), 0);
    for reply in
        [status(429), status(500), status(503), Err(Unreachable), status(502), status(302), status(408)]
    {
        assert!(job.handle(Event::Claimed(reply), now(at)).is_empty());
        let wake = job.wake().unwrap().since(Moment::START).as_secs();
        waits.push(wake - at);
        at = wake;
        assert_eq!(names(&job.handle(Event::Tick, now(at))), ["claim"]);
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 30, 30]);
    assert_eq!(names(&job.handle(Event::Tick, now(3_600))), ["tell", "freeslot", "deleterecord"]);
}

#[test]
fn a06_a_job_that_is_being_cancelled_ends_without_a_start() {
    let mut job = job_in(Phase::Taken);
    let actions = job.handle(Event::Claimed(with(200, JobStatus::Canceling)), now(1));
    let names = names(&actions);
    assert_eq!(names[..2], ["store preparing", "storetail"]);
    assert!(!names.contains(&"prepare".to_owned()), "{names:?}");
    assert_eq!(job.record().phase, Phase::Ended);
}

#[test]
fn a05_a_refused_payload_is_acknowledged_and_then_failed_with_its_reason() {
    let mut refused = record(1001);
    refused.refused = Some("the job has \"secrets\"".to_owned());
    let (mut job, actions) = Job::take(refused, now(0));
    assert_eq!(names(&actions), ["store taken", "claim"]);
    let actions = job.handle(Event::Claimed(status(200)), now(1));
    let tail = actions
        .iter()
        .find_map(|action| if let Action::StoreTail(tail) = action { Some(tail) } else { None });
    let tail = String::from_utf8(tail.unwrap().clone()).unwrap();
    assert!(tail.ends_with("ERROR: Job failed: the job has \"secrets\"\n"), "{tail}");
    assert!(names(&actions).contains(&format!("append 0-{}", tail.len())));
    job.handle(Event::Removed(true), now(1));
    let actions = job.handle(Event::Traced(status(202)), now(1));
    let Some(Action::Report(outcome, _)) = actions.last() else { panic!("{actions:?}") };
    assert_eq!((outcome.state, outcome.exit_code), (State::Failed, Some(3)));
    assert_eq!(names(&job.handle(Event::Reported(status(200)), now(1))), ["store reported", "deleterecord"]);
}

#[test]
fn a05_a_refused_payload_is_not_prepared_after_a_restart() {
    let mut refused = record(1001);
    (refused.phase, refused.refused) = (Phase::Preparing, Some("no".to_owned()));
    let (job, actions) = Job::resume(refused, &disk(), now(0));
    assert_eq!(job.record().phase, Phase::Ended);
    assert!(!names(&actions).contains(&"prepare".to_owned()));
}

#[test]
fn a_job_goes_its_way_and_each_record_comes_before_what_it_allows() {
    let mut job = job_in(Phase::Taken);
    let mut all = Vec::new();
    for (event, second) in [
        (Event::Claimed(status(200)), 1),
        (Event::Removed(true), 2),
        (Event::Line("Pulling".to_owned()), 2),
        (Event::Prepared(Ok(())), 3),
        (Event::RunAnswered(RunAnswer::None), 4),
        (Event::Tick, 5),
        (Event::RunAnswered(RunAnswer::Accepted(Vec::new())), 6),
        (Event::Log(log()), 7),
        (Event::Traced(status(202)), 8),
        (Event::LogEnded, 9),
        (Event::Ended(end(0)), 10),
        (Event::FinishAnswered(true), 10),
        (Event::Removed(true), 10),
        (Event::Traced(status(202)), 10),
        (Event::Reported(status(200)), 10),
    ] {
        all.extend(names(&job.handle(event, now(second))));
    }
    assert_eq!(
        all,
        [
            "store preparing",
            "remove",
            "prepare",
            "storehead",
            "extend",
            "storecheckpoint",
            "append 0-40",
            "store submitted",
            "run",
            "run",
            "store running",
            "follow 0",
            "extend",
            "storecheckpoint",
            "storesent",
            "preparationover",
            "storetail",
            "store ended",
            "freeslot",
            "append 40-124",
            "finish",
            "remove",
            "storesent",
            "report success",
            "store reported",
            "deleterecord",
        ]
    );
    assert!(job.is_over());
}

#[test]
fn a11_a_cancel_in_each_phase() {
    let cancel = || Event::Traced(with(202, JobStatus::Canceling));
    for (phase, names_of_first, ended) in [
        (Phase::Preparing, "store preparing", true),
        (Phase::Submitted, "store submitted", false),
        (Phase::Running, "store running", false),
    ] {
        let mut job = job_in(phase);
        job.handle(Event::Tick, now(40));
        let actions = job.handle(cancel(), now(40));
        assert!(names(&actions).contains(&names_of_first.to_owned()), "{phase:?} {:?}", names(&actions));
        assert_eq!(names(&actions).contains(&"cancel withcleanup".to_owned()), phase == Phase::Running);
        assert_eq!(job.record().phase == Phase::Ended, ended, "{phase:?}");
        assert!(job.record().wanted.cancel);
    }
    let mut job = job_in(Phase::Submitted);
    job.handle(Event::Tick, now(40));
    job.handle(cancel(), now(40));
    let actions = job.handle(Event::RunAnswered(RunAnswer::Accepted(Vec::new())), now(41));
    assert_eq!(names(&actions)[..3], ["store running", "follow 0", "cancel withcleanup"]);
    let mut job = job_in(Phase::Ended);
    assert!(!names(&job.handle(cancel(), now(11))).contains(&"cancel withcleanup".to_owned()), "nothing");
}

#[test]
fn a11_an_abort_kills_and_is_reported_once_as_failed() {
    let mut job = job_in(Phase::Running);
    job.handle(Event::Tick, now(6));
    let actions = job.handle(Event::Traced(with(403, JobStatus::Over)), now(6));
    assert_eq!(names(&actions), ["store running", "cancel forced"]);
    job.handle(Event::CancelAnswered(true), now(7));
    job.handle(Event::LogEnded, now(8));
    let actions = job.handle(Event::Ended(end(0)), now(8));
    assert!(names(&actions).contains(&"storetail".to_owned()));
    job.handle(Event::Traced(with(403, JobStatus::Over)), now(8));
    job.handle(Event::FinishAnswered(true), now(8));
    let actions = job.handle(Event::Removed(true), now(8));
    assert_eq!(names(&actions), ["report failed"]);
    let actions = job.handle(Event::Reported(with(403, JobStatus::Over)), now(8));
    assert_eq!(names(&actions), ["store reported", "deleterecord"]);
}

#[test]
fn a11_a_cancel_is_repeated_until_it_is_taken_and_a_harder_one_follows() {
    let mut job = job_in(Phase::Running);
    job.handle(Event::Tick, now(6));
    job.handle(Event::Traced(with(202, JobStatus::Canceling)), now(6));
    assert!(job.handle(Event::CancelAnswered(false), now(7)).is_empty());
    assert_eq!(names(&job.handle(Event::Tick, now(8))), ["cancel withcleanup"]);
    job.handle(Event::CancelAnswered(true), now(8));
    assert!(names(&job.handle(Event::Stop(Stop::Gently), now(9))).contains(&"cancel gently".to_owned()));
    assert!(names(&job.handle(Event::Stop(Stop::Forced), now(9))).contains(&"cancel forced".to_owned()));
    assert!(!names(&job.handle(Event::Stop(Stop::Gently), now(9))).contains(&"cancel gently".to_owned()));
}

#[test]
fn a14_a_stop_that_fails_jobs_in_each_phase() {
    for phase in [Phase::Preparing, Phase::Running] {
        let mut job = job_in(phase);
        job.handle(Event::Stop(Stop::Gently), now(11));
        if phase == Phase::Running {
            job.handle(Event::LogEnded, now(12));
            job.handle(Event::Ended(end(-2)), now(12));
        }
        let outcome = job.record().outcome().unwrap();
        assert_eq!(outcome.reason.as_deref(), Some("unknown_failure"), "{phase:?}: a server without a list");
        assert!(matches!(
            job.record().end,
            Some(crate::outcome::JobEnd::Cancelled(crate::outcome::CancelledBy::Stop))
        ));
    }
    let mut job = job_in(Phase::Taken);
    assert!(job.handle(Event::Stop(Stop::Gently), now(1)).is_empty());
    job.handle(Event::Claimed(status(200)), now(2));
    assert_eq!(job.record().phase, Phase::Ended, "a job that was just taken ends once it is acknowledged");
}

#[test]
fn a23_a33_a_restart_goes_on_in_each_phase() {
    for (phase, wanted) in [
        (Phase::Taken, &["claim"][..]),
        (Phase::Preparing, &["store preparing", "remove"]),
        (Phase::Submitted, &["look"]),
        (Phase::Running, &["follow 0"]),
        (Phase::Ended, &["finish"]),
        (Phase::Reported, &["finish"]),
    ] {
        let stored = job_in(phase).record().clone();
        assert_eq!(stored.phase, phase);
        let (_, actions) = Job::resume(stored, &disk(), now(0));
        let calls: Vec<String> = names(&actions)
            .into_iter()
            .filter(|name| !["cuttrace", "tell"].contains(&name.as_str()) && !name.starts_with("append"))
            .collect();
        assert_eq!(calls, wanted, "{phase:?}");
    }
}

#[test]
fn a33_a_submitted_job_runs_again_only_if_its_environment_is_the_same() {
    let stored = job_in(Phase::Submitted).record().clone();
    let (mut job, _) = Job::resume(stored.clone(), &disk(), now(0));
    assert_eq!(names(&job.handle(Event::Looked(true), now(1))), ["run"]);
    assert_eq!(job.record().time_limit, stored.time_limit, "a repeated request is the same");
    let (mut job, _) = Job::resume(stored, &disk(), now(0));
    job.handle(Event::Looked(false), now(1));
    assert!(matches!(job.record().end, Some(crate::outcome::JobEnd::Lost)));
}

#[test]
fn a27_an_environment_that_dies_before_run_is_prepared_three_times_in_all() {
    let mut job = job_in(Phase::Preparing);
    for _ in 0..2 {
        let actions = job.handle(Event::Lost("was killed".to_owned()), now(2));
        assert_eq!(names(&actions)[..2], ["store preparing", "remove"]);
    }
    job.handle(Event::Lost("was killed".to_owned()), now(2));
    assert_eq!(job.record().preparations, 3);
    assert_eq!(job.record().phase, Phase::Ended);
    let mut job = job_in(Phase::Running);
    job.handle(Event::Lost("was killed".to_owned()), now(11));
    assert!(matches!(job.record().end, Some(crate::outcome::JobEnd::Lost)), "later a script may have run");
}

#[test]
fn a12_a_preparation_and_a_request_without_answer_end_in_time() {
    for (phase, reason) in [(Phase::Preparing, "Environment(System)"), (Phase::Submitted, "RunUnanswered")] {
        let mut job = job_in(phase);
        job.handle(Event::Tick, now(599));
        assert_eq!(job.record().phase, phase);
        job.handle(Event::Tick, now(700));
        assert_eq!(format!("{:?}", job.record().end.as_ref().unwrap()), reason);
    }
}

#[test]
fn a12_a_time_limit_that_is_over_before_the_start_is_a_timeout() {
    let mut short = record(1001);
    short.timeout = Duration::from_mins(1);
    let (mut job, _) = Job::take(short, now(0));
    job.handle(Event::Claimed(status(200)), now(1));
    job.handle(Event::Removed(true), now(1));
    job.handle(Event::Prepared(Ok(())), now(61));
    assert_eq!(job.record().outcome().unwrap().reason.as_deref(), Some("job_execution_timeout"));
}

#[test]
fn a25_the_result_waits_for_the_server_and_not_for_the_engine() {
    let mut job = job_in(Phase::Ended);
    job.handle(Event::FinishAnswered(false), now(10));
    job.handle(Event::Removed(false), now(10));
    job.handle(Event::Traced(status(202)), now(10));
    let actions = job.handle(Event::Traced(status(202)), now(10));
    assert!(names(&actions).contains(&"report success".to_owned()), "one try of a removal is enough");
    job.handle(Event::Reported(Err(Unreachable)), now(10));
    assert!(names(&job.handle(Event::Tick, now(12))).contains(&"report success".to_owned()));
    job.handle(Event::Reported(status(200)), now(12));
    assert!(!job.is_over(), "the environment is still to be removed");
    job.handle(Event::FinishAnswered(true), now(12));
    assert_eq!(names(&job.handle(Event::Removed(true), now(13))), ["deleterecord"]);
}

#[test]
fn a25_after_a_day_the_result_is_given_up() {
    let mut job = job_in(Phase::Ended);
    let actions = job.handle(Event::Tick, now(24 * 3_600 + 10));
    assert!(
        names(&actions).contains(&"tell".to_owned())
            && names(&actions).contains(&"store reported".to_owned())
    );
}
