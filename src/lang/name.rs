//! Names (language.md §6), how messages show them, and the search for the name that was meant.

use std::borrow::Cow;

/// Whether it is a valid name of a step, input, output or environment variable: `[A-Za-z_][A-Za-z0-9_]*`
/// (language.md §6).
pub fn is_valid(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Longest text of a document that messages and paths show.
const SHOWN: usize = 64;

/// A text of a document as messages and paths show it: on one line, without control characters, cut where it is long.
pub fn shown(text: &str) -> Cow<'_, str> {
    if text.len() <= SHOWN
        && text.chars().all(|character| character.is_alphanumeric() || "_-. ".contains(character))
    {
        return Cow::Borrowed(text);
    }
    let cut = text.char_indices().nth(SHOWN).map(|(cut, _)| cut);
    let escaped = text.get(..cut.unwrap_or(text.len())).unwrap_or_default().escape_debug();
    Cow::Owned(format!("{escaped}{}", if cut.is_some() { "…" } else { "" }))
}

/// What is wrong with an invalid name (language.md §18 `name`); `what` is `step`, `input`, ….
pub fn complaint(what: &str, name: &str) -> String {
    format!(
        "\"{}\" is not a valid {what} name: letters, digits and _, not starting with a digit",
        shown(name)
    )
}

/// Longest name for which a similar one is searched; the search costs the product of the lengths.
const LONGEST: usize = 64;

/// Most names among which a similar one is searched.
const SEARCHED: usize = 1_000;

/// The known name most similar to `name`, if it is similar enough to be a slip of the pen.
pub fn suggest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let is_slip = |(distance, candidate): &(usize, &str)| {
        *distance <= name.chars().count().max(candidate.chars().count()) / 3
    };
    measured(name, known)
        .into_iter()
        .filter(is_slip)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// The `count` known names most similar to `name`, the most similar first, of equals the first by name.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>, count: usize) -> Vec<&'a str> {
    let mut all = measured(name, known);
    all.sort_unstable();
    all.into_iter().take(count).map(|(_, name)| name).collect()
}

/// Known names with their distances, as far as the search goes.
fn measured<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Vec<(usize, &'a str)> {
    let wanted: Vec<char> = name.chars().flat_map(char::to_lowercase).take(LONGEST + 1).collect();
    if wanted.len() > LONGEST {
        return Vec::new();
    }
    let known = known.into_iter().take(SEARCHED).filter(|candidate| candidate.len() <= LONGEST);
    known
        .map(|candidate| {
            let letters: Vec<char> = candidate.chars().flat_map(char::to_lowercase).collect();
            (edit_distance(&wanted, &letters), candidate)
        })
        .collect()
}

/// Number of insertions, deletions and replacements that turn `a` into `b`; a swap of neighbours counts one.
fn edit_distance(a: &[char], b: &[char]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut next = Vec::with_capacity(b.len() + 1);
        next.push(i + 1);
        for (j, y) in b.iter().enumerate() {
            let replaced = row[j] + usize::from(x != y);
            let mut best = replaced.min(row[j + 1] + 1).min(next[j] + 1);
            if i > 0 && j > 0 && a[i - 1] == *y && *x == b[j - 1] {
                best = best.min(before[j - 1] + 1);
            }
            next.push(best);
        }
        before = std::mem::replace(&mut row, next);
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ascii_words_are_names() {
        assert!(["a", "_", "A1_b"].into_iter().all(is_valid));
        assert!(!["", "1a", "a b", "a-b", "a\n", "ä"].into_iter().any(is_valid));
    }

    #[test]
    fn slips_of_the_pen_find_the_name_that_was_meant() {
        let known = ["command", "work_dir", "cancel_timeout"];
        assert_eq!(suggest("comand", known), Some("command"));
        assert_eq!(suggest("workdir", known), Some("work_dir"));
        assert_eq!(suggest("Command", known), Some("command"));
        assert_eq!(suggest("commnad", known), Some("command"));
        assert_eq!(suggest("zzz", known), None);
        assert_eq!(suggest("a", ["b"]), None);
    }
}
