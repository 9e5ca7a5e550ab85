//! Base64 in lines: a secret of any length inside a text, encoded in one of the usual ways, and fed in many cuttings.
//! Only characters that also encode neighbouring bytes can stay visible (masking.md §2).

use std::ops::Range;
use std::sync::atomic::Ordering;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};
use step_runner::log::mask::{DefaultPrefixes, MASK, MaskConfig, MaskStream, Masker, PhraseSet};

use super::{Counts, shown};
use crate::random::Random;
use crate::verdict::Misses;

/// Line lengths after which encoders break lines.
const COLUMNS: [usize; 5] = [60, 64, 70, 72, 76];

/// Longest secret, and longest text on either side of it, in bytes.
const LONGEST: u64 = 180;

/// Number of characters that can be hidden beyond the range of the secret: its last character, one shared with its
/// neighbour, and padding.
const LAST: usize = 4;

/// Number of random cuttings of each text.
const RANDOM_CUTTINGS: usize = 4;

/// Checks one secret with its texts.
pub(super) fn prove(mut random: Random, texts: u64, counts: &Counts, misses: &Misses) {
    let secret = printable(&mut random, 8, LONGEST);
    let config = MaskConfig { default_prefixes: DefaultPrefixes::None, ..MaskConfig::default() };
    let Ok((set, _)) = PhraseSet::prepare([&secret], [""], &config) else {
        return misses.add(format!("{:?} is refused", shown(&secret)));
    };
    let masker = Masker::compile(&set);
    for _ in 0..texts {
        let encoded = Encoded::new(&mut random, &secret);
        counts.cases.fetch_add(1, Ordering::Relaxed);
        counts.masked.fetch_add(1, Ordering::Relaxed);
        let secret_lines = &encoded.text[encoded.secret.clone()];
        counts.broken.fetch_add(u64::from(secret_lines.contains(&b'\n')), Ordering::Relaxed);
        let whole = masker.mask_bytes(&encoded.text);
        if let Err(miss) = encoded.check(&whole) {
            misses.add(format!("secret {:?}, text {:?}: {miss}", shown(&secret), shown(&encoded.text)));
        }
        for writes in encoded.cuttings(&mut random) {
            counts.cuttings.fetch_add(1, Ordering::Relaxed);
            let (mut stream, mut out) = (MaskStream::new(masker.clone()), Vec::new());
            for write in &writes {
                stream.push(write, &mut out);
            }
            stream.finish(&mut out);
            if out != whole {
                let writes: Vec<String> = writes.iter().map(|write| shown(write)).collect();
                misses.add(format!(
                    "secret {:?}: written as {writes:?} it gives {}",
                    shown(&secret),
                    shown(&out)
                ));
            }
        }
    }
}

/// Returns random printable bytes without blanks.
fn printable(random: &mut Random, least: u64, most: u64) -> Vec<u8> {
    (0..least + random.below(most - least + 1)).map(|_| b'!' + random.below(94) as u8).collect()
}

/// A text in lines of base64, and the range of characters that depend only on the secret.
struct Encoded {
    text: Vec<u8>,
    secret: Range<usize>,
}

impl Encoded {
    fn new(random: &mut Random, secret: &[u8]) -> Self {
        let side = |random: &mut Random| match random.below(3) {
            0 => Vec::new(),
            _ => printable(random, 0, LONGEST),
        };
        let (before, mut after) = (side(random), side(random));
        if random.one_in(3) {
            after.insert(0, b'\n');
        }
        let encoder = [&STANDARD, &STANDARD_NO_PAD, &URL_SAFE, &URL_SAFE_NO_PAD][random.below(4) as usize];
        let encoded = encoder.encode([&before, secret, &after].concat());
        let columns = COLUMNS[random.below(COLUMNS.len() as u64) as usize];
        let line_end: &[u8] = if random.one_in(2) { b"\n" } else { b"\r\n" };
        let place = |character: usize| character + character / columns * line_end.len();
        let first = (8 * before.len()).div_ceil(6);
        let last = 8 * (before.len() + secret.len()) / 6 - 1;
        let lines = encoded.as_bytes().chunks(columns);
        let text = lines.flat_map(|line| [line, line_end].concat()).collect();
        Self { text, secret: place(first)..place(last) + 1 }
    }

    /// Checks that one mask replaces all of the secret, and at most [`LAST`] characters behind it.
    fn check(&self, out: &[u8]) -> Result<(), String> {
        let start = &self.text[..self.secret.start];
        let rest = out.strip_prefix(start).and_then(|rest| rest.strip_prefix(MASK));
        let Some(rest) = rest else { return Err(format!("not masked from its start on: {}", shown(out))) };
        let behind = &self.text[self.secret.end..];
        let more = behind.len().checked_sub(rest.len()).filter(|_| behind.ends_with(rest));
        let characters =
            |hidden: usize| behind[..hidden].iter().filter(|byte| !b"\r\n".contains(byte)).count();
        match more {
            Some(hidden) if characters(hidden) <= LAST => Ok(()),
            _ => Err(format!("not masked to its end, or beyond: {}", shown(out))),
        }
    }

    /// Returns the cuttings: byte by byte, in two around each line end and at the secret's ends, in random pieces.
    fn cuttings(&self, random: &mut Random) -> Vec<Vec<&[u8]>> {
        let text = self.text.as_slice();
        let mut cuttings = vec![text.chunks(1).collect()];
        let line_ends = text.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at);
        let places = line_ends.chain([self.secret.start, self.secret.end]);
        cuttings.extend(places.flat_map(|at| at.saturating_sub(2)..(at + 3).min(text.len())).map(|at| {
            let (first, second) = text.split_at(at);
            vec![first, second]
        }));
        cuttings.extend((0..RANDOM_CUTTINGS).map(|_| {
            let mut rest = text;
            let mut writes = Vec::new();
            while !rest.is_empty() {
                let (write, more) = rest.split_at((1 + random.below(90) as usize).min(rest.len()));
                writes.push(write);
                rest = more;
            }
            writes
        }));
        cuttings
    }
}
