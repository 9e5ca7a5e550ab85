//! Jobs of a `run` without a daemon, in a folder with a document.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::{program, stderr, stdout};
use crate::support::parts;

/// A folder with the job `job.yml`.
pub(super) struct Here(tempfile::TempDir);

impl Here {
    pub(super) fn new(job: &str) -> Self {
        let here = Self(tempfile::tempdir().unwrap());
        here.write("job.yml", job);
        here
    }

    pub(super) fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).unwrap();
        std::fs::write(path, text).unwrap();
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Runs the program with these arguments there.
    pub(super) fn program(&self, words: &[&str]) -> Output {
        program(words).current_dir(self.0.path()).output().unwrap()
    }

    /// Runs the job.
    pub(super) fn run(&self) -> Output {
        self.program(&["run", "job.yml"])
    }

    /// Runs the job, which must succeed. Returns its output.
    #[track_caller]
    pub(super) fn output(&self) -> String {
        let output = self.run();
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output)
    }
}

#[test]
fn bug_script_that_begins_with_a_dash() {
    let shown = |text: &str| serde_json::to_string(text).unwrap();
    for (text, code) in [
        ("- echo hi", 127),
        ("-x", 127),
        ("+e", 127),
        ("--version", 127),
        ("--", 127),
        ("-c 'echo no'", 127),
        ("-", 127),
        ("-() { echo of the function; }; -", 0),
        ("+ || echo on", 0),
    ] {
        let here = Here::new(&format!("- name: a\n  script: {}\n", shown(text)));
        let output = here.run();
        let said = stderr(&output);
        assert!(!said.contains("option") && !said.contains("Usage"), "{text}: {said}");
        assert!(!stdout(&output).contains("GNU bash"), "{text}: {output:?}");
        assert_eq!(output.status.code() == Some(0), code == 0, "{text}: {output:?}");
        assert!(code == 0 || said.contains(&format!("exit code  {code}")), "{text}: {said}");
    }
}

/// Each shell that a script can get takes the same arguments.
#[test]
fn every_shell_takes_a_script_behind_its_options() {
    let shells: [&[&str]; 5] = [&["bash"], &["dash"], &["sh"], &["busybox", "ash"], &["ksh"]];
    for words in shells {
        let (shell, rest) = words.split_first().unwrap();
        let mut command = std::process::Command::new(shell);
        command.args(rest).args(["-c", "--", "-x || echo $0 on", "name"]);
        // A shell that is not installed is of no use to a job either.
        let Ok(output) = command.output() else { continue };
        assert_eq!(stdout(&output), "name on\n", "{words:?}: {output:?}");
    }
}

#[test]
fn bug_pwd_of_the_caller() {
    let here = Here::new("");
    std::fs::create_dir(here.path("sub")).unwrap();
    std::os::unix::fs::symlink("sub", here.path("link")).unwrap();
    // As the program sees it.
    let folder = here.path("").canonicalize().unwrap();
    let at = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let root = |lines: &str| format!("spec: {{}}\n---\nexec:\n  command: [env]\n{lines}");
    let step = |lines: &str| format!("- {{name: a, func: ./f.yml, {lines}}}\n");
    let function = root("  work_dir: sub\n");
    for (job, pwd, oldpwd) in [
        (root("  work_dir: sub\n"), at("sub"), None),
        (root("  work_dir: ./link\n"), at("link"), None),
        (root("  work_dir: /\n"), "/".to_owned(), None),
        (root(""), folder.to_str().unwrap().to_owned(), None),
        (step("inputs: {}"), at("sub"), None),
        (step("env: {PWD: mine}"), "mine".to_owned(), None),
        (step("env: {OLDPWD: /before}"), at("sub"), Some("/before")),
        (
            "{}\n---\nenv: {PWD: of the root}\nrun:\n- {name: a, func: ./f.yml}\n".to_owned(),
            "of the root".to_owned(),
            None,
        ),
        ("- {name: a, script: env}\n".to_owned(), folder.to_str().unwrap().to_owned(), None),
    ] {
        here.write("job.yml", &job);
        here.write("f.yml", &function);
        // What a shell would tell of where it is.
        let words = ["run", "job.yml", "--env", "OLDPWD=/of/the/request", "--env", "PWD=/of/the/request"];
        for words in [&words[..2], &words] {
            let mut command = program(words);
            command.current_dir(&folder).env("PWD", "/of/the/caller").env("OLDPWD", "/of/the/caller/before");
            let output = command.output().unwrap();
            assert!(output.status.success(), "{job}: {}", stderr(&output));
            let shown = stdout(&output);
            let value =
                |name: &str| shown.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
            assert_eq!(value("PWD="), Some(pwd.clone()), "{job}: {words:?}");
            assert_eq!(value("OLDPWD=").as_deref(), oldpwd, "{job}: {words:?}");
        }
    }
}

