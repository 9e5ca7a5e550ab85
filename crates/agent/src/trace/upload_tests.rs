//! Each row of the table of answers, and an upload to a server that loses, repeats and refuses.
#![expect(clippy::unnecessary_wraps, reason = "an answer is a reply, and so is none")]

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::answer::{Answer, JobStatus, Reply, Unreachable};
use crate::time::Moment;

fn at(seconds: u64) -> Moment {
    Moment::after_start(Duration::from_secs(seconds))
}

/// An upload with 100 bytes, the first request of which is out.
fn started() -> Upload {
    let mut upload = Upload::new(0, at(0));
    upload.grown(100);
    assert_eq!(upload.wake(), Some(at(0)), "the first piece does not wait");
    assert_eq!(upload.request(at(3)), Some(Request::Append { from: 0, to: 100 }));
    assert_eq!(upload.request(at(9)), None, "one request at a time");
    upload
}

fn status(status: u16) -> Reply {
    Ok(Answer::status(status))
}

fn with(status: u16, job: JobStatus) -> Reply {
    Ok(Answer { job_status: Some(job), ..Answer::status(status) })
}

#[test]
fn a09_a_202_counts_as_sent_whatever_its_range_says() {
    let mut upload = started();
    let answer = Answer { range: Some(7), interval: Some("1".to_owned()), ..Answer::status(202) };
    assert_eq!(upload.answered(&Ok(answer), at(3)), Heard { sent: Some(100), notice: None });
    upload.grown(150);
    assert_eq!(upload.wake(), Some(at(4)), "the server's interval counts");
    assert_eq!(upload.request(at(4)), Some(Request::Append { from: 100, to: 150 }));
}

#[test]
fn a09_a_416_goes_on_where_the_server_is() {
    for (range, from) in [(Some(40), 40), (None, 0)] {
        let mut upload = started();
        let heard = upload.answered(&Ok(Answer { range, ..Answer::status(416) }), at(3));
        assert_eq!(heard.sent, (from > 0).then_some(from));
        assert_eq!(upload.wake(), Some(at(6)));
        assert_eq!(upload.request(at(6)), Some(Request::Append { from, to: 100 }));
    }
}

#[test]
fn a09_a_416_beyond_our_end_waits_until_the_trace_is_longer() {
    let mut upload = started();
    upload.answered(&Ok(Answer { range: Some(500), ..Answer::status(416) }), at(3));
    upload.grown(500);
    assert_eq!(upload.request(at(20)), None);
    upload.grown(501);
    assert_eq!(upload.request(at(20)), Some(Request::Append { from: 500, to: 501 }));

    let mut upload = started();
    upload.answered(&Ok(Answer { range: Some(500), ..Answer::status(416) }), at(3));
    upload.complete(120, at(4));
    assert!(upload.is_done(), "the final update is made all the same");
}

#[test]
fn a26_one_403_without_a_status_is_asked_again_and_the_third_aborts() {
    let mut upload = started();
    assert_eq!(upload.answered(&status(403), at(3)), Heard::default());
    assert_eq!(upload.wake(), Some(at(6)));
    assert!(upload.request(at(6)).is_some());
    assert_eq!(upload.answered(&status(202), at(6)).sent, Some(100), "one is nothing");

    let mut upload = started();
    assert_eq!(upload.answered(&status(403), at(3)).notice, None);
    assert!(upload.request(at(6)).is_some());
    assert_eq!(upload.answered(&status(403), at(6)).notice, None);
    assert_eq!(upload.wake(), Some(at(16)));
    assert!(upload.request(at(16)).is_some());
    assert_eq!(upload.answered(&status(403), at(16)).notice, Some(Notice::Abort));
    assert_eq!(upload.wake(), None, "nothing more until the end");
}

#[test]
fn a11_the_status_of_any_answer_counts() {
    for (reply, notice, sent) in [
        (with(202, JobStatus::Canceling), Some(Notice::Cancel), Some(100)),
        (with(202, JobStatus::Over), Some(Notice::Abort), None),
        (with(403, JobStatus::Other), Some(Notice::Abort), None),
        (with(403, JobStatus::Over), Some(Notice::Abort), None),
        (with(500, JobStatus::Canceling), Some(Notice::Cancel), None),
        (with(202, JobStatus::Other), None, Some(100)),
    ] {
        let heard = started().answered(&reply, at(3));
        assert_eq!(heard, Heard { sent, notice }, "{reply:?}");
    }
}

#[test]
fn a11_a_cancel_is_told_once() {
    let mut upload = started();
    upload.answered(&with(202, JobStatus::Canceling), at(3));
    upload.grown(110);
    assert!(upload.request(at(6)).is_some());
    assert_eq!(upload.answered(&with(202, JobStatus::Canceling), at(6)).notice, None);
}

#[test]
fn a11_after_an_abort_the_rest_is_sent_once_at_the_end() {
    let mut upload = started();
    upload.answered(&with(403, JobStatus::Over), at(3));
    assert_eq!(upload.request(at(60)), None);
    upload.complete(130, at(61));
    assert_eq!(upload.request(at(61)), Some(Request::Append { from: 0, to: 130 }));
    upload.answered(&with(403, JobStatus::Over), at(61));
    assert!(upload.is_done());
}

