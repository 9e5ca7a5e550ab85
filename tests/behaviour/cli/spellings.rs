//! Options in the spelling of GitLab's first step runner (cli.md).

use std::path::Path;

use super::{program, stderr, stdout};

const FUNCTION: &str = "\
spec:
  inputs: {word: {type: string}, n: {type: number, default: 0}}
---
exec: {command: [echo, '${{ inputs.word }} ${{ inputs.n }} ${{ vars.A }} ${{ vars.B }}']}
";

/// Runs the program with these arguments in `folder`.
fn run_in(folder: &Path, words: &[&str]) -> std::process::Output {
    program(words).current_dir(folder).env_remove("CI_STEPS_DEBUG").output().unwrap()
}

fn with_function() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("say")).unwrap();
    std::fs::write(folder.path().join("say/step.yml"), FUNCTION).unwrap();
    folder
}

#[test]
fn inputs_and_job_variables_may_stand_in_one_argument() {
    let folder = with_function();
    for target in ["say", "step: ./say"] {
        let words = ["run", target, "--inputs", "word=a,n=2", "--job", "A=$HOME,\"B=x,y\"", "--quiet"];
        let output = run_in(folder.path(), &words);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(stdout(&output), "a 2 $HOME x,y\n", "{target}: {output:?}");
    }
    let output = run_in(folder.path(), &["run", "say", "--inputs", "word=s3cret,nothing", "--job", "A=,B="]);
    assert_eq!(output.status.code(), Some(0), "a value with a comma: {output:?}");
    let output = run_in(folder.path(), &["run", "say", "--inputs", "word=a,n=2,s3cret"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let said = stderr(&output);
    assert!(said.contains("--inputs: write NAME=VALUE") && !said.contains("s3cret"), "{said}");
}

#[test]
fn results_go_to_the_named_file_or_the_usual_one() {
    let folder = with_function();
    let words = ["run", "say", "--inputs", "word=a", "--job", "A=,B="];
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name));
    assert!(run_in(folder.path(), &words).status.success());
    assert!(read("step-results.json").is_err());
    let json = |text: String| serde_json::from_str::<serde_json::Value>(&text).unwrap();
    for (more, file) in [
        (&["--step-results-file", "r.json"][..], "r.json"),
        (&["--write-steps-results"], "step-results.json"),
        (&["--write-steps-results", "--step-results-file", "both.json"], "both.json"),
    ] {
        assert!(run_in(folder.path(), &[&words, more].concat()).status.success());
        let result = json(read(file).unwrap());
        assert_eq!(result["status"], "success", "{file}");
        // Readers of the reference's results refuse unknown keys.
        for result in std::iter::once(&result).chain(result["sub_step_results"].as_array().unwrap()) {
            let has_own_keys = result.get("number").is_some() && result.get("usage").is_some();
            assert_eq!(has_own_keys, file == "r.json", "{file}: {result}");
        }
    }
    let asked = program(&words).current_dir(folder.path()).env("CI_STEPS_DEBUG", "true").output().unwrap();
    assert!(asked.status.success());
    // With `--results` the file keeps all keys.
    let mut own = program(&[&words[..], &["--results", "own.json"]].concat());
    assert!(own.current_dir(folder.path()).env("CI_STEPS_DEBUG", "true").status().unwrap().success());
    assert!(json(read("own.json").unwrap()).get("usage").is_some());
}
