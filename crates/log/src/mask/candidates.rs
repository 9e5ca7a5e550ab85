//! Finds the escapes that may be part of a form, in text in which no form with an escape has begun.
//!
//! `memchr` finds the bytes with which escapes start. The bytes before the first escape of a form stand for
//! themselves, so what the escape stands for must follow them in a form. That passes over most escapes of other text.

use std::ops::Range;

use memchr::memmem::Finder;

use super::{
    bitmap::Bitmap,
    escape::{self, Stop, Way, ways},
    forms::MIN_LENGTH,
};

/// Number of bytes before a byte of a form that are compared, if the form has as many.
const CONTEXT: u32 = 3;

/// Number of bytes that one call of `memchr` searches, and of such calls for all [`escape::INTRODUCERS`].
const GROUP: usize = 3;
const GROUPS: usize = escape::INTRODUCERS.len().div_ceil(GROUP);

/// Search data for the escapes that can be part of a form.
pub(super) struct Escapes {
    /// Bytes with which an escape can start that is part of a form.
    begins: Box<[bool; 256]>,
    /// The same bytes, but for those of `doubled`, in groups.
    needles: Vec<Vec<u8>>,
    /// Finds two equal marks. They are rare, where single marks are not.
    doubled: Vec<Finder<'static>>,
    /// Bytes with which forms start.
    starts: Box<[bool; 256]>,
    /// Every byte of a form but the first, with the bytes before it.
    contexts: Bitmap,
}

impl Escapes {
    /// Returns `None` if all of the forms are too short.
    pub(super) fn new<F: AsRef<[u8]>>(forms: &[F]) -> Option<Self> {
        let long = || forms.iter().map(AsRef::as_ref).filter(|form| form.len() >= MIN_LENGTH);
        let mut starts = Box::new([false; 256]);
        let mut contexts = Bitmap::for_entries(long().map(<[u8]>::len).sum());
        let mut used = [false; 256];
        for form in long() {
            starts[usize::from(form[0])] = true;
            let mut before = Before::default();
            for &byte in form {
                if let Some(context) = before.contexts(byte).last() {
                    contexts.insert(context);
                }
                before.push(byte);
                used[usize::from(byte)] = true;
            }
        }
        let is_used = |byte: u8| used[usize::from(byte)];
        let introducers = escape::INTRODUCERS.iter().filter(|(_, needs)| needs.is_none_or(is_used));
        let introducers: Vec<u8> = introducers.map(|(introducer, _)| *introducer).collect();
        let doubled: Vec<u8> = escape::DOUBLED.into_iter().filter(|mark| is_used(*mark)).collect();
        let mut begins = Box::new([false; 256]);
        for byte in introducers.iter().chain(&doubled) {
            begins[usize::from(*byte)] = true;
        }
        let needles = introducers.chunks(GROUP).map(<[u8]>::to_vec).collect();
        let doubled = doubled.into_iter().map(|mark| Finder::new(&[mark, mark]).into_owned()).collect();
        starts.contains(&true).then_some(Self { begins, needles, doubled, starts, contexts })
    }

    /// True if an escape can start with `byte`.
    #[inline]
    pub(super) fn begin_with(&self, byte: u8) -> bool {
        self.begins[usize::from(byte)]
    }

    /// Returns the first position of `text` in `range` where an escape may be part of a form, or the end of the range.
    /// `held` are the undecided bytes before the text. `found` serves all searches up to the end of this range.
    pub(super) fn next(
        &self,
        held: &[u8],
        text: &[u8],
        range: Range<usize>,
        found: &mut Introducers,
    ) -> usize {
        let mut from = range.start;
        loop {
            let at = found.next(self, &text[..range.end], from);
            if at >= range.end || self.may_matter(held, text, at) {
                return at;
            }
            from = at + 1;
        }
    }

    /// True if the escape in `text` at `at` may be part of a form.
    #[inline]
    fn may_matter(&self, held: &[u8], text: &[u8], at: usize) -> bool {
        match text[at] {
            b'\r' => self.follows(Before::new(held, &text[..at]), b'\n'),
            b'+' => self.begins_or_follows(Before::new(held, &text[..at]), b' '),
            introducer => match escape::parse(&text[at..]) {
                Ok(escape) => {
                    let before = Before::new(held, &text[..at]);
                    ways(introducer, &escape).any(|way| self.allows(before, way))
                }
                Err(stop) => stop == Stop::Open,
            },
        }
    }

    /// True if a form that starts in or behind `before` may go on with an escape that is read in this way.
    fn allows(&self, before: Before, way: Way) -> bool {
        let Way::As(decoded) = way else { return self.follows(before, b'\n') };
        match decoded.as_slice() {
            [byte, ..] => self.begins_or_follows(before, *byte),
            // It stands for nothing, so the byte before it is in the form.
            [] => before.pop().is_some_and(|(before, byte)| self.begins_or_follows(before, byte)),
        }
    }

    fn begins_or_follows(&self, before: Before, byte: u8) -> bool {
        self.starts[usize::from(byte)] || self.follows(before, byte)
    }

