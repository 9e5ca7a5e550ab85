//! A job of the server as a request to a daemon (agent.md §11.3). The same record gives the same request, so it can be
//! repeated.

use serde_json::{Value as Json, json};

use super::info::{REVISION, VERSION, platform};
use super::mask::Mask;
use super::settings::Settings;
use step_runner_agent::answer::text::TOKEN_PREFIXES;
use step_runner_agent::names::{Names, short_token};
use step_runner_agent::record::Record;
use step_runner_agent::routing::Base;
use step_runner_ci::Strategy;
use step_runner_ci::job::{Content, Job, of_payload};
use step_runner_ci::plan::{self, Artifacts, Images, Plan, Stores};
use step_runner_client::Request;
use step_runner_model::JobId;

/// Variable with the folder for sources, below the builds directory.
const CLONE_PATH: &str = "GIT_CLONE_PATH";

/// A job that cannot be run here. The text is for the job's trace.
#[derive(Debug)]
pub(super) struct Unusable(pub(super) String);

/// Returns why an entry's environment cannot be that of the job.
pub(super) fn refused(job: &Job, settings: &Settings) -> Option<String> {
    let asks = job.image.is_some() || !job.services.is_empty();
    if asks && !settings.ignores_images && !settings.has_environments() {
        let asked = job.image.iter().chain(&job.services).map(|image| image.name.as_str());
        let names = asked.collect::<Vec<_>>().join(", ");
        return Some(format!(
            "the job asks for an image or services ({names}), which the runner \"{}\" does not provide: take them out, \
             or set `image_policy = \"ignore\"` in the runner's entry",
            settings.name
        ));
    }
    None
}

/// Returns the lines about a job that its trace begins with.
pub(super) fn warnings(job: &Job, settings: &Settings) -> Vec<String> {
    let mut lines: Vec<String> = job
        .messages
        .iter()
        .filter(|note| note.is_warning)
        .map(|note| format!("WARNING: {}", note.text))
        .collect();
    if (job.image.is_some() || !job.services.is_empty())
        && settings.ignores_images
        && !settings.has_environments()
    {
        lines.push(
            "WARNING: the job's image and services are ignored: it runs in this environment".to_owned(),
        );
    }
    if chosen_dir(job).is_some() && chosen_below(job, base(settings)).is_none() {
        lines.push(format!(
            "WARNING: {CLONE_PATH} has no effect: it is not below the builds directory {} (CI_BUILDS_DIR)",
            base(settings)
        ));
    }
    if !job.caches.is_empty() && settings.cache_dir.is_none() {
        lines
            .push("WARNING: the job's caches are left out: the runner's entry has no `cache_dir`".to_owned());
    }
    lines
}

/// Reads the job of a record, with the variables that the runner adds.
pub(super) fn job(record: &Record, settings: &Settings, server: &Base) -> Result<(Job, String), Unusable> {
    let payload = record.payload.as_deref().unwrap_or_default();
    let unusable = |_| Unusable("the payload of the job cannot be decoded".to_owned());
    let mut json: Json = serde_json::from_str(payload).map_err(unusable)?;
    let plain = of_payload(payload.as_bytes()).map_err(|error| Unusable(error.message))?;
    let project = project_dir(&plain, &json, record, settings, server);
    let (before, after) = added(&plain, record, settings, server, &project);
    let own = json.get("variables").and_then(Json::as_array).cloned().unwrap_or_default();
    json["variables"] = before.into_iter().chain(own).chain(after).collect();
    let mut job = of_payload(json.to_string().as_bytes()).map_err(|error| Unusable(error.message))?;
    add_scripts(&mut job, settings);
    if let Some(sources) = &mut job.sources
        && let Some(url) = &settings.clone_url
    {
        sources.url = moved(&sources.url, url);
    }
    Ok((job, project))
}

/// Returns the value of a job's variable as its steps see it. Files have none here.
pub(super) fn value(job: &Job, name: &str) -> Option<String> {
    let variable = job.variables.iter().rev().find(|variable| variable.key == name)?;
    (!variable.file).then(|| variable.value.replace("$$", "$"))
}

