//! Payloads as servers send them to a runner, with the plans that become of them (ci.md §2.1).
//!
//! `tests/payloads/NAME.txt` has the plan of `NAME.json`. `UPDATE_EXPECTED=1` renews it.
#![allow(clippy::unwrap_used, clippy::allow_attributes, reason = "a test")]

mod shown;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Value as Json, json};
use step_runner_ci::job::{Content, of_payload, secrets_of_payload};
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
    let broken = json!({"run": "[\n  {\"name\": s3cret}"}).to_string();
    let error = of_payload(broken.as_bytes()).err().unwrap().to_string();
    assert_eq!(error, "\"run\" of the job is no JSON: see its line 2, column 12");
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

fn job(payload: &Json) -> step_runner_ci::job::Job {
    of_payload(payload.to_string().as_bytes()).unwrap()
}

#[test]
fn secrets_are_all_that_is_masked() {
    let payload = json!({
        "token": "job-token",
        "variables": [
            {"key": "A", "value": "masked-value", "masked": true},
            {"key": "B", "value": "plain-value"},
            {"key": "C", "value": "", "masked": true},
        ],
        "dependencies": [{"token": "other-token"}, {"token": null}],
        "credentials": [{"password": "registry-password"}, {"password": ""}],
        "features": {"token_mask_prefixes": ["glpat-", ""]},
        "runner_info": {"timeout": 60},
    });
    let secrets = secrets_of_payload(payload.to_string().as_bytes()).unwrap();
    assert_eq!(secrets.phrases, ["job-token", "masked-value", "other-token", "registry-password"]);
    assert_eq!(
        (secrets.token_prefixes.as_slice(), secrets.timeout),
        (["glpat-".to_owned()].as_slice(), Some(Duration::from_mins(1)))
    );
    let shown = format!("{secrets:?}");
    assert!(shown.contains('4') && secrets.phrases.iter().all(|phrase| !shown.contains(phrase)), "{shown}");
    let job = job(&payload);
    assert_eq!(
        (job.phrases, job.token_prefixes),
        (vec!["registry-password".to_owned()], secrets.token_prefixes)
    );
    assert!(secrets_of_payload(b"secret").is_none());
}

#[test]
fn a_time_limit_that_is_none_is_two_hours() {
    for (seconds, of_job) in [(-1, 7_200), (0, 7_200), (1, 1), (3_600, 3_600)] {
        let payload = json!({"runner_info": {"timeout": seconds}});
        assert_eq!(job(&payload).timeout, Some(Duration::from_secs(of_job)), "{seconds}");
        let secrets = secrets_of_payload(payload.to_string().as_bytes()).unwrap();
        assert_eq!(
            secrets.timeout,
            u64::try_from(seconds).ok().filter(|_| seconds > 0).map(Duration::from_secs)
        );
    }
}

#[test]
fn what_runs_is_in_steps_or_in_run() {
    let names =
        |payload: Json| -> Vec<String> { job(&payload).work.into_iter().map(|work| work.name).collect() };
    let script = json!([
        {"name": "script", "script": ["a", null, "b"]},
        {"name": "empty", "script": []},
        {"name": "after_script", "script": ["c"]},
    ]);
    let found = job(&json!({"steps": script}));
    assert_eq!(
        (found.work.len(), &found.work[0].content),
        (1, &Content::Script(vec!["a".to_owned(), "b".to_owned()]))
    );
    assert_eq!(found.after_script, ["c"]);
    let run = json!([{"name": "s", "script": "x"}]);
    for run in [run.clone(), json!(run.to_string())] {
        assert_eq!(names(json!({"run": run})), ["step_run"]);
    }
    for run in [json!(null), json!(""), json!("  "), json!("null"), json!([]), json!("[]")] {
        assert_eq!(names(json!({"run": run})), [""; 0], "{run}");
        assert_eq!(job(&json!({"run": run})).work.len(), 0);
    }
    for run in [json!(null), json!(" "), json!("null")] {
        assert_eq!(names(json!({"run": run, "steps": script})), ["step_script"], "{run}");
    }
    for refused in
        [json!({"secrets": "a"}), json!({"secrets": [1]}), json!({"inputs": true}), json!({"inputs": 1})]
    {
        assert!(of_payload(refused.to_string().as_bytes()).is_err(), "{refused}");
    }
    for empty in
        [json!({"secrets": ""}), json!({"secrets": {}}), json!({"inputs": []}), json!({"inputs": null})]
    {
        assert!(of_payload(empty.to_string().as_bytes()).is_ok(), "{empty}");
    }
    assert!(of_payload(b" \n{}").is_ok() && of_payload(b"[]").is_err());
}

