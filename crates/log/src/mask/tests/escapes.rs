//! Escapes of all kinds, freely mixed.

use super::{writers::Writer, *};

/// A secret, and the ways to write each of its characters.
fn secret() -> impl Strategy<Value = String> {
    let character = prop_oneof![
        4 => "[a-c]",
        2 => "[!-~]",
        1 => prop::sample::select(vec!["\u{e4}", "\u{20ac}", "\u{1f511}", "\u{7f}", "\u{1}", "\t", "\n", " "])
            .prop_map(str::to_owned),
    ];
    prop::collection::vec(character, 8..30)
        .prop_map(|characters| characters.concat())
        .prop_filter("nothing to trim", |text| text.trim() == text && text.len() >= 8)
}

fn writer() -> impl Strategy<Value = Writer> {
    prop::sample::select(Writer::EACH.to_vec())
}

/// Writes a secret, each character in the way that the next of `choices` selects.
fn written(secret: &str, writer: Writer, choices: &[u16]) -> String {
    let mut choices = choices.iter().cycle();
    writer.written(secret, |count| usize::from(*choices.next().unwrap()) % count)
}

#[test]
fn fault_35_programs_write_a_secret_in_these_ways() {
    for (secret, written) in [
        // Percent: Go, Python, JavaScript, forms, user names in URLs.
        ("a/b c'(\u{e9})~+&", "a%2Fb%20c%27%28%C3%A9%29~%2B%26"),
        ("a/b c'(\u{e9})~+&", "a%2fb%20c'(%c3%a9)~%2b%26"),
        ("a/b c'(\u{e9})~+&", "a/b+c'(%C3%A9)~+&"),
        ("wJalrXU/K7MDENG+bP=", "wJalrXU%2FK7MDENG+bP="),
        // JSON: of RFC 8259, of PHP (`\/`), of Go (`<`), of Python (ASCII), of .NET (capital letters).
        ("q \"\\/<\u{e9}\u{1f600}\u{1}", "q \\\"\\\\/<\u{e9}\u{1f600}\\u0001"),
        ("q \"\\/<\u{e9}\u{1f600}\u{1}\n.", "q \\\"\\\\\\/\\u003c\\u00e9\\ud83d\\ude00\\u0001\\n."),
        ("Ab+cd/Ef==9xyZ", r"Ab\u002Bcd/Ef==9xyZ"),
        // Shells: single and double quotes, `printf %q`, `set -x` with and without a locale, `ls` and `stat`.
        ("it's $(x) `y` \"z\" \\", r#"it'\''s $(x) `y` "z" \"#),
        ("it's $(x) `y` \"z\" \\", r#"it'"'"'s $(x) `y` "z" \"#),
        ("it's $(x) `y` \"z\" \\", r#"it''s $(x) `y` "z" \"#),
        ("it's $(x) `y` \"z\" \\", r#"it's \$(x) \`y\` \"z\" \\"#),
        ("it's $(x) `y` \"z\" \\", r#"it\'s\ \$\(x\)\ \`y\`\ \"z\"\ \\"#),
        ("~#a b:~c=~d#{e}|f!g^h`i", r"\~#a\ b:\~c=\~d#\{e\}\|f\!g\^h\`i"),
        ("a'\\\u{1}\u{1b}\u{7}\t\u{b}\u{7f}", r"a\'\\\001\E\a\t\v\177"),
        ("a'\\\u{1}\u{1b}\u{7}\t\u{b}\u{7f}", r"a\'\\\x01\x1b\x07\x09\x0b\x7f"),
        ("p\u{e4}ssw\u{f6}rt-123", r"p\303\244ssw\303\266rt-123"),
        ("p\u{e4}ssw\u{f6}rt-123", r"p'$'\303\244''ssw'$'\303\266''rt-123"),
        // Python: `repr` of bytes, `ascii` of texts.
        ("p\u{e4}ss\u{1f511}wort", r"p\xc3\xa4ss\xf0\x9f\x94\x91wort"),
        ("p\u{e4}ss\u{1f511}wort", r"p\xe4ss\U0001f511wort"),
        ("p\u{e4}ss\u{1f511}wort", r"p\u{e4}ss\u{1f511}wort"),
        ("it''s $(x) '''` y", r#"it'"''"'s $(x) '"'''"'` y"#),
        // Ruby: words for a shell.
        ("p\u{e4}ss w\tort\n123", "p\\\u{e4}ss\\ w\\\tort'\n'123"),
        ("ab12cd\r\nef34gh\r\nij56kl", "ab12cd\\\r'\n'ef34gh\\\r'\n'ij56kl"),
        // JavaScript: the outdated `escape`.
        ("p\u{e4}ss\u{20ac}wo/rt\u{1f511}", "p%E4ss%u20ACwo/rt%uD83D%uDD11"),
        // Octal digits of Latin-1 characters.
        ("p\u{e4}ss\u{fc}wort", r"p\344ss\374wort"),
        // Marks that count twice: CSV, Compose files, unit files.
        ("a\"b$c%41d'e\"\"f", "a\"\"b$$c%%41d''e\"\"\"\"f"),
        ("a<b>&\"c\"='d'", "a&lt;b&gt;&amp;&quot;c&quot;=&#x27;d&#39;"),
        // Base64 of a secret, in a URL and in JSON.
        ("k?~>>>secret", "az9%2BPj4%2Bc2VjcmV0"),
        ("k?~??~secret", r"az9+Pz9\u002Bc2VjcmV0"),
        ("k?~????secret", r"az9+Pz8\/P3NlY3JldA=="),
        // Line ends of terminals.
        ("ab12cd\r\nef34gh\r\nij56kl", "ab12cd\r\r\nef34gh\r\r\nij56kl"),
        ("ab12cd\nef34gh\nij56kl", "ab12cd\r\r\r\r\nef34gh\r\nij56kl"),
        ("ab12cd\nef34gh\nij56kl", r"ab12cd\r\nef34gh%0D%0aij56kl"),
        ("ab12cd\nef34gh\nij56kl", "ab12cd ef34gh ij56kl"),
        ("ab12cd\nef34gh\nij56kl", r"ab12cd\ ef34gh\ ij56kl"),
        ("'\n  \n%a+", r"\'\r\n\u0020\u0020\r\n%a\053"),
        ("'bcdef%a+", r"\'bcdef%a\053"),
        ("'\nbcdef%a+", r"\'\nbcdef%a\053"),
        ("'\nbcdef%a+", r"\'\r\nbcdef%a\053"),
    ] {
        let masked = examples::masked_in_every_cutting(&[secret], &format!("{{{written}}}"));
        assert_eq!(masked, "{[MASKED]}", "{secret:?} as {written}");
    }
}

#[test]
fn fault_35_a_short_secret_counts_without_escapes_only() {
    for (secret, text) in [("seven/7", "seven%2F7"), ("se ven7", "se+ven7"), ("a\nb", "a\r\nb")] {
        assert_eq!(examples::masked_in_every_cutting(&[secret], text), text);
        assert_eq!(examples::masked_in_every_cutting(&[secret, "eight/88"], text), text);
    }
}

#[test]
fn fault_37_an_escape_waits_only_for_its_end_and_for_a_form_that_it_continues() {
    let masker = Masker::compile(&set(&strings(["night/in+gale"]), &[], true));
    for (text, held) in [
        ("100%", 1),
        ("100% ", 0),
        ("night%2F", 8),
        ("night%2f", 8),
        ("night%2", 7),
        ("night%3f", 0),
        ("day%2f", 0),
        ("\r", 0),
        ("x+", 0),
        (r"x\t", 0),
        (r"x\u006", 5),
        (r"x\u006e", 6),
        (r"x\u006f", 0),
        ("nigh'", 5),
        ("nigh'$'", 7),
    ] {
        let (mut stream, mut out) = (MaskStream::new(Arc::clone(&masker)), Vec::new());
        stream.push(text.as_bytes(), &mut out);
        assert_eq!(stream.held(), held, "{text}");
    }
}

#[test]
fn fault_40_escapes_without_end_take_bounded_memory() {
    let marks = ["%", r"\", "\"", "$"].map(|mark| mark.repeat(64));
    let others = ["a b+".repeat(16), "''".repeat(32), "a\nb\n".repeat(16) + "c"];
    let secrets: Vec<String> = marks.into_iter().chain(others).collect();
    let masker = Masker::compile(&set(&secrets, &[], true));
    for piece in
        ["%25", r"\", "+", "'", "'$'", "a\r", "\r", "&#x25;", r"\u0025\x5c", "\"", "$", "'\"'\"", "'\n'"]
    {
        let (mut stream, mut out) = (MaskStream::new(Arc::clone(&masker)), Vec::new());
        let text = format!("a{}", piece.repeat(512));
        for _ in 0..4 {
            stream.push(text.as_bytes(), &mut out);
            assert!(stream.held() < 64 * 1024, "{piece}: {}", stream.held());
            assert!(stream.heap_bytes() < 4 << 20, "{piece}: {}", stream.heap_bytes());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn fault_35_no_mix_of_escapes_shows_a_byte_of_a_secret(
        secrets in prop::collection::vec(secret(), 1..4),
        writer in writer(),
        choices in prop::collection::vec(any::<u16>(), 1..40),
        before in "[a-c%\\\\&'+\"$\r \n;#xu0-9]{0,12}",
        after in "[a-c%\\\\&'+\"$\r \n;#xu0-9]{0,12}",
        lengths in prop::collection::vec(1_usize..20, 1..10),
    ) {
        let masker = Masker::compile(&set(&secrets, &[], true));
        let written = written(&secrets[0], writer, &choices);
        let text = format!("{before}{written}{after}");
        let out = stream(&masker, [text.as_bytes()]);
        let shown = String::from_utf8_lossy(&out).into_owned();
        // What is left of the text is at most what was around the secret.
        let head = shown.split_once("[MASKED]").map(|(head, _)| head);
        prop_assert!(head.is_some_and(|head| before.starts_with(head)), "{} {}", text, shown);
        let rest = shown.rsplit_once("[MASKED]").map(|(_, rest)| rest);
        prop_assert!(rest.is_some_and(|rest| after.ends_with(rest)), "{} {}", text, shown);
        if secrets.len() == 1 {
            prop_assert!(shown.matches("[MASKED]").count() == 1, "{} {}", text, shown);
        }
        prop_assert_eq!(&stream(&masker, text.as_bytes().chunks(1)), &out, "single bytes");
        prop_assert_eq!(&stream(&masker, cut(text.as_bytes(), &lengths)), &out, "random cutting");
    }

    #[test]
    fn fault_35_every_cutting_of_escapes_gives_what_the_definition_gives(
        secrets in prop::collection::vec("[ab%25\\\\'+& n\n\"$]{6,12}", 1..4),
        pieces in prop::collection::vec((0_usize..4, 0_usize..12, 0_usize..12, any::<u16>(), writer()), 1..5),
        noise in "[ab%25\\\\'+& n\n\r\"$u]{0,12}",
        lengths in prop::collection::vec(1_usize..20, 1..10),
    ) {
        let set = set(&secrets, &PREFIXES, true);
        let masker = Masker::compile(&set);
        let mut text = String::new();
        for (which, start, length, choice, writer) in pieces {
            let secret = &secrets[which % secrets.len()];
            let part: String = secret.chars().skip(start / 4 * start % 12).take(length + 4).collect();
            text.push_str(&written(&part, writer, &[choice, choice / 7, choice / 49]));
            text.extend(noise.chars().take(usize::from(choice) % (noise.len() + 1)));
        }
        let text = text.as_bytes();
        let expected = by_definition(set.forms(), Some(wrap::COLUMNS), true, |_, _| true, &PREFIXES, text);
        let show = |out: &[u8]| out.escape_ascii().to_string();
        prop_assert_eq!(show(&stream(&masker, [text])), show(&expected), "whole");
        prop_assert_eq!(show(&stream(&masker, text.chunks(1))), show(&expected), "single bytes");
        prop_assert_eq!(show(&stream(&masker, cut(text, &lengths))), show(&expected), "random cutting");
    }

    #[test]
    fn fault_35_text_without_a_secret_is_left_as_it_is(
        secrets in prop::collection::vec("[a-c%\\\\&'+\"$ ]{9}X", 1..4),
        text in "[a-c%\\\\&'+\"$ \r\n;#xu0-9]{0,80}",
    ) {
        let masker = Masker::compile(&set(&secrets, &[], true));
        let text = text.replace("58", "59").replace("88", "89").replace("130", "131"); // no writing of X, nor of base64 with it
        prop_assert_eq!(masker.mask_text(&text), text);
    }
}

#[test]
fn fault_35_marks_that_are_read_in_two_ways_count_from_the_earliest_one() {
    // Of an odd number of backslashes, each pair may stand for one, and so may each alone.
    let secret = r"\\aa$$\\".to_owned();
    let set = set(&[secret], &[], true);
    for count in 2..12 {
        for before in ["", "\r", "x", "%5C", "a\\u005c"] {
            let text = format!("{before}{}aa$$\\\\a", "\\".repeat(count));
            let expected =
                by_definition(set.forms(), Some(wrap::COLUMNS), true, |_, _| true, &[], text.as_bytes());
            let masked = stream(&Masker::compile(&set), [text.as_bytes()]);
            assert_eq!(masked.escape_ascii().to_string(), expected.escape_ascii().to_string(), "{text}");
        }
    }
}
