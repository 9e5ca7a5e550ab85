//! One entry of the file.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::read::{Problems, Table};
use crate::environment::{Address, ImagePolicy, PullPolicy, Rules, is_reference};
use crate::routing::Base;
use crate::scheduler::EntryLimits;
use crate::time::WallTime;
use crate::tokens::Token;

/// Longest trace, in KiB, without a setting.
const OUTPUT_LIMIT: i64 = 4_096;

/// Most KiB of a trace: what a server can take.
const MOST_OUTPUT: i64 = 4 << 20;

/// Time to wait for services without a setting.
const WAIT_FOR_SERVICES: Duration = Duration::from_secs(30);

/// An entry: a runner at a server, and where its jobs run.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Name, for people.
    pub name: String,
    /// Address of the instance.
    pub url: Base,
    /// Token of the runner.
    pub token: Token,
    /// Number of the runner at the server.
    pub id: Option<u64>,
    /// Time at which the token was obtained.
    pub token_obtained_at: Option<WallTime>,
    /// Time at which it expires.
    pub token_expires_at: Option<WallTime>,
    /// True if the token is replaced at three quarters of its life.
    pub rotate: bool,
    /// Bounds for the scheduler.
    pub limits: EntryLimits,
    /// Where its jobs run.
    pub address: Address,
    /// What becomes of images that it cannot provide.
    pub image_policy: ImagePolicy,
    /// Folder for sources; `None`: the default of the place.
    pub builds_dir: Option<String>,
    /// Folder for caches; `None`: the default of the place.
    pub cache_dir: Option<String>,
    /// Longest trace in bytes.
    pub output_limit: u64,
    /// Variables of each job.
    pub environment: Vec<(String, String)>,
    /// Scripts around those of the jobs.
    pub scripts: Scripts,
    /// Address for `git` instead of the server's.
    pub clone_url: Option<String>,
    /// Certificates to trust besides the system's.
    pub tls_ca_file: Option<String>,
    /// Certificate of this client.
    pub tls_cert_file: Option<String>,
    /// Its key.
    pub tls_key_file: Option<String>,
    /// Time for a preparation.
    pub prepare_timeout: Duration,
    /// Labels for the server.
    pub labels: Vec<(String, String)>,
    /// Hosts that a call with a token may be redirected to.
    pub allowed_redirect_hosts: Vec<String>,
    /// True to refuse an agent and a daemon of one user.
    pub require_separate_user: bool,
    /// Settings for `docker-run://`.
    pub docker: Docker,
    /// Settings for `kube-run://`.
    pub kubernetes: Kubernetes,
}

impl Entry {
    /// Returns when the token is to be replaced: at three quarters of its life. `None`: never.
    pub fn rotates_at(&self) -> Option<WallTime> {
        let (from, to) = (self.token_obtained_at?, self.token_expires_at?);
        let life = to.0.checked_sub(from.0)?;
        self.rotate.then_some(WallTime(from.0 + life / 4 * 3))
    }
}

/// Scripts of an entry, run with those of each job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scripts {
    /// Before the sources come.
    pub pre_get_sources: Option<String>,
    /// After it.
    pub post_get_sources: Option<String>,
    /// Before each script of the user.
    pub pre_build: Option<String>,
    /// After it.
    pub post_build: Option<String>,
}

/// A service of the entry, for each job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryService {
    /// Image.
    pub name: String,
    /// Aliases.
    pub alias: Option<String>,
}

/// Settings for containers. They stand in the records of jobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Docker {
    /// Rules for images.
    pub rules: Rules,
    /// Services of each job.
    pub services: Vec<EntryService>,
    /// Address of the engine.
    pub host: Option<String>,
    /// Volumes.
    pub volumes: Vec<String>,
    /// True if all containers of a job share one network namespace.
    pub is_shared: bool,
    /// Network of that namespace.
    pub network_base: Option<String>,
    /// Options for the job's container.
    pub create_args: Vec<String>,
    /// Options for containers of services.
    pub service_args: Vec<String>,
    /// File with logins for registries.
    pub auth_file: Option<String>,
    /// Time to wait for services; `None`: no wait.
    pub wait_for_services: Option<Duration>,
}

impl Default for Docker {
    fn default() -> Self {
        Self {
            rules: Rules::default(),
            services: Vec::new(),
            host: None,
            volumes: Vec::new(),
            is_shared: false,
            network_base: None,
            create_args: Vec::new(),
            service_args: Vec::new(),
            auth_file: None,
            wait_for_services: Some(WAIT_FOR_SERVICES),
        }
    }
}

/// Settings for Pods. They stand in the records of jobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kubernetes {
    /// Rules for images.
    pub rules: Rules,
    /// Services of each job.
    pub services: Vec<EntryService>,
    /// Image that has this program.
    pub program_image: Option<String>,
    /// File with the template of the Pod.
    pub pod_template: Option<String>,
    /// File with logins for registries.
    pub auth_file: Option<String>,
    /// Time to wait for services; `None`: no wait.
    pub wait_for_services: Option<Duration>,
    /// Most that jobs may choose, by the key of the file.
    pub overwrites: Vec<(String, String)>,
}

