//! The steps document of a job (ci.md §1): one step a stage, and inputs for what the stages need.

use std::time::Duration;

use serde_json::{Map as JsonMap, Value as Json, json};

use super::{Artifacts, Stores};
use crate::job::{CacheEntry, Content, Job, Work};
use crate::settings::Strategy;

/// A document, with the inputs of its root function.
pub(super) struct Document {
    pub(super) steps: String,
    pub(super) stages: Vec<String>,
    pub(super) inputs: JsonMap<String, Json>,
}

/// True if the job has not run into its time limit.
const IN_TIME: &str = r#"run.status != "timeout""#;

/// The state of the job at this moment, as an input: caches and artifacts have a `when` of their own.
const STATUS: &str = r#""${{ run.status }}""#;

/// Makes the document. Steps without work are left out.
pub(super) fn of(job: &Job, stores: Option<&Stores>) -> Document {
    let mut writer =
        Writer { run: String::new(), stages: Vec::new(), inputs: Vec::new(), names: Vec::new(), stores };
    if job.sources.is_some() {
        writer.prepare();
        writer.get_sources(job);
    }
    writer.restore_cache(job);
    writer.download_artifacts(job);
    for work in &job.work {
        writer.work(work, job);
    }
    if !job.after_script.is_empty() {
        writer.after_script(job);
    }
    writer.archive_cache(job);
    writer.upload_artifacts(job);
    if job.sources.is_some() {
        writer.cleanup();
    }
    writer.finish()
}

/// An input of the root function.
struct Input {
    name: String,
    /// Its type in the interface.
    of_type: &'static str,
    is_secret: bool,
    value: Json,
}

struct Writer<'s> {
    run: String,
    stages: Vec<String>,
    inputs: Vec<Input>,
    /// Names of the user's steps so far.
    names: Vec<String>,
    stores: Option<&'s Stores>,
}

