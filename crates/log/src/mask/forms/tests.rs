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
fn fault_34_long_lines_stand_alone_and_line_ends_are_line_feeds() {
    assert_eq!(
        texts(lines(b"first line\r\r\n  second line \nshort\rthird line")),
        ["first line\n  second line \nshort\rthird line", "first line", "second line", "third line",]
    );
    assert_eq!(lines(b"a\nb\nc\nd"), Vec::<Vec<u8>>::new(), "seven bytes");
    assert_eq!(texts(lines(b"a\nb\nc\nde")), ["a\nb\nc\nde", "a b c de"], "eight bytes");
    assert_eq!(lines(b"no line end"), Vec::<Vec<u8>>::new());
}

#[test]
fn fault_35_words_have_one_blank_between_them() {
    assert_eq!(texts(lines(b"two  words\tand more")), ["two words and more"]);
    assert_eq!(
        texts(lines(b"short\na line\twith  words"))[1..],
        ["a line\twith  words", "a line with words"]
    );
    assert_eq!(lines(b"a      b"), Vec::<Vec<u8>>::new(), "three bytes");
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