impl Default for Kubernetes {
    fn default() -> Self {
        Self {
            rules: Rules::default(),
            services: Vec::new(),
            program_image: None,
            pod_template: None,
            auth_file: None,
            wait_for_services: Some(WAIT_FOR_SERVICES),
            overwrites: Vec::new(),
        }
    }
}

/// Keys for the most that jobs may choose.
const OVERWRITES: [&str; 4] = [
    "cpu_request_overwrite_max_allowed",
    "cpu_limit_overwrite_max_allowed",
    "memory_request_overwrite_max_allowed",
    "memory_limit_overwrite_max_allowed",
];

/// Reads an entry. `None`: it has no usable address or token.
pub(super) fn read(table: &mut Table<'_, '_>, problems: &mut Problems<'_>) -> Option<Entry> {
    let url = needed(table, problems, "url").and_then(|text| {
        Base::new(&text).map_err(|error| problems.error(table.place("url"), format!("url: {error}"))).ok()
    });
    let token = needed(table, problems, "token").and_then(|text| {
        Token::new(&text)
            .map_err(|error| problems.error(table.place("token"), format!("token: {error}")))
            .ok()
    });
    let limits = limits(table, problems);
    let address = table.full_text(problems, "address");
    let address = Address::parse(address.as_deref()).unwrap_or_else(|error| {
        problems.error(table.place("address"), format!("address: {error}"));
        Address::Own
    });
    let (docker, kubernetes) = (docker(table, problems), kubernetes(table, problems));
    for (key, is_there, is_used) in [
        ("docker", docker.is_some(), address == Address::DockerRun),
        ("kubernetes", kubernetes.is_some(), matches!(address, Address::KubeRun { .. })),
    ] {
        if is_there && !is_used {
            problems
                .warn(table.place(key), format!("`[runners.{key}]` has no effect: `address` is {address}"));
        }
    }
    let output = table.number(problems, "output_limit", 1, MOST_OUTPUT).unwrap_or(OUTPUT_LIMIT);
    let name = table.full_text(problems, "name");
    let policies = [("fail", ImagePolicy::Fail), ("ignore", ImagePolicy::Ignore)];
    let id =
        table.number(problems, "id", 0, i64::MAX).filter(|id| *id > 0).and_then(|id| u64::try_from(id).ok());
    let scripts = Scripts {
        pre_get_sources: table.full_text(problems, "pre_get_sources_script"),
        post_get_sources: table.full_text(problems, "post_get_sources_script"),
        pre_build: table.full_text(problems, "pre_build_script"),
        post_build: table.full_text(problems, "post_build_script"),
    };
    let rest = (
        table.date(problems, "token_obtained_at"),
        table.date(problems, "token_expires_at"),
        table.boolean(problems, "rotate").unwrap_or(true),
        table.word(problems, "image_policy", &policies).unwrap_or_default(),
        environment(table, problems),
    );
    let files = ["tls-ca-file", "tls-cert-file", "tls-key-file"].map(|key| table.full_text(problems, key));
    let [tls_ca_file, tls_cert_file, tls_key_file] = files;
    if tls_cert_file.is_some() != tls_key_file.is_some() {
        problems.error(table.at, "`tls-cert-file` and `tls-key-file` belong together: give both or none");
    }
    let folders = ["builds_dir", "cache_dir", "clone_url"].map(|key| table.full_text(problems, key));
    let [builds_dir, cache_dir, clone_url] = folders;
    let prepare_timeout = table.duration(problems, "prepare_timeout").unwrap_or(Duration::from_mins(10));
    let labels = table.text_map(problems, "labels");
    let allowed_redirect_hosts = table.texts(problems, "allowed_redirect_hosts");
    let require_separate_user = table.boolean(problems, "require_separate_user").unwrap_or_default();
    table.finish(problems);
    let (token_obtained_at, token_expires_at, rotate, image_policy, environment) = rest;
    let (url, token) = (url?, token?);
    Some(Entry {
        name: name.unwrap_or_else(|| url.to_string()),
        url,
        token,
        id,
        token_obtained_at,
        token_expires_at,
        rotate,
        limits,
        address,
        image_policy,
        builds_dir,
        cache_dir,
        output_limit: u64::try_from(output).unwrap_or_default() << 10,
        environment,
        scripts,
        clone_url,
        tls_ca_file,
        tls_cert_file,
        tls_key_file,
        prepare_timeout,
        labels,
        allowed_redirect_hosts,
        require_separate_user,
        docker: docker.unwrap_or_default(),
        kubernetes: kubernetes.unwrap_or_default(),
    })
}

fn needed(table: &mut Table<'_, '_>, problems: &mut Problems<'_>, key: &'static str) -> Option<String> {
    let before = problems.count();
    let found = table.full_text(problems, key);
    if found.is_none() && problems.count() == before {
        problems
            .error(table.place(key), format!("the entry has no `{key}`: `register` writes whole entries"));
    }
    found
}

