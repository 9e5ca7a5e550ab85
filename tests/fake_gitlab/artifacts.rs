//! Artifacts at the server.

use serde_json::json;

use super::World;
use super::http::{Answer, Request};
use super::jobs::job_of;

/// Takes the one part of a form.
pub(super) fn upload(world: &mut World, id: u64, request: &Request) -> Answer {
    let job = match job_of(world, id, request) {
        Ok(job) => job,
        Err(answer) => return answer,
    };
    let kind = request.headers.get("content-type").cloned().unwrap_or_default();
    let boundary = format!("--{}", kind.split_once("boundary=").unwrap_or_default().1.trim_matches('"'));
    let find = |text: &[u8], part: &[u8]| text.windows(part.len()).position(|window| window == part);
    let Some(head) = find(&request.body, b"\r\n\r\n") else { return Answer::status(400) };
    let content = &request.body[head + 4..];
    let Some(end) = find(content, format!("\r\n{boundary}").as_bytes()) else { return Answer::status(400) };
    let fields = String::from_utf8_lossy(&request.body[..head]);
    let name = fields.split_once("filename=\"").and_then(|(_, rest)| rest.split_once('"'));
    let name = name.map_or_else(String::new, |(name, _)| name.to_owned());
    if !fields.contains("name=\"file\"") {
        return Answer::status(400);
    }
    let query = request.path.split_once('?').unwrap_or_default().1.to_owned();
    let content = &content[..end];
    // A job has one artifact of each type. The same one again is no fault: the client has not seen the answer.
    match job.artifacts.iter().find(|(known, ..)| *known == query) {
        None => job.artifacts.push((query, name, content.to_vec())),
        Some((_, _, known)) if known == content => job.uploads_again += 1,
        Some(_) => {
            let told = format!("job {id}: another artifact than before for {query}");
            world.breaches.push(told);
            return Answer::json(
                400,
                &json!({"message": "another artifact of the same type already exists"}),
            );
        }
    }
    Answer::json(201, &json!({}))
}

/// Sends the archive of a job to whom has its token.
pub(super) fn download(world: &mut World, id: u64, request: &Request) -> Answer {
    let job = match job_of(world, id, request) {
        Ok(job) => job,
        Err(answer) => return answer,
    };
    let archive = job.artifacts.iter().find(|(query, ..)| query.contains("artifact_type=archive"));
    archive.map_or_else(|| Answer::status(404), |(_, _, content)| Answer::bytes(200, content.clone()))
}
