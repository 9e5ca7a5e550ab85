//! The meaning of plain scalars in YAML 1.1, as GitLab reads them (ci.md §2, row YAML).

/// Meaning of a scalar without quotes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Meaning {
    Null,
    Bool(bool),
    /// A number, as the text that GitLab makes of it.
    Number(String),
    Text,
}

/// Returns the meaning of a scalar without quotes.
pub(crate) fn meaning(text: &str) -> Meaning {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Meaning::Null,
        _ if ["true", "yes", "on"].iter().any(|word| text.eq_ignore_ascii_case(word)) => Meaning::Bool(true),
        _ if ["false", "no", "off"].iter().any(|word| text.eq_ignore_ascii_case(word)) => {
            Meaning::Bool(false)
        }
        _ => number(text).map_or(Meaning::Text, Meaning::Number),
    }
}

/// Returns a number as text: `012` is 10, `1_000` is 1000, `1:30` is 90, `1.10` is 1.1. `1e3` and `08` are text.
fn number(text: &str) -> Option<String> {
    let (sign, digits) = match text.strip_prefix(['+', '-']) {
        Some(digits) => (if text.starts_with('-') { "-" } else { "" }, digits),
        None => ("", text),
    };
    if !digits.starts_with(|first: char| first.is_ascii_digit() || first == '.') {
        return None;
    }
    let magnitude = integer(digits).map(|number| number.to_string()).or_else(|| float(digits))?;
    Some(if magnitude == "0" { magnitude } else { format!("{sign}{magnitude}") })
}

fn integer(text: &str) -> Option<u128> {
    let prefixed = |prefix: &str, radix| {
        let digits = text.strip_prefix(prefix)?;
        parsed(digits, radix)
    };
    if text == "0" {
        return Some(0);
    }
    if text.contains(':') {
        return sexagesimal(text);
    }
    prefixed("0x", 16)
        .or_else(|| prefixed("0b", 2))
        .or_else(|| prefixed("0", 8))
        .or_else(|| if text.starts_with('0') { None } else { parsed(text, 10) })
}

fn parsed(digits: &str, radix: u32) -> Option<u128> {
    let well_formed = digits.chars().all(|digit| digit.is_digit(radix) || digit == '_');
    let digits = digits.replace('_', "");
    if well_formed { u128::from_str_radix(&digits, radix).ok() } else { None }
}

/// Parses a number to base 60 of two or three places: `12:30` is 750. The text has a colon.
fn sexagesimal(text: &str) -> Option<u128> {
    let mut places = text.split(':');
    let mut number = parsed(places.next()?, 10)?;
    let rest: Vec<&str> = places.collect();
    if rest.len() > 2 {
        return None;
    }
    for place in rest {
        let is_plain = place.len() <= 2 && !place.starts_with('+');
        let digit = is_plain.then(|| place.parse::<u8>().ok()).flatten().filter(|digit| *digit < 60)?;
        number = number.checked_mul(60)?.checked_add(digit.into())?;
    }
    Some(number)
}

/// Parses a decimal with a point. An exponent needs the point before it and a sign.
fn float(text: &str) -> Option<String> {
    let (mantissa, exponent) = text.split_once(['e', 'E']).map_or((text, None), |(m, e)| (m, Some(e)));
    let (whole, fraction) = mantissa.split_once('.')?;
    if !exponent.is_none_or(|exponent| exponent.starts_with(['+', '-'])) {
        return None;
    }
    let (whole, exponent) = (whole.replace('_', ""), exponent.map(|exponent| format!("e{exponent}")));
    // All else that is no number is none for the parser, too.
    let number: f64 = format!("{whole}.{fraction}{}", exponent.unwrap_or_default()).parse().ok()?;
    if !number.is_finite() {
        return None;
    }
    let shown = format!("{number:?}");
    Some(match shown.split_once('e') {
        Some((mantissa, exponent)) => {
            let point = if mantissa.contains('.') { "" } else { ".0" };
            let (sign, digits) = exponent.strip_prefix('-').map_or(('+', exponent), |digits| ('-', digits));
            format!("{mantissa}{point}e{sign}{digits:0>2}")
        }
        None => shown,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_yaml_1_1() {
        for (text, shown) in [
            ("0", "0"),
            ("012", "10"),
            ("-012", "-10"),
            ("+7", "7"),
            ("1_000", "1000"),
            ("0x1F", "31"),
            ("0b11", "3"),
            ("22:22", "1342"),
            ("1:59", "119"),
            ("9:5", "545"),
            ("1:30:00", "5400"),
            ("1.10", "1.1"),
            ("3.0", "3.0"),
            (".5", "0.5"),
            ("5.", "5.0"),
            ("1.5e+3", "1500.0"),
            ("1.0e+20", "1.0e+20"),
            ("1_0.5e-2", "0.105"),
            ("0.00001", "1.0e-05"),
            ("-2.5E-120", "-2.5e-120"),
            ("+.5", "0.5"),
            ("-0.0", "-0.0"),
            ("-0", "0"),
        ] {
            assert_eq!(meaning(text), Meaning::Number(shown.to_owned()), "{text}");
        }
    }

    #[test]
    fn words_are_booleans_as_in_yaml_1_1() {
        for word in ["true", "Yes", "ON"] {
            assert_eq!(meaning(word), Meaning::Bool(true));
        }
        for word in ["false", "no", "Off"] {
            assert_eq!(meaning(word), Meaning::Bool(false));
        }
        for word in ["", "~", "null", "Null", "NULL"] {
            assert_eq!(meaning(word), Meaning::Null);
        }
    }

    #[test]
    fn what_looks_like_a_number_but_is_none_is_text() {
        for text in [
            "08",
            "1e3",
            "1.2.3",
            "y",
            "n",
            "12:3:4:5",
            "12:99",
            "1:60",
            "1:030",
            "1:+5",
            "1:-5",
            "1:",
            ".",
            "-",
            "+",
            "0x",
            "1a",
            "2001-12-14",
            "1.5e3",
            "1.5e+",
            "1.5e+x",
            "1.5e++3",
            "1.5e+3e+4",
            "1.5e+999",
            "1.5x",
            "1x.5",
            ".e+3",
            ".inf",
            "e.1",
            "0b2",
            "0xg",
        ] {
            assert_eq!(meaning(text), Meaning::Text, "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn whole_numbers_are_the_same_in_all_forms(number in 1_u64..) {
            for text in [format!("{number}"), format!("+{number}"), format!("0x{number:x}"), format!("0b{number:b}"), format!("0{number:o}")] {
                proptest::prop_assert_eq!(meaning(&text), Meaning::Number(number.to_string()), "{}", text);
            }
            proptest::prop_assert_eq!(meaning(&format!("-{number}")), Meaning::Number(format!("-{number}")));
        }

        #[test]
        fn times_are_numbers_to_base_60(places in proptest::collection::vec(0_u64..60, 1..3), first in 1_u64..1000) {
            let text = places.iter().fold(first.to_string(), |text, place| format!("{text}:{place:02}"));
            let number = places.iter().fold(first, |number, place| number * 60 + place);
            proptest::prop_assert_eq!(meaning(&text), Meaning::Number(number.to_string()));
        }

        #[test]
        fn any_text_has_a_meaning_and_numbers_mean_themselves(text in "[-+0-9._:exb]{0,8}") {
            if let Meaning::Number(shown) = meaning(&text) {
                proptest::prop_assert_eq!(meaning(&shown), Meaning::Number(shown.clone()), "{}", text);
            }
        }
    }
}
