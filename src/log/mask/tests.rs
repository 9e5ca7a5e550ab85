//! The stream against a second calculation: masking.md §2 to §5 on the whole text, as literally as possible.

use proptest::prelude::*;

use super::*;

/// Spans of one text, and from them its output. Knows nothing of streams, automata and detectors.
fn by_definition(
    forms: &[Vec<u8>],
    counts: impl Fn(&[u8], usize) -> bool,
    prefixes: &[&str],
    text: &[u8],
) -> Vec<u8> {
    // Phrase spans.
    let mut spans: Vec<(usize, usize)> = Vec::new();
    for form in forms {
        for start in 0..text.len() {
            if text[start..].starts_with(form) && counts(form, start) {
                spans.push((start, start + form.len()));
            }
        }
    }
    let covered: Vec<bool> =
        (0..text.len()).map(|at| spans.iter().any(|&(start, end)| (start..end).contains(&at))).collect();

    // Runs.
    for prefix in prefixes {
        for start in (0..text.len()).filter(|&at| text[at..].starts_with(prefix.as_bytes())) {
            let from = start + prefix.len();
            let run = (from..text.len())
                .take_while(|&at| {
                    covered[at] || text[at].is_ascii_alphanumeric() || b"-._=".contains(&text[at])
                })
                .count();
            if run > 0 {
                spans.push((from, from + run));
            }
        }
    }

    // Values.
    let mut at = 0;
    while at < text.len() {
        let Some(length) = parameter_length(&text[at..]) else {
            at += 1;
            continue;
        };
        let from = at + length;
        let ends = |&at: &usize| !covered[at] && (text[at] <= 0x20 || b"\x7f?&".contains(&text[at]));
        at = (from..text.len()).find(ends).unwrap_or(text.len());
        spans.push((from, at));
    }

    // Joining.
    let mut out = Vec::new();
    for at in 0..=text.len() {
        if spans.contains(&(at, at)) {
            out.extend_from_slice(MASK);
        }
        if at == text.len() {
            break;
        }
        let hidden = spans.iter().any(|&(start, end)| start <= at && at < end);
        let joined = spans.iter().any(|&(start, end)| start < at && at < end);
        if !hidden {
            out.push(text[at]);
        } else if !joined {
            out.extend_from_slice(MASK);
        }
    }
    out
}

/// Length of the parameter, up to and with its `=`, that `text` starts with.
fn parameter_length(text: &[u8]) -> Option<usize> {
    for separator in ["?", "&", "&amp;", "\\u0026"] {
        for key in [
            "private_token",
            "authenticity_token",
            "rss_token",
            "x-amz-signature",
            "x-amz-credential",
            "x-amz-security-token",
        ] {
            let parameter = format!("{separator}{key}=");
            if text
                .get(..parameter.len())
                .is_some_and(|start| start.eq_ignore_ascii_case(parameter.as_bytes()))
            {
                return Some(parameter.len());
            }
        }
    }
    None
}

fn set(phrases: &[String], prefixes: &[&str], forms: bool) -> PhraseSet {
    let config = MaskConfig { forms, default_prefixes: DefaultPrefixes::None, ..MaskConfig::default() };
    PhraseSet::prepare(phrases, prefixes, &config).unwrap().0
}

/// With as few rows as possible, or as many as usual.
fn compile(set: &PhraseSet, rows: bool) -> Arc<Masker> {
    if rows || set.forms().is_empty() {
        return Masker::compile(set);
    }
    let forms =
        Forms { automaton: Automaton::with_row_budget(set.forms(), 0), filter: Filter::new(set.forms()) };
    Arc::new(Masker { forms: Some(forms), prefixes: Arc::clone(set.prefixes()) })
}

/// The longest suffix of `text` that is a proper prefix of a form.
fn undecided(forms: &[Vec<u8>], text: &[u8]) -> usize {
    (0..=text.len())
        .filter(|&n| forms.iter().any(|form| n < form.len() && form.starts_with(&text[text.len() - n..])))
        .max()
        .unwrap_or(0)
}

fn stream<'a>(masker: &Arc<Masker>, writes: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let (mut stream, mut out) = (MaskStream::new(Arc::clone(masker)), Vec::new());
    for write in writes {
        stream.push(write, &mut out);
    }
    stream.finish(&mut out);
    out
}

fn cut<'a>(mut text: &'a [u8], lengths: &'a [usize]) -> impl Iterator<Item = &'a [u8]> {
    let mut lengths = lengths.iter().cycle();
    std::iter::from_fn(move || {
        let (piece, rest) = text.split_at((*lengths.next()?).min(text.len()));
        text = rest;
        (!piece.is_empty()).then_some(piece)
    })
}

/// Phrases that overlap in all ways, with each other and with everything else that is searched for.
fn phrases() -> impl Strategy<Value = Vec<String>> {
    let phrase = prop_oneof![
        4 => "[ab]{1,6}",
        2 => "[ab&?=.]{1,5}",
        1 => "[ab]{4,9}/[ab]{4,9}",
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
    ];
    prop::collection::vec(fragment, 0..14).prop_map(|fragments| fragments.concat())
}

