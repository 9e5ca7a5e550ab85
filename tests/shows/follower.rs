//! Followers that resume at their offset whenever the daemon was away.

use std::time::Duration;

use step_runner::pb::v1;
use tokio::time::{Instant, timeout_at};
use tonic::Code;

use crate::client::{Client, is_answer};
use crate::verdict::Check;

/// Longest time of any job in a proof.
pub(crate) const LONGEST_JOB: Duration = Duration::from_mins(5);

/// Bytes and end that a follower of a log has received.
#[derive(Default)]
pub(crate) struct Followed {
    pub(crate) bytes: Vec<u8>,
    /// Number of streams opened.
    pub(crate) streams: usize,
    /// The job was removed before its end was received.
    pub(crate) gone: bool,
}

/// Action of a follower before it reads on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mood {
    /// It reads.
    Read,
    /// It reads nothing for a while.
    Stall(Duration),
    /// It disconnects and resumes.
    Leave,
}

/// Follows the log of `id` to its end, from the beginning.
pub(crate) async fn follow_log(client: Client, id: String) -> Check<Followed> {
    follow_in_moods(client, id, || Mood::Read).await
}

/// Like [`follow_log`]. Calls `mood` before each message.
pub(crate) async fn follow_in_moods(
    client: Client,
    id: String,
    mut mood: impl FnMut() -> Mood,
) -> Check<Followed> {
    let until = Instant::now() + LONGEST_JOB;
    let mut followed = Followed::default();
    loop {
        followed.streams += 1;
        match timeout_at(until, one_stream(&client, &id, &mut followed, &mut mood)).await {
            Ok(Ok(true)) => return Ok(followed),
            Ok(Ok(false)) => {}
            Ok(Err(error)) => return Err(error),
            Err(_) => {
                return Err(format!("{id}: its log does not end, {} bytes so far", followed.bytes.len()));
            }
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Follows one stream. Returns `true` at the end of the log.
async fn one_stream(
    client: &Client,
    id: &str,
    followed: &mut Followed,
    mood: &mut impl FnMut() -> Mood,
) -> Check<bool> {
    let Ok(mut stub) = crate::client::dial(client.socket()).await else { return Ok(false) };
    let offset = i32::try_from(followed.bytes.len()).map_err(|e| e.to_string())?;
    let opened = stub
        .follow_logs(v1::FollowLogsRequest { id: id.into(), offset, ..v1::FollowLogsRequest::default() })
        .await;
    let mut stream = match opened {
        Ok(response) => response.into_inner(),
        Err(status) => return judge(id, &status, followed),
    };
    loop {
        match mood() {
            Mood::Read => {}
            Mood::Stall(time) => tokio::time::sleep(time).await,
            Mood::Leave => return Ok(false),
        }
        match stream.message().await {
            Ok(Some(message)) if message.data.is_empty() => return Err(format!("{id}: an empty message")),
            Ok(Some(message)) => followed.bytes.extend_from_slice(&message.data),
            Ok(None) => return Ok(true),
            Err(status) => return judge(id, &status, followed),
        }
    }
}

fn judge(id: &str, status: &tonic::Status, followed: &mut Followed) -> Check<bool> {
    if status.code() == Code::NotFound {
        followed.gone = true;
        return Ok(true);
    }
    if is_answer(status) {
        return Err(format!("{id}: FollowLogs at {}: {status}", followed.bytes.len()));
    }
    Ok(false)
}

/// Follows the results of `id` to their end. After a disconnect it skips the results that it already has.
pub(crate) async fn follow_steps(client: Client, id: String) -> Check<Vec<v1::StepResult>> {
    let until = Instant::now() + LONGEST_JOB;
    let mut results = Vec::new();
    loop {
        match timeout_at(until, one_pass(&client, &id, &mut results)).await {
            Ok(Ok(true)) => return Ok(results),
            Ok(Ok(false)) => {}
            Ok(Err(error)) => return Err(error),
            Err(_) => return Err(format!("{id}: its results do not end, {} so far", results.len())),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn one_pass(client: &Client, id: &str, results: &mut Vec<v1::StepResult>) -> Check<bool> {
    let Ok(mut stub) = crate::client::dial(client.socket()).await else { return Ok(false) };
    let opened = stub.follow_steps(v1::FollowStepsRequest { id: id.into(), events: false }).await;
    let judge = |status: tonic::Status| match status.code() {
        Code::NotFound => Ok(true),
        _ if is_answer(&status) => Err(format!("{id}: FollowSteps: {status}")),
        _ => Ok(false),
    };
    let mut stream = match opened {
        Ok(response) => response.into_inner(),
        Err(status) => return judge(status),
    };
    let mut at = 0;
    loop {
        match stream.message().await {
            Ok(Some(message)) => {
                let result = message.result.unwrap_or_default();
                match results.get(at) {
                    None => results.push(result),
                    Some(known) if *known == result => {}
                    Some(known) => {
                        return Err(format!("{id}: result {at} has changed from {known:?} to {result:?}"));
                    }
                }
                at += 1;
            }
            Ok(None) if at < results.len() => {
                return Err(format!("{id}: {} results were seen, {at} are left", results.len()));
            }
            Ok(None) => return Ok(true),
            Err(status) => return judge(status),
        }
    }
}
