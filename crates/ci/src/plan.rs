//! A job as one steps document with inputs (ci.md §1). What a user wrote arrives as inputs of the root function; the
//! document is made of fixed words, step names and numbers.

mod document;

use std::time::Duration;

use serde_json::{Map as JsonMap, Value as Json};
use step_runner_model::Variable;
use step_runner_model::text::quote;

use crate::file::Image;
use crate::job::{Job, Message};

/// Time of the stages that follow `after_script` in a cleanup.
const CLEANUP_ROOM: Duration = Duration::from_mins(5);

/// Longest cleanup of a request (flow.md §9).
const CLEANUP_LIMIT: Duration = Duration::from_hours(24);

/// What becomes of `image` and `services` (ci.md §2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Images {
    /// A provider has made the environment that they ask for.
    Provided,
    /// The job fails.
    Refused,
    /// The job runs here all the same, with a warning.
    Ignored,
}

/// Where the artifacts of a job go, and those of others come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Artifacts {
    /// A folder of the project in place of a server (ci.md §4).
    Folder(String),
    /// The server that the job is from.
    Server {
        /// Address of its API, such as `https://gitlab.example.com/api/v4`.
        api: String,
        /// Number of the job there.
        job: u64,
    },
}

/// Where artifacts and caches of jobs are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stores {
    /// Where artifacts are.
    pub artifacts: Artifacts,
    /// Folder of the project's caches.
    pub caches: String,
}

/// A request for one job.
#[derive(Clone)]
pub struct Plan {
    /// The steps document.
    pub steps: String,
    /// Names of its steps, in order.
    pub stages: Vec<String>,
    /// Inputs of its root function.
    pub inputs: JsonMap<String, Json>,
    /// Variables of the job.
    pub variables: Vec<Variable>,
    /// Secrets to mask, beside masked variables.
    pub phrases: Vec<String>,
    /// Prefixes of tokens to mask.
    pub token_prefixes: Vec<String>,
    /// Time limit of the job.
    pub timeout: Option<Duration>,
    /// Time limit of its cleanup.
    pub cleanup_timeout: Duration,
    /// Notes for the user.
    pub messages: Vec<Message>,
}

/// Hides what may be a secret.
impl std::fmt::Debug for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plan").field("steps", &self.steps).finish_non_exhaustive()
    }
}

/// A job that asks for an environment which it cannot have. The reason holds quotations
/// ([`step_runner_model::text::for_people`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused(pub String);

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

/// Makes the request for a job. Without `stores` artifacts and caches are on a server.
pub fn plan(job: &Job, images: Images, stores: Option<&Stores>) -> Result<Plan, Refused> {
    let mut messages = job.messages.clone();
    if let Some(asked) = asked(job.image.as_ref(), &job.services) {
        match images {
            Images::Provided => {}
            Images::Ignored => {
                messages
                    .push(Message::warning(format!("{asked}: ignored, the job runs in this environment")));
            }
            Images::Refused => {
                return Err(Refused(format!(
                    "{asked}, and nothing here provides it: use --ignore-image to run the job in this environment"
                )));
            }
        }
    }
    let document::Document { steps, stages, inputs } = document::of(job, stores);
    Ok(Plan {
        steps,
        stages,
        inputs,
        variables: job.variables.clone(),
        phrases: job.phrases.clone(),
        token_prefixes: job.token_prefixes.clone(),
        timeout: job.timeout,
        cleanup_timeout: job.settings.after_script_timeout.saturating_add(CLEANUP_ROOM).min(CLEANUP_LIMIT),
        messages,
    })
}

/// Returns the words for what a job asks for.
fn asked(image: Option<&Image>, services: &[Image]) -> Option<String> {
    let image = image.map(|image| format!("the image \"{}\"", quote(&image.name)));
    let names: Vec<_> = services.iter().map(|service| quote(&service.name)).collect();
    let services = (!names.is_empty()).then(|| format!("the services \"{}\"", names.join("\", \"")));
    let all: Vec<String> = image.into_iter().chain(services).collect();
    (!all.is_empty()).then(|| format!("the job asks for {}", all.join(" and ")))
}

#[cfg(test)]
mod tests;
