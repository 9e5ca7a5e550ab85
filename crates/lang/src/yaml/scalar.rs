//! The meaning of scalars: the core schema with the additions of yaml.v3 (language.md §2).

use super::{Scalar, Style, Tag};

/// Meaning of a scalar.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Resolved {
    /// `~`, `null` or empty.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A finite number.
    Number(f64),
    /// A number beyond the range of doubles.
    OutOfRange,
    /// Text.
    Text,
}

/// Returns the meaning of a scalar from its text, style and tag.
pub fn resolve(scalar: &Scalar) -> Resolved {
    match scalar.tag {
        Some(Tag::Null) => Resolved::Null,
        Some(Tag::Boolean | Tag::Number) => plain(&scalar.text),
        None if scalar.style == Style::Plain => plain(&scalar.text),
        None | Some(Tag::String) => Resolved::Text,
    }
}

/// True if a text can have the type of a tag.
pub(super) fn allows(tag: Tag, text: &str) -> bool {
    match (tag, plain(text)) {
        (Tag::String, _)
        | (Tag::Number, Resolved::Number(_) | Resolved::OutOfRange)
        | (Tag::Boolean, Resolved::Bool(_))
        | (Tag::Null, Resolved::Null) => true,
        (Tag::Number | Tag::Boolean | Tag::Null, _) => false,
    }
}

/// Returns the meaning of a plain scalar.
pub(crate) fn plain(text: &str) -> Resolved {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Resolved::Null,
        "true" | "True" | "TRUE" => Resolved::Bool(true),
        "false" | "False" | "FALSE" => Resolved::Bool(false),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" | "-.inf" | "-.Inf" | "-.INF" | ".nan"
        | ".NaN" | ".NAN" => Resolved::OutOfRange,
        _ => number(text).map_or(Resolved::Text, |number| {
            if number.is_finite() { Resolved::Number(number) } else { Resolved::OutOfRange }
        }),
    }
}

/// Parses a signed or unsigned number: `12`, `1_000`, `1.5`, `1e3`, `0x1f`, `0o17`, `017`, `0b11`.
fn number(text: &str) -> Option<f64> {
    if !text.starts_with(|first: char| first.is_ascii_digit() || matches!(first, '+' | '-' | '.')) {
        return None;
    }
    let digits: String = text.chars().filter(|character| *character != '_').collect();
    let (sign, magnitude) = match digits.strip_prefix(['+', '-']) {
        Some(rest) => (if digits.starts_with('-') { -1.0 } else { 1.0 }, rest),
        None => (1.0, digits.as_str()),
    };
    radix(magnitude).or_else(|| decimal(magnitude)).map(|number| sign * number)
}

/// Parses an integer with the prefix of its base. `08` is not octal, so it is left to [`decimal`].
fn radix(text: &str) -> Option<f64> {
    let (digits, base) = if let Some(digits) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        (digits, 16)
    } else if let Some(digits) = text.strip_prefix("0o").or_else(|| text.strip_prefix("0O")) {
        (digits, 8)
    } else if let Some(digits) = text.strip_prefix("0b").or_else(|| text.strip_prefix("0B")) {
        (digits, 2)
    } else {
        (text.strip_prefix('0')?, 8)
    };
    if !digits.chars().all(|digit| digit.is_digit(base)) {
        return None;
    }
    u64::from_str_radix(digits, base).ok().map(|number| number as f64)
}

/// Parses `[0-9]* [ "." [0-9]* ] [ e [+-] [0-9]+ ]` with at least one digit.
fn decimal(text: &str) -> Option<f64> {
    let mantissa = text.split(['e', 'E']).next().unwrap_or_default();
    let well_formed = !text.starts_with(['+', '-'])
        && mantissa.bytes().any(|byte| byte.is_ascii_digit())
        && text.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b'e' | b'E' | b'+' | b'-'));
    if well_formed { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_forms_of_the_dialect() {
        for (text, value) in [
            ("0", 0.0),
            ("0x10", 16.0),
            ("0o10", 8.0),
            ("010", 8.0),
            ("-010", -8.0),
            ("08", 8.0),
            ("0b11", 3.0),
            ("1_000", 1000.0),
            ("1e3", 1000.0),
            ("+1.5", 1.5),
            (".5", 0.5),
            ("5.", 5.0),
            ("18446744073709551616", 18_446_744_073_709_551_616.0),
        ] {
            assert_eq!(plain(text), Resolved::Number(value), "{text}");
        }
    }

    #[test]
    fn words_of_yaml_1_1_dates_and_the_like_are_text() {
        for text in [
            "yes",
            "No",
            "on",
            "off",
            "y",
            "2001-12-14",
            "12:30:45",
            "1.2.3",
            "1a",
            "-",
            "+",
            ".",
            "e5",
            "_1",
            "0xg",
            "1e",
            "--1",
        ] {
            assert_eq!(plain(text), Resolved::Text, "{text}");
        }
    }

    #[test]
    fn numbers_beyond_the_range_of_doubles_are_none() {
        assert_eq!(plain("1e400"), Resolved::OutOfRange);
        assert_eq!(plain("-.inf"), Resolved::OutOfRange);
    }
}
