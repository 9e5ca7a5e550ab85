//! Options of how a job's log and events are shown: `pretty`, `plain`, `raw` or `json` (cli.md, logs.md §8).

use std::io::{self, IsTerminal};

use chrono::{FixedOffset, Offset, Utc};

use super::display::Display;
use super::stream::{OutputFormat, Stream, StreamOptions};
use super::view::{Times, View, ViewOptions};
use super::{Verbosity, terminal};
use crate::error::Failure;

/// Options of the output of `run` and `follow`.
#[derive(clap::Args)]
#[command(next_help_heading = "Output")]
pub(super) struct OutputOptions {
    /// Default: pretty on a terminal, else plain
    #[arg(long, value_enum, value_name = "FORMAT", env = "STEP_RUNNER_OUTPUT")]
    output: Option<OutputFormat>,
    /// plain: stderr of the steps goes to stdout, too
    #[arg(long, env = "STEP_RUNNER_MERGE")]
    merge: bool,
    /// Live view: time in front of each line
    #[arg(long, value_enum, value_name = "WHAT", default_value = "clock", env = "STEP_RUNNER_TIMES")]
    times: Times,
    /// pretty: times in the local time zone; those of the live view always are
    #[arg(long, env = "STEP_RUNNER_LOCAL")]
    local: bool,
    /// pretty: also what a progress bar has overwritten
    #[arg(long, env = "STEP_RUNNER_ALL")]
    all: bool,
}

impl OutputOptions {
    /// True if programs read the output.
    pub(super) fn is_json(&self) -> bool {
        self.output == Some(OutputFormat::Json)
    }

    /// Returns the display for a job whose log is followed from `offset`.
    pub(super) fn display(&self, offset: u64, verbosity: Verbosity) -> Result<Display, Failure> {
        let is_terminal = io::stdout().is_terminal();
        let format =
            self.output.unwrap_or(if is_terminal { OutputFormat::Pretty } else { OutputFormat::Plain });
        if format != OutputFormat::Pretty || !is_terminal && !terminal::is_ci() {
            let options = StreamOptions { merge: self.merge, all: self.all, zone: self.zone() };
            return Ok(Display::Stream(Box::new(Stream::start(format, &options, offset, verbosity)?)));
        }
        let options = ViewOptions {
            times: self.times,
            offset: *chrono::Local::now().offset(),
            color: terminal::stdout_has_color(),
            all: self.all,
            quiet: verbosity.quiet,
        };
        Ok(Display::View(Box::new(View::start(&options, offset)?)))
    }

    /// True if the live view shows the colours of the steps.
    pub(super) fn shows_colors_of_steps(&self) -> bool {
        let is_view =
            self.output.is_none_or(|format| format == OutputFormat::Pretty) && io::stdout().is_terminal();
        is_view && terminal::stdout_has_color()
    }

    fn zone(&self) -> FixedOffset {
        if self.local { *chrono::Local::now().offset() } else { Utc.fix() }
    }
}
