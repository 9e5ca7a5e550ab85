//! The second half of masking: turns bytes with known phrase spans into output. Finds URL values and tokens and merges
//! their spans with those of phrases (masking.md §3 to §5). Its state is a few bytes for any input.

use super::{
    MASK,
    automaton::{Automaton, AutomatonState, ROOT},
    token::{self, TokenPrefixes},
    url,
};

/// Position of a piece of text relative to the phrase spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cover {
    /// Outside all spans.
    Plain,
    /// Inside a span that begins with the piece.
    Begins,
    /// Inside a span that also covers the byte before the piece.
    Continues,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Value {
    #[default]
    Outside,
    /// Right after the `=` of a parameter.
    Empty,
    Inside,
}

/// State of one source after the phrase search.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Detector {
    parameter: AutomatonState,
    value: Value,
    prefix: AutomatonState,
    /// The last byte ended a prefix.
    after_prefix: bool,
    /// The last byte was in a run of token bytes.
    in_run: bool,
}

impl Detector {
    /// Takes the next piece of the source and appends its output.
    pub(super) fn feed(&mut self, prefixes: &TokenPrefixes, piece: &[u8], cover: Cover, out: &mut Vec<u8>) {
        let parameters = url::automaton();
        let mut state = *self; // a copy stays in registers
        let covered = cover != Cover::Plain;
        let mut joined = cover == Cover::Continues;
        let mut skip = Skip::default();
        let mut at = 0;
        while let Some(&byte) = piece.get(at) {
            if state.is_neutral() {
                let stop = skip.first_possible_start(prefixes, piece, at);
                if stop > at {
                    if !covered {
                        out.extend_from_slice(&piece[at..stop]);
                    } else if !joined {
                        out.extend_from_slice(MASK);
                    }
                    joined = covered;
                    at = stop;
                    continue;
                }
            }
            state.step(parameters, prefixes, byte, covered, joined, out);
            joined = covered;
            at += 1;
        }
        *self = state;
    }

    /// Takes one byte. `joined`: one phrase span covers both this byte and the one before.
    #[expect(clippy::inline_always, reason = "the state must stay in registers")]
    #[inline(always)]
    fn step(
        &mut self,
        parameters: &Automaton,
        prefixes: &TokenPrefixes,
        byte: u8,
        covered: bool,
        mut joined: bool,
        out: &mut Vec<u8>,
    ) {
        let mut masked = covered;
        if self.value != Value::Outside {
            if !covered && url::ends_value(byte) {
                self.end_value(out);
            } else {
                masked = true;
                joined |= self.value == Value::Inside;
                self.value = Value::Inside;
            }
        }
        let in_run = (self.in_run || self.after_prefix) && (covered || token::is_run_byte(byte));
        masked |= in_run;
        joined |= in_run && self.in_run;
        self.in_run = in_run;

        if !masked {
            out.push(byte);
        } else if !joined {
            out.extend_from_slice(MASK);
        }

        // Looks for what begins after this byte. A value contains no further parameter.
        if self.value == Value::Outside {
            self.parameter = parameters.step(self.parameter, byte.to_ascii_lowercase());
            if parameters.matched(self.parameter) > 0 {
                self.parameter = ROOT;
                self.value = Value::Empty;
            }
        }
        self.prefix = prefixes.automaton.step(self.prefix, byte);
        self.after_prefix = prefixes.automaton.matched(self.prefix) > 0;
    }

    fn end_value(&mut self, out: &mut Vec<u8>) {
        if self.value == Value::Empty {
            out.extend_from_slice(MASK);
        }
        self.value = Value::Outside;
    }

    /// Ends the source: closes an open value and resets the detector.
    pub(super) fn finish(&mut self, out: &mut Vec<u8>) {
        self.end_value(out);
        *self = Self::default();
    }

    /// Switches to other prefixes: a partly matched prefix is forgotten, a run goes on.
    pub(super) fn forget_prefix(&mut self) {
        self.prefix = ROOT;
    }

    /// True if the text so far has no effect on the bytes that follow.
    fn is_neutral(&self) -> bool {
        self.parameter == ROOT
            && self.prefix == ROOT
            && self.value == Value::Outside
            && !self.after_prefix
            && !self.in_run
    }
}

/// Finds where in a piece something may begin. It keeps its results, so that each search passes over the piece once.
#[derive(Default)]
struct Skip {
    parameter: Option<usize>,
    prefix: Option<usize>,
}

impl Skip {
    fn first_possible_start(&mut self, prefixes: &TokenPrefixes, piece: &[u8], from: usize) -> usize {
        let parameter = match self.parameter {
            Some(start) if start >= from => start,
            _ => url::first_possible_start(piece, from),
        };
        let prefix = match self.prefix {
            Some(start) if start >= from => start,
            _ => prefixes.first_possible_start(piece, from),
        };
        (self.parameter, self.prefix) = (Some(parameter), Some(prefix));
        parameter.min(prefix)
    }
}
