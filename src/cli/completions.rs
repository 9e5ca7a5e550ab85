//! `step-runner completions`.

use clap::builder::PossibleValuesParser;
use clap::{Arg, Command, ValueHint};
use clap_complete::Shell;

use super::{CommandResult, command, help, terminal};
use crate::lang::diagnostic::Class;

const NAME: &str = "step-runner";

/// Print a completion script for a shell
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  step-runner completions bash > ~/.local/share/bash-completion/completions/step-runner
  step-runner completions fish > ~/.config/fish/completions/step-runner.fish")]
pub(super) struct Arguments {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

pub(super) fn execute(arguments: &Arguments) -> CommandResult {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut offered(), NAME, &mut script);
    let text = String::from_utf8_lossy(&script).into_owned();
    script = with_ids(arguments.shell, text).into_bytes();
    terminal::print(&script)?;
    Ok(0)
}

/// Returns the command line as shells offer it. Generators do not leave out hidden commands, so they are removed here.
/// `help` and `man` get the words that they take.
fn offered() -> Command {
    let program = visible(&command());
    let commands: Vec<_> = program.get_subcommands().map(name_of).collect();
    let topics = PossibleValuesParser::new(help::TOPICS.into_iter().chain(commands.iter().copied()));
    program
        .mut_subcommand("help", |help| help.mut_arg("topic", |topic| topic.value_parser(topics)))
        .mut_subcommand("man", |man| {
            man.mut_arg("command", |page| page.value_parser(PossibleValuesParser::new(commands)))
        })
}

/// Copies a command without its hidden subcommands, as far as completion needs it: clap cannot remove a subcommand.
fn visible(command: &Command) -> Command {
    let shown = Command::new(name_of(command))
        .about(command.get_about().cloned().unwrap_or_default())
        .args(command.get_arguments().filter(|argument| !argument.is_hide_set()).map(with_values))
        .subcommands(command.get_subcommands().filter(|sub| !sub.is_hide_set()).map(visible))
        .disable_help_subcommand(true);
    match command.get_version() {
        Some(version) => shown.version(lasting(version)),
        None => shown,
    }
}

/// Returns an option with the values that shells can offer for it. Its own parser may take more.
fn with_values(argument: &Arg) -> Arg {
    let argument = argument.clone();
    match argument.get_id().as_str() {
        "env_base" => return argument.value_parser(PossibleValuesParser::new(["all", "list"])),
        "allow" => return argument.value_parser(PossibleValuesParser::new(Class::ALL.map(Class::word))),
        _ => {}
    }
    let named: Vec<&str> =
        argument.get_value_names().into_iter().flatten().map(clap::builder::Str::as_str).collect();
    match named.as_slice() {
        ["DIR"] => argument.value_hint(ValueHint::DirPath),
        ["FILE" | "PATH" | "FILE|REF|-"] => argument.value_hint(ValueHint::AnyPath),
        _ => argument,
    }
}

fn name_of(command: &Command) -> &'static str {
    lasting(command.get_name())
}

/// Leaks a text, because clap asks for one that lives as long as the program.
fn lasting(text: &str) -> &'static str {
    text.to_owned().leak()
}

/// Commands that take ids of jobs.
const WITH_IDS: &str = "follow status cancel finish";

/// Asks the daemon for the ids of its jobs. A daemon that is not there must not hold up a shell.
const ASK: &str = "status --output ids --connect-timeout 1s";

/// Asks for the names of the jobs of the CI file, for `run --job`.
const JOBS: &str = "run --list-jobs --quiet";

/// Returns the script with a part that offers the ids of jobs, and the names of those of a CI file. Generators know only words that never change. Shells
/// without such a part offer no ids.
fn with_ids(shell: Shell, script: String) -> String {
    match shell {
        Shell::Bash => {
            let words =
                with_one_spelling(&script).replacen("_step__runner() {", "_step__runner_words() {", 1);
            format!(
                "{words}\n{}",
                BASH_IDS
                    .replace("WITH_IDS", &WITH_IDS.replace(' ', "|"))
                    .replace("ASK", ASK)
                    .replace("JOBS", JOBS)
            )
        }
        Shell::Zsh => {
            let is_id =
                |line: &str| ["'::id ", "':id ", "'*::ids "].iter().any(|start| line.starts_with(start));
            let lines = script.lines().map(|line| {
                if is_id(line) {
                    line.replace(":_default'", ":_step_runner_ids'")
                } else if line.starts_with("'*--job=") {
                    line.replace(":_default'", ":_step_runner_jobs'")
                } else {
                    line.to_owned()
                }
            });
            let script = lines.collect::<Vec<_>>().join("\n");
            let ids = format!(
                "_step_runner_ids() {{\n    compadd -- ${{(f)\"$({NAME} {ASK} 2>/dev/null)\"}}\n}}\n\n\
                 _step_runner_jobs() {{\n    compadd -- ${{(f)\"$({NAME} {JOBS} 2>/dev/null)\"}}\n}}\n\n"
            );
            match script.rfind("if [ \"$funcstack[1]\"") {
                Some(at) => format!(
                    "{}{ids}{}\n",
                    script.get(..at).unwrap_or_default(),
                    script.get(at..).unwrap_or_default()
                ),
                None => script,
            }
        }
        Shell::Fish => format!(
            "{script}complete -c {NAME} -n \"__fish_seen_subcommand_from {WITH_IDS}\" -f -a \"({NAME} {ASK} 2>/dev/null)\"\n\
             complete -c {NAME} -n \"__fish_seen_subcommand_from run\" -l job -x -a \"({NAME} {JOBS} 2>/dev/null)\"\n"
        ),
        _ => script,
    }
}

/// Function of the bash script that calls the generated one. `WITH_IDS` and `ASK` stand for their constants.
const BASH_IDS: &str = "\
_step__runner() {
    _step__runner_words \"$@\"
    local cur=\"${COMP_WORDS[COMP_CWORD]}\" daemon=() at ids IFS=$' \\t\\n'
    if [[ ${COMP_WORDS[1]} == run && ${COMP_WORDS[COMP_CWORD-1]} == --job ]]; then
        ids=$(\"$1\" JOBS 2>/dev/null | sed 's/[^A-Za-z0-9_.-]/\\\\&/g')
        IFS=$'\\n'
        COMPREPLY=($(compgen -W \"${ids//\\\\/\\\\\\\\}\" -- \"$cur\"))
        return 0
    fi
    case \"${COMP_WORDS[1]}\" in WITH_IDS) ;; *) return 0 ;; esac
    [[ $cur == -* || ${COMP_WORDS[COMP_CWORD-1]} == --* ]] && return 0
    for ((at = 2; at < COMP_CWORD; at++)); do
        case \"${COMP_WORDS[at]}\" in
            --socket|--address|--via) daemon+=(\"${COMP_WORDS[at]}\" \"${COMP_WORDS[at+1]}\") ;;
        esac
    done
    ids=$(\"$1\" ASK \"${daemon[@]}\" 2>/dev/null)
    [[ -n $ids ]] && COMPREPLY=($(compgen -W \"$ids\" -- \"$cur\"))
    return 0
}
";

/// Returns the bash script with one spelling of the program's name in its states. Because of the hyphen, the generator
/// sets `step__runner` but asks for `step__subcmd__runner`.
fn with_one_spelling(script: &str) -> String {
    script.replace(&NAME.replace('-', "__subcmd__"), &NAME.replace('-', "__"))
}
