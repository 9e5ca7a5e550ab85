//! `masking [--cases N] [--seed N]`: the output depends only on the bytes, never on how they were cut, and contains no
//! secret (faults.md rows 32 and 33). A case is a set of secrets and a text. The text is fed whole, byte by byte, cut
//! in two at every place, in random pieces, and, if it is short, in every possible way. A second implementation that
//! sees the whole text gives the expected output.
//!
//! One set in four has a secret inside base64 that is broken into lines ([`lines`]), and one in four has secrets whose
//! characters are written with escapes ([`escapes`]).
//!
//! A naive masker, which looks at each write alone, gets the same cases. It must leak; otherwise the cases would
//! prove nothing. The full count adds a case with the maximum number of secrets (row 40).

mod escapes;
mod lines;

use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use memchr::memmem;
use step_runner::log::mask::{DefaultPrefixes, MASK, MaskConfig, MaskStream, Masker, PhraseSet};

use crate::arguments::Arguments;
use crate::definition::by_definition;
use crate::proc;
use crate::random::Random;
use crate::verdict::{Misses, Shown};

const CASES: u64 = 1_000_000;
const SMALL: u64 = 40_000;
/// Number of texts for each set of secrets.
const TEXTS: u64 = 40;
/// Longest text that is cut in every possible way.
const CUT_IN_EVERY_WAY: usize = 8;
/// Number of random cuttings of a longer text.
const RANDOM_CUTTINGS: usize = 4;
/// Number of misses after which a proof stops.
const ENOUGH: usize = 20;
/// Limits of masking.md §8: number of secrets, and their bytes in total.
const MOST: usize = 4096;
const MOST_BYTES: usize = 4 << 20;
/// Maximum memory for everything, in MiB (faults.md row 40). The speed, 100 MiB a second there, is printed but not
/// judged, since it depends on the load of the machine.
const MEMORY: u64 = 1 << 10;
/// Token prefixes of the masker, used in one set of four.
const PREFIXES: [&str; 2] = ["b-", "ab-"];

#[derive(Default)]
struct Counts {
    cases: AtomicU64,
    cuttings: AtomicU64,
    masked: AtomicU64,
    /// Number of cases in which the naive masker leaks a secret.
    naive_leaks: AtomicU64,
    /// Number of cases in which a line end breaks a secret's base64.
    broken: AtomicU64,
    /// Number of cases in which a secret is written with escapes.
    escaped: AtomicU64,
}

pub(crate) fn run(arguments: &Arguments, small: bool) -> Shown {
    let cases = arguments.number("cases", if small { SMALL } else { CASES });
    let seed = arguments.seed();
    let (counts, misses, next) = (Counts::default(), Misses::default(), AtomicU64::new(0));
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, NonZero::get) {
            scope.spawn(|| {
                while misses.count() < ENOUGH {
                    let set = next.fetch_add(1, Ordering::Relaxed);
                    let left = cases.saturating_sub(set * TEXTS).min(TEXTS);
                    if left == 0 {
                        return;
                    }
                    let random = Random::new(seed).fork(set);
                    match set % 4 {
                        3 => lines::prove(random, left, &counts, &misses),
                        2 => escapes::prove(random, left, &counts, &misses),
                        _ => prove(random, left, &counts, &misses),
                    }
                }
            });
        }
    });
    let [cases, cuttings, masked, leaks, broken, escaped] = [
        &counts.cases,
        &counts.cuttings,
        &counts.masked,
        &counts.naive_leaks,
        &counts.broken,
        &counts.escaped,
    ]
    .map(|count| count.load(Ordering::Relaxed));
    if leaks == 0 {
        misses.add(
            "the masker that looks at each write by itself never leaked: the cases prove nothing".into(),
        );
    }
    if broken == 0 {
        misses.add("no line end was inside of a secret's base64".into());
    }
    let at_limits = if small { String::new() } else { at_limits(&misses) };
    let percent = leaks as f64 * 100.0 / cases.max(1) as f64;
    misses.verdict(format!(
        "seed {seed}: {cases} cases ({masked} with something to mask) in {cuttings} cuttings: each as the whole, no \
         secret visible; in {broken} a line end breaks the base64 of the secret, in {escaped} it has escapes; the masker of single \
         writes leaks in {leaks} cases ({percent:.1} %){at_limits}"
    ))
}

