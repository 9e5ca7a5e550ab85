//! State of the view: events of a job go in, rows of the screen come out. No IO, no clock.
//!
//! The live region must stay on the screen: rows in the history of a terminal cannot be erased any more. A terminal
//! that becomes narrower wraps the region's rows, one that becomes lower has no room for them. So the region is only
//! as large as a screen of [`NARROWEST_SCREEN`] columns has room for, and one short row while the size changes.

use std::collections::VecDeque;
use std::time::Duration;

use super::ends::{OwnStep, ShownEnd, UnseenEnd, micros};
use super::growing::Growing;
use super::piece::{MAX_PIECE, piece_length};
use super::room::{NARROWEST_SCREEN, Room, cost, fitting};
use super::rows::{End, Line, RowOrigin, Rows, RunningStep, Size, Style, ViewMode};
use super::sections;
use super::stamps::Stamps;
use crate::cli::results;
use crate::insight::run::{Part, Run};
use crate::insight::tree::{Change, ROOT, Step, StepOutcome, Tree};
use crate::lang::document::STEP_LIMIT;
use crate::log::pretty::{Format, Options, Output, Printer};
use crate::log::words::DaemonLine;
use crate::pb::v1;

/// Most lines of a running step that stay in the live region.
const TAIL: usize = 10;

/// Microseconds after a change of size in which another one is expected. Multiplexers tell several changes at once.
const UNSTEADY: i64 = 1_000_000;

pub(super) struct Model {
    rows: Rows,
    run: Run,
    printer: Printer,
    stamps: Stamps,
    printed: Output,
    growing: Growing,
    /// Last lines of the running steps.
    tail: VecDeque<Line>,
    /// Rows to print above the live region, each with its line end.
    permanent: String,
    /// Names of the job's own list.
    names: Vec<String>,
    /// End of the steps that were under way when the job ended.
    unseen_end: Option<UnseenEnd>,
    /// Microseconds since the epoch.
    now: i64,
    /// Time of the last change of size.
    resized: Option<i64>,
    /// A moment near the next line, which gives the day: lines carry only the time of day.
    near: Option<i64>,
}

impl Model {
    /// Makes the state for a job whose log is followed from `offset`.
    pub(super) fn new(style: Style, size: Size, all: bool, offset: u64) -> Self {
        let options = Options { all, color: style.color, ..Options::plain_utc() };
        Self {
            rows: Rows { style, size, job_start: None },
            run: Run::new(offset),
            printer: Printer::new(Format::Pretty(options)),
            stamps: Stamps::default(),
            printed: Output::default(),
            growing: Growing::default(),
            tail: VecDeque::new(),
            permanent: String::new(),
            names: Vec::new(),
            unseen_end: None,
            now: 0,
            resized: None,
            near: None,
        }
    }

    /// Sets the time, in microseconds since the epoch, and the size of the screen.
    pub(super) fn tick(&mut self, now: i64, size: Size) {
        self.now = now;
        if self.rows.size != size {
            self.rows.size = size;
            self.resized = Some(now);
        }
        self.advance();
        self.fold_to_fit();
    }

    pub(super) fn log(&mut self, bytes: &[u8]) {
        self.run.log(bytes);
        self.advance();
    }

    /// Takes the entry of a line that has no end yet.
    pub(super) fn unfinished_entry(&mut self, entry: &[u8]) {
        self.growing.set(entry);
    }

    /// Takes a message of FollowSteps.
    pub(super) fn message(&mut self, message: &v1::FollowStepsResponse) {
        self.run.message(message);
        self.advance();
    }

    /// Takes note that no more messages come.
    pub(super) fn events_end(&mut self) {
        self.run.events_end();
        self.advance();
    }

    /// Returns the job's steps, as far as they are shown.
    pub(super) const fn steps(&self) -> &Tree {
        self.run.tree()
    }

    /// True if the log waits for events, and none has come yet.
    pub(super) const fn is_silent(&self) -> bool {
        self.run.is_silent()
    }

    /// Prints a message of this command.
    pub(super) fn say(&mut self, message: &str) {
        let text = crate::cli::text::clean(message);
        let line = Line { at: Some(self.now), origin: RowOrigin::Own, stream: 0, depth: 0, text };
        self.fold_tail(false);
        self.print(&line, false);
    }

    /// Prints everything that is left at the end of the job. Steps without an end get `outcome`.
    pub(super) fn end(&mut self, outcome: StepOutcome) {
        self.run.end();
        self.advance();
        self.finish_lines();
        self.unseen_end = Some(UnseenEnd { outcome, at: self.now });
        let running: Vec<u32> = self.running().map(|(call, _)| call).collect();
        for call in running.into_iter().rev() {
            self.step_ended(call, 0);
        }
        self.fold_tail(false);
    }

