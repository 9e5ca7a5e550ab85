//! Grammar of the expression language Moa (language.md §9.1): text to [`Expression`].

mod lexer;
mod parser;
mod string;

use std::sync::Arc;

use super::ast::Expression;
use super::diagnostic::{Class, Diagnostic, Position};
use super::yaml::places::Places;
use lexer::Token;
use parser::Parser;

/// Longest expression in bytes (language.md §6).
pub const EXPRESSION_LIMIT: usize = 64 * 1024;
/// Deepest nesting of an expression (language.md §6).
pub(crate) const NESTING_LIMIT: usize = 128;

/// Words that cannot be names, besides `null`, `true` and `false` (language.md §9.1).
const RESERVED: [&str; 34] = [
    "array",
    "as",
    "break",
    "case",
    "const",
    "continue",
    "default",
    "else",
    "fallthrough",
    "float",
    "for",
    "func",
    "function",
    "goto",
    "if",
    "import",
    "in",
    "int",
    "let",
    "loop",
    "map",
    "namespace",
    "number",
    "object",
    "package",
    "range",
    "return",
    "string",
    "struct",
    "switch",
    "type",
    "var",
    "void",
    "while",
];

/// A mistake in an expression, at a byte offset of the parsed text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParseError {
    /// [`Class::Parse`] or [`Class::Limit`].
    pub(crate) class: Class,
    pub(crate) offset: usize,
    pub(crate) message: String,
}

impl ParseError {
    fn new(offset: usize, message: impl Into<String>) -> Self {
        Self { class: Class::Parse, offset, message: message.into() }
    }

    pub(crate) fn limit(offset: usize, message: String) -> Self {
        Self { class: Class::Limit, offset, message }
    }

    /// Adds the place in the file.
    pub(crate) fn at(self, file: &Arc<str>, text: &str, places: &Places) -> Diagnostic {
        Diagnostic::error(self.class, file, places.at(text, self.offset), self.message)
    }
}

/// Parses a template's expression from the offset `inside` on, up to and including its closing `}}`. `open` is the
/// offset of its `${{`. Also returns the offset after the expression.
pub(crate) fn parse_embedded(
    text: &str,
    open: usize,
    inside: usize,
    places: &Places,
) -> Result<(Expression, usize), ParseError> {
    let mut parser = Parser::new(text, inside, places);
    let parsed = parser.embedded();
    // Whatever the parser expected, the text ended before the expression did.
    if parsed.is_err() && parser.reached_end() {
        return Err(ParseError::new(open, "expression not closed, opened here"));
    }
    parsed
}

/// Parses a text that is one expression without delimiters.
pub fn parse(text: &str, file: &Arc<str>) -> Result<Expression, Diagnostic> {
    let places = Places::inline(text, Position::START);
    let mut parser = Parser::new(text, 0, &places);
    parser.whole().map_err(|error| error.at(file, text, &places))
}

impl Token<'_> {
    /// Returns the token as messages show it.
    fn show(&self) -> String {
        match self {
            Token::End => "end of text".to_owned(),
            Token::Close => "\"}}\"".to_owned(),
            Token::Word(word) => format!("\"{word}\""),
            Token::Number(_) => "a number".to_owned(),
            Token::SingleQuote | Token::DoubleQuote => "a string".to_owned(),
            Token::Sign(sign) => format!("\"{sign}\""),
        }
    }
}

#[cfg(test)]
mod tests;
