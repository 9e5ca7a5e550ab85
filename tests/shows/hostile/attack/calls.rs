//! Valid calls that are too many, never read, or abandoned.

use std::io;

use super::{Field, PATIENCE, Tally};
use crate::hostile::frames::{self, Wire, call, frame, kind};
use crate::random::Random;
use prost::Message;
use step_runner::pb::v1;

/// 1,000 followers of one job that never read, on ten connections.
pub(super) fn deaf_followers(field: &Field, _: usize) -> Tally {
    deaf(field, 10)
}

/// 1,000 followers of one job that never read, on one connection.
pub(super) fn deaf_followers_together(field: &Field, _: usize) -> Tally {
    deaf(field, 1)
}

fn deaf(field: &Field, connections: u32) -> Tally {
    let request =
        v1::FollowLogsRequest { id: field.job.clone(), offset: 0, ..v1::FollowLogsRequest::default() }
            .encode_to_vec();
    let mut tally = Tally::default();
    let mut wires = Vec::new();
    for _ in 0..connections {
        let Ok(mut wire) = Wire::open(&field.socket) else { continue };
        tally.connections += 1;
        wire.patience(PATIENCE).ok();
        for number in 0..1_000 / connections {
            if field.send(&mut wire, &call(number * 2 + 1, "FollowLogs", &request)).is_err() {
                break;
            }
            tally.batches += 1;
        }
        wires.push(wire);
    }
    tally.ended = field.hold(&wires);
    tally
}

fn run_request(id: String) -> Vec<u8> {
    let steps = r#"[{"name":"s","script":"echo x"}]"#.to_owned();
    v1::RunRequest { id, steps, ..v1::RunRequest::default() }.encode_to_vec()
}

/// Clients that disconnect between or within calls.
pub(super) fn vanishing(field: &Field, thread: usize) -> Tally {
    let mut random = Random::new(field.seed + thread as u64);
    let mut tally = Tally::default();
    while field.goes_on() {
        let id = format!("vanish-{thread}-{}", random.next() % 4);
        let finish = v1::FinishRequest { id: id.clone() }.encode_to_vec();
        let follow = v1::FollowLogsRequest { id: id.clone(), offset: 0, ..v1::FollowLogsRequest::default() }
            .encode_to_vec();
        let status = v1::StatusRequest { id: id.clone() }.encode_to_vec();
        let mut bytes = frames::PREFACE.to_vec();
        bytes.extend(frame(kind::SETTINGS, 0, 0, b""));
        bytes.extend(call(1, "Run", &run_request(id)));
        bytes.extend(call(3, "FollowLogs", &follow));
        bytes.extend(call(5, "FollowSteps", &status));
        bytes.extend(call(7, "Status", &status));
        bytes.extend(call(9, "Cancel", &status));
        bytes.extend(call(11, "Finish", &finish));
        let cut = random.next() as usize % (bytes.len() + 1);
        let Ok(mut wire) = Wire::silent(&field.socket) else { continue };
        tally.connections += 1;
        wire.patience(PATIENCE).ok();
        if field.send(&mut wire, &bytes[..cut]).is_err() {
            tally.ended += 1;
        }
        tally.batches += 1;
    }
    tally
}

/// Returns the ids of jobs that [`vanishing`] and [`run_storm`] can leave behind.
pub(crate) fn leftovers() -> impl Iterator<Item = String> {
    let vanish = (0..8).flat_map(|thread| (0..4).map(move |n| format!("vanish-{thread}-{n}")));
    vanish.chain((0..8).flat_map(|thread| (0..25).map(move |n| format!("storm-{thread}-{n}"))))
}

/// Calls Run with new jobs, with repeated ones and with invalid ones, as fast as they are answered.
pub(super) fn run_storm(field: &Field, thread: usize) -> Tally {
    let mut tally = Tally::default();
    while field.goes_on() {
        let Ok(mut wire) = Wire::open(&field.socket) else { continue };
        tally.connections += 1;
        wire.patience(PATIENCE).ok();
        wire.send(&frame(kind::WINDOW_UPDATE, 0, 0, &(1_u32 << 30).to_be_bytes())).ok();
        if storm(field, thread, &mut wire, &mut tally).is_err() {
            tally.ended += 1;
        }
    }
    tally
}

pub(super) fn storm(field: &Field, thread: usize, wire: &mut Wire, tally: &mut Tally) -> io::Result<()> {
    let mut stream = 1;
    let mut round = |wire: &mut Wire, calls: Vec<(&str, Vec<u8>)>| {
        let count = calls.len();
        for (method, request) in calls {
            field.send(wire, &call(stream, method, &request))?;
            stream += 2;
        }
        tally.batches += 1;
        answered(field, wire, count)
    };
    while field.goes_on() {
        let id = |n: u32| format!("storm-{thread}-{n}");
        let runs = (0..25).flat_map(|n| {
            let bad = v1::RunRequest { id: id(n), steps: "{".repeat(100), ..v1::RunRequest::default() };
            [("Run", run_request(id(n))), ("Run", run_request(id(n))), ("Run", bad.encode_to_vec())]
        });
        round(wire, runs.collect())?;
        let finishes = (0..25).map(|n| ("Finish", v1::FinishRequest { id: id(n) }.encode_to_vec()));
        round(wire, finishes.collect())?;
    }
    Ok(())
}

/// Reads until `count` calls have been answered.
fn answered(field: &Field, wire: &mut Wire, mut count: usize) -> io::Result<()> {
    while count > 0 && field.goes_on() {
        match wire.receive() {
            Ok(Some(frame)) if frame.kind == kind::HEADERS => count -= usize::from(frame.is_last),
            Ok(Some(_)) => {}
            Ok(None) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
