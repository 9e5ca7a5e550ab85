use std::io::Write as _;
use std::process::{Command, Output};

use proptest::prelude::*;

use super::*;

/// Returns the installed shells. `sh` is dash on most CI machines.
fn shells() -> Vec<&'static str> {
    let found = |name: &&str| Command::new(*name).args(["-c", ":"]).output().is_ok();
    let shells: Vec<_> = ["bash", "sh", "dash", "busybox"].into_iter().filter(found).collect();
    assert!(!shells.is_empty(), "no shell");
    shells
}

/// Runs a text from a file, as the builtin does.
fn run_with(shell: &str, text: &str, env: &[(&str, &str)]) -> Output {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    let mut command = Command::new(shell);
    if shell == "busybox" {
        command.arg("sh");
    }
    command.arg(file.path()).envs(env.iter().copied()).output().unwrap()
}

fn strings(commands: &[&str]) -> Vec<String> {
    commands.iter().map(|&command| command.to_owned()).collect()
}

/// Returns the output and exit code of the commands, which must be equal in every shell.
fn run(commands: &[&str], options: Options<'_>) -> (String, i32) {
    let text = text(&strings(commands), options);
    let ends: Vec<_> = shells()
        .into_iter()
        .map(|shell| {
            let output = run_with(shell, &text, &[]);
            (String::from_utf8(output.stdout).unwrap(), output.status.code().unwrap())
        })
        .collect();
    assert!(ends.windows(2).all(|pair| pair[0] == pair[1]), "{ends:?}");
    ends[0].clone()
}

fn shown(text: &str) -> String {
    format!("\x1b[32;1m$ {text}\x1b[0;m\n")
}

#[test]
fn each_command_is_announced_and_run() {
    let (printed, code) = run(&[" echo  one ", "", "printf 'two\\n'"], Options::default());
    let expected = [&shown("echo  one"), "one\n", "\n", &shown("printf 'two\\n'"), "two\n"].concat();
    assert_eq!((printed.as_str(), code), (expected.as_str(), 0));
}

#[test]
fn of_several_lines_the_first_is_announced() {
    let (printed, _) = run(&["echo a\necho b\n"], Options::default());
    assert_eq!(printed, format!("{}a\nb\n", shown("echo a # collapsed multi-line command")));
}

#[test]
fn the_first_failure_ends_the_script_with_its_status() {
    for check_for_errors in [false, true] {
        let options = Options { check_for_errors, ..Options::default() };
        let (printed, code) = run(&["echo a", "(exit 3)", "echo never"], options);
        assert_eq!((printed.contains("never"), code), (false, 3));
    }
}

#[test]
fn a_checked_script_ends_even_if_a_command_switched_errexit_off() {
    let options = Options { check_for_errors: true, ..Options::default() };
    let commands = ["set +e", "(exit 4)", "echo never"];
    assert_eq!(run(&commands, options).1, 4);
    assert_eq!(run(&commands, Options::default()).1, 0);
}

#[test]
fn a_failing_part_of_a_pipe_fails_where_the_shell_can_tell() {
    let text = text(&strings(&["false | true", "echo went on"]), Options::default());
    if shells().contains(&"bash") {
        assert_eq!(run_with("bash", &text, &[]).status.code(), Some(1));
    }
}

#[test]
fn a_trailing_backslash_does_not_swallow_what_follows() {
    let (printed, code) = run(&["echo a \\", "echo b"], Options::default());
    assert_eq!((printed, code), (format!("{}a\n{}b\n", shown("echo a \\"), shown("echo b")), 0));
}

#[test]
fn debug_trace_lets_the_shell_print_what_it_runs() {
    let options = Options { debug_trace: true, ..Options::default() };
    let text = text(&strings(&["echo hello"]), options);
    for shell in shells() {
        let traced = String::from_utf8(run_with(shell, &text, &[]).stderr).unwrap();
        assert!(traced.contains("+ echo hello"), "{shell}: {traced}");
    }
}

