//! A job as the server sent it: its id and token, on their own, and then the rest (agent.md §5).
//!
//! What the job does is read by the crate `ci`. Here is what the agent needs for itself.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value as Json;
use step_runner_ci::job::{Job, of_payload};

use crate::answer::text;
use crate::tokens::Token;

/// Bytes of an answer that are shown if it is no job at all.
const SHOWN: usize = 200;

/// Why a job is refused that would succeed, or be refused by the daemon, without having done anything.
const NOTHING_TO_RUN: &str =
    "the job has nothing to run: its payload has neither \"steps\" with a script nor \"run\"";

/// A job that was taken.
pub struct Taken {
    /// Number of the job.
    pub id: u64,
    /// Its token.
    pub token: Token,
    /// The job, or why it is refused.
    pub content: Result<Box<Content>, String>,
}

/// What a job needs of the agent.
pub struct Content {
    /// The job.
    pub job: Job,
    /// Number of its project.
    pub project: Option<u64>,
    /// Reasons of failures that the server knows.
    pub failure_reasons: BTreeSet<String>,
    /// Registries and how to log in there.
    pub credentials: Vec<Credential>,
    /// Time limit.
    pub timeout: Duration,
}

impl Content {
    /// True if the log goes to the server as it is, with times: unless the job's `FF_TIMESTAMPS`, or that in the variables
    /// `of_entry`, says otherwise.
    pub fn has_timestamps(&self, of_entry: &[(String, String)]) -> bool {
        let of_job = self.job.variables.iter().rev();
        let mut of_job =
            of_job.filter(|variable| !variable.file).map(|variable| (&variable.key, &variable.value));
        let mut of_entry = of_entry.iter().rev().map(|(key, value)| (key, value));
        let is_it = |(key, _): &(&String, &String)| *key == "FF_TIMESTAMPS";
        let last = of_job.find(is_it).or_else(|| of_entry.find(is_it));
        last.is_none_or(|(_, value)| !["false", "0", "f", "F", "FALSE", "False"].contains(&&**value))
    }
}

/// A login at a registry.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential {
    /// Host and port.
    pub registry: String,
    /// User.
    pub user: String,
    /// Password.
    pub password: String,
}

/// Hides the password.
impl std::fmt::Debug for Credential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credential").field("registry", &self.registry).finish_non_exhaustive()
    }
}

/// Reads an answer 201. The error is for the operator: neither id nor token could be read, so the job is the server's.
pub fn take(body: &[u8]) -> Result<Taken, String> {
    let json: Option<Json> = serde_json::from_slice(body).ok();
    let id = json.as_ref().and_then(|json| json.get("id")).and_then(Json::as_u64);
    let token = json.as_ref().and_then(|json| json.get("token")).and_then(Json::as_str);
    let (Some(id), Some(token), Some(json)) = (id, token.and_then(|token| Token::new(token).ok()), &json)
    else {
        let start = String::from_utf8_lossy(body.get(..SHOWN).unwrap_or(body)).into_owned();
        let shown = text::clean(&without_tokens(&start), &[]);
        return Err(format!(
            "the answer to a job request is no job: its id and token cannot be read: {shown}"
        ));
    };
    let content = match of_payload(body) {
        Ok(job) if job.work.is_empty() && job.after_script.is_empty() => Err(NOTHING_TO_RUN.to_owned()),
        Ok(job) => Ok(Box::new(content(job, json))),
        Err(error) => Err(error.message),
    };
    Ok(Taken { id, token, content })
}

/// Replaces what follows `token":`, whatever it is: its prefix may be unknown.
fn without_tokens(text: &str) -> String {
    match text.split_once("token\"") {
        Some((before, _)) => format!("{before}token\" …"),
        None => text.to_owned(),
    }
}

fn content(job: Job, json: &Json) -> Content {
    let texts = |json: Option<&Json>| {
        let texts = json.and_then(Json::as_array).into_iter().flatten().filter_map(Json::as_str);
        texts.map(str::to_owned).collect()
    };
    Content {
        project: json.get("job_info").and_then(|info| info.get("project_id")).and_then(Json::as_u64),
        failure_reasons: texts(json.get("features").and_then(|features| features.get("failure_reasons"))),
        credentials: credentials(json),
        timeout: job.timeout.unwrap_or_default(),
        job,
    }
}

