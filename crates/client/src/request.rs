//! The request to run a job.

use std::fmt;
use std::time::Duration;

use step_runner_model::{JobId, Variable, escape};
use step_runner_proto::v1;

/// A job to run (service.md §2, §3.1). Its steps, environment, variables and phrases may hold secrets, so `Debug` shows
/// only the id.
///
/// ```
/// use step_runner_client::model::JobId;
/// use step_runner_client::Request;
///
/// let id = JobId::parse("42").expect("a literal");
/// let request = Request::new(id, "- {name: hello, script: echo hello}")
///     .env("GREETING", "hello")
///     .phrase("s3cr3t");
/// assert_eq!(format!("{request:?}"), r#"Request { id: "42", .. }"#);
/// ```
#[derive(Clone)]
pub struct Request {
    id: JobId,
    message: v1::RunRequest,
}

/// Resource limits of a job. `None` means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RequestLimits {
    /// Processes and threads at one time.
    pub processes: Option<i64>,
    /// Memory in bytes.
    pub memory: Option<i64>,
    /// Processors.
    pub cpus: Option<f64>,
    /// Open files per process.
    pub open_files: Option<i64>,
}

impl Request {
    /// Creates a job `id` that runs `steps`, the text of a steps document.
    pub fn new(id: JobId, steps: impl Into<String>) -> Self {
        let message = v1::RunRequest { id: id.to_string(), steps: steps.into(), ..Default::default() };
        Self { id, message }
    }

    /// The job's id.
    pub const fn id(&self) -> &JobId {
        &self.id
    }

    /// The steps document.
    pub fn steps(&self) -> &str {
        &self.message.steps
    }

    /// The document's name in messages; empty if it has none.
    pub fn file_name(&self) -> &str {
        &self.message.file
    }

    /// Sets the document's name for messages. An absolute path is also the base of relative references.
    #[must_use]
    pub fn file(mut self, file: impl Into<String>) -> Self {
        self.message.file = file.into();
        self
    }

    /// Sets the working directory, an absolute path.
    #[must_use]
    pub fn work_dir(mut self, path: impl Into<String>) -> Self {
        self.message.work_dir = path.into();
        if let Some(job) = &mut self.message.job {
            job.build_dir.clone_from(&self.message.work_dir);
        }
        self
    }

    /// Adds an input of the document's interface.
    #[must_use]
    pub fn input(mut self, name: impl Into<String>, value: serde_json::Value) -> Self {
        self.message.inputs.insert(name.into(), to_value(value));
        self
    }