const PREFIXES: [&str; 3] = ["p-", "ab-", "-/"];

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn every_cutting_gives_what_the_definition_gives(
        phrases in phrases(),
        prefixes in 0..=PREFIXES.len(),
        text in text(),
        lengths in prop::collection::vec(1_usize..20, 1..10),
        rows: bool,
    ) {
        let prefixes = &PREFIXES[..prefixes];
        let set = set(&phrases, prefixes, true);
        let masker = compile(&set, rows);
        let text = text.as_bytes();
        let expected = by_definition(set.forms(), |_, _| true, prefixes, text);
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
    fn only_undecided_bytes_are_held(
        phrases in phrases(),
        text in text(),
        lengths in prop::collection::vec(1_usize..20, 1..10),
        rows: bool,
    ) {
        let set = set(&phrases, &PREFIXES, true);
        let (mut stream, mut out) = (MaskStream::new(compile(&set, rows)), Vec::new());
        let mut seen = 0;
        for write in cut(text.as_bytes(), &lengths) {
            stream.push(write, &mut out);
            seen += write.len();
            prop_assert_eq!(stream.held(), undecided(set.forms(), &text.as_bytes()[..seen]));
        }
    }

    #[test]
    fn a_phrase_that_becomes_known_applies_to_all_undecided_bytes(
        phrases in phrases(),
        added in phrases(),
        text in text(),
        at in 0_usize..60,
        lengths in prop::collection::vec(1_usize..20, 1..10),
    ) {
        let before = set(&phrases, &PREFIXES, true);
        let after = before.with_added(&added).unwrap().0;
        let text = text.as_bytes();
        let (first, second) = text.split_at(at.min(text.len()));

        let (mut stream, mut out) = (MaskStream::new(Masker::compile(&before)), Vec::new());
        for write in cut(first, &lengths) {
            stream.push(write, &mut out);
        }
        let decided = first.len() - stream.held();
        stream.replace_masker(Masker::compile(&after), &mut out);
        for write in cut(second, &lengths) {
            stream.push(write, &mut out);
        }
        stream.finish(&mut out);

        let known = |form: &[u8], start: usize| {
            start >= decided || before.forms().iter().any(|other| other == form)
        };
        let expected = by_definition(after.forms(), known, &PREFIXES, text);
        prop_assert_eq!(out.escape_ascii().to_string(), expected.escape_ascii().to_string());
    }

    #[test]
    fn long_phrases_in_much_other_text(
        phrases in prop::collection::vec("[abc]{8,14}", 1..6),
        pieces in prop::collection::vec((0_usize..6, 0_usize..14, 0_usize..90, "[abcd]{0,3}"), 0..12),
        lengths in prop::collection::vec(1_usize..120, 1..10),
        rows: bool,
    ) {
        // Beginnings of phrases, whole ones, and stretches in which nothing starts.
        let mut text = String::new();
        for (which, length, blank, noise) in &pieces {
            text.extend(phrases[which % phrases.len()].chars().take(*length));
            text.push_str(noise);
            text.push_str(&".".repeat(*blank));
        }
        let set = set(&phrases, &PREFIXES, true);
        let masker = compile(&set, rows);
        let expected = by_definition(set.forms(), |_, _| true, &PREFIXES, text.as_bytes());
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
fn spans_in_the_middle_survive_a_new_masker() {
    // "aba" is found and held, as it may become "abac", when "bax" becomes known.
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
    // A prefix that is a default one changes nothing.
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
fn chains_values_and_runs_of_any_length_take_constant_memory() {
    let masker = Masker::compile(&set(&strings(["aa", "b"]), &["p-"], true));
    let mut stream = MaskStream::new(masker);
    let mut out = Vec::new();
    for text in ["a".repeat(1 << 16), "p-c".repeat(1 << 14), format!("?rss_token={}", "c".repeat(1 << 16))] {
        for _ in 0..8 {
            stream.push(text.as_bytes(), &mut out);
            assert!(stream.held() <= 1 && stream.heap_bytes() < 1024);
        }
    }
    let many = "b".repeat(1 << 18);
    stream.push(many.as_bytes(), &mut out);
    assert!(stream.heap_bytes() < 64 * 1024);
}

#[test]
fn a_text_stays_a_string_when_half_a_character_is_masked() {
    let (set, _) = PhraseSet::prepare([b"\xc3".as_slice()], [""], &MaskConfig::default()).unwrap();
    let masker = Masker::compile(&set);
    assert_eq!(masker.mask_str("\u{e9}"), "[MASKED]\u{fffd}");
    assert_eq!(masker.mask_str("e"), "e");
}

#[test]
fn debug_output_shows_no_secret() {
    let set = set(&strings(["nightingale"]), &["secret-prefix-"], true);
    let masker = Masker::compile(&set);
    let mut stream = MaskStream::new(Arc::clone(&masker));
    stream.push(b"nightin", &mut Vec::new());
    let shown = format!("{set:?} {masker:?} {stream:?}");
    assert!(!shown.contains("night") && !shown.contains("prefix-"), "{shown}");
}

#[test]
fn a_text_of_many_pieces_is_masked_across_them() {
    let masker = Masker::compile(&set(&strings(["nightingale"]), &[], true));
    let text = "nightingale ".repeat(PIECE / 4);
    assert_eq!(masker.mask_str(&text), "[MASKED] ".repeat(PIECE / 4));
}
