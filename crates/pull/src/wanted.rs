//! What a job asks of an environment of its own, decided by the rules of its entry (agent.md §8.2).

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value as Json;

use super::request;
use super::settings::{Provider, Settings};
use step_runner_agent::config::EntryService;
use step_runner_agent::environment::{
    AuthFile, Overwrite, PullPolicy, Rules, aliases, image, is_allowed, is_reference, overwritten,
    pull_policies, user,
};
use step_runner_agent::names::{cache_volume, short_token};
use step_runner_agent::outcome::EnvironmentFailure;
use step_runner_agent::payload;
use step_runner_agent::record::Record;
use step_runner_agent::routing::Base;
use step_runner_ci::file::Image;
use step_runner_ci::job::Job;

/// Variable with logins for registries.
const LOGINS: &str = "DOCKER_AUTH_CONFIG";

/// Variable of a service with the port to wait for.
const PORT: &str = "HEALTHCHECK_TCP_PORT";

/// Variable that says if the job's branch is protected.
const PROTECTED: &str = "CI_COMMIT_REF_PROTECTED";

/// Name of the job's container for its services.
const BUILD: &str = "build";

/// Longest value of a service's variable: engines read files of variables by lines of at most 64 KiB.
const LONGEST_VALUE: usize = 60 << 10;

/// Amounts that a job may choose for its container in a Pod: the variable, the key of the entry with the most that is
/// allowed, and the place in the container's resources.
const AMOUNTS: [(&str, &str, [&str; 2]); 4] = [
    ("KUBERNETES_CPU_REQUEST", "cpu_request_overwrite_max_allowed", ["requests", "cpu"]),
    ("KUBERNETES_CPU_LIMIT", "cpu_limit_overwrite_max_allowed", ["limits", "cpu"]),
    ("KUBERNETES_MEMORY_REQUEST", "memory_request_overwrite_max_allowed", ["requests", "memory"]),
    ("KUBERNETES_MEMORY_LIMIT", "memory_limit_overwrite_max_allowed", ["limits", "memory"]),
];

/// A container that is wanted.
pub(super) struct Container {
    /// Image.
    pub(super) image: String,
    /// Platform of the image, if the job names one.
    pub(super) platform: Option<String>,
    /// When it is pulled.
    pub(super) policies: Vec<PullPolicy>,
    /// User in it.
    pub(super) user: Option<String>,
    /// Entrypoint instead of the image's.
    pub(super) entrypoint: Option<Vec<String>>,
}

/// A service that is wanted.
pub(super) struct Service {
    /// Its container.
    pub(super) container: Container,
    /// Command instead of the image's.
    pub(super) command: Vec<String>,
    /// Names under which the job finds it.
    pub(super) aliases: Vec<String>,
    /// Port to wait for instead of all others.
    pub(super) port: Option<u16>,
    /// Ports that the job names.
    pub(super) ports: Vec<u16>,
    /// Variables.
    pub(super) variables: Vec<(String, String)>,
}

/// Everything that a job asks for.
pub(super) struct Wanted {
    /// The container of the job.
    pub(super) build: Container,
    /// Services.
    pub(super) services: Vec<Service>,
    /// Logins for registries, the first source first.
    pub(super) logins: Vec<AuthFile>,
    /// Folders below the builds directory that jobs of any user can write, each after its parent.
    pub(super) build_folders: Vec<String>,
    /// The same below the folder for caches.
    pub(super) cache_folders: Vec<String>,
    /// Volume for caches.
    pub(super) cache_volume: String,
    /// Folder for sources.
    pub(super) builds_dir: String,
    /// Folder for caches.
    pub(super) cache_dir: String,
    /// Amounts for the job's container: the place in its resources, and the amount.
    pub(super) amounts: Vec<([&'static str; 2], String)>,
    /// Lines for the trace.
    pub(super) warnings: Vec<String>,
}

/// What an entry offers: its rules, and the key of a job's image with the options that are for it.
struct Offer<'e> {
    rules: &'e Rules,
    services: &'e [EntryService],
    auth_file: Option<&'e str>,
    options: &'static str,
    /// The most that jobs may choose, by the key of the file; `None`: such variables mean nothing.
    overwrites: Option<&'e [(String, String)]>,
}

impl<'e> Offer<'e> {
    fn of(provider: &'e Provider) -> Self {
        match provider {
            Provider::Docker(docker) => Self {
                rules: &docker.rules,
                services: &docker.services,
                auth_file: docker.auth_file.as_deref(),
                options: "docker",
                overwrites: None,
            },
            Provider::Kubernetes(_, pods) => Self {
                rules: &pods.rules,
                services: &pods.services,
                auth_file: pods.auth_file.as_deref(),
                options: "kubernetes",
                overwrites: Some(&pods.overwrites),
            },
        }
    }

