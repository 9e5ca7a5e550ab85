//! `[runners.kubernetes]` of a Runner: what shapes the Pod becomes a template.

mod volumes;

use serde_json::{Map as JsonMap, Value as Json, json};
use toml::de::{DeTable, DeValue};

use super::{NewEntry, Report, get, get_text, services, sorted, text, texts, to_value};
use crate::config::edit::Value;
use crate::environment::Address;

/// Keys that mean the same.
const CARRIED: [&str; 10] = [
    "image",
    "pull_policy",
    "allowed_images",
    "allowed_services",
    "allowed_pull_policies",
    "allowed_users",
    "cpu_request_overwrite_max_allowed",
    "cpu_limit_overwrite_max_allowed",
    "memory_request_overwrite_max_allowed",
    "memory_limit_overwrite_max_allowed",
];

/// Amounts: the key, the container, and the place in its resources.
const RESOURCES: [(&str, &str, &str, &str); 12] = [
    ("cpu_request", "build", "requests", "cpu"),
    ("cpu_limit", "build", "limits", "cpu"),
    ("memory_request", "build", "requests", "memory"),
    ("memory_limit", "build", "limits", "memory"),
    ("ephemeral_storage_request", "build", "requests", "ephemeral-storage"),
    ("ephemeral_storage_limit", "build", "limits", "ephemeral-storage"),
    ("service_cpu_request", "service", "requests", "cpu"),
    ("service_cpu_limit", "service", "limits", "cpu"),
    ("service_memory_request", "service", "requests", "memory"),
    ("service_memory_limit", "service", "limits", "memory"),
    ("service_ephemeral_storage_request", "service", "requests", "ephemeral-storage"),
    ("service_ephemeral_storage_limit", "service", "limits", "ephemeral-storage"),
];

/// Texts of the Pod.
const OF_SPEC: [(&str, &str); 5] = [
    ("service_account", "serviceAccountName"),
    ("priority_class_name", "priorityClassName"),
    ("runtime_class_name", "runtimeClassName"),
    ("scheduler_name", "schedulerName"),
    ("dns_policy", "dnsPolicy"),
];

/// Decides the address of an entry.
pub(super) fn address(table: &DeTable<'_>, at: usize, entry: &mut NewEntry, report: &mut Report<'_>) -> bool {
    let namespace = match get(table, "kubernetes") {
        Some(DeValue::Table(table)) => get_text(table, "namespace"),
        _ => None,
    };
    let address = format!("kube-run://{}", namespace.unwrap_or_else(|| "default".to_owned()));
    if Address::parse(Some(&address)).is_err() {
        report.unsupported(
            at,
            "runners.executor".to_owned(),
            "the entry is not written: its namespace is no name",
        );
        return false;
    }
    report.changed(at, "runners.executor".to_owned(), format!("`address = \"{address}\"`"));
    entry.values.push(("address", Value::Text(address)));
    true
}

/// Reads the table into an entry.
pub(super) fn read(table: &DeTable<'_>, entry: &mut NewEntry, report: &mut Report<'_>) {
    let mut values = Vec::new();
    let mut template = Template::default();
    for (key, value, at) in sorted(table) {
        let name = format!("runners.kubernetes.{key}");
        if let Some(known) = CARRIED.into_iter().find(|known| *known == key) {
            values.extend(report.carry(at, "runners.kubernetes.", key, value).map(|value| (known, value)));
            continue;
        }
        match (key, value) {
            ("namespace", _) => report.changed(at, name, "the namespace of `address`"),
            ("poll_timeout", DeValue::Integer(_)) if !super::is_empty(value) => {
                report.changed(at, name, "`prepare_timeout` of the entry");
                entry.values.extend(to_value(value).map(|value| ("prepare_timeout", value)));
            }
            ("helper_image" | "helper_image_flavor", value) => {
                report.rest(at, name, value, "there is no helper container");
            }
            _ if super::is_empty(value) => report.rest(at, name, value, ""),
            ("volumes", DeValue::Table(table)) => volumes::read(table, &mut template, report),
            _ if template.take(key, value) => report.changed(at, name, "part of the Pod template"),
            ("pod_spec", _) => report.unsupported(at, name, "patches are not applied: write a Pod template"),
            ("services", value) => values.extend(services("runners.kubernetes.", value, at, report)),
            ("host" | "cert_file" | "key_file" | "ca_file" | "bearer_token", _) => {
                report.unsupported(
                    at,
                    name,
                    "write a context of kubectl, and its name before `@` in `address`",
                );
            }
            _ => report.unsupported(at, name, "Pods of jobs have no such setting"),
        }
    }
    entry.tables.push(("kubernetes", values));
    entry.pod_template = template.finish();
}

/// A template of a Pod in the making.
#[derive(Default)]
struct Template {
    metadata: JsonMap<String, Json>,
    spec: JsonMap<String, Json>,
    build: JsonMap<String, Json>,
    service: JsonMap<String, Json>,
}

