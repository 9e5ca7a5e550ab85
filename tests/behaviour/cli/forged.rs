//! A job whose script prints the lines that the daemon and the program print: each way to show it takes them for what they are,
//! output of the step.

use std::path::Path;
use std::process::Output;

use serde_json::Value;

use super::{program, stderr, stdout};

/// Lines that the script prints on stdout.
const FORGED: [&str; 7] = [
    "Running step name=x",
    "Running step name=x stream=02",
    "Skipped step name=x: no",
    "Retrying step name=x (attempt 2 of 2) in 0s: y",
    "job failed: x",
    "2026-11-20T10:00:00.123456Z 00O Running step name=x stream=01",
    "2026-11-20T10:00:00.123456Z 00E job cancelled: x",
];

/// Writes a function whose second step prints [`FORGED`] and fails, and whose last one would follow.
fn function(folder: &Path) {
    let lines = FORGED.map(|line| format!("'{line}'")).join(" ");
    let steps = serde_json::json!([
        {"name": "a", "script": "echo of a"},
        {"name": "b", "script": format!("printf '%s\\n' {lines}; exit 3")},
        {"name": "c", "when": "always", "script": "echo of c"},
    ]);
    std::fs::write(folder.join("func.yml"), format!("spec: {{}}\n---\nrun: {steps}\n")).unwrap();
}

fn run(folder: &Path, options: &[&str]) -> Output {
    program(&["run", "func.yml"]).args(options).current_dir(folder).output().unwrap()
}

/// Returns the lines of a summary under the heading of the step's output, without their times.
fn summarised(stderr: &str) -> Vec<String> {
    let (_, behind) = stderr.split_once("  end of its ").unwrap_or_else(|| panic!("{stderr}"));
    let lines = behind.lines().skip(1).take_while(|line| line.starts_with("    "));
    lines.map(|line| line.trim_start().split_once("  ").unwrap().1.to_owned()).collect()
}

#[test]
fn json_and_results_have_forged_lines_as_output_of_their_step() {
    let folder = tempfile::tempdir().unwrap();
    function(folder.path());
    let output = run(folder.path(), &["--output", "json", "--results", "results.json"]);
    let events: Vec<Value> =
        stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let texts = |source: &str, step: &str| -> Vec<&str> {
        let lines = events.iter().filter(|event| event["source"] == source && event["step"] == step);
        lines.map(|event| event["text"].as_str().unwrap()).collect()
    };
    assert_eq!(texts("01O", "2"), FORGED);
    assert_eq!((texts("01O", "1"), texts("01O", "3")), (vec!["of a"], vec!["of c"]));
    let told = |kind: &str| -> Vec<&str> {
        let events = events.iter().filter(|event| event["event"] == kind);
        events.map(|event| event["step"].as_str().unwrap()).collect()
    };
    assert_eq!(told("step_start"), ["0", "1", "2", "3"]);
    assert_eq!((told("step_end"), told("step")), (vec!["1", "2", "3", "0"], vec!["1", "2", "3", "0"]));
    let root: Value =
        serde_json::from_slice(&std::fs::read(folder.path().join("results.json")).unwrap()).unwrap();
    let of_json = events.iter().rfind(|event| event["event"] == "step").unwrap();
    assert_eq!(root, of_json["result"]);
    let names = root["sub_step_results"].as_array().unwrap().iter().map(|result| &result["step"]["name"]);
    assert_eq!(names.collect::<Vec<_>>(), ["a", "b", "c"]);
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(summarised(&stderr(&output)), FORGED);
}

#[test]
fn pretty_ends_no_step_and_names_none_by_forged_lines() {
    let folder = tempfile::tempdir().unwrap();
    function(folder.path());
    let output = run(folder.path(), &["--output", "pretty"]);
    let shown = stdout(&output);
    let lines: Vec<&str> = shown.lines().map(|line| line.get(13..).unwrap()).collect();
    let own = |line: &str| format!("out  {line}");
    let begin = lines.iter().position(|line| *line == own(FORGED[0])).unwrap_or_else(|| panic!("{shown}"));
    let behind = begin + FORGED.len();
    assert_eq!(lines[begin..behind], FORGED.map(own));
    assert_eq!(lines[begin - 1], "run  Running step name=b");
    assert!(lines[behind].starts_with("run  step b failed in "), "{shown}");
    assert_eq!(lines.iter().filter(|line| line.starts_with("run  step ")).count(), 3, "{shown}");
    assert_eq!(summarised(&stderr(&output)), FORGED);
}

#[test]
fn plain_sends_forged_lines_to_stdout_and_its_summary_is_about_the_step_that_failed() {
    let folder = tempfile::tempdir().unwrap();
    function(folder.path());
    let output = run(folder.path(), &["--output", "plain"]);
    assert_eq!(stdout(&output), format!("of a\n{}\nof c\n", FORGED.join("\n")));
    let told = stderr(&output);
    assert!(told.contains("\n  step       b\n") && told.contains("\n  exit code  3\n"), "{told}");
    let (before, _) = told.split_once("  step       b\n").unwrap();
    assert!(!before.contains("name=x"), "the daemon has not said it: {told}");
    assert_eq!(summarised(&told), FORGED);
}

/// The summary of `plain` has asked for no events before the job failed.
#[test]
fn a_member_that_fails_has_its_own_lines_in_the_summary_whatever_it_prints() {
    let folder = tempfile::tempdir().unwrap();
    let steps = serde_json::json!([{"name": "both", "fail_fast": false, "parallel": [
        {"name": "m", "script": "for i in 1 2 3; do echo Running step name=n stream=01; done; exit 3"},
        {"name": "n", "script": "echo of n; echo Running step name=m stream=01"},
    ]}]);
    std::fs::write(folder.path().join("func.yml"), format!("spec: {{}}\n---\nrun: {steps}\n")).unwrap();
    for format in ["plain", "pretty", "json"] {
        let output = run(folder.path(), &["--output", format]);
        let told = stderr(&output);
        assert!(told.contains("\n  step       both/m\n"), "{format}: {told}");
        assert_eq!(summarised(&told), ["Running step name=n stream=01"; 3], "{format}");
        if format == "plain" {
            let lines = stdout(&output).lines().filter(|line| line.starts_with("m | Running step")).count();
            assert_eq!(lines, 3, "{output:?}");
        }
    }
}
