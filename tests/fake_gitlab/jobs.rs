//! What a runner tells of its job: its trace and its state.

use serde_json::json;

use super::clients::Client;
use super::http::{Answer, Request};
use super::{Job, World, clients, refused, times};

/// Returns the job if the request has its token. Who has no token of this server does not learn what is here.
pub(super) fn job_of<'w>(world: &'w mut World, id: u64, request: &Request) -> Result<&'w mut Job, Answer> {
    let token = clients::job_token(world.client, request);
    let is_known = world.jobs.values().any(|job| token.as_ref() == Some(&job.token));
    let absent = if is_known { Answer::status(404) } else { refused() };
    let Some(job) = world.jobs.get_mut(&id) else { return Err(absent) };
    if token.as_ref() == Some(&job.token) { Ok(job) } else { Err(refused()) }
}

pub(super) fn update(world: &mut World, id: u64, request: &Request) -> Answer {
    let interval = world.interval.to_string();
    let is_checked = world.client == Client::Agent || !request.json()["output"].is_null();
    let job = match job_of(world, id, request) {
        Ok(job) => job,
        Err(answer) => return answer,
    };
    let body = request.json();
    match body["state"].as_str().unwrap_or_default() {
        _ if !job.is_live() => return refused().header("Job-Status", &job.state),
        "running" => {
            job.running += 1;
            if job.state == "pending" {
                "running".clone_into(&mut job.state);
            }
        }
        state @ ("success" | "failed") => {
            let sum = format!("crc32:{:08x}", crc32fast::hash(&job.trace));
            let is_whole = body["output"]["checksum"] == json!(sum)
                && body["output"]["bytesize"] == json!(job.trace.len());
            if is_checked && !is_whole {
                let told = format!("job {id}: the final update has another checksum than its trace");
                world.breaches.push(told);
                return Answer::status(412);
            }
            job.state = if job.state == "canceling" { "canceled".to_owned() } else { state.to_owned() };
            job.finals.push(body);
            times::note(&mut job.times.ended);
        }
        _ => return Answer::status(400),
    }
    let state = job.state.clone();
    Answer::json(200, &json!(true))
        .header("Job-Status", &state)
        .header("X-GitLab-Trace-Update-Interval", &interval)
}

pub(super) fn append(world: &mut World, id: u64, request: &Request) -> Answer {
    let interval = world.interval.to_string();
    let job = match job_of(world, id, request) {
        Ok(job) => job,
        Err(answer) => return answer,
    };
    if !["running", "canceling"].contains(&job.state.as_str()) {
        return refused().header("Job-Status", &job.state);
    }
    let range = request.headers.get("content-range").cloned().unwrap_or_default();
    let bounds =
        range.split_once('-').and_then(|(first, last)| Some((first.parse().ok()?, last.parse().ok()?)));
    let Some((first, last)): Option<(usize, usize)> = bounds else { return Answer::status(400) };
    let size = job.trace.len();
    if first != size {
        return Answer::status(416).header("Range", &format!("0-{size}")).header("Job-Status", &job.state);
    }
    if last + 1 - first != request.body.len() {
        return Answer::status(400);
    }
    times::note(&mut job.times.traced);
    job.trace.extend_from_slice(&request.body);
    let (size, state) = (job.trace.len(), job.state.clone());
    Answer::status(202)
        .header("Range", &format!("0-{size}"))
        .header("Job-Status", &state)
        .header("X-GitLab-Trace-Update-Interval", &interval)
}
