//! Masks one source, write by write (masking.md §6).

use std::{collections::VecDeque, fmt, ops::Range, sync::Arc};

use super::{
    Forms, Masker,
    automaton::{AutomatonState, ROOT},
    candidates::Introducers,
    detect::{Cover, Detector},
    readings::{self, Readings},
    token::TokenPrefixes,
    wrap::{self, Breaks, Wrapped},
};

/// Whenever the automaton holds few bytes, the search asks the filter where a form may start next. If the answer skips
/// at most [`GAIN`] bytes, the search walks some distance before it asks again. It doubles that distance each time, up
/// to a bound. So text that defeats the filter costs little more than the walk.
const GAIN: usize = 8;
const MIN_WALK: usize = 1;
const MAX_WALK: usize = 1024;

/// Number of spans at which decided bytes are released, even within a write. This bounds the memory for huge writes.
const MAX_SPANS: usize = 512;

/// Capacity above which the buffer for held bytes is freed when it is empty.
const KEPT_CAPACITY: usize = 4096;

/// State of one source: the bytes held back and the matches in progress.
///
/// The output depends on the input bytes alone, not on how they were cut into writes. Without phrases no byte is ever
/// held back, and the state has no memory on the heap.
pub struct MaskStream {
    masker: Arc<Masker>,
    search: Search,
    detector: Detector,
}

impl MaskStream {
    /// Makes a stream for the start of a source.
    pub fn new(masker: Arc<Masker>) -> Self {
        Self { masker, search: Search::default(), detector: Detector::default() }
    }

    /// Takes the next write of the source and appends the output that it decides to `out`.
    pub fn push(&mut self, input: &[u8], out: &mut Vec<u8>) {
        let Self { masker, search, detector } = self;
        if let Some(forms) = &masker.forms {
            let mut output = Output { detector, prefixes: &masker.prefixes, out };
            search.push(forms, input, &mut output);
        } else {
            search.pass_by(input);
            detector.feed(&masker.prefixes, input, Cover::Plain, out);
        }
    }

    /// Closes the source: releases the held bytes. The stream can then serve another source.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        let Self { masker, search, detector } = self;
        search.finish(&mut Output { detector, prefixes: &masker.prefixes, out });
        detector.finish(out);
    }

    /// Searches undecided bytes again with `masker`, because further phrases became known (masking.md §7). `masker`
    /// must know all earlier phrases. Appends the output that is decided now to `out`.
    pub(crate) fn replace_masker(&mut self, masker: Arc<Masker>, out: &mut Vec<u8>) {
        if Arc::ptr_eq(&self.masker, &masker) {
            return;
        }
        if !masker.prefixes.is_same(&self.masker.prefixes) {
            self.detector.forget_prefix();
        }
        self.masker = masker;
        let Self { masker, search, detector } = self;
        let mut output = Output { detector, prefixes: &masker.prefixes, out };
        match &masker.forms {
            Some(forms) => search.search_again(forms, &mut output),
            None => search.finish(&mut output),
        }
    }

    /// Returns the number of bytes held back.
    pub(crate) fn held(&self) -> usize {
        self.search.held.as_slice().len()
    }

    /// Returns the memory on the heap, in bytes.
    #[cfg(test)]
    pub(super) fn heap_bytes(&self) -> usize {
        let Search { held, spans, wrapped, readings, .. } = &self.search;
        held.bytes.capacity()
            + spans.capacity() * size_of::<Span>()
            + wrapped.as_ref().map_or(0, |wrapped| wrapped.heap_bytes())
            + readings.as_ref().map_or(0, |readings| readings.heap_bytes())
    }
}

impl fmt::Debug for MaskStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MaskStream").field("held", &self.held()).finish_non_exhaustive()
    }
}

/// Destination of decided bytes.
struct Output<'a> {
    detector: &'a mut Detector,
    prefixes: &'a TokenPrefixes,
    out: &'a mut Vec<u8>,
}

impl Output<'_> {
    fn feed(&mut self, piece: &[u8], cover: Cover) {
        if !piece.is_empty() {
            self.detector.feed(self.prefixes, piece, cover, self.out);
        }
    }
}

/// Bytes covered by phrases, from `start` up to but not including `end`.
#[derive(Clone, Copy)]
struct Span {
    start: usize,
    end: usize,
    /// True if its first bytes are already released.
    begun: bool,
}