/// Returns the request to the daemon, and the names of the job's steps.
pub(super) fn request(
    record: &Record,
    settings: &Settings,
    server: &Base,
) -> Result<(Request, Vec<String>), Unusable> {
    let (mut job, project) = job(record, settings, server)?;
    let artifacts = Artifacts::Server { api: server.api(), job: record.job };
    let stores = Stores { artifacts, caches: caches(record, settings, server) };
    if settings.cache_dir.is_none() {
        job.caches.clear();
    }
    // Without a provider the job was refused before, unless its image is ignored.
    let images = if settings.has_environments() { Images::Provided } else { Images::Ignored };
    let refused = |plan::Refused(text)| Unusable(Mask::new(record, Some(&job)).line(&text));
    let plan = plan::plan(&job, images, Some(&stores)).map_err(refused)?;
    let Plan { steps, stages, inputs, variables, phrases, token_prefixes, cleanup_timeout, .. } = plan;
    let id = JobId::parse(&Names::new(server, record.job).daemon_job)
        .map_err(|error| Unusable(format!("the job has no usable name: {error}")))?;
    let mut request = Request::new(id, steps)
        .file("<job>")
        .work_dir(project)
        .job_id(record.job.to_string())
        .cleanup_timeout(cleanup_timeout)
        .phrase(record.token.expose());
    if let Some(limit) = record.time_limit {
        request = request.timeout(limit);
    }
    if job.trace_sections {
        request = request.trace_sections();
    }
    let tokens = job.dependencies.iter().filter_map(|dependency| dependency.token.clone());
    request = phrases.into_iter().chain(tokens).fold(request, Request::phrase);
    let prefixes = TOKEN_PREFIXES.iter().map(|prefix| (*prefix).to_owned()).chain(token_prefixes);
    request = prefixes.fold(request, Request::token_prefix);
    request = variables.into_iter().fold(request, Request::variable);
    let request = inputs.into_iter().fold(request, |request, (name, value)| request.input(name, value));
    Ok((request, stages))
}

/// Returns the project's directory: one for each runner and concurrent job of the project.
fn project_dir(job: &Job, payload: &Json, record: &Record, settings: &Settings, server: &Base) -> String {
    let base = base(settings);
    if let Some(path) = chosen_below(job, base) {
        return path;
    }
    let path = path_of(payload, record);
    let empty = if job.settings.strategy == Some(Strategy::Empty) { "-empty" } else { "" };
    format!("{base}/{}/{}/{path}{empty}", short_token(server, settings.runner), record.concurrent.1)
}

/// Returns the builds directory of an entry.
fn base(settings: &Settings) -> &str {
    settings.builds_dir.trim_end_matches('/')
}

/// Returns the project's directory that the job asks for.
fn chosen_dir(job: &Job) -> Option<&str> {
    let chosen = job.variables.iter().rev().find(|variable| variable.key == CLONE_PATH && !variable.file);
    chosen.map(|variable| &*variable.value).filter(|path| !path.is_empty())
}

/// Returns it if it is below the builds directory.
fn chosen_below(job: &Job, base: &str) -> Option<String> {
    below(base, &chosen_dir(job)?.replace("$CI_BUILDS_DIR", base))
}

/// Returns the path of the job's project below the folders of its runner.
fn path_of(payload: &Json, record: &Record) -> String {
    let url = payload.pointer("/git_info/repo_url").and_then(Json::as_str).unwrap_or_default();
    project_path(url).unwrap_or_else(|| format!("project-{}", record.project.unwrap_or(record.job)))
}

/// Returns the folder of the project's caches, for this runner alone.
fn caches(record: &Record, settings: &Settings, server: &Base) -> String {
    let base = settings.cache_dir.as_deref().unwrap_or_default().trim_end_matches('/');
    let payload = serde_json::from_str(record.payload.as_deref().unwrap_or_default()).unwrap_or_default();
    format!("{base}/{}/{}", short_token(server, settings.runner), path_of(&payload, record))
}

/// Returns a path that stays below `base`.
fn below(base: &str, path: &str) -> Option<String> {
    let rest = path.strip_prefix(base)?.strip_prefix('/')?;
    let is_plain = rest.split('/').all(|part| !part.is_empty() && part != "." && part != "..");
    is_plain.then(|| format!("{base}/{rest}"))
}

