//! The Pod of a job: the operator's template, filled with what the job asks for (agent.md §8.6).

use std::time::Duration;

use serde_json::{Map as JsonMap, Value as Json, json};

use super::BUILD;
use super::template::Template;
use crate::container::{FOLDER, PROGRAM, RUN};
use crate::wanted::{Container, Service, Wanted};
use step_runner_agent::environment::{PullPolicy, labels};

/// Longest name of a host in a Pod.
const LONGEST_HOST: usize = 253;

/// Time for the containers to end before they are killed, if the template says none.
const GRACE: u64 = 10;

/// Annotations that keep what makes clusters smaller from ending a Pod with a job.
const STAYS: [(&str, &str); 2] =
    [("cluster-autoscaler.kubernetes.io/safe-to-evict", "false"), ("karpenter.sh/do-not-disrupt", "true")];

/// Volumes of each Pod.
const OWN_VOLUMES: [&str; 4] = ["program", "run", "builds", "cache"];

/// The parts of a Pod.
pub(super) struct Plan<'p> {
    /// Name of Pod and Secret.
    pub(super) name: &'p str,
    /// Id of the state folder.
    pub(super) state: &'p str,
    pub(super) job: u64,
    pub(super) wanted: &'p Wanted,
    pub(super) template: &'p Template,
    pub(super) program_image: &'p str,
    /// Longest life.
    pub(super) lifetime: Duration,
    /// Words for the daemon.
    pub(super) serve: Vec<String>,
    /// Variable with the same words.
    pub(super) spare: (&'static str, String),
    /// Number of the pull policy to go by.
    pub(super) policy: usize,
    /// True if the entry names no pull policy: that of the template counts.
    pub(super) has_default_policy: bool,
    /// True if there are logins for registries.
    pub(super) has_logins: bool,
}

impl Plan<'_> {
    /// Returns the Pod. The error is what the job asks for in vain.
    pub(super) fn pod(&self) -> Result<Json, String> {
        let mut spec = self.template.spec.clone();
        let mut containers = vec![self.build()?];
        for (number, service) in self.wanted.services.iter().enumerate() {
            containers.push(self.service(number, service)?);
        }
        spec.insert("containers".to_owned(), containers.into());
        let first = std::iter::once(self.program());
        let others = spec.remove("initContainers").map(items).unwrap_or_default();
        spec.insert("initContainers".to_owned(), first.chain(others).collect());
        let ours = OWN_VOLUMES.map(|name| json!({"name": format!("step-runner-{name}"), "emptyDir": {}}));
        append(&mut spec, "volumes", ours.to_vec());
        let aliases = self.aliases();
        if !aliases.is_empty() {
            append(&mut spec, "hostAliases", vec![json!({"ip": "127.0.0.1", "hostnames": aliases})]);
        }
        if self.has_logins {
            append(&mut spec, "imagePullSecrets", vec![json!({"name": self.name})]);
        }
        spec.insert("restartPolicy".to_owned(), "Never".into());
        spec.insert("activeDeadlineSeconds".to_owned(), self.lifetime.as_secs().into());
        for (key, value) in [
            ("automountServiceAccountToken", json!(false)),
            ("enableServiceLinks", json!(false)),
            ("terminationGracePeriodSeconds", json!(GRACE)),
        ] {
            spec.entry(key).or_insert(value);
        }
        Ok(json!({"apiVersion": "v1", "kind": "Pod", "metadata": self.metadata(), "spec": spec}))
    }

    fn metadata(&self) -> JsonMap<String, Json> {
        let mut metadata = self.template.metadata.clone();
        for key in ["namespace", "generateName"] {
            metadata.remove(key);
        }
        metadata.insert("name".to_owned(), self.name.into());
        let mut annotations = metadata.remove("annotations").and_then(table).unwrap_or_default();
        for (key, value) in STAYS {
            annotations.entry(key).or_insert_with(|| value.into());
        }
        metadata.insert("annotations".to_owned(), annotations.into());
        let mut all = metadata.remove("labels").and_then(table).unwrap_or_default();
        let ours = labels(self.state, self.job, BUILD).into_iter();
        all.extend(ours.map(|(key, value)| (key.to_owned(), value.into())));
        metadata.insert("labels".to_owned(), all.into());
        metadata
    }

    /// Returns the container that brings the program.
    fn program(&self) -> Json {
        let mut container = self.template.container("program");
        container.insert("name".to_owned(), "program".into());
        container.insert("image".to_owned(), self.program_image.into());
        container.insert("args".to_owned(), json!(["bootstrap", FOLDER]));
        let mounts = vec![mount("program", FOLDER, false), mount("run", RUN, false)];
        append(&mut container, "volumeMounts", mounts);
        container.into()
    }

    /// Returns the container of the job.
    fn build(&self) -> Result<Json, String> {
        let command = std::iter::once(PROGRAM.to_owned()).chain(self.serve.iter().cloned()).collect();
        let mut container = self.container(BUILD, BUILD, &self.wanted.build, command)?;
        let (key, value) = &self.spare;
        append(&mut container, "env", vec![json!({"name": key, "value": value})]);
        let free = self.own_volumes(&container);
        let mounts = free.into_iter().map(|(name, folder)| mount(name, folder, name == "program")).collect();
        append(&mut container, "volumeMounts", mounts);
        for ([kind, what], amount) in &self.wanted.amounts {
            let resources = container.entry("resources").or_insert_with(|| json!({}));
            resources[*kind][*what] = amount.as_str().into();
        }
        Ok(container.into())
    }

    fn service(&self, number: usize, service: &Service) -> Result<Json, String> {
        let name = format!("svc-{number}");
        let command = service.command.clone();
        let mut container = self.container("service", &name, &service.container, command)?;
        let variables = service.variables.iter();
        let variables = variables.map(|(key, value)| json!({"name": key, "value": plain(value)})).collect();
        append(&mut container, "env", variables);
        let free = self.own_volumes(&container).into_iter().filter(|(name, _)| *name == "builds");
        let mounts = free.map(|(name, folder)| mount(name, folder, false)).collect();
        append(&mut container, "volumeMounts", mounts);
        Ok(container.into())
    }

    /// Returns a container with image, user and command, beginning with that of the template.
    fn container(
        &self,
        of_template: &str,
        name: &str,
        wanted: &Container,
        command: Vec<String>,
    ) -> Result<JsonMap<String, Json>, String> {
        let mut container = self.template.container(of_template);
        container.insert("name".to_owned(), name.into());
        container.insert("image".to_owned(), wanted.image.as_str().into());
        let policy = wanted.policies.get(self.policy).or_else(|| wanted.policies.last());
        let is_of_template = self.has_default_policy
            && wanted.policies == [PullPolicy::Always]
            && container.contains_key("imagePullPolicy");
        if let Some(policy) = policy.filter(|_| !is_of_template) {
            container.insert("imagePullPolicy".to_owned(), word(*policy).into());
        }
        let entrypoint = wanted.entrypoint.clone().unwrap_or_default();
        let is_none = entrypoint.first().is_some_and(String::is_empty);
        // What a template's container would start is another program's.
        for (key, words) in match (is_none, entrypoint.is_empty()) {
            (true, _) => [
                ("command", [entrypoint.get(1..).unwrap_or_default(), &command].concat()),
                ("args", Vec::new()),
            ],
            (false, false) => [("command", entrypoint), ("args", command)],
            (false, true) => [("command", Vec::new()), ("args", command)],
        } {
            container.remove(key);
            if !words.is_empty() {
                let words: Vec<String> = words.iter().map(|word| plain(word)).collect();
                container.insert(key.to_owned(), words.into());
            }
        }
        if let Some(user) = &wanted.user {
            let context = container.entry("securityContext").or_insert_with(|| json!({}));
            let (number, group) = user_numbers(user)?;
            context["runAsUser"] = number.into();
            if let Some(group) = group {
                context["runAsGroup"] = group.into();
            }
        }
        Ok(container)
    }

    /// Returns our volumes for a container, without those whose folder is one of the template's.
    fn own_volumes(&self, container: &JsonMap<String, Json>) -> Vec<(&'static str, &str)> {
        let of_template = container.get("volumeMounts").and_then(Json::as_array).into_iter().flatten();
        let taken: Vec<&str> = of_template
            .filter_map(|mount| Some(mount["mountPath"].as_str()?.trim_end_matches('/')))
            .collect();
        let folders = [FOLDER, RUN, &*self.wanted.builds_dir, &*self.wanted.cache_dir];
        let all = OWN_VOLUMES.into_iter().zip(folders);
        all.filter(|(_, folder)| !taken.contains(&folder.trim_end_matches('/'))).collect()
    }

    /// Returns the names of services that a host can have.
    fn aliases(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for alias in self.wanted.services.iter().flat_map(|service| &service.aliases) {
            let name = alias.to_ascii_lowercase();
            if is_host(&name) && !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }
}

