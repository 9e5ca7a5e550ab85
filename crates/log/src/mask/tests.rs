//! Compares the stream with a second implementation (`definition.rs`), and tests its limits.

mod definition;
mod escapes;
mod examples;
mod writers;
mod writings;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use proptest::prelude::*;

use self::definition::{by_definition, wrapped};
use super::*;

fn set(phrases: &[String], prefixes: &[&str], forms: bool) -> PhraseSet {
    let config = MaskConfig { forms, default_prefixes: DefaultPrefixes::None, ..MaskConfig::default() };
    PhraseSet::prepare(phrases, prefixes, &config).unwrap().0
}

/// With as few rows as possible, or the usual number; with breaks after lines of `columns`.
fn compile(set: &PhraseSet, rows: bool, columns: Option<usize>) -> Arc<Masker> {
    if set.forms().is_empty() {
        return Masker::compile(set);
    }
    let automaton =
        if rows { Automaton::new(set.forms()) } else { Automaton::with_row_budget(set.forms(), 0) };
    let escapes = if set.has_encoded_forms() { Escapes::new(set.forms()) } else { None };
    let forms = Forms { filter: Filter::new(set.forms(), &automaton), automaton, escapes, columns };
    Arc::new(Masker { forms: Some(forms), prefixes: Arc::clone(set.prefixes()) })
}

/// Length of the longest suffix of `text` that can become a form: one of at least `least` bytes if it contains escapes.
fn undecided(forms: &[Vec<u8>], columns: Option<usize>, least: usize, text: &[u8]) -> usize {
    let escapes = forms.iter().any(|form| form.len() >= forms::MIN_LENGTH);
    let begins = |form: &[u8], start: usize| {
        let rest = &text[start..];
        let wrapped = || wrapped(form, columns?, text, start);
        let open = |text: &[u8]| {
            let begins = text.first().is_some_and(|&byte| escape::introduces(byte));
            begins && escape::parse(text) == Err(escape::Stop::Open)
        };
        rest.len() < form.len() && form.starts_with(rest)
            || wrapped().is_some_and(|(end, length)| end == text.len() && length < form.len())
            || escapes && form.len() >= least && writings::may_go_on(form, text, start, open)
    };
    let start = (0..text.len()).find(|&start| forms.iter().any(|form| begins(form, start)));
    start.map_or(0, |start| text.len() - start)
}

/// Length of lines of base64: the real one, or so short that other text is full of breaks.
fn columns() -> impl Strategy<Value = Option<usize>> {
    prop::sample::select(vec![Some(1), Some(2), Some(4), Some(wrap::COLUMNS), None])
}

fn stream<'a>(masker: &Arc<Masker>, writes: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let (mut stream, mut out) = (MaskStream::new(Arc::clone(masker)), Vec::new());
    for write in writes {
        stream.push(write, &mut out);
    }
    stream.finish(&mut out);
    out
}

/// Masks a whole text.
trait MaskText {
    fn mask_text(&self, text: &str) -> String;
}

impl MaskText for Arc<Masker> {
    fn mask_text(&self, text: &str) -> String {
        self.mask(text).into_data()
    }
}

fn cut<'a>(mut text: &'a [u8], lengths: &'a [usize]) -> impl Iterator<Item = &'a [u8]> {
    let mut lengths = lengths.iter().cycle();
    std::iter::from_fn(move || {
        let (piece, rest) = text.split_at((*lengths.next()?).min(text.len()));
        text = rest;
        (!piece.is_empty()).then_some(piece)
    })
}

/// Phrases that overlap in all ways, with each other and with all other search terms.
fn phrases() -> impl Strategy<Value = Vec<String>> {
    let phrase = prop_oneof![
        4 => "[ab]{1,6}",
        2 => "[ab&?=.]{1,5}",
        1 => "[ab]{4,9}/[ab]{4,9}",
        1 => "[ab]{1,5}[\n\r][ab]{2,5}\n[ab]{1,3}",
        2 => prop::sample::select(vec![
            "token=a", "?rss", "_token=", "=", "p-a", "ab-", "&", "a b", "a&b?ab", "\\u0026", "amp;",
            "?private_token=", "a", "p-",
        ]).prop_map(str::to_owned),
    ];
    prop::collection::vec(phrase, 0..5)
}

fn text() -> impl Strategy<Value = String> {
    let fragment = prop_oneof![
        6 => "[ab]{1,4}",
        2 => "[ab&?= .;\\\\/-]{1,4}",
        1 => " {1,70}",
        3 => prop::sample::select(vec![
            "?rss_token=", "&amp;", "\\u0026", "&RSS_token=", "private_token", "?private_token=", "p-", "ab-",
            "pp-", "=", "&amp;rss_token=", "\\U0026x-amz-signature=", "?", "x-amz-security-token=", "\n",
            "\u{e9}",
        ]).prop_map(str::to_owned),
        2 => prop::sample::select(vec![
            "a\n", "b\r\n", "\r", "b\r", "a\nb", "ab\r\na", "bb\nb\na\nb",
        ]).prop_map(str::to_owned),
    ];
    prop::collection::vec(fragment, 0..14).prop_map(|fragments| fragments.concat())
}

