//! Live view of a job on a terminal. The permanent part shows the job's output. A region under it follows the running
//! steps.
//!
//! [`model`] turns events into rows, without IO and without a clock; [`screen`] writes rows to the terminal. Rows of
//! the output are drawn once. The region is drawn at most once per [`FRAME`].

mod ends;
mod growing;
mod model;
mod piece;
mod room;
mod rows;
pub(super) mod screen;
mod sections;
mod stamps;
#[cfg(test)]
mod tests;
mod totals;

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use chrono::{FixedOffset, Utc};
use tokio::time::{Instant, sleep_until};

use super::terminal;
use crate::error::{Exit, Failure};
use crate::failpoint;
use crate::insight::tree::{StepOutcome, Tree};
use crate::model::exit_code;
use crate::pb::v1;
use model::Model;
pub(super) use rows::Times;
use rows::{Size, Style, ViewMode};
use screen::Screen;

/// Shortest time between two frames.
const FRAME: Duration = Duration::from_millis(50);

/// Bytes buffered for the terminal above which the log is not read any further.
const ROOM: usize = 1 << 20;

/// Longest time that [`View::restore_terminal`] waits for a terminal that takes nothing.
const LAST_FRAME: Duration = Duration::from_secs(1);

/// Options of the live view.
pub(super) struct ViewOptions {
    pub(super) times: Times,
    pub(super) offset: FixedOffset,
    pub(super) color: bool,
    pub(super) all: bool,
    /// Omits the summary at the end.
    pub(super) quiet: bool,
}

/// Live view of one job on stdout.
pub(super) struct View {
    model: Model,
    screen: Screen,
    next_frame: Instant,
    quiet: bool,
}

impl View {
    /// Starts to show a job whose log is followed from `offset`.
    pub(super) fn start(options: &ViewOptions, offset: u64) -> Result<Self, Failure> {
        let mode = match (terminal::is_ci(), terminal::moves_cursor()) {
            (true, _) => ViewMode::Sections,
            (false, true) => ViewMode::Live,
            (false, false) => ViewMode::Lines,
        };
        let style = Style {
            mode,
            times: options.times,
            color: options.color,
            unicode: terminal::shows_unicode(),
            offset: options.offset,
        };
        let screen = Screen::start()
            .map_err(|error| Failure::new(Exit::Failure, format!("cannot write to the terminal: {error}")))?;
        let mut model = Model::new(style, size(), options.all, offset);
        model.tick(now(), size());
        Ok(Self { model, screen, next_frame: Instant::now(), quiet: options.quiet })
    }

    pub(super) fn log(&mut self, bytes: &[u8]) {
        self.model.log(bytes);
    }

    pub(super) fn unfinished(&mut self, entry: &[u8]) {
        self.model.unfinished_entry(entry);
    }

    /// Takes a message of FollowSteps.
    pub(super) fn message(&mut self, message: &v1::FollowStepsResponse) {
        self.model.message(message);
    }

    pub(super) fn say(&mut self, message: &str) {
        self.model.say(message);
    }

    /// True if the log can be read on: the buffer for the terminal has room.
    pub(super) fn has_room(&self) -> bool {
        self.model.waiting() < ROOM
    }

    /// Returns the job's steps.
    pub(super) const fn steps(&self) -> &Tree {
        self.model.steps()
    }

    /// True if the log waits for events, and none has come yet.
    pub(super) const fn is_silent(&self) -> bool {
        self.model.is_silent()
    }

    /// Takes note that no more events come, so the log need not wait for them.
    pub(super) fn events_end(&mut self) {
        self.model.events_end();
    }

    /// Waits for the next frame and draws it. Cancel-safe.
    pub(super) async fn frame(&mut self) -> Result<(), Failure> {
        sleep_until(self.next_frame).await;
        self.screen.idle().await;
        self.draw(true)
    }

    /// Removes the live region, before this process stops or something else writes to the terminal.
    pub(super) async fn hide(&mut self) -> Result<(), Failure> {
        self.screen.idle().await;
        self.draw(false)?;
        self.screen.idle().await;
        self.screen.forget();
        self.check()
    }

    /// Shows the end of the job and removes the live region. Returns when the terminal has taken everything.
    pub(super) async fn end(&mut self, status: &v1::Status) -> Result<(), Failure> {
        let outcome = match status.exit_code {
            0 => StepOutcome::Succeeded,
            exit_code::CANCELLED => StepOutcome::Cancelled,
            _ => StepOutcome::Failed,
        };
        self.model.tick(now(), size());
        self.model.end(outcome);
        if !self.quiet {
            let (steps, rows) = (self.model.own_steps(), self.model.rows());
            let lines = if status.exit_code == 0 {
                totals::lines(&steps, status, rows)
            } else {
                totals::lines_of_unsuccessful(&steps, &self.model.not_run(), rows)
            };
            self.model.print_rows(lines.iter().map(String::as_str));
        }
        self.hide().await
    }

    fn draw(&mut self, shows_region: bool) -> Result<(), Failure> {
        self.check()?;
        failpoint::hit("cli::view::frame");
        self.model.tick(now(), size());
        let region = if shows_region && screen::is_foreground() { self.model.live() } else { Vec::new() };
        self.screen.draw(&self.model.take_permanent(), region, self.model.rows().size);
        self.next_frame = Instant::now() + FRAME;
        Ok(())
    }

    fn check(&self) -> Result<(), Failure> {
        self.screen.take_error().map_or(Ok(()), |error| {
            Err(Failure::new(Exit::Failure, format!("write to the terminal: {error}")))
        })
    }

    /// Removes the live region, however following ended. What it showed stays on the screen.
    pub(super) async fn leave(&mut self) {
        self.model.leave();
        self.restore_terminal().await;
    }

    /// Removes the live region for a while.
    pub(super) async fn restore_terminal(&mut self) {
        // An error may be ignored here: the next writer meets the same terminal.
        drop(tokio::time::timeout(LAST_FRAME, self.hide()).await);
    }
}

impl Drop for View {
    fn drop(&mut self) {
        screen::abandon();
    }
}

/// Returns the size of the terminal. Elsewhere lines are wide, because the log viewer of a CI runner wraps by itself.
fn size() -> Size {
    if io::stdout().is_terminal() { screen::size() } else { Size { columns: 4096, rows: 24 } }
}

/// Returns microseconds since the epoch.
fn now() -> i64 {
    Utc::now().timestamp_micros()
}
