//! Shows the reference page on a terminal: headings, tables in columns, examples indented. Other Markdown is not known.

use anstyle::{AnsiColor, Style};

/// Renders a page, or a part of one, for people; with styles if `color`.
pub(super) fn render(page: &str, color: bool) -> String {
    let mut text = String::new();
    let mut table: Vec<Vec<String>> = Vec::new();
    let mut in_example = false;
    for line in page.lines() {
        if !in_example && line.starts_with('|') {
            table.push(cells(line));
            continue;
        }
        columns(&std::mem::take(&mut table), &mut text, color);
        if line.starts_with("```") {
            in_example = !in_example;
        } else if in_example {
            text.extend(["    ", line, "\n"]);
        } else if let (true, Some((_, heading))) = (line.starts_with('#') && color, line.split_once(' ')) {
            let style = AnsiColor::Green.on_default().bold();
            let heading = format!("{style}{heading}{style:#}\n");
            text.push_str(&heading);
        } else {
            text.extend([line, "\n"]);
        }
    }
    columns(&table, &mut text, color);
    text
}

/// Returns the part of a page under the heading `## NAME`, up to the next heading of its level.
pub(super) fn section<'p>(page: &'p str, name: &str) -> &'p str {
    let heading = format!("\n## {name}\n");
    let Some(start) = page.find(&heading).map(|at| at + 1) else { return "" };
    let rest = page.get(start..).unwrap_or_default();
    rest.find("\n## ").and_then(|end| rest.get(..end)).unwrap_or(rest)
}

/// Returns the cells of a row. `\|` is no border.
fn cells(row: &str) -> Vec<String> {
    const BAR: &str = "\u{0}";
    let row = row.replace("\\|", BAR);
    let inner = row.trim().trim_start_matches('|').trim_end_matches('|');
    inner.split('|').map(|cell| cell.trim().replace(BAR, "|")).collect()
}

/// Appends a table in columns, without borders. The first row is its head.
fn columns(table: &[Vec<String>], text: &mut String, color: bool) {
    let rows = || table.iter().filter(|row| !row.iter().all(|cell| cell.trim_matches(['-', ':']).is_empty()));
    let width = |column: usize| {
        rows().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..table.iter().map(Vec::len).max().unwrap_or(0)).map(width).collect();
    for (index, row) in rows().enumerate() {
        let style = if color && index == 0 { Style::new().bold() } else { Style::new() };
        let line: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        let line = format!("  {style}{}{style:#}\n", line.join("  ").trim_end());
        text.push_str(&line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# A\n\ntext\n\n## B\n\n| a | b |\n|---|---|\n| `x \\| y` | z |\n\n```yaml run\nk: v\n```\n\n## C\nend\n";

    #[test]
    fn examples_are_indented_and_tables_are_columns() {
        assert_eq!(
            section(PAGE, "B"),
            "## B\n\n| a | b |\n|---|---|\n| `x \\| y` | z |\n\n```yaml run\nk: v\n```\n"
        );
        assert_eq!(
            render(section(PAGE, "B"), false),
            "## B\n\n  a         b\n  `x | y`  z\n\n    k: v\n".replace("a         b", "a        b")
        );
        assert!(section(PAGE, "C").ends_with("end\n"));
    }

    #[test]
    fn headings_are_styled_if_there_are_colours() {
        let shown = render(PAGE, true);
        assert!(shown.contains("\u{1b}[1m\u{1b}[32mA") && !shown.contains('#'), "{shown:?}");
    }
}
