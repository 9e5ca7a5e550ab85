//! Jobs as mappings of keywords (ci.md §2.2).
#![allow(clippy::unwrap_used, clippy::allow_attributes, reason = "a test")]

use step_runner_ci::job::{Content, Job, of_mapping};

fn job(text: &str) -> Job {
    of_mapping("<ci_job>", text).unwrap()
}

fn errors(text: &str) -> Vec<String> {
    of_mapping("<ci_job>", text).unwrap_err().iter().map(ToString::to_string).collect()
}

fn script(job: &Job, index: usize) -> &[String] {
    let Content::Script(lines) = &job.work[index].content else { panic!("{:?}", job.work) };
    lines
}

#[test]
fn each_command_stands_alone_so_that_the_first_failure_counts() {
    let job = job("script: [\"false\", echo never]\nbefore_script: [a, [b]]\n");
    assert_eq!(job.name, "job");
    assert_eq!(script(&job, 0), ["a", "b", "false", "echo never"]);
    assert!(job.messages.is_empty(), "{:?}", job.messages);
}

#[test]
fn what_a_mapping_warns_of_is_told_with_the_job() {
    let job = job("script: x\nvariables: {A: 012}\nrules: [{exists: ['**/*'], variables: {A: found}}]\n");
    let told: Vec<&str> = job.messages.iter().map(|message| message.text.as_str()).collect();
    assert!(job.messages.iter().all(|message| message.is_warning), "{told:?}");
    assert!(
        told[0].contains("none of its rules matches") && told[1].contains("012 is read as 10"),
        "{told:?}"
    );
    assert_eq!(job.variables.iter().find(|variable| variable.key == "A").unwrap().value, "10");
}

#[test]
fn jobs_of_real_files_are_taken() {
    let job = job(".base: {image: rust, tags: [linux]}\n\
         default: {before_script: [setup]}\n\
         variables: {A: top, B: $A}\n\
         build:\n  extends: .base\n  stage: compile\n  variables: {A: own}\n  script: make\n  cache: {paths: [x]}\n  \
         artifacts: {paths: [y]}\n  rules: [{if: $A == \"own\", variables: {C: ruled}}]\n  needs: [other]\n");
    assert_eq!((job.name.as_str(), job.stage.as_str()), ("build", "compile"));
    assert_eq!(script(&job, 0), ["setup", "make"]);
    let variables: Vec<String> =
        job.variables.iter().map(|variable| format!("{}={}", variable.key, variable.value)).collect();
    assert_eq!(variables, ["CI_JOB_IMAGE=rust", "A=own", "B=own", "C=ruled"]);
    assert!(job.caches.is_empty() && job.artifacts.is_empty() && job.dependencies.is_empty());
    let told: Vec<&str> = job.messages.iter().map(|message| message.text.as_str()).collect();
    assert_eq!(told, ["keywords without effect here: tags, artifacts, cache"]);
}

#[test]
fn steps_may_have_commands_before_them() {
    let job =
        job("before_script: b\nrun: [{name: a, func: ./f, inputs: {n: 3, on: true, x: [\"1.50\", 1.5]}}]\n");
    assert_eq!(script(&job, 0), ["b"]);
    let Content::Steps(steps) = &job.work[1].content else { panic!("{:?}", job.work) };
    assert_eq!(steps[0]["inputs"].to_string(), r#"{"n":3,"on":true,"x":["1.50",1.5]}"#);
}

#[test]
fn everything_wrong_is_told_at_once_with_places() {
    let errors = errors("script: x\nimag: y\nrules: [{if: \"(\"}]\nvariables: {A: yes}\n");
    for (place, part) in [("2:1", "\"image\""), ("3:14", "ends"), ("4:16", "quote it")] {
        let start = format!("<ci_job>:{place}: ");
        assert!(
            errors.iter().any(|error| error.starts_with(&start) && error.contains(part)),
            "{part}: {errors:?}"
        );
    }
}

#[test]
fn what_is_no_job_is_refused() {
    for text in [
        "",
        "a",
        "[]",
        "{}",
        "run: x",
        "run: []",
        "script: {a: b}",
        "script: ~",
        "a: {script: x}\nb: {script: y}",
        "a: {run: [{name: a, script: b}]}\nb: {script: y}",
        "run: [{name: a, script: b}]\nscript: x",
        "variables: [a]\nscript: x",
        "variables: {A: [1]}\nscript: x",
        "script: x\n---\nscript: y",
        "spec: {inputs: {a: }}\n---\nscript: x",
        "include: a.yml\nscript: x",
        "run: [",
        "trigger: group/other",
        "secrets: {A: {vault: x}}\nscript: x",
    ] {
        assert!(!errors(text).is_empty(), "{text}");
    }
}