/// Returns namespace and project of a repository's URL. `None`: they name no plain folder.
fn project_path(url: &str) -> Option<String> {
    let (_, rest) = url.split_once("://")?;
    let (_, path) = rest.split_once('/')?;
    let path = path.trim_matches('/').strip_suffix(".git").unwrap_or(path.trim_matches('/'));
    let is_plain = |part: &str| {
        !part.is_empty() && part != "." && part != ".." && !part.contains(['\0', '\n', '?', '#', '%'])
    };
    path.split('/').all(is_plain).then(|| path.to_owned())
}

/// Returns the variables before and behind those of the job.
fn added(
    job: &Job,
    record: &Record,
    settings: &Settings,
    server: &Base,
    project: &str,
) -> (Vec<Json>, Vec<Json>) {
    let raw = |key: &str, value: &str| json!({"key": key, "value": value, "raw": true, "public": true});
    let mut before: Vec<Json> =
        settings.environment.iter().map(|(key, value)| json!({"key": key, "value": value})).collect();
    if let Some(image) = &job.image {
        before.push(raw("CI_JOB_IMAGE", &image.name));
    }
    before.extend([
        raw("CI_BUILDS_DIR", &settings.builds_dir),
        raw("CI_PROJECT_DIR", project),
        raw("CI_CONCURRENT_ID", &record.concurrent.0.to_string()),
        raw("CI_CONCURRENT_PROJECT_ID", &record.concurrent.1.to_string()),
        raw("CI_SERVER", "yes"),
        raw("CI_JOB_TIMEOUT", &record.timeout.as_secs().to_string()),
    ]);
    if let Some(certificates) =
        settings.tls_ca_file.as_ref().and_then(|path| std::fs::read_to_string(path).ok())
    {
        before
            .push(json!({"key": "CI_SERVER_TLS_CA_FILE", "value": certificates, "raw": true, "file": true}));
    }
    let kind =
        if settings.has_environments() { "CI_DISPOSABLE_ENVIRONMENT" } else { "CI_SHARED_ENVIRONMENT" };
    let after = vec![
        raw(kind, "true"),
        raw("CI_RUNNER_VERSION", VERSION),
        raw("CI_RUNNER_REVISION", REVISION),
        raw("CI_RUNNER_EXECUTABLE_ARCH", &platform()),
        raw("CI_RUNNER_SHORT_TOKEN", &short_token(server, settings.runner)),
        raw("RUNNER_TEMP_PROJECT_DIR", &format!("{project}.tmp")),
    ];
    (before, after)
}

/// Puts the entry's scripts around those of the job.
fn add_scripts(job: &mut Job, settings: &Settings) {
    for work in &mut job.work {
        if let Content::Script(lines) = &mut work.content {
            lines.splice(0..0, settings.pre_build.clone());
            lines.extend(settings.post_build.clone());
        }
    }
    if let Some(sources) = &mut job.sources {
        sources.before.splice(0..0, settings.pre_get_sources.clone());
        sources.after.splice(0..0, settings.post_get_sources.clone());
    }
}

/// Returns a repository's URL at another address of the same server.
fn moved(url: &str, base: &str) -> String {
    let path = url.split_once("://").and_then(|(_, rest)| rest.split_once('/')).map_or("", |(_, path)| path);
    format!("{}/{path}", base.trim_end_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a17_a_project_stays_below_the_builds_directory() {
        for (url, path) in [
            ("https://u:t@gitlab.test/group/project.git", Some("group/project")),
            ("https://gitlab.test/a/b/c.git/", Some("a/b/c")),
            ("https://gitlab.test/../etc.git", None),
            ("https://gitlab.test/a/./b.git", None),
            ("https://gitlab.test/a//b.git", None),
            ("https://gitlab.test/a%2f..%2fb.git", None),
            ("https://gitlab.test/", None),
            ("nothing", None),
        ] {
            assert_eq!(project_path(url).as_deref(), path, "{url}");
        }
        for (path, wanted) in
            [("/b/x/y", Some("/b/x/y")), ("/b/../x", None), ("/b/", None), ("/bx", None), ("/c/x", None)]
        {
            assert_eq!(below("/b", path).as_deref(), wanted, "{path}");
        }
    }

    #[test]
    fn the_same_repository_at_another_address() {
        assert_eq!(moved("https://gitlab.test/a/b.git", "http://inner:8080/"), "http://inner:8080/a/b.git");
    }
}
