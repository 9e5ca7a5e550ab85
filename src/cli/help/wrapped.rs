//! Fits the texts of help topics to the terminal.

use super::super::text;

/// Fewest blanks between a label and its text.
const GAP: &str = "  ";

/// Returns the text with no line wider than `columns`. Lines of one paragraph flow together; a text behind a label, as in a
/// table, stays in its column.
pub(super) fn fit(text: &str, columns: usize) -> String {
    let mut fitted = String::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if line.chars().count() <= columns {
            fitted.push_str(line);
            fitted.push('\n');
            continue;
        }
        let hang = column_of_text(line).min(columns / 2);
        let (label, rest) = split_at(line, hang);
        let mut rest = rest.to_owned();
        while let Some(next) = lines.next_if(|next| continues(next, column_of_text(line))) {
            rest.push(' ');
            rest.push_str(next.trim_start());
        }
        let mut label = label.to_owned();
        text::wrap(&rest, columns.saturating_sub(hang).max(1), "", |row| {
            fitted.push_str(format!("{label}{row}").trim_end());
            fitted.push('\n');
            label = " ".repeat(hang);
        });
    }
    fitted
}

/// Returns the column in which the text behind the indentation and a label begins.
fn column_of_text(line: &str) -> usize {
    let indent = line.len() - line.trim_start_matches(' ').len();
    let words = line.get(indent..).unwrap_or_default();
    let Some(gap) = words.find(GAP) else { return indent };
    let behind = words.get(gap..).unwrap_or_default();
    indent + gap + (behind.len() - behind.trim_start_matches(' ').len())
}

/// True if a line goes on with the text that begins in this column of the line before.
fn continues(line: &str, column: usize) -> bool {
    let indent = line.len() - line.trim_start_matches(' ').len();
    !line.trim().is_empty() && indent == column && column_of_text(line) == indent
}

fn split_at(line: &str, column: usize) -> (&str, &str) {
    line.split_at_checked(column).unwrap_or(("", line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_stay_behind_their_labels_and_paragraphs_flow() {
        let text = "HEAD\n\n  NAME     a text of several words that is long\n           and goes on\n  B        short\n\nA paragraph of more than thirty columns\nin two lines.\n";
        assert_eq!(
            fit(text, 30),
            "HEAD\n\n  NAME     a text of several\n           words that is long\n           and goes on\n  B        short\n\nA paragraph of more than\nthirty columns in two lines.\n"
        );
        assert_eq!(fit(text, 200), text);
    }
}
