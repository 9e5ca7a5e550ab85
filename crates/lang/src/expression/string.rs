//! String literals of expressions (language.md §9.1).

use super::ParseError;
use super::lexer::Lexer;

/// Reads a single-quoted string whose opening quote at `open` has been read.
pub(super) fn single(lexer: &mut Lexer<'_>, open: usize) -> Result<String, ParseError> {
    let mut text = String::new();
    loop {
        match lexer.bump()?.ok_or_else(|| not_closed(open))? {
            '\'' => return Ok(text),
            // A backslash before any other character is a plain backslash.
            '\\' if lexer.rest().starts_with(['\\', '\'']) => text.extend(lexer.bump()?),
            other => text.push(other),
        }
    }
}

/// End of a piece of a double-quoted string.
pub(super) enum Piece {
    /// The closing quote.
    End,
    /// `${{`, which has been read.
    Expression,
}

/// Reads a double-quoted string up to its end or the next expression, adding to `text`.
pub(super) fn double(lexer: &mut Lexer<'_>, open: usize, text: &mut String) -> Result<Piece, ParseError> {
    loop {
        if lexer.rest().starts_with("${{") {
            lexer.skip(3)?;
            return Ok(Piece::Expression);
        }
        let at = lexer.offset;
        match lexer.bump()?.ok_or_else(|| not_closed(open))? {
            '"' => return Ok(Piece::End),
            '\\' => {
                // "\$" stands for "$", so the text after it cannot open an expression.
                let escaped = lexer.bump()?.ok_or_else(|| not_closed(open))?;
                if escaped == '$' && lexer.rest().starts_with("{{") {
                    lexer.skip(2)?;
                    text.push_str("${{");
                } else {
                    text.push(escape(lexer, escaped, at)?);
                }
            }
            other => text.push(other),
        }
    }
}

fn escape(lexer: &mut Lexer<'_>, escaped: char, at: usize) -> Result<char, ParseError> {
    Ok(match escaped {
        '\\' | '"' | '/' | '$' => escaped,
        'a' => '\u{7}',
        'b' => '\u{8}',
        'f' => '\u{c}',
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        'v' => '\u{b}',
        'u' => return unicode(lexer, at),
        other => {
            return Err(ParseError::new(at, format!("unknown escape \"\\{}\"", other.escape_debug())));
        }
    })
}

/// Reads the four digits of a `u` escape, or of a surrogate pair of two such escapes.
fn unicode(lexer: &mut Lexer<'_>, at: usize) -> Result<char, ParseError> {
    let high = hex(lexer, at)?;
    let code = if (0xd800..0xdc00).contains(&high) {
        if !lexer.rest().starts_with("\\u") {
            return Err(unpaired(at));
        }
        lexer.skip(2)?;
        let low = hex(lexer, at)?;
        if !(0xdc00..0xe000).contains(&low) {
            return Err(unpaired(at));
        }
        0x1_0000 + ((high - 0xd800) << 10) + (low - 0xdc00)
    } else {
        high
    };
    char::from_u32(code).ok_or_else(|| unpaired(at))
}

fn hex(lexer: &mut Lexer<'_>, at: usize) -> Result<u32, ParseError> {
    let mut code = 0;
    for _ in 0..4 {
        let digit = lexer.bump()?.and_then(|digit| digit.to_digit(16));
        code =
            code * 16 + digit.ok_or_else(|| ParseError::new(at, "\"\\u\" needs four hexadecimal digits"))?;
    }
    Ok(code)
}

fn unpaired(at: usize) -> ParseError {
    ParseError::new(at, "half of a surrogate pair")
}

fn not_closed(open: usize) -> ParseError {
    ParseError::new(open, "string not closed, opened here")
}
