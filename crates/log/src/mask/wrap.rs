//! Line ends inside encoded text (masking.md §2): `base64` wraps its output after 76 characters, PEM after 64.
//!
//! A *break* is an LF or CR LF directly after at least [`COLUMNS`] characters of base64. A form may continue after a
//! break at any of its bytes. [`Breaks`] finds breaks, which other text hardly ever has. [`Wrapped`] tracks a form that
//! has begun before a break.

use super::{automaton::AutomatonState, view::View};

/// Minimum number of base64 characters before a break. Encoders wrap lines after 60 (Ruby), 64 (PEM), 70 (OpenSSH) or
/// 76 characters. With a smaller number more line ends of other text would be held back.
pub(super) const COLUMNS: usize = 60;

/// Number of bytes tested at once.
const BLOCK: usize = 16;

/// True for characters of base64, in both alphabets. Branchless: a [`BLOCK`] takes a dozen vector operations.
#[expect(clippy::needless_bitwise_bool, reason = "without branches it is done for a whole vector")]
#[inline]
fn is_base64(byte: u8) -> bool {
    let letter = (byte | 0x20).wrapping_sub(b'a') < 26;
    let digit_or_slash = byte.wrapping_sub(b'/') < 11;
    letter | digit_or_slash | (byte == b'+') | (byte == b'-') | (byte == b'_')
}

/// True if `block` consists of base64 characters only.
#[inline]
fn is_run(block: &[u8; BLOCK]) -> bool {
    block.iter().fold(true, |all, &byte| all & is_base64(byte))
}

/// Returns the number of base64 characters at the end of `block`.
#[inline]
fn run_at_end(block: &[u8; BLOCK]) -> usize {
    let mut others = [0; BLOCK];
    for (other, &byte) in others.iter_mut().zip(block) {
        *other = if is_base64(byte) { 0 } else { 0xFF };
    }
    u128::from_le_bytes(others).leading_zeros() as usize / 8
}

/// True for CR and LF.
pub(super) fn is_line_end(byte: u8) -> bool {
    matches!(byte, b'\r' | b'\n')
}

/// Returns the number of base64 characters at the end of `text`, at most [`COLUMNS`]. `before` is this number for the
/// text before it.
#[inline]
pub(super) fn trailing_run(before: usize, text: &[u8]) -> usize {
    if let Some(block) = text.last_chunk::<BLOCK>() {
        let run = run_at_end(block);
        if run < BLOCK {
            return run;
        }
    }
    let last = &text[text.len().saturating_sub(COLUMNS)..];
    match last.iter().rposition(|&byte| !is_base64(byte)) {
        Some(other) => last.len() - other - 1,
        None => (before + last.len()).min(COLUMNS),
    }
}

/// Finds the line ends (LF, CR LF or a lone CR) in a text that follow `columns` characters of base64.
pub(super) struct Breaks<'a> {
    text: &'a [u8],
    columns: usize,
    /// Characters of base64 directly before the text; 0 after the first search.
    before: usize,
    /// No long enough run starts before this position, except one that began before the text.
    from: usize,
}

impl<'a> Breaks<'a> {
    /// Searches `text`. Without `columns` there are no breaks. `before` is the [`trailing_run`] of the earlier text.
    pub(super) fn new(text: &'a [u8], before: usize, columns: Option<usize>) -> Self {
        match columns {
            Some(columns) => Self { text, columns, before, from: 0 },
            None => Self { text: &[], columns: 1, before: 0, from: 0 },
        }
    }

    /// Returns the position of the next line end.
    pub(super) fn next(&mut self) -> Option<usize> {
        if self.before > 0 {
            let before = std::mem::take(&mut self.before);
            let end = self.run_end(0)?;
            self.from = end + 1;
            if before.saturating_add(end) >= self.columns && is_line_end(self.text[end]) {
                return Some(end);
            }
        }
        loop {
            let known = self.skip();
            // A run and the byte behind it must fit.
            let run = self.text.get(self.from..)?.get(..self.columns)?;
            let unknown = &run[..self.columns - known];
            if let Some(other) = unknown.iter().rposition(|&byte| !is_base64(byte)) {
                self.from += other + 1;
                continue;
            }
            let end = self.run_end(self.from + self.columns)?;
            self.from = end + 1;
            if is_line_end(self.text[end]) {
                return Some(end);
            }
        }
    }