    /// Prints what the live region shows, before the end of the job. The model takes nothing after that.
    pub(super) fn leave(&mut self) {
        self.run.end();
        self.advance();
        self.fold_tail(false);
        match self.unfinished() {
            Some(line) => self.print(&line, false),
            None => self.finish_lines(),
        }
        self.fold_tail(false);
    }

    /// Returns the names of the steps in the job's own list that have not run, in order; an empty name if the daemon has
    /// not told it.
    pub(super) fn not_run(&self) -> Vec<String> {
        let ended = self.own_steps();
        let total = ended.iter().map(|step| step.total).max().unwrap_or(0);
        // No list is longer, whatever a daemon tells.
        let total = usize::try_from(total).unwrap_or_default().min(STEP_LIMIT);
        let known = total.max(self.names.len());
        let has_run = |number: usize| ended.iter().any(|step| usize::try_from(step.number) == Ok(number));
        let missing = (1..=known).filter(|number| !has_run(*number));
        missing.map(|number| self.names.get(number - 1).cloned().unwrap_or_default()).collect()
    }

    /// Returns the rows to print above the live region since the last call.
    pub(super) fn take_permanent(&mut self) -> String {
        std::mem::take(&mut self.permanent)
    }

    /// Returns the number of bytes that wait to be put in order or to be drawn.
    pub(super) fn waiting(&self) -> usize {
        self.run.waiting() + self.permanent.len()
    }

    /// Returns the steps of the job's own list that have ended or were skipped.
    pub(super) fn own_steps(&self) -> Vec<OwnStep> {
        OwnStep::all(self.run.tree(), self.unseen_end)
    }

    /// Returns the steps under way, without the root.
    fn running(&self) -> impl DoubleEndedIterator<Item = (u32, &Step)> {
        self.run.tree().under_way().filter(|(call, _)| *call != ROOT)
    }

    pub(super) const fn rows(&self) -> &Rows {
        &self.rows
    }