#[test]
fn a09_a_404_is_waited_out_while_the_job_runs_and_ends_the_trace_afterwards() {
    let mut upload = started();
    assert_eq!(upload.answered(&status(404), at(3)), Heard::default());
    assert_eq!(upload.request(at(6)), Some(Request::Append { from: 0, to: 100 }));
    upload.complete(100, at(7));
    upload.answered(&status(404), at(7));
    assert!(upload.is_done());
}

#[test]
fn a25_other_answers_and_none_leave_the_offset() {
    for reply in
        [status(500), status(503), status(429), status(400), status(302), status(200), Err(Unreachable)]
    {
        let mut upload = started();
        assert_eq!(upload.answered(&reply, at(3)), Heard::default(), "{reply:?}");
        assert_eq!(upload.wake(), Some(at(6)), "{reply:?}");
    }
}

#[test]
fn a09_at_the_end_all_pieces_go_in_a_row() {
    let mut upload = Upload::new(0, at(0));
    upload.complete((2 << 20) + 5, at(1));
    let mut sent = Vec::new();
    while let Some(Request::Append { from, to }) = upload.request(at(1)) {
        sent.push(to - from);
        upload.answered(&status(202), at(1));
    }
    assert_eq!(sent, [1 << 20, 1 << 20, 5]);
    assert!(upload.is_done());
}

#[test]
fn a10_the_whole_trace_is_sent_again_if_the_server_lost_it() {
    let mut upload = Upload::new(0, at(0));
    upload.complete(10, at(1));
    upload.request(at(1)).unwrap();
    upload.answered(&status(202), at(1));
    upload.again_from_start(at(4));
    assert_eq!(upload.wake(), Some(at(4)));
    assert_eq!(upload.request(at(4)), Some(Request::Append { from: 0, to: 10 }));
}

#[test]
fn a23_a_silent_job_gives_a_sign_of_life_every_30_seconds() {
    let mut upload = started();
    upload.answered(&status(202), at(3));
    assert_eq!(upload.wake(), Some(at(33)));
    assert_eq!(upload.request(at(33)), Some(Request::SignOfLife));
    assert_eq!(upload.answered(&status(200), at(33)), Heard::default());
    assert_eq!(upload.wake(), Some(at(63)));
    upload.request(at(63)).unwrap();
    assert_eq!(upload.answered(&status(404), at(63)).notice, Some(Notice::Abort));
}

/// What a server can do with a request.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Taken,
    TakenAndLost,
    Refused(u16),
    Cut,
    Forgets(u64),
}

fn fates() -> impl Strategy<Value = Fate> {
    prop_oneof![
        4 => Just(Fate::Taken),
        1 => Just(Fate::TakenAndLost),
        2 => prop::sample::select(vec![500, 503, 429, 404, 408]).prop_map(Fate::Refused),
        1 => Just(Fate::Cut),
        1 => (0..50_u64).prop_map(Fate::Forgets),
    ]
}

proptest! {
    #[test]
    fn a09_the_server_has_the_trace_byte_for_byte(
        fates in prop::collection::vec(fates(), 0..40), growth in prop::collection::vec(0..400_u64, 1..20),
    ) {
        let text: Vec<u8> = (0..growth.iter().sum::<u64>()).map(|at| (at % 251) as u8).collect();
        let mut server: Vec<u8> = Vec::new();
        let mut upload = Upload::new(0, at(0));
        let (mut fates, mut growth) = (fates.into_iter(), growth.into_iter());
        let (mut available, mut clock, mut requests) = (0, 0_u64, 0);
        while !upload.is_done() {
            match growth.next() {
                Some(more) => {
                    available += more;
                    upload.grown(available);
                }
                None => upload.complete(available, at(clock)),
            }
            clock += 1;
            let Some(request) = upload.request(at(clock)) else { continue };
            requests += 1;
            prop_assert!(requests < 200, "no end");
            let Request::Append { from, to } = request else {
                upload.answered(&status(200), at(clock));
                continue;
            };
            prop_assert!(to <= available && to - from <= 1 << 20);
            let fate = fates.next().unwrap_or(Fate::Taken);
            let fate = if matches!(fate, Fate::Refused(404)) && growth.len() == 0 { Fate::Cut } else { fate };
            let take = |server: &mut Vec<u8>| {
                if server.len() as u64 == from {
                    server.extend_from_slice(&text[from as usize..to as usize]);
                    status(202)
                } else {
                    Ok(Answer { range: Some(server.len() as u64), ..Answer::status(416) })
                }
            };
            let reply = match fate {
                Fate::Taken => take(&mut server),
                Fate::TakenAndLost => { drop(take(&mut server)); Err(Unreachable) }
                Fate::Refused(code) => status(code),
                Fate::Cut => Err(Unreachable),
                Fate::Forgets(bytes) => {
                    server.truncate(server.len().saturating_sub(bytes as usize));
                    take(&mut server)
                }
            };
            upload.answered(&reply, at(clock));
            prop_assert!(text.starts_with(&server), "the server has a prefix at any time");
        }
        prop_assert_eq!(server, text);
    }
}