    /// Skips bytes in which no long enough run starts: the last bytes of each such run would show it. Returns how many
    /// of the next candidate's last bytes are known to be base64.
    #[inline]
    fn skip(&mut self) -> usize {
        let Some(last) = self.columns.checked_sub(BLOCK) else { return 0 };
        // A run that starts at one of these positions covers the block after them. The distance is constant, so that a
        // look need not wait for the previous one.
        while let Some(block) = self.text.get(self.from + last..).and_then(|rest| rest.first_chunk::<BLOCK>())
        {
            if is_run(block) {
                return BLOCK;
            }
            self.from += last + 1;
        }
        0
    }

    /// Returns the end of the run that continues at `from`, or `None` if it does not end in this text.
    fn run_end(&self, mut from: usize) -> Option<usize> {
        while let Some(block) = self.text.get(from..).and_then(|rest| rest.first_chunk::<BLOCK>())
            && is_run(block)
        {
            from += BLOCK;
        }
        let rest = self.text.get(from..)?;
        Some(from + rest.iter().position(|&byte| !is_base64(byte))?)
    }
}

/// A form that may have begun before a break. The search continues as if the breaks were not there.
pub(super) struct Wrapped {
    /// The automaton's state at the end of the view.
    pub(super) state: AutomatonState,
    /// The source without the breaks, of which there is at least one.
    pub(super) view: View,
    /// True after a CR at the end of the input. It is a break only if an LF follows.
    pub(super) open: bool,
}

impl Wrapped {
    /// Makes an entry with the state before the first break.
    pub(super) fn new(state: AutomatonState) -> Self {
        Self { state, view: View::default(), open: false }
    }

    /// Completes the break of an open CR with its LF.
    pub(super) fn close(&mut self) {
        self.open = false;
        self.view.extend_last();
    }

    /// Returns the memory on the heap, in bytes.
    #[cfg(test)]
    pub(super) fn heap_bytes(&self) -> usize {
        size_of::<Self>() + self.view.heap_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// All line ends after a run, found byte by byte.
    fn by_definition(text: &[u8], before: usize, columns: usize) -> Vec<usize> {
        let mut run = before;
        let mut found = Vec::new();
        for (at, &byte) in text.iter().enumerate() {
            if is_line_end(byte) && run >= columns {
                found.push(at);
            }
            run = if is_base64(byte) { run + 1 } else { 0 };
        }
        found
    }

    fn all(mut breaks: Breaks<'_>) -> Vec<usize> {
        std::iter::from_fn(|| breaks.next()).collect()
    }

    proptest! {
        #[test]
        fn every_line_end_behind_a_run_is_found(
            pieces in prop::collection::vec((0_usize..140, 0_usize..8), 0..12),
            before in 0_usize..=COLUMNS,
            columns in prop::sample::select(vec![1, 3, 15, 16, 17, COLUMNS]),
        ) {
            let mut text = String::new();
            for (run, other) in pieces {
                text.extend("Az09+/-_".chars().cycle().skip(run % 8).take(run));
                text.push_str(["\n", "\r\n", "\r", "=", " ", ".", "\u{e9}", ""][other]);
            }
            let text = text.as_bytes();
            let before = before.min(columns);
            prop_assert_eq!(
                all(Breaks::new(text, before, Some(columns))),
                by_definition(text, before, columns)
            );
            prop_assert_eq!(all(Breaks::new(text, before, None)), Vec::<usize>::new());
            let expected = text.iter().rev().take_while(|&&byte| is_base64(byte)).count();
            let expected = if expected == text.len() { expected + before } else { expected };
            prop_assert_eq!(trailing_run(before, text), expected.min(COLUMNS));
        }
    }
}