const PREFIXES: [&str; 3] = ["p-", "ab-", "-/"];

/// Base64 as programs print it: a text with a secret in it, in lines of `columns`.
fn encoded_lines(text: &[u8], columns: usize, line_end: &str, url_safe: bool) -> String {
    let encoded = if url_safe { URL_SAFE.encode(text) } else { STANDARD.encode(text) };
    let lines = encoded.as_bytes().chunks(columns).map(|line| std::str::from_utf8(line).unwrap());
    lines.flat_map(|line| [line, line_end]).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn fault_32_every_cutting_gives_what_the_definition_gives(
        phrases in phrases(),
        prefixes in 0..=PREFIXES.len(),
        text in text(),
        lengths in prop::collection::vec(1_usize..20, 1..10),
        rows: bool,
        columns in columns(),
    ) {
        let prefixes = &PREFIXES[..prefixes];
        let set = set(&phrases, prefixes, true);
        let masker = compile(&set, rows, columns);
        let text = text.as_bytes();
        let expected = by_definition(set.forms(), columns, true, |_, _| true, prefixes, text);
        let show = |out: &[u8]| out.escape_ascii().to_string();

        prop_assert_eq!(show(&stream(&masker, [text])), show(&expected), "whole");
        prop_assert_eq!(show(&stream(&masker, text.chunks(1))), show(&expected), "single bytes");
        prop_assert_eq!(show(&stream(&masker, cut(text, &lengths))), show(&expected), "random cutting");
        for at in 0..text.len() {
            let (first, second) = text.split_at(at);
            prop_assert_eq!(show(&stream(&masker, [first, second])), show(&expected), "split at {}", at);
        }
    }

    #[test]
    fn fault_37_only_undecided_bytes_are_held(
        phrases in phrases(),
        text in text(),
        lengths in prop::collection::vec(1_usize..20, 1..10),
        rows: bool,
        columns in columns(),
    ) {
        let set = set(&phrases, &PREFIXES, true);
        let (mut stream, mut out) = (MaskStream::new(compile(&set, rows, columns)), Vec::new());
        let mut seen = 0;
        for write in cut(text.as_bytes(), &lengths) {
            stream.push(write, &mut out);
            seen += write.len();
            // Escapes in short forms do not count, but their beginnings may be held.
            let least = |bytes| undecided(set.forms(), columns, bytes, &text.as_bytes()[..seen]);
            prop_assert!((least(forms::MIN_LENGTH)..=least(0)).contains(&stream.held()));
        }
    }

    #[test]
    fn fault_39_a_phrase_that_becomes_known_applies_to_all_undecided_bytes(
        phrases in phrases(),
        added in phrases(),
        text in text(),
        at in 0_usize..60,
        lengths in prop::collection::vec(1_usize..20, 1..10),
        columns in columns(),
    ) {
        let before = set(&phrases, &PREFIXES, true);
        let after = before.with_added(&added).unwrap().0;
        let text = text.as_bytes();
        let (first, second) = text.split_at(at.min(text.len()));

        let (mut stream, mut out) = (MaskStream::new(compile(&before, true, columns)), Vec::new());
        for write in cut(first, &lengths) {
            stream.push(write, &mut out);
        }
        let decided = first.len() - stream.held();
        stream.replace_masker(compile(&after, true, columns), &mut out);
        for write in cut(second, &lengths) {
            stream.push(write, &mut out);
        }
        stream.finish(&mut out);

        let known = |form: &[u8], start: usize| {
            start >= decided || before.forms().iter().any(|other| other == form)
        };
        let expected = by_definition(after.forms(), columns, true, known, &PREFIXES, text);
        prop_assert_eq!(out.escape_ascii().to_string(), expected.escape_ascii().to_string());
    }

    #[test]
    fn fault_82_base64_in_lines_shows_nothing_of_a_secret_in_every_cutting(
        phrase in prop::collection::vec(any::<u8>(), 8..200),
        before in prop::collection::vec(any::<u8>(), 0..80),
        after in prop::collection::vec(any::<u8>(), 0..80),
        columns in prop::sample::select(vec![60_usize, 64, 70, 72, 76]),
        crlf: bool,
        url_safe: bool,
        lengths in prop::collection::vec(1_usize..100, 1..10),
    ) {
        let phrase = [b"x", &phrase[..], b"x"].concat(); // nothing to trim
        let (set, _) = PhraseSet::prepare([&phrase], [""], &MaskConfig::default()).unwrap();
        let masker = Masker::compile(&set);
        let line_end = if crlf { "\r\n" } else { "\n" };
        let text = encoded_lines(&[&before[..], &phrase, &after].concat(), columns, line_end, url_safe);
        let text = text.as_bytes();
        let expected = by_definition(set.forms(), Some(wrap::COLUMNS), true, |_, _| true, &[], text);
        let shown = String::from_utf8_lossy(&expected);

        // At most two characters before and behind the secret hold bits of it.
        let around = shown.split("[MASKED]").map(|part| part.replace(['\r', '\n'], "").len()).sum::<usize>();
        prop_assert!(around <= 4 * (before.len() + 2).div_ceil(3) + 4 * (after.len() + 2).div_ceil(3), "{}", shown);
        prop_assert_eq!(shown.matches("[MASKED]").count(), 1, "{}", shown);
        for (name, out) in [
            ("whole", stream(&masker, [text])),
            ("single bytes", stream(&masker, text.chunks(1))),
            ("random cutting", stream(&masker, cut(text, &lengths))),
        ] {
            prop_assert_eq!(String::from_utf8_lossy(&out), shown.as_ref(), "{}", name);
        }
    }

    #[test]
    fn fault_32_long_phrases_in_much_other_text(
        phrases in prop::collection::vec("[abc]{8,14}", 1..6),
        pieces in prop::collection::vec((0_usize..6, 0_usize..14, 0_usize..90, "[abcd]{0,3}"), 0..12),
        lengths in prop::collection::vec(1_usize..120, 1..10),
        rows: bool,
    ) {
        // Prefixes of phrases, whole phrases, and stretches in which nothing starts.
        let mut text = String::new();
        for (which, length, blank, noise) in &pieces {
            text.extend(phrases[which % phrases.len()].chars().take(*length));
            text.push_str(noise);
            text.push_str(&".".repeat(*blank));
        }
        let set = set(&phrases, &PREFIXES, true);
        let masker = compile(&set, rows, Some(wrap::COLUMNS));
        let expected = by_definition(set.forms(), Some(wrap::COLUMNS), true, |_, _| true, &PREFIXES, text.as_bytes());
        let expected = expected.escape_ascii().to_string();
        let whole = stream(&masker, [text.as_bytes()]).escape_ascii().to_string();
        prop_assert_eq!(&whole, &expected);
        let cut = stream(&masker, cut(text.as_bytes(), &lengths)).escape_ascii().to_string();
        prop_assert_eq!(&cut, &expected);
    }
}

