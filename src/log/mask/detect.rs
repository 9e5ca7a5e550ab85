//! The second half of masking: bytes whose phrase spans are known become output. Finds URL values and tokens on
//! the way and joins their spans with those of phrases (masking.md §3 to §5). Needs the same few bytes of state for
//! any input.

use super::{
    MASK,
    automaton::{Automaton, ROOT, State},
    token::{self, TokenPrefixes},
    url,
};

/// How a piece of text lies to the phrase spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cover {
    /// In none.
    Plain,
    /// In one, which begins with the piece.
    Begins,
    /// In one, which the byte before the piece belongs to as well.
    Continues,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Value {
    #[default]
    Outside,
    /// Directly after the `=` of a parameter.
    Empty,
    Inside,
}

/// State of one source behind its phrase spans.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Detector {
    parameter: State,
    value: Value,
    prefix: State,
    /// The last byte was the last one of a prefix.
    after_prefix: bool,
    /// The last byte was in a run.
    in_run: bool,
}

impl Detector {
    /// Takes the next piece of the source and appends what becomes of it.
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

    /// Takes one byte. `joined`: a phrase span covers it and the byte before.
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

        // What begins after this byte. Inside a value no further parameter is looked for.
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

    /// The source ends: what lies open is closed, and the detector is as new.
    pub(super) fn finish(&mut self, out: &mut Vec<u8>) {
        self.end_value(out);
        *self = Self::default();
    }

    /// The prefixes are others from now on: a prefix that has begun is forgotten, a run goes on.
    pub(super) fn forget_prefix(&mut self) {
        self.prefix = ROOT;
    }

    /// Whether nothing of the text so far matters for what follows.
    fn is_neutral(&self) -> bool {
        self.parameter == ROOT
            && self.prefix == ROOT
            && self.value == Value::Outside
            && !self.after_prefix
            && !self.in_run
    }
}

/// Where in a piece something may begin; each search goes over the piece once.
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