fn limits(table: &mut Table<'_, '_>, problems: &mut Problems<'_>) -> EntryLimits {
    let mut count = |key, default| {
        let number = table.number(problems, key, 0, 1_000_000).unwrap_or(default);
        usize::try_from(if number == 0 { default } else { number }).unwrap_or(usize::MAX)
    };
    // 0 is the default for all of them, as in a Runner's file.
    let (limit, request_concurrency, refusals) =
        (count("limit", 0), count("request_concurrency", 1), count("unhealthy_requests_limit", 3));
    EntryLimits {
        limit: (limit > 0).then_some(limit),
        request_concurrency,
        unhealthy_requests_limit: u32::try_from(refusals).unwrap_or(u32::MAX),
        strict_check_interval: table.boolean(problems, "strict_check_interval").unwrap_or_default(),
        unhealthy_interval: table.duration(problems, "unhealthy_interval").unwrap_or(Duration::from_hours(1)),
    }
}

fn environment(table: &mut Table<'_, '_>, problems: &mut Problems<'_>) -> Vec<(String, String)> {
    let at = table.place("environment");
    let texts = table.texts(problems, "environment");
    let pairs = texts.into_iter().filter_map(|text| {
        let pair = text.split_once('=').filter(|(key, _)| !key.is_empty());
        if pair.is_none() {
            problems.error(at, "environment: expected texts of the form `NAME=VALUE`");
        }
        pair.map(|(key, value)| (key.to_owned(), value.to_owned()))
    });
    pairs.collect()
}

fn rules(table: &mut Table<'_, '_>, problems: &mut Problems<'_>) -> Rules {
    let image = table.full_text(problems, "image");
    if image.as_deref().is_some_and(|image| !is_reference(image)) {
        problems.error(table.place("image"), "image: expected a reference such as `alpine:3`");
    }
    Rules {
        image,
        allowed_images: table.texts(problems, "allowed_images"),
        allowed_services: table.texts(problems, "allowed_services"),
        pull_policies: policies(table, problems, "pull_policy"),
        allowed_pull_policies: policies(table, problems, "allowed_pull_policies"),
        user: table.full_text(problems, "user"),
        allowed_users: table.texts(problems, "allowed_users"),
    }
}

fn policies(table: &mut Table<'_, '_>, problems: &mut Problems<'_>, key: &'static str) -> Vec<PullPolicy> {
    let at = table.place(key);
    let words = table.texts(problems, key);
    let found: Vec<_> = words.iter().filter_map(|word| PullPolicy::parse(word)).collect();
    if found.len() < words.len() {
        problems.error(at, format!("{key}: expected `always`, `if-not-present`, `never`, or a list of them"));
    }
    found
}

fn services(table: &mut Table<'_, '_>, problems: &mut Problems<'_>) -> Vec<EntryService> {
    let tables = table.tables(problems, "services");
    let read = tables.into_iter().filter_map(|mut table| {
        let name = table.full_text(problems, "name").filter(|name| is_reference(name));
        if name.is_none() {
            problems.error(table.at, "services: expected `name` with a reference such as `postgres:16`");
        }
        let alias = table.full_text(problems, "alias");
        table.finish(problems);
        name.map(|name| EntryService { name, alias })
    });
    read.collect()
}

fn docker(entry: &mut Table<'_, '_>, problems: &mut Problems<'_>) -> Option<Docker> {
    let mut table = entry.table(problems, "docker", "docker.")?;
    let docker = Docker {
        rules: rules(&mut table, problems),
        services: services(&mut table, problems),
        host: table.full_text(problems, "host"),
        volumes: table.texts(problems, "volumes"),
        is_shared: table
            .word(problems, "network", &[("bridge", false), ("shared", true)])
            .unwrap_or_default(),
        network_base: table
            .word(problems, "network_base", &[("bridge", "bridge"), ("none", "none"), ("host", "host")])
            .map(str::to_owned),
        create_args: table.texts(problems, "create_args"),
        service_args: table.texts(problems, "service_args"),
        auth_file: table.full_text(problems, "auth_file"),
        wait_for_services: table.limit(problems, "wait_for_services_timeout", WAIT_FOR_SERVICES),
    };
    table.finish(problems);
    Some(docker)
}

fn kubernetes(entry: &mut Table<'_, '_>, problems: &mut Problems<'_>) -> Option<Kubernetes> {
    let mut table = entry.table(problems, "kubernetes", "kubernetes.")?;
    let mut overwrites = Vec::new();
    for key in OVERWRITES {
        overwrites.extend(table.full_text(problems, key).map(|most| (key.to_owned(), most)));
    }
    let kubernetes = Kubernetes {
        rules: rules(&mut table, problems),
        services: services(&mut table, problems),
        program_image: table.full_text(problems, "program_image"),
        pod_template: table.full_text(problems, "pod_template"),
        auth_file: table.full_text(problems, "auth_file"),
        wait_for_services: table.limit(problems, "wait_for_services_timeout", WAIT_FOR_SERVICES),
        overwrites,
    };
    table.finish(problems);
    Some(kubernetes)
}
