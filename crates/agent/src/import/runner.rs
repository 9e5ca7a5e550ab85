//! One `[[runners]]` of a Runner.

use toml::de::{DeTable, DeValue};

use super::{NewEntry, Report, docker, get_text, kubernetes, sorted, texts};
use crate::config::edit::Value;

/// Keys that mean the same.
const CARRIED: [&str; 22] = [
    "name",
    "url",
    "token",
    "id",
    "token_obtained_at",
    "token_expires_at",
    "limit",
    "request_concurrency",
    "strict_check_interval",
    "unhealthy_requests_limit",
    "unhealthy_interval",
    "builds_dir",
    "cache_dir",
    "output_limit",
    "pre_get_sources_script",
    "post_get_sources_script",
    "pre_build_script",
    "post_build_script",
    "clone_url",
    "tls-ca-file",
    "tls-cert-file",
    "tls-key-file",
];

/// Older names of keys.
const RENAMED: [(&str, &str); 2] =
    [("pre_clone_script", "pre_get_sources_script"), ("post_clone_script", "post_get_sources_script")];

/// The switches of a Runner that work here.
const SWITCHES: [&str; 2] = ["FF_ENABLE_BASH_EXIT_CODE_CHECK", "FF_TIMESTAMPS"];

/// Reads an entry. `None`: its executor has no counterpart, and nothing is written for it.
pub(super) fn read(table: &DeTable<'_>, header: usize, report: &mut Report<'_>) -> Option<NewEntry> {
    let executor = get_text(table, "executor").unwrap_or_else(|| "shell".to_owned());
    let place = |key: &str| {
        table.iter().find(|(name, _)| *name.get_ref() == key).map_or(header, |(name, _)| name.span().start)
    };
    let mut entry = NewEntry::default();
    let is_written = match executor.as_str() {
        "shell" => shell(table, place("shell"), place("executor"), report),
        "docker" => {
            report.changed(place("executor"), "runners.executor".to_owned(), "`address = \"docker-run://\"`");
            entry.values.push(("address", Value::Text("docker-run://".to_owned())));
            true
        }
        "kubernetes" => kubernetes::address(table, place("executor"), &mut entry, report),
        "ssh" => ssh(table, place("executor"), &mut entry, report),
        "custom" => {
            let hint = "the entry is not written. If the driver only connects, write `address = \"cmd:…\"`";
            report.unsupported(place("executor"), "runners.executor".to_owned(), hint);
            false
        }
        _ => {
            let why = "the entry is not written: this executor has no counterpart";
            report.unsupported(place("executor"), "runners.executor".to_owned(), why);
            false
        }
    };
    if !is_written {
        return None;
    }
    for (key, value, at) in sorted(table) {
        known(key, value, at, &executor, &mut entry, report);
    }
    // The address is easier to find behind name and token.
    entry
        .values
        .sort_by_key(|(key, _)| CARRIED.iter().position(|known| known == key).unwrap_or(CARRIED.len()));
    Some(entry)
}

fn known(
    key: &str,
    value: &DeValue<'_>,
    at: usize,
    executor: &str,
    entry: &mut NewEntry,
    report: &mut Report<'_>,
) {
    let name = format!("runners.{key}");
    if let Some(known) = CARRIED.into_iter().find(|known| *known == key) {
        entry.values.extend(report.carry(at, "runners.", key, value).map(|value| (known, value)));
        return;
    }
    if let Some((_, new)) = RENAMED.into_iter().find(|(old, _)| *old == key) {
        if let Some(value) = super::to_value(value) {
            report.changed(at, name, format!("`{new}`"));
            entry.values.push((new, value));
        }
        return;
    }
    match (key, value) {
        ("executor" | "shell" | "ssh", _) => {}
        ("environment", value) => environment(value, at, entry, report),
        ("docker", DeValue::Table(table)) if executor == "docker" => {
            entry.tables.push(("docker", docker::read(table, report)));
        }
        ("kubernetes", DeValue::Table(table)) if executor == "kubernetes" => {
            kubernetes::read(table, entry, report);
        }
        ("cache", value) => {
            report.rest(at, name, value, "caches are local: remote ones are not read or written");
        }
        ("feature_flags", value) => {
            report.rest(at, name, value, "only FF_TIMESTAMPS and FF_ENABLE_BASH_EXIT_CODE_CHECK have an effect: set them in `environment`");
        }
        ("job_status_final_update_retry_limit", value) => {
            report.rest(at, name, value, "a result is repeated for 24 hours");
        }
        (_, value) => report.rest(at, name, value, "the agent has no such setting"),
    }
}

