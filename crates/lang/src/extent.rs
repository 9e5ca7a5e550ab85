//! Measures the item at a place on its line, so that an error can be underlined: a key, a scalar, a list in brackets, a
//! word or an operator of an expression. Looks at the text alone, so it works for broken texts too.

use std::ops::Range;

use super::template::OPEN;

/// Bytes examined before and after the place, so the length of a line does not matter.
const NEAR: usize = 4 * 1024;

/// Returns the bytes of `line` that the item at byte `start` occupies, within `NEAR`. Empty at the end of the line.
pub fn extent(line: &str, start: usize) -> Range<usize> {
    let from = line.floor_char_boundary(start.saturating_sub(NEAR));
    let to = line.ceil_char_boundary(start.saturating_add(NEAR).min(line.len()));
    let before = line.get(from..start).unwrap_or_default();
    let rest = line.get(start..to).unwrap_or_default();
    let length = if is_inside_expression(before) { of_token(rest) } else { of_node(before, rest) };
    let at_least = rest.chars().next().map_or(0, char::len_utf8);
    start..start + length.max(at_least)
}

/// True if the last `${{` of the text is not closed.
fn is_inside_expression(before: &str) -> bool {
    before.rsplit_once(OPEN).is_some_and(|(_, inside)| !inside.contains("}}"))
}

/// Returns the length of the first token of an expression.
fn of_token(rest: &str) -> usize {
    const PAIRS: [&str; 8] = ["||", "&&", "==", "!=", "<=", ">=", "}}", OPEN];
    let word = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
    match rest.chars().next() {
        Some(quote @ ('"' | '\'')) => of_quoted(rest, quote),
        _ if word > 0 => word,
        _ => PAIRS.iter().find(|pair| rest.starts_with(**pair)).map_or(0, |pair| pair.len()),
    }
}

/// Returns the length of the first YAML node, or of its part on this line.
fn of_node(before: &str, rest: &str) -> usize {
    match rest.chars().next() {
        Some(quote @ ('"' | '\'')) => of_quoted(rest, quote),
        Some('[' | '{') => of_brackets(rest),
        _ if rest.starts_with(OPEN) => rest.find("}}").map_or(OPEN.len(), |end| end + 2),
        _ => of_plain(before, rest),
    }
}

/// Measures up to the closing quote. `\"` and `''` do not close.
fn of_quoted(rest: &str, quote: char) -> usize {
    let mut characters = rest.char_indices().skip(1).peekable();
    while let Some((offset, character)) = characters.next() {
        let doubled = quote == '\'' && characters.peek().is_some_and(|(_, next)| *next == quote);
        if (character == '\\' && quote == '"') || (character == quote && doubled) {
            characters.next();
        } else if character == quote {
            return offset + quote.len_utf8();
        }
    }
    rest.trim_end().len()
}

/// Measures up to the bracket that closes the first one. Returns 1 if that is on another line.
fn of_brackets(rest: &str) -> usize {
    let mut depth = 0_usize;
    let mut quoted = None;
    for (offset, character) in rest.char_indices() {
        match (quoted, character) {
            (Some(quote), _) if quote == character => quoted = None,
            (None, '"' | '\'') => quoted = Some(character),
            (None, '[' | '{') => depth += 1,
            (None, ']' | '}') => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return offset + character.len_utf8();
                }
            }
            _ => {}
        }
    }
    1
}

/// Measures a key up to its colon, or a plain scalar up to its end or a comment.
fn of_plain(before: &str, rest: &str) -> usize {
    let count = |brackets: [char; 2]| before.matches(brackets).count();
    let in_flow = count(['[', '{']) > count([']', '}']);
    let mut end = rest.len();
    let mut previous = ' ';
    for (offset, character) in rest.char_indices() {
        let next = rest.get(offset + character.len_utf8()..).and_then(|rest| rest.chars().next());
        let ends = match character {
            ':' => next.is_none_or(char::is_whitespace),
            '#' => previous == ' ',
            ',' | ']' | '}' => in_flow,
            _ => false,
        };
        if ends && offset > 0 {
            end = offset;
            break;
        }
        previous = character;
    }
    rest.get(..end).unwrap_or(rest).trim_end().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the item at a column, counted from 1.
    fn pointed(line: &str, column: usize) -> &str {
        line.get(extent(line, column - 1)).unwrap()
    }

    #[test]
    fn things_are_taken_whole() {
        assert_eq!(pointed("  comand: [sh]", 3), "comand");
        assert_eq!(pointed("  comand: [sh, \"]\"] # x", 11), "[sh, \"]\"]");
        assert_eq!(pointed("- {name: a b, x: 1}", 10), "a b");
        assert_eq!(pointed("name: a b, c # why", 7), "a b, c");
        assert_eq!(pointed("name: 'it''s'", 7), "'it''s'");
        assert_eq!(pointed("name: \"a\\\"b\" ", 7), "\"a\\\"b\"");
        assert_eq!(pointed("func: ./x#y:1", 7), "./x#y:1");
        assert_eq!(pointed("run: [", 6), "[");
    }

    #[test]
    fn inside_expressions_tokens_count() {
        assert_eq!(pointed("v: ${{ inputs.nmae }}", 15), "nmae");
        assert_eq!(pointed("v: ${{ 1 + }}", 12), "}}");
        assert_eq!(pointed("v: a ${{ 1", 6), "${{");
        assert_eq!(pointed("v: ${{ a }} ${{ b }}", 4), "${{ a }}");
        assert_eq!(pointed("v: ${{ 'a b' + 1 }}", 8), "'a b'");
        assert_eq!(pointed("v: ${{ a }} b", 13), "b");
    }

    #[test]
    fn nothing_is_at_the_end_of_a_line() {
        assert_eq!(extent("ab", 2), 2..2);
        assert_eq!(extent("", 0), 0..0);
    }
}
