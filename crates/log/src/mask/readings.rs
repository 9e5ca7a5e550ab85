//! Forms in which escapes stand for bytes (masking.md §2), freely mixed with bytes that stand for themselves.
//!
//! An escape can be read as what it stands for, or as the bytes that it consists of. A [`Reading`] is one way to read
//! the source: the same automaton runs over what was read. So nothing is added to the forms. The search without escapes
//! runs anyway; a reading exists only while a form that it has begun contains an escape. [`Escapes::next`] passes over
//! text without escapes, and over most escapes that are part of no form.

use super::{
    automaton::{Automaton, AutomatonState},
    candidates::Escapes,
    escape::{self, Escape, LONGEST, Stop, Way, ways},
    forms::MIN_LENGTH,
    view::View,
};

/// Maximum number of readings at a time. Several exist only if a form contains text like an escape, or bytes that are
/// read in two ways. Beyond it, those that began last are given up, because they have matched least.
const MAX_READINGS: usize = 8;

/// Number of escapes that one occurrence of a form may contain. Some more are possible. It bounds the memory of a
/// reading.
const MAX_PLACES: usize = 2048;

/// True if the escape at the start of `text` continues a form that `state` has begun, or begins one.
pub(super) fn continues(automaton: &Automaton, state: AutomatonState, text: &[u8]) -> bool {
    let source = Reading { state, ..Reading::default() };
    match escape::parse(text) {
        Ok(escape) => ways(text[0], &escape).any(|way| source.next(automaton, way).is_some()),
        Err(stop) => stop == Stop::Open,
    }
}

/// One way to read the source so far. It contains an escape unless it is [`plain`](Self::plain).
#[derive(Clone, Default)]
struct Reading {
    state: AutomatonState,
    view: View,
    /// Where the form starts that this reading has begun.
    start: usize,
    /// True behind a CR that was read as part of a line end.
    behind_cr: bool,
}

/// What becomes of a reading.
struct Next {
    state: AutomatonState,
    /// Length of the longest form that has ended, with what was read behind it; or 0.
    found: usize,
    kept: usize,
    /// Number of bytes, the last ones read, with which a form may begin that goes on.
    hold: usize,
}

impl Reading {
    /// Returns the reading in which every byte before `end` stands for itself.
    fn plain(automaton: &Automaton, state: AutomatonState, end: usize) -> Self {
        Self { state, view: View::default(), start: end - automaton.hold(state), behind_cr: false }
    }

    /// Returns where the form starts of which `hold` bytes were read, `more` bytes of the view behind this reading.
    fn start_in(&self, automaton: &Automaton, hold: usize, more: usize, view: &View, end: usize) -> usize {
        if hold == automaton.hold(self.state) + more { self.start } else { view.start(end, hold) }
    }

    /// Takes a byte as itself. Returns the state behind it.
    fn literal(&self, automaton: &Automaton, byte: u8) -> Option<AutomatonState> {
        (!self.behind_cr || byte == b'\n').then(|| automaton.step(self.state, byte))
    }

    /// Returns what becomes of this reading behind an escape; `None` if no form contains or ends with it.
    fn next(&self, automaton: &Automaton, way: Way) -> Option<Next> {
        let Way::As(decoded) = way else {
            // Only forms that go on with an LF are still begun.
            let hold = automaton.hold(automaton.step(self.state, b'\n')).saturating_sub(1);
            let next = Next { state: self.state, found: 0, kept: 0, hold };
            return (hold > 0).then_some(next);
        };
        let bytes = decoded.as_slice();
        if self.behind_cr && bytes != b"\n" {
            return None;
        }
        let mut next = Next { state: self.state, found: 0, kept: bytes.len(), hold: 0 };
        for (&byte, behind) in bytes.iter().zip((0..bytes.len()).rev()) {
            next.state = automaton.step(next.state, byte);
            let matched = automaton.matched(next.state);
            if matched >= MIN_LENGTH {
                next.found = next.found.max(matched + behind);
            }
        }
        next.hold = automaton.hold(next.state);
        (next.found > 0 || next.hold > 0).then_some(next)
    }
}

/// An escape of which some bytes may be missing.
struct Begun {
    start: usize,
    bytes: [u8; LONGEST],
    length: usize,
    /// The state of the search without escapes, up to its start.
    plain: AutomatonState,
    /// The readings up to its start.
    sources: Vec<Reading>,
}

impl Begun {
    fn new(start: usize, plain: AutomatonState) -> Self {
        Self { start, bytes: [0; LONGEST], length: 0, plain, sources: Vec::new() }
    }

    /// Adds a byte. An escape without an end is not longer than its room.
    fn push(&mut self, byte: u8) -> Result<Escape, Stop> {
        *self.bytes.get_mut(self.length).ok_or(Stop::Other)? = byte;
        self.length += 1;
        escape::parse(&self.bytes[..self.length])
    }
}

/// All readings of one source that may contain a form with an escape.
#[derive(Default)]
pub(super) struct Readings {
    active: Vec<Reading>,
    begun: Vec<Begun>,
}

