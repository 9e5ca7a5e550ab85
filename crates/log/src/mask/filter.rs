//! Skips text in which no form can start.
//!
//! If each form has at least `gram + step - 1` bytes, each has a gram (`gram` bytes) at every offset below `step`. So
//! the filter looks at every `step`-th position only. If the gram there is not one that a form has at such an offset,
//! no form starts at this position or the `step - 1` before it. Hits are checked against the first bytes of the forms:
//! first with bitmaps over hashes, which may have false hits but never miss, then with a table, then with the bytes
//! that follow in all forms with this start. All of this stays in the CPU caches, unlike the automaton of many phrases.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
};

use super::{
    automaton::{Automaton, AutomatonState, ROOT},
    bitmap::{self, Bitmap, FACTOR},
};

/// Maximum length of the part of a form that is looked at: one load of eight bytes.
const WINDOW: usize = 8;

/// Gram size and step for forms of at least (index + 1) bytes. Their sum is (index + 2).
const GRAM_AND_STEP: [(usize, usize); WINDOW] =
    [(1, 1), (2, 1), (3, 1), (3, 2), (3, 3), (4, 3), (4, 4), (5, 4)];

const MAX_STEP: usize = 4;

/// Maximum number of bytes compared after a window. It keeps the cost proportional to the text where candidates
/// overlap; longer matches are left to the automaton.
const MAX_RUN: usize = 64;

/// Number of looks taken at once, without a branch between them, and the text that they need.
const LOOKUPS: usize = 8;
const BLOCK: usize = (LOOKUPS - 1) * MAX_STEP + WINDOW;

/// Data about the starts of all forms.
pub(super) struct Filter {
    window: usize,
    step: usize,
    gram_mask: u64,
    window_mask: u64,
    grams: Bitmap,
    windows: Bitmap,
    /// Maps the first `window` bytes of a form to what follows them.
    entries: HashMap<u64, Entry, BuildHasherDefault<WordHasher>>,
}

/// Continuation after a window, common to all forms that start with it.
#[derive(Clone, Copy)]
struct Entry {
    state: AutomatonState,
    /// Number of the next bytes that are equal in all these forms.
    run: u32,
}

/// A position at which a form may start.
pub(super) struct Start {
    /// No form starts between the position asked for and this one.
    pub(super) at: usize,
    /// A later position with the automaton's state there; no form ends before it. `None` if the text is too short to
    /// tell.
    pub(super) known: Option<(AutomatonState, usize)>,
}

impl Filter {
    /// Builds the filter of `forms`, of which none may be empty and one must exist; `automaton` must be theirs.
    pub(super) fn new<F: AsRef<[u8]>>(forms: &[F], automaton: &Automaton) -> Self {
        let shortest = forms.iter().map(|form| form.as_ref().len()).min().unwrap_or(1);
        let window = shortest.clamp(1, WINDOW);
        let (gram, step) = GRAM_AND_STEP[window - 1];
        let mut filter = Self {
            window,
            step,
            gram_mask: low_bytes(gram),
            window_mask: low_bytes(window),
            grams: Bitmap::for_entries(forms.len() * step),
            windows: Bitmap::for_entries(forms.len()),
            entries: HashMap::default(),
        };
        for form in forms {
            let form = form.as_ref();
            let mut start = [0; WINDOW];
            start[..window].copy_from_slice(&form[..window]);
            let word = u64::from_le_bytes(start);
            let state = form[..window].iter().fold(ROOT, |state, &byte| automaton.step(state, byte));
            let run = automaton.run(state).min(MAX_RUN) as u32;
            filter.windows.insert(word & filter.window_mask);
            filter.entries.insert(word & filter.window_mask, Entry { state, run });
            for offset in 0..step {
                filter.grams.insert((word >> (8 * offset)) & filter.gram_mask);
            }
        }
        filter
    }

    /// Returns the length of the shortest form, but at most eight.
    #[inline]
    pub(super) fn window(&self) -> usize {
        self.window
    }

    /// Returns the first position at or after `from` at which a form may start. `from` is at most the length of `text`.
    pub(super) fn first_possible_start(&self, automaton: &Automaton, text: &[u8], from: usize) -> Start {
        let any_size = |word| self.grams.contains(word & self.gram_mask);
        match self.step {
            1 => self.search::<1>(automaton, text, from, any_size),
            2 => self.search::<2>(automaton, text, from, any_size),
            3 => self.search::<3>(automaton, text, from, any_size),
            _ => self.search_by_size(automaton, text, from),
        }
    }

