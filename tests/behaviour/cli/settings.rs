//! Settings: their sources, and the messages about invalid ones.

use super::*;

#[test]
fn settings_show_where_they_come_from() {
    let mut command = program(&["serve", "/x", "--print-config", "--max-running=4"]);
    let output = command.env("STEP_RUNNER_MAX_QUEUED", "7").output().unwrap();
    let text = stdout(&output);
    assert!(output.status.success(), "{output:?}");
    for part in [
        "max_running = 4  # --max-running",
        "max_queued = 7  # STEP_RUNNER_MAX_QUEUED",
        "/x/step-runner.sock",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn settings_show_the_paths_that_nobody_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let mut command = program(&["serve", "--print-config"]);
    let text = stdout(&command.env("TMPDIR", path).env("XDG_STATE_HOME", path).output().unwrap());
    for (name, file) in [("socket", "step-runner.sock"), ("state_dir", "step-runner")] {
        let line = format!("{name} = \"{path}/{file}\"  # default\n");
        assert!(text.contains(&line), "{line}: {text}");
    }
    let text = stdout(&run(&["serve", "/x", "--print-config"]));
    assert!(text.contains("state_dir = \"/x/step-runner.sock.state\"  # default"), "{text}");
}

#[test]
fn wrong_settings_are_named_line_by_line_with_what_was_meant() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("c.toml");
    std::fs::write(&file, "max_runing = 4\nlog_limit = 7\ndurability = 'x'\nmax_jobs = 'y'\n").unwrap();
    let mut command = program(&["serve", "--print-config", "--config", file.to_str().unwrap()]);
    let said = stderr(&command.env("STEP_RUNNER_MAX_QUEUED", "x").output().unwrap());
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines.len(), 5, "{said}");
    for (number, line) in lines.iter().take(4).enumerate() {
        assert!(line.starts_with(&format!("step-runner: {}:{}: ", file.display(), number + 1)), "{said}");
    }
    assert!(lines[0].ends_with("unknown key `max_runing`: write `max_running`"), "{said}");
    assert!(lines[4].starts_with("step-runner: STEP_RUNNER_MAX_QUEUED: "), "{said}");
}

#[test]
fn a_misspelt_variable_of_a_setting_is_named_and_others_are_not() {
    let mut command = program(&["serve", "--print-config"]);
    command.env("STEP_RUNNER_MAX_RUNING", "4").env("STEP_RUNNER_OUTPUT", "plain").env("STEP_RUNNER_JOB", "1");
    let said = stderr(&command.output().unwrap());
    assert!(
        said.contains(
            "STEP_RUNNER_MAX_RUNING is unknown and is ignored; did you mean STEP_RUNNER_MAX_RUNNING?"
        ),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn variables_of_switches_are_1_or_0_and_times_say_how_to_write_them() {
    for value in ["1", "0", "true", "no"] {
        let output = program(&["serve", "--print-config"]).env("STEP_RUNNER_QUIET", value).output().unwrap();
        assert!(output.status.success(), "{value}: {output:?}");
    }
    let output = program(&["status"]).env("STEP_RUNNER_QUIET", "maybe").output().unwrap();
    assert!(
        output.status.code() == Some(2) && stderr(&output).contains("variable STEP_RUNNER_QUIET"),
        "{output:?}"
    );
    let mut command = program(&["custom-executor", "config"]);
    // The command's own variable has priority over the general one.
    command.env("STEP_RUNNER_CE_CONNECT_TIMEOUT", "soon").env("STEP_RUNNER_CONNECT_TIMEOUT", "5s");
    let said = stderr(&command.output().unwrap());
    assert!(said.contains("variable STEP_RUNNER_CE_CONNECT_TIMEOUT"), "{said}");
    for words in [
        ["run", "x", "--timeout", "abc"],
        ["status", "x", "--connect-timeout", "abc"],
        ["-q", "proxy", "--wait", "abc"],
        ["custom-executor", "config", "--cancel-grace", "1x"],
    ] {
        let output = run(&words);
        assert!(stderr(&output).contains("write a time such as 90s or 1h 30m"), "{output:?}");
    }
    // No stage could run with it, so it is refused before the first one.
    let output = run(&["custom-executor", "config", "--cancel-grace", "0s"]);
    assert!(stderr(&output).contains("it must be longer than 0"), "{output:?}");
}

/// Returns a valid value for a setting: its default, or else one of the kind that the help names.
fn fitting(help: &str, folder: &Path) -> String {
    let between = |from: &str| Some(help.split_once(from)?.1.split_once(']')?.0.to_owned());
    if let Some(default) = between("[default: ") {
        return default;
    }
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    match help {
        _ if help.starts_with("Socket to") => path("s.sock"),
        _ if help.starts_with("Folder for") => path("state"),
        _ if help.contains("[a path]") => path("log"),
        _ if help.contains("numeric user ids") => "1".to_owned(),
        _ if help.contains("[a list of names]") => "HOME".to_owned(),
        _ => between("[`").unwrap().split('`').next().unwrap().to_owned(),
    }
}

#[test]
fn serve_takes_every_setting_that_its_help_offers() {
    let folder = tempfile::tempdir().unwrap();
    let help = stdout(&run(&["serve", "--help"]));
    let (_, settings) = help.split_once("\nSettings:\n").unwrap();
    let (settings, _) = settings.split_once("\nCommon options:\n").unwrap();
    let settings: Vec<(String, String)> = settings
        .split("\n      --")
        .map(|setting| {
            let words: Vec<_> = setting.split_whitespace().collect();
            let name = words[0].trim_start_matches("--").split('[').next().unwrap();
            let help = words[1..].iter().skip_while(|word| word.starts_with('<'));
            let help = help.copied().collect::<Vec<_>>().join(" ");
            (format!("--{name}"), fitting(&help, folder.path()))
        })
        .collect();
    assert!(settings.len() > 30, "{settings:?}");
    let options: Vec<String> = settings.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let mut words = vec!["serve"];
    words.extend(options.iter().map(String::as_str));
    let shown = stdout(&run(&[&words[..], &["--print-config"]].concat()));
    for (name, _) in &settings {
        let key = name.trim_start_matches('-').replace('-', "_");
        assert!(
            shown.lines().any(|line| line.starts_with(&key) && line.ends_with(&format!("# {name}"))),
            "{name}: {shown}"
        );
    }
    // With a command the daemon ends when the command ends.
    words.extend(["--", "true"]);
    let mut daemon =
        program(&words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut daemon.stdin.take().unwrap(), b"\n").unwrap();
    let output = daemon.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
}
