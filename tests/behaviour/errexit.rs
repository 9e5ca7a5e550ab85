//! A failing line of a script: the warning before a run, the key `errexit`, and the option `--errexit` (language.md §17).

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    folder
}

fn step_runner(folder: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_step-runner"));
    command.args(words).current_dir(folder).stdin(Stdio::null()).env_clear();
    command.envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

const LOSES: &str = "- name: build\n  script: |\n    false\n    echo built\n";

#[test]
fn run_shows_the_line_whose_failure_is_lost() {
    let folder = folder(&[("steps.yml", LOSES)]);
    let output = step_runner(folder.path(), &["run", "steps.yml"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let stderr = text(&output.stderr);
    for part in [
        "warning[shell]: the script goes on if this line fails",
        "steps.yml:3:5",
        "false",
        "--errexit ends every script",
    ] {
        assert!(stderr.contains(part), "{part}: {stderr}");
    }
    assert!(!stderr.contains("shown by \"step-runner check\""), "{stderr}");
    for words in
        [["-q", "steps.yml"].as_slice(), &["--allow", "shell", "steps.yml"], &["--no-check", "steps.yml"]]
    {
        let output = step_runner(folder.path(), &[&["run"], words].concat());
        assert!(!text(&output.stderr).contains("warning"), "{words:?} {output:?}");
    }
}

#[test]
fn other_warnings_are_only_counted() {
    let steps = format!("{LOSES}- {{name: build, script: 'true'}}\n");
    let folder = folder(&[("steps.yml", &steps)]);
    let stderr = text(&step_runner(folder.path(), &["run", "steps.yml"]).stderr);
    assert!(stderr.contains("warning[shell]") && !stderr.contains("warning[name]"), "{stderr}");
    // Beside errors, too.
    fs::write(
        folder.path().join("steps.yml"),
        format!("{steps}- {{name: c, script: 'echo ${{{{ nope }}}} ${{{{ env.X }}}}'}}\n"),
    )
    .unwrap();
    let stderr = text(&step_runner(folder.path(), &["run", "steps.yml"]).stderr);
    for part in ["error[not_found]", "warning[shell]", "1 warning, shown by", "steps.yml has 1 error"] {
        assert!(stderr.contains(part), "{part}: {stderr}");
    }
    assert!(!stderr.contains("warning[name]") && !stderr.contains("warning[injection]"), "{stderr}");
}

#[test]
fn a_failing_line_ends_a_script_where_the_step_or_the_run_wants_it() {
    let long = format!("- name: a\n  script: |\n    false\n    : {}\n    echo on\n", "x".repeat(130_000));
    let long_here = long.replace("  script", "  errexit: true\n  script");
    let pipe = "- {name: a, errexit: true, script: \"false | true\\necho on\"}\n";
    let member = "- name: a\n  parallel:\n  - {name: b, errexit: true, script: \"false\\necho on\"}\n";
    let calls = "- {name: a, func: ./called}\n";
    for (steps, option, code) in [
        (LOSES, false, 0),
        (LOSES, true, 1),
        ("- {name: a, errexit: true, script: \"false\\necho on\"}\n", false, 1),
        ("- {name: a, errexit: false, script: \"false\\necho on\"}\n", true, 0),
        ("- {name: a, errexit: false, script: \"false\\necho on\"}\n", false, 0),
        ("- {name: a, errexit: true, script: \"false || true\\necho on\"}\n", false, 0),
        (pipe, false, 1),
        (member, false, 1),
        (&long, true, 1),
        (&long_here, false, 1),
        (calls, false, 0),
        (calls, true, 1),
    ] {
        let called = "spec:\n---\nrun:\n- name: inner\n  script: |\n    false\n    echo on\n";
        let folder = folder(&[("steps.yml", steps), ("called/func.yml", called)]);
        let words: &[&str] = if option { &["run", "--errexit", "steps.yml"] } else { &["run", "steps.yml"] };
        let output = step_runner(folder.path(), words);
        let case = steps.get(..steps.len().min(80)).unwrap();
        assert_eq!(output.status.code(), Some(code), "{option} {case}: {:?}", text(&output.stderr));
        // Who has chosen needs no warning, and with the option everybody has.
        let is_chosen = option || steps.contains("errexit");
        assert_eq!(text(&output.stderr).contains("warning[shell]"), !is_chosen, "{option} {case}");
        if code == 0 {
            assert!(!output.stdout.is_empty(), "{option} {case}");
        } else {
            assert!(!text(&output.stdout).contains("on"), "{option} {case}");
        }
    }
}

#[test]
fn the_line_where_the_script_stopped_is_the_line_of_the_file() {
    let steps = "- name: a\n  errexit: true\n  script: |\n    echo one\n    nosuch-command\n    echo two\n";
    let folder = folder(&[("steps.yml", steps)]);
    let output = step_runner(folder.path(), &["run", "steps.yml"]);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(127), "{stderr}");
    assert!(stderr.contains("at         steps.yml:5") && stderr.contains("> nosuch-command"), "{stderr}");
    assert!(stderr.contains("-ec") && !stderr.contains("pipefail"), "{stderr}");
}

#[test]
fn check_knows_who_has_the_key_and_who_cannot() {
    let good = "- {name: a, errexit: true, script: \"false\\necho on\"}\n";
    let folder = folder(&[
        ("good.yml", good),
        ("func.yml", "spec:\n---\nexec: {command: [x]}\n"),
        ("bad.yml", "- {name: a, errexit: true, func: .}\n"),
        ("word.yml", "- {name: a, errexit: maybe, script: x}\n"),
    ]);
    let check = |words: &[&str]| {
        let output = step_runner(folder.path(), &[&["check"], words].concat());
        (output.status.code(), text(&output.stdout))
    };
    assert_eq!(check(&["good.yml"]), (Some(0), String::new()));
    for (words, part) in [
        (["bad.yml"].as_slice(), "only a step with script can have \"errexit\""),
        (&["word.yml"], "expected true or false"),
        (&["--target", "gitlab", "good.yml"], "GitLab's own step runner does not know the key \"errexit\""),
    ] {
        let (code, shown) = check(words);
        assert!(code == Some(1) && shown.contains(part), "{words:?} {code:?} {shown}");
    }
}
