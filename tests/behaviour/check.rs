//! Tests `step-runner check`: its findings in broken files, in all formats, and that it finds nothing in good files.
//!
//! The files are in `tests/broken`, the expected output in `tests/snapshots`. After an intended change run
//! `INSTA_UPDATE=always cargo test --test behaviour check::` and review the diff.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn check(folder: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_step-runner"));
    command.args(["check", "--color", "never"]).args(words).current_dir(folder).stdin(Stdio::null());
    command.env_remove("STEP_RUNNER_QUIET");
    command.output().unwrap()
}

fn broken() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/broken")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Makes a folder with these files.
fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    folder
}

#[test]
fn people_are_shown_each_error_with_its_line_and_a_pointer() {
    let mut entries: Vec<_> =
        fs::read_dir(broken()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    entries.sort();
    assert!(entries.len() > 10);
    for entry in entries {
        let name = entry.to_str().unwrap();
        let output = check(&broken(), &[name]);
        assert_eq!(output.status.code(), Some(1), "{name}: {output:?}");
        let mut settings = insta::Settings::clone_current();
        settings.set_snapshot_suffix(name.trim_end_matches(".yml"));
        settings.set_omit_expression(true);
        settings.bind(|| insta::assert_snapshot!("human", text(&output.stdout) + &text(&output.stderr)));
    }
}

#[test]
fn a_literal_for_a_sensitive_input_is_hidden_in_the_lines_that_are_shown() {
    let function = "spec: {inputs: {token: {type: string, sensitive: true}, n: {type: number}}}\n---\nexec: {command: [x]}\n";
    let steps = "- {name: a, func: ./f, inputs: {token: hunter2-abc, n: [1]}}\n\
                 - {name: b, func: ./f, inputs: {token: [hunter3-abc], n: 1}}\n";
    let folder = folder(&[("f/func.yml", function), ("steps.yml", steps)]);
    for output in [check(folder.path(), &["steps.yml"]), run(folder.path(), &["steps.yml"])] {
        let shown = text(&output.stdout) + &text(&output.stderr);
        assert!(!shown.contains("hunter"), "{shown}");
        assert!(
            shown.contains("inputs: {token: [MASKED], n: [1]}") && shown.contains("steps.yml:1:56"),
            "{shown}"
        );
        assert!(
            shown.contains("inputs: {token: [[MASKED]], n: 1}") && shown.contains("steps.yml:2:40"),
            "{shown}"
        );
    }
}

#[test]
fn programs_get_json_by_lines_or_a_code_quality_report() {
    insta::assert_snapshot!("json", text(&check(&broken(), &["--output", "json", "caller"]).stdout));
    insta::assert_snapshot!("gitlab", text(&check(&broken(), &["--output", "gitlab", "caller"]).stdout));
}

#[test]
fn every_class_that_needs_no_run_is_found() {
    let output = check(&broken(), &["--output", "json", "."]);
    let mut classes: Vec<String> = text(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["class"].as_str().unwrap().to_owned())
        .collect();
    classes.sort();
    classes.dedup();
    assert_eq!(
        classes,
        [
            "div_zero",
            "injection",
            "limit",
            "missing",
            "name",
            "not_found",
            "parse",
            "schema",
            "type",
            "undeclared",
            "yaml"
        ]
    );
}

#[test]
fn files_without_faults_are_counted() {
    let output = check(Path::new(env!("CARGO_MANIFEST_DIR")), &["examples"]);
    assert_eq!((output.status.code(), &*output.stdout), (Some(0), &b""[..]), "{output:?}");
    assert!(text(&output.stderr).ends_with(" files, no errors\n"), "{output:?}");
    let folder = folder(&[("func.yml", "spec:\n---\nexec: {command: [x]}\n")]);
    assert_eq!(text(&check(folder.path(), &[]).stderr), "step-runner: 1 file, no errors\n");
    assert!(check(folder.path(), &["-q"]).stderr.is_empty());
    let output = check(Path::new(env!("CARGO_MANIFEST_DIR")), &["--output", "gitlab", "examples"]);
    assert_eq!((output.status.code(), &*output.stdout), (Some(0), &b"[]\n"[..]));
}

#[test]
fn warnings_alone_end_with_0() {
    let folder = folder(&[("steps.yml", "- {name: a, script: x}\n- {name: a, script: y}\n")]);
    let output = check(folder.path(), &["steps.yml"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(text(&output.stdout).starts_with("warning[name]: step \"a\" stands already at line 1"));
    assert_eq!(text(&output.stderr), "step-runner: 1 warning in 1 file\n");
    assert!(check(folder.path(), &["-q", "steps.yml"]).stderr.is_empty());
}

#[test]
fn a_search_takes_function_files_only() {
    let folder = folder(&[
        (".gitlab-ci.yml", "build: {script: make}\n"),
        (".hidden/func.yml", "broken"),
        ("compose.yml", "services: {db: {image: x}}\n"),
        ("func.yaml", "broken"),
        ("ci/func.yml", "broken"),
        ("ci/step.yml", "{}\n---\nexce: {}\n"),
        ("steps.yml", "- {name: a, skript: x}\n"),
    ]);
    let output = text(&check(folder.path(), &["--output", "json", "."]).stdout);
    let mut files: Vec<String> = output
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["file"].as_str().unwrap().to_owned())
        .collect();
    files.dedup();
    assert_eq!(files, ["steps.yml", "ci/func.yml", "ci/step.yml"]);
}

#[test]
fn functions_that_are_called_are_checked_too_and_each_only_once() {
    let broken = "{}\n---\nexec: {command: [x], workdir: y}\n";
    let folder = folder(&[
        ("a.yml", "- {name: a, func: ./lib}\n- {name: b, func: ./lib/func.yml}\n"),
        (
            "b.yml",
            "- {name: a, func: ./x/../lib}\n- {name: r, func: gitlab.com/a/b@v1}\n- {name: d, func: \"${{ env.D }}\"}\n",
        ),
        ("x/empty", ""),
        ("lib/func.yml", broken),
    ]);
    let output = check(folder.path(), &["--output", "json", "a.yml", "b.yml"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stdout).lines().count(), 1, "{output:?}");
    assert!(text(&output.stdout).contains("\"file\":\"lib/func.yml\""), "{output:?}");
}

#[test]
fn a_chain_of_calls_that_is_too_deep_is_an_error() {
    let mut files = Vec::new();
    for depth in 0..70 {
        files.push((
            format!("{depth}.yml"),
            format!("{{}}\n---\nrun: [{{name: a, func: ./{}.yml}}]\n", depth + 1),
        ));
    }
    files.push(("70.yml".to_owned(), "{}\n---\nexec: {command: [x]}\n".to_owned()));
    let files: Vec<_> = files.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    let folder = folder(&files);
    let output = check(folder.path(), &["0.yml"]);
    assert!(
        text(&output.stdout).contains("error[limit]: functions call each other more than 64 levels deep"),
        "{output:?}"
    );
    assert_eq!(check(folder.path(), &["6.yml"]).status.code(), Some(0));
}

#[test]
fn stdin_is_a_document_and_what_cannot_be_read_is_an_error() {
    let folder = folder(&[]);
    let mut child = Command::new(env!("CARGO_BIN_EXE_step-runner"))
        .args(["check", "-", "--color", "never"])
        .current_dir(folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"[{name: a, func: ./nothing}]").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("--> <stdin>:1:18"), "{output:?}");
    let output = check(folder.path(), &["nothing.yml"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("cannot read it"), "{output:?}");
    let here = check(folder.path(), &[]);
    assert!(text(&here.stdout).contains("no function file or steps document in this folder"), "{here:?}");
    fs::write(folder.path().join("latin.yml"), b"- name: a\n  script: caf\xe9\n").unwrap();
    assert!(text(&check(folder.path(), &["latin.yml"]).stdout).contains("latin.yml:2:14"));
}

#[test]
fn fingerprints_stay_when_lines_move() {
    let text_of = |before: &str| format!("{before}- {{name: a, script: \"${{{{ nope }}}}\"}}\n");
    let fingerprint = |content: &str| {
        let folder = folder(&[("s.yml", content)]);
        let report: Value =
            serde_json::from_slice(&check(folder.path(), &["--output", "gitlab", "s.yml"]).stdout).unwrap();
        (report[0]["fingerprint"].clone(), report[0]["location"]["lines"]["begin"].clone())
    };
    let (before, after) = (fingerprint(&text_of("")), fingerprint(&text_of("# one\n# two\n")));
    assert_eq!(before.0, after.0);
    assert_ne!(before.1, after.1);
}

#[test]
fn a_check_and_a_run_say_the_same_of_a_file() {
    let long = format!("spec:\n---\nexec: {{command: [echo]}}\n#{}\n", "x".repeat(1_200_000));
    let output = "spec: {outputs: {n: {type: number}}}\n---\nrun: [{name: a, script: echo ran}]\noutputs:\n  n: text\n";
    for (text_of_file, said) in [
        ("exec: {command: [echo]}\n", "the interface is missing: begin with \"spec:\" and \"---\""),
        ("- {name: a, script: echo ran}\n", "and put the list below \"run:\""),
        (&long, "definition file larger than 1 MiB"),
        (output, "func.yml:5:6"),
    ] {
        let folder = folder(&[("f/func.yml", text_of_file)]);
        let check = check(folder.path(), &["f"]);
        assert_eq!(check.status.code(), Some(1), "{said}: {check:?}");
        assert_eq!(text(&check.stdout).matches("error[").count(), 1, "{said}: {check:?}");
        assert!(text(&check.stdout).contains(said), "{said}: {check:?}");
        let mut run = Command::new(env!("CARGO_BIN_EXE_step-runner"));
        let run = run.args(["run", "--color", "never", "f"]).current_dir(folder.path()).output().unwrap();
        assert_eq!(run.status.code(), Some(65), "{said}: {run:?}");
        assert!(text(&run.stderr).starts_with(&text(&check.stdout)) && run.stdout.is_empty(), "{run:?}");
    }
}

#[test]
fn a_third_document_is_not_looked_at_and_both_say_so() {
    let both = "spec:\n---\nexec: {command: [echo, one]}\n---\n";
    for (rest, warnings) in
        [("exec: {command: [echo, two]}\n", 1), ("a: {\n", 1), ("", 0), ("# nothing\n", 0)]
    {
        let folder = folder(&[("func.yml", &format!("{both}{rest}"))]);
        let check = check(folder.path(), &[]);
        assert_eq!(
            text(&check.stdout).matches("warning[schema]: a third document").count(),
            warnings,
            "{check:?}"
        );
        let mut run = Command::new(env!("CARGO_BIN_EXE_step-runner"));
        let run = run.arg("run").current_dir(folder.path()).output().unwrap();
        assert!(run.status.success() && text(&run.stdout).ends_with("one\n"), "{rest}: {run:?}");
        assert_eq!(text(&run.stderr).matches("func.yml:4:1: a third document").count(), warnings, "{run:?}");
    }
}

#[test]
fn what_other_systems_write_is_answered_with_what_to_write_here() {
    let input =
        |declaration: &str| format!("spec: {{inputs: {{i: {declaration}}}}}\n---\nexec: {{command: [a]}}\n");
    let step = |keys: &str| format!("{{}}\n---\nrun: [{{name: a, {keys}}}]\n");
    for (content, said) in [
        (input("{type: String}"), "use string"),
        (input("{type: int}"), "use number"),
        (input("{type: list}"), "use array"),
        (input("{type: boolean, default: yes}"), "write true"),
        (input("{type: number, default: '3'}"), "write it without quotes"),
        (input("{type: string, default: null}"), "null is no default: the input \"i\" stays required"),
        (step("script: b, unless: true"), "write \"if\""),
        (step("uses: ./x"), "write \"func\""),
        (step("script: 'x ${{ env.A ? 1 : 2 }}'"), "\"a ? b : c\" is written \"a && b || c\""),
        (step("script: 'x ${{ env.A and env.B }}'"), "\"and\" is written \"&&\""),
        (step("func: file:///x"), "write the path alone: a local function starts with"),
        (step("func: 'docker://h.example/x:1'"), "drop it: an image is"),
    ] {
        let folder = folder(&[("func.yml", &content)]);
        let check = check(folder.path(), &["func.yml"]);
        assert!(text(&check.stdout).contains(said), "{said}: {check:?}");
    }
}

#[test]
fn a_function_that_cannot_be_looked_for_is_told_from_one_that_is_not_there() {
    let folder = folder(&[("s.yml", "[{name: a, func: ./loop}]")]);
    std::os::unix::fs::symlink("loop", folder.path().join("loop")).unwrap();
    let said = text(&check(folder.path(), &["s.yml"]).stdout);
    assert!(said.contains("error[io]: cannot look for func.yml or step.yml in ./loop: "), "{said}");
}

#[test]
fn a_reader_that_has_seen_enough_ends_a_check_quietly() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = Command::new(env!("CARGO_BIN_EXE_step-runner"));
    let output = command.args(["check", "schema.yml"]).current_dir(broken()).stdout(writer).output().unwrap();
    assert!(output.stderr.is_empty() && !output.status.success(), "{output:?}");
}

#[test]
fn a_run_shows_the_errors_of_its_document_as_a_check_does() {
    let folder = folder(&[("func.yml", "{}\n---\nrun:\n  - name: a b\n    script: x\n  - nam: b\n")]);
    let run = Command::new(env!("CARGO_BIN_EXE_step-runner"))
        .args(["run", "--color", "never", "func.yml"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert_eq!(run.status.code(), Some(65), "{run:?}");
    let check = check(folder.path(), &["func.yml"]);
    assert!(text(&run.stderr).starts_with(&text(&check.stdout)), "{run:?}");
}

/// Runs `run` in a folder, without colour.
fn run(folder: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_step-runner"));
    command.args(["run", "--color", "never"]).args(words).current_dir(folder).stdin(Stdio::null());
    command.output().unwrap()
}

#[test]
fn a_run_checks_its_functions_before_the_first_step() {
    let folder = folder(&[
        (
            "func.yml",
            "{}\n---\nrun:\n- {name: a, script: touch ran}\n- {name: b, func: ./lib}\n- {name: c, func: builtin://nope}\n",
        ),
        (
            "lib/func.yml",
            "spec: {inputs: {n: {type: number}}}\n---\nexec: {command: [echo, '${{ inputs.m }}']}\n",
        ),
    ]);
    let check = check(folder.path(), &["func.yml"]);
    assert_eq!(text(&check.stdout).matches("error[").count(), 3, "{check:?}");
    let output = run(folder.path(), &["func.yml"]);
    assert_eq!(output.status.code(), Some(65), "{output:?}");
    assert!(text(&output.stderr).starts_with(&text(&check.stdout)), "{output:?}");
    assert!(
        text(&output.stderr)
            .ends_with("step-runner: 3 errors in 2 files; correct that, or run with --no-check\n")
    );
    assert!(!folder.path().join("ran").exists());
    let output = run(folder.path(), &["--no-check", "func.yml"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(folder.path().join("ran").exists());
}

#[test]
fn a_run_of_stdin_or_of_a_reference_is_checked_too() {
    let folder = folder(&[("lib/func.yml", "{}\n---\nexec: {command: [echo]}\n"), ("work/x", "")]);
    let stdin = |words: &[&str]| {
        let mut child = Command::new(env!("CARGO_BIN_EXE_step-runner"))
            .args(["run", "-"])
            .args(words)
            .current_dir(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let steps = b"[{name: a, script: touch ran}, {name: b, func: ./lib}]";
        child.stdin.take().unwrap().write_all(steps).unwrap();
        child.wait_with_output().unwrap()
    };
    assert!(stdin(&[]).status.success());
    let output = stdin(&["--work-dir", "work"]);
    assert_eq!(output.status.code(), Some(65), "{output:?}");
    assert!(text(&output.stderr).contains("no func.yml or step.yml in ./lib"), "{output:?}");
    assert!(!folder.path().join("work/ran").exists());
    let output = run(folder.path(), &["builtin://scirpt"]);
    assert_eq!(output.status.code(), Some(65), "{output:?}");
    assert!(text(&output.stderr).contains("did you mean \"script\"?"), "{output:?}");
}

#[test]
fn a_function_that_an_earlier_step_may_write_does_not_stop_a_run() {
    let make = "mkdir -p made/lib; printf '{}\\n---\\nexec: {command: [echo, made]}\\n' > made/lib/func.yml";
    let folder = folder(&[(
        "steps.yml",
        &format!(
            "- {{name: a, script: \"{}\"}}\n- {{name: b, func: ./made/lib}}\n",
            make.replace('\\', "\\\\")
        ),
    )]);
    let output = run(folder.path(), &["steps.yml"]);
    assert!(output.status.success() && text(&output.stdout).contains("made\n"), "{output:?}");
}

#[test]
fn a_script_that_goes_on_after_a_failure_is_warned_of_at_its_line() {
    let folder = folder(&[
        (
            "func.yml",
            "{}\n---\nrun:\n- name: a\n  script: |\n    echo start\n    false | cat\n    cd .\n    echo done\n- {name: b, func: ./sh}\n",
        ),
        (
            "sh/func.yml",
            "{}\n---\nexec:\n  command:\n  - bash\n  - -c\n  - |\n    cd .\n    echo ${{ func_dir }}\n",
        ),
    ]);
    let output = check(folder.path(), &["func.yml"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(
        text(&output.stdout).starts_with("warning[shell]: the script goes on if this line fails"),
        "{output:?}"
    );
    for place in ["--> func.yml:7:5", "--> sh/func.yml:8:5"] {
        assert!(text(&output.stdout).contains(place), "{output:?}");
    }
    let output = check(folder.path(), &["--allow", "shell", "func.yml"]);
    assert!(output.stdout.is_empty() && !text(&output.stderr).contains("warning"), "{output:?}");
    let output = run(folder.path(), &[]);
    assert!(output.status.success(), "{output:?}");
    for place in ["warning[shell]", "func.yml:7:5", "--> sh/func.yml:8:5"] {
        assert!(text(&output.stderr).contains(place), "{place}: {output:?}");
    }
    for quiet in [["--allow", "name,shell"].as_slice(), &["-q"], &["--no-check"]] {
        let output = run(folder.path(), quiet);
        assert!(output.status.success() && !text(&output.stderr).contains("warning"), "{quiet:?} {output:?}");
    }
    let output = check(folder.path(), &["--allow", "shel", "func.yml"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

#[test]
fn a_definition_file_with_a_slip_in_its_name_is_named() {
    let content = "{}\n---\nexec: {command: [echo]}\n";
    let folder = folder(&[
        ("one/func.yaml", content),
        ("two/func.yml", content),
        ("two/step.yaml", content),
        ("calls.yml", "- {name: a, func: ./one}\n- {name: b, func: ./one/func.yaml}\n"),
    ]);
    let remedy = "there is a func.yaml, which is not looked for: rename it to func.yml";
    for output in
        [run(folder.path(), &["one"]), check(folder.path(), &["one"]), check(folder.path(), &["calls.yml"])]
    {
        assert!(!output.status.success(), "{output:?}");
        assert!((text(&output.stdout) + &text(&output.stderr)).contains(remedy), "{output:?}");
    }
    let output = check(folder.path(), &["calls.yml"]);
    assert!(
        text(&output.stdout).contains("a function file has a name that ends in .yml: rename it"),
        "{output:?}"
    );
    let output = check(folder.path(), &["two"]);
    assert!(text(&output.stdout).contains("step.yaml is in the same folder and is never read"), "{output:?}");
    assert!(run(folder.path(), &["one/func.yaml"]).status.success());
}