    pub(super) fn print_rows<'a>(&mut self, rows: impl IntoIterator<Item = &'a str>) {
        for row in rows {
            self.permanent.push_str(row);
            self.permanent.push('\n');
        }
    }

    /// Returns the rows of the live region: the tree of running steps, and the last lines of the innermost one.
    pub(super) fn live(&self) -> Vec<String> {
        if self.rows.style.mode != ViewMode::Live {
            return Vec::new();
        }
        if self.is_unsteady() {
            let columns = self.rows.size.columns.min(NARROWEST_SCREEN);
            let rows = Rows { size: Size { columns, ..self.rows.size }, ..self.rows };
            return self.tree(&rows).pop().into_iter().collect();
        }
        let tree = self.shown_tree();
        let output = self.output_rows();
        let shown = fitting(&output, self.room_for_output(&tree));
        tree.iter().chain(output.get(output.len() - shown..).unwrap_or_default()).cloned().collect()
    }

    /// True if the size has just changed, and may soon change again.
    fn is_unsteady(&self) -> bool {
        self.resized.is_some_and(|at| (0..UNSTEADY).contains(&(self.now - at)))
    }

    /// Returns a row for each running step, or one for the job.
    fn tree(&self, rows: &Rows) -> Vec<String> {
        let mut tree: Vec<_> = self
            .running()
            .map(|(call, step)| {
                let at = micros(step.start.as_ref());
                let elapsed = at.map(|at| self.since(at).unwrap_or_default());
                let [number, total] =
                    [step.number, step.total].map(|count| u32::try_from(count).unwrap_or(0));
                let (depth, attempt) = (self.depth(call), step.attempt);
                rows.running(
                    &RunningStep { name: &step.name, depth, number, total, attempt, elapsed },
                    self.now,
                )
            })
            .collect();
        if tree.is_empty() {
            let name = if self.rows.job_start.is_some() { "running" } else { "waiting to start" };
            let elapsed = self.rows.job_start.and_then(|at| self.since(at));
            let job = RunningStep { name, depth: 0, number: 0, total: 0, attempt: 1, elapsed };
            tree.push(rows.running(&job, self.now));
        }
        tree
    }

    /// Returns the rows of the tree that are shown. They may take half of the screen. If that is too little, the
    /// innermost steps stay.
    fn shown_tree(&self) -> Vec<String> {
        let mut tree = self.tree(&self.rows);
        let room = Room { rows: tree.len(), cost: self.height().div_ceil(2) };
        let shown = fitting(&tree, room).max(1);
        tree.split_off(tree.len().saturating_sub(shown))
    }

    /// Returns the rows of the running step's last lines.
    fn output_rows(&self) -> Vec<String> {
        let mut output = Vec::new();
        for line in self.tail.iter().chain(&self.unfinished()) {
            self.rows.line(line, line.depth, false, |row| output.push(row.to_owned()));
        }
        output
    }

    fn room_for_output(&self, tree: &[String]) -> Room {
        let cost: usize = tree.iter().map(|row| cost(row)).sum();
        let rows = self.height().saturating_sub(tree.len()).min(self.tail_limit());
        Room { rows, cost: self.height().saturating_sub(cost) }
    }

    /// Returns the most rows of the live region.
    fn height(&self) -> usize {
        self.rows.size.rows.saturating_sub(1).max(1)
    }

    /// Moves lines above the live region that have no room in it.
    fn fold_to_fit(&mut self) {
        if self.tail.is_empty() || self.is_unsteady() {
            return;
        }
        let room = self.room_for_output(&self.shown_tree());
        while !self.tail.is_empty() {
            let output = self.output_rows();
            if output.len() <= room.rows && output.iter().map(|row| cost(row)).sum::<usize>() <= room.cost {
                return;
            }
            self.fold_line(true);
        }
    }

    /// Handles all parts that are certain.
    fn advance(&mut self) {
        loop {
            if self.run.is_step_next() {
                // What a step wrote last is shown before its end, and before what begins next.
                self.finish_lines();
            }
            match self.run.next_part() {
                None => return,
                Some(Part::Log(bytes)) => {
                    self.growing.follow(&bytes);
                    self.printer.push(&bytes, &mut self.printed);
                    self.take_lines();
                }
                Some(Part::Step { event, change: Change::Started | Change::Again }) => {
                    self.step_started(event.call);
                }
                // The root ends with the job.
                Some(Part::Step { event, .. }) if event.call == ROOT => {}
                Some(Part::Step { event, .. }) => {
                    let exit_code = event.result.as_ref().and_then(results::exit_code);
                    self.step_ended(event.call, exit_code.unwrap_or(0));
                }
                Some(Part::Result(result)) => self.result(&result),
            }
        }
    }

    /// Takes the names of the job's own list from the root's result.
    fn result(&mut self, result: &v1::StepResult) {
        let root = Some(result).filter(|result| result.step.is_none());
        if let Some(definition) = root.and_then(|root| root.spec_definition.as_ref()?.definition.as_ref()) {
            self.names = definition.steps.iter().map(|step| step.name.clone()).collect();
        }
    }

    fn step_started(&mut self, call: u32) {
        self.fold_tail(true);
        let tree = self.run.tree();
        let Some(step) = tree.get(call) else { return };
        let at = micros(step.start.as_ref());
        self.near = at.or(self.near);
        if call == ROOT {
            self.rows.job_start = at;
            return;
        }
        if self.rows.style.mode == ViewMode::Sections {
            self.permanent.push_str(&sections::start(&tree.path(call), at.unwrap_or(self.now)));
        }
        if self.rows.style.mode != ViewMode::Live {
            let (depth, permanent, rows) = (self.depth(call), &mut self.permanent, self.rows);
            rows.start(&step.name, at.or(Some(self.now)), depth, |row| push_row(permanent, row));
        }
    }

    /// `exit_code` is 0 without a process.
    fn step_ended(&mut self, call: u32, exit_code: i32) {
        let ended = self
            .run
            .tree()
            .get(call)
            .and_then(|step| Some((ShownEnd::of(step, self.unseen_end)?, step.attempt)));
        let Some((end, attempts)) = ended else { return };
        self.fold_tail(matches!(end.outcome, StepOutcome::Succeeded | StepOutcome::Skipped));
        self.near = end.at.or(self.near);
        let path = self.run.tree().path(call);
        let is_skipped = end.outcome == StepOutcome::Skipped;
        if self.rows.style.mode == ViewMode::Sections && !is_skipped {
            self.permanent.push_str(&sections::end(&path, end.at.unwrap_or(self.now)));
        }
        let ShownEnd { outcome, at, took, reason } = end;
        let name = path.last().map_or("", String::as_str);
        let end = End { name, outcome, exit_code, took, attempts, reason: &reason };
        let (depth, permanent, rows) = (path.len().saturating_sub(1), &mut self.permanent, self.rows);
        rows.end(&end, at.or(Some(self.now)), depth, |row| push_row(permanent, row));
    }

    /// Returns the level of indentation of a step: 0 for steps of the job's own list.
    fn depth(&self, call: u32) -> usize {
        self.run.tree().path(call).len().saturating_sub(1)
    }

    /// Completes the lines that may have been continued.
    fn finish_lines(&mut self) {
        self.growing.clear();
        self.printer.finish(&mut self.printed);
        self.take_lines();
    }

    fn take_lines(&mut self) {
        let mut printed = std::mem::take(&mut self.printed.stdout);
        let mut start = 0;
        while let Some(length) = memchr::memchr(b'\n', printed.get(start..).unwrap_or_default()) {
            if let Some(line) = printed.get(start..start + length) {
                self.printed_line(line);
            }
            self.stamps.end_line();
            start += length + 1;
        }
        if printed.len() - start > MAX_PIECE {
            let piece = printed.get(start..).unwrap_or_default();
            let length = piece_length(piece);
            if let Some(piece) = piece.get(..length) {
                self.printed_line(piece);
            }
            start += length;
        }
        printed.drain(..start);
        self.printed.stdout = printed;
    }

    fn printed_line(&mut self, printed: &[u8]) {
        let line = self.stamps.read(printed, self.near.unwrap_or(self.now));
        self.near = line.at.or(self.near);
        // The view itself shows starts, and the summary at the end tells why the job failed.
        let is_shown_elsewhere = |line: DaemonLine<'_>| {
            matches!(line, DaemonLine::Started { .. } | DaemonLine::Skipped { .. })
                || line.job_end().is_some()
        };
        if line.of_daemon().is_some_and(is_shown_elsewhere) {
            return;
        }
        let line = self.placed(line);
        if self.tail_limit() == 0 || self.running().next().is_none() {
            return self.print(&line, false);
        }
        self.tail.push_back(line);
        while self.tail.len() > self.tail_limit() {
            self.fold_line(true);
        }
    }

    /// Gives a line the depth of its step and, if steps run side by side, the name of that.
    fn placed(&self, line: Line) -> Line {
        let tree = self.run.tree();
        let call = match line.origin {
            RowOrigin::Daemon | RowOrigin::Own => tree.innermost(),
            RowOrigin::Stdout | RowOrigin::Stderr => tree.of_stream(line.stream),
        };
        let depth = tree.path(call).len();
        let is_of_step = matches!(line.origin, RowOrigin::Stdout | RowOrigin::Stderr);
        let named = (is_of_step && line.at.is_some() && tree.is_parallel())
            .then(|| tree.get(call).map(|step| step.name.clone()))
            .flatten();
        match named.filter(|name| !name.is_empty()) {
            Some(name) => {
                Line { text: format!("{} | {}", crate::cli::text::clean(&name), line.text), depth, ..line }
            }
            None => Line { depth, ..line },
        }
    }

    /// Returns the printed output that may still be continued.
    fn unfinished(&self) -> Option<Line> {
        let mut output = Output::default();
        // Its place is behind the log and the steps that wait to be put in order.
        let growing = self.growing.last().filter(|_| self.run.is_idle());
        self.printer.unfinished(growing, &mut output);
        (!output.stdout.is_empty())
            .then(|| self.placed(self.stamps.clone().read(&output.stdout, self.near.unwrap_or(self.now))))
    }

    /// Moves the last lines of a step above the live region.
    fn fold_tail(&mut self, folded: bool) {
        while !self.tail.is_empty() {
            self.fold_line(folded);
        }
    }

    fn fold_line(&mut self, folded: bool) {
        if let Some(line) = self.tail.pop_front() {
            self.print(&line, folded);
        }
    }

    fn print(&mut self, line: &Line, folded: bool) {
        let (permanent, rows) = (&mut self.permanent, self.rows);
        rows.line(line, line.depth, folded, |row| push_row(permanent, row));
    }

    /// Returns the time since `at`, or `None` if the daemon's clock is ahead of ours.
    fn since(&self, at: i64) -> Option<Duration> {
        u64::try_from(self.now - at).ok().map(Duration::from_micros)
    }

    fn tail_limit(&self) -> usize {
        match self.rows.style.mode {
            ViewMode::Live => (self.rows.size.rows / 2).clamp(1, TAIL),
            ViewMode::Lines | ViewMode::Sections => 0,
        }
    }
}

fn push_row(permanent: &mut String, row: &str) {
    permanent.push_str(row);
    permanent.push('\n');
}
