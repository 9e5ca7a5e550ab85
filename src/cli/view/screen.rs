//! Screen of a terminal. A [`Writer`] writes to it, so that a terminal that hangs blocks nothing else.
//!
//! The size can change at any moment, also while the terminal handles a frame. Then no row has a known place: terminals
//! move rows into the history and back, and most of them wrap rows anew. So a frame keeps these rules:
//!
//! - The cursor rests in the first column of the live region's first row. Whatever the terminal does to the rows, it
//!   keeps the cursor at its text, so everything above the cursor is output.
//! - A frame first erases from the cursor to the end of the screen. It never goes to a saved or absolute place.
//! - The region is drawn from its last row up. The rows between the cursor and the region's first row are blank until
//!   then, so no terminal wraps them: as many steps up as line feeds before never lead into the output. If the screen
//!   has become too low, its edge stops the cursor within the region.
//! - The cursor never steps down without a line feed: the edge of the screen would stop it, and the steps up would lead
//!   too far.
//!
//! So a change of size can leave a stale row of the region, but never costs a line of output. The model makes stale
//! rows rare: see [`super::model`].
//!
//! No library that we looked at draws this way. Some fill rows with blanks up to the last column, which a smaller
//! terminal wraps and a copied text contains. Others ask the terminal for its cursor and wait for the answer.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::rows::Size;
use crate::cli::writer::{Writer, write_all};

/// Erases the cursor's row and all rows below it. The cursor must be in the first column and stays there. It steps
/// right first: some terminals push the whole screen into their history if everything is erased from the first row and
/// column on.
const ERASE_REGION: &str = "\x1b[K\x1b[C\x1b[J\r";

/// Moves to the first column of the row above.
const ROW_UP: &str = "\r\x1b[A";

/// Erases from the cursor to the end of the row.
const ERASE_ROW: &str = "\x1b[K";

/// Makes the terminal cut long rows instead of wrapping them: it may just have become smaller.
const NO_WRAP: &str = "\x1b[?7l";
const WRAP: &str = "\x1b[?7h";

/// Lets terminals that know it show a frame at once.
const BEGIN_FRAME: &str = "\x1b[?2026h";
const END_FRAME: &str = "\x1b[?2026l";

/// Ends an escape sequence of which only a part was written.
const CANCEL: &str = "\x18";
const NO_COLOR: &str = "\x1b[0m";

/// True while a live region is on the screen.
static HAS_REGION: AtomicBool = AtomicBool::new(false);

/// Screen of a terminal on stdout.
pub(super) struct Screen {
    writer: Writer,
    /// Live region that was drawn last, and the size that it was drawn for.
    live: Vec<String>,
    size: Size,
}

impl Screen {
    /// Starts the thread that writes.
    pub(super) fn start() -> io::Result<Self> {
        Ok(Self { writer: Writer::start()?, live: Vec::new(), size: Size { columns: 0, rows: 0 } })
    }

    /// Waits until the last frame is written, so that another one can be drawn.
    pub(super) async fn idle(&self) {
        self.writer.drained().await;
    }

    /// Returns the first error of writing since the last call.
    pub(super) fn take_error(&self) -> Option<io::Error> {
        self.writer.take_error()
    }

    /// Draws `permanent` rows, each with its line end, and the live region under them, for a terminal of this size. The
    /// screen must be idle.
    pub(super) fn draw(&mut self, permanent: &str, live: Vec<String>, size: Size) {
        if permanent.is_empty() && live == self.live && size == self.size {
            return;
        }
        let frame = if permanent.is_empty() && size == self.size && differ_in_first(&self.live, &live) {
            first_row(live.first().map_or("", String::as_str))
        } else {
            frame(permanent, !self.live.is_empty(), &live)
        };
        HAS_REGION.store(!live.is_empty(), Ordering::Release);
        self.live = live;
        self.size = size;
        self.writer.stdout(frame.into_bytes());
    }

    /// Forgets the live region, because the screen shows something else now. The next frame draws everything.
    pub(super) fn forget(&mut self) {
        self.live.clear();
        HAS_REGION.store(false, Ordering::Release);
    }
}

/// True if the region `after` has the height of `before` and the same rows but for the first one.
fn differ_in_first(before: &[String], after: &[String]) -> bool {
    before.len() == after.len() && !after.is_empty() && before.get(1..) == after.get(1..)
}

/// Returns the bytes that replace the region's first row: the only place from which the cursor need not move.
fn first_row(row: &str) -> String {
    format!("{BEGIN_FRAME}\r{NO_WRAP}{row}{ERASE_ROW}{WRAP}\r{END_FRAME}")
}

/// Returns the bytes that draw `permanent` rows in place of a region, if there is one, and the region `after` under
/// them.
fn frame(permanent: &str, has_region: bool, after: &[String]) -> String {
    let mut frame = String::with_capacity(permanent.len() + 1024);
    if !has_region && after.is_empty() {
        frame.push_str(permanent);
        return frame;
    }
    frame.push_str(BEGIN_FRAME);
    frame.push('\r');
    frame.push_str(ERASE_REGION);
    for row in permanent.lines() {
        frame.push_str(row);
        frame.push_str("\r\n");
    }
    frame.extend(after.iter().skip(1).map(|_| "\r\n"));
    frame.push_str(NO_WRAP);
    for (number, row) in after.iter().enumerate().rev() {
        frame.push_str(row);
        frame.push_str(if number > 0 { ROW_UP } else { "\r" });
    }
    frame.push_str(WRAP);
    frame.push_str(END_FRAME);
    frame
}

