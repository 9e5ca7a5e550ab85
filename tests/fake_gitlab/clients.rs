//! What another program than our agent may send: a GitLab Runner, of an old release too.

use super::World;
use super::http::Request;

/// Program that calls the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Client {
    /// Our agent. All that it sends is checked.
    #[default]
    Agent,
    /// A GitLab Runner. A job is its own once it was handed out. Old releases send tokens in bodies, no checksums, and know
    /// no cancel that lets a job end by itself.
    Runner,
}

/// Notes what no GitLab Runner does: a token in a URL, another name in `User-Agent`.
pub(super) fn breaches(world: &mut World, request: &Request) {
    let name = format!("{} {}", request.method, request.path);
    if request.path.contains("glrt-") || request.path.contains("glcbt-") {
        world.breaches.push(format!("{name}: a token in the URL"));
    }
    // Downloads of artifacts have the name of its HTTP library.
    let agent = request.headers.get("user-agent").map_or("", String::as_str);
    if !agent.starts_with("gitlab-runner ") && request.method != "GET" {
        world.breaches.push(format!("{name}: it is no GitLab Runner but {agent:?}"));
    }
}

/// Returns the token of a job that a request has.
pub(super) fn job_token(client: Client, request: &Request) -> Option<String> {
    let header = request.headers.get("job-token").cloned();
    header.or_else(|| (client == Client::Runner).then(|| request.token()))
}

/// Returns the ticket of a job request. Only our agent has it in a header, too.
pub(super) fn ticket(world: &mut World, request: &Request) -> Option<String> {
    let in_body = request.json()["last_update"].as_str().map(str::to_owned);
    let header = request.headers.get("x-gitlab-last-update");
    if world.client == Client::Agent && header != in_body.as_ref() {
        world.breaches.push("POST /jobs/request: header and body have different tickets".to_owned());
    }
    in_body
}

/// Notes that a job was handed out. Without a claim it runs from then on.
pub(super) fn hand_out(world: &mut World, job: u64) {
    if world.client == Client::Runner
        && let Some(job) = world.jobs.get_mut(&job)
    {
        "running".clone_into(&mut job.state);
    }
}

/// Cancels a job as a user does: gracefully if the client knows how to.
pub(crate) fn cancel(world: &mut World, job: u64) {
    let asked = world.seen.iter().rfind(|request| request.path == "/jobs/request");
    let is_graceful =
        asked.is_some_and(|request| request.json()["info"]["features"]["cancel_gracefully"] == true);
    let state = if is_graceful { "canceling" } else { "canceled" };
    if let Some(job) = world.jobs.get_mut(&job) {
        state.clone_into(&mut job.state);
    }
}