/// True for a name that a Pod's file of hosts may have.
pub(super) fn is_host(name: &str) -> bool {
    let is_part = |part: &str| {
        !part.is_empty()
            && !part.starts_with('-')
            && !part.ends_with('-')
            && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
    };
    name.len() <= LONGEST_HOST && name.split('.').all(is_part)
}

/// Returns the Secret with logins for registries.
pub(super) fn secret(name: &str, state: &str, job: u64, logins: &Json) -> Json {
    let labels: JsonMap<String, Json> =
        labels(state, job, "logins").into_iter().map(|(key, value)| (key.to_owned(), value.into())).collect();
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "labels": labels},
        "type": "kubernetes.io/dockerconfigjson",
        "stringData": {".dockerconfigjson": json!({"auths": logins}).to_string()},
    })
}

/// Returns a text as the cluster has to be given it: it replaces `$(NAME)`.
fn plain(text: &str) -> String {
    text.replace('$', "$$")
}

fn mount(name: &str, folder: &str, is_read_only: bool) -> Json {
    let mut mount = json!({"name": format!("step-runner-{name}"), "mountPath": folder});
    if is_read_only {
        mount["readOnly"] = true.into();
    }
    mount
}

fn user_numbers(user: &str) -> Result<(u32, Option<u32>), String> {
    let wrong = || format!("the user {user} is none of a Pod: users there are numbers, UID or UID:GID");
    let number = |text: &str| text.parse().map_err(|_| wrong());
    match user.split_once(':') {
        None => Ok((number(user)?, None)),
        Some((user, group)) => Ok((number(user)?, Some(number(group)?))),
    }
}

const fn word(policy: PullPolicy) -> &'static str {
    match policy {
        PullPolicy::Always => "Always",
        PullPolicy::IfNotPresent => "IfNotPresent",
        PullPolicy::Never => "Never",
    }
}

fn items(value: Json) -> Vec<Json> {
    match value {
        Json::Array(items) => items,
        _ => Vec::new(),
    }
}

fn table(value: Json) -> Option<JsonMap<String, Json>> {
    match value {
        Json::Object(table) => Some(table),
        _ => None,
    }
}

/// Appends to a list, which is made if need be.
fn append(table: &mut JsonMap<String, Json>, key: &str, more: Vec<Json>) {
    let mut list = table.remove(key).map(items).unwrap_or_default();
    list.extend(more);
    if !list.is_empty() {
        table.insert(key.to_owned(), list.into());
    }
}

#[cfg(test)]
mod tests;