/// The search for forms: finds phrase spans, and the position before which all bytes are decided.
///
/// Positions count from a released byte of the source. They restart at 0 whenever no byte is held.
#[derive(Default)]
struct Search {
    state: AutomatonState,
    /// A form that may continue after a break (see [`wrap`]).
    wrapped: Option<Box<Wrapped>>,
    /// Forms with escapes that have begun (see [`super::readings`]). `None` until there is the first.
    readings: Option<Box<Readings>>,
    /// The undecided bytes. Between writes they are the bytes that `state` holds or that begin in `wrapped` or in
    /// `readings`.
    held: Held,
    /// Position of the first held byte.
    held_at: usize,
    /// Length of the run of base64 that ends before the first held byte.
    run_before: usize,
    /// Bytes before this position are released. Between writes it equals `held_at`.
    released: usize,
    /// Spans that are not completely released, sorted. They do not overlap but may touch.
    spans: VecDeque<Span>,
}

impl Search {
    fn push(&mut self, forms: &Forms, input: &[u8], output: &mut Output<'_>) {
        self.find(forms, input, Some(output));
        self.release(input, self.undecided_from(forms, self.input_at() + input.len()), output);
        self.keep_rest(input);
    }

    /// Skips input while there is nothing to search for.
    fn pass_by(&mut self, input: &[u8]) {
        self.run_before = wrap::trailing_run(self.run_before, input);
    }

    /// Returns the position of the first byte after the held ones.
    fn input_at(&self) -> usize {
        self.held_at + self.held.as_slice().len()
    }

    /// Returns the position of the first byte that may belong to a form not complete at `end`, the position of the
    /// search.
    fn undecided_from(&self, forms: &Forms, end: usize) -> usize {
        let automaton = &forms.automaton;
        let plain = end - automaton.hold(self.state);
        let wrapped =
            self.wrapped.as_ref().map(|wrapped| wrapped.view.start(end, automaton.hold(wrapped.state)));
        let read = self.readings.as_ref().and_then(|readings| readings.undecided_from(automaton));
        [wrapped, read].into_iter().flatten().fold(plain, usize::min)
    }

    /// True if a form has begun that only [`Self::step`] can find.
    #[inline]
    fn steps(&self) -> bool {
        self.wrapped.is_some() || self.readings.as_ref().is_some_and(|readings| !readings.is_empty())
    }

    /// Searches `input`, which follows the held bytes, and adds the phrases found to `spans`. If there is an `output`,
    /// releases decided bytes to it as soon as there are [`MAX_SPANS`] spans, to bound the memory.
    fn find(&mut self, forms: &Forms, input: &[u8], mut output: Option<&mut Output<'_>>) {
        let run_before = wrap::trailing_run(self.run_before, self.held.as_slice());
        let mut breaks = Breaks::new(input, run_before, forms.columns);
        let mut at = usize::from(self.close_break(forms, input));
        while let Some(line_end) = breaks.next() {
            self.find_in(forms, input, at..line_end, output.as_deref_mut());
            at = line_end + self.wrap(forms, input, line_end);
        }
        self.find_in(forms, input, at..input.len(), output);
    }

    /// Searches between two breaks.
    fn find_in(
        &mut self,
        forms: &Forms,
        input: &[u8],
        range: Range<usize>,
        mut output: Option<&mut Output<'_>>,
    ) {
        let (mut at, mut escapes_from) = (range.start, range.start);
        let mut introducers = Introducers::default();
        while at < range.end {
            if !self.steps() {
                let escape =
                    self.next_escape(forms, input, escapes_from.max(at)..range.end, &mut introducers);
                self.find_plain(forms, &input[..escape], at, output.as_deref_mut());
                at = escape;
                escapes_from = escape + 1;
                if escape == range.end || !readings::continues(&forms.automaton, self.state, &input[escape..])
                {
                    continue;
                }
            }
            self.step_wrapped(forms, input[at], self.input_at() + at + 1);
            at += 1;
            self.release_spans(forms, input, at, output.as_deref_mut());
        }
    }

    /// Returns where in `range` of `input` an escape may be part of a form, or the end of the range.
    fn next_escape(
        &self,
        forms: &Forms,
        input: &[u8],
        range: Range<usize>,
        found: &mut Introducers,
    ) -> usize {
        let Some(escapes) = &forms.escapes else { return range.end };
        escapes.next(self.held.as_slice(), input, range, found)
    }

