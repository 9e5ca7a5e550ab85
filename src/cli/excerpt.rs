//! Shows findings to people: header, place, the line of the source, a pointer, and what to do.

use std::borrow::Cow;
use std::cell::Cell;
use std::ops::Range;

use annotate_snippets::renderer::DecorStyle;
use annotate_snippets::{Annotation, AnnotationKind, Group, Level, Origin, Renderer, Snippet};

use super::secrets;
use super::states::printable;
use crate::lang::diagnostic::{Diagnostic, Position, Severity};
use crate::lang::extent::extent;
use crate::lang::reference::passwords_in;
use crate::log::mask::MASK_TEXT;

/// Columns of the output. Of a longer line only the part around the place is shown.
const WIDTH: usize = 140;

/// A text split into lines, as the YAML reader counts them.
pub(super) struct Lines<'t> {
    text: &'t str,
    /// Offsets where lines start.
    starts: Vec<usize>,
    /// Place looked up last and its offset in its line: the next search starts there, because lines may be long.
    last: Cell<(Position, usize)>,
}

impl<'t> Lines<'t> {
    pub(super) fn of(text: &'t str) -> Self {
        let bytes = text.as_bytes();
        let breaks = memchr::memchr2_iter(b'\n', b'\r', bytes)
            .filter(|at| bytes.get(*at) == Some(&b'\n') || bytes.get(at + 1) != Some(&b'\n'));
        let starts = std::iter::once(0).chain(breaks.map(|at| at + 1)).collect();
        Self { text, starts, last: Cell::new((Position::START, 0)) }
    }

    /// Returns a line without its end, or an empty one beyond the last.
    pub(super) fn line(&self, number: u32) -> &'t str {
        let index = usize::try_from(number).unwrap_or(usize::MAX).saturating_sub(1);
        let Some(start) = self.starts.get(index) else { return "" };
        let end = self.starts.get(index + 1).copied().unwrap_or(self.text.len());
        self.text.get(*start..end).unwrap_or_default().trim_end_matches(['\n', '\r'])
    }
}

impl Lines<'_> {
    /// Returns the bytes of the line that the thing at a place takes.
    fn extent(&self, at: Position) -> Range<usize> {
        let line = self.line(at.line);
        let (last, offset) = self.last.get();
        let (column, offset) =
            if last.line == at.line && last.column <= at.column { (last.column, offset) } else { (1, 0) };
        let rest = line.get(offset..).unwrap_or_default();
        let skipped = usize::try_from(at.column.saturating_sub(column)).unwrap_or(usize::MAX);
        let start = rest.char_indices().nth(skipped).map_or(line.len(), |(skipped, _)| offset + skipped);
        self.last.set((at, start));
        extent(line, start)
    }
}

/// Returns the column after the thing at a place, counted from 1 in characters.
pub(super) fn end_column(lines: &Lines<'_>, at: Position) -> u32 {
    let line = lines.line(at.line);
    let length = line.get(lines.extent(at)).map_or(0, |thing| thing.chars().count());
    at.column.saturating_add(u32::try_from(length).unwrap_or(u32::MAX))
}

fn renderer(color: bool) -> Renderer {
    let renderer = if color { Renderer::styled() } else { Renderer::plain() };
    renderer.decor_style(DecorStyle::Ascii).term_width(WIDTH)
}

/// Shows an error in something outside the text, such as an option, with the line of the text that it violates, and
/// help.
pub(super) fn about(message: &str, file: &str, place: Option<(Position, &Lines<'_>)>, help: &str) -> String {
    let (message, file, help) = (printable(message), printable(file), printable(help));
    let title = Level::ERROR.primary_title(message.as_str());
    let report = match place {
        Some((at, lines)) => title.element(snippet(lines, at, &file, None)),
        None => title.element(Origin::path(file.as_str())),
    };
    rendered(report.element(Level::HELP.message(help.as_str())), place, &file, true)
}

fn snippet<'s>(
    lines: &Lines<'s>,
    at: Position,
    file: &'s str,
    label: Option<&'s str>,
) -> Snippet<'s, Annotation<'s>> {
    let (line, extent) = shown(lines, at);
    let pointer = AnnotationKind::Primary.span(extent).label(label);
    let source = Snippet::source(line).line_start(at.line as usize).path(file);
    source.fold(false).annotation(pointer)
}

/// Renders a report with the line at a place of a file. The renderer counts the column in the line as it is shown, where
/// a secret may have another length.
fn rendered(report: Group<'_>, place: Option<(Position, &Lines<'_>)>, file: &str, color: bool) -> String {
    let mut text = renderer(color).render(&[report]);
    text.push('\n');
    let Some((at, lines)) = place else { return text };
    let (line, extent) = shown(lines, at);
    if matches!(line, Cow::Borrowed(_)) {
        return text;
    }
    let column = 1 + line.get(..extent.start).map_or(0, |before| before.chars().count());
    let [wrong, right] = [column, at.column as usize].map(|column| format!("{file}:{}:{column}\n", at.line));
    text.replacen(&wrong, &right, 1)
}

/// Returns the line at a place as it is shown, and the bytes in it that the thing there takes.
fn shown<'s>(lines: &Lines<'s>, at: Position) -> (Cow<'s, str>, Range<usize>) {
    let (line, extent) = (lines.line(at.line), lines.extent(at));
    // Hidden before the renderer cuts a long line, maybe within a secret.
    let shown = hidden(line);
    let extent = if matches!(shown, Cow::Owned(_)) { extent_in(&shown, line, extent) } else { extent };
    (shown, extent)
}

