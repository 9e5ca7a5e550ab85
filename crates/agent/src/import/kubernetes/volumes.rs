//! `[[runners.kubernetes.volumes.*]]`: volumes of the Pod, and where they are mounted.

use serde_json::{Value as Json, json};
use toml::de::{DeTable, DeValue};

use super::super::{Report, get, get_text, sorted};
use super::Template;

/// Keys that are understood: those of all kinds.
const KNOWN: [&str; 6] = ["name", "mount_path", "sub_path", "read_only", "host_path", "medium"];

/// Reads all volumes.
pub(super) fn read(table: &DeTable<'_>, template: &mut Template, report: &mut Report<'_>) {
    for (kind, value, at) in sorted(table) {
        let key = format!("runners.kubernetes.volumes.{kind}");
        let DeValue::Array(items) = value else {
            report.unsupported(at, key, "the value has another form than expected");
            continue;
        };
        for item in items {
            let at = item.span().start;
            let added = match item.get_ref() {
                DeValue::Table(volume) => add(kind, volume, template),
                _ => None,
            };
            match added {
                Some(()) => report.changed(at, key.clone(), "part of the Pod template"),
                None => report.unsupported(at, key.clone(), "write the volume into the Pod template"),
            }
        }
    }
}

/// Adds a volume and its mount, if all of it is understood.
fn add(kind: &str, volume: &DeTable<'_>, template: &mut Template) -> Option<()> {
    if sorted(volume).iter().any(|(key, ..)| !KNOWN.contains(key)) {
        return None;
    }
    let (name, path) = (get_text(volume, "name")?, get_text(volume, "mount_path")?);
    let source = match kind {
        "empty_dir" => {
            let medium = get_text(volume, "medium");
            json!({"emptyDir": medium.map_or_else(|| json!({}), |medium| json!({"medium": medium}))})
        }
        "host_path" => {
            json!({"hostPath": {"path": get_text(volume, "host_path").unwrap_or_else(|| path.clone())}})
        }
        "pvc" => json!({"persistentVolumeClaim": {"claimName": name}}),
        "config_map" => json!({"configMap": {"name": name}}),
        "secret" => json!({"secret": {"secretName": name}}),
        _ => return None,
    };
    let mut mount = json!({"name": name, "mountPath": path});
    if let Some(sub) = get_text(volume, "sub_path") {
        mount.as_object_mut()?.insert("subPath".to_owned(), sub.into());
    }
    if matches!(get(volume, "read_only"), Some(DeValue::Boolean(true))) {
        mount.as_object_mut()?.insert("readOnly".to_owned(), true.into());
    }
    let mut whole = source;
    whole.as_object_mut()?.insert("name".to_owned(), name.into());
    push(template.spec.entry("volumes").or_insert_with(|| json!([])), whole);
    push(template.build.entry("volumeMounts").or_insert_with(|| json!([])), mount);
    Some(())
}

fn push(list: &mut Json, item: Json) {
    if let Some(list) = list.as_array_mut() {
        list.push(item);
    }
}
