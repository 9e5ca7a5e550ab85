//! Tests `ci` with the real program (language.md §13, restricted mode).

use std::process::{Command, Output, Stdio};

use crate::support::names;

/// Runs these steps in `folder`, with only these variables and `PATH` in the environment.
fn ci(folder: &std::path::Path, steps: Option<&str>, variables: &[(&str, &str)]) -> Output {
    ci_with(&[], folder, steps, variables)
}

fn ci_with(
    words: &[&str],
    folder: &std::path::Path,
    steps: Option<&str>,
    variables: &[(&str, &str)],
) -> Output {
    let temp = folder.join("tmp");
    std::fs::create_dir_all(&temp).unwrap();
    let work = folder.join("work");
    std::fs::create_dir_all(&work).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_step-runner"));
    command.arg("ci").args(words).current_dir(work).stdin(Stdio::null()).env_clear();
    command.env("PATH", std::env::var_os("PATH").unwrap()).env("TMPDIR", temp);
    command.envs(variables.iter().copied()).envs(steps.map(|steps| ("STEPS", steps)));
    command.output().unwrap()
}

fn script(text: &str) -> String {
    serde_json::json!([{"name": "s", "script": text}]).to_string()
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

#[test]
fn steps_run_in_the_folder_they_are_called_in_and_nothing_stays() {
    let folder = tempfile::tempdir().unwrap();
    let steps = r#"[{"name": "one", "script": "pwd"}, {"name": "two", "script": "echo hello > file"}]"#;
    let output = ci(folder.path(), Some(steps), &[]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(stdout(&output), format!("{}\n", folder.path().join("work").display()));
    assert_eq!(std::fs::read_to_string(folder.path().join("work/file")).unwrap(), "hello\n");
    assert!(names(&folder.path().join("tmp")).is_empty());
}

#[test]
fn steps_get_the_listed_environment_only() {
    let folder = tempfile::tempdir().unwrap();
    let variables = [
        ("LANG", "C"),
        ("HTTPS_PROXY", "p"),
        ("all_proxy", "q"),
        ("CI_JOB_ID", "7"),
        ("AWS_SECRET", "s"),
        ("JAVA_HOME", "j"),
        ("STEP_RUNNER_X", "x"),
    ];
    let output = ci(folder.path(), Some(&script("env | cut -d= -f1 | sort")), &variables);
    let seen: Vec<&str> = stdout(&output).lines().collect();
    for name in ["LANG", "HTTPS_PROXY", "all_proxy", "PATH", "TMPDIR"] {
        assert!(seen.contains(&name), "{name}: {seen:?}");
    }
    for name in ["CI_JOB_ID", "AWS_SECRET", "JAVA_HOME", "STEP_RUNNER_X", "STEPS"] {
        assert!(!seen.contains(&name), "{name}: {seen:?}");
    }
}

#[test]
fn variables_of_the_job_are_those_with_the_documented_beginnings_and_literal() {
    let folder = tempfile::tempdir().unwrap();
    let variables = [("CI_A", "$HOME $$"), ("DOCKER_B", "b"), ("GITLAB_C", "c"), ("OTHER", "d")];
    let text = "echo '${{ vars.CI_A }} ${{ vars.DOCKER_B }} ${{ job.GITLAB_C }}'";
    let output = ci(folder.path(), Some(&script(text)), &variables);
    assert_eq!(stdout(&output), "$HOME $$ b c\n", "{output:?}");
    let output = ci(folder.path(), Some(&script("echo '${{ vars.OTHER }}'")), &variables);
    assert!(!output.status.success() && stderr(&output).contains("OTHER"), "{output:?}");
}

#[test]
fn the_exit_code_is_that_of_the_process_that_failed() {
    let folder = tempfile::tempdir().unwrap();
    for (text, code) in [("exit 3", 3), ("kill -9 $$", 137)] {
        let output = ci(folder.path(), Some(&script(text)), &[]);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert!(stderr(&output).contains('s'));
    }
}

#[test]
fn tokens_are_masked_unasked() {
    let folder = tempfile::tempdir().unwrap();
    let output = ci(folder.path(), Some(&script("echo glpat-${LANG}abcdefghij0123456789")), &[("LANG", "x")]);
    assert_eq!(stdout(&output), "glpat-[MASKED]\n", "{output:?}");
}

#[test]
fn results_are_written_if_they_are_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("work/step-results.json");
    let steps = script("exit 3");
    let asked = |words: &[&str], variables: &[(&str, &str)]| {
        let output = ci_with(words, folder.path(), Some(&steps), variables);
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        let written = std::fs::read_to_string(&file).ok();
        drop(std::fs::remove_file(&file));
        written.map(|text| serde_json::from_str::<serde_json::Value>(&text).unwrap())
    };
    assert_eq!(asked(&[], &[]), None);
    assert_eq!(asked(&[], &[("CI_STEPS_DEBUG", "false")]), None);
    for (words, variables) in
        [(&["--write-steps-results"][..], &[][..]), (&[], &[("CI_STEPS_DEBUG", "true")][..])]
    {
        let results = asked(words, variables).unwrap();
        assert_eq!(results["status"], "failure");
        assert_eq!(results["sub_step_results"][0]["exec_result"]["exit_code"], 3);
    }
}

#[test]
fn errors_in_the_steps_have_their_places() {
    let folder = tempfile::tempdir().unwrap();
    let output = ci(folder.path(), Some(r#"[{"name": "a", "scrip": "x"}]"#), &[]);
    assert_eq!(output.status.code(), Some(65), "{output:?}");
    assert!(stderr(&output).contains("STEPS:1:") && stderr(&output).contains("scrip"), "{output:?}");
    assert!(stdout(&output).is_empty());
    let output = ci(folder.path(), Some(&script("true")), &[("CI_STEPS_LOG_LEVEL", "loud")]);
    assert_eq!(output.status.code(), Some(65), "{output:?}");
    assert!(
        stderr(&output).contains("CI_STEPS_LOG_LEVEL") && !stderr(&output).contains("loud"),
        "{output:?}"
    );
}

#[test]
fn steps_that_are_missing_are_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    for steps in [None, Some(""), Some("  ")] {
        let output = ci(folder.path(), steps, &[]);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(stderr(&output).contains("STEPS"), "{output:?}");
    }
    let output = ci(folder.path(), Some("["), &[]);
    assert_eq!(output.status.code(), Some(65), "{output:?}");
}
