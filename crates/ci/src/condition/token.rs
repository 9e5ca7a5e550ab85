//! Splits an expression of `rules:if` into tokens.

use super::Mistake;

/// A token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Token {
    Variable(String),
    Text(String),
    Pattern { pattern: String, flags: String },
    Null,
    Not,
    And,
    Or,
    Equal,
    NotEqual,
    Matches,
    NotMatches,
    Open,
    Close,
}

/// Operators, longer ones first.
const OPERATORS: [(&str, Token); 9] = [
    ("==", Token::Equal),
    ("!=", Token::NotEqual),
    ("=~", Token::Matches),
    ("!~", Token::NotMatches),
    ("&&", Token::And),
    ("||", Token::Or),
    ("!", Token::Not),
    ("(", Token::Open),
    (")", Token::Close),
];

/// Returns all tokens with their offsets.
pub(super) fn tokens(text: &str) -> Result<Vec<(usize, Token)>, Mistake> {
    let mut tokens = Vec::new();
    let mut offset = 0;
    while let Some(rest) = text.get(offset..) {
        let trimmed = rest.trim_start();
        offset += rest.len() - trimmed.len();
        if trimmed.is_empty() {
            break;
        }
        let (token, length) = token(trimmed).map_err(|mistake| Mistake { offset, ..mistake })?;
        tokens.push((offset, token));
        offset += length;
    }
    Ok(tokens)
}

/// Returns the first token and its length. Offsets of mistakes are those of the token.
fn token(text: &str) -> Result<(Token, usize), Mistake> {
    if let Some((operator, token)) = OPERATORS.iter().find(|(operator, _)| text.starts_with(operator)) {
        return Ok((token.clone(), operator.len()));
    }
    let word =
        |rest: &str| rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(rest.len());
    match text.chars().next() {
        Some('$') => {
            let rest = text.get(1..).unwrap_or_default();
            let length = word(rest);
            if rest.starts_with('{') {
                return mistake("a variable has no braces here", Some("write $NAME"));
            }
            match rest.get(..length) {
                Some(name) if !name.is_empty() && !name.starts_with(|c: char| c.is_ascii_digit()) => {
                    Ok((Token::Variable(name.to_owned()), length + 1))
                }
                _ => mistake("no name of a variable after \"$\"", Some("write $NAME")),
            }
        }
        Some(quote @ ('"' | '\'')) => {
            let rest = text.get(1..).unwrap_or_default();
            match rest.find(quote) {
                Some(end) => Ok((Token::Text(rest.get(..end).unwrap_or_default().to_owned()), end + 2)),
                None => mistake("a quote that is not closed", Some("close it")),
            }
        }
        Some('/') => match pattern(text) {
            Some((pattern, flags, length)) => {
                Ok((Token::Pattern { pattern: pattern.to_owned(), flags: flags.to_owned() }, length))
            }
            None => mistake("a regular expression that is not closed", Some("end it with \"/\"")),
        },
        _ if text.starts_with("null") && word(text) == 4 => Ok((Token::Null, 4)),
        first => {
            let length = word(text).max(first.map_or(0, char::len_utf8));
            let shown: String = text.get(..length).unwrap_or_default().chars().take(32).collect();
            let help = match shown.as_str() {
                "=" => "write \"==\"",
                "&" => "write \"&&\"",
                "|" => "write \"||\"",
                _ => "put a text into quotes, and write a variable as $NAME",
            };
            mistake(&format!("\"{}\" means nothing here", shown.escape_debug()), Some(help))
        }
    }
}

/// Returns the pattern and flags of `/pattern/flags` at the start of a text, and their length. `\/` is a slash.
pub(super) fn pattern(text: &str) -> Option<(&str, &str, usize)> {
    let rest = text.strip_prefix('/')?;
    let mut escaped = false;
    let end = rest.bytes().position(|byte| {
        let is_end = byte == b'/' && !escaped;
        escaped = byte == b'\\' && !escaped;
        is_end
    })?;
    let behind = rest.get(end + 1..)?;
    let flags = behind.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(behind.len());
    Some((rest.get(..end)?, behind.get(..flags)?, end + 2 + flags))
}

fn mistake<T>(message: &str, help: Option<&'static str>) -> Result<T, Mistake> {
    Err(Mistake { offset: 0, message: message.to_owned(), help })
}
