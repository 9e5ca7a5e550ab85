//! What the agent tells a server about itself (agent.md §11.1).

use serde_json::{Value as Json, json};

use step_runner_agent::routing::Ticket;
use step_runner_agent::tokens::Token;
use step_runner_transfer::oci::Platform;

/// Version in requests.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Revision in requests: this program is known by its version alone.
pub(super) const REVISION: &str = "HEAD";

/// What this version can do. The server gives a job that needs more to another runner, or fails it.
const FEATURES: [&str; 20] = [
    "variables",
    "raw_variables",
    "refspecs",
    "masking",
    "multi_build_steps",
    "return_exit_code",
    "trace_reset",
    "trace_checksum",
    "trace_size",
    "cancelable",
    "cancel_gracefully",
    "native_steps_integration",
    "two_phase_job_commit",
    "shared",
    "artifacts",
    "artifacts_exclude",
    "upload_multiple_artifacts",
    "upload_raw_artifacts",
    "cache",
    "fallback_cache_keys",
];

/// Returns platform and architecture of this machine, as `linux/amd64`.
pub(super) fn platform() -> String {
    Platform::here().to_string()
}

/// Further features of an entry whose jobs have environments of their own.
const OF_PROVIDERS: [&str; 6] = [
    "image",
    "services",
    "service_variables",
    "service_multiple_aliases",
    "image_executor_opts",
    "service_executor_opts",
];

/// Returns the description of the agent. `labels` are those of the entry; `has_images` if it provides images.
pub fn info(labels: &[(String, String)], has_images: bool) -> Json {
    let platform = platform();
    let (system, architecture) = platform.split_once('/').unwrap_or((&platform, ""));
    let features: serde_json::Map<String, Json> = FEATURES
        .iter()
        .chain(OF_PROVIDERS.iter().filter(|_| has_images))
        .map(|name| ((*name).to_owned(), Json::Bool(true)))
        .collect();
    let labels: serde_json::Map<String, Json> =
        labels.iter().map(|(key, value)| (key.clone(), Json::from(value.as_str()))).collect();
    json!({
        "name": "step-runner",
        "version": VERSION,
        "revision": REVISION,
        "platform": system,
        "architecture": architecture,
        "executor": "step-runner",
        "shell": "bash",
        "config": {"gpus": ""},
        "labels": labels,
        "features": features,
    })
}

/// Returns the body of a call with a runner's token. `info` is the description of the agent.
pub(super) fn runner_body(token: &Token, system_id: &str, info: &Json) -> Json {
    json!({"token": token.expose(), "system_id": system_id, "info": info})
}

/// Returns the body of a request for a job.
pub(super) fn request_body(
    token: &Token,
    system_id: &str,
    labels: &[(String, String)],
    has_images: bool,
    ticket: Option<&Ticket>,
) -> Json {
    let mut body = runner_body(token, system_id, &info(labels, has_images));
    if let (Json::Object(body), Some(ticket)) = (&mut body, ticket) {
        body.insert("last_update".to_owned(), ticket.as_str().into());
    }
    body
}
