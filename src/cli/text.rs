//! Text that cannot leave its line: cleaning, measuring and wrapping.

use unicode_width::UnicodeWidthChar as _;

use crate::model::text::{code_point, is_directional};

/// Columns from one tab stop to the next.
const TAB: usize = 8;

/// Most bytes of colour sequences that a wrapped line carries from row to row.
const MAX_ACTIVE: usize = 128;

const RESET: &str = "\x1b[0m";

/// Escapes control characters of a name, and marks that change the direction of writing.
pub(super) fn clean(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for character in name.chars() {
        if character.is_control() {
            out.extend(character.escape_default());
        } else if is_directional(character) {
            out.push_str(&code_point(character));
        } else {
            out.push(character);
        }
    }
    out
}

/// Returns the columns that a cleaned text takes, without its colour sequences.
pub(super) fn width(text: &str) -> usize {
    let mut width = 0;
    for piece in (Pieces { rest: text }) {
        if let Piece::Character(character) = piece {
            width += columns(character);
        }
    }
    width
}

/// Cuts a cleaned text without colours to `columns`; an ellipsis marks the cut.
pub(super) fn cut(text: &str, limit: usize) -> String {
    if width(text) <= limit {
        return text.to_owned();
    }
    let mut out = String::new();
    let mut used = 1;
    for character in text.chars() {
        used += columns(character);
        if used > limit {
            break;
        }
        out.push(character);
    }
    if limit > 0 {
        out.push('…');
    }
    out
}

/// Returns an upper bound of the columns of a character. Terminals differ about emoji: the variation selector that asks
/// for one may widen the character before it.
fn columns(character: char) -> usize {
    if character == '\u{fe0f}' { 1 } else { character.width().unwrap_or(0) }
}

enum Piece<'a> {
    Color(&'a str),
    Character(char),
}

/// Splits text into characters and the colour sequences that a [`crate::log::pretty::Printer`] lets pass.
struct Pieces<'a> {
    rest: &'a str,
}

impl<'a> Iterator for Pieces<'a> {
    type Item = Piece<'a>;

    fn next(&mut self) -> Option<Piece<'a>> {
        if self.rest.starts_with("\x1b[")
            && let Some(end) = self.rest.find('m')
        {
            let (color, rest) = self.rest.split_at(end + 1);
            self.rest = rest;
            return Some(Piece::Color(color));
        }
        let mut characters = self.rest.chars();
        let character = characters.next()?;
        self.rest = characters.as_str();
        Some(Piece::Character(character))
    }
}

/// Splits `text` into rows of at most `limit` columns, between words where there are any, and gives each to `row`.
///
/// `text` holds no control characters but tabs and, if colours are wanted, complete colour sequences. `base` is a
/// colour sequence for all of it, or empty; every row with colours ends with a reset.
pub(super) fn wrap(text: &str, limit: usize, base: &str, row: impl FnMut(&str)) {
    let limit = limit.max(1);
    let mut row = row;
    let is_plain = text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    if is_plain && text.len() <= limit {
        if base.is_empty() {
            row(text.trim_end());
        } else {
            row(&format!("{base}{}{RESET}", text.trim_end()));
        }
        return;
    }
    let mut wrapping = Wrapping::new(limit, base, row);
    for piece in (Pieces { rest: text }) {
        match piece {
            Piece::Color(color) => wrapping.color(color),
            Piece::Character(' ') => wrapping.space(1),
            Piece::Character('\t') => wrapping.tab(),
            Piece::Character(character) if is_directional(character) => {
                code_point(character).chars().for_each(|character| wrapping.character(character));
            }
            Piece::Character(character) if character.is_control() => {
                character.escape_default().for_each(|character| wrapping.character(character));
            }
            Piece::Character(character) => wrapping.character(character),
        }
    }
    wrapping.finish();
}

#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a fact of its own about the row, the word or the line"
)]
struct Wrapping<'a, F> {
    limit: usize,
    base: &'a str,
    give: F,
    row: String,
    used: usize,
    /// Blanks between the row so far and the word that is collected.
    blanks: usize,
    word: String,
    word_width: usize,
    /// Colours in force at the end of the word so far, and before the word.
    active: String,
    active_before: String,
    /// True if colours occur, so that rows end with a reset.
    has_color: bool,
    /// True if the word, or the row, holds a character, even one without width.
    has_characters: bool,
    is_filled: bool,
    /// True until the first row is complete: the line's own indentation stays.
    is_first: bool,
}

impl<'a, F: FnMut(&str)> Wrapping<'a, F> {
    fn new(limit: usize, base: &'a str, give: F) -> Self {
        Self {
            limit,
            base,
            give,
            row: base.to_owned(),
            used: 0,
            blanks: 0,
            word: String::new(),
            word_width: 0,
            active: String::new(),
            active_before: String::new(),
            has_color: !base.is_empty(),
            has_characters: false,
            is_filled: false,
            is_first: true,
        }
    }

    fn color(&mut self, color: &str) {
        self.has_color = true;
        self.word.push_str(color);
        if matches!(color, "\x1b[m" | RESET | "\x1b[0;m" | "\x1b[;m") {
            self.active.clear();
            self.word.push_str(self.base);
        } else {
            if self.active.len() + color.len() > MAX_ACTIVE {
                self.active.clear();
            }
            if color.len() <= MAX_ACTIVE {
                self.active.push_str(color);
            }
        }
    }

    fn space(&mut self, count: usize) {
        self.end_word();
        self.blanks += count;
    }

    fn tab(&mut self) {
        self.end_word();
        let column = self.used + self.blanks;
        self.blanks += TAB - column % TAB;
    }

    fn character(&mut self, character: char) {
        let (character, columns) = match columns(character) {
            columns if columns > self.limit => ('?', 1),
            columns => (character, columns),
        };
        if self.word_width + columns > self.limit {
            // The word is longer than any row: the part so far is output.
            self.end_word();
        }
        self.word.push(character);
        self.word_width += columns;
        self.has_characters = true;
    }

    fn end_word(&mut self) {
        if self.word.is_empty() {
            return;
        }
        if self.used == 0 {
            // The line's own indentation stays, within reason.
            self.blanks = if self.is_first { self.blanks.min(self.limit / 2) } else { 0 };
        }
        if self.used + self.blanks + self.word_width > self.limit {
            if self.used > 0 {
                self.end_row();
            }
            self.blanks = 0;
        }
        self.row.extend(std::iter::repeat_n(' ', self.blanks));
        self.used += self.blanks + self.word_width;
        self.blanks = 0;
        self.row.push_str(&self.word);
        self.is_filled |= self.has_characters;
        self.word.clear();
        self.word_width = 0;
        self.has_characters = false;
        self.active_before.clone_from(&self.active);
    }

    fn end_row(&mut self) {
        if self.has_color {
            self.row.push_str(RESET);
        }
        (self.give)(&self.row);
        self.row.clear();
        self.row.push_str(self.base);
        self.row.push_str(&self.active_before);
        self.used = 0;
        self.is_filled = false;
        self.is_first = false;
    }

    fn finish(mut self) {
        self.end_word();
        if self.is_filled || self.is_first {
            self.end_row();
        }
    }
}