    /// Searches from `at` on, where no form continues after a break, for forms without escapes.
    fn find_plain(
        &mut self,
        forms: &Forms,
        input: &[u8],
        mut at: usize,
        mut output: Option<&mut Output<'_>>,
    ) {
        let Forms { automaton, filter, .. } = forms;
        let input_at = self.input_at();
        let mut ask_at = at; // the filter is not asked before
        let mut distance = MIN_WALK;
        while at < input.len() {
            // No form starts before the bytes that the automaton holds. If they belong to this piece and no form can
            // have ended in them, the filter may prove that none starts in them either.
            let hold = automaton.hold(self.state);
            let mut entered = false;
            if at >= ask_at && hold < filter.window() && hold <= at {
                let start = filter.first_possible_start(automaton, input, at - hold);
                if let Some((state, position)) = start.known {
                    distance = if position > at + GAIN { MIN_WALK } else { (2 * distance).min(MAX_WALK) };
                    (self.state, at, entered) = (state, position, true);
                    ask_at = at + distance;
                } else {
                    if start.at > at - hold {
                        (self.state, at) = (ROOT, start.at);
                    }
                    ask_at = input.len(); // what is left is too short for it
                }
            }
            // A form may already end at the position that the filter leads to.
            if !entered || automaton.matched(self.state) == 0 {
                let enough = ask_at.saturating_sub(at).max(1);
                let taken;
                (self.state, taken) = automaton.walk(self.state, &input[at..], enough);
                at += taken;
            }
            let matched = automaton.matched(self.state);
            if matched > 0 {
                self.add_occurrence(input_at + at, matched);
                self.release_spans(forms, input, at, output.as_deref_mut());
            }
        }
    }

    /// Takes a byte outside breaks, with all that may have begun. `end` is the position after the byte.
    fn step_wrapped(&mut self, forms: &Forms, byte: u8, end: usize) {
        let automaton = &forms.automaton;
        self.step(forms, byte, end);
        let Some(mut wrapped) = self.wrapped.take() else { return };
        if wrap::is_line_end(byte) {
            return;
        }
        wrapped.state = automaton.step(wrapped.state, byte);
        let matched = automaton.matched(wrapped.state);
        if wrapped.view.spans(end, matched) {
            self.add_occurrence(end, end - wrapped.view.start(end, matched));
        }
        let hold = automaton.hold(wrapped.state);
        if wrapped.view.spans(end, hold) {
            wrapped.view.forget_before(wrapped.view.start(end, hold));
            self.wrapped = Some(wrapped);
        }
    }

    /// Takes a byte, as itself and as part of escapes; `end` is the position after it.
    fn step(&mut self, forms: &Forms, byte: u8, end: usize) {
        let Forms { automaton, escapes, .. } = forms;
        let before = self.state;
        self.state = automaton.step(before, byte);
        let matched = automaton.matched(self.state);
        if matched > 0 {
            self.add_occurrence(end, matched);
        }
        let Some(escapes) = escapes else { return };
        let readings = match &mut self.readings {
            Some(readings) if !readings.is_empty() => readings,
            readings if escapes.begin_with(byte) => readings.get_or_insert_default(),
            _ => return,
        };
        if let Some(start) = readings.step(automaton, escapes, before, byte, end) {
            self.add_occurrence(end, end - start);
        }
    }

    /// Takes the line end at `at`, which follows base64. Returns its length, or 0 if it is no break.
    fn wrap(&mut self, forms: &Forms, input: &[u8], at: usize) -> usize {
        let (length, open) = match &input[at..] {
            [b'\n', ..] => (1, false),
            [b'\r'] => (1, true),
            [b'\r', b'\n', ..] => (2, false),
            _ => return 0,
        };
        let start = self.input_at() + at;
        let wrapped = self.wrapped.take();
        let state = match &wrapped {
            Some(wrapped) => wrapped.state,
            None => self.state_in_line(forms, &input[..at]),
        };
        for (&byte, end) in input[at..at + length].iter().zip(start + 1..) {
            self.step(forms, byte, end);
        }
        if forms.automaton.hold(state) > 0 {
            let mut wrapped = wrapped.unwrap_or_else(|| Box::new(Wrapped::new(state)));
            wrapped.view.add(start..start + length, 0);
            wrapped.open = open;
            self.wrapped = Some(wrapped);
        }
        length
    }

    /// Handles a CR at the end of the previous write: returns true if the first byte of this write makes it a break.
    fn close_break(&mut self, forms: &Forms, input: &[u8]) -> bool {
        let closed = input.first() == Some(&b'\n');
        let Some(mut wrapped) = self.wrapped.take_if(|wrapped| wrapped.open && !input.is_empty()) else {
            return false;
        };
        if closed {
            self.step(forms, b'\n', self.input_at() + 1);
            wrapped.close();
            self.wrapped = Some(wrapped);
        }
        closed
    }

    /// Returns the state after the held bytes and `input`, as if the source had begun with their last line.
    fn state_in_line(&self, forms: &Forms, input: &[u8]) -> AutomatonState {
        let automaton = &forms.automaton;
        let hold = automaton.hold(self.state);
        let held = self.held.as_slice();
        let held = &held[held.len() - hold.saturating_sub(input.len()).min(held.len())..];
        let input = &input[input.len() - hold.min(input.len())..];
        let line = |text: &[u8]| text.iter().rposition(|&byte| wrap::is_line_end(byte));
        let (held, input) = match (line(held), line(input)) {
            (None, None) => return self.state,
            (_, Some(end)) => (&[][..], &input[end + 1..]),
            (Some(end), None) => (&held[end + 1..], input),
        };
        held.iter().chain(input).fold(ROOT, |state, &byte| automaton.step(state, byte))
    }

