//! The command line as a whole: names, variables, help.

use clap::error::ErrorKind;

use super::*;

fn all_commands() -> Vec<clap::Command> {
    fn collect(command: &clap::Command, all: &mut Vec<clap::Command>) {
        all.push(command.clone());
        command.get_subcommands().for_each(|sub| collect(sub, all));
    }
    let mut all = Vec::new();
    collect(&command(), &mut all);
    all
}

#[test]
fn the_definition_is_sound() {
    command().debug_assert();
}

#[test]
fn every_option_has_its_variable() {
    // These variables are read where they are used: by `net`, and by the layers of `config`.
    let elsewhere =
        |name: &str| name == "socket" || crate::config::SETTINGS.iter().any(|s| s.option() == name);
    // Commands that people never call have no variables.
    // People give these once for each entry: a variable would change entries that it is not meant for.
    let of_entries =
        |command: &&clap::Command| ["register", "verify", "unregister"].contains(&command.get_name());
    for command in all_commands().iter().filter(|command| !command.is_hide_set() && !of_entries(command)) {
        for argument in command.get_arguments() {
            let Some(name) = argument.get_long().filter(|name| !["help", "version"].contains(name)) else {
                continue;
            };
            // These commands have other formats, so one variable could not fit them all.
            let other_formats =
                name == "output" && ["status", "check", "doctor"].contains(&command.get_name());
            // Steps have a variable STEP_RUNNER_JOB of another meaning.
            let other_meaning = name == "job";
            if (elsewhere(name) || other_formats || other_meaning) && argument.get_env().is_none() {
                continue;
            }
            // The Runner's environment is not for its driver alone, so the driver's variables have a prefix.
            let prefix = match command.get_name() {
                "custom-executor" => "CE_",
                "agent" => "AGENT_",
                _ => "",
            };
            let expected = format!("STEP_RUNNER_{prefix}{}", name.to_ascii_uppercase().replace('-', "_"));
            assert_eq!(
                argument.get_env().and_then(|v| v.to_str()),
                Some(&*expected),
                "{} --{name}",
                command.get_name()
            );
        }
    }
}

#[test]
fn help_never_shows_values_of_variables() {
    for command in all_commands() {
        for argument in command.get_arguments() {
            assert!(argument.is_hide_env_values_set(), "{} {}", command.get_name(), argument.get_id());
        }
    }
}

#[test]
fn the_help_of_each_command_is_short_and_names_each_option_and_value() {
    fn check(command: &mut clap::Command) {
        let help = command.render_help().to_string();
        let lines = help.lines().count();
        // A setting has its key's type and its variable in its text.
        let most = match command.get_name() {
            "serve" => 200,
            // Functions and jobs of CI files have options of their own.
            "run" => 115,
            // It lists all commands.
            "step-runner" => 110,
            _ => 100,
        };
        assert!(lines <= most, "{}: {lines} lines\n{help}", command.get_name());
        for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
            let option = argument.get_long().map(|name| format!("--{name}")).unwrap_or_default();
            assert!(help.contains(&option), "{} {option}\n{help}", command.get_name());
            for value in argument.get_possible_values().iter().filter(|value| !value.is_hide_set()) {
                assert!(help.contains(value.get_name()), "{option} {}\n{help}", value.get_name());
            }
        }
        command.get_subcommands_mut().filter(|sub| !sub.is_hide_set()).for_each(check);
    }
    let mut program = super::help::layout::compact(command());
    program.build();
    check(&mut program);
}

#[test]
fn the_brief_help_of_each_command_is_a_small_screen() {
    fn check(command: &mut clap::Command) {
        let help = command.render_help().to_string();
        let lines = help.lines().count();
        assert!(lines <= 20, "{}: {lines} lines\n{help}", command.get_name());
        command.get_subcommands_mut().filter(|sub| !sub.is_hide_set()).for_each(check);
    }
    let mut program = super::help::brief::brief(command());
    program.build();
    check(&mut program);
}

#[test]
fn every_visible_command_explains_itself_with_examples() {
    for command in all_commands().iter().filter(|command| !command.is_hide_set()) {
        let name = command.get_name();
        assert!(command.get_about().is_some(), "{name}");
        let examples = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
        let of_it = |line: &str| line.contains("step-runner") || line.contains("_args");
        assert!(examples.contains("Example") && examples.lines().any(of_it), "{name}: {examples}");
    }
}

#[test]
fn words_that_are_no_commands_or_ids_are_usage_errors() {
    for words in [
        ["step-runner", "rum"].as_slice(),
        &["step-runner", "follow"],
        &["step-runner", "follow", "../x"],
        &["step-runner", "follow", "42", "--steps", "--offset", "3"],
        &["step-runner", "run", "--timeout", "0s", "x"],
        &["step-runner", "status", "--socket", "/a", "--address", "/b"],
    ] {
        let error = command().try_get_matches_from(words).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{words:?}");
        assert_ne!(error.kind(), ErrorKind::DisplayHelp);
    }
}

#[test]
fn runners_spelling_takes_a_command_without_dashes() {
    let words = ["step-runner", "steps", "serve", "--socket", "/s", "sh", "-c", "exec bash"];
    assert!(command().try_get_matches_from(words).is_ok());
    let words = ["step-runner", "serve", "/dir", "--mask-forms", "--", "sh", "-c", "x"];
    assert!(command().try_get_matches_from(words).is_ok());
}

#[test]
fn help_shows_each_option_under_one_name() {
    for command in all_commands() {
        for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
            let names = argument.get_visible_aliases().into_iter().flatten().count();
            assert_eq!(names, 0, "{} {}", command.get_name(), argument.get_id());
        }
    }
    let run = command().find_subcommand("run").cloned().unwrap();
    let help = run.clone().render_long_help().to_string();
    for spelling in ["--inputs", "--job-vars", "--step-results-file", "--write-steps-results"] {
        assert!(
            !help.contains(&format!("{spelling} ")) && !help.contains(&format!("{spelling}\n")),
            "{spelling}"
        );
    }
}