    /// True if a form that starts in `before` may go on with `byte`.
    fn follows(&self, before: Before, byte: u8) -> bool {
        before.contexts(byte).any(|context| self.contexts.contains(context))
    }
}

/// The last bytes before another one.
#[derive(Clone, Copy, Default)]
struct Before {
    /// The last of them is in the low bits.
    bytes: u32,
    /// Number of bytes, at most four.
    length: u32,
}

impl Before {
    /// Takes the last bytes of `text`, and as many of `held`, which is before it, as are missing.
    #[inline]
    fn new(held: &[u8], text: &[u8]) -> Self {
        match text.last_chunk() {
            Some(&bytes) => Self { bytes: u32::from_be_bytes(bytes), length: u32::BITS / 8 },
            None => Self::of_both(held, text),
        }
    }

    #[cold]
    fn of_both(held: &[u8], text: &[u8]) -> Self {
        let mut before = Self::default();
        let held = &held[held.len().saturating_sub(size_of::<u32>())..];
        held.iter().chain(text).for_each(|&byte| before.push(byte));
        before
    }

    fn push(&mut self, byte: u8) {
        *self =
            Self { bytes: self.bytes << 8 | u32::from(byte), length: (self.length + 1).min(u32::BITS / 8) };
    }

    /// Takes the last byte away.
    fn pop(self) -> Option<(Self, u8)> {
        let length = self.length.checked_sub(1)?;
        Some((Self { bytes: self.bytes >> 8, length }, self.bytes as u8))
    }

    /// Returns a value for `byte` behind one of these bytes, behind two, up to [`CONTEXT`]. It tells how many they are.
    #[inline]
    fn contexts(self, byte: u8) -> impl Iterator<Item = u64> {
        (1..=self.length.min(CONTEXT)).map(move |count| {
            let bytes = self.bytes & ((1 << (8 * count)) - 1);
            u64::from(count) << 32 | u64::from(bytes << 8) | u64::from(byte)
        })
    }
}

/// Next positions of the bytes with which escapes start. It keeps them, so that all searches together pass over a text
/// once.
#[derive(Default)]
pub(super) struct Introducers {
    single: [Option<usize>; GROUPS],
    doubled: [Option<usize>; escape::DOUBLED.len()],
}

impl Introducers {
    /// Returns the first position at or after `from`, or the length of `text`.
    #[inline]
    fn next(&mut self, escapes: &Escapes, text: &[u8], from: usize) -> usize {
        for (next, needles) in self.single.iter_mut().zip(&escapes.needles) {
            look(next, text, from, |rest| match needles[..] {
                [a] => memchr::memchr(a, rest),
                [a, b] => memchr::memchr2(a, b, rest),
                [a, b, c] => memchr::memchr3(a, b, c, rest),
                _ => None,
            });
        }
        for (next, finder) in self.doubled.iter_mut().zip(&escapes.doubled) {
            // The second mark may come with the next write.
            let last = |rest: &[u8]| (rest.last() == finder.needle().first()).then(|| rest.len() - 1);
            look(next, text, from, |rest| finder.find(rest).or_else(|| last(rest)));
        }
        self.single.into_iter().chain(self.doubled).flatten().fold(text.len(), usize::min)
    }
}

/// Searches from `from` on unless `next` is not before it.
#[inline]
fn look(next: &mut Option<usize>, text: &[u8], from: usize, search: impl FnOnce(&[u8]) -> Option<usize>) {
    if next.is_none_or(|next| next < from) {
        let rest = text.get(from..).filter(|rest| !rest.is_empty());
        *next = Some(rest.and_then(search).map_or(text.len(), |at| from + at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Finds all places in one text.
    fn all(escapes: &Escapes, held: &str, text: &str) -> Vec<usize> {
        let (mut found, mut from, mut places) = (Introducers::default(), 0, Vec::new());
        loop {
            let at = escapes.next(held.as_bytes(), text.as_bytes(), from..text.len(), &mut found);
            if at == text.len() {
                return places;
            }
            places.push(at);
            from = at + 1;
        }
    }

    #[test]
    fn escapes_are_found_where_a_form_may_go_on_with_what_they_stand_for() {
        let escapes = Escapes::new(&["night/in gale\n"]).unwrap();
        for (held, text, places) in [
            ("", "%6eight", &[0][..]),
            ("", "n%69ght", &[1]),
            ("", "ni%67ht", &[2]),
            ("", "night%2Fin+gale\r\n", &[5, 15]),
            ("nig", "%68t", &[0]),
            ("ni", "g%68t", &[1]),
            ("", "n''i n'$'i ''n", &[1, 6]),
            ("", "x%2F 100% \\u0041 'a' &amp; ab\r\n", &[]),
            ("", "night\\u002", &[5]),
        ] {
            assert_eq!(all(&escapes, held, text), places, "{held}|{text}");
        }
    }

    #[test]
    fn blanks_and_line_ends_count_only_if_a_form_has_them() {
        let escapes = Escapes::new(&["nightingale"]).unwrap();
        assert!(!escapes.begin_with(b'+') && !escapes.begin_with(b'\r') && escapes.begin_with(b'%'));
        assert!(Escapes::new(&["seven/7"]).is_none());
    }
}
