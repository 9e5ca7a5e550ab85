//! The first ten minutes with the program: a folder, a function, and typical mistakes (cli.md, language.md §18).

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read as _};
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// A function that requires a name and accepts a number.
const GREET: &str = r#"spec:
  inputs:
    name: {type: string}
    times: {type: number, default: 1}
  outputs:
    greeting: {type: string}
---
exec:
  command:
    - sh
    - -c
    - echo "$GREETING $1" "$2"; echo "$3" >> "$4"
    - greet
    - ${{ inputs.name }}
    - ${{ inputs.times }}
    - '${{ str({name: "greeting", value: "Hello, " + inputs.name}) }}'
    - ${{ output_file }}
"#;

/// A folder that holds the function in `greet`.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        fs::create_dir(folder.path().join("greet")).unwrap();
        folder.file("greet/func.yml", GREET);
        folder
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn file(&self, name: &str, content: &str) {
        fs::write(self.path().join(name), content).unwrap();
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_step-runner"));
        command.args(words).current_dir(self.path()).stdin(Stdio::null()).env_clear();
        command.envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
        command
    }

    fn run(&self, words: &[&str]) -> Output {
        self.command(&[&["run"], words].concat()).output().unwrap()
    }

    /// Runs the program, which must fail with `code`. Returns its stderr.
    #[track_caller]
    fn fails(&self, words: &[&str], code: i32) -> String {
        let output = self.run(words);
        assert_eq!(output.status.code(), Some(code), "{words:?} {output:?}");
        assert!(output.stdout.is_empty(), "{words:?} {output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    /// Runs the program, which must succeed. Returns its stdout.
    #[track_caller]
    fn prints(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert!(output.status.success(), "{words:?} {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

#[test]
fn an_empty_folder_and_a_missing_file_say_what_to_name() {
    let folder = Folder::new();
    for words in [[].as_slice(), &["."], &["nope.yml"], &["./nope"], &["nope"]] {
        let said = folder.fails(words, 65);
        assert!(said.contains("name a function file, a folder that holds one"), "{words:?} {said}");
    }
}

#[test]
fn a_file_its_folder_and_a_list_on_stdin_are_the_same_function() {
    let folder = Folder::new();
    let expected = " Ada 2\n";
    for target in ["greet", "greet/func.yml", "./greet"] {
        assert_eq!(folder.prints(&[target, "--input", "name=Ada", "--input", "times=2"]), expected);
    }
    folder.file("list", "[{name: a, func: ./greet, inputs: {name: Ada, times: 2}}]");
    let stdin = File::open(folder.path().join("list")).unwrap();
    let output = folder.command(&["run", "-"]).stdin(stdin).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
}

#[test]
fn every_wrong_input_is_named_at_once_with_its_place() {
    let folder = Folder::new();
    let said = folder.fails(&["greet", "--input", "nam=x", "--input", "times=often"], 65);
    for part in [
        "greet/func.yml:3:5",
        r#"input "name" required"#,
        r#"did you mean "name"?"#,
        "greet/func.yml:4:5",
        "--input times: expected number, got string",
        "for example --input times=4",
        "--input name=VALUE; it is declared as string",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    for part in ["malformed", "num()", "daemon", "error["] {
        assert!(!said.contains(part), "{part}: {said}");
    }
}

#[test]
fn what_the_function_returned_is_told_but_not_on_stdout_and_not_quietly() {
    let folder = Folder::new();
    for format in ["plain", "pretty"] {
        let output = folder.run(&["greet", "--input", "name=Ada", "--output", format]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.ends_with("greeting = Hello, Ada\n"), "{format}: {said}");
    }
    for words in
        [["--quiet", "--output", "pretty"], ["--output", "raw", "--merge"], ["--output", "json", "--all"]]
    {
        let output = folder.run(&[["greet", "--input", "name=Ada"].as_slice(), &words].concat());
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{words:?}");
    }
}

#[test]
fn a_misspelt_key_is_the_only_error_and_names_what_was_meant() {
    let folder = Folder::new();
    for (text, meant) in [
        ("spec:\n---\nexec: {comand: [echo]}\n", "command"),
        ("run: [{nmae: a, script: b}]\n", "name"),
        ("run: [{name: a, scirpt: b}]\n", "script"),
        ("spec:\n---\nexce: {command: [echo]}\n", "exec"),
    ] {
        folder.file("bad.yml", text);
        let said = folder.fails(&["bad.yml"], 65);
        assert!(said.contains(&format!("did you mean \"{meant}\"?")), "{said}");
        assert!(
            said.contains("bad.yml has 1 error") && !said.contains("missing") && !said.contains("needed"),
            "{said}"
        );
    }
}

#[test]
fn a_reference_stands_in_messages_without_a_place() {
    let folder = Folder::new();
    let output = folder.run(&["--no-check", "builtin://scirpt", "--output", "raw"]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("builtin \"scirpt\" was not found; did you mean \"script\"?"), "{said}");
    assert!(said.contains("function   builtin://scirpt") && !said.contains(":1:2"), "{said}");
}

#[test]
fn values_on_the_command_line_need_no_quotes_where_text_is_declared() {
    let folder = Folder::new();
    for value in ["3.10", "[1", "a: b", "yes", "", "it's \"$HOME\""] {
        let printed = folder.prints(&["greet", "--input", &format!("name={value}")]);
        assert_eq!(printed, format!(" {value} 1\n"));
    }
}

#[test]
fn env_and_var_reach_the_environment_and_vars() {
    let folder = Folder::new();
    assert_eq!(folder.prints(&["greet", "--input", "name=x", "--env", "GREETING=hi"]), "hi x 1\n");
    folder.file("vars.yml", "[{name: a, script: 'echo ${{ vars.V }}'}]");
    assert_eq!(folder.prints(&["vars.yml", "--var", "V=7"]), "7\n");
    assert!(folder.fails(&["vars.yml"], 1).contains("vars.yml:1:35"));
    assert!(folder.fails(&["vars.yml", "--env", "NOPE"], 2).contains("NOPE"));
}

#[test]
fn file_variables_of_jobs_in_one_folder_are_apart_and_replace_no_file_beside_it() {
    let folder = Folder::new();
    for name in ["project", "project.tmp"] {
        fs::create_dir(folder.path().join(name)).unwrap();
    }
    folder.file("project.tmp/NETRC", "of the user");
    folder.file("one", "first");
    folder.file("two", "second");
    folder.file("inner.yml", "- {name: inner, script: 'cat \"$NETRC\"'}\n");
    let inner = format!(
        "{} run -q inner.yml --work-dir project --file-var NETRC=two",
        env!("CARGO_BIN_EXE_step-runner")
    );
    folder.file("outer.yml", &format!("- {{name: outer, script: 'cd .. && {inner} && cat \"$NETRC\"'}}\n"));
    let words = ["-q", "outer.yml", "--work-dir", "project", "--file-var", "NETRC=one", "--output", "raw"];
    let printed = folder.prints(&words);
    assert!(printed.contains("second") && printed.contains("first"), "{printed}");
    assert_eq!(fs::read_to_string(folder.path().join("project.tmp/NETRC")).unwrap(), "of the user");
}

#[test]
fn all_mistakes_of_a_file_are_named_at_once() {
    let folder = Folder::new();
    folder.file(
        "many.yml",
        "spec:\n---\nrun:\n  - {name: b c, func: ./greet}\n  - {name: d, func: ./greet, iff: true}\n",
    );
    let said = folder.fails(&["many.yml"], 65);
    assert!(said.contains("many.yml:4:12") && said.contains("not a valid step name"), "{said}");
    assert!(said.contains("many.yml:5:30") && said.contains(r#"unknown key "iff""#), "{said}");
}

#[test]
fn results_hold_what_the_function_returned() {
    let folder = Folder::new();
    folder.prints(&["greet", "--input", "name=Ada", "--results", "results.json"]);
    let text = fs::read_to_string(folder.path().join("results.json")).unwrap();
    let results: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(results["outputs"]["greeting"], "Hello, Ada");
}

#[test]
fn results_that_cannot_be_written_are_refused_before_the_job_starts() {
    let folder = Folder::new();
    for (file, said) in [
        ("nowhere/r.json", "the folder nowhere"),
        ("greet", "greet is a folder"),
        ("-", "stdout carries the log"),
        ("greet/func.yml/r.json", "greet/func.yml"),
    ] {
        let text = folder.fails(&["greet", "--input", "name=Ada", "--results", file], 2);
        assert!(text.contains(said), "{file}: {text}");
    }
    assert!(!folder.path().join("-").exists());
    // A run that fails early leaves no results file, although the path was checked.
    folder.fails(&["nope", "--results", "r.json"], 65);
    assert!(!folder.path().join("r.json").exists());
    // A symlink to a file that does not exist yet stays a symlink.
    std::os::unix::fs::symlink("real.json", folder.path().join("link.json")).unwrap();
    folder.prints(&["greet", "--input", "name=Ada", "--results", "link.json"]);
    assert!(folder.path().join("link.json").is_symlink() && folder.path().join("real.json").is_file());
    std::os::unix::fs::symlink("nowhere/real.json", folder.path().join("lost.json")).unwrap();
    let text = folder.fails(&["greet", "--input", "name=Ada", "--results", "lost.json"], 2);
    assert!(text.contains("the folder nowhere"), "{text}");
}

#[test]
fn a_run_that_is_told_to_end_gives_the_job_its_grace_and_leaves_nothing() {
    let folder = Folder::new();
    let temporary = folder.path().join("tmp");
    fs::create_dir(&temporary).unwrap();
    folder.file(
        "up.yml",
        "[{name: a, script: 'trap \"echo bye; exit 0\" TERM; echo up; while :; do sleep 0.01; done'}]",
    );
    let mut command = folder.command(&["run", "up.yml"]);
    command.env("TMPDIR", &temporary).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 2]).unwrap();
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(143), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "\nbye\n");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("was cancelled") && !said.contains("was cancelled: a client"), "{said}");
    assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0);
}

#[test]
fn a_run_that_is_told_to_end_at_any_moment_of_its_start_leaves_no_folder() {
    let folder = Folder::new();
    let temporary = folder.path().join("tmp");
    fs::create_dir(&temporary).unwrap();
    folder.file("nap.yml", "[{name: a, script: exec sleep 60}]");
    // The start takes some 20 ms.
    for moment in 0..40 {
        let mut command = folder.command(&["run", "nap.yml"]);
        command.env("TMPDIR", &temporary).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(moment));
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let status = child.wait().unwrap();
        assert!(!status.success(), "after {moment} ms: {status}");
        assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0, "after {moment} ms: {status}");
    }
}