    /// Adds an occurrence whose end is not before that of any earlier one. Merges the spans that it overlaps.
    fn add_occurrence(&mut self, end: usize, length: usize) {
        let mut span = Span { start: end - length, end, begun: false };
        while let Some(last) = self.spans.pop_back_if(|last| last.end > span.start) {
            if last.start <= span.start {
                (span.start, span.begun) = (last.start, last.begun);
            }
        }
        self.spans.push_back(span);
    }

    /// If there are [`MAX_SPANS`] spans, releases the bytes that are decided after a search of the first `at` bytes of
    /// `input`.
    #[inline]
    fn release_spans(&mut self, forms: &Forms, input: &[u8], at: usize, output: Option<&mut Output<'_>>) {
        if self.spans.len() >= MAX_SPANS
            && let Some(output) = output
        {
            self.release(input, self.undecided_from(forms, self.input_at() + at), output);
        }
    }

    /// Searches the held bytes with another automaton. Keeps the spans found so far.
    fn search_again(&mut self, forms: &Forms, output: &mut Output<'_>) {
        let mut spans = Vec::from(std::mem::take(&mut self.spans));
        (self.state, self.wrapped, self.readings) = (ROOT, None, None);
        let held = std::mem::take(&mut self.held);
        self.find(forms, held.as_slice(), None);
        self.held = held;
        spans.extend(std::mem::take(&mut self.spans));
        // The union of spans needs them sorted by start; of those with the same start, a begun one must be first.
        spans.sort_by_key(|span| (span.start, !span.begun));
        for span in spans {
            match self.spans.back_mut() {
                Some(last) if span.start < last.end => last.end = last.end.max(span.end),
                _ => self.spans.push_back(span),
            }
        }
        self.release(&[], self.undecided_from(forms, self.input_at()), output);
        self.keep_rest(&[]);
    }

    fn finish(&mut self, output: &mut Output<'_>) {
        self.release(&[], self.held_at + self.held.as_slice().len(), output);
        *self = Self::default();
    }

    /// Releases the bytes of the held bytes and `input` before position `end`.
    fn release(&mut self, input: &[u8], end: usize, output: &mut Output<'_>) {
        let (held, held_at) = (self.held.as_slice(), self.held_at);
        let mut feed = |from: usize, to: usize, cover: Cover| {
            let (from, to) = (from - held_at, to - held_at);
            let earlier = &held[from.min(held.len())..to.min(held.len())];
            output.feed(earlier, cover);
            let cover = if cover == Cover::Begins && !earlier.is_empty() { Cover::Continues } else { cover };
            output.feed(&input[from.max(held.len()) - held.len()..to.max(held.len()) - held.len()], cover);
        };
        while let Some(span) = self.spans.front_mut()
            && span.start < end
        {
            feed(self.released, span.start, Cover::Plain);
            let to = span.end.min(end);
            feed(span.start, to, if span.begun { Cover::Continues } else { Cover::Begins });
            self.released = to;
            if to < span.end {
                (span.start, span.begun) = (to, true);
                break;
            }
            self.spans.pop_front();
        }
        feed(self.released, end, Cover::Plain);
        self.released = end;
    }

    /// Ends a write: the unreleased bytes of the held bytes and `input` become the held bytes.
    fn keep_rest(&mut self, input: &[u8]) {
        let held = self.held.as_slice();
        let count = self.released - self.held_at;
        let run = wrap::trailing_run(self.run_before, &held[..count.min(held.len())]);
        self.run_before = wrap::trailing_run(run, &input[..count.saturating_sub(held.len())]);
        self.held.advance(count, input);
        self.held_at = self.released;
        if self.held.as_slice().is_empty() {
            (self.held_at, self.released) = (0, 0);
        }
    }
}

/// A queue of bytes that is contiguous in memory.
#[derive(Default)]
struct Held {
    bytes: Vec<u8>,
    start: usize,
}

impl Held {
    fn as_slice(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// Appends `more`, then removes `count` bytes from the front.
    fn advance(&mut self, count: usize, more: &[u8]) {
        let length = self.as_slice().len();
        if count < length {
            self.start += count;
            // Moving only when at least half is free keeps the cost per byte constant.
            if self.start > self.bytes.len() / 2 {
                self.bytes.drain(..self.start);
                self.start = 0;
            }
            self.bytes.extend_from_slice(more);
        } else {
            self.bytes.clear();
            self.start = 0;
            self.bytes.extend_from_slice(&more[count - length..]);
            if self.bytes.is_empty() && self.bytes.capacity() > KEPT_CAPACITY {
                self.bytes = Vec::new();
            }
        }
    }
}
