//! Replaces parts of screens that differ from run to run.

use std::fmt::Write as _;

use super::pen;

/// Returns a screen in which placeholders replace times, sizes and bars, and escape sequences are readable.
pub(super) fn normal(screen: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    let mut in_totals = false;
    for line in pen::lines(screen) {
        let plain = without_colors(&line);
        if in_totals
            && plain.starts_with(|c: char| c.is_ascii_digit() || c.is_ascii_lowercase())
            && !is_own(&plain)
        {
            // The place where the totals wrap depends on the figures.
            continue;
        }
        in_totals = plain.starts_with("job succeeded");
        let line = if in_totals {
            let end = line.find(" in ").or_else(|| line.find("in ")).unwrap_or(line.len());
            format!("{}TOTALS", line.get(..end).unwrap_or_default())
        } else {
            without_numbers(&figures(&line))
        };
        lines.push(line.replace('\x1b', "\\e").trim_end().to_owned());
    }
    lines.join("\n") + "\n"
}

/// True once the step of a job has printed `waiting`.
pub(super) fn waits(screen: &str) -> bool {
    screen.lines().any(|line| without_colors(line).trim_end().ends_with(" waiting"))
}

/// True for lines behind the totals that do not belong to them.
fn is_own(line: &str) -> bool {
    line.starts_with("exit code") || line.contains(" = ")
}

/// Replaces the step's number beside a bar, since any of several equal steps can take longest.
fn without_numbers(line: &str) -> String {
    let Some((before, after)) = line.split_once("step").filter(|_| line.contains("BAR")) else {
        return line.to_owned();
    };
    let after = after.trim_start_matches(|c: char| c.is_ascii_digit()).trim_start();
    format!("{before}stepN  {after}")
}

pub(super) fn without_colors(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once('\x1b') {
        out.push_str(before);
        rest = after.split_once('m').map_or("", |(_, rest)| rest);
    }
    out + rest
}

/// Replaces times of day, durations, sizes, bars and spinners.
fn figures(line: &str) -> String {
    let mut out = String::new();
    let characters: Vec<char> = line.chars().collect();
    let mut at = 0;
    while let Some(&first) = characters.get(at) {
        let rest = &characters[at..];
        let is_inside =
            at > 0 && characters[at - 1].is_ascii_alphanumeric() && !follows_color(&characters[..at]);
        if let Some(length) = (!is_inside).then(|| time_of_day(rest)).flatten() {
            out.push_str("HH:MM:SS");
            at += length;
        } else if let Some(length) = (!is_inside).then(|| duration(rest)).flatten() {
            out.push_str("N.Ns");
            at += length;
        } else if is_bar(first) {
            while characters.get(at).is_some_and(|c| is_bar(*c)) {
                at += 1;
            }
            // Blanks fill up the bar, possibly behind the end of its colour.
            let color: String = characters[at..].iter().take_while(|c| **c != ' ').collect();
            at += color.chars().count();
            while characters.get(at) == Some(&' ') {
                at += 1;
            }
            write!(out, "BAR{color} ").ok();
        } else if ('\u{2800}'..='\u{28ff}').contains(&first) {
            out.push('~');
            at += 1;
        } else {
            out.push(first);
            at += 1;
        }
    }
    out
}

fn is_bar(character: char) -> bool {
    ('\u{2588}'..='\u{258f}').contains(&character)
}

/// True if the text `before` ends with an escape sequence.
fn follows_color(before: &[char]) -> bool {
    before.last() == Some(&'m') && before.iter().rev().take(8).any(|c| *c == '\x1b')
}

fn time_of_day(text: &[char]) -> Option<usize> {
    let shape: String = text.iter().take(8).map(|c| if c.is_ascii_digit() { '0' } else { *c }).collect();
    (shape == "00:00:00").then_some(8)
}

/// Returns the length of a duration such as `1.2s` at the start of the text.
fn duration(text: &[char]) -> Option<usize> {
    let digits = text.iter().take_while(|c| c.is_ascii_digit()).count();
    let rest: String = text.get(digits..)?.iter().take(3).collect();
    let mut rest = rest.chars();
    let is_duration = digits > 0
        && rest.next() == Some('.')
        && rest.next().is_some_and(|c| c.is_ascii_digit())
        && rest.next() == Some('s');
    is_duration.then_some(digits + 3)
}