/// Reads the shell of a machine. Returns true if its jobs can run here.
fn shell(table: &DeTable<'_>, at: usize, executor: usize, report: &mut Report<'_>) -> bool {
    let shell = get_text(table, "shell").unwrap_or_else(|| "bash".to_owned());
    if ["bash", "sh"].contains(&shell.as_str()) {
        report.changed(executor, "runners.executor".to_owned(), "jobs run in the agent's own daemon");
        if table.iter().any(|(name, _)| *name.get_ref() == "shell") {
            report.changed(at, "runners.shell".to_owned(), "the best shell of the machine is taken");
        }
        return true;
    }
    report.unsupported(
        at,
        "runners.shell".to_owned(),
        "the entry is not written: scripts are those of bash or sh",
    );
    false
}

/// Reads a machine behind SSH.
fn ssh(table: &DeTable<'_>, at: usize, entry: &mut NewEntry, report: &mut Report<'_>) -> bool {
    let found = super::get(table, "ssh");
    let Some(DeValue::Table(ssh)) = found else {
        report.unsupported(
            at,
            "runners.executor".to_owned(),
            "the entry is not written: it has no `[runners.ssh]`",
        );
        return false;
    };
    let host = get_text(ssh, "host").filter(|host| {
        !host.starts_with('-')
            && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-:[]".contains(&byte))
    });
    let Some(host) = host.filter(|_| get_text(ssh, "password").is_none()) else {
        let why = "the entry is not written: only a login by key to a named host can be taken over";
        report.unsupported(at, "runners.executor".to_owned(), why);
        return false;
    };
    let user = get_text(ssh, "user").map(|user| format!("{user}@")).unwrap_or_default();
    let port = get_text(ssh, "port").map(|port| format!(":{port}")).unwrap_or_default();
    let address = format!("ssh://{user}{host}{port}");
    report.changed(
        at,
        "runners.executor".to_owned(),
        format!("`address = \"{address}\"`: step-runner must be there"),
    );
    if get_text(ssh, "identity_file").is_some() {
        let at = ssh
            .iter()
            .find(|(name, _)| *name.get_ref() == "identity_file")
            .map_or(at, |(name, _)| name.span().start);
        report.unsupported(
            at,
            "runners.ssh.identity_file".to_owned(),
            "name the key in the configuration of ssh",
        );
    }
    entry.values.push(("address", Value::Text(address)));
    true
}

/// Takes variables over. Switches of a Runner have no effect here, but for one.
fn environment(value: &DeValue<'_>, at: usize, entry: &mut NewEntry, report: &mut Report<'_>) {
    let Some(all) = texts(value) else {
        return report.unsupported(
            at,
            "runners.environment".to_owned(),
            "the value has another form than expected",
        );
    };
    let is_switch = |text: &String| {
        let name = text.split('=').next().unwrap_or_default();
        name.starts_with("FF_") && !SWITCHES.contains(&name)
    };
    let (switches, kept): (Vec<String>, Vec<String>) = all.into_iter().partition(is_switch);
    if !kept.is_empty() || switches.is_empty() {
        report.add(at, "runners.environment".to_owned(), super::Fate::Carried);
        entry.values.push(("environment", Value::Texts(kept)));
    }
    for switch in switches {
        let name = switch.split('=').next().unwrap_or_default().to_owned();
        report.unsupported(at, format!("runners.environment {name}"), "the switch has no effect here");
    }
}
