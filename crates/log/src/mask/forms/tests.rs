use super::*;

fn texts(forms: Vec<Vec<u8>>) -> Vec<String> {
    forms.into_iter().map(|form| String::from_utf8(form).unwrap()).collect()
}

fn of(group: impl Fn(&mut Vec<Vec<u8>>)) -> Vec<String> {
    let mut forms = Vec::new();
    group(&mut forms);
    texts(forms)
}

#[test]
fn white_space_is_trimmed_from_bytes_of_any_kind() {
    for (untrimmed, trimmed) in [
        (&b" \t\r\n\x0b\x0c a b \n"[..], &b"a b"[..]),
        ("\u{2003}\u{85}\u{a0}\u{3000}x\u{1680}\u{202f}".as_bytes(), b"x"),
        (b" \xff \xc3 ", b"\xff \xc3"),
        (b" \xa0\xa0 ", b"\xa0\xa0"),
        (b" \xe2\x80\x83\xff\xe2\x80\x83 ", b"\xff"),
        ("\u{200b}x\u{feff}".as_bytes(), "\u{200b}x\u{feff}".as_bytes()),
        (b" \n", b""),
        (b"", b""),
    ] {
        assert_eq!(trim(untrimmed), trimmed, "{}", untrimmed.escape_ascii());
    }
}

#[test]
fn fault_34_lines_have_both_line_ends_and_long_lines_stand_alone() {
    assert_eq!(
        texts(lines(b"first line\r\n  second line \nshort\rthird line")),
        [
            "first line\n  second line \nshort\rthird line",
            "first line\r\n  second line \r\nshort\rthird line",
            "first line",
            "second line",
            "third line",
        ]
    );
    assert_eq!(lines(b"a\nb\nc\nd"), Vec::<Vec<u8>>::new(), "seven bytes");
    assert_eq!(texts(lines(b"a\nb\nc\nde")), ["a\nb\nc\nde", "a\r\nb\r\nc\r\nde"], "eight bytes");
    assert_eq!(lines(b"no line end"), Vec::<Vec<u8>>::new());
}

#[test]
fn short_phrases_have_no_encodings() {
    assert_eq!(encodings(b"seven/7"), Vec::<Vec<u8>>::new());
    assert!(!encodings(b"eight/88").is_empty());
}

#[test]
fn fault_35_base64_has_both_alphabets_paddings_and_three_cores() {
    let forms = of(|forms| base64(b"k?~\xff\xfe>>secret", forms));
    let expected = [
        "az9+//4+PnNlY3JldA==",
        "az9+//4+PnNlY3JldA",
        "az9-__4-PnNlY3JldA==",
        "az9-__4-PnNlY3JldA",
        "az9+//4+PnNlY3JldAo=",
        "az9+//4+PnNlY3JldAo",
        "az9-__4-PnNlY3JldAo=",
        "az9-__4-PnNlY3JldAo",
        "az9+//4+PnNlY3Jld",
        "az9-__4-PnNlY3Jld",
        "s/fv/+Pj5zZWNyZX",
        "s_fv_-Pj5zZWNyZX",
        "rP37//j4+c2VjcmV0",
        "rP37__j4-c2VjcmV0",
    ];
    assert_eq!(forms, expected);
}

#[test]
fn fault_35_a_core_is_in_the_encoding_of_any_text_with_the_phrase() {
    let phrase = b"hunter2+pass'word\xf0";
    let cores: Vec<String> = of(|forms| base64(phrase, forms)).split_off(8);
    for before in 0..7 {
        for after in 0..4 {
            let text = [&b"\xfexyz\x01\x92\xa5"[..before], phrase, &b"\xffzy"[..after.min(3)]].concat();
            let (standard, url) = (STANDARD.encode(&text), URL_SAFE.encode(&text));
            assert!(cores.iter().any(|core| standard.contains(core)), "{before} {after}");
            assert!(cores.iter().any(|core| url.contains(core)), "{before} {after}");
        }
    }
}

