//! Throughput of masking for clean text, for text of near misses only, and for text full of secrets. Also the time to
//! prepare a job's masker. Run it with `cargo bench --bench masking`.

#![expect(clippy::expect_used, reason = "a bench that cannot be set up has to stop")]

use std::{fmt::Write, sync::Arc};

use divan::{Bencher, counter::BytesCount};
use step_runner::log::mask::{MaskConfig, MaskStream, Masker, PhraseSet};

/// Maximum size of one read of a pipe.
const WRITE: usize = 64 * 1024;

/// Bytes masked in one iteration.
const SIZE: usize = 4 * 1024 * 1024;

const PHRASES: [usize; 4] = [0, 1, 100, 1000];

fn main() {
    divan::main();
}

/// Generates the same numbers in each run (splitmix64).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

/// Secrets as used in practice: random, 8 to 40 characters, some of which encodings change.
fn secrets(count: usize) -> Vec<String> {
    words(count, 8, 33)
}

/// Random words of `least` to `least + spread - 1` characters.
fn words(count: usize, least: usize, spread: usize) -> Vec<String> {
    const ALPHABET: &[u8] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_+/=!$%&";
    let mut numbers = Numbers(7);
    (0..count)
        .map(|_| {
            let length = least + numbers.below(spread);
            (0..length).map(|_| char::from(ALPHABET[numbers.below(ALPHABET.len())])).collect()
        })
        .collect()
}

fn masker(phrases: &[String]) -> Arc<Masker> {
    let none: [&str; 0] = [];
    let (set, _) = PhraseSet::prepare(phrases, none, &MaskConfig::default()).expect("within limits");
    Masker::compile(&set)
}

/// Lines as compilers, package managers and test runners print them.
fn build_log() -> Vec<u8> {
    let mut numbers = Numbers(1);
    let mut text = String::with_capacity(SIZE + 256);
    while text.len() < SIZE {
        let (a, b) = (numbers.below(1000), numbers.below(100));
        let line = match numbers.below(8) {
            0 => writeln!(text, "   Compiling serde_json v1.0.{a} (registry+https://example.com/index)"),
            1 => writeln!(text, "[{a}/1000] Building CXX object src/CMakeFiles/core.dir/module_{b}.cpp.o"),
            2 => writeln!(
                text,
                "2026-11-21T10:{b:02}:00Z INFO  worker{{id={a}}}: request finished status=200 ms={b}"
            ),
            3 => writeln!(
                text,
                "npm http fetch GET 200 https://registry.example.com/package-{a} {b}ms (cache hit)"
            ),
            4 => writeln!(text, "test tests::group_{b}::case_{a} ... ok"),
            5 => writeln!(text, "\u{1b}[32;1m$ go test ./internal/package{b}/...\u{1b}[0;m"),
            6 => writeln!(
                text,
                "ok  \tgitlab.example.com/group/project/internal/package{b}\t0.{a}s\tcoverage: {b}%"
            ),
            _ => writeln!(text, "warning: unused variable: `value_{a}` --> src/library/module_{b}.rs:{a}:17"),
        };
        line.expect("a string takes all");
    }
    text.truncate(SIZE);
    text.into_bytes()
}

