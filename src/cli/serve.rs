//! `step-runner serve`. Its options come from the table of settings in `config`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, FromArgMatches};

use super::{CommandResult, terminal};
use crate::app;
use crate::config::{
    Config, JobLogFormat, Layers, Loaded, OperatorLevel, SETTINGS, Setting, SettingValue as _,
    misspelt_variables,
};
use crate::error::{Exit, Failure};
use crate::files;
use crate::net::{self, Socket};

const EXAMPLES: &str = "\
Examples:
  step-runner serve                                  on the default socket
  step-runner serve /run/jobs --stale-after 10min    on /run/jobs/step-runner.sock
  step-runner serve --config /etc/step-runner.toml --print-config
  step-runner serve --socket /run/s.sock -- sh       ends with the shell";

const STEPS_EXAMPLES: &str = "\
Examples:
  step-runner steps serve                                        on the default socket
  step-runner steps serve --socket /run/s.sock sh -c 'exec bash'
  step-runner steps serve --stale-after 10min --print-config";

pub(super) struct Arguments {
    /// Folder of the socket.
    folder: Option<PathBuf>,
    /// Command to run beside the daemon, which ends with it.
    command: Vec<OsString>,
    config: Option<PathBuf>,
    print_config: bool,
    /// Settings given as options.
    options: Vec<(&'static str, Vec<String>)>,
    /// Level of the daemon's own log, unless a setting names one.
    log_level: OperatorLevel,
}

impl clap::Args for Arguments {
    fn augment_args(command: clap::Command) -> clap::Command {
        let command = command
            .about("Run the daemon")
            .long_about(
                "Run the daemon\n\nIt listens on a unix socket, and says so on stderr once it accepts connections. \
                 Each setting is an option, a variable, or a key of the settings file, in this order.",
            )
            .after_long_help(EXAMPLES)
            .arg(
                Arg::new("folder")
                    .value_name("DIR")
                    .help("Folder of the socket, which is DIR/step-runner.sock")
                    .value_parser(clap::value_parser!(PathBuf))
                    .conflicts_with("socket"),
            )
            .arg(command_argument().last(true));
        with_settings(command)
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Arguments {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let settings = SETTINGS.iter().filter_map(|setting| {
            let values: Vec<String> = matches.get_many::<String>(setting.name)?.cloned().collect();
            Some((meant(setting.name, &values), values))
        });
        Ok(Self {
            folder: matches.try_get_one("folder").ok().flatten().cloned(),
            command: matches.get_many("command").into_iter().flatten().cloned().collect(),
            config: matches.get_one("config").cloned(),
            print_config: matches.get_flag("print_config"),
            options: settings.collect(),
            log_level: OperatorLevel::Info,
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Arguments of `steps serve [--socket PATH] [CMD ARG…]`, as CI runners call it: no folder, no `--` before the command.
pub(super) struct StepsArguments(Arguments);

impl clap::Args for StepsArguments {
    fn augment_args(command: clap::Command) -> clap::Command {
        let command = command.about("Run the daemon").after_long_help(STEPS_EXAMPLES);
        with_settings(command.arg(command_argument().trailing_var_arg(true)))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for StepsArguments {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let arguments = Arguments::from_arg_matches(matches)?;
        // clap takes any unknown word for the start of the command, even a misspelt option.
        let first = arguments.command.first().map(|word| word.to_string_lossy());
        if let Some(option) = first.filter(|word| word.starts_with('-')) {
            let text =
                format!("unexpected argument '{option}' found: it is no option of serve, and no command\n");
            return Err(clap::Error::raw(ErrorKind::UnknownArgument, text));
        }
        // CI runners show stderr in the job's log.
        Ok(Self(Arguments { log_level: OperatorLevel::Warn, ..arguments }))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Returns the setting that an option sets. `--log-format` stands for `--job-log-format` too, because no value belongs
/// to both.
fn meant(name: &'static str, values: &[String]) -> &'static str {
    let of_jobs = |value: &String| JobLogFormat::parse(std::slice::from_ref(value)).is_some();
    if name == "log_format" && values.iter().all(of_jobs) { "job_log_format" } else { name }
}

fn command_argument() -> Arg {
    Arg::new("command")
        .value_name("CMD")
        .help("Command to start when the first byte arrives on stdin; when it ends, the daemon ends with the same exit code")
        .num_args(1..)
        .allow_hyphen_values(true)
        .value_parser(clap::value_parser!(OsString))
}

fn with_settings(command: clap::Command) -> clap::Command {
    let command = command
        .arg(
            Arg::new("config")
                .long("config")
                .value_name("FILE")
                .help("Settings file (TOML)")
                .env("STEP_RUNNER_CONFIG")
                .value_parser(clap::value_parser!(PathBuf)),
        )
        .arg(
            Arg::new("print_config")
                .long("print-config")
                .help("Show the settings in force and where each comes from, and end")
                .env("STEP_RUNNER_PRINT_CONFIG")
                .action(ArgAction::SetTrue),
        );
    SETTINGS.iter().fold(command, |command, setting| command.arg(option(setting)))
}

fn option(setting: &'static Setting) -> Arg {
    // clap needs names that live as long as the program. One per setting is leaked.
    let name: &'static str = Box::leak(setting.option().into_boxed_str());
    let argument = Arg::new(setting.name)
        .long(name)
        .value_name("VALUE")
        .help(setting.help())
        .help_heading("Settings")
        // `config` checks the values, together with those of the other layers.
        .allow_hyphen_values(true);
    let argument = if setting.is_list() { argument.action(ArgAction::Append) } else { argument };
    if setting.is_switch() {
        argument.num_args(0..=1).require_equals(true).default_missing_value("true")
    } else {
        argument
    }
}

pub(super) fn execute(arguments: Arguments) -> CommandResult {
    let loaded = load(&arguments)?;
    let unknown = unknown_variables();
    let warnings: Vec<_> = misspelt_variables(unknown.iter().map(String::as_str))
        .into_iter()
        .map(|(name, meant)| format!("the variable {name} is unknown and is ignored; did you mean {meant}?"))
        .collect();
    if arguments.print_config {
        for warning in warnings {
            terminal::say(&format!("step-runner: warning: {warning}"));
        }
        terminal::print(loaded.print(&app::defaults(&loaded.config)).as_bytes())?;
        return Ok(0);
    }
    check_socket(&loaded.config)?;
    let command = arguments.command.clone();
    let reload = move || load(&arguments).map(|loaded| loaded.config);
    app::serve(loaded.config, Arc::new(reload), command, &warnings)
}

/// Returns the environment's variables that no option has.
fn unknown_variables() -> Vec<String> {
    fn known(command: &clap::Command, all: &mut Vec<OsString>) {
        all.extend(command.get_arguments().filter_map(|argument| argument.get_env().map(OsString::from)));
        command.get_subcommands().for_each(|sub| known(sub, all));
    }
    let mut all = Vec::new();
    known(&super::command(), &mut all);
    let names = std::env::vars_os().map(|(name, _)| name);
    names.filter(|name| !all.contains(name)).filter_map(|name| name.into_string().ok()).collect()
}

pub(super) fn execute_steps(arguments: StepsArguments) -> CommandResult {
    execute(arguments.0)
}

/// Refuses a path that no socket can have, before anything is created beside it.
fn check_socket(config: &Config) -> Result<(), Failure> {
    let default = || net::default_socket(|name| std::env::var_os(name));
    let path = config.socket.clone().unwrap_or_else(default);
    Socket::named(path).map(drop).map_err(|error| Failure::new(Exit::Failure, error))
}

/// Maximum length of the settings file in bytes: all settings with comments take some KiB.
const MAX_SETTINGS: u64 = 1 << 20;

fn load(arguments: &Arguments) -> Result<Loaded, Failure> {
    let file = match &arguments.config {
        None => None,
        Some(path) => Some((
            path.clone(),
            files::operators::read_text(path, MAX_SETTINGS).map_err(|error| {
                let text = format!("cannot read the settings file {}: {error}", path.display());
                Failure::new(Exit::Usage, text).with_remedy("name another file with --config")
            })?,
        )),
    };
    let env = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| name.starts_with("STEP_RUNNER_"))
        .collect();
    let mut options = arguments.options.clone();
    if let Some(folder) = &arguments.folder {
        let socket = folder.join("step-runner.sock");
        options.push(("socket", vec![socket.display().to_string()]));
    }
    let mut loaded =
        Config::load(&Layers { file, env, options }).map_err(|errors| Failure::new(Exit::Usage, errors))?;
    loaded.config.log_level.get_or_insert(arguments.log_level);
    Ok(loaded)
}
