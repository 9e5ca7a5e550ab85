//! `[runners.docker]` of a Runner.

use toml::de::{DeTable, DeValue};

use super::{Report, services, sorted, text, texts};
use crate::config::edit::Value;

/// Keys that mean the same.
const CARRIED: [&str; 10] = [
    "image",
    "host",
    "volumes",
    "pull_policy",
    "allowed_images",
    "allowed_services",
    "allowed_pull_policies",
    "user",
    "allowed_users",
    "wait_for_services_timeout",
];

/// How a value becomes options of `docker create`.
#[derive(Clone, Copy)]
enum Form {
    /// A switch.
    Flag,
    /// One value.
    One,
    /// An option for each value.
    Many,
    /// An option for each `KEY=VALUE`.
    Map,
}

/// Options for the job's container.
const OPTIONS: [(&str, &str, Form); 29] = [
    ("privileged", "--privileged", Form::Flag),
    ("cap_add", "--cap-add", Form::Many),
    ("cap_drop", "--cap-drop", Form::Many),
    ("devices", "--device", Form::Many),
    ("device_cgroup_rules", "--device-cgroup-rule", Form::Many),
    ("gpus", "--gpus", Form::One),
    ("cpus", "--cpus", Form::One),
    ("cpuset_cpus", "--cpuset-cpus", Form::One),
    ("cpuset_mems", "--cpuset-mems", Form::One),
    ("cpu_shares", "--cpu-shares", Form::One),
    ("memory", "--memory", Form::One),
    ("memory_swap", "--memory-swap", Form::One),
    ("memory_reservation", "--memory-reservation", Form::One),
    ("oom_kill_disable", "--oom-kill-disable", Form::Flag),
    ("oom_score_adjust", "--oom-score-adj", Form::One),
    ("dns", "--dns", Form::Many),
    ("dns_search", "--dns-search", Form::Many),
    ("extra_hosts", "--add-host", Form::Many),
    ("hostname", "--hostname", Form::One),
    ("mac_address", "--mac-address", Form::One),
    ("runtime", "--runtime", Form::One),
    ("isolation", "--isolation", Form::One),
    ("security_opt", "--security-opt", Form::Many),
    ("shm_size", "--shm-size", Form::One),
    ("userns_mode", "--userns", Form::One),
    ("group_add", "--group-add", Form::Many),
    ("ulimit", "--ulimit", Form::Map),
    ("sysctls", "--sysctl", Form::Map),
    ("volume_driver", "--volume-driver", Form::One),
];

/// Options for containers of services.
const SERVICE_OPTIONS: [(&str, &str, Form); 8] = [
    ("services_privileged", "--privileged", Form::Flag),
    ("services_security_opt", "--security-opt", Form::Many),
    ("services_devices", "--device", Form::Many),
    ("service_cpus", "--cpus", Form::One),
    ("service_cpu_shares", "--cpu-shares", Form::One),
    ("service_memory", "--memory", Form::One),
    ("service_memory_swap", "--memory-swap", Form::One),
    ("service_gpus", "--gpus", Form::One),
];

/// Reads the table. Returns keys and values of `[runners.docker]`.
pub(super) fn read(table: &DeTable<'_>, report: &mut Report<'_>) -> Vec<(&'static str, Value)> {
    let mut values = Vec::new();
    let (mut create, mut service) = (Vec::new(), Vec::new());
    for (key, value, at) in sorted(table) {
        let name = format!("runners.docker.{key}");
        let option = |all: &'static [(&str, &str, Form)]| all.iter().find(|(known, ..)| *known == key);
        // 0 is the default there, and no wait here.
        if key == "wait_for_services_timeout" && super::is_empty(value) {
            report.rest(at, name, value, "");
        } else if let Some(known) = CARRIED.into_iter().find(|known| *known == key) {
            values.extend(report.carry(at, "runners.docker.", key, value).map(|value| (known, value)));
        } else if let Some((_, option, form)) = option(&OPTIONS) {
            take(option, *form, value, (at, name, "create_args"), &mut create, report);
        } else if let Some((_, option, form)) = option(&SERVICE_OPTIONS) {
            take(option, *form, value, (at, name, "service_args"), &mut service, report);
        } else {
            match (key, value) {
                ("network_mode", DeValue::String(mode)) => network(mode, at, name, &mut values, report),
                ("services", value) => values.extend(services("runners.docker.", value, at, report)),
                ("tls_verify" | "tls_cert_path", value) => {
                    report.rest(at, name, value, "set DOCKER_TLS_VERIFY and DOCKER_CERT_PATH for the agent");
                }
                ("helper_image" | "helper_image_flavor" | "helper_image_autoset_arch_and_os", value) => {
                    report.rest(at, name, value, "there is no helper container");
                }
                (_, value) => report.rest(at, name, value, "containers of jobs have no such setting"),
            }
        }
    }
    for (key, args) in [("create_args", create), ("service_args", service)] {
        if !args.is_empty() {
            values.push((key, Value::Texts(args)));
        }
    }
    values
}

/// Turns a value into options.
fn take(
    option: &str,
    form: Form,
    value: &DeValue<'_>,
    (at, name, target): (usize, String, &str),
    args: &mut Vec<String>,
    report: &mut Report<'_>,
) {
    if super::is_empty(value) {
        return report.rest(at, name, value, "");
    }
    let words = match form {
        Form::Flag => matches!(value, DeValue::Boolean(true)).then(|| vec![option.to_owned()]),
        Form::One => text(value).map(|value| vec![format!("{option}={value}")]),
        Form::Many => texts(value).map(|all| all.iter().map(|value| format!("{option}={value}")).collect()),
        Form::Map => match value {
            DeValue::Table(table) => sorted(table)
                .into_iter()
                .map(|(key, value, _)| Some(format!("{option}={key}={}", text(value)?)))
                .collect(),
            _ => None,
        },
    };
    match words {
        Some(words) => {
            report.changed(at, name, format!("`{option}` in `{target}`"));
            args.extend(words);
        }
        None => report.unsupported(at, name, "the value has another form than expected"),
    }
}

fn network(
    mode: &str,
    at: usize,
    name: String,
    values: &mut Vec<(&'static str, Value)>,
    report: &mut Report<'_>,
) {
    match mode {
        "" | "bridge" | "default" => report.changed(at, name, "`network = \"bridge\"`, the default"),
        "host" | "none" => {
            report.changed(at, name, format!("`network = \"shared\"`, `network_base = \"{mode}\"`"));
            values.push(("network", Value::Text("shared".to_owned())));
            values.push(("network_base", Value::Text(mode.to_owned())));
        }
        _ => report.unsupported(at, name, "jobs have a network of their own, or that of the host"),
    }
}
