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
    // Looked up where it is used: by `net`, and by the layers of `config`.
    let elsewhere =
        |name: &str| name == "socket" || crate::config::SETTINGS.iter().any(|s| s.option() == name);
    // Commands that people never call have no variables.
    for command in all_commands().iter().filter(|command| !command.is_hide_set()) {
        for argument in command.get_arguments() {
            let Some(name) = argument.get_long().filter(|name| !["help", "version"].contains(name)) else {
                continue;
            };
            // One variable could not hold what fits every command.
            let other_formats = name == "output" && ["status", "check"].contains(&command.get_name());
            if (elsewhere(name) || other_formats) && argument.get_env().is_none() {
                continue;
            }
            // The Runner's environment is not for its driver alone.
            let prefix = if command.get_name() == "custom-executor" { "CE_" } else { "" };
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
