//! Payloads as servers send them to a runner, with the plans that become of them (ci.md §2.1).
//!
//! `tests/payloads/NAME.txt` has the plan of `NAME.json`. `UPDATE_EXPECTED=1` renews it.
#![allow(clippy::unwrap_used, clippy::allow_attributes, reason = "a test")]

mod shown;

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use serde_json::{Value as Json, json};
use step_runner_ci::job::of_payload;
use step_runner_ci::plan::{Images, plan};

fn payloads() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/payloads");
    let paths = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|extension| extension == "json")).collect();
    paths.sort();
    paths
}

fn read(path: &Path) -> Json {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[test]
fn each_payload_gives_the_expected_plan() {
    let wrong: Vec<String> = payloads()
        .iter()
        .filter_map(|path| {
            let job = of_payload(&fs::read(path).unwrap()).unwrap();
            let planned = plan(&job, Images::Provided, None).unwrap();
            shown::compare(&path.with_extension("txt"), &shown::plan(&job, &planned))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn tokens_are_in_inputs_of_their_own_and_in_no_debug_output() {
    for path in payloads() {
        let payload = read(&path);
        let token = payload["token"].as_str().unwrap();
        let job = of_payload(payload.to_string().as_bytes()).unwrap();
        let planned = plan(&job, Images::Provided, None).unwrap();
        assert!(!planned.steps.contains(token) && !format!("{job:?} {planned:?}").contains(token));
        for (name, value) in &planned.inputs {
            let is_secret = planned.steps.contains(&format!("    {name}: {{type: string, sensitive: true}}"))
                || planned.steps.contains(&format!("    {name}: {{type: array, sensitive: true}}"));
            let is_script = name.starts_with("step_") || name == "after_script";
            assert!(is_secret || is_script || !value.to_string().contains("glcbt-"), "{name}");
        }
    }
}

#[test]
fn null_and_absent_fields_are_nothing() {
    let base = read(&payloads()[0]);
    let minimal = json!({"id": 1, "token": "t", "steps": [{"name": "script", "script": ["true"]}]});
    assert!(of_payload(minimal.to_string().as_bytes()).is_ok());
    for field in base.as_object().unwrap().keys() {
        let mut payload = base.clone();
        payload[field] = Json::Null;
        assert!(of_payload(payload.to_string().as_bytes()).is_ok(), "{field}");
        payload.as_object_mut().unwrap().remove(field);
        payload["unknown"] = json!([1]);
        assert!(of_payload(payload.to_string().as_bytes()).is_ok(), "{field}");
    }
}

#[test]
fn what_cannot_be_done_is_refused_without_a_quotation() {
    let run = json!([{"name": "a", "script": "echo secret-word"}]);
    let script = json!([{"name": "script", "script": ["secret-word"]}]);
    for (payload, part) in [
        (json!({"secrets": {"A": {"vault": {"path": "secret-word"}}}}), "\"secrets\""),
        (json!({"inputs": [{"key": "secret-word"}]}), "\"inputs\""),
        (json!({"run": run.to_string(), "steps": script}), "both"),
        (json!({"run": "secret-word"}), "no JSON"),
        (json!({"run": "{\"secret-word\": 1}"}), "no list"),
        (json!({"run": 5}), "no list"),
        (json!({"variables": "secret-word"}), "decoded"),
        (json!(["secret-word"]), "decoded"),
    ] {
        let error = of_payload(payload.to_string().as_bytes()).err().unwrap().to_string();
        assert!(error.contains(part) && !error.contains("secret-word"), "{payload}: {error}");
    }
    assert!(of_payload(b"").is_err() && of_payload(b"{\"steps\":").is_err());
    assert!(of_payload(json!({"run": run}).to_string().as_bytes()).is_ok());
}

#[test]
fn names_of_steps_become_names_of_the_document() {
    let steps: Vec<Json> = ["script", "a b", "a-b", "release: ${{ x }}\n", "after_script"]
        .map(|name| json!({"name": name, "script": ["true"]}))
        .to_vec();
    let job = of_payload(json!({"steps": steps}).to_string().as_bytes()).unwrap();
    let steps = plan(&job, Images::Provided, None).unwrap().steps;
    let names: Vec<&str> = steps.lines().filter_map(|line| line.strip_prefix("  - name: ")).collect();
    assert_eq!(names, ["step_script", "step_a_b", "step_a_b_2", "step_release______x____", "after_script"]);
}

proptest! {
    #[test]
    fn any_bytes_are_a_job_or_refused(bytes in any::<Vec<u8>>()) {
        drop(of_payload(&bytes));
    }

    #[test]
    fn variables_are_expanded_once(value in "[$A-B{}x ]{0,10}", other in "[$A-B{}x ]{0,10}") {
        let variables = json!({"variables": [
            {"key": "A", "value": value},
            {"key": "B", "value": other},
            {"key": "C", "value": value, "raw": true},
        ]});
        let job = of_payload(variables.to_string().as_bytes()).unwrap();
        prop_assert_eq!(job.variables.len(), 3);
        prop_assert_eq!(job.variables[2].value.replace("$$", "$"), value);
    }
}