#[test]
fn fault_35_percent_has_five_keep_sets_and_both_cases() {
    assert_eq!(
        of(|forms| percent("a/b c'(\u{e9})~+&".as_bytes(), forms)),
        [
            "a%2Fb%20c%27%28%C3%A9%29~%2B%26",
            "a%2Fb%20c'(%C3%A9)~%2B%26",
            "a/b%20c%27%28%C3%A9%29~%2B%26",
            "a/b%20c'(%C3%A9)~+&",
            "a%2Fb+c%27%28%C3%A9%29~%2B%26",
            "a%2fb%20c%27%28%c3%a9%29~%2b%26",
            "a%2fb%20c'(%c3%a9)~%2b%26",
            "a/b%20c%27%28%c3%a9%29~%2b%26",
            "a/b%20c'(%c3%a9)~+&",
            "a%2fb+c%27%28%c3%a9%29~%2b%26",
        ]
    );
}

#[test]
fn fault_35_json_has_five_styles() {
    assert_eq!(
        of(|forms| json("q \"\\/<\u{e9}\u{2028}\u{1f600}\u{1}\u{7f}\n\u{8}\u{c}\r\t", forms)),
        [
            "q \\\"\\\\/<\u{e9}\u{2028}\u{1f600}\\u0001\u{7f}\\n\\b\\f\\r\\t",
            "q \\\"\\\\\\/<\u{e9}\u{2028}\u{1f600}\\u0001\u{7f}\\n\\b\\f\\r\\t",
            "q \\\"\\\\/\\u003c\u{e9}\\u2028\u{1f600}\\u0001\u{7f}\\n\\b\\f\\r\\t",
            "q \\\"\\\\/<\\u00e9\\u2028\\ud83d\\ude00\\u0001\u{7f}\\n\\b\\f\\r\\t",
            "q \\\"\\\\\\/<\\u00e9\\u2028\\ud83d\\ude00\\u0001\u{7f}\\n\\b\\f\\r\\t",
        ]
    );
}

#[test]
fn fault_35_shell_quotes_are_those_of_shells() {
    let forms = of(|forms| shell(b"it's $(x) `y` \"z\" \\", forms));
    assert_eq!(
        forms[..5],
        [
            r#"it'\''s $(x) `y` "z" \"#,
            r#"it'"'"'s $(x) `y` "z" \"#,
            r#"it''s $(x) `y` "z" \"#,
            r#"it's \$(x) \`y\` \"z\" \\"#,
            r#"it\'s\ \$\(x\)\ \`y\`\ \"z\"\ \\"#,
        ]
    );
}

#[test]
fn fault_35_backslashes_are_where_bash_puts_them() {
    for (plain, quoted) in [
        ("~#a b:~c=~d#{e}|f!g^h`i", r"\~#a\ b:\~c=\~d#\{e\}\|f\!g\^h\`i"),
        ("#lead x~y", r"\#lead\ x~y"),
        ("a%+-./0:=@_z", "a%+-./0:=@_z"),
    ] {
        assert_eq!(String::from_utf8(backslash_style(plain.as_bytes())).unwrap(), quoted);
    }
    // Bash writes this text in another style.
    assert!(!encodings(b"a b\x7fcdefg").contains(&b"a\\ b\x7fcdefg".to_vec()));
}

#[test]
fn fault_35_ansi_c_has_octal_and_hex_styles() {
    let phrase = "a'\\\u{1}\u{1b}\u{7}\u{8}\t\n\r\u{b}\u{c}\u{7f}\u{e9}";
    assert_eq!(
        of(|forms| shell(phrase.as_bytes(), forms))[4..],
        [
            "a\\'\\\\\\001\\E\\a\\b\\t\\n\\r\\v\\f\\177\u{e9}",
            "a\\'\\\\\\x01\\x1b\\a\\b\\t\\n\\r\\v\\f\\x7f\\xc3\\xa9",
            "a\\'\\\\\\x01\\x1b\\x07\\x08\\t\\n\\r\\x0b\\x0c\\x7f\\xc3\\xa9",
            "a\\'\\\\\\x01\\x1b\\x07\\x08\\x09\\x0a\\x0d\\x0b\\x0c\\x7f\\xc3\\xa9",
        ]
    );
}