#[test]
fn sections_carry_the_time_and_hide_no_status() {
    for (command, check_for_errors, code) in [
        ("echo a\necho b", false, 0),
        ("echo a\necho b", true, 0),
        ("set +e\n(exit 5)", true, 5),
        ("set +e\n(exit 5)", false, 5),
        // A status that errexit lets pass.
        ("echo a\n(exit 5) && :", false, 5),
    ] {
        let options = Options { trace_sections: true, check_for_errors, ..Options::default() };
        let text = text(&strings(&["true", command]), options);
        for shell in shells() {
            let output = run_with(shell, &text, &[]);
            let printed = String::from_utf8(output.stdout).unwrap();
            let (start, rest) = printed.split_once("section_start:").unwrap().1.split_once(':').unwrap();
            assert!(start.parse::<u64>().unwrap() > 1_500_000_000, "{printed}");
            let options = "section_script_step_1[hide_duration=true,collapsed=true]\r\x1b[0K";
            assert!(rest.starts_with(&format!("{options}{}", shown(command))), "{shell}: {printed:?}");
            let (end, rest) = rest.split_once("section_end:").unwrap().1.split_once(':').unwrap();
            assert!(end.parse::<u64>().unwrap() >= start.parse().unwrap());
            assert_eq!(rest, "section_script_step_1\r\x1b[0K\n");
            assert_eq!(output.status.code(), Some(code), "{shell}");
        }
    }
}

#[test]
fn a_status_that_errexit_lets_pass_does_not_end_the_script_after_a_section() {
    let options = Options { trace_sections: true, ..Options::default() };
    let text = text(&strings(&["echo a\nfalse && true", "echo went on"]), options);
    for shell in shells() {
        let output = run_with(shell, &text, &[]);
        assert!(output.stdout.ends_with(b"went on\n"), "{shell}: {output:?}");
        assert_eq!(output.status.code(), Some(0), "{shell}");
    }
}

#[test]
fn variables_pass_through_the_runners_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let options = Options { project_dir: Some(path), ..Options::default() };
    let show = "printf '[%s]' \"$GITLAB_ENV\" \"${ONE-}\" \"${TWO-}\"";
    let file = folder.path().join("gitlab_runner_env");
    let expect = |one: &str, two: &str| {
        let (printed, code) = run(&[show], options);
        assert_eq!(code, 0);
        assert!(printed.ends_with(&format!("[{}][{one}][{two}]", file.display())), "{printed}");
    };
    expect("", "");
    std::fs::write(&file, "ONE= a  b\\n'\n\nTWO=$HOME=x").unwrap();
    expect(" a  b\\n'", "$HOME=x");
}

#[test]
fn what_commands_may_be() {
    let array = |items: Vec<Value>| Value::array(items);
    let number = Value::plain(Data::Number(3.0));
    assert_eq!(commands(&array(vec![Value::text("a"), number])).unwrap(), ["a", "3"]);
    for (items, message) in [
        (vec![], "expected at least one command, got an empty array"),
        (vec![Value::text("a"), Value::plain(Data::Null)], "element 2: expected string, got null"),
        (vec![array(vec![])], "element 1: expected string, got array"),
        (vec![Value::text("a\0")], "element 1: holds a NUL character, which no shell can read"),
    ] {
        assert_eq!(commands(&array(items)).unwrap_err(), message);
    }
    assert!(commands(&Value::text("echo")).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    /// No shell reads the text after `exit`, so it may be anything.
    #[test]
    fn any_command_is_shown_exactly(
        tail in prop_oneof![
            "[^\0]{0,40}",
            "(['\"\\\\%$`!&;| \n\r\t*?~#-]|-n|-e|\\\\033|%s|\\$\\(date\\)|é){0,20}",
        ]
    ) {
        let command = format!("exit 0\n{tail}");
        let command = command.trim();
        let options = Options { trace_sections: true, ..Options::default() };
        let text = text(&strings(&[command]), options);
        let expected = format!("$ {command}\x1b[0;m\n");
        for shell in shells() {
            let output = run_with(shell, &text, &[]);
            prop_assert_eq!(output.status.code(), Some(0));
            let printed = String::from_utf8(output.stdout).unwrap();
            prop_assert!(printed.ends_with(&expected), "{}: {:?}", shell, printed);
        }
    }
}
