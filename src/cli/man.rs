//! `step-runner man`.

use std::io;

use clap::Command;
use clap_mangen::Man;
use roff::{Roff, roman};

use super::{CommandResult, command, terminal};
use crate::error::{Exit, Failure};

/// Print a manual page
#[derive(clap::Args)]
#[command(
    after_long_help = "Examples:\n  step-runner man | man -l -\n  step-runner man steps serve > step-runner-steps-serve.1"
)]
pub(super) struct Arguments {
    /// Page of this command; default: of the program
    #[arg(value_name = "COMMAND")]
    command: Vec<String>,
}

pub(super) fn execute(arguments: &Arguments) -> CommandResult {
    let mut page = command();
    page.build();
    for name in &arguments.command {
        let found = page.find_subcommand(name).cloned();
        page = found.ok_or_else(|| Failure::new(Exit::Usage, format!("there is no command `{name}`")))?;
    }
    let text = render(&page).map_err(|error| Failure::new(Exit::Failure, error))?;
    terminal::print(&text)?;
    Ok(0)
}

/// Renders the page of a command. Sections that the library fills or runs together, such as examples, are written here.
fn render(page: &Command) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
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
    Ok(text)
}

/// Writes a section whose lines stay as they are.
fn preformatted(heading: &str, lines: &str, out: &mut impl io::Write) -> io::Result<()> {
    let mut roff = Roff::new();
    roff.control("SH", [heading]).control("nf", []);
    for line in lines.lines() {
        roff.text([roman(line.strip_prefix("  ").unwrap_or(line))]);
    }
    roff.control("fi", []).to_writer(out)
}
