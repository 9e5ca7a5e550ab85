//! Proves quickly where no form can start.
//!
//! If each form is at least `gram + step - 1` bytes long, each has a gram (`gram` bytes) at every offset below
//! `step`. So of the text only every `step`-th position needs a look: if the gram there is none that a form has at
//! such an offset, no form starts at this position or the `step - 1` before it. A hit is checked again with the
//! first bytes of the forms. Both sets are bitmaps over hashes: a wrong "perhaps" costs time, a wrong "no" does not
//! exist.

/// Longest part of a form that is looked at: what one load of eight bytes holds.
const WINDOW: usize = 8;

/// Size of a gram and distance of looks for forms of at least (index + 1) bytes; their sum is (index + 2).
const GRAM_AND_STEP: [(usize, usize); WINDOW] =
    [(1, 1), (2, 1), (3, 1), (3, 2), (3, 3), (4, 3), (4, 4), (5, 4)];

const MAX_STEP: usize = 4;

/// How many looks are taken at once, without a branch between them, and what text that takes.
const LOOKS: usize = 8;
const BLOCK: usize = (LOOKS - 1) * MAX_STEP + WINDOW;

/// Bits of a bitmap for each entry, and the bounds of its size (as powers of two). At 16 one look in sixteen is a
/// wrong hit; the upper bound is 1 MiB, where the bitmap has left the caches anyway.
const BITS_PER_ENTRY: usize = 16;
const MIN_BITS: u32 = 12;
const MAX_BITS: u32 = 23;

/// What is known about the starts of all forms.
pub(super) struct Filter {
    window: usize,
    step: usize,
    gram_mask: u64,
    window_mask: u64,
    grams: Bitmap,
    windows: Bitmap,
}

impl Filter {
    /// `forms` must not be empty, nor any of them.
    pub(super) fn new<F: AsRef<[u8]>>(forms: &[F]) -> Self {
        let shortest = forms.iter().map(|form| form.as_ref().len()).min().unwrap_or(1);
        let window = shortest.clamp(1, WINDOW);
        let (gram, step) = GRAM_AND_STEP[window - 1];
        let mut filter = Self {
            window,
            step,
            gram_mask: low_bytes(gram),
            window_mask: low_bytes(window),
            grams: Bitmap::for_entries(forms.len() * step),
            windows: Bitmap::for_entries(forms.len() * step),
        };
        for form in forms {
            let form = form.as_ref();
            let mut start = [0; WINDOW];
            start[..window].copy_from_slice(&form[..window]);
            let word = u64::from_le_bytes(start);
            filter.windows.insert(word & filter.window_mask);
            for offset in 0..step {
                filter.grams.insert((word >> (8 * offset)) & filter.gram_mask);
            }
        }
        filter
    }

    /// No form is shorter than this (and it is never more than eight).
    #[inline]
    pub(super) fn window(&self) -> usize {
        self.window
    }

    /// The first position from `from` (at most the length of `text`) on at which a form may start.
    pub(super) fn first_possible_start(&self, text: &[u8], from: usize) -> usize {
        match self.step {
            1 => self.search::<1>(text, from),
            2 => self.search::<2>(text, from),
            3 => self.search::<3>(text, from),
            _ => self.search::<MAX_STEP>(text, from),
        }
    }

    fn search<const STEP: usize>(&self, text: &[u8], from: usize) -> usize {
        // Forms that start in `at - reach ..= at` have a gram at `at`.
        let reach = STEP - 1;
        let mut at = from + reach;
        loop {
            while let Some(block) = text.get(at..).and_then(|rest| rest.first_chunk::<BLOCK>()) {
                let mut hit = false;
                for look in 0..LOOKS {
                    hit |= word_at(block, look * STEP).is_some_and(|word| self.has_gram(word));
                }
                if hit {
                    break;
                }
                at += LOOKS * STEP;
            }
            // Here a block has a hit, or less than a block is left.
            for _ in 0..LOOKS {
                let Some(word) = word_at(text, at) else { return at - reach };
                if self.has_gram(word)
                    && let Some(start) = (at - reach..=at).find(|&start| self.has_window(text, start))
                {
                    return start;
                }
                at += STEP;
            }
        }
    }

    #[inline]
    fn has_gram(&self, word: u64) -> bool {
        self.grams.contains(word & self.gram_mask)
    }

    #[inline]
    fn has_window(&self, text: &[u8], start: usize) -> bool {
        word_at(text, start).is_none_or(|word| self.windows.contains(word & self.window_mask))
    }
}

#[inline]
fn word_at(text: &[u8], at: usize) -> Option<u64> {
    text.get(at..)?.first_chunk::<WINDOW>().map(|bytes| u64::from_le_bytes(*bytes))
}

/// The mask of the first `count` bytes of a little-endian word.
fn low_bytes(count: usize) -> u64 {
    u64::MAX >> (8 * (WINDOW - count))
}

/// A set of hashes.
struct Bitmap {
    words: Box<[u64]>,
    shift: u32,
}

impl Bitmap {
    fn for_entries(count: usize) -> Self {
        let bits = (count * BITS_PER_ENTRY).next_power_of_two().ilog2().clamp(MIN_BITS, MAX_BITS);
        Self { words: vec![0; (1 << bits) / 64].into_boxed_slice(), shift: 64 - bits }
    }

    fn insert(&mut self, value: u64) {
        let bit = self.hash(value);
        self.words[bit / 64] |= 1 << (bit % 64);
    }

    #[inline]
    fn contains(&self, value: u64) -> bool {
        let bit = self.hash(value);
        self.words.get(bit / 64).is_none_or(|word| word >> (bit % 64) & 1 != 0)
    }

    /// Multiplicative hashing: the upper bits of the product depend on all bytes.
    #[inline]
    fn hash(&self, value: u64) -> usize {
        (value.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> self.shift) as usize
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
            let found = Filter::new(&forms).first_possible_start(text.as_bytes(), from);
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
        let found = Filter::new(&["0123456789"]).first_possible_start(&text, 0);
        assert!(found > text.len() - 12);
    }
}