    /// Does [`Self::search`] for the step of nearly all jobs. Bitmap sizes known to the compiler make the looks a fifth
    /// faster: they need no bounds check and no shift by a variable.
    fn search_by_size(&self, automaton: &Automaton, text: &[u8], from: usize) -> Start {
        macro_rules! by_size {
            ($($words:literal)*) => {
                match self.grams.words().len() {
                    $($words => {
                        if let Some(words) = self.grams.words().first_chunk::<$words>() {
                            let has_gram = |word| bitmap::contains_in(words, word & self.gram_mask);
                            return self.search::<MAX_STEP>(automaton, text, from, has_gram);
                        }
                    })*
                    _ => {}
                }
            };
        }
        by_size!(64 128 256 512 1024 2048 4096 8192 16_384 32_768 65_536 131_072);
        self.search::<MAX_STEP>(automaton, text, from, |word| self.grams.contains(word & self.gram_mask))
    }

    fn search<const STEP: usize>(
        &self,
        automaton: &Automaton,
        text: &[u8],
        from: usize,
        has_gram: impl Fn(u64) -> bool,
    ) -> Start {
        // Forms that start in `at - reach ..= at` have a gram at `at`.
        let reach = STEP - 1;
        let mut at = from + reach;
        loop {
            while let Some(block) = text.get(at..).and_then(|rest| rest.first_chunk::<BLOCK>()) {
                let mut hit = false;
                for look in 0..LOOKUPS {
                    hit |= word_at(block, look * STEP).is_some_and(&has_gram);
                }
                if hit {
                    break;
                }
                at += LOOKUPS * STEP;
            }
            // Either this block has a hit, or less than a block is left.
            for _ in 0..LOOKUPS {
                let Some(word) = word_at(text, at) else { return Start { at: at - reach, known: None } };
                if has_gram(word)
                    && let Some(start) =
                        (at - reach..=at).find_map(|start| self.start_at(automaton, text, start))
                {
                    return start;
                }
                at += STEP;
            }
        }
    }

    /// Returns `start` if a form may start there. At least a window of text must follow it.
    #[inline]
    fn start_at(&self, automaton: &Automaton, text: &[u8], start: usize) -> Option<Start> {
        let word = word_at(text, start)? & self.window_mask;
        if !self.windows.contains(word) {
            return None;
        }
        let &Entry { state, run } = self.entries.get(&word)?;
        let same = automaton.follows(state, run as usize, &text[start + self.window..])?;
        Some(Start { at: start, known: Some((state + same as u32, start + self.window + same)) })
    }
}

#[inline]
fn word_at(text: &[u8], at: usize) -> Option<u64> {
    text.get(at..)?.first_chunk::<WINDOW>().map(|bytes| u64::from_le_bytes(*bytes))
}

/// Returns the mask of the first `count` bytes of a little-endian word.
fn low_bytes(count: usize) -> u64 {
    u64::MAX >> (8 * (WINDOW - count))
}

/// Hashes words for a table that also uses the lower bits. The words are the starts of a job's own phrases, so nobody
/// gains from collisions.
#[derive(Default)]
struct WordHasher(u64);

impl Hasher for WordHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    #[inline]
    fn write_u64(&mut self, word: u64) {
        let product = (self.0 ^ word).wrapping_mul(FACTOR);
        self.0 = product ^ product >> 32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn grams_and_steps_fit_the_shortest_form() {
        for (index, (gram, step)) in GRAM_AND_STEP.into_iter().enumerate() {
            assert!(gram + step - 1 <= index + 1 && step <= MAX_STEP);
        }
    }

    proptest! {
        #[test]
        fn no_start_of_a_form_is_passed_over(
            forms in prop::collection::vec("[ab]{1,12}", 1..5),
            shortest in 1_usize..10,
            text in "[ab]{0,60}",
            from in 0_usize..60,
        ) {
            let forms: Vec<String> = forms.into_iter().map(|form| form.repeat(shortest)).collect();
            let from = from.min(text.len());
            let mut sorted = forms.clone();
            sorted.sort();
            sorted.dedup();
            let automaton = Automaton::new(&sorted);
            let found = Filter::new(&forms, &automaton).first_possible_start(&automaton, text.as_bytes(), from).at;
            prop_assert!((from..=text.len()).contains(&found));
            // Neither a whole form nor one cut off by the end of the text starts before.
            for start in from..found {
                let rest = &text.as_bytes()[start..];
                for form in forms.iter().map(String::as_bytes) {
                    prop_assert!(!rest.starts_with(form) && !form.starts_with(rest));
                }
            }
        }
    }

    #[test]
    fn text_without_a_form_is_passed_over_up_to_its_last_bytes() {
        let text = vec![b'.'; 10_000];
        let automaton = Automaton::new(&["0123456789"]);
        let found = Filter::new(&["0123456789"], &automaton).first_possible_start(&automaton, &text, 0).at;
        assert!(found > text.len() - 12);
    }
}
