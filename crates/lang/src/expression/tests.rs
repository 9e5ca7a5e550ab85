use std::fmt::Write as _;

use super::*;

fn parsed(text: &str) -> Result<Expression, Diagnostic> {
    parse(text, &Arc::from("f"))
}

fn error(text: &str) -> String {
    parsed(text).unwrap_err().to_string()
}

#[test]
fn errors_say_what_was_found_and_what_was_expected() {
    for (text, message) in [
        ("1 +", "f:1:4: unexpected end of text, expected a value"),
        ("a b", "f:1:3: unexpected \"b\", expected an operator or the end"),
        ("a = b", "f:1:3: unexpected character \"=\": comparison is written \"==\""),
        ("[1, 2", "f:1:6: unexpected end of text, expected \",\" or \"]\""),
        ("{a 1}", "f:1:4: unexpected a number, expected \":\""),
        ("{a: 1", "f:1:6: unexpected end of text, expected \",\" or \"}\""),
        ("f(1,)", "f:1:5: unexpected \")\", expected a value"),
        ("a.", "f:1:3: unexpected end of text, expected a name after \".\""),
        ("arr.0", "f:1:5: unexpected a number, expected a name after \".\""),
        ("\n type", "f:2:2: \"type\" is a reserved word and cannot be a name"),
        ("'é' + \"\\q\"", "f:1:8: unknown escape \"\\q\""),
        ("\"\\ud800\"", "f:1:2: half of a surrogate pair"),
        ("\"\\u12\"", "f:1:2: \"\\u\" needs four hexadecimal digits"),
        ("1e999", "f:1:1: number beyond the range of doubles"),
        ("\"a ${{ 1 + }}\"", "f:1:12: unexpected \"}}\", expected a value"),
        ("# x", "f:1:1: unexpected character \"#\""),
    ] {
        assert_eq!(error(text), message);
    }
}

#[test]
fn reserved_words_are_members_and_keys_but_no_names() {
    for text in ["inputs.type", "{default: 1, null: 2, true: 3}", "a.null.func"] {
        assert!(parsed(text).is_ok(), "{text}");
    }
    for word in RESERVED {
        assert!(parsed(word).is_err(), "{word}");
    }
}

#[test]
fn every_json_text_is_an_expression() {
    for text in [r#"{"a": [1, -2.5e+3, true, null, "\ud83d\ude00\/\b"], "b": {}}"#, "[\r\n\t]", "\"\""] {
        assert!(parsed(text).is_ok(), "{text}");
    }
}

#[test]
fn fault_67_nesting_is_limited_in_every_form() {
    for (open, close) in
        [("(", ")"), ("[", "]"), ("{a: ", "}"), ("a[", "]"), ("f(", ")"), ("\"${{ ", " }}\"")]
    {
        let nested = |depth: usize| format!("{}1{}", open.repeat(depth), close.repeat(depth));
        assert!(parsed(&nested(NESTING_LIMIT)).is_ok(), "{open}");
        let error = parsed(&nested(NESTING_LIMIT + 1)).unwrap_err();
        assert_eq!(error.class, Class::Limit, "{open}");
        assert_eq!(
            parsed(&open.repeat(100_000).chars().take(60_000).collect::<String>()).unwrap_err().class,
            Class::Limit
        );
    }
}

#[test]
fn long_chains_do_not_nest() {
    let mut text = String::from("0");
    for number in 0..5_000 {
        write!(text, " + {number} || a.b[0] && !!1").unwrap();
    }
    assert!(parsed(&text).is_err(), "longer than the limit");
    let text: String = text.chars().take(60_000).collect();
    let text = text.rsplit_once(" + ").unwrap().0;
    assert!(parsed(text).is_ok());
    assert!(parsed(&format!("{}1", "!-".repeat(20_000))).is_ok());
    assert!(parsed(&format!("a{}", ".b".repeat(20_000))).is_ok());
}