/// Masks a text with the maximum number of secrets. About every tenth byte begins like a secret.
fn at_limits(misses: &Misses) -> String {
    let mut random = Random::new(1);
    let mut word = |length: usize| -> Vec<u8> {
        (0..length).map(|_| b"0123456789abcdef"[random.below(16) as usize]).collect()
    };
    let secrets: Vec<Vec<u8>> = (0..MOST).map(|_| word(MOST_BYTES / MOST)).collect();
    let begun = Instant::now();
    let Ok((set, _)) = PhraseSet::prepare(&secrets, [""], &MaskConfig::default()) else {
        misses.add("secrets at the limits are refused".into());
        return String::new();
    };
    let masker = Masker::compile(&set);
    let built = begun.elapsed();
    let mut text = Vec::new();
    while text.len() < 64 << 20 {
        let secret = &secrets[text.len() % MOST];
        text.extend_from_slice(&secret[..16]);
        text.extend_from_slice(b" some other text of a line, and the end of it\n");
        if text.len().is_multiple_of(7) {
            text.extend_from_slice(secret);
        }
    }
    let begun = Instant::now();
    let masked = masker.mask_bytes(&text);
    let speed = text.len() as f64 / f64::from(1 << 20) / begun.elapsed().as_secs_f64();
    // Checks only some secrets: searching for all would take longer than masking them.
    if secrets.iter().step_by(64).any(|secret| memmem::find(&masked, secret).is_some()) {
        misses.add("a secret of many is visible".into());
    }
    let memory = proc::peak_memory(std::process::id()) / 1024;
    if memory > MEMORY {
        misses.add(format!("{memory} MiB, at most {MEMORY}"));
    }
    format!(
        "; {MOST} secrets of {MOST_BYTES} bytes: made in {built:.1?}, {speed:.0} MiB/s, {memory} MiB in all"
    )
}

/// Checks one set of secrets with its texts.
fn prove(mut random: Random, texts: u64, counts: &Counts, misses: &Misses) {
    let secrets = secrets(&mut random);
    let prefixes = if random.one_in(4) { &PREFIXES[..] } else { &[] };
    let config =
        MaskConfig { forms: false, default_prefixes: DefaultPrefixes::None, ..MaskConfig::default() };
    let Ok((set, _)) = PhraseSet::prepare(&secrets, prefixes, &config) else {
        return misses.add(format!("{secrets:?} are refused"));
    };
    let case = Case { masker: Masker::compile(&set), secrets };
    for _ in 0..texts {
        let text = text(&mut random, &case.secrets);
        let expected = by_definition(&case.secrets, None, false, |_, _| true, prefixes, &text);
        counts.cases.fetch_add(1, Ordering::Relaxed);
        counts.masked.fetch_add(u64::from(expected != text), Ordering::Relaxed);
        if shows(&case.secrets, &expected) {
            misses.add(format!(
                "{}: by definition a secret is visible in {}",
                case.name(&text),
                shown(&expected)
            ));
        }
        let cuttings = cuttings(&mut random, text.len());
        counts.cuttings.fetch_add(cuttings.len() as u64, Ordering::Relaxed);
        let naive_leaks = cuttings.iter().any(|&cuts| case.naive_leaks(&text, cuts));
        counts.naive_leaks.fetch_add(u64::from(naive_leaks), Ordering::Relaxed);
        for cuts in cuttings {
            if let Err(miss) = case.check(&text, cuts, &expected) {
                misses.add(miss);
            }
        }
    }
}

struct Case {
    masker: Arc<Masker>,
    secrets: Vec<Vec<u8>>,
}

impl Case {
    /// True if a secret is visible in the output of the naive masker.
    fn naive_leaks(&self, text: &[u8], cuts: u64) -> bool {
        let out: Vec<u8> = writes(text, cuts).flat_map(|write| mask_alone(&self.secrets, write)).collect();
        shows(&self.secrets, &out)
    }

    fn check(&self, text: &[u8], cuts: u64, expected: &[u8]) -> Result<(), String> {
        let mut stream = MaskStream::new(Arc::clone(&self.masker));
        let mut out = Vec::new();
        for write in writes(text, cuts) {
            stream.push(write, &mut out);
        }
        stream.finish(&mut out);
        if out == expected {
            return Ok(());
        }
        let written: Vec<String> = writes(text, cuts).map(shown).collect();
        Err(format!(
            "{}: written as {written:?} it gives {}, not {}",
            self.name(text),
            shown(&out),
            shown(expected)
        ))
    }