#[test]
fn bug_too_long_for_a_process() {
    if !parts::has_program("bug_too_long_for_a_process", "python3") {
        return;
    }
    let export = |name: &str, value: &str| {
        format!(
            "- name: a\n  script: |\n    python3 -c 'import json; print(json.dumps({{\"name\": \"{name}\", \"value\": {value}}}))' \
             >> \"${{{{ export_file }}}}\"\n- name: b\n  script: echo hi\n"
        )
    };
    let big = "x".repeat(131_072);
    for (job, step, says) in [
        (export("BIG", "\"z\" * 200000"), "a", &["export \"BIG\"", "200004 bytes", "131071"][..]),
        (export("EDGE", "\"z\" * (131071 - 4)"), "a", &["export \"EDGE\"", "131072 bytes"]),
        (export("N", "\"z\\0z\""), "a", &["export \"N\"", "NUL"]),
        (export("A=B", "\"z\""), "a", &["export \"A…\"", "\"=\""]),
        (export("A\\0", "\"z\""), "a", &["export", "NUL"]),
        (
            format!("- {{name: b, script: echo hi, env: {{BIG: {big}}}}}\n"),
            "b",
            &["the variable BIG has 131076 bytes", "131071"],
        ),
        (
            format!("- name: b\n  func: ./f.yml\n  inputs: {{s: {big}}}\n"),
            "b",
            &["command[1] has 131072 bytes", "131071"],
        ),
        (
            "- {name: b, script: \"echo hi \\0\"}\n".to_owned(),
            "b",
            &["the text of the script holds a NUL byte"],
        ),
        (
            "- {name: b, script: echo, env: {N: \"x\\0y\"}}\n".to_owned(),
            "b",
            &["the variable N holds a NUL byte"],
        ),
        (
            "- {name: b, func: ./f.yml, inputs: {s: \"x\\0y\"}}\n".to_owned(),
            "b",
            &["command[1] holds a NUL byte"],
        ),
    ] {
        let here = Here::new(&job);
        here.write(
            "f.yml",
            "spec: {inputs: {s: {type: string}}}\n---\nexec: {command: [echo, '${{ inputs.s }}']}\n",
        );
        let output = here.program(&["run", "job.yml", "--no-check"]);
        let said = stderr(&output);
        let job = job.get(..300).unwrap_or(&job);
        assert_eq!(output.status.code(), Some(1), "{job}: {said}");
        assert!(said.contains(&format!("step       {step}\n")), "{job}: {said}");
        for words in says {
            assert!(said.contains(words), "{job}: {words}: {said}");
        }
    }
    // The longest value that fits gets through.
    let job = export("EDGE", "\"z\" * (131071 - 5)").replace("echo hi", "echo ${#EDGE}");
    assert_eq!(Here::new(&job).output(), "131066\n");
}

/// Text of the summary behind its labels.
fn summary(said: &str, label: &str) -> Option<String> {
    let line = said.lines().find_map(|line| line.strip_prefix("  ")?.strip_prefix(label))?;
    Some(line.trim().to_owned())
}