#[test]
fn without_a_daemon_nobody_is_said_to_have_refused_the_job() {
    let folder = Folder::new();
    folder.file("file", "");
    let text = folder.fails(&["greet", "--input", "name=Ada", "--work-dir", "file/inside"], 65);
    assert!(text.contains("cannot start the job: ") && text.contains("file/inside"), "{text}");
    assert!(!text.contains("daemon") && !text.contains("not_writable"), "{text}");
}

#[test]
fn the_command_of_a_script_names_the_shell_that_ran_it() {
    let folder = Folder::new();
    let long = format!(": {}; echo $0; exit 3", "x".repeat(200_000));
    for script in ["echo $0; exit 3", &long] {
        folder.file("list.yml", &format!("[{{name: a, script: '{script}'}}]"));
        let output = folder.run(&["list.yml", "--results", "results.json", "--output", "raw"]);
        let text = fs::read_to_string(folder.path().join("results.json")).unwrap();
        let results: serde_json::Value = serde_json::from_str(&text).unwrap();
        let command = &results["sub_step_results"][0]["exec_result"]["command"];
        let said = String::from_utf8(output.stderr).unwrap();
        let shell = command[0].as_str().unwrap();
        assert!(said.contains(&format!("command    {shell}")), "{said}");
        let printed = String::from_utf8(output.stdout).unwrap();
        // For a script that is passed as a file, `$0` is the path of that file.
        let zero = if script == long { &command[1] } else { &command[0] };
        assert!(
            printed.lines().any(|line| line.ends_with(&format!("O {}", zero.as_str().unwrap()))),
            "{printed}"
        );
        let first = ["bash", "sh"].into_iter().find(|name| {
            let folders = ["/usr/local/bin", "/usr/bin", "/bin"];
            folders.iter().any(|folder| Path::new(folder).join(name).exists())
        });
        assert_eq!(Some(shell), first);
    }
}

