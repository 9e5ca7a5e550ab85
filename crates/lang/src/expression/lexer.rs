//! Tokens of expressions. A string yields only its opening quote: [`super::string`] reads its content, because a
//! double-quoted string can hold expressions.

use super::{EXPRESSION_LIMIT, ParseError};
use crate::diagnostic::BEYOND_RANGE;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Token<'t> {
    /// A name, keyword or member.
    Word(&'t str),
    /// A finite number.
    Number(f64),
    /// Start of a single-quoted string.
    SingleQuote,
    /// Start of a double-quoted string.
    DoubleQuote,
    /// An operator or bracket.
    Sign(&'static str),
    /// `}}` outside of open braces.
    Close,
    /// End of the text.
    End,
}

/// Operators and brackets. Longer ones come first.
const SIGNS: [&str; 23] = [
    "||", "&&", "==", "!=", "<=", ">=", "(", ")", "[", "]", "{", "}", ",", ":", ".", "+", "-", "*", "/", "%",
    "!", "<", ">",
];

/// Reads the tokens of a text from an offset on.
pub(super) struct Lexer<'t> {
    text: &'t str,
    /// Start of the outermost expression. The length limit counts from here.
    start: usize,
    /// Offset of the unread rest.
    pub(super) offset: usize,
}

impl<'t> Lexer<'t> {
    pub(super) const fn new(text: &'t str, start: usize) -> Self {
        Self { text, start, offset: start }
    }

    pub(super) fn rest(&self) -> &'t str {
        self.text.get(self.offset..).unwrap_or_default()
    }

    pub(super) fn bump(&mut self) -> Result<Option<char>, ParseError> {
        let Some(character) = self.rest().chars().next() else { return Ok(None) };
        self.offset += character.len_utf8();
        self.check_length()?;
        Ok(Some(character))
    }

    /// Skips `length` bytes, which the caller has matched.
    pub(super) fn skip(&mut self, length: usize) -> Result<(), ParseError> {
        self.offset += length;
        self.check_length()
    }

    fn check_length(&self) -> Result<(), ParseError> {
        if self.offset - self.start > EXPRESSION_LIMIT {
            return Err(ParseError::limit(self.start, "expression longer than 64 KiB".to_owned()));
        }
        Ok(())
    }

    pub(super) fn skip_space(&mut self) -> Result<(), ParseError> {
        let rest = self.rest();
        let space = rest.len() - rest.trim_start_matches([' ', '\t', '\r', '\n']).len();
        self.skip(space)
    }

    /// Returns the next token and its offset. Takes a quote but not its string. If `in_braces` is true, a `}` closes a
    /// brace of the expression, so `}}` is two tokens.
    pub(super) fn token(&mut self, in_braces: bool) -> Result<(Token<'t>, usize), ParseError> {
        self.skip_space()?;
        let at = self.offset;
        let rest = self.rest();
        let Some(first) = rest.chars().next() else { return Ok((Token::End, at)) };
        let token = if first.is_alphabetic() || first == '_' {
            let end = rest.find(|c: char| !is_word(c)).unwrap_or(rest.len());
            self.skip(end)?;
            Token::Word(rest.get(..end).unwrap_or_default())
        } else if first.is_ascii_digit() {
            let length = number_length(rest);
            self.skip(length)?;
            let number: f64 =
                rest.get(..length).and_then(|digits| digits.parse().ok()).unwrap_or(f64::INFINITY);
            if !number.is_finite() {
                return Err(ParseError::new(at, BEYOND_RANGE));
            }
            Token::Number(number)
        } else if first == '\'' || first == '"' {
            self.skip(1)?;
            if first == '"' { Token::DoubleQuote } else { Token::SingleQuote }
        } else if !in_braces && rest.starts_with("}}") {
            self.skip(2)?;
            Token::Close
        } else {
            let Some(sign) = SIGNS.into_iter().find(|sign| rest.starts_with(sign)) else {
                return Err(unexpected(first, at));
            };
            self.skip(sign.len())?;
            Token::Sign(sign)
        };
        Ok((token, at))
    }
}

fn unexpected(character: char, at: usize) -> ParseError {
    let help = match character {
        '=' => ": comparison is written \"==\"",
        '&' => ": \"and\" is written \"&&\"",
        '|' => ": \"or\" is written \"||\"",
        '?' => ": \"a ? b : c\" is written \"a && b || c\"",
        _ => "",
    };
    ParseError::new(at, format!("unexpected character \"{}\"{help}", character.escape_debug()))
}

/// True for letters, digits and "_" of any script.
fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// Returns the length of `digits [. digits] [e [+-] digits]` at the start of a text.
fn number_length(text: &str) -> usize {
    let bytes = text.as_bytes();
    let digits_from = |start: usize| {
        bytes.get(start..).unwrap_or_default().iter().take_while(|byte| byte.is_ascii_digit()).count()
    };
    let mut length = digits_from(0);
    if bytes.get(length) == Some(&b'.') {
        let fraction = digits_from(length + 1);
        if fraction > 0 {
            length += 1 + fraction;
        }
    }
    if matches!(bytes.get(length), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(length + 1), Some(b'+' | b'-')));
        let exponent = digits_from(length + 1 + sign);
        if exponent > 0 {
            length += 1 + sign + exponent;
        }
    }
    length
}