#[test]
fn bug_report_names_a_file_that_is_gone() {
    let legacy = |inputs: &str| format!("- name: a\n  func: builtin://script_legacy\n  inputs:\n{inputs}");
    let long = "x".repeat(131_072);
    for (job, line, marked) in [
        (legacy("    script:\n      - echo one\n      - nosuchcommand --flag\n"), 6, "nosuchcommand --flag"),
        // Without a report of the shell.
        (legacy("    script:\n      - 'false'\n      - echo never\n"), 5, "false"),
        (
            legacy("    script:\n      - echo a\n      - 'true'\n      - echo a; exit 3\n"),
            7,
            "echo a; exit 3",
        ),
        // Of equal commands it is the second.
        (legacy("    script:\n      - touch f\n      - rm f\n      - touch g\n      - rm f\n"), 8, "rm f"),
        (
            legacy(
                "    script:\n      - echo one\n      - |\n        echo two\n        nosuchcommand\n        echo never\n",
            ),
            7,
            "echo two",
        ),
        (
            legacy(
                "    trace_sections: true\n    check_for_errors: true\n    script:\n      - |\n        echo two\n        echo 2\n      - nosuchcommand\n",
            ),
            10,
            "nosuchcommand",
        ),
        (
            format!("- name: a\n  script: |\n    : {long}\n    echo on\n    nosuchcommand\n"),
            5,
            "nosuchcommand",
        ),
    ] {
        let here = Here::new(&job);
        let output = here.run();
        let said = stderr(&output);
        let shown: String = job.chars().take(300).collect();
        assert_ne!(output.status.code(), Some(0), "{shown}");
        assert_eq!(summary(&said, "at "), Some(format!("job.yml:{line}")), "{shown}: {said}");
        let command = said.split_once("  command ").unwrap().1.split_once("  exit code ").unwrap().0;
        assert!(!command.contains("/tmp/"), "{shown}: {command}");
        let mark: Vec<_> = command.lines().filter_map(|line| line.trim_start().strip_prefix("> ")).collect();
        assert_eq!(mark, [marked], "{shown}: {command}");
    }
}

/// Runs the job with its temporary folder on a file system of its own with these options, alone in a namespace.
fn run_on_a_small_disk(here: &Here, options: &str) -> Output {
    std::fs::create_dir_all(here.path("small")).unwrap();
    let script = format!("mount -t tmpfs -o {options} none small && TMPDIR=$PWD/small exec \"$@\"");
    let plain = program(&["run", "job.yml"]);
    let mut command = std::process::Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script, "sh"]).arg(plain.get_program()).args(plain.get_args());
    command.current_dir(here.path("")).stdin(std::process::Stdio::null());
    command.output().unwrap()
}

#[test]
fn bug_small_temporary_folder() {
    const TEST: &str = "bug_small_temporary_folder";
    if !rustix::process::geteuid().is_root() {
        return parts::skipped(TEST, "root");
    }
    if !parts::has_namespaces(TEST) || !parts::has_program(TEST, "mount") {
        return;
    }
    let here = Here::new("- {name: a, script: echo hi}\n");
    // A client waits 30 s for room. Nothing else of a start takes seconds.
    let begun = std::time::Instant::now();
    for (options, says) in [
        ("size=50m", &["MiB are free in ", "/small, and 64.0 MiB are to be free"][..]),
        ("size=64k", &["KiB are free in ", "/small, "]),
        ("nr_inodes=6", &["/small has no room for more files"]),
    ] {
        let output = run_on_a_small_disk(&here, options);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(75), "{options}: {said}");
        assert!(says.iter().all(|words| said.contains(words)), "{options}: {said}");
        assert!(said.contains("set TMPDIR to a folder with more space"), "{options}: {said}");
        assert_eq!(said.lines().count(), 1, "{options}: {said}");
    }
    assert!(begun.elapsed() < std::time::Duration::from_secs(25));
    let output = run_on_a_small_disk(&here, "size=100m");
    assert_eq!(stdout(&output), "hi\n", "{}", stderr(&output));
}