#[test]
fn functions_that_call_each_other_in_a_circle_are_named_once() {
    let folder = Folder::new();
    let calls =
        |name: &str, callee: &str| format!("spec:\n---\nrun: [{{name: {name}, func: ../{callee}}}]\n");
    for (folder_name, name, callee) in [("in", "first", "one"), ("one", "a", "two"), ("two", "b", "one")] {
        fs::create_dir(folder.path().join(folder_name)).unwrap();
        folder.file(&format!("{folder_name}/func.yml"), &calls(name, callee));
    }
    let output = folder.run(&["--no-check", "in", "--output", "raw"]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("step \"first\": step \"a\": step \"b\": failed to load: "), "{said}");
    assert!(said.contains("two/func.yml:3:7: run[0]: the function calls itself"), "{said}");
    assert!(said.len() < 1_000, "{said}");
}

#[test]
fn what_a_function_returned_wrongly_is_told_with_its_place() {
    let folder = Folder::new();
    folder.file(
        "n.yml",
        "spec: {outputs: {n: {type: number}}}\n---\nexec:\n  command: ['true', '${{ output_file }}']\n",
    );
    let said = folder.run(&["n.yml", "--output", "raw"]).stderr;
    let said = String::from_utf8(said).unwrap();
    assert!(said.contains("n.yml:3:1: exec: output \"n\" was not written and has no default"), "{said}");
}

