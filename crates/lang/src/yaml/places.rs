//! Maps a place in a scalar's text to its place in the file, through escapes, folding and indentation.

use std::ops::Range;

use super::{Source, Style};
use crate::diagnostic::Position;

/// Longest run in characters. A lookup reads at most one run.
const RUN_LENGTH: usize = 64;

/// Places of the characters of one scalar.
#[derive(Debug)]
pub(crate) struct Places {
    /// Byte offset in the text at which each run starts, and its place in the file. Columns count up within a run.
    runs: Vec<(usize, Position)>,
}

impl Places {
    /// Makes places for a `text` that the file holds verbatim from `at` on.
    pub(crate) fn inline(text: &str, at: Position) -> Self {
        let mut places = Self { runs: Vec::new() };
        let mut cursor = at;
        for (count, (offset, character)) in text.char_indices().enumerate() {
            if count % RUN_LENGTH == 0 || cursor.column == 1 {
                places.runs.push((offset, cursor));
            }
            advance(&mut cursor, character);
        }
        places.runs.push((text.len(), cursor));
        places
    }

    /// Makes places for the text of a scalar that starts at `at` and is written as the bytes `raw`. From the first
    /// difference between text and source on, columns count up from the scalar's own place.
    pub(crate) fn of_scalar(
        source: &Source<'_>,
        raw: &Range<usize>,
        style: Style,
        at: Position,
        text: &str,
    ) -> Self {
        let Some(raw) = source.text.get(raw.clone()) else { return Self { runs: vec![(0, at)] } };
        let mut reader = Reader::new(raw, style, at);
        let mut places = Self { runs: Vec::new() };
        let mut expected = None;
        let mut length = 0;
        for (offset, character) in text.char_indices() {
            let Some(found) = reader.next(character) else {
                places.runs.push((offset, at));
                return places;
            };
            length += 1;
            if expected != Some(found) || length >= RUN_LENGTH {
                places.runs.push((offset, found));
                length = 0;
            }
            expected = Some(Position { line: found.line, column: found.column.saturating_add(1) });
        }
        places.runs.push((text.len(), reader.at));
        places
    }

    /// Returns the place of the character at a byte offset of `text`, from which this was made.
    pub(crate) fn at(&self, text: &str, offset: usize) -> Position {
        let next = self.runs.partition_point(|(start, _)| *start <= offset);
        let Some((start, at)) = next.checked_sub(1).and_then(|index| self.runs.get(index)) else {
            return Position::START;
        };
        let between = text.get(*start..offset).map_or(0, |skipped| skipped.chars().count());
        Position {
            line: at.line,
            column: at.column.saturating_add(u32::try_from(between).unwrap_or(u32::MAX)),
        }
    }
}

fn advance(at: &mut Position, character: char) {
    if character == '\n' {
        *at = Position { line: at.line.saturating_add(1), column: 1 };
    } else {
        at.column = at.column.saturating_add(1);
    }
}

/// Walks through the source of a scalar in step with its text.
struct Reader<'t> {
    rest: std::iter::Peekable<std::str::Chars<'t>>,
    style: Style,
    at: Position,
    /// True if the last character was white space, which folding and indentation make ambiguous.
    in_space: bool,
}

impl<'t> Reader<'t> {
    fn new(raw: &'t str, style: Style, at: Position) -> Self {
        let mut reader = Self { rest: raw.chars().peekable(), style, at, in_space: false };
        // The source of a block scalar starts with its content, that of a quoted one with its quote.
        if matches!(style, Style::Single | Style::Double) {
            reader.bump();
        }
        reader
    }

    fn bump(&mut self) -> Option<char> {
        let character = self.rest.next()?;
        advance(&mut self.at, character);
        Some(character)
    }

    fn skip_space(&mut self) {
        while self.rest.peek().is_some_and(|next| next.is_whitespace()) {
            self.bump();
        }
    }

    /// Returns the place of the text's next character; `None` if the source differs.
    fn next(&mut self, character: char) -> Option<Position> {
        if self.style == Style::Double && self.rest.peek() == Some(&'\\') {
            return self.escape(character);
        }
        if character.is_whitespace() {
            let at = self.at;
            // White space matches itself within a line. At line ends, the next word synchronises text and source.
            if self.rest.peek() == Some(&character) && !(self.in_space && self.at.column == 1) {
                self.bump();
            }
            self.in_space = true;
            return Some(at);
        }
        if self.rest.peek() != Some(&character) {
            self.skip_space();
            if self.style == Style::Double && self.rest.peek() == Some(&'\\') {
                return self.escape(character);
            }
        }
        self.in_space = false;
        let at = self.at;
        if self.bump()? != character {
            return None;
        }
        if self.style == Style::Single && character == '\'' {
            self.bump();
        }
        Some(at)
    }

    fn escape(&mut self, character: char) -> Option<Position> {
        let at = self.at;
        self.bump();
        let digits = match self.bump()? {
            '\n' | '\r' => {
                self.skip_space();
                return self.next(character);
            }
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ => 0,
        };
        for _ in 0..digits {
            self.bump();
        }
        // The second half of a surrogate pair.
        if digits == 4 && u32::from(character) > 0xffff {
            for _ in 0..6 {
                self.bump();
            }
        }
        self.in_space = character.is_whitespace();
        Some(at)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{NodeKind, read};
    use super::*;

    /// Returns the place of `#` in the only value of a mapping.
    fn place(yaml: &str) -> (u32, u32) {
        let source = Source { file: Arc::from("f"), text: yaml };
        let stream = read(&source, 1);
        let NodeKind::Mapping(entries) = &stream.documents[0].as_ref().unwrap().kind else {
            panic!("mapping")
        };
        let value = &entries[0].value;
        let NodeKind::Scalar(scalar) = &value.kind else { panic!("scalar") };
        let places = Places::of_scalar(&source, &scalar.raw, scalar.style, value.at, &scalar.text);
        let at = places.at(&scalar.text, scalar.text.find('#').unwrap());
        (at.line, at.column)
    }

    #[test]
    fn places_are_exact_in_every_style() {
        assert_eq!(place("k: a#b"), (1, 5));
        assert_eq!(place("k: a\n  b\n\n  c#"), (4, 4));
        assert_eq!(place("k: 'it''s #'"), (1, 11));
        assert_eq!(place("k: \"\\n\\t\\x41\\u00e9\\uD83D\\uDE00 é#\""), (1, 33));
        assert_eq!(place("k: \"one\n  two \\\n   three #\""), (3, 10));
        assert_eq!(place("k: |\n  one\n    two #\n"), (3, 9));
        assert_eq!(place("k: |2- # comment\n  one\n\n  #\n"), (4, 3));
        assert_eq!(place("k: >\n  one\n  two\n  #\n"), (4, 3));
    }

    #[test]
    fn long_lines_have_exact_places_too() {
        let yaml = format!("k: {}#", "é".repeat(1000));
        assert_eq!(place(&yaml), (1, 1004));
    }
}
