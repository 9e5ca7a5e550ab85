//! `step-runner man`.

use std::io;
use std::path::{Path, PathBuf};

use clap::Command;
use clap_mangen::Man;
use roff::{Roff, roman};

use super::{CommandResult, command, terminal};
use crate::error::{Exit, Failure};

/// Print a manual page
#[derive(clap::Args)]
#[command(
    after_long_help = "Examples:\n  step-runner man | man -l -\n  step-runner man --all-to /usr/local/share/man/man1\n  step-runner man steps serve > step-runner-steps-serve.1"
)]
pub(super) struct Arguments {
    /// Page of this command; default: of the program
    #[arg(value_name = "COMMAND")]
    command: Vec<String>,
    /// Write the pages of all commands into this folder, which is made if it is not there
    #[arg(long, value_name = "DIR", env = "STEP_RUNNER_ALL_TO", conflicts_with = "command")]
    all_to: Option<PathBuf>,
}

pub(super) fn execute(arguments: &Arguments) -> CommandResult {
    let mut page = command();
    page.build();
    if let Some(folder) = &arguments.all_to {
        std::fs::create_dir_all(folder).map_err(|error| unwritten(folder, &error))?;
        return write_all(&page, page.get_name(), folder).map(|()| 0);
    }
    for name in &arguments.command {
        let found = page.find_subcommand(name).cloned();
        page = found.ok_or_else(|| unknown(name, &page))?;
    }
    let text = render(&page).map_err(|error| Failure::new(Exit::Failure, error))?;
    terminal::print(&text)?;
    Ok(0)
}

/// Failure for a name that no command below `parent` has.
fn unknown(name: &str, parent: &Command) -> Failure {
    let failure = Failure::new(Exit::Usage, format!("there is no command `{name}`"));
    let known: Vec<_> =
        parent.get_subcommands().filter(|command| !command.is_hide_set()).map(Command::get_name).collect();
    if known.is_empty() {
        failure.with_remedy(format!("`{}` has no commands below it", parent.get_name()))
    } else {
        failure.with_remedy(format!("commands are {}", known.join(", ")))
    }
}

/// Writes the page of a command and those of all commands below it: `step-runner-steps-serve.1`.
fn write_all(page: &Command, name: &str, folder: &Path) -> Result<(), Failure> {
    let text = render(page).map_err(|error| Failure::new(Exit::Failure, error))?;
    let path = folder.join(format!("{name}.1"));
    std::fs::write(&path, text).map_err(|error| unwritten(&path, &error))?;
    for sub in page.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        write_all(sub, &format!("{name}-{}", sub.get_name()), folder)?;
    }
    Ok(())
}

fn unwritten(path: &Path, error: &io::Error) -> Failure {
    Failure::new(Exit::Failure, format!("cannot write {}: {error}", path.display()))
}

/// Renders the page of a command. Sections that the library fills or runs together, such as examples, are written here.
fn render(page: &Command) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    // The library's own text names a summary that `-h` does not have.
    let page = &page.clone().mut_args(|argument| {
        if argument.get_id() == "help" {
            argument.help("Print help").long_help("Print help")
        } else {
            argument
        }
    });
    let man = Man::new(page.clone()).source(concat!("step-runner ", env!("CARGO_PKG_VERSION")));
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    let usage = page.clone().render_usage().to_string();
    preformatted("SYNOPSIS", usage.trim_start_matches("Usage:").trim_start(), &mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if page.get_subcommands().any(|command| !command.is_hide_set()) {
        man.render_subcommands_section(&mut text)?;
    }
    let after = page.get_after_long_help().map(ToString::to_string).unwrap_or_default();
    let paragraphs = || after.split("\n\n").filter(|paragraph| !paragraph.is_empty());
    // Such as `Examples, as in config.toml:`, and lines.
    let list = |paragraph| str::split_once(paragraph, ":\n");
    for (heading, lines) in paragraphs().filter_map(list) {
        preformatted(&heading.to_uppercase(), lines, &mut text)?;
    }
    for note in paragraphs().filter(|paragraph| list(paragraph).is_none()) {
        Roff::new().control("SH", ["NOTES"]).text([roman(note)]).to_writer(&mut text)?;
    }
    for (heading, lines) in SECTIONS {
        preformatted(heading, lines, &mut text)?;
    }
    Ok(text)
}

/// Sections of every page.
const SECTIONS: [(&str, &str); 4] = [
    (
        "EXIT STATUS",
        "\
0      success
1      a failure without a code of its own
2      a wrong option, argument or setting
3      the agent's configuration cannot be used
65     the document has errors, or the request was refused
69     the daemon cannot be reached
70     the job is unknown or its end is lost
75     refused for now
130    interrupted; 143 after SIGTERM, 129 after SIGHUP
run, follow and ci end as the job did; step-runner help exit-codes tells all.",
    ),
    (
        "ENVIRONMENT",
        "\
Options have variables: STEP_RUNNER_ and the name in capitals, - as _.
STEP_RUNNER_ADDRESS, STEP_RUNNER_SOCKET   the daemon
TMPDIR                                    folder of the default socket and of private daemons
NO_COLOR, FORCE_COLOR, CLICOLOR_FORCE     colours
step-runner help environment tells all.",
    ),
    (
        "FILES",
        "\
func.yml, step.yml                      a function, in its folder
$TMPDIR/step-runner.sock                default socket of a daemon
$XDG_STATE_HOME/step-runner             default state folder of a daemon",
    ),
    ("SEE ALSO", "step-runner(1), step-runner-run(1), step-runner-serve(1), step-runner-help(1)"),
];

/// Writes a section whose lines stay as they are.
fn preformatted(heading: &str, lines: &str, out: &mut impl io::Write) -> io::Result<()> {
    let mut roff = Roff::new();
    roff.control("SH", [heading]).control("nf", []);
    for line in lines.lines() {
        roff.text([roman(line.strip_prefix("  ").unwrap_or(line))]);
    }
    roff.control("fi", []).to_writer(out)
}
