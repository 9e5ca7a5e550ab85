//! A job as a server sends it to a runner (ci.md §2.1). Lenient: unknown fields are ignored, and `null` is nothing.

use std::time::Duration;

use serde::{Deserialize, Deserializer};
use serde_json::{Map as JsonMap, Value as Json, json};
use step_runner_model::Variable;
use step_runner_model::text::quote;

use super::{ArtifactEntry, CacheEntry, Content, Dependency, Job, Message, Sources, Work, step_name};
use crate::file::Image;
use crate::node::Place;
use crate::settings::Settings;
use crate::variables::{Level, PayloadVariable, lenient, of_payload as expanded};

/// Time limit of a job without one.
const DEFAULT_TIMEOUT: Duration = Duration::from_hours(2);

/// A payload that is no job, or one that is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PayloadError {
    /// The reason. Holds nothing of the payload but names of fields.
    pub message: String,
}

impl std::fmt::Display for PayloadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for PayloadError {}

/// Takes a text as a list of one.
fn words<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<String>>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Words {
        One(String),
        Many(Vec<Option<String>>),
    }
    Ok(Option::<Words>::deserialize(from)?.map(|words| match words {
        Words::One(word) => vec![word],
        Words::Many(words) => words.into_iter().flatten().collect(),
    }))
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Fields {
    #[serde(deserialize_with = "lenient")]
    token: String,
    #[serde(deserialize_with = "lenient")]
    job_info: JobInfo,
    #[serde(deserialize_with = "lenient")]
    git_info: JsonMap<String, Json>,
    #[serde(deserialize_with = "lenient")]
    allow_git_fetch: bool,
    #[serde(deserialize_with = "lenient")]
    runner_info: RunnerInfo,
    #[serde(deserialize_with = "lenient")]
    variables: Vec<PayloadVariable>,
    #[serde(deserialize_with = "lenient")]
    steps: Vec<Step>,
    run: Json,
    image: Option<PayloadImage>,
    #[serde(deserialize_with = "lenient")]
    services: Vec<PayloadImage>,
    #[serde(deserialize_with = "lenient")]
    artifacts: Vec<PayloadArtifact>,
    #[serde(deserialize_with = "lenient")]
    cache: Vec<PayloadCache>,
    #[serde(deserialize_with = "lenient")]
    dependencies: Vec<PayloadDependency>,
    #[serde(deserialize_with = "lenient")]
    credentials: Vec<Credential>,
    #[serde(deserialize_with = "lenient")]
    features: Features,
    #[serde(deserialize_with = "lenient")]
    hooks: Vec<Step>,
    secrets: Json,
    inputs: Json,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct JobInfo {
    #[serde(deserialize_with = "lenient")]
    name: String,
    #[serde(deserialize_with = "lenient")]
    stage: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RunnerInfo {
    #[serde(deserialize_with = "lenient")]
    timeout: i64,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Step {
    #[serde(deserialize_with = "lenient")]
    name: String,
    #[serde(deserialize_with = "lenient")]
    script: Vec<Option<String>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct PayloadImage {
    #[serde(deserialize_with = "lenient")]
    name: String,
    alias: Option<String>,
    #[serde(deserialize_with = "words")]
    entrypoint: Option<Vec<String>>,
    #[serde(deserialize_with = "words")]
    command: Option<Vec<String>>,
    #[serde(deserialize_with = "lenient")]
    executor_opts: JsonMap<String, Json>,
    pull_policy: Json,
    ports: Json,
    #[serde(deserialize_with = "lenient")]
    variables: Vec<PayloadVariable>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct PayloadArtifact {
    #[serde(deserialize_with = "lenient")]
    name: String,
    #[serde(deserialize_with = "lenient")]
    untracked: bool,
    #[serde(deserialize_with = "lenient")]
    paths: Vec<String>,
    #[serde(deserialize_with = "lenient")]
    exclude: Vec<String>,
    #[serde(deserialize_with = "lenient")]
    when: String,
    #[serde(deserialize_with = "lenient")]
    artifact_type: String,
    #[serde(deserialize_with = "lenient")]
    artifact_format: String,
    expire_in: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct PayloadCache {
    #[serde(deserialize_with = "lenient")]
    key: String,
    #[serde(deserialize_with = "lenient")]
    untracked: bool,
    #[serde(deserialize_with = "lenient")]
    policy: String,
    #[serde(deserialize_with = "lenient")]
    paths: Vec<String>,
    #[serde(deserialize_with = "lenient")]
    when: String,
    #[serde(deserialize_with = "lenient")]
    fallback_keys: Vec<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct PayloadDependency {
    id: Json,
    #[serde(deserialize_with = "lenient")]
    token: String,
    #[serde(deserialize_with = "lenient")]
    name: String,
    #[serde(deserialize_with = "lenient")]
    artifacts_file: JsonMap<String, Json>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Credential {
    #[serde(deserialize_with = "lenient")]
    password: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Features {
    #[serde(deserialize_with = "lenient")]
    token_mask_prefixes: Vec<String>,
    #[serde(deserialize_with = "lenient")]
    trace_sections: bool,
}

impl Features {
    fn token_prefixes(self) -> Vec<String> {
        self.token_mask_prefixes.into_iter().filter(|text| !text.is_empty()).collect()
    }
}

/// Secrets and time limit of a job. A payload whose scripts come in another way is needed for nothing else.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secrets {
    /// Texts to mask: tokens, values of masked variables, passwords.
    pub phrases: Vec<String>,
    /// Prefixes of tokens to mask.
    pub token_prefixes: Vec<String>,
    /// Time limit, if the payload has one.
    pub timeout: Option<Duration>,
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Secrets").field("phrases", &self.phrases.len()).finish_non_exhaustive()
    }
}

/// Reads the secrets of a payload. `None`, without a reason, if it is no payload: the text is secret.
pub fn secrets_of_payload(text: &[u8]) -> Option<Secrets> {
    let fields: Fields = serde_json::from_slice(text).ok()?;
    let masked = fields.variables.into_iter().filter(|variable| variable.masked);
    let phrases = std::iter::once(fields.token)
        .chain(masked.map(|variable| variable.value))
        .chain(fields.dependencies.into_iter().map(|dependency| dependency.token))
        .chain(fields.credentials.into_iter().map(|credential| credential.password));
    let seconds = u64::try_from(fields.runner_info.timeout).ok().filter(|seconds| *seconds > 0);
    Some(Secrets {
        phrases: phrases.filter(|phrase| !phrase.is_empty()).collect(),
        token_prefixes: fields.features.token_prefixes(),
        timeout: seconds.map(Duration::from_secs),
    })
}

/// Reads the payload of a job.
pub fn of_payload(text: &[u8]) -> Result<Job, PayloadError> {
    // The reason that the decoder gives can quote a value.
    let is_object = text.trim_ascii_start().starts_with(b"{");
    let Some(fields) = serde_json::from_slice::<Fields>(text).ok().filter(|_| is_object) else {
        return Err(PayloadError { message: undecodable(text) });
    };
    for (name, value) in [("secrets", &fields.secrets), ("inputs", &fields.inputs)] {
        if !is_empty(value) {
            return Err(PayloadError {
                message: format!(
                    "the job has \"{name}\", which this runner does not resolve: take them out of the job"
                ),
            });
        }
    }
    let (work, after_script) = match work(&fields) {
        Ok(found) => found,
        Err(message) => return Err(PayloadError { message }),
    };
    let variables = expanded(&fields.variables);
    let lookup = |name: &str| value_of(&variables, name);
    let settings = Settings::read(&lookup);
    let messages = settings.warnings.iter().cloned().map(Message::warning).collect();
    let fill = |text: &str| crate::variables::fill_in(text, &lookup);
    Ok(Job {
        sources: sources(&fields),
        caches: fields.cache.iter().map(|cache| cache_entry(cache, &fields, &fill)).collect(),
        artifacts: fields.artifacts.iter().map(|artifact| artifact_entry(artifact, &fill)).collect(),
        dependencies: dependencies(&fields),
        image: fields.image.as_ref().filter(|image| !image.name.is_empty()).map(|found| image(found, &fill)),
        services: fields.services.iter().map(|service| image(service, &fill)).collect(),
        timeout: Some(timeout(fields.runner_info.timeout)),
        token: Some(fields.token).filter(|token| !token.is_empty()),
        phrases: fields
            .credentials
            .into_iter()
            .map(|found| found.password)
            .filter(|text| !text.is_empty())
            .collect(),
        trace_sections: fields.features.trace_sections,
        token_prefixes: fields.features.token_prefixes(),
        name: fields.job_info.name,
        stage: fields.job_info.stage,
        variables,
        settings,
        work,
        after_script,
        messages,
    })
}

fn timeout(seconds: i64) -> Duration {
    u64::try_from(seconds).ok().filter(|seconds| *seconds > 0).map_or(DEFAULT_TIMEOUT, Duration::from_secs)
}

/// Returns the value of a variable as steps see it; nothing for a file.
fn value_of(variables: &[Variable], name: &str) -> Option<String> {
    let variable = variables.iter().rev().find(|variable| variable.key == name)?;
    (!variable.file).then(|| variable.value.replace("$$", "$"))
}

fn is_empty(value: &Json) -> bool {
    match value {
        Json::Null => true,
        Json::Object(map) => map.is_empty(),
        Json::Array(list) => list.is_empty(),
        Json::String(text) => text.is_empty(),
        Json::Bool(_) | Json::Number(_) => false,
    }
}

/// Returns what the user wants to run, and the commands of `after_script`.
fn work(fields: &Fields) -> Result<(Vec<Work>, Vec<String>), String> {
    let lines = |step: &Step| step.script.iter().flatten().cloned().collect::<Vec<_>>();
    let is_after = |step: &&Step| step.name == "after_script";
    let scripts: Vec<&Step> = fields.steps.iter().filter(|step| !lines(step).is_empty()).collect();
    let after = scripts.iter().copied().filter(is_after).flat_map(lines).collect();
    let own = scripts.into_iter().filter(|step| !is_after(step));
    let mut work: Vec<Work> =
        own.map(|step| Work { name: step_name(&step.name), content: Content::Script(lines(step)) }).collect();
    let run = match &fields.run {
        Json::String(text) if text.trim().is_empty() => Json::Null,
        // The decoder's reason is left out: it can quote a value.
        Json::String(text) => serde_json::from_str(text).map_err(|error| {
            let (line, column) = (error.line(), error.column());
            format!("\"run\" of the job is no JSON: see its line {line}, column {column}")
        })?,
        other => other.clone(),
    };
    match run {
        Json::Null => {}
        Json::Array(_) if !work.is_empty() => {
            return Err("the job has both \"run\" and \"script\"".to_owned());
        }
        Json::Array(list) if list.is_empty() => {}
        Json::Array(list) => work.push(Work { name: step_name("run"), content: Content::Steps(list.into()) }),
        _ => return Err("\"run\" of the job is no list of steps".to_owned()),
    }
    Ok((work, after))
}

/// Returns where the sources are. User and password are left out: the token comes apart from the address.
fn sources(fields: &Fields) -> Option<Sources> {
    let url = fields.git_info.get("repo_url").and_then(Json::as_str)?;
    let plain = match url.split_once("://") {
        Some((scheme, rest)) => {
            let authority = rest.split('/').next().unwrap_or_default();
            let behind = authority.rfind('@').map_or(0, |at| at + 1);
            format!("{scheme}://{}", rest.get(behind..).unwrap_or_default())
        }
        None => url.to_owned(),
    };
    let mut details = fields.git_info.clone();
    details.shift_remove("repo_url");
    details.insert("allow_git_fetch".to_owned(), fields.allow_git_fetch.into());
    let hook = |name: &str| {
        let hooks = fields.hooks.iter().filter(|hook| hook.name == name);
        hooks.flat_map(|hook| hook.script.iter().flatten().cloned()).collect()
    };
    Some(Sources {
        url: plain,
        details,
        before: hook("pre_get_sources_script"),
        after: hook("post_get_sources_script"),
    })
}

fn or(text: &str, default: &str) -> String {
    if text.is_empty() { default.to_owned() } else { text.to_owned() }
}

/// Says which keys of a payload that is not understood have another form.
fn undecodable(text: &[u8]) -> String {
    let known = serde_json::from_slice::<JsonMap<String, Json>>(text).unwrap_or_default();
    let is_wrong =
        |(key, value): (String, Json)| match serde_json::from_value::<Fields>(json!({ &*key: value })) {
            Ok(_) => None,
            Err(_) => Some(format!("\"{}\"", quote(&key))),
        };
    let wrong: Vec<String> = known.into_iter().filter_map(is_wrong).collect();
    match wrong.as_slice() {
        [] => "the payload of the job cannot be decoded".to_owned(),
        _ => format!("the payload of the job cannot be decoded: {} of another form", wrong.join(", ")),
    }
}

/// Reads a cache. Without a key it is that of the job and its branch (agent.md §11.3).
fn cache_entry(cache: &PayloadCache, fields: &Fields, fill: &dyn Fn(&str) -> String) -> CacheEntry {
    let branch = fields.git_info.get("ref").and_then(Json::as_str).unwrap_or_default();
    let key = or(&cache.key, &format!("{}/{branch}", fields.job_info.name));
    CacheEntry {
        key: json!(fill(&key)),
        fallback_keys: cache.fallback_keys.iter().map(|key| fill(key)).collect(),
        paths: cache.paths.iter().map(|path| fill(path)).collect(),
        untracked: cache.untracked,
        policy: or(&cache.policy, "pull-push"),
        when: or(&cache.when, "on_success"),
    }
}

fn artifact_entry(artifact: &PayloadArtifact, fill: &dyn Fn(&str) -> String) -> ArtifactEntry {
    ArtifactEntry {
        name: or(&fill(&artifact.name), "artifacts"),
        paths: artifact.paths.iter().map(|path| fill(path)).collect(),
        exclude: artifact.exclude.iter().map(|path| fill(path)).collect(),
        untracked: artifact.untracked,
        when: or(&artifact.when, "on_success"),
        kind: or(&artifact.artifact_type, "archive"),
        format: or(&artifact.artifact_format, "zip"),
        expire_in: artifact.expire_in.clone(),
    }
}

/// Returns the jobs with artifacts. Those without a file have none.
fn dependencies(fields: &Fields) -> Vec<Dependency> {
    let has_file = |found: &&PayloadDependency| {
        found.artifacts_file.get("filename").and_then(Json::as_str).is_some_and(|name| !name.is_empty())
    };
    let dependency = |found: &PayloadDependency| Dependency {
        name: found.name.clone(),
        required: true,
        details: JsonMap::from_iter([
            ("id".to_owned(), found.id.clone()),
            ("artifacts_file".to_owned(), found.artifacts_file.clone().into()),
        ]),
        token: Some(found.token.clone()).filter(|token| !token.is_empty()),
    };
    fields.dependencies.iter().filter(has_file).map(dependency).collect()
}

fn image(found: &PayloadImage, fill: &dyn Fn(&str) -> String) -> Image {
    let mut options = found.executor_opts.clone();
    if !found.pull_policy.is_null() {
        options.insert("pull_policy".to_owned(), found.pull_policy.clone());
    }
    if found.ports.is_array() {
        options.insert("ports".to_owned(), found.ports.clone());
    }
    let variables: Level = (found.variables.iter())
        .map(|variable| (variable.key.clone(), crate::variables::Defined::raw(variable.value.clone())))
        .collect();
    Image {
        name: fill(&found.name),
        alias: found.alias.as_deref().map(fill),
        entrypoint: found.entrypoint.clone(),
        command: found.command.clone(),
        options,
        variables,
        place: Place { file: "<payload>".into(), at: step_runner_lang::diagnostic::Position::START },
    }
}
