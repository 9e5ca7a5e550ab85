//! Conversions between values, text and JSON (language.md §11.1–§11.2). [`contract`] checks values against interfaces.

pub mod contract;
pub mod json;

use serde_json::Value as Json;

use super::value::{Data, Value};

/// Returns the text of a value as templates and `str()` show it (language.md §11.2).
pub fn to_text(value: &Value) -> String {
    match &value.data {
        Data::Null => "<null>".to_owned(),
        Data::String(text) => text.clone(),
        Data::Bool(_) | Data::Number(_) | Data::Array(_) | Data::Object(_) => {
            let mut text = String::new();
            write_json(value, &mut text);
            text
        }
    }
}

/// Writes JSON with the separators `", "` and `": "` and with keys sorted by their bytes.
fn write_json(value: &Value, out: &mut String) {
    match &value.data {
        Data::Null => out.push_str("null"),
        Data::Bool(truth) => out.push_str(if *truth { "true" } else { "false" }),
        Data::Number(number) => out.push_str(&number_to_text(*number)),
        Data::String(text) => write_quoted(text, out),
        Data::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push_str(", ");
                }
                write_json(item, out);
            }
            out.push(']');
        }
        Data::Object(members) => {
            let mut sorted: Vec<(&String, &Value)> = members.iter().collect();
            sorted.sort_unstable_by_key(|(key, _)| *key);
            out.push('{');
            for (index, (key, member)) in sorted.into_iter().enumerate() {
                if index > 0 {
                    out.push_str(", ");
                }
                write_quoted(key, out);
                out.push_str(": ");
                write_json(member, out);
            }
            out.push('}');
        }
    }
}

/// Writes a JSON string with only the escapes that JSON demands.
fn write_quoted(text: &str, out: &mut String) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            control if control < ' ' => {
                out.push_str("\\u00");
                for shift in [4, 0] {
                    out.extend(char::from_digit((u32::from(control) >> shift) & 0xf, 16));
                }
            }
            other => out.push(other),
        }
    }
    out.push('"');
}

/// Returns the shortest decimal that reads back the same; exponents only below 1e-6 and from 1e21 on
/// (language.md §11.2).
pub fn number_to_text(number: f64) -> String {
    let magnitude = number.abs();
    if magnitude == 0.0 || (1e-6..1e21).contains(&magnitude) {
        return number.to_string();
    }
    let text = format!("{number:e}");
    match text.split_once('e') {
        Some((digits, exponent)) if !exponent.starts_with('-') => format!("{digits}e+{exponent}"),
        _ => text,
    }
}

/// Returns the shortest decimal that reads back the same, never with an exponent (language.md §12 "Exports").
pub fn number_to_plain(number: f64) -> String {
    number.to_string()
}

/// Returns the value as JSON, without marks. Whole numbers up to 2^53 are written as integers.
pub fn to_json(value: &Value) -> Json {
    /// Every integer up to here is a double.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    match &value.data {
        Data::Null => Json::Null,
        Data::Bool(truth) => Json::Bool(*truth),
        Data::Number(number)
            if number.fract() == 0.0 && number.abs() <= EXACT && number.is_sign_positive() =>
        {
            Json::from(*number as u64)
        }
        Data::Number(number) if number.fract() == 0.0 && number.abs() <= EXACT && *number != 0.0 => {
            Json::from(*number as i64)
        }
        Data::Number(number) => Json::from(*number),
        Data::String(text) => Json::String(text.clone()),
        Data::Array(items) => Json::Array(items.iter().map(to_json).collect()),
        Data::Object(members) => {
            Json::Object(members.iter().map(|(key, member)| (key.clone(), to_json(member))).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(json: &str) -> Value {
        json::parse(json, &json::MemoryBudget::new(1 << 20)).unwrap()
    }

    fn text_of_json(json: &str) -> String {
        to_text(&parsed(json))
    }

    #[test]
    fn numbers_have_an_exponent_only_where_the_rule_says() {
        for (number, text) in [
            (3.0, "3"),
            (0.1, "0.1"),
            (-0.0, "-0"),
            (0.0, "0"),
            (9_007_199_254_740_992.0, "9007199254740992"),
            (1e20, "100000000000000000000"),
            (1e21, "1e+21"),
            (-1.5e22, "-1.5e+22"),
            (1e-6, "0.000001"),
            (1e-7, "1e-7"),
            (1.25e-7, "1.25e-7"),
        ] {
            assert_eq!(number_to_text(number), text);
        }
    }

    #[test]
    fn exported_numbers_never_have_an_exponent() {
        assert_eq!(number_to_plain(1e21), "1000000000000000000000");
        assert_eq!(number_to_plain(1e-7), "0.0000001");
        assert_eq!(number_to_plain(3.0), "3");
    }

    #[test]
    fn null_is_marked_at_top_level_and_json_inside() {
        assert_eq!(text_of_json("null"), "<null>");
        assert_eq!(text_of_json("[null]"), "[null]");
    }

    #[test]
    fn composed_values_are_json_with_sorted_keys() {
        assert_eq!(
            text_of_json(r#"{"b": [1, "<&>é"], "a": {"x": true}}"#),
            r#"{"a": {"x": true}, "b": [1, "<&>é"]}"#
        );
        assert_eq!(text_of_json(r#"["\u0001\u001f\"\\\n"]"#), r#"["\u0001\u001f\"\\\n"]"#);
    }

    #[test]
    fn whole_numbers_become_json_integers_and_negative_zero_stays() {
        assert_eq!(to_json(&Value::plain(Data::Number(3.0))).to_string(), "3");
        assert_eq!(to_json(&Value::plain(Data::Number(-3.0))).to_string(), "-3");
        assert_eq!(to_json(&Value::plain(Data::Number(-0.0))).to_string(), "-0.0");
        assert_eq!(to_json(&Value::plain(Data::Number(1.5))).to_string(), "1.5");
    }

    proptest! {
        #[test]
        fn text_of_a_number_reads_back_the_same(number in prop::num::f64::NORMAL | prop::num::f64::SUBNORMAL | prop::num::f64::ZERO) {
            prop_assert_eq!(number_to_text(number).parse::<f64>().unwrap().to_bits(), number.to_bits());
            prop_assert_eq!(number_to_plain(number).parse::<f64>().unwrap().to_bits(), number.to_bits());
        }

        #[test]
        fn text_of_an_array_is_json_that_reads_back_the_same(texts in prop::collection::vec(any::<String>(), 0..5)) {
            let value = Value::array(texts.iter().cloned().map(Value::text));
            let back = parsed(&to_text(&value));
            prop_assert!(back == value);
        }
    }
}