    /// Adds a variable to the environment of all steps, taken literally. If there are job variables, it is sent as one
    /// of them, because the daemon accepts only one of the two (service.md §3.6, `job_and_env`).
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.message.env.insert(name.into(), value.into());
        self
    }

    /// True if the steps get a variable of this name from the request.
    pub fn has_env(&self, name: &str) -> bool {
        let job = self.message.job.as_ref();
        self.message.env.contains_key(name)
            || job.is_some_and(|job| job.variables.iter().any(|variable| variable.key == name))
    }

    /// Adds a job variable.
    #[must_use]
    pub fn variable(mut self, variable: Variable) -> Self {
        let Variable { key, value, file, masked } = variable;
        self.job().variables.push(v1::Variable { key, value, file, masked });
        self
    }

    /// Puts the file variables into a folder of the job's own. Otherwise they lie beside the working directory, as those of a CI
    /// runner do, and jobs with the same working directory share them (variables.md §3).
    #[must_use]
    pub fn private_file_variables(mut self) -> Self {
        self.job().private_file_variables = true;
        self
    }

    /// Sets the number of the CI job, for the queue (queue.md §3).
    #[must_use]
    pub fn job_id(mut self, number: impl Into<String>) -> Self {
        self.job().job_id = number.into();
        self
    }

    /// Sets the number of the CI pipeline.
    #[must_use]
    pub fn pipeline_id(mut self, number: impl Into<String>) -> Self {
        self.job().pipeline_id = number.into();
        self
    }

    fn job(&mut self) -> &mut v1::Job {
        let build_dir = &self.message.work_dir;
        self.message.job.get_or_insert_with(|| v1::Job { build_dir: build_dir.clone(), ..Default::default() })
    }

    /// Adds a text to mask.
    #[must_use]
    pub fn phrase(mut self, phrase: impl Into<String>) -> Self {
        self.message.masking.get_or_insert_default().phrases.push(phrase.into());
        self
    }

    /// Adds a prefix after which a token is masked.
    #[must_use]
    pub fn token_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.message.masking.get_or_insert_default().token_prefixes.push(prefix.into());
        self
    }

    /// Limits the time from the job's start to its end.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.message.timeout = Some(to_duration(limit));
        self
    }

    /// Limits the cleanup after a stop: the later steps with `when: always` (flow.md §3.1).
    #[must_use]
    pub fn cleanup_timeout(mut self, limit: Duration) -> Self {
        self.message.cleanup_timeout = Some(to_duration(limit));
        self
    }

    /// Makes a failing line end every script whose step does not say otherwise (language.md §17).
    #[must_use]
    pub fn errexit(mut self) -> Self {
        self.message.errexit = true;
        self
    }

    /// Has marks written around each step of the root, which GitLab's log viewer folds (service.md §3.1).
    #[must_use]
    pub fn trace_sections(mut self) -> Self {
        self.message.trace_sections = true;
        self
    }

    /// Sets the longest time between SIGTERM and SIGKILL when the job is cancelled.
    #[must_use]
    pub fn cancel_grace(mut self, grace: Duration) -> Self {
        self.message.cancel_grace = Some(to_duration(grace));
        self
    }

    /// Sets resource limits.
    #[must_use]
    pub fn limits(mut self, limits: RequestLimits) -> Self {
        self.message.limits = Some(v1::Limits {
            processes: limits.processes.unwrap_or_default(),
            memory: limits.memory.unwrap_or_default(),
            cpus: limits.cpus.unwrap_or_default(),
            open_files: limits.open_files.unwrap_or_default(),
        });
        self
    }

    /// Returns the message of the canonical service. If there are job variables, the environment is sent as such. Its
    /// dollars are doubled, because values of job variables are expanded once.
    pub(super) fn message(&self) -> v1::RunRequest {
        let mut message = self.message.clone();
        if let Some(job) = &mut message.job {
            let env = std::mem::take(&mut message.env);
            let declared: Vec<_> = job.variables.iter().map(|variable| variable.key.clone()).collect();
            job.variables.extend(
                env.into_iter().filter(|(key, _)| !declared.contains(key)).map(|(key, value)| v1::Variable {
                    key,
                    value: escape(&value),
                    file: false,
                    masked: false,
                }),
            );
        }
        message
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request").field("id", &self.id).finish_non_exhaustive()
    }
}

fn to_duration(duration: Duration) -> prost_types::Duration {
    // A duration that the message cannot hold becomes its longest one.
    prost_types::Duration::try_from(duration).unwrap_or(prost_types::Duration { seconds: i64::MAX, nanos: 0 })
}

fn to_value(value: serde_json::Value) -> prost_types::Value {
    use prost_types::value::Kind;
    let kind = match value {
        serde_json::Value::Null => Kind::NullValue(0),
        serde_json::Value::Bool(truth) => Kind::BoolValue(truth),
        // Every number of the protocol is a double (service.md §2).
        serde_json::Value::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or(f64::NAN)),
        serde_json::Value::String(text) => Kind::StringValue(text),
        serde_json::Value::Array(items) => {
            Kind::ListValue(prost_types::ListValue { values: items.into_iter().map(to_value).collect() })
        }
        serde_json::Value::Object(fields) => Kind::StructValue(prost_types::Struct {
            fields: fields.into_iter().map(|(name, value)| (name, to_value(value))).collect(),
        }),
    };
    prost_types::Value { kind: Some(kind) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> Request {
        Request::new(JobId::parse("1").unwrap(), "[]")
    }

    fn variable(key: &str, value: &str) -> Variable {
        Variable { key: key.into(), value: value.into(), file: false, masked: true }
    }

    #[test]
    fn environment_beside_variables_becomes_literal_variables() {
        let message = request().work_dir("/w").env("A", "$B").variable(variable("T", "x")).message();
        assert!(message.env.is_empty());
        let job = message.job.unwrap();
        assert_eq!(job.build_dir, "/w");
        let pairs: Vec<_> = job.variables.iter().map(|v| (v.key.as_str(), v.value.as_str())).collect();
        assert_eq!(pairs, [("T", "x"), ("A", "$$B")]);
    }

    #[test]
    fn environment_alone_stays_environment() {
        let message = request().env("A", "$B").message();
        assert!(message.job.is_none());
        assert_eq!(message.env["A"], "$B");
    }

    #[test]
    fn debug_shows_no_value() {
        let request = request().env("A", "hidden").phrase("hidden").variable(variable("T", "hidden"));
        assert!(!format!("{request:?}").contains("hidden"));
    }
}