fn strings<const N: usize>(phrases: [&str; N]) -> Vec<String> {
    phrases.map(str::to_owned).to_vec()
}

#[test]
fn a_finished_stream_starts_anew() {
    let masker = Masker::compile(&set(&strings(["wren"]), &["p-"], true));
    let mut stream = MaskStream::new(masker);
    let mut out = Vec::new();
    for _ in 0..2 {
        stream.push(b"p-a ?rss_token=", &mut out);
        stream.finish(&mut out);
        stream.push(b"b wr", &mut out);
        stream.finish(&mut out);
        stream.push(b"en\n", &mut out);
        stream.finish(&mut out);
    }
    let once = "p-[MASKED] ?rss_token=[MASKED]b wren\n";
    assert_eq!(String::from_utf8(out).unwrap(), once.repeat(2));
}

#[test]
fn with_other_prefixes_a_begun_one_is_forgotten_and_a_run_goes_on() {
    let of = |phrase: &str, prefix: &str| Masker::compile(&set(&strings([phrase]), &[prefix], true));
    for (cut, prefix, shown) in
        [(4, "token-", "token-[MASKED]"), (4, "key-", "token-ab"), (7, "key-", "token-[MASKED]")]
    {
        let (mut stream, mut out) = (MaskStream::new(of("wren", "token-")), Vec::new());
        let (before, behind) = "token-ab".split_at(cut);
        stream.push(before.as_bytes(), &mut out);
        stream.replace_masker(of("lark", prefix), &mut out);
        stream.push(behind.as_bytes(), &mut out);
        stream.finish(&mut out);
        assert_eq!(String::from_utf8(out).unwrap(), shown, "{cut} {prefix}");
    }
}

#[test]
fn spans_in_the_middle_survive_a_new_masker() {
    // "aba" is found and held, as it may become "abac"; then "bax" becomes known.
    let before = set(&strings(["aba", "abac"]), &[], true);
    let after = before.with_added(["bax"]).unwrap().0;
    let (mut stream, mut out) = (MaskStream::new(Masker::compile(&before)), Vec::new());
    stream.push(b".aba", &mut out);
    assert_eq!(out, b".");
    stream.replace_masker(Masker::compile(&after), &mut out);
    stream.push(b"x.", &mut out);
    stream.finish(&mut out);
    assert_eq!(out, b".[MASKED].");
}

