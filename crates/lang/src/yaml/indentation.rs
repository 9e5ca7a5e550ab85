//! Finds lines indented unlike any line of their block. They cause most syntax errors, but a parser names other causes.

use crate::diagnostic::Position;

/// The indentation of a line near a syntax error.
pub(super) struct Indentation {
    /// Place of the first character of the line.
    pub(super) at: Position,
    /// True if the line begins where lines of the blocks above begin.
    pub(super) fits: bool,
    /// Indentation of the line and of the lines above, in words.
    pub(super) help: String,
}

/// Columns of the blocks open at a line, outermost first.
#[derive(Default)]
struct Blocks {
    levels: Vec<usize>,
    /// An open block scalar: the column of its key and the indentation of its first line.
    scalar: Option<(usize, Option<usize>)>,
    /// True if the last line opens a block, which may begin at any deeper column.
    opens: bool,
}

/// Examines the indentation of `line`, or of the last line with content before it.
pub(super) fn of_line(text: &str, line: u32) -> Option<Indentation> {
    let mut blocks = Blocks::default();
    let mut found = None;
    for (number, line) in (1_u32..=line).zip(text.lines()) {
        let content = line.trim_start_matches(' ');
        let indent = line.len() - content.len();
        if content.trim().is_empty() {
            continue;
        }
        if indent == 0 && content.starts_with("---") {
            blocks = Blocks::default();
            found = None;
            continue;
        }
        if blocks.is_text(indent) || content.starts_with('#') {
            continue;
        }
        let fits = blocks.fits(indent);
        let at =
            Position { line: number, column: u32::try_from(indent).unwrap_or(u32::MAX).saturating_add(1) };
        found = blocks.shown(indent, fits).map(|help| Indentation { at, fits, help });
        blocks.take(indent, content);
    }
    found
}

impl Blocks {
    /// True if the line belongs to the open block scalar.
    fn is_text(&mut self, indent: usize) -> bool {
        match &mut self.scalar {
            Some((key, first @ None)) if indent > *key => {
                *first = Some(indent);
                true
            }
            Some((_, Some(first))) => indent >= *first,
            Some((_, None)) | None => false,
        }
    }

    fn fits(&self, indent: usize) -> bool {
        let deeper = self.levels.last().is_none_or(|last| indent > *last);
        self.levels.contains(&indent)
            || self.levels.is_empty()
            || (self.opens && deeper && self.scalar.is_none())
    }

    fn shown(&self, indent: usize, fits: bool) -> Option<String> {
        let text = self.scalar.and_then(|(_, first)| first);
        let levels: Vec<String> =
            self.levels.iter().copied().chain(text).map(|level| level.to_string()).collect();
        let (last, before) = levels.split_last()?;
        let own = if indent == 1 { "1 space".to_owned() } else { format!("{indent} spaces") };
        let above = match before {
            [] => last.clone(),
            _ => format!("{} or {last}", before.join(", ")),
        };
        Some(if fits {
            format!("check the indentation: this line begins after {own}, lines above after {above}")
        } else {
            format!("this line begins after {own}: indent it by {above} as lines above are")
        })
    }

    fn take(&mut self, indent: usize, content: &str) {
        self.levels.retain(|level| *level < indent);
        self.levels.push(indent);
        let (mut column, mut rest) = (indent, content);
        while let Some(item) = rest.strip_prefix("- ") {
            rest = item.trim_start_matches(' ');
            column = indent + content.len() - rest.len();
            self.levels.push(column);
        }
        let end = rest.split(" #").next().unwrap_or_default().trim_end();
        let header = end.rsplit(' ').next().unwrap_or_default();
        let is_scalar = header.starts_with(['|', '>']) && header.len() <= 3;
        self.scalar = is_scalar.then_some((column, None));
        self.opens = end.ends_with([':', '-', '{', '[', ',']);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> (bool, u32, String) {
        let found = of_line(text, text.lines().count() as u32).unwrap();
        (found.fits, found.at.line, found.help)
    }

    #[test]
    fn a_line_fits_where_lines_above_it_begin() {
        for text in [
            "run:\n  - name: a\n    script: x\n    env:",
            "run:\n  - name: a\n    script: x\n  - name: b",
            "run:\n  - name: a\nenv: {}",
            "a:\n      b:\n         c: 1\n      d: 2",
            "a: |\n      text\n\n     \n      text\nb: 1",
            "- - - a\n    - b",
            "a:\n b: 1\n---\n   c: 1\n   d: 2",
            "a:   # comment\n   b:",
        ] {
            assert!(of(text).0, "{text}");
        }
    }

    #[test]
    fn a_line_that_fits_nowhere_is_shown_with_what_would_fit() {
        for (text, levels) in [
            ("run:\n  - name: a\n   script: x", "3 spaces: indent it by 0, 2 or 4"),
            ("run:\n  - name: a\n     script: x", "5 spaces: indent it by 0, 2 or 4"),
            ("a: 1\n b: 2", "1 space: indent it by 0 as"),
            ("a:\n    b: |\n        text\n      text", "6 spaces: indent it by 0, 4 or 8"),
        ] {
            let (fits, _, help) = of(text);
            assert!(!fits && help.contains(levels), "{text}: {help}");
        }
    }
}