impl Writer<'_> {
    fn step(&mut self, name: &str, function: &str) {
        self.stages.push(name.to_owned());
        self.line(&format!("  - name: {name}"));
        self.line(&format!("    func: builtin://{function}"));
    }

    fn line(&mut self, line: &str) {
        self.run.push_str(line);
        self.run.push('\n');
    }

    fn key(&mut self, key: &str, value: &str) {
        self.line(&format!("    {key}: {value}"));
    }

    /// Declares an input with its value, and returns the words that refer to it.
    fn input(&mut self, name: &str, of_type: &'static str, value: Json) -> String {
        self.declare(name, of_type, value, false)
    }

    fn secret(&mut self, name: &str, of_type: &'static str, value: Json) -> String {
        self.declare(name, of_type, value, true)
    }

    fn declare(&mut self, name: &str, of_type: &'static str, value: Json, is_secret: bool) -> String {
        if !self.inputs.iter().any(|input| input.name == name) {
            self.inputs.push(Input { name: name.to_owned(), of_type, is_secret, value });
        }
        format!("\"${{{{ inputs.{name} }}}}\"")
    }

    /// Writes the inputs of a step.
    fn pass(&mut self, inputs: &[(&str, String)]) {
        self.line("    inputs:");
        for (name, value) in inputs {
            self.line(&format!("      {name}: {value}"));
        }
    }

    /// Writes the state of the job for the step.
    fn status(&mut self, status: &str) {
        self.line("    env:");
        self.line(&format!("      CI_JOB_STATUS: {status}"));
    }

    fn retry(&mut self, attempts: u8) {
        if attempts > 1 {
            self.key("retry", &format!("{{max: {}, delay: 0s}}", attempts - 1));
        }
    }

    fn timeout(&mut self, timeout: Duration) {
        self.key("timeout", &format!("{}s", timeout.as_secs()));
    }

    fn prepare(&mut self) {
        self.step("prepare", "ci/prepare");
        self.status("running");
    }

    fn get_sources(&mut self, job: &Job) {
        let Some(sources) = &job.sources else { return };
        let settings = &job.settings;
        let mut details = sources.details.clone();
        details.insert("url".to_owned(), sources.url.clone().into());
        details
            .insert("strategy".to_owned(), settings.strategy.map_or(Json::Null, |found| found.word().into()));
        details.insert("checkout".to_owned(), settings.checkout.into());
        self.step("get_sources", "ci/get_sources");
        self.retry(settings.get_sources_attempts);
        let mut inputs = vec![("sources", self.input("sources", "struct", details.into()))];
        if let Some(token) = job.token.as_ref().filter(|_| settings.strategy != Some(Strategy::None)) {
            inputs.push(("token", self.secret("token", "string", token.clone().into())));
        }
        for (name, lines) in
            [("pre_get_sources_script", &sources.before), ("post_get_sources_script", &sources.after)]
        {
            if !lines.is_empty() {
                inputs.push((name, self.input(name, "array", json!(lines))));
            }
        }
        self.pass(&inputs);
        self.status("running");
    }

    fn restore_cache(&mut self, job: &Job) {
        let Some(caches) = self.caches(job, |cache| cache.policy != "push") else { return };
        self.step("restore_cache", "ci/cache/restore");
        self.key("continue_on_error", "true");
        self.retry(job.settings.restore_cache_attempts);
        let mut inputs = vec![("caches", caches)];
        if let Some(key) = &job.settings.cache_fallback_key {
            inputs.push(("fallback_key", self.input("cache_fallback_key", "string", key.clone().into())));
        }
        inputs.extend(self.cache_store());
        self.pass(&inputs);
        self.status("running");
    }

    /// Returns the words for the caches if one of them is wanted.
    fn caches(&mut self, job: &Job, is_wanted: impl Fn(&CacheEntry) -> bool) -> Option<String> {
        let has_files = |cache: &&CacheEntry| !cache.paths.is_empty() || cache.untracked;
        if !job.caches.iter().filter(has_files).any(is_wanted) {
            return None;
        }
        let caches: Vec<Json> = (job.caches.iter().filter(has_files))
            .map(|cache| {
                json!({
                    "key": cache.key,
                    "fallback_keys": cache.fallback_keys,
                    "paths": cache.paths,
                    "untracked": cache.untracked,
                    "policy": cache.policy,
                    "when": cache.when,
                })
            })
            .collect();
        Some(self.input("caches", "array", caches.into()))
    }

    /// Passes the folder of the caches.
    fn cache_store(&mut self) -> Option<(&'static str, String)> {
        let folder = self.stores?.caches.clone();
        Some(("store", self.input("cache_store", "string", folder.into())))
    }

    /// Passes where artifacts are.
    fn artifact_store(&mut self) -> Option<(&'static str, String)> {
        Some(match self.stores?.artifacts.clone() {
            Artifacts::Folder(path) => ("store", self.input("artifact_store", "string", path.into())),
            Artifacts::Server { api, .. } => ("server", self.input("artifact_server", "string", api.into())),
        })
    }

    fn download_artifacts(&mut self, job: &Job) {
        if job.dependencies.is_empty() {
            return;
        }
        let mut tokens = Vec::new();
        let mut wanted = Vec::new();
        for dependency in &job.dependencies {
            let mut details = dependency.details.clone();
            details.insert("name".to_owned(), dependency.name.clone().into());
            details.insert("required".to_owned(), dependency.required.into());
            wanted.push(Json::from(details));
            tokens.push(Json::from(dependency.token.clone().unwrap_or_default()));
        }
        self.step("download_artifacts", "ci/artifacts/download");
        self.retry(job.settings.artifact_download_attempts);
        let mut inputs = vec![("dependencies", self.input("dependencies", "array", wanted.into()))];
        if job.dependencies.iter().any(|dependency| dependency.token.is_some()) {
            inputs.push(("tokens", self.secret("dependency_tokens", "array", tokens.into())));
        }
        inputs.extend(self.artifact_store());
        self.pass(&inputs);
        self.status("running");
    }

    fn work(&mut self, work: &Work, job: &Job) {
        let name = self.unique(&work.name);
        match &work.content {
            Content::Script(lines) => self.script(&name, lines, job),
            Content::Steps(steps) => {
                self.step(&name, "ci/run");
                let steps = self.input(&name, "string", steps.to_string().into());
                self.pass(&[("steps", steps)]);
            }
        }
        if let Some(timeout) = job.settings.script_timeout {
            self.timeout(timeout);
        }
        self.status("running");
        self.names.push(name);
    }

    /// Returns a name that no step has yet: names of a payload can become equal.
    fn unique(&self, name: &str) -> String {
        let mut unique = name.to_owned();
        let mut count = 1;
        while self.names.contains(&unique) {
            count += 1;
            unique = format!("{name}_{count}");
        }
        unique
    }

    fn script(&mut self, name: &str, lines: &[String], job: &Job) {
        self.step(name, "script_legacy");
        let lines = self.input(name, "array", json!(lines));
        let mut inputs = vec![("script", lines)];
        for (name, is_set) in
            [("check_for_errors", job.settings.checks_exit_codes), ("debug_trace", job.settings.debug_trace)]
        {
            if is_set {
                inputs.push((name, "true".to_owned()));
            }
        }
        self.pass(&inputs);
    }

    fn after_script(&mut self, job: &Job) {
        self.script("after_script", &job.after_script, job);
        self.key("when", "always");
        if let Some(first) = self.names.first() {
            self.key("if", &format!("'${{{{ steps.{first}.attempts > 0 && {IN_TIME} }}}}'"));
        }
        self.timeout(job.settings.after_script_timeout);
        if job.settings.ignore_after_script_errors {
            self.key("continue_on_error", "true");
        }
        let timed_out: Vec<String> =
            self.names.iter().map(|name| format!(r#"steps.{name}.error == "timeout""#)).collect();
        let timed_out = if timed_out.is_empty() { "false".to_owned() } else { timed_out.join(" || ") };
        self.status(&format!(
            r#"'${{{{ run.status == "success" && "success" || run.status == "cancelled" && "canceled" || ({timed_out}) && "timedout" || "failed" }}}}'"#
        ));
    }

    fn archive_cache(&mut self, job: &Job) {
        let Some(caches) = self.caches(job, |cache| cache.policy != "pull") else { return };
        self.step("archive_cache", "ci/cache/save");
        self.always();
        self.key("continue_on_error", "true");
        let mut inputs = vec![("caches", caches), ("status", STATUS.to_owned())];
        inputs.extend(self.cache_store());
        self.pass(&inputs);
        self.status("running");
    }

    fn upload_artifacts(&mut self, job: &Job) {
        if job.artifacts.is_empty() {
            return;
        }
        let artifacts: Vec<Json> = (job.artifacts.iter())
            .map(|artifact| {
                json!({
                    "name": artifact.name,
                    "paths": artifact.paths,
                    "exclude": artifact.exclude,
                    "untracked": artifact.untracked,
                    "when": artifact.when,
                    "type": artifact.kind,
                    "format": artifact.format,
                    "expire_in": artifact.expire_in,
                })
            })
            .collect();
        self.step("upload_artifacts", "ci/artifacts/upload");
        self.always();
        let artifacts = self.input("artifacts", "array", artifacts.into());
        let mut inputs = vec![("artifacts", artifacts), ("status", STATUS.to_owned())];
        if let Some(token) = &job.token {
            inputs.push(("token", self.secret("token", "string", token.clone().into())));
        }
        if let Some(store) = self.artifact_store() {
            let name = match self.stores.map(|stores| &stores.artifacts) {
                Some(Artifacts::Server { job, .. }) => job.to_string(),
                _ => job.name.clone(),
            };
            inputs.extend([store, ("job", self.input("job", "string", name.into()))]);
        }
        self.pass(&inputs);
        self.status("running");
    }

    /// A stage that runs at every end but a time limit.
    fn always(&mut self) {
        self.key("when", "always");
        self.key("if", &format!("'${{{{ {IN_TIME} }}}}'"));
    }

    fn cleanup(&mut self) {
        self.step("cleanup", "ci/cleanup");
        self.key("when", "always");
        self.key("continue_on_error", "true");
        self.status("running");
    }

    fn finish(self) -> Document {
        let mut steps = String::from("spec:\n  inputs:");
        if self.inputs.is_empty() {
            steps.push_str(" {}");
        }
        steps.push('\n');
        for Input { name, of_type, is_secret, .. } in &self.inputs {
            let secret = if *is_secret { ", sensitive: true" } else { "" };
            steps.extend(["    ", name, ": {type: ", of_type, secret, "}\n"]);
        }
        steps.push_str("---\nrun:\n");
        steps.push_str(&self.run);
        let inputs = self.inputs.into_iter().map(|input| (input.name, input.value)).collect();
        Document { steps, stages: self.stages, inputs }
    }
}