fn credentials(json: &Json) -> Vec<Credential> {
    let all = json.get("credentials").and_then(Json::as_array).into_iter().flatten();
    let text = |of: &Json, key: &str| of.get(key).and_then(Json::as_str).unwrap_or_default().to_owned();
    all.filter(|found| text(found, "type") == "registry")
        .map(|found| Credential {
            registry: text(found, "url"),
            user: text(found, "username"),
            password: text(found, "password"),
        })
        .filter(|found| !found.registry.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn payload(change: impl FnOnce(&mut Json)) -> Vec<u8> {
        let mut json = json!({
            "id": 1001, "token": "glcbt-64_x", "job_info": {"project_id": 5, "name": "job"},
            "steps": [{"name": "script", "script": ["true"]}], "runner_info": {"timeout": 600},
            "features": {"failure_reasons": ["unknown_failure", null]},
            "credentials": [
                {"type": "registry", "url": "registry.test", "username": "u", "password": "hunter22"},
                {"type": "other", "url": "x"},
            ],
        });
        change(&mut json);
        json.to_string().into_bytes()
    }

    #[test]
    fn a_job_has_what_the_agent_needs() {
        let taken = take(&payload(|_| {})).unwrap();
        let content = taken.content.unwrap();
        assert_eq!((taken.id, taken.token.expose()), (1001, "glcbt-64_x"));
        assert_eq!((content.project, content.timeout), (Some(5), Duration::from_mins(10)));
        assert!(content.has_timestamps(&[]));
        assert_eq!(content.failure_reasons, BTreeSet::from(["unknown_failure".to_owned()]));
        assert_eq!(content.credentials.len(), 1);
        assert!(!format!("{:?}", content.credentials).contains("hunter22"));
    }

    #[test]
    fn times_in_the_trace_can_be_switched_off() {
        for (value, wanted) in [("false", false), ("0", false), ("true", true), ("", true), ("x", true)] {
            let body = payload(|json| json["variables"] = json!([{"key": "FF_TIMESTAMPS", "value": value}]));
            let of_entry = [("FF_TIMESTAMPS".to_owned(), value.to_owned())];
            assert_eq!(take(&body).unwrap().content.unwrap().has_timestamps(&[]), wanted, "{value}");
            let plain = take(&payload(|_| {})).unwrap().content.unwrap();
            assert_eq!(plain.has_timestamps(&of_entry), wanted, "{value} in the entry");
        }
        let of_entry = [("FF_TIMESTAMPS".to_owned(), "false".to_owned())];
        for (value, wanted) in [("true", true), ("false", false)] {
            let body = payload(|json| json["variables"] = json!([{"key": "FF_TIMESTAMPS", "value": value}]));
            assert_eq!(take(&body).unwrap().content.unwrap().has_timestamps(&of_entry), wanted, "{value}");
        }
    }

    #[test]
    fn a05_a_job_that_is_refused_has_its_id_and_token_all_the_same() {
        for (name, value) in [
            ("variables", json!("text")),
            ("steps", json!({})),
            ("secrets", json!({"A": {}})),
            ("inputs", json!([1])),
            ("run", json!("[{\"name\": \"a\"}]")),
            ("run", json!({"a": 1})),
        ] {
            let taken = take(&payload(|json| json[name] = value)).unwrap();
            assert_eq!(taken.id, 1001, "{name}");
            assert!(!taken.content.err().unwrap().contains("glcbt"), "{name}");
        }
    }

    #[test]
    fn a05_a_job_with_nothing_to_run_is_refused() {
        for steps in
            [json!(null), json!([]), json!([{"name": "script", "script": []}]), json!([{"name": "release"}])]
        {
            let taken = take(&payload(|json| json["steps"] = steps.clone())).unwrap();
            assert_eq!(taken.content.err().unwrap(), NOTHING_TO_RUN, "{steps}");
        }
        let run = take(&payload(|json| {
            json["steps"] = json!([]);
            json["run"] = json!("[{\"name\": \"a\", \"script\": \"true\"}]");
        }));
        assert!(run.unwrap().content.is_ok());
        let after = json!([{"name": "after_script", "script": ["true"]}]);
        assert!(take(&payload(|json| json["steps"] = after)).unwrap().content.is_ok());
    }

    #[test]
    fn a05_without_id_or_token_an_error_shows_the_beginning_and_no_token() {
        for body in [
            b"<html>not a job</html>".to_vec(),
            payload(|json| json["id"] = json!("1001")),
            payload(|json| json["id"] = json!(-1)),
            payload(|json| json["token"] = json!("")),
            payload(|json| json["token"] = json!("secret with blanks")),
            Vec::new(),
        ] {
            let message = take(&body).err().unwrap();
            assert!(
                message.len() < 400 && !message.contains("secret") && !message.contains("64_x"),
                "{message}"
            );
        }
    }

    proptest! {
        #[test]
        fn a17_any_bytes_are_a_job_or_an_error(bytes: Vec<u8>) {
            prop_assert!(take(&bytes).is_err());
        }
    }
}