#[test]
fn an_interpreter_that_is_not_there_is_named() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = Folder::new();
    folder.file("x.sh", "#!/no/such/shell -e\necho\n");
    fs::set_permissions(folder.path().join("x.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    folder.file("x.yml", "exec: {command: [./x.sh]}\n");
    let said = || String::from_utf8(folder.run(&["x.yml", "--output", "raw"]).stderr).unwrap();
    let first = said();
    assert!(first.contains("cannot execute ./x.sh: its interpreter /no/such/shell is not there"), "{first}");
    // The carriage return of a Windows line end is part of the interpreter's name.
    folder.file("x.sh", "#!/bin/sh\r\necho\r\n");
    let second = said();
    assert!(second.contains(r"its interpreter /bin/sh\r is not there"), "{second}");
}

#[test]
fn of_many_variables_the_similar_ones_are_named() {
    let folder = Folder::new();
    folder.file("env.yml", "[{name: a, script: 'echo ${{ env.DEPLOY_TARGETS_URL }}'}]");
    let mut command = folder.command(&["run", "env.yml", "--output", "raw"]);
    command.envs((0..40).map(|number| (format!("OTHER_{number}"), "x"))).env("DEPLOY_HOST", "x");
    let said = String::from_utf8(command.output().unwrap().stderr).unwrap();
    assert!(said.contains("\"DEPLOY_TARGETS_URL\" was not found (known: DEPLOY_HOST, "), "{said}");
    assert!(said.contains(" more)") && said.matches("OTHER_").count() < 20, "{said}");
}

#[test]
fn json_output_is_one_object_a_line_that_ends_with_the_job() {
    let folder = Folder::new();
    let printed = folder.prints(&["greet", "--input", "name=Ada", "--output", "json"]);
    let events: Vec<serde_json::Value> =
        printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |kind: &str| events.iter().filter(|event| event["event"] == kind).count();
    assert!(of("log") == 2 && of("step") == 1 && of("end") == 1, "{printed}");
    assert_eq!(events.last().unwrap()["job"]["state"], "success");
}

#[test]
fn both_outputs_in_one_file_keep_order_and_whole_lines() {
    let folder = Folder::new();
    folder.file("two.yml", "[{name: a, script: 'echo 1; echo 2'}, {name: b, script: 'echo 3'}]");
    let path = folder.path().join("all");
    let all = File::create(&path).unwrap();
    let mut command = folder.command(&["run", "two.yml"]);
    command.stdout(all.try_clone().unwrap()).stderr(all);
    assert!(command.status().unwrap().success());
    let expected = "Running step name=a\n1\n2\nRunning step name=b\n3\n";
    assert_eq!(fs::read_to_string(path).unwrap(), expected);
}

#[test]
fn a_reader_of_lines_gets_each_line_while_the_step_goes_on() {
    let folder = Folder::new();
    folder.file(
        "server.yml",
        "[{name: server, script: 'echo listening; until test -e go; do sleep 0.1; done'}]",
    );
    for format in ["plain", "pretty"] {
        let mut child = folder
            .command(&["run", "server.yml", "--output", format, "--timeout", "1m"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        assert!(lines.any(|line| line.ends_with("listening")), "{format}");
        folder.file("go", "");
        lines.for_each(drop);
        assert!(child.wait().unwrap().success(), "{format}: the line came only with the job's end");
        fs::remove_file(folder.path().join("go")).unwrap();
    }
}
