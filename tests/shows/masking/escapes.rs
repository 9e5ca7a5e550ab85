//! Secrets with escapes: each character is written in a random way of one kind of programs, or of any. The text around
//! a secret is full of what begins escapes. Nothing of the secret stays, and text without a secret stays as it is.

use std::sync::atomic::Ordering;

use step_runner::log::mask::{DefaultPrefixes, MASK_TEXT, MaskConfig, MaskStream, Masker, PhraseSet};

use super::{Counts, shown, writes};
use crate::random::Random;
use crate::verdict::Misses;
use crate::writers::Writer;

/// Characters of secrets, common ones several times.
const CHARACTERS: &str = "aaabbbccc019%%\\\\//++''\"&<=$- \t\n\u{7f}\u{1}\u{e4}\u{20ac}\u{1f511}";

/// Pieces of the text around a secret. None of them is a letter `Z`, nor can a few of them be one.
const AROUND: [&str; 16] =
    ["a", "b", "c", "%", "%4", "\\", "\\u00", "\\x", "&", "&#x", ";", "'", "'$", "+", "\r", "\n"];

/// Number of random cuttings of each text.
const RANDOM_CUTTINGS: usize = 4;

/// Checks one set of secrets with its texts.
pub(super) fn prove(mut random: Random, texts: u64, counts: &Counts, misses: &Misses) {
    let secrets: Vec<String> = (0..=random.below(3)).map(|_| secret(&mut random)).collect();
    let config = MaskConfig { default_prefixes: DefaultPrefixes::None, ..MaskConfig::default() };
    let Ok((set, _)) = PhraseSet::prepare(&secrets, [""], &config) else {
        return misses.add(format!("{secrets:?} are refused"));
    };
    let masker = Masker::compile(&set);
    for _ in 0..texts {
        let writer = Writer::EACH[random.below(Writer::EACH.len() as u64) as usize];
        let secret = &secrets[random.below(secrets.len() as u64) as usize];
        let written = writer.written(secret, |count| random.below(count as u64) as usize);
        let (before, after) = (around(&mut random), around(&mut random));
        let text = format!("{before}{written}{after}");
        counts.cases.fetch_add(1, Ordering::Relaxed);
        counts.masked.fetch_add(1, Ordering::Relaxed);
        counts.escaped.fetch_add(1, Ordering::Relaxed);
        let whole = masker.mask_bytes(text.as_bytes());
        if let Err(miss) = check(&before, &after, &whole) {
            misses.add(format!("secret {secret:?}, written {text:?}: {miss}"));
        }
        let other = before + &after;
        if masker.mask_bytes(other.as_bytes()) != other.as_bytes() {
            misses.add(format!("secrets {secrets:?}: something of {other:?} is masked"));
        }
        for _ in 0..RANDOM_CUTTINGS {
            counts.cuttings.fetch_add(1, Ordering::Relaxed);
            let (mut stream, mut out) = (MaskStream::new(masker.clone()), Vec::new());
            // The first bytes are cut everywhere in one of them; the bits count for 64 bytes, then they repeat.
            let cuts = if random.one_in(4) { u64::MAX } else { random.next() & random.next() };
            for piece in text.as_bytes().chunks(64).flat_map(|part| writes(part, cuts)) {
                stream.push(piece, &mut out);
            }
            stream.finish(&mut out);
            if out != whole {
                misses.add(format!(
                    "secret {secret:?}, text {text:?}: cut by {cuts:x} it gives {}",
                    shown(&out)
                ));
            }
        }
    }
}

/// Returns a secret of at least nine bytes, of which the last is in no other text.
fn secret(random: &mut Random) -> String {
    let characters: Vec<char> = CHARACTERS.chars().collect();
    let inner = (0..7 + random.below(22)).map(|_| characters[random.below(characters.len() as u64) as usize]);
    format!("q{}Z", inner.collect::<String>())
}

fn around(random: &mut Random) -> String {
    (0..random.below(8)).map(|_| AROUND[random.below(AROUND.len() as u64) as usize]).collect()
}

/// Checks that a mask replaces the whole secret: what is left is at most what was around it.
fn check(before: &str, after: &str, out: &[u8]) -> Result<(), String> {
    let shown = String::from_utf8_lossy(out);
    let (head, rest) = (shown.split_once(MASK_TEXT), shown.rsplit_once(MASK_TEXT));
    let (Some((head, _)), Some((_, rest))) = (head, rest) else {
        return Err(format!("not masked: {shown:?}"));
    };
    if before.starts_with(head) && after.ends_with(rest) {
        return Ok(());
    }
    Err(format!("not masked as a whole: {shown:?}"))
}
