//! The command line: parsing and dispatch. Each subcommand has a file of its own (cli.md).
//!
//! stdout carries what was asked for, stderr everything else. A command ends with an exit code or with a [`Failure`],
//! which this module prints.

mod agent;
mod bootstrap;
mod builtin;
mod cancel;
mod check;
mod ci;
mod ci_file;
mod ci_job;
mod completions;
mod connection;
mod custom_executor;
mod defect;
mod detach;
mod display;
mod doctor;
mod document;
mod end;
mod env_file;
mod events;
mod excerpt;
mod fetch;
mod findings;
mod finish;
mod follow;
mod help;
mod inputs;
mod interrupts;
mod invocation;
mod job;
mod keeper;
mod limits;
mod made;
mod man;
mod misnamed;
mod output;
mod pairs;
mod plan;
mod precedence;
mod private;
mod proxy;
mod reaper;
mod results;
mod run;
mod schema;
mod secrets;
mod selection;
mod serve;
mod session;
mod states;
mod status;
mod stopped;
mod stream;
mod submit;
mod summary;
mod tail;
mod terminal;
#[cfg(test)]
mod tests;
mod text;
mod text_file;
mod time;
mod view;
mod wait;
mod watch;
mod writer;
mod written;

use std::io::Write;
use std::process::ExitCode;
use std::sync::LazyLock;

use clap::builder::BoolishValueParser;
use clap::builder::styling::{AnsiColor, Styles};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgAction, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::error::{Blame, Exit, Failure};
use crate::keeper::protocol::PROTOCOL_VERSION;
use crate::lang::name::suggest;
use crate::logging;
use crate::oci::Platform;
use crate::threads;
use terminal::Color;

/// Result of a command: its exit code, or the reason why it could not do its task.
type CommandResult = Result<u8, Failure>;

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

const EXAMPLES: &str = "\
Examples:
  step-runner run ci/build            run a function here, without a daemon
  step-runner serve &                 start a daemon on the default socket
  step-runner submit --id 42 func.yml
  step-runner follow 42
  step-runner check .                 find mistakes in function files without running them
  step-runner doctor                  what works on this machine, and what to do about the rest
  step-runner help language           the language, its expressions and errors
  step-runner help exit-codes         what exit codes mean; other topics: expressions, environment, masking, recovery";

const STEPS_EXAMPLES: &str = "\
Examples:
  step-runner steps bootstrap /opt/bin/step-runner
  step-runner steps serve --socket /run/s.sock sh -c 'exec bash'
  step-runner steps proxy --socket /run/s.sock";

/// Runs the steps of a CI job inside its environment and loses nothing.
#[derive(Parser)]
#[command(name = "step-runner", version, styles = STYLES, after_long_help = EXAMPLES)]
#[command(disable_help_subcommand = true, arg_required_else_help = true, infer_subcommands = false)]
struct Arguments {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

/// Options of every command.
#[derive(clap::Args)]
#[command(next_help_heading = "Common options")]
struct Common {
    /// Colours: `auto` follows the terminal, `NO_COLOR` and `CLICOLOR_FORCE`
    #[arg(
        long,
        global = true,
        value_enum,
        default_value = "auto",
        value_name = "WHEN",
        env = "STEP_RUNNER_COLOR"
    )]
    color: Color,
    /// Print only requested output and errors
    #[arg(short, long, global = true, env = "STEP_RUNNER_QUIET")]
    quiet: bool,
    /// Print more
    #[arg(short, long, global = true, action = ArgAction::Count, env = "STEP_RUNNER_VERBOSE")]
    verbose: u8,
}

/// Verbosity of a command on stderr.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Verbosity {
    quiet: bool,
    verbose: u8,
}

#[derive(Subcommand)]
enum Command {
    Run(run::Arguments),
    Submit(submit::Arguments),
    Serve(serve::Arguments),
    Follow(follow::Arguments),
    Status(status::Arguments),
    Cancel(cancel::Arguments),
    Finish(finish::Arguments),
    Check(check::Arguments),
    Schema(schema::Arguments),
    Doctor(doctor::Arguments),
    Proxy(proxy::Arguments),
    Bootstrap(bootstrap::Arguments),
    Ci(ci::Arguments),
    CustomExecutor(custom_executor::Arguments),
    Register(agent::register::Arguments),
    Verify(agent::verify::Arguments),
    Unregister(agent::unregister::Arguments),
    Agent(agent::Arguments),
    /// Commands for CI runners, in their spelling
    #[command(subcommand, after_long_help = STEPS_EXAMPLES)]
    Steps(Steps),
    Completions(completions::Arguments),
    Man(man::Arguments),
    Help(help::Arguments),
    Keeper(keeper::Arguments),
    Reaper(reaper::Arguments),
    Builtin(builtin::Arguments),
    Fetch(fetch::Arguments),
    Detach(detach::Arguments),
    Wait(wait::Arguments),
}