/// Returns the bytes that remove the live region and put the terminal in order, even after a part of a frame.
fn restoration() -> String {
    format!("{CANCEL}{NO_COLOR}{WRAP}\r{ERASE_REGION}{END_FRAME}")
}

/// Removes the live region and puts the terminal in order if this process ends early, for example by a panic.
pub(in crate::cli) fn abandon() {
    if HAS_REGION.swap(false, Ordering::AcqRel) && accepts(&io::stdout()) {
        write_all(&io::stdout(), restoration().as_bytes()).ok();
    }
}

/// True if `output` takes bytes now or within a second.
pub(in crate::cli) fn accepts(output: &impl std::os::fd::AsFd) -> bool {
    const PATIENCE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
    let mut waits = [PollFd::new(output, PollFlags::OUT)];
    poll(&mut waits, Some(&PATIENCE)).is_ok_and(|ready| ready > 0)
}

/// Returns the size of the terminal on stdout; one that does not tell has 80 columns and 24 rows.
pub(super) fn size() -> Size {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok();
    let (columns, rows) = size.map_or((0, 0), |size| (size.ws_col.into(), size.ws_row.into()));
    Size { columns: if columns > 0 { columns } else { 80 }, rows: if rows > 0 { rows } else { 24 } }
}

/// True if this process may draw: it is in the foreground of its terminal.
pub(super) fn is_foreground() -> bool {
    rustix::termios::tcgetpgrp(io::stdout())
        .map_or(true, |foreground| foreground == rustix::process::getpgrp())
}

/// Stops this process until it is continued.
pub(in crate::cli) fn stop_process() {
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::STOP).ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(rows: &[&str]) -> Vec<String> {
        rows.iter().map(|&row| row.to_owned()).collect()
    }

    #[test]
    fn the_region_is_drawn_from_its_last_row_up_and_the_cursor_rests_in_front_of_it() {
        let frame = frame("", false, &rows(&["a", "b", "c"]));
        let region = "\r\n\r\n\x1b[?7lc\r\x1b[Ab\r\x1b[Aa\r\x1b[?7h";
        assert_eq!(frame, format!("\x1b[?2026h\r{ERASE_REGION}{region}\x1b[?2026l"));
    }

    #[test]
    fn a_first_row_that_changes_is_replaced_without_a_step_up_or_down() {
        let (before, after) = (rows(&["a", "b"]), rows(&["c", "b"]));
        assert!(differ_in_first(&before, &after) && !differ_in_first(&before, &rows(&["c"])));
        assert!(!differ_in_first(&before, &rows(&["a", "c"])) && !differ_in_first(&[], &[]));
        assert_eq!(first_row("c"), "\x1b[?2026h\r\x1b[?7lc\x1b[K\x1b[?7h\r\x1b[?2026l");
    }

    #[test]
    fn lines_take_the_place_of_the_region_which_moves_down() {
        let frame = frame("one\ntwo\n", true, &rows(&["b"]));
        assert_eq!(frame, format!("\x1b[?2026h\r{ERASE_REGION}one\r\ntwo\r\n\x1b[?7lb\r\x1b[?7h\x1b[?2026l"));
    }

    #[test]
    fn no_frame_goes_to_a_place_of_the_screen_or_steps_down_without_a_line_feed() {
        for frame in [frame("one\n", true, &rows(&["a", "b", "c"])), first_row("a"), restoration()] {
            for place in ["\x1b7", "\x1b8", "\x1b[s", "\x1b[u", "\x1b[B", "H"] {
                assert!(!frame.contains(place), "{place:?} in {frame:?}");
            }
            assert!(frame.matches("\x1b[A").count() <= frame.matches('\n').count(), "{frame:?}");
        }
    }

    #[test]
    fn without_a_region_lines_have_no_sequences_around_them() {
        assert_eq!(frame("one\n", false, &[]), "one\n");
    }

    #[test]
    fn a_region_is_removed_without_an_erasure_of_the_whole_screen() {
        let frame = frame("", true, &[]);
        assert!(frame.contains(ERASE_REGION) && !frame.contains("\r\x1b[J"), "{frame:?}");
    }

    #[test]
    fn a_process_that_ends_early_leaves_a_terminal_that_wraps_and_has_no_colour() {
        let restoration = restoration();
        let order = [CANCEL, NO_COLOR, WRAP, ERASE_REGION, END_FRAME].map(|part| restoration.find(part));
        assert!(order.iter().all(Option::is_some) && order.is_sorted(), "{restoration:?}");
        assert!(!frame("one\n", true, &rows(&["a"])).contains("\x1b[?25l"), "the cursor is never hidden");
    }
}