/// Lines with an escape in every ten bytes: JSON inside of JSON, URLs, shell traces, XML.
fn escaped_log() -> Vec<u8> {
    let mut numbers = Numbers(3);
    let mut text = String::with_capacity(SIZE + 256);
    while text.len() < SIZE {
        let (a, b) = (numbers.below(1000), numbers.below(100));
        let line = match numbers.below(4) {
            0 => writeln!(
                text,
                r#"{{"msg":"{{\"id\":{a},\"path\":\"C:\\\\tmp\\\\{b}\",\"text\":\"one\\ntwo\"}}"}}"#
            ),
            1 => writeln!(
                text,
                "GET https://example.com/group%2Fproject{a}/files/src%2Fmain%2Ers?ref=a+{b}&page={b}"
            ),
            2 => writeln!(
                text,
                r"+ curl -H 'Accept: */*' -d '{{a:'\''{a}'\''}}' 'https://example.com/?a={b}&b=c+d'"
            ),
            _ => writeln!(text, r#"<a href="x?a=1&amp;b={a}">&lt;tag&gt; it&#39;s \u00e4\u00f6 {b}%</a>"#),
        };
        line.expect("a string takes all");
    }
    text.truncate(SIZE);
    text.into_bytes()
}

/// Prefixes of phrases, of random length, without gaps.
fn near_misses(phrases: &[String], least: usize) -> Vec<u8> {
    let mut numbers = Numbers(2);
    let mut text = Vec::with_capacity(SIZE + 256);
    while text.len() < SIZE {
        let phrase = phrases[numbers.below(phrases.len())].as_bytes();
        let length = (least + numbers.below(phrase.len())).min(phrase.len() - 1);
        text.extend_from_slice(&phrase[..length]);
    }
    text.truncate(SIZE);
    text
}

fn run(bencher: Bencher<'_, '_>, masker: &Arc<Masker>, text: &[u8], write: usize) {
    let mut stream = MaskStream::new(Arc::clone(masker));
    let mut out = Vec::with_capacity(2 * WRITE);
    bencher.counter(BytesCount::new(text.len())).bench_local(|| {
        for write in text.chunks(write) {
            stream.push(write, &mut out);
            divan::black_box(&out);
            out.clear();
        }
        stream.finish(&mut out);
    });
}

/// Minimum cost of a masker that has nothing to do.
#[divan::bench]
fn copy_alone(bencher: Bencher<'_, '_>) {
    let text = build_log();
    let mut out = Vec::with_capacity(2 * WRITE);
    bencher.counter(BytesCount::new(text.len())).bench_local(|| {
        for write in text.chunks(WRITE) {
            out.extend_from_slice(write);
            divan::black_box(&out);
            out.clear();
        }
    });
}

#[divan::bench(args = PHRASES)]
fn clean(bencher: Bencher<'_, '_>, phrases: usize) {
    run(bencher, &masker(&secrets(phrases)), &build_log(), WRITE);
}

#[divan::bench(args = PHRASES)]
fn clean_in_writes_of_80_bytes(bencher: Bencher<'_, '_>, phrases: usize) {
    run(bencher, &masker(&secrets(phrases)), &build_log(), 80);
}

#[divan::bench(args = [1, 100, 1000])]
fn escapes_of_other_text(bencher: Bencher<'_, '_>, phrases: usize) {
    run(bencher, &masker(&secrets(phrases)), &escaped_log(), WRITE);
}

/// Prefixes of phrases, with each byte escaped.
#[divan::bench]
fn escaped_near_misses_of_1000_phrases(bencher: Bencher<'_, '_>) {
    let secrets = secrets(1000);
    let misses = near_misses(&secrets, 4).into_iter().take(SIZE / 8);
    let text = misses.fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        write!(text, "%{byte:02X}").ok();
        text
    });
    run(bencher, &masker(&secrets), text.as_bytes(), WRITE);
}

#[divan::bench(args = [1, 100, 1000])]
fn clean_with_a_short_phrase(bencher: Bencher<'_, '_>, phrases: usize) {
    let mut secrets = secrets(phrases);
    secrets.push("zq7".to_owned());
    run(bencher, &masker(&secrets), &build_log(), WRITE);
}

#[divan::bench(args = [0, 4, 8])]
fn near_misses_of_1000_phrases(bencher: Bencher<'_, '_>, least: usize) {
    let secrets = secrets(1000);
    run(bencher, &masker(&secrets), &near_misses(&secrets, least), WRITE);
}

/// The maximum number of phrases with the maximum total length. The text has prefixes of up to 40 bytes, of phrases
/// chosen at random, so that the automaton's states have usually left the caches when they are needed again.
#[divan::bench]
fn near_misses_at_the_limits(bencher: Bencher<'_, '_>) {
    let secrets = words(4096, 1024, 1);
    let starts: Vec<String> = secrets.iter().map(|secret| secret.chars().take(41).collect()).collect();
    run(bencher, &masker(&secrets), &near_misses(&starts, 8), WRITE);
}

#[divan::bench]
fn secrets_alone(bencher: Bencher<'_, '_>) {
    let secrets = secrets(1000);
    let text: Vec<u8> = secrets.concat().into_bytes().into_iter().cycle().take(SIZE).collect();
    run(bencher, &masker(&secrets), &text, WRITE);
}

/// Phrases that share long prefixes and fail late: the failure links of the automaton are as long as possible.
#[divan::bench]
fn periodic_near_misses(bencher: Bencher<'_, '_>) {
    let secrets: Vec<String> = (0..1000).map(|n| format!("{}b{n}", "a".repeat(8 + n % 100))).collect();
    let text: Vec<u8> = "a".repeat(90).into_bytes().into_iter().chain(*b"bb").cycle().take(SIZE).collect();
    run(bencher, &masker(&secrets), &text, WRITE);
}

/// Text without phrases that keeps the detectors of parameters and tokens busy.
#[divan::bench(args = ["?", "g", "?private_token=&", "glpat-a ", "?rss_token=abcdefghijklmnopqrstuvwxyz"])]
fn detectors(bencher: Bencher<'_, '_>, text: &str) {
    let text: Vec<u8> = text.bytes().cycle().take(SIZE).collect();
    run(bencher, &masker(&secrets(1000)), &text, WRITE);
}

#[divan::bench(args = [1, 100, 1000])]
fn prepare_and_compile(bencher: Bencher<'_, '_>, phrases: usize) {
    let secrets = secrets(phrases);
    bencher.bench_local(|| masker(&secrets));
}