#[test]
fn one_step_alone_is_a_job() {
    let function = "spec: {inputs: {s: {type: string, default: none}}}\n---\nexec: {command: [echo, '${{ inputs.s }}']}\n";
    for (job, output) in [
        ("{\"name\": \"a\", \"script\": \"echo hi\"}", "hi\n"),
        ("{\"script\": \"echo hi\"}", "hi\n"),
        ("name: a\nfunc: ./f.yml\ninputs: {s: x}\n", "x\n"),
        ("name: a\nstep: ./f.yml\n", "none\n"),
        ("script: echo $A\nenv: {A: b}\ndescription: x\n", "b\n"),
    ] {
        let here = Here::new(job);
        here.write("f.yml", function);
        assert_eq!(here.output(), output, "{job}");
        let check = here.program(&["check", "job.yml"]);
        assert!(check.status.success(), "{job}: {check:?}");
        let mut piped = program(&["run", "-"]);
        piped.current_dir(here.path("")).stdin(std::fs::File::open(here.path("job.yml")).unwrap());
        let piped = piped.output().unwrap();
        assert_eq!(stdout(&piped), output, "{job}: {}", stderr(&piped));
    }
    for (job, says) in [
        ("name: a\nscript: x\nfunc: ./f.yml\n", "only one of script, func is allowed"),
        ("name: a b\nscript: x\n", "name"),
        ("script: x\niff: true\n", "unknown key \"iff\""),
        ("script: x\nrun: [{name: a, script: x}]\n", "\"script\" belongs into a step"),
        ("name: a\n", "belongs into a step"),
    ] {
        let output = Here::new(job).run();
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(65), "{job}: {said}");
        assert!(said.contains(says), "{job}: {said}");
    }
    // A function file needs its interface.
    let here = Here::new("");
    here.write("f/func.yml", "script: echo hi\n");
    let output = here.program(&["run", "f"]);
    assert_eq!(output.status.code(), Some(65), "{output:?}");
}

#[test]
fn the_summary_is_about_the_step_that_made_the_job_fail() {
    let folder = tempfile::tempdir().unwrap();
    let called = "spec:\n---\nrun:\n- {name: x, script: 'echo of x; exit 7'}\n";
    let steps = "- {name: a, func: ./called}\n- {name: never, script: echo never}\n\
                 - {name: t, when: always, timeout: 1s, script: 'echo of t; sleep 60'}\n";
    std::fs::create_dir(folder.path().join("called")).unwrap();
    std::fs::write(folder.path().join("called/func.yml"), called).unwrap();
    std::fs::write(folder.path().join("steps.yml"), steps).unwrap();
    let output = program(&["run", "steps.yml"]).current_dir(folder.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    let said = stderr(&output);
    for part in
        ["  step       a/x\n", "'echo of x; exit 7'", "  exit code  7\n", "called/func.yml:4", "out  of x"]
    {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(!said.contains("of t") && !said.contains("step       t"), "{said}");
}

#[test]
fn lines_that_stand_above_the_summary_are_not_repeated() {
    let steps = "[{name: a, script: 'echo one; echo two >&2; exit 3'}]";
    let run = |redirect: &str| {
        let shell = format!("printf '%s' \"$2\" | \"$1\" run - {redirect}");
        let mut command = Command::new("bash");
        command.args(["-c", &shell, "bash", env!("CARGO_BIN_EXE_step-runner"), steps]);
        command.env_remove("CI").output().unwrap()
    };
    let both = stdout(&run("2>&1"));
    assert!(both.matches("one").count() == 2 && !both.contains("end of its"), "{both}");
    let apart = run("");
    let said = stderr(&apart);
    assert_eq!(stdout(&apart), "one\n");
    assert!(said.contains("end of its stdout:") && said.contains("out  one"), "{said}");
    assert!(!said.contains("err  two"), "{said}");
}

#[test]
fn quiet_prints_the_output_of_the_steps_alone() {
    let here = Here::new("- {name: a, script: 'echo out; echo err >&2'}\n- {name: b, script: exit 3}\n");
    let output = program(&["run", "-q", "job.yml"]).current_dir(here.path("")).output().unwrap();
    let said = stderr(&output);
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(3), "out\n"));
    assert!(said.starts_with("err\n") && !said.contains("Running step"), "{said}");
    assert!(said.contains("failed: step \"b\"") && said.contains("step       b"), "{said}");
}
