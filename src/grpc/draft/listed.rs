//! Converts steps given as messages to the text of an equivalent `run` list.

use prost_types::value::Kind;
use serde_json::{Map, Value as Json, json};

use crate::model::{Reason, Refusal};
use crate::pb::v1::step::{Reference, reference::StepPath};
use crate::pb::v1::{Step, StepReferenceProtocol as Protocol};

/// Returns the list as JSON text.
pub(super) fn text(steps: Vec<Step>) -> Result<String, Refusal> {
    let steps: Result<Vec<Json>, Refusal> = steps
        .into_iter()
        .enumerate()
        .map(|(index, each)| {
            let refused = |what| {
                Refusal::new(Reason::MalformedSteps, format!("steps[{index}]: {what}"))
                    .about(format!("steps[{index}]"))
            };
            step(each).map_err(refused)
        })
        .collect();
    Ok(Json::Array(steps?).to_string())
}

fn step(step: Step) -> Result<Json, String> {
    let Step { name, step: reference, env, inputs } = step;
    let mut inputs: Map<String, Json> =
        inputs.into_iter().map(|(name, value)| (name, json_of(value))).collect();
    let mut object = Map::from_iter([("name".to_owned(), Json::from(name))]);
    match func(reference.unwrap_or_default())? {
        Some(func) => drop(object.insert("func".into(), func)),
        // A script has no function; results show it as an input.
        None => match inputs.remove("script") {
            Some(script) => drop(object.insert("script".into(), script)),
            None => return Err("it names no function and has no script".into()),
        },
    }
    if !inputs.is_empty() {
        object.insert("inputs".into(), inputs.into());
    }
    if !env.is_empty() {
        object.insert("env".into(), env.into_iter().map(|(k, v)| (k, Json::from(v))).collect());
    }
    Ok(object.into())
}

/// Returns the value of `func`, or `None` if the reference names no function (language.md §7).
#[expect(deprecated, reason = "clients of a first draft may send what was dropped later")]
fn func(reference: Reference) -> Result<Option<Json>, String> {
    let Reference { protocol, url, path, filename, version, registry, repository, tag, spec_def, step_path } =
        reference;
    let dir = match step_path {
        None => path.join("/"),
        Some(StepPath::Paths(paths)) => paths.parts.join("/"),
        Some(StepPath::PathExp(expression)) => expression,
    };
    let protocol = Protocol::try_from(protocol).map_err(|_| "the protocol of its reference is unknown")?;
    let file_or_none = |mut object: Map<String, Json>| {
        for (key, text) in [("dir", &dir), ("file", &filename)] {
            if !text.is_empty() {
                object.insert(key.into(), text.as_str().into());
            }
        }
        Json::from(object)
    };
    let pairs = |pairs: [(&str, String); 3]| {
        pairs.into_iter().map(|(key, text)| (key.to_owned(), Json::from(text))).collect::<Map<_, _>>()
    };
    Ok(Some(match protocol {
        Protocol::SpecDef => return Err("a function inside of the request is not supported".into()),
        _ if spec_def.is_some() => return Err("a function inside of the request is not supported".into()),
        Protocol::Zip => return Err("functions in zip archives are not supported".into()),
        Protocol::Git => {
            let git = [("url", url), ("rev", version)];
            let git = git.into_iter().map(|(key, text)| (key.to_owned(), Json::from(text))).collect();
            json!({"git": file_or_none(git)})
        }
        Protocol::Oci => {
            let oci = pairs([("registry", registry), ("repository", repository), ("tag", tag)]);
            json!({"oci": file_or_none(oci)})
        }
        Protocol::Dist => format!("dist://{}", if dir.is_empty() { &url } else { &dir }).into(),
        Protocol::Local => local(if dir.is_empty() { &url } else { &dir }, &filename).into(),
        Protocol::Dynamic => (if dir.is_empty() { url } else { dir }).into(),
        Protocol::Unspecified if !url.is_empty() => url.into(),
        Protocol::Unspecified if !dir.is_empty() => local(&dir, &filename).into(),
        Protocol::Unspecified => return Ok(None),
    }))
}