impl Readings {
    /// True if there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.active.is_empty() && self.begun.is_empty()
    }

    /// Takes a byte that ends at `end`. `plain` is the state of the search without escapes before it. Returns the
    /// earliest start of the forms with escapes that end here.
    pub(super) fn step(
        &mut self,
        automaton: &Automaton,
        escapes: &Escapes,
        plain: AutomatonState,
        byte: u8,
        end: usize,
    ) -> Option<usize> {
        let mut found = None;
        let mut opened = escapes.begin_with(byte).then(|| Begun::new(end - 1, plain));
        self.active.retain_mut(|reading| {
            let state = reading.literal(automaton, byte);
            let lives = state.is_some_and(|state| reading.view.spans(end, automaton.hold(state)));
            let matched = state.map_or(0, |state| automaton.matched(state));
            if matched >= MIN_LENGTH && reading.view.spans(end, matched) {
                note(&mut found, reading.view.start(end, matched));
            }
            if let Some(opened) = &mut opened {
                opened.sources.push(if lives { reading.clone() } else { std::mem::take(reading) });
            }
            if let Some(state) = state.filter(|_| lives) {
                reading.start = reading.start_in(automaton, automaton.hold(state), 1, &reading.view, end);
                (reading.state, reading.behind_cr) = (state, false);
            }
            lives
        });
        for at in (0..self.begun.len()).rev() {
            match self.begun[at].push(byte) {
                Err(Stop::Open) => {}
                Err(Stop::Other) => drop(self.begun.swap_remove(at)),
                Ok(escape) => {
                    let begun = self.begun.swap_remove(at);
                    self.read(automaton, begun, &escape, end, &mut found);
                }
            }
        }
        if let Some(mut opened) = opened {
            match opened.push(byte) {
                Err(Stop::Open) => self.begun.push(opened),
                Err(Stop::Other) => {}
                Ok(escape) => self.read(automaton, opened, &escape, end, &mut found),
            }
        }
        found
    }

    /// Continues all readings with an escape that ends at `end`.
    fn read(
        &mut self,
        automaton: &Automaton,
        begun: Begun,
        escape: &Escape,
        end: usize,
        found: &mut Option<usize>,
    ) {
        let Begun { start, bytes, plain, sources, .. } = begun;
        // The longest ones come first, as they cover others.
        for mut source in sources.into_iter().chain([Reading::plain(automaton, plain, start)]) {
            let mut ways = ways(bytes[0], escape).peekable();
            while let Some(way) = ways.next() {
                let Some(next) = source.next(automaton, way) else { continue };
                let last = ways.peek().is_none();
                let mut view = if last { std::mem::take(&mut source.view) } else { source.view.clone() };
                view.add(start..end, next.kept);
                if next.found > 0 {
                    note(found, view.start(end, next.found));
                }
                if next.hold > 0 {
                    let start = source.start_in(automaton, next.hold, next.kept, &view, end);
                    let behind_cr = matches!(way, Way::LineEnd);
                    self.insert(Reading { state: next.state, view, start, behind_cr }, next.hold, end);
                }
            }
        }
    }

    /// Adds a reading at `end` unless another one covers it: finds the same forms, and starts no later, not even where a
    /// shorter form goes on. `hold` bytes of it may be part of a form.
    fn insert(&mut self, mut reading: Reading, hold: usize, end: usize) {
        if reading.view.len() > 2 * MAX_PLACES {
            return; // at most half of them are forgotten, so more than MAX_PLACES are in this form
        }
        reading.view.forget_before(reading.start);
        let mut latest: Option<usize> = None;
        let mut at = 0;
        while let Some(other) = self.active.get(at) {
            let covers = |one: &Reading, two: &Reading| {
                one.behind_cr == two.behind_cr
                    && one.start <= two.start
                    && if one.state == two.state {
                        one.view.starts_no_later(&two.view, end, hold)
                    } else {
                        one.view.agrees_with(&two.view, two.start)
                    }
            };
            if covers(other, &reading) {
                return;
            } else if covers(&reading, other) {
                self.active.swap_remove(at);
                continue;
            }
            if latest.is_none_or(|latest| self.active[latest].start < other.start) {
                latest = Some(at);
            }
            at += 1;
        }
        if self.active.len() < MAX_READINGS {
            self.active.push(reading);
        } else if let Some(latest) = latest.map(|at| &mut self.active[at])
            && latest.start > reading.start
        {
            *latest = reading;
        }
    }

    /// Returns the first byte that may belong to a form with an escape that is not complete.
    pub(super) fn undecided_from(&self, automaton: &Automaton) -> Option<usize> {
        let active = self.active.iter().map(|reading| reading.start);
        let begun = self.begun.iter().flat_map(|begun| {
            let plain = begun.start - automaton.hold(begun.plain);
            begun.sources.iter().map(|source| source.start).chain([plain])
        });
        active.chain(begun).min()
    }

    /// Returns the memory on the heap, in bytes.
    #[cfg(test)]
    pub(super) fn heap_bytes(&self) -> usize {
        let views =
            |readings: &[Reading]| readings.iter().map(|reading| reading.view.heap_bytes()).sum::<usize>();
        let begun = self.begun.iter().map(|begun| {
            size_of::<Begun>() + begun.sources.capacity() * size_of::<Reading>() + views(&begun.sources)
        });
        size_of::<Self>()
            + self.active.capacity() * size_of::<Reading>()
            + views(&self.active)
            + begun.sum::<usize>()
    }
}

/// Keeps the earliest start.
fn note(found: &mut Option<usize>, start: usize) {
    *found = Some(found.map_or(start, |found| found.min(start)));
}
