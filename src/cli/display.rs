//! Display of a job that is followed: a stream of bytes or events, or the live view of a terminal.

use super::stream::{Seen, Stream};
use super::view::View;
use super::{terminal, view};
use crate::error::Failure;
use crate::insight::tree::Tree;
use crate::pb::v1;

pub(super) enum Display {
    /// Lines, for scripts, files and pipes.
    Stream(Box<Stream>),
    /// The live view, for a person at a terminal.
    View(Box<View>),
}

impl Display {
    pub(super) fn log(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        match self {
            Self::Stream(stream) => stream.log(bytes),
            Self::View(view) => {
                view.log(bytes);
                Ok(())
            }
        }
    }

    /// Shows an unfinished line. Only a view asks for them.
    pub(super) fn unfinished(&mut self, entry: &[u8]) {
        match self {
            Self::Stream(_) => {}
            Self::View(view) => view.unfinished(entry),
        }
    }

    /// Takes a message of FollowSteps.
    pub(super) fn message(&mut self, message: &v1::FollowStepsResponse) -> Result<(), Failure> {
        match self {
            Self::Stream(stream) => stream.message(message),
            Self::View(view) => {
                view.message(message);
                Ok(())
            }
        }
    }

    /// Returns the job's steps; `None` for a display that needs no events of them.
    pub(super) const fn steps(&self) -> Option<&Tree> {
        match self {
            Self::Stream(stream) => stream.steps(),
            Self::View(view) => Some(view.steps()),
        }
    }

    /// True if the log waits for events, and none has come yet.
    pub(super) const fn is_silent(&self) -> bool {
        match self {
            Self::Stream(stream) => stream.is_silent(),
            Self::View(view) => view.is_silent(),
        }
    }

    pub(super) const fn is_view(&self) -> bool {
        matches!(self, Self::View(_))
    }

    /// Takes note that no more events come.
    pub(super) fn events_end(&mut self) -> Result<(), Failure> {
        match self {
            Self::Stream(stream) => stream.events_end(),
            Self::View(view) => {
                view.events_end();
                Ok(())
            }
        }
    }

    /// True if more of the log can be read.
    pub(super) fn has_room(&self) -> bool {
        match self {
            Self::Stream(stream) => stream.has_room(),
            Self::View(view) => view.has_room(),
        }
    }

    /// Waits until a frame is due, and draws it, or until the reader of a stream has taken something. Cancel-safe.
    pub(super) async fn frame(&mut self) -> Result<(), Failure> {
        match self {
            Self::Stream(stream) => stream.progress().await,
            Self::View(view) => view.frame().await,
        }
    }

    pub(super) fn say(&mut self, message: &str) -> Result<(), Failure> {
        match self {
            Self::Stream(stream) => stream.say(message),
            Self::View(view) => {
                view.say(message);
                Ok(())
            }
        }
    }

    /// True if the daemon's last lines were printed to the same place as stderr.
    pub(super) fn is_above_stderr(&self) -> bool {
        match self {
            Self::Stream(stream) => stream.is_above_stderr(),
            Self::View(_) => false,
        }
    }

    /// Returns how much of the failed step's output its reader has seen where stderr goes.
    pub(super) fn seen_output(&self) -> Seen {
        match self {
            Self::Stream(stream) => stream.seen_output(),
            Self::View(_) if terminal::outputs_are_one_file() => Seen::All,
            Self::View(_) => Seen::None,
        }
    }

    /// True for formats that people read and that do not show the outputs of the function.
    pub(super) fn leaves_outputs_out(&self) -> bool {
        match self {
            Self::Stream(stream) => stream.leaves_outputs_out(),
            Self::View(_) => true,
        }
    }

    /// Shows the end of the job. Waits for a reader that hangs.
    pub(super) async fn end(&mut self, status: &v1::Status) -> Result<(), Failure> {
        match self {
            Self::Stream(stream) => {
                stream.end(status)?;
                stream.drained().await
            }
            Self::View(view) => view.end(status).await,
        }
    }

    /// Leaves a job that has not ended. What was seen of it stays on the screen. A stream waits until its reader has taken
    /// everything.
    pub(super) async fn leave(&mut self) {
        match self {
            // An error may be ignored here: the command fails already.
            Self::Stream(stream) => drop(stream.drained().await),
            Self::View(view) => view.leave().await,
        }
    }

    /// Stops this process as Ctrl-Z does, and shows the job again once it goes on.
    pub(super) async fn suspend(&mut self) {
        match self {
            Self::Stream(stream) => drop(stream.drained().await),
            Self::View(view) => view.restore_terminal().await,
        }
        view::screen::stop_process();
    }
}