/// Returns a line without the secrets of the submitted job, sensitive texts of documents and passwords of URLs.
fn hidden(line: &str) -> Cow<'_, str> {
    let shown = secrets::hide_in_line(line);
    let passwords = passwords_in(&shown);
    if passwords.is_empty() {
        return shown;
    }
    let mut shown = shown.into_owned();
    for password in passwords.into_iter().rev() {
        shown.replace_range(password, MASK_TEXT);
    }
    shown.into()
}

/// Returns where the bytes `extent` of `line` are in `shown`, which is the line [`hidden`]: all of it if a secret lies
/// across their start or end.
fn extent_in(shown: &str, line: &str, extent: Range<usize>) -> Range<usize> {
    let before = line.get(..extent.start).map(hidden).unwrap_or_default();
    let after = line.get(extent.end..).map(hidden).unwrap_or_default();
    let end = shown.len().saturating_sub(after.len());
    if shown.starts_with(&*before) && shown.ends_with(&*after) && before.len() <= end {
        before.len()..end
    } else {
        0..shown.len()
    }
}

/// Shows a finding with its line of the source, if that is at hand.
pub(super) fn render(finding: &Diagnostic, lines: Option<&Lines<'_>>, color: bool) -> String {
    let level = match finding.severity {
        Severity::Error => Level::ERROR,
        Severity::Warning => Level::WARNING,
    };
    let message = printable(&finding.message);
    let file = printable(&finding.file);
    let help = finding.help.as_deref().map(printable);
    let path = printable(&finding.path);
    let title = level.primary_title(message.as_str()).id(finding.class.word());
    let mut report = match lines {
        Some(lines) => {
            let label = (!path.is_empty()).then_some(path.as_str());
            title.element(snippet(lines, finding.at, &file, label))
        }
        None => title.element(
            Origin::path(file.as_str())
                .line(finding.at.line as usize)
                .char_column(finding.at.column as usize),
        ),
    };
    if let Some(help) = &help {
        report = report.element(Level::HELP.message(help.as_str()));
    }
    rendered(report, lines.map(|lines| (finding.at, lines)), &file, color)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::lang::diagnostic::Class;

    fn shown(text: &str, line: u32, column: u32) -> String {
        let finding =
            Diagnostic::error(Class::Schema, &Arc::from("f.yml"), Position { line, column }, "wrong")
                .with_path("a.b")
                .with_help("right it");
        render(&finding, Some(&Lines::of(text)), false)
    }

    #[test]
    fn header_place_line_pointer_and_help() {
        assert_eq!(
            shown("x: 1\ncomand: y\n", 2, 1),
            "error[schema]: wrong\n --> f.yml:2:1\n  |\n2 | comand: y\n  | ^^^^^^ a.b\n  |\n  = help: right it\n"
        );
    }

    #[test]
    fn pointers_are_right_behind_tabs_and_wide_characters_and_with_crlf() {
        for (text, column) in [("日本: \tbad\r\n", 6), ("a:\tbad\r", 4), ("é\u{301}: bad", 5)] {
            let shown = shown(text, 1, column);
            let lines: Vec<&str> = shown.lines().collect();
            let width = |text: &str| {
                text.chars()
                    .map(|c| if ('日'..='本').contains(&c) { 2 } else { usize::from(c != '\u{301}') })
                    .sum::<usize>()
            };
            let before = lines[3].split("bad").next().unwrap();
            assert_eq!(width(before), lines[4].find('^').unwrap(), "{shown}");
            assert!(lines[4].contains("^^^ a.b"), "{shown}");
        }
    }

    #[test]
    fn a_long_line_is_cut_around_its_place() {
        let line = format!("{}: bad, {}", "k".repeat(100_000), "v".repeat(100_000));
        let shown = shown(&line, 1, 100_003);
        assert!(shown.len() < 1_500 && shown.contains("f.yml:1:100003"), "{shown}");
        assert!(shown.contains("k: bad, vv"), "{shown}");
    }

    #[test]
    fn a_place_beyond_the_text_and_control_bytes_do_no_harm() {
        assert!(shown("a", 9, 9).contains("f.yml:9"));
        assert!(!shown("a\x1b[31m: b", 1, 1).contains('\x1b'));
    }

    #[test]
    fn passwords_of_urls_are_hidden_and_the_pointer_stays() {
        let line = "- {name: a, func: \"https://u:pass@h/p@v1\", iff: x}";
        assert_eq!(
            shown(line, 1, 44),
            concat!(
                "error[schema]: wrong\n --> f.yml:1:44\n  |\n",
                "1 | - {name: a, func: \"https://u:[MASKED]@h/p@v1\", iff: x}\n",
                "  |                                                ^^^ a.b\n",
                "  |\n  = help: right it\n"
            )
        );
        let whole = shown(line, 1, 19);
        assert!(
            whole.contains("f.yml:1:19\n") && whole.contains(&format!("  | {:18}{:^<27} a.b\n", "", "")),
            "{whole}"
        );
        // A place within a password.
        let within = shown(line, 1, 32);
        assert!(within.contains("f.yml:1:32\n") && !within.contains("pass"), "{within}");
        // Colours do not stand between place and line end.
        let finding =
            Diagnostic::error(Class::Schema, &Arc::from("f.yml"), Position { line: 1, column: 44 }, "wrong");
        assert!(render(&finding, Some(&Lines::of(line)), true).contains("f.yml:1:44\n"));
    }

    #[test]
    fn lines_end_as_yaml_lines_do() {
        let lines = Lines::of("a\r\nb\rc\n\nd");
        assert_eq!((1..=6).map(|n| lines.line(n)).collect::<Vec<_>>(), ["a", "b", "c", "", "d", ""]);
    }
}
