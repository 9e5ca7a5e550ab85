//! Single secrets and texts, each cut at every place.

use super::*;

/// Masks the text as a whole and cut in two at every place. All outputs must be equal.
#[track_caller]
pub(super) fn masked_in_every_cutting(phrases: &[&str], text: &str) -> String {
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
        // The replacement of a secret is not searched again.
        (&["M", "secret"], "secret M", "[MASKED] [MASKED]"),
        (&[" padded "], "a padded word", "a [MASKED] word"),
    ] {
        assert_eq!(masked_in_every_cutting(phrases, text), expected, "{phrases:?} in {text:?}");
    }
}

#[test]
fn fault_82_a_long_secret_is_masked_in_the_lines_of_base64_and_of_pem() {
    let secret = "correct horse battery staple, correct horse battery staple, over and over again";
    let mask = |text: String| masked_in_every_cutting(&[secret], &text);
    for line_end in ["\n", "\r\n"] {
        for columns in [64, 76] {
            // As by `echo $SECRET | base64`, and within a longer text.
            let alone = encoded_lines(format!("{secret}\n").as_bytes(), columns, line_end, false);
            assert_eq!(mask(alone), format!("[MASKED]{line_end}"));
            let longer =
                encoded_lines(format!("user: me\npassword: {secret}\n").as_bytes(), columns, line_end, false);
            let masked = mask(longer);
            assert_eq!(masked.matches("[MASKED]").count(), 1, "{masked}");
            assert!(masked.len() < 40, "{masked}");
        }
    }
}

#[test]
fn fault_82_only_line_ends_in_base64_are_passed_over() {
    let base64 = "QUJD".repeat(15);
    let short = "A".repeat(wrap::COLUMNS - "night".len() - 1);
    let phrases = ["nightingale"];
    for (text, expected) in [
        (format!("{base64}night\ningale"), format!("{base64}[MASKED]")),
        (format!("{base64}night\r\ningale"), format!("{base64}[MASKED]")),
        // Other line ends, other text before them, and lines that are too short.
        (format!("{base64}night\n\ningale"), format!("{base64}night\n\ningale")),
        (format!("{base64}night\ringale"), format!("{base64}night\ringale")),
        (format!("{base64}=night\ningale"), format!("{base64}=night\ningale")),
        (format!("{short}night\ningale"), format!("{short}night\ningale")),
        (format!("Q{short}night\ningale"), format!("Q{short}[MASKED]")),
    ] {
        assert_eq!(masked_in_every_cutting(&phrases, &text), expected, "{text:?}");
    }
}

#[test]
fn fault_82_a_line_end_waits_only_behind_base64_that_may_begin_a_secret() {
    let masker = Masker::compile(&set(&strings(["nightingale"]), &[], true));
    for (line, held) in [
        ("an ordinary line of a log that ends like it: n\n".to_owned(), 0),
        (format!("{}n\n", "QUJD".repeat(15)), 2),
        (format!("{}n\r\n", "QUJD".repeat(15)), 3),
        (format!("{}n\r", "QUJD".repeat(15)), 2),
        (format!("{}.\n", "QUJD".repeat(15)), 0),
        (format!("{}!\n", "QUJD".repeat(15)), 0),
    ] {
        let (mut stream, mut out) = (MaskStream::new(Arc::clone(&masker)), Vec::new());
        stream.push(line.as_bytes(), &mut out);
        assert_eq!(stream.held(), held, "{line:?}");
        stream.push(b"x", &mut out);
        assert_eq!(String::from_utf8_lossy(&out), format!("{line}x"));
    }
}

#[test]
fn without_encoded_forms_line_ends_are_never_passed_over() {
    let masker = Masker::compile(&set(&strings(["nightingale"]), &[], false));
    let text = format!("{}night\ningale", "QUJD".repeat(15));
    assert_eq!(masker.mask_text(&text), text);
}

#[test]
fn fault_80_a_masked_text_is_cut_put_on_one_line_and_escaped_after_it_was_masked() {
    let masker = Masker::compile(&set(
        &strings(["first line\nsecond line\n'third'", "\u{e9}".repeat(70).as_str()]),
        &[],
        true,
    ));
    let quoted = |quotation: &str| masker.mask(&format!("key \"{}\"\r\nis bad", text::quote(quotation)));
    assert_eq!(quoted("first line\nsecond line\n'third'").line_of(99, false), "key \"[MASKED]\"  is bad");
    assert_eq!(quoted(&"\u{e9}".repeat(70)).line_of(99, false), "key \"[MASKED]\"  is bad");
    assert_eq!(
        quoted(&format!("{}\t", "a".repeat(90))).for_people(),
        format!("key \"{}…\"\r\nis bad", "a".repeat(64))
    );
    let message = masker.mask(&format!("step {:?}: exec: exit status 3", "ä".repeat(99)));
    let short = message.line_of(100, true);
    assert!(
        short.len() <= 100 && short.starts_with("step \"ä") && short.ends_with("exit status 3"),
        "{short}"
    );
    assert_eq!(masker.mask("exit status 1").line_of(100, false), "exit-status 1");
    let named = masker.mask("step \"m[exit status 9]\": exec: exit status 3");
    assert_eq!(named.line_of(100, true), "step \"m[exit-status 9]\": exec: exit status 3");
}
