//! The functions of expressions (language.md §9.5).

use crate::convert::to_text;
use crate::value::{Data, Value};

use super::operators::is_truthy;

/// A function of the language.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// `str(v)`
    Str,
    /// `num(s)`
    Num,
    /// `bool(v)`
    Bool,
}

impl Function {
    /// Names of all functions.
    pub const NAMES: [&'static str; 3] = ["str", "num", "bool"];

    /// Returns the function named `name`.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "str" => Some(Self::Str),
            "num" => Some(Self::Num),
            "bool" => Some(Self::Bool),
            _ => None,
        }
    }

    /// Returns the function's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Str => "str",
            Self::Num => "num",
            Self::Bool => "bool",
        }
    }

    /// Returns the result, unmarked, or the message of a type error.
    pub(super) fn call(self, argument: &Value) -> Result<Data, String> {
        match (self, &argument.data) {
            (Self::Str, _) => Ok(Data::String(to_text(argument))),
            (Self::Bool, data) => Ok(Data::Bool(is_truthy(data))),
            (Self::Num, Data::Number(number)) => Ok(Data::Number(*number)),
            (Self::Num, Data::String(text)) => {
                number(text).map(Data::Number).ok_or_else(|| "num() needs the text of a number".to_owned())
            }
            (Self::Num, _) => Err(format!("num() needs a string or a number, got {}", argument.type_name())),
        }
    }
}

/// Parses a number in the grammar of expressions, with an optional sign.
fn number(text: &str) -> Option<f64> {
    let magnitude = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (mantissa, exponent) = match magnitude.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent.strip_prefix(['+', '-']).unwrap_or(exponent))),
        None => (magnitude, None),
    };
    let (whole, fraction) = match mantissa.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (mantissa, None),
    };
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if digits(whole) && fraction.is_none_or(digits) && exponent.is_none_or(digits) {
        text.parse().ok().filter(|number: &f64| number.is_finite())
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn num_takes_the_number_grammar_only() {
        assert_eq!(number("-007.50e+1"), Some(-75.0));
        for text in ["", " 1", "1 ", "1.", ".5", "0x10", "1e", "inf", "NaN", "1_0", "--1", "1e400"] {
            assert_eq!(number(text), None, "{text}");
        }
    }
}