/// Makes a path that can be recognized as one.
fn local(dir: &str, file: &str) -> String {
    let start = if dir.starts_with(['.', '/']) { "" } else { "./" };
    let separator = if file.is_empty() { "" } else { "/" };
    format!("{start}{dir}{separator}{file}")
}

/// The decoder limits the nesting of messages to 100, so this recursion is bounded.
fn json_of(value: prost_types::Value) -> Json {
    match value.kind {
        None | Some(Kind::NullValue(_)) => Json::Null,
        Some(Kind::BoolValue(value)) => value.into(),
        Some(Kind::NumberValue(number)) => number.into(),
        Some(Kind::StringValue(text)) => text.into(),
        Some(Kind::ListValue(list)) => list.values.into_iter().map(json_of).collect(),
        Some(Kind::StructValue(object)) => {
            object.fields.into_iter().map(|(name, value)| (name, json_of(value))).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pb::v1::PathParts;

    fn func_of(reference: Reference) -> Result<Json, String> {
        let one = Step { name: "s".into(), step: Some(reference), ..Step::default() };
        step(one).map(|step| step["func"].clone())
    }

    #[test]
    fn references_of_every_kind_get_their_form() {
        let paths = |parts: &[&str]| {
            let parts = parts.iter().map(|&part| part.to_owned()).collect();
            Some(StepPath::Paths(PathParts { parts }))
        };
        let local = Reference {
            protocol: Protocol::Local.into(),
            step_path: paths(&["a", "b"]),
            ..Default::default()
        };
        assert_eq!(func_of(local.clone()).unwrap(), "./a/b");
        assert_eq!(func_of(Reference { filename: "my.yml".into(), ..local }).unwrap(), "./a/b/my.yml");
        let git = Reference {
            protocol: Protocol::Git.into(),
            url: "https://h/p".into(),
            version: "v1".into(),
            step_path: paths(&["d"]),
            ..Default::default()
        };
        assert_eq!(func_of(git).unwrap(), json!({"git": {"url": "https://h/p", "rev": "v1", "dir": "d"}}));
        let oci = Reference {
            protocol: Protocol::Oci.into(),
            registry: "r:1".into(),
            repository: "p".into(),
            tag: "t".into(),
            filename: "f.yml".into(),
            ..Default::default()
        };
        let expected = json!({"oci": {"registry": "r:1", "repository": "p", "tag": "t", "file": "f.yml"}});
        assert_eq!(func_of(oci).unwrap(), expected);
        let dist = Reference {
            protocol: Protocol::Dist.into(),
            step_path: paths(&["step", "oci"]),
            ..Default::default()
        };
        assert_eq!(func_of(dist).unwrap(), "dist://step/oci");
        let plain = Reference { url: "./x".into(), ..Default::default() };
        assert_eq!(func_of(plain).unwrap(), "./x");
    }

    #[test]
    fn a_script_is_its_input() {
        let script = prost_types::Value { kind: Some(Kind::StringValue("echo".into())) };
        let one = Step { name: "s".into(), inputs: [("script".into(), script)].into(), ..Step::default() };
        assert_eq!(text(vec![one]).unwrap(), r#"[{"name":"s","script":"echo"}]"#);
    }

    #[test]
    fn what_cannot_be_run_is_named_with_its_place() {
        let zip = Reference { protocol: Protocol::Zip.into(), ..Default::default() };
        let unknown = Reference { protocol: 99, ..Default::default() };
        for reference in [Some(zip), Some(unknown), None] {
            let bad = Step { name: "s".into(), step: reference, ..Step::default() };
            let refusal = text(vec![bad]).unwrap_err();
            assert_eq!(refusal.reason, Reason::MalformedSteps);
            assert!(refusal.text.starts_with("steps[0]: "), "{refusal}");
        }
    }
}