    /// Decides the amounts for the job's container.
    fn amounts(&self, job: &Job, warnings: &mut Vec<String>) -> Vec<([&'static str; 2], String)> {
        let Some(overwrites) = self.overwrites else { return Vec::new() };
        let mut amounts = Vec::new();
        for (variable, key, place) in AMOUNTS {
            let Some(asked) = request::value(job, variable).filter(|asked| !asked.is_empty()) else {
                continue;
            };
            let most = overwrites.iter().find(|(known, _)| known == key).map(|(_, most)| most.as_str());
            match overwritten(&asked, most) {
                Overwrite::Taken(amount) => amounts.push((place, amount)),
                Overwrite::Kept(why) => {
                    warnings.push(format!("WARNING: {variable} has no effect: {why} (`{key}`)"));
                }
            }
        }
        amounts
    }
}

type Refused = (EnvironmentFailure, String);

impl Wanted {
    /// Decides what a job gets. The error is what the job asks for in vain.
    pub(super) fn of(
        record: &Record,
        job: &Job,
        project: &str,
        settings: &Settings,
        provider: &Provider,
        server: &Base,
    ) -> Result<Self, Refused> {
        let offer = &Offer::of(provider);
        let configuration = |text| (EnvironmentFailure::Configuration, text);
        let mut warnings = Vec::new();
        let name = image(job.image.as_ref().map(|image| image.name.as_str()), offer.rules)
            .map_err(|text| (EnvironmentFailure::Image, text))?;
        let build = container(name, job.image.as_ref(), offer).map_err(configuration)?;
        let public = public_variables(record, job);
        let mut taken = vec![BUILD.to_owned(), "localhost".to_owned()];
        let mut services = Vec::new();
        let of_entry =
            offer.services.iter().map(|EntryService { name, alias }| (&**name, alias.as_deref(), None));
        let of_job =
            job.services.iter().map(|image| (image.name.trim(), image.alias.as_deref(), Some(image)));
        for (name, alias, asked) in of_entry.chain(of_job) {
            let (aliases, refused) = aliases(name, alias, &taken);
            taken.extend(aliases.iter().cloned());
            if !refused.is_empty() {
                warnings.push(format!(
                    "WARNING: the service {name} is not found as {}: the name is taken, or no host can have it",
                    refused.join(", ")
                ));
            }
            let service = service(name, aliases, asked, offer, &public, &mut warnings);
            services.push(service.map_err(configuration)?);
        }
        Ok(Self {
            build,
            services,
            logins: logins(record, job, offer, &mut warnings).map_err(configuration)?,
            build_folders: parents(project, &settings.builds_dir),
            cache_folders: vec![short_token(server, settings.runner)],
            cache_volume: cache_volume(
                server,
                settings.runner,
                record.project.unwrap_or(record.job),
                request::value(job, PROTECTED).as_deref() == Some("true"),
            ),
            builds_dir: settings.builds_dir.clone(),
            cache_dir: settings.cache_dir.clone().unwrap_or_else(|| "/cache".to_owned()),
            amounts: offer.amounts(job, &mut warnings),
            warnings,
        })
    }
}

fn container(image: String, asked: Option<&Image>, offer: &Offer<'_>) -> Result<Container, String> {
    let option = |key: &str| {
        let options = asked?.options.get(offer.options)?;
        match options.get(key)? {
            Json::String(text) if !text.is_empty() => Some(text.clone()),
            Json::Number(number) => Some(number.to_string()),
            _ => None,
        }
    };
    let policies = match asked.and_then(|asked| asked.options.get("pull_policy")) {
        Some(Json::String(word)) => vec![word.clone()],
        Some(Json::Array(words)) => words.iter().filter_map(Json::as_str).map(str::to_owned).collect(),
        _ => Vec::new(),
    };
    let platform = option("platform");
    if platform.as_deref().is_some_and(|platform| !is_reference(platform)) {
        return Err("the job's `platform` is none: write a name such as linux/amd64".to_owned());
    }
    Ok(Container {
        image,
        platform,
        policies: pull_policies(&policies, offer.rules)?,
        user: user(option("user").as_deref(), offer.rules)?,
        entrypoint: asked.and_then(|asked| asked.entrypoint.clone()).filter(|words| !words.is_empty()),
    })
}

/// Decides about one service. Without `asked` it is the entry's own, which is always allowed.
fn service(
    name: &str,
    aliases: Vec<String>,
    asked: Option<&Image>,
    offer: &Offer<'_>,
    public: &[(String, String)],
    warnings: &mut Vec<String>,
) -> Result<Service, String> {
    if !is_reference(name) {
        return Err("a service is no reference to an image: write NAME, NAME:TAG or NAME@DIGEST".to_owned());
    }
    if asked.is_some() && !is_allowed(name, &offer.rules.allowed_services) {
        let allowed = offer.rules.allowed_services.join(", ");
        return Err(format!(
            "the service {name} is not allowed: `allowed_services` of the entry has {allowed}"
        ));
    }
    let own: Vec<_> = asked.iter().flat_map(|image| &image.variables).collect();
    let mut variables: Vec<(String, String)> = Vec::new();
    for (key, value) in
        public.iter().cloned().chain(own.iter().map(|(key, defined)| ((*key).clone(), defined.value.clone())))
    {
        variables.retain(|(other, _)| *other != key);
        variables.push((key, value));
    }
    let port = variables.iter().find(|(key, _)| key == PORT).and_then(|(_, value)| value.trim().parse().ok());
    variables.retain(|(key, value)| {
        let is_fit = is_identifier(key) && value.len() <= LONGEST_VALUE && !value.contains(['\n', '\r', '\0']);
        if !is_fit && own.iter().any(|(other, _)| *other == key) {
            warnings.push(format!("WARNING: the service {name} does not get the variable {key}: it is too long, has several lines or an odd name"));
        }
        is_fit
    });
    Ok(Service {
        container: container(name.to_owned(), asked, offer)?,
        command: asked.and_then(|image| image.command.clone()).unwrap_or_default(),
        aliases,
        port,
        ports: asked.map(ports).unwrap_or_default(),
        variables,
    })
}

/// Returns the ports that a job names for a service: numbers, or tables with one.
fn ports(service: &Image) -> Vec<u16> {
    let listed = service.options.get("ports").and_then(Json::as_array).into_iter().flatten();
    let number = |port: &Json| port.get("number").unwrap_or(port).as_u64();
    listed.filter_map(number).filter_map(|port| u16::try_from(port).ok()).collect()
}

fn is_identifier(key: &str) -> bool {
    let mut bytes = key.bytes();
    bytes.next().is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Returns the variables of a job that the server calls public and that are no files.
fn public_variables(record: &Record, job: &Job) -> Vec<(String, String)> {
    let json: Json = serde_json::from_str(record.payload.as_deref().unwrap_or_default()).unwrap_or_default();
    let all = json.get("variables").and_then(Json::as_array).into_iter().flatten();
    let is = |of: &Json, key: &str| of.get(key).and_then(Json::as_bool).unwrap_or_default();
    let (mut public, mut others) = (BTreeSet::new(), BTreeSet::new());
    for variable in all {
        let key = variable.get("key").and_then(Json::as_str).unwrap_or_default();
        let is_public = is(variable, "public") && !is(variable, "masked") && !is(variable, "file");
        if is_public { &mut public } else { &mut others }.insert(key);
    }
    // A name that also stands for a secret is none of theirs.
    let value = |key: &&str| Some(((*key).to_owned(), request::value(job, key)?));
    public.difference(&others).filter_map(value).collect()
}

fn logins(
    record: &Record,
    job: &Job,
    offer: &Offer<'_>,
    warnings: &mut Vec<String>,
) -> Result<Vec<AuthFile>, String> {
    let mut sources = Vec::new();
    if let Some(variable) = job.variables.iter().rev().find(|variable| variable.key == LOGINS) {
        match AuthFile::parse(&variable.value.replace("$$", "$")) {
            Ok(file) => sources.push(file),
            Err(why) => warnings.push(format!("WARNING: {LOGINS} is not used: {why}")),
        }
    }
    if let Some(path) = offer.auth_file {
        let text =
            fs::read_to_string(path).map_err(|error| format!("cannot read `auth_file` {path}: {error}"))?;
        sources.push(AuthFile::parse(&text).map_err(|why| format!("`auth_file` {path}: {why}"))?);
    }
    let payload = record.payload.as_deref().unwrap_or_default();
    let content = payload::take(payload.as_bytes()).ok().and_then(|taken| taken.content.ok());
    sources.push(AuthFile::of_payload(&content.map(|content| content.credentials).unwrap_or_default()));
    for warning in sources.iter().flat_map(|source| &source.warnings) {
        warnings.push(format!("WARNING: {warning}"));
    }
    Ok(sources)
}

/// Returns the folders between `base` and a project below it, each after its parent.
fn parents(project: &str, base: &str) -> Vec<String> {
    let below = project.strip_prefix(base.trim_end_matches('/')).unwrap_or_default().trim_matches('/');
    let mut path = String::new();
    let mut found = Vec::new();
    for part in below.split('/') {
        found.push(path.clone());
        if !path.is_empty() {
            path.push('/');
        }
        path.push_str(part);
    }
    found.retain(|folder| !folder.is_empty());
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folders_above_a_project() {
        assert_eq!(parents("/builds/ab/0/g/p", "/builds/"), ["ab", "ab/0", "ab/0/g"]);
        assert_eq!(parents("/builds/x", "/builds"), Vec::<String>::new());
    }

    #[test]
    fn names_of_variables_that_a_file_can_hold() {
        for (key, wanted) in
            [("A_1", true), ("_", true), ("1A", false), ("#A", false), ("A=B", false), ("", false)]
        {
            assert_eq!(is_identifier(key), wanted, "{key}");
        }
    }
}