#[test]
fn addresses_of_sources_come_without_user_and_password() {
    for (url, plain) in [
        ("https://user:pass@gitlab.test/g/p.git", "https://gitlab.test/g/p.git"),
        ("https://user:p@ss@gitlab.test/g/p.git", "https://gitlab.test/g/p.git"),
        ("https://gitlab.test/g/p@1.git", "https://gitlab.test/g/p@1.git"),
        ("ssh://git@gitlab.test:22/g/p.git", "ssh://gitlab.test:22/g/p.git"),
        ("/srv/p.git", "/srv/p.git"),
    ] {
        let hooks = json!([
            {"name": "pre_get_sources_script", "script": ["before"]},
            {"name": "post_get_sources_script", "script": ["after", null]},
            {"name": "other", "script": ["never"]},
        ]);
        let git = json!({"repo_url": url, "ref": "main"});
        let sources =
            job(&json!({"git_info": git, "hooks": hooks, "allow_git_fetch": true})).sources.unwrap();
        assert_eq!(sources.url, plain);
        assert_eq!((sources.before, sources.after), (vec!["before".to_owned()], vec!["after".to_owned()]));
        assert_eq!(serde_json::Value::from(sources.details), json!({"ref": "main", "allow_git_fetch": true}));
    }
    assert!(job(&json!({"git_info": {"ref": "main"}})).sources.is_none());
}

#[test]
fn fields_that_are_absent_have_the_defaults_of_gitlab() {
    let payload = json!({
        "variables": [
            {"key": "V", "value": "v"},
            {"key": "F", "value": "content", "file": true},
            {"key": "D", "value": "a$$b"},
            {"key": "V", "value": "last"},
        ],
        "cache": [
            {"key": "$V", "paths": ["$V/x", "$F"], "fallback_keys": ["$D"]},
            {"policy": "pull", "when": "always", "untracked": true},
        ],
        "artifacts": [
            {"paths": ["$V"], "exclude": ["e"]},
            {"name": "n-$NONE", "artifact_type": "junit", "artifact_format": "gzip", "when": "on_failure", "untracked": true, "expire_in": "1 week"},
        ],
        "dependencies": [
            {"id": 1, "name": "a", "token": "", "artifacts_file": {"filename": "a.zip"}},
            {"id": 2, "name": "b", "token": "t", "artifacts_file": {"filename": "b.zip"}},
            {"id": 3, "name": "c", "artifacts_file": {"filename": ""}},
            {"id": 4, "name": "d"},
        ],
        "image": {"name": ""},
        "services": [
            {"name": "s:$V", "alias": "db-$V", "command": "one", "entrypoint": ["a", null], "pull_policy": ["always"], "ports": [1], "variables": [{"key": "P", "value": "$1"}]},
            {"name": "t", "ports": 5, "executor_opts": {"docker": {}}},
        ],
    });
    let job = job(&payload);
    let first = &job.caches[0];
    assert_eq!(
        (&first.key, first.policy.as_str(), first.when.as_str()),
        (&json!("last"), "pull-push", "on_success")
    );
    assert_eq!(
        (first.paths.as_slice(), first.fallback_keys.as_slice(), first.untracked),
        (["last/x".to_owned(), String::new()].as_slice(), ["a$b".to_owned()].as_slice(), false)
    );
    assert_eq!(
        (job.caches[1].policy.as_str(), job.caches[1].when.as_str(), job.caches[1].untracked),
        ("pull", "always", true)
    );
    let artifacts: Vec<String> = job
        .artifacts
        .iter()
        .map(|found| {
            format!(
                "{} {} {} {} {:?} {:?} {} {:?}",
                found.name,
                found.kind,
                found.format,
                found.when,
                found.paths,
                found.exclude,
                found.untracked,
                found.expire_in
            )
        })
        .collect();
    assert_eq!(
        artifacts,
        [
            "artifacts archive zip on_success [\"last\"] [\"e\"] false None",
            "n- junit gzip on_failure [] [] true Some(\"1 week\")",
        ]
    );
    let dependencies: Vec<(&str, Option<&str>, bool)> = job
        .dependencies
        .iter()
        .map(|found| (found.name.as_str(), found.token.as_deref(), found.required))
        .collect();
    assert_eq!(dependencies, [("a", None, true), ("b", Some("t"), true)]);
    assert_eq!(
        Json::from(job.dependencies[1].details.clone()),
        json!({"id": 2, "artifacts_file": {"filename": "b.zip"}})
    );
    assert!(job.image.is_none() && job.token.is_none());
    let service = &job.services[0];
    assert_eq!((service.name.as_str(), service.alias.as_deref()), ("s:last", Some("db-last")));
    assert_eq!(
        (&service.command, &service.entrypoint),
        (&Some(vec!["one".to_owned()]), &Some(vec!["a".to_owned()]))
    );
    assert_eq!(Json::from(service.options.clone()), json!({"pull_policy": ["always"], "ports": [1]}));
    assert!(service.variables["P"].raw && service.variables["P"].value == "$1");
    assert_eq!(Json::from(job.services[1].options.clone()), json!({"docker": {}}));
    assert!(job.services[1].command.is_none());
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
