//! Masking of one source, write by write (masking.md §6).

use std::{collections::VecDeque, fmt, sync::Arc};

use super::{
    Forms, Masker,
    automaton::{ROOT, State},
    detect::{Cover, Detector},
    token::TokenPrefixes,
};

/// Whenever the automaton holds little, the filter is asked where a form may start next. If that leads on by no more
/// than [`GAIN`] bytes, it is asked again only so many bytes later; the distance is doubled each time, up to a bound:
/// so text that defeats the filter costs little more than the walk.
const GAIN: usize = 8;
const MIN_WALK: usize = 1;
const MAX_WALK: usize = 1024;

/// Spans are put out when there are so many, also in the middle of a write: bounds memory for huge writes.
const MAX_SPANS: usize = 512;

/// A buffer for held bytes that has become larger than this is given back when it is empty.
const KEPT_CAPACITY: usize = 4096;

/// State of one source: what it holds back, and what it is in the middle of.
///
/// The bytes put out depend on the bytes taken in alone, not on how they were cut into writes. Without phrases
/// nothing is ever held back, and the state has no memory on the heap.
pub struct MaskStream {
    masker: Arc<Masker>,
    search: Search,
    detector: Detector,
}

impl MaskStream {
    /// A source from its beginning.
    pub fn new(masker: Arc<Masker>) -> Self {
        Self { masker, search: Search::default(), detector: Detector::default() }
    }

    /// Takes the next write of the source, and appends to `out` what is decided by it.
    pub fn push(&mut self, input: &[u8], out: &mut Vec<u8>) {
        let Self { masker, search, detector } = self;
        match &masker.forms {
            Some(forms) => {
                let mut output = Output { detector, prefixes: &masker.prefixes, out };
                search.push(forms, input, &mut output);
            }
            None => detector.feed(&masker.prefixes, input, Cover::Plain, out),
        }
    }

    /// The source is closed: held bytes are released, and the stream is ready for another source.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        let Self { masker, search, detector } = self;
        search.finish(&mut Output { detector, prefixes: &masker.prefixes, out });
        detector.finish(out);
    }

    /// Further phrases became known: bytes that are not decided yet are searched again with `masker`, which must
    /// know the phrases of the one before. What becomes decided is appended to `out` (masking.md §7).
    pub fn replace_masker(&mut self, masker: Arc<Masker>, out: &mut Vec<u8>) {
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

    /// How many bytes are held back until more is known.
    pub fn held(&self) -> usize {
        self.search.held.as_slice().len()
    }

    /// Memory on the heap, in bytes.
    #[cfg(test)]
    pub(super) fn heap_bytes(&self) -> usize {
        self.search.held.bytes.capacity() + self.search.spans.capacity() * size_of::<Span>()
    }
}

impl fmt::Debug for MaskStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MaskStream").field("held", &self.held()).finish_non_exhaustive()
    }
}

/// Where decided bytes go.
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

/// Bytes in phrases, from `start` up to but not including `end`.
#[derive(Clone, Copy)]
struct Span {
    start: usize,
    end: usize,
    /// Its first bytes are put out already.
    begun: bool,
}

/// The search for forms: which bytes are in phrase spans, and up to where that is decided.
///
/// Positions count from a byte of the source that is put out, most often the last one.
#[derive(Default)]
struct Search {
    state: State,
    /// The undecided bytes: between writes, as many as the automaton holds in `state`.
    held: Held,
    /// Position of the first held byte.
    held_at: usize,
    /// Up to here bytes are put out; between writes this is `held_at`.
    released: usize,
    /// Spans that are not completely put out, in order. They do not overlap, but may touch.
    spans: VecDeque<Span>,
}

impl Search {
    fn push(&mut self, forms: &Forms, input: &[u8], output: &mut Output<'_>) {
        let Forms { automaton, filter } = forms;
        let input_at = self.held_at + self.held.as_slice().len();
        let mut at = 0; // the next byte of `input`
        let mut ask_at = 0; // the filter is not asked before
        let mut distance = MIN_WALK;
        while at < input.len() {
            // No form starts before the bytes that the automaton holds. If they belong to this write and no form
            // can have ended in them, the filter may show that none starts in them either.
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
            // Where the filter leads to, a form may end already.
            if !entered || automaton.matched(self.state) == 0 {
                let enough = ask_at.saturating_sub(at).max(1);
                let taken;
                (self.state, taken) = automaton.walk(self.state, &input[at..], enough);
                at += taken;
            }
            let matched = automaton.matched(self.state);
            if matched > 0 {
                self.add_occurrence(input_at + at, matched);
                if self.spans.len() >= MAX_SPANS {
                    self.release(input, input_at + at - automaton.hold(self.state), output);
                }
            }
        }
        self.release(input, input_at + input.len() - automaton.hold(self.state), output);
        self.keep_rest(input);
    }

    /// Adds an occurrence that ends behind all others; spans it overlaps become one with it.
    fn add_occurrence(&mut self, end: usize, length: usize) {
        let mut span = Span { start: end - length, end, begun: false };
        while let Some(last) = self.spans.pop_back_if(|last| last.end > span.start) {
            if last.start <= span.start {
                (span.start, span.begun) = (last.start, last.begun);
            }
        }
        self.spans.push_back(span);
    }

    /// Searches the held bytes with another automaton. Spans found so far stay.
    fn search_again(&mut self, forms: &Forms, output: &mut Output<'_>) {
        let mut spans = Vec::from(std::mem::take(&mut self.spans));
        let mut end = self.held_at;
        self.state = ROOT;
        for &byte in self.held.as_slice() {
            self.state = forms.automaton.step(self.state, byte);
            end += 1;
            let matched = forms.automaton.matched(self.state);
            if matched > 0 {
                spans.push(Span { start: end - matched, end, begun: false });
            }
        }
        // By start, as the union of spans needs them; of those with the same start a begun one is the first.
        spans.sort_by_key(|span| (span.start, !span.begun));
        for span in spans {
            match self.spans.back_mut() {
                Some(last) if span.start < last.end => last.end = last.end.max(span.end),
                _ => self.spans.push_back(span),
            }
        }
        self.release(&[], end - forms.automaton.hold(self.state), output);
        self.keep_rest(&[]);
    }

    fn finish(&mut self, output: &mut Output<'_>) {
        self.release(&[], self.held_at + self.held.as_slice().len(), output);
        *self = Self::default();
    }

    /// Puts out the bytes of held bytes and `input` before position `end`.
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

    /// Ends a write: what is not put out of held bytes and `input` becomes the held bytes.
    fn keep_rest(&mut self, input: &[u8]) {
        self.held.advance(self.released - self.held_at, input);
        self.held_at = self.released;
        if self.held.as_slice().is_empty() {
            (self.held_at, self.released) = (0, 0);
        }
    }
}

/// A queue of bytes in one piece.
#[derive(Default)]
struct Held {
    bytes: Vec<u8>,
    start: usize,
}

impl Held {
    fn as_slice(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// Removes `count` bytes from the front of this queue with `more` behind it.
    fn advance(&mut self, count: usize, more: &[u8]) {
        let length = self.as_slice().len();
        if count < length {
            self.start += count;
            // Moving only when at least half is free keeps the cost for each byte constant.
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