#[test]
fn jobs_without_phrases_share_one_masker() {
    let nothing: [&str; 0] = [];
    for default_prefixes in [DefaultPrefixes::None, DefaultPrefixes::Glpat, DefaultPrefixes::All] {
        let config = MaskConfig { default_prefixes, ..MaskConfig::default() };
        let (set, _) = PhraseSet::prepare(nothing, ["glpat-"; 1].iter().take(0), &config).unwrap();
        assert!(Arc::ptr_eq(&Masker::compile(&set), &Masker::without_phrases(default_prefixes)));
    }
    // A prefix that is also a default one changes nothing.
    let (set, _) = PhraseSet::prepare(nothing, [" glpat- ", "", " "], &MaskConfig::default()).unwrap();
    assert!(Arc::ptr_eq(&Masker::compile(&set), &Masker::without_phrases(DefaultPrefixes::All)));
}

#[test]
fn a_stream_without_phrases_has_no_heap_memory_and_is_small() {
    let mut stream = MaskStream::new(Masker::without_phrases(DefaultPrefixes::All));
    let mut out = Vec::new();
    stream.push(b"glpat-abc glpa", &mut out);
    assert_eq!((stream.held(), stream.heap_bytes()), (0, 0));
    assert!(size_of::<MaskStream>() <= 160, "{}", size_of::<MaskStream>());
}

#[test]
fn fault_40_chains_values_and_runs_of_any_length_take_constant_memory() {
    let masker = Masker::compile(&set(&strings(["aa", "b"]), &["p-"], true));
    let mut stream = MaskStream::new(masker);
    let mut out = Vec::new();
    for text in ["a".repeat(1 << 16), "p-c".repeat(1 << 14), format!("?rss_token={}", "c".repeat(1 << 16))] {
        for _ in 0..8 {
            stream.push(text.as_bytes(), &mut out);
            assert!(stream.held() <= 1 && stream.heap_bytes() < 1024);
        }
    }
    let lines = format!("{}\n", "a".repeat(76)).repeat(1 << 10);
    for _ in 0..8 {
        stream.push(lines.as_bytes(), &mut out);
        assert!(stream.held() <= 2 && stream.heap_bytes() < 1024);
    }
    let many = "b".repeat(1 << 18);
    stream.push(many.as_bytes(), &mut out);
    assert!(stream.heap_bytes() < 64 * 1024);
}

#[test]
fn a_text_stays_a_string_when_half_a_character_is_masked() {
    let (set, _) = PhraseSet::prepare([b"\xc3".as_slice()], [""], &MaskConfig::default()).unwrap();
    let masker = Masker::compile(&set);
    assert_eq!(masker.mask_text("\u{e9}"), "[MASKED]\u{fffd}");
    assert_eq!(masker.mask_text("e"), "e");
}

#[test]
fn fault_38_debug_output_shows_no_secret() {
    let set = set(&strings(["nightingale"]), &["secret-prefix-"], true);
    let masker = Masker::compile(&set);
    let mut stream = MaskStream::new(Arc::clone(&masker));
    stream.push(b"nightin", &mut Vec::new());
    let shown = format!("{set:?} {masker:?} {stream:?}");
    assert!(!shown.contains("night") && !shown.contains("prefix-"), "{shown}");
    assert!(shown.ends_with(" Masker { .. } MaskStream { held: 7, .. }"), "{shown}");
}

#[test]
fn a_text_of_many_pieces_is_masked_across_them() {
    let masker = Masker::compile(&set(&strings(["nightingale"]), &[], true));
    let text = "nightingale ".repeat(PIECE / 4);
    assert_eq!(masker.mask_text(&text), "[MASKED] ".repeat(PIECE / 4));
}

#[test]
fn behind_a_cr_only_what_an_lf_continues_is_held() {
    // "b CR LF ab" is the beginning of the phrase, but a CR behind it is not; "b CR" may be a beginning again.
    let set = set(&["b\naba\naa".to_owned()], &[], true);
    let (mut stream, mut out) = (MaskStream::new(Masker::compile(&set)), Vec::new());
    stream.push(b"ab\r\nab", &mut out);
    assert_eq!(stream.held(), 5);
    stream.push(b"\r", &mut out);
    assert_eq!(stream.held(), 2);
    stream.push(b"\naba\r\naa", &mut out);
    stream.finish(&mut out);
    assert_eq!(out.escape_ascii().to_string(), r"ab\r\na[MASKED]");
}