#[derive(Subcommand)]
enum Steps {
    Serve(serve::StepsArguments),
    Proxy(proxy::Arguments),
    Bootstrap(bootstrap::StepsArguments),
}

/// Runs the command that this process's arguments name, prints its failure and returns its exit code.
pub fn main() -> ExitCode {
    defect::report_panics();
    let words = match invocation::words(std::env::args_os().collect(), |name| std::env::var(name).ok()) {
        Ok(words) => words,
        Err(message) => {
            terminal::say(&message);
            return ExitCode::FAILURE;
        }
    };
    // The layout of help is made only for who reads it: each process of the program starts here.
    let is_brief = words.iter().take_while(|word| *word != "--").any(|word| word == "-h");
    let layout = if is_brief { help::brief::brief } else { help::layout::compact };
    let shown = || layout(command()).color(terminal::early_choice(&words));
    let parsed = precedence::parse(command, &words).or_else(|_| precedence::parse(shown, &words));
    let matches = match parsed {
        Ok(matches) => matches,
        Err(error) => {
            let blamed = precedence::blamed(&error, &command(), &words);
            let code = usage(error);
            if let Some(variable) = blamed {
                terminal::say(&format!("The value is that of the variable {variable}."));
            }
            return code;
        }
    };
    let arguments = match Arguments::from_arg_matches(&matches) {
        Ok(arguments) => arguments,
        Err(error) => return usage(error),
    };
    arguments.common.color.apply();
    match dispatch(arguments) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => fail(&failure),
    }
}

/// Prints a failure and returns its exit code.
fn fail(failure: &Failure) -> ExitCode {
    // After a signal the failure is printed only if stderr accepts bytes: the sender does not wait for a terminal that
    // hangs.
    let is_heard = !failure.exit().is_by_signal() || view::screen::accepts(&std::io::stderr());
    if !failure.is_quiet() && is_heard {
        report(failure);
        logging::flush_stderr();
    }
    ExitCode::from(failure.exit().code())
}

/// Returns the whole command line, for parsing, completions and the manual. Help texts never show values of variables,
/// which may be secrets.
fn command() -> clap::Command {
    fn hide_values(command: clap::Command) -> clap::Command {
        let command = command.mut_args(|argument| {
            let argument = argument.hide_env_values(true);
            // Variables of flags hold 1, yes and the like.
            if matches!(argument.get_action(), ArgAction::SetTrue) && argument.get_env().is_some() {
                argument.value_parser(BoolishValueParser::new())
            } else {
                argument
            }
        });
        command.mut_subcommands(hide_values)
    }
    hide_values(Arguments::command())
        .version(VERSION.as_str())
        .long_version(if invocation::wants_details() { &LONG_VERSION } else { &VERSION }.as_str())
}

/// Text of `--version`: the version, and the commit if the build was told it.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    let version = env!("CARGO_PKG_VERSION");
    match option_env!("STEP_RUNNER_COMMIT").unwrap_or_default() {
        "" => version.to_owned(),
        commit => format!("{version} ({commit})"),
    }
});

/// Text of `--version` with `--verbose`, and for CI runners, which look for its last two lines (connectors.md §1).
static LONG_VERSION: LazyLock<String> = LazyLock::new(|| {
    let version = env!("CARGO_PKG_VERSION");
    let here = Platform::here();
    format!(
        "{}\nKeeper protocol: {PROTOCOL_VERSION}\nVersion:      {version}\nOS/Arch:      {here}",
        *VERSION
    )
});

fn usage(error: clap::Error) -> ExitCode {
    let error = without_values(with_command(with_suggestion(error)));
    let printed = error.print().and_then(|()| std::io::stdout().flush());
    // A usage error goes to stderr: there is nowhere to report a failure to.
    if !error.use_stderr()
        && let Err(unwritten) = printed
    {
        return fail(&terminal::unwritten(&unwritten));
    }
    if let Some(code) = custom_executor::usage_code(&error) {
        return code;
    }
    u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from)
}

/// Adds the command that was meant to an error about an unknown one. The library finds no neighbours that are swapped.
fn with_suggestion(mut error: clap::Error) -> clap::Error {
    if error.kind() == ErrorKind::InvalidSubcommand
        && error.get(ContextKind::SuggestedSubcommand).is_none()
        && let Some(ContextValue::String(given)) = error.get(ContextKind::InvalidSubcommand)
    {
        let program = command();
        let known = program.get_subcommands().filter(|sub| !sub.is_hide_set()).map(clap::Command::get_name);
        if let Some(similar) = suggest(given, known) {
            let similar = ContextValue::Strings(vec![similar.to_owned()]);
            error.insert(ContextKind::SuggestedSubcommand, similar);
        }
    }
    error
}

