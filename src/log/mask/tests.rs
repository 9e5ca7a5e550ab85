//! The stream against a second calculation (`definition.rs`), and its limits.

mod definition;

use proptest::prelude::*;

use self::definition::by_definition;
use super::*;

fn set(phrases: &[String], prefixes: &[&str], forms: bool) -> PhraseSet {
    let config = MaskConfig { forms, default_prefixes: DefaultPrefixes::None, ..MaskConfig::default() };
    PhraseSet::prepare(phrases, prefixes, &config).unwrap().0
}

/// With as few rows as possible, or as many as usual.
fn compile(set: &PhraseSet, rows: bool) -> Arc<Masker> {
    if rows || set.forms().is_empty() {
        return Masker::compile(set);
    }
    let automaton = Automaton::with_row_budget(set.forms(), 0);
    let forms = Forms { filter: Filter::new(set.forms(), &automaton), automaton };
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
    fn fault_32_every_cutting_gives_what_the_definition_gives(
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
    fn fault_37_only_undecided_bytes_are_held(
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
    fn fault_39_a_phrase_that_becomes_known_applies_to_all_undecided_bytes(
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
    fn fault_32_long_phrases_in_much_other_text(
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
    assert_eq!(masker.mask_str(&text), "[MASKED] ".repeat(PIECE / 4));
}

/// The text whole, and cut in two at every place: all the same.
#[track_caller]
fn masked_in_every_cutting(phrases: &[&str], text: &str) -> String {
    let phrases: Vec<String> = phrases.iter().map(|&phrase| phrase.to_owned()).collect();
    let masker = Masker::compile(&set(&phrases, &[], true));
    let whole = stream(&masker, [text.as_bytes()]);
    assert_eq!(stream(&masker, text.as_bytes().chunks(1)), whole, "single bytes");
    for at in 0..text.len() {
        let (first, second) = text.as_bytes().split_at(at);
        assert_eq!(stream(&masker, [first, second]), whole, "cut at {at}");
    }
    String::from_utf8(whole).unwrap()
}

#[test]
fn fault_33_overlapping_nested_and_self_overlapping_secrets_leave_nothing_of_either() {
    for (phrases, text, expected) in [
        (&["abc", "cde"][..], "xabcdex", "x[MASKED]x"),
        (&["abc", "cde"], "abcxcde", "[MASKED]x[MASKED]"),
        (&["abc", "def"], "abcdef", "[MASKED][MASKED]"),
        (&["aa"], "xaaax", "x[MASKED]x"),
        (&["aa"], "aaaa", "[MASKED]"),
        (&["abab"], "abababx", "[MASKED]x"),
        (&["prefix_mask", "mask"], "prefix_mask mask prefix_", "[MASKED] [MASKED] prefix_"),
        (&["mask", "mask_suffix"], "mask_suffix mask_suff", "[MASKED] [MASKED]_suff"),
        (&["b", "abc"], "abcabb", "[MASKED]a[MASKED][MASKED]"),
        (&["abcd", "cdef", "abcdef"], "abcdef", "[MASKED]"),
        (&["aab"], "aaab", "a[MASKED]"),
    ] {
        assert_eq!(masked_in_every_cutting(phrases, text), expected, "{phrases:?} in {text:?}");
    }
}

#[test]
fn fault_34_a_secret_of_several_lines_is_masked_whole_and_line_by_line_with_any_line_end() {
    let lines = ["-----BEGIN KEY-----", "MIIBVgIBADANBgkq", "hkiG9w0BAQEFAAS=", "short", "-----END KEY-----"];
    for end in ["\n", "\r\n"] {
        let secret = lines.join(end) + end;
        for other in ["\n", "\r\n"] {
            let whole = masked_in_every_cutting(&[&secret], &format!("x{}{other}y", lines.join(other)));
            assert_eq!(whole, format!("x[MASKED]{other}y"), "{secret:?} with {other:?}");
            // Two blanks before each line, as an indenting tool prints it.
            let indented = "  ".to_owned() + &lines.join(&format!("{other}  ")) + other;
            let mask = format!("  [MASKED]{other}");
            let expected = [mask.repeat(3), format!("  short{other}"), mask].concat();
            assert_eq!(masked_in_every_cutting(&[&secret], &indented), expected);
        }
    }
}

#[test]
fn fault_36_short_blank_and_common_secrets_are_masked_or_left_out_and_never_in_the_way() {
    for (phrases, text, expected) in [
        (&["", " ", "\n", "\t"][..], " a b\n", " a b\n"),
        (&["a"], "banana", "b[MASKED]n[MASKED]n[MASKED]"),
        (&["0"], "100", "1[MASKED][MASKED]"),
        (&["[MASKED]"], "x [MASKED] y", "x [MASKED] y"),
        (&["[MASKED]", "secret"], "secret [MASKED]", "[MASKED] [MASKED]"),
        // What stands in the place of a secret is not searched again.
        (&["M", "secret"], "secret M", "[MASKED] [MASKED]"),
        (&[" padded "], "a padded word", "a [MASKED] word"),
    ] {
        assert_eq!(masked_in_every_cutting(phrases, text), expected, "{phrases:?} in {text:?}");
    }
}