    fn name(&self, text: &[u8]) -> String {
        let secrets: Vec<String> = self.secrets.iter().map(|secret| shown(secret)).collect();
        format!("secrets {secrets:?}, text {:?}", shown(text))
    }
}

/// Returns one to four secrets over two or three letters. They overlap, contain each other, and overlap themselves.
fn secrets(random: &mut Random) -> Vec<Vec<u8>> {
    let letters = 2 + random.below(2);
    let mut secrets: Vec<Vec<u8>> = Vec::new();
    for _ in 0..=random.below(4) {
        let mut secret = match secrets.last() {
            // Starts with a part of the previous secret, which can be its end.
            Some(last) if random.one_in(2) => part(random, last).to_vec(),
            _ => Vec::new(),
        };
        let length = random.below(6);
        secret.extend((0..length).map(|_| letter(random, letters)));
        if random.one_in(4) {
            secret.extend_from_within(..);
        }
        if secret.is_empty() {
            secret.push(letter(random, letters));
        }
        if random.one_in(16) {
            secret.push(b"&=?-"[random.below(4) as usize]);
        }
        secrets.push(secret);
    }
    secrets.sort();
    secrets.dedup();
    secrets
}

fn letter(random: &mut Random, letters: u64) -> u8 {
    b'a' + random.below(letters) as u8
}

fn part<'a>(random: &mut Random, of: &'a [u8]) -> &'a [u8] {
    let start = random.below(of.len() as u64) as usize;
    let length = 1 + random.below((of.len() - start) as u64) as usize;
    &of[start..start + length]
}

/// Returns a text of secrets, parts of secrets, random letters, and other texts that the masker detects.
fn text(random: &mut Random, secrets: &[Vec<u8>]) -> Vec<u8> {
    let mut text = Vec::new();
    for _ in 0..=random.below(5) {
        let secret = &secrets[random.below(secrets.len() as u64) as usize];
        match random.below(8) {
            0..3 => text.extend_from_slice(secret),
            3..5 => text.extend_from_slice(part(random, secret)),
            5 => text.extend((0..random.below(4)).map(|_| letter(random, 3))),
            6 => text.push(b" .\n&-"[random.below(5) as usize]),
            _ if random.one_in(3) => text.extend_from_slice(b"?rss_token="),
            _ => text.extend_from_slice(PREFIXES[random.below(2) as usize].as_bytes()),
        }
    }
    text.truncate(u64::BITS as usize);
    text
}

/// Returns cuttings of a text of this length. Each has one bit for each place; bit 0 is behind the first byte.
fn cuttings(random: &mut Random, length: usize) -> Vec<u64> {
    let places = length.saturating_sub(1);
    if length <= CUT_IN_EVERY_WAY {
        return (0..1 << places).collect();
    }
    let every_place = u64::MAX >> (u64::BITS as usize - places);
    let mut all = vec![0, every_place];
    all.extend((0..places).map(|place| 1 << place));
    all.extend((0..RANDOM_CUTTINGS).map(|_| random.next() & random.next() & every_place));
    all
}

/// Returns the pieces of a text between the cuts.
fn writes(text: &[u8], cuts: u64) -> impl Iterator<Item = &[u8]> {
    let mut start = 0;
    (0..text.len()).filter_map(move |last| {
        let ends = last + 1 == text.len() || cuts >> last & 1 == 1;
        ends.then(|| &text[std::mem::replace(&mut start, last + 1)..=last])
    })
}

/// The naive masker: replaces the secrets in one write, longer secrets first.
fn mask_alone(secrets: &[Vec<u8>], write: &[u8]) -> Vec<u8> {
    let mut by_length: Vec<&[u8]> = secrets.iter().map(Vec::as_slice).collect();
    by_length.sort_unstable_by_key(|secret| std::cmp::Reverse(secret.len()));
    let mut out = write.to_vec();
    for secret in by_length {
        while let Some(at) = memmem::find(&out, secret) {
            out.splice(at..at + secret.len(), MASK.iter().copied());
        }
    }
    out
}

/// True if a secret is visible in an output, between its masks.
fn shows(secrets: &[Vec<u8>], out: &[u8]) -> bool {
    let mut rest = out;
    loop {
        let mask = memmem::find(rest, MASK);
        let (piece, after) = rest.split_at(mask.unwrap_or(rest.len()));
        if secrets.iter().any(|secret| memmem::find(piece, secret).is_some()) {
            return true;
        }
        match mask {
            Some(_) => rest = &after[MASK.len()..],
            None => return false,
        }
    }
}

fn shown(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}