/// Adds the command that was meant to an error about a word too many that is the name of one, as in `agent verify`.
fn with_command(mut error: clap::Error) -> clap::Error {
    if error.kind() == ErrorKind::UnknownArgument
        && error.get(ContextKind::Suggested).is_none()
        && let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidArg)
        && is_command(word)
    {
        let tip = format!("`{word}` is a command of its own: step-runner {word}").into();
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
    }
    error
}

/// True if this is the name of a command that help shows.
fn is_command(word: &str) -> bool {
    command().get_subcommands().any(|sub| !sub.is_hide_set() && sub.get_name() == word)
}

/// Removes values from a usage error, because a value can be a secret that was given to the wrong option. Nothing masks it
/// yet. Names of options and commands stay.
fn without_values(mut error: clap::Error) -> clap::Error {
    const HIDDEN: &str = "…";
    for kind in [ContextKind::InvalidValue, ContextKind::InvalidArg] {
        let is_value = match error.get(kind) {
            // Without a value the message says that one is missing.
            Some(ContextValue::String(text)) if kind == ContextKind::InvalidValue => !text.is_empty(),
            Some(ContextValue::String(text)) => {
                error.kind() == ErrorKind::UnknownArgument && !text.starts_with('-') && !is_command(text)
            }
            _ => false,
        };
        if is_value {
            error.insert(kind, ContextValue::String(HIDDEN.to_owned()));
        }
    }
    error
}

fn dispatch(arguments: Arguments) -> CommandResult {
    let verbosity = Verbosity { quiet: arguments.common.quiet, verbose: arguments.common.verbose };
    match arguments.command {
        Command::Run(arguments) => in_runtime(run::execute(arguments, verbosity)),
        Command::Submit(arguments) => in_runtime(submit::execute(arguments, verbosity)),
        Command::Follow(arguments) => in_runtime(follow::execute(arguments, verbosity)),
        Command::Status(arguments) => in_runtime(status::execute(arguments, verbosity)),
        Command::Cancel(arguments) => in_runtime(cancel::execute(arguments, verbosity)),
        Command::Finish(arguments) => in_runtime(finish::execute(arguments, verbosity)),
        Command::Check(arguments) => check::execute(&arguments, verbosity),
        Command::Schema(arguments) => schema::execute(&arguments),
        Command::Doctor(arguments) => doctor::execute(&arguments, verbosity),
        Command::Serve(arguments) => serve::execute(arguments),
        Command::Steps(Steps::Serve(arguments)) => serve::execute_steps(arguments),
        Command::Proxy(arguments) | Command::Steps(Steps::Proxy(arguments)) => Ok(proxy::execute(&arguments)),
        Command::Bootstrap(arguments) => bootstrap::execute(&arguments),
        Command::Steps(Steps::Bootstrap(arguments)) => bootstrap::execute_steps(&arguments),
        Command::Ci(arguments) => in_runtime(ci::execute(arguments, verbosity)),
        Command::CustomExecutor(arguments) => Ok(custom_executor::execute(arguments)),
        Command::Register(arguments) => in_runtime(agent::register::execute(arguments)),
        Command::Verify(arguments) => in_runtime(agent::verify::execute(arguments)),
        Command::Unregister(arguments) => in_runtime(agent::unregister::execute(arguments)),
        Command::Agent(arguments) => agent::execute(arguments),
        Command::Completions(arguments) => completions::execute(&arguments),
        Command::Man(arguments) => man::execute(&arguments),
        Command::Help(arguments) => help::execute(&arguments),
        Command::Keeper(arguments) => keeper::execute(arguments),
        Command::Reaper(arguments) => reaper::execute(&arguments),
        Command::Builtin(arguments) => builtin::execute(arguments),
        Command::Fetch(arguments) => fetch::execute(&arguments),
        Command::Detach(arguments) => detach::execute(&arguments),
        Command::Wait(arguments) => wait::execute(arguments),
    }
}

/// Runs a client command. Connections have threads of their own, so pings are answered even if a slow reader of stdout
/// blocks it.
fn in_runtime(command: impl Future<Output = CommandResult>) -> CommandResult {
    // Without a thread the runtime would panic.
    threads::probe()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Failure::new(Exit::Failure, error))?;
    let ending = runtime.block_on(command);
    // Nobody needs the tasks that still run: the caller waits for the exit code.
    runtime.shutdown_background();
    ending
}

/// Prints a failure on stderr, each line with our name. The last one adds the remedy.
fn report(failure: &Failure) {
    let red = AnsiColor::Red.on_default().bold();
    let prefix = format!("{red}step-runner:{red:#} ");
    let text = failure.to_string();
    let mut lines: Vec<_> = text.lines().map(|line| format!("{prefix}{line}")).collect();
    if let Some(last) = lines.last_mut() {
        if failure.blame() == Blame::Bug {
            last.push_str(" (this is a defect of step-runner)");
        }
        if let Some(remedy) = failure.remedy() {
            last.push_str("; ");
            last.push_str(remedy);
        }
    }
    for line in &lines {
        terminal::say_wrapped(line);
    }
}