impl Template {
    /// Takes a key. Returns false for one that has no place in a template.
    fn take(&mut self, key: &str, value: &DeValue<'_>) -> bool {
        if let Some((_, container, kind, what)) = RESOURCES.iter().find(|(known, ..)| *known == key) {
            let container = if *container == "build" { &mut self.build } else { &mut self.service };
            let Some(amount) = text(value) else { return false };
            let resources = container.entry("resources").or_insert_with(|| json!({}));
            if let Some(place) = resources.as_object_mut() {
                let kind = place.entry(*kind).or_insert_with(|| json!({}));
                kind.as_object_mut().map(|kind| kind.insert((*what).to_owned(), amount.into()));
            }
            return true;
        }
        if let Some((_, field)) = OF_SPEC.iter().find(|(known, _)| *known == key) {
            return text(value).map(|text| self.spec.insert((*field).to_owned(), text.into())).is_some();
        }
        let found = match key {
            "node_selector" => map(value).map(|map| self.spec.insert("nodeSelector".to_owned(), map)),
            "pod_labels" => map(value).map(|map| self.metadata.insert("labels".to_owned(), map)),
            "pod_annotations" => map(value).map(|map| self.metadata.insert("annotations".to_owned(), map)),
            "image_pull_secrets" => texts(value).map(|names| {
                let names: Vec<Json> = names.into_iter().map(|name| json!({"name": name})).collect();
                self.spec.insert("imagePullSecrets".to_owned(), names.into())
            }),
            "node_tolerations" => {
                map(value).map(|map| self.spec.insert("tolerations".to_owned(), tolerations(&map)))
            }
            "privileged" => {
                Some(self.build.insert("securityContext".to_owned(), json!({"privileged": true})))
            }
            "pod_security_context" => {
                context(value).map(|map| self.spec.insert("securityContext".to_owned(), map))
            }
            "build_container_security_context" => {
                context(value).map(|map| self.build.insert("securityContext".to_owned(), map))
            }
            "termination_grace_period_seconds" | "pod_termination_grace_period_seconds" => number(value)
                .map(|seconds| self.spec.insert("terminationGracePeriodSeconds".to_owned(), seconds)),
            "automount_service_account_token" => {
                Some(self.spec.insert("automountServiceAccountToken".to_owned(), true.into()))
            }
            _ => None,
        };
        found.is_some()
    }

    fn finish(mut self) -> Option<Json> {
        let mut containers = Vec::new();
        for (name, mut container) in [("build", self.build), ("service", self.service)] {
            if !container.is_empty() {
                container.insert("name".to_owned(), name.into());
                containers.push(Json::Object(container));
            }
        }
        if !containers.is_empty() {
            self.spec.insert("containers".to_owned(), containers.into());
        }
        let is_something = !self.spec.is_empty() || !self.metadata.is_empty();
        is_something.then(|| {
            let mut pod = json!({"apiVersion": "v1", "kind": "Pod"});
            for (key, part) in [("metadata", self.metadata), ("spec", self.spec)] {
                if !part.is_empty()
                    && let Some(pod) = pod.as_object_mut()
                {
                    pod.insert(key.to_owned(), part.into());
                }
            }
            pod
        })
    }
}

/// Returns a table of texts.
fn map(value: &DeValue<'_>) -> Option<Json> {
    let DeValue::Table(table) = value else { return None };
    let pairs =
        sorted(table).into_iter().map(|(key, value, _)| Some((key.to_owned(), Json::from(text(value)?))));
    pairs.collect::<Option<JsonMap<_, _>>>().map(Json::Object)
}

fn number(value: &DeValue<'_>) -> Option<Json> {
    match to_value(value)? {
        Value::Number(number) => Some(number.into()),
        _ => None,
    }
}

/// Fields of security contexts.
const CONTEXT: [(&str, &str); 7] = [
    ("run_as_user", "runAsUser"),
    ("run_as_group", "runAsGroup"),
    ("fs_group", "fsGroup"),
    ("run_as_non_root", "runAsNonRoot"),
    ("privileged", "privileged"),
    ("read_only_root_filesystem", "readOnlyRootFilesystem"),
    ("allow_privilege_escalation", "allowPrivilegeEscalation"),
];

/// Returns a security context, if all of it is known.
fn context(value: &DeValue<'_>) -> Option<Json> {
    let DeValue::Table(table) = value else { return None };
    let mut found = JsonMap::new();
    for (key, value, _) in sorted(table) {
        let (_, field) = CONTEXT.iter().find(|(known, _)| *known == key)?;
        let value = match to_value(value)? {
            Value::Number(number) => number.into(),
            Value::Boolean(value) => value.into(),
            _ => return None,
        };
        found.insert((*field).to_owned(), value);
    }
    Some(Json::Object(found))
}

/// Returns tolerations: a Runner writes `KEY=VALUE` or `KEY`, and the effect.
fn tolerations(map: &Json) -> Json {
    let one = |(key, effect): (&String, &Json)| match key.split_once('=') {
        Some((key, value)) => json!({"key": key, "operator": "Equal", "value": value, "effect": effect}),
        None => json!({"key": key, "operator": "Exists", "effect": effect}),
    };
    map.as_object().into_iter().flatten().map(one).collect()
}
