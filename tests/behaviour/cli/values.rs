//! Usage errors never show a value: it may be a secret that was given to the wrong option (faults.md row 109).

use super::{program, stderr};

/// A secret. It is a valid name of a variable and no id, time, limit or colour.
const SECRET: &str = "hunter2_of_the_test";

#[test]
fn fault_109_usage_errors_show_no_value() {
    let secret = &format!("{SECRET} {SECRET}");
    for words in [
        &["run", "--id", secret][..],
        &["submit", "--id", secret],
        &["run", "--timeout", secret],
        &["run", "--cancel-grace", secret],
        &["run", "--limit", secret],
        &["run", "--env-base", secret],
        &["run", "--output", secret],
        &["status", "--color", secret],
        &["run", "x", SECRET],
        &["run", "--mask-file", SECRET],
        &["run", "--masked-var", SECRET],
        &["run", "--mask-env", SECRET],
        &["run", "examples/hello", "--var", SECRET],
        &["run", "examples/hello", "--input", SECRET],
        &["serve", "--max-running", secret],
    ] {
        let output = program(words).output().unwrap();
        assert!(!output.status.success(), "{words:?}");
        let said = stderr(&output);
        assert!(!said.contains(SECRET), "{words:?}: {said}");
        // The option is named; without one the error says what it does not expect.
        let named = words.iter().find(|word| word.starts_with("--")).unwrap_or(&"unexpected argument");
        assert!(said.contains(named.trim_start_matches('-').split('-').next().unwrap()), "{words:?}: {said}");
    }
}

#[test]
fn a_word_too_many_that_is_a_command_is_shown_with_that_command() {
    let said = stderr(&program(&["agent", "verify"]).output().unwrap());
    assert!(said.contains("'verify'") && said.contains("step-runner verify"), "{said}");
}

#[test]
fn fault_109_a_path_that_holds_a_declared_secret_is_masked_in_errors() {
    let folder = tempfile::tempdir().unwrap();
    let results = folder.path().join(SECRET).join("none").join("r.json");
    let results = results.to_str().unwrap();
    for words in [
        &["run", "builtin://x", "--masked-var", "TOKEN", "--results", results][..],
        &["run", "builtin://x", "--mask-env", "TOKEN", "--mask-file", results],
        &["submit", "builtin://x", "--masked-var", "TOKEN", "--socket", results, "--connect-timeout", "10ms"],
        &["run", results, "--masked-var", "TOKEN"],
    ] {
        let output = program(words).env("TOKEN", SECRET).output().unwrap();
        let said = stderr(&output);
        assert!(!output.status.success() && !said.contains(SECRET), "{words:?}: {said}");
    }
}
