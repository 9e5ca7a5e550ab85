//! Names (language.md §6), and the search for the name that a misspelt one meant.

use step_runner_model::text::quote;

/// Maximum length of a name in bytes (language.md §6). Results and states hold the names of steps, and must fit into the
/// messages that clients accept.
const MAX_NAME: usize = 4 << 10;

/// True for a valid name of a step, input, output or environment variable (language.md §6): `[A-Za-z_][A-Za-z0-9_]*`, at
/// most [`MAX_NAME`] bytes.
pub(crate) fn is_valid(name: &str) -> bool {
    let mut bytes = name.bytes();
    name.len() <= MAX_NAME
        && bytes.next().is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Returns the message for an invalid name (language.md §18 `name`). `what` is `step`, `input`, ….
pub(crate) fn complaint(what: &str, name: &str) -> String {
    if name.len() > MAX_NAME {
        return format!("a {what} name of {} bytes is too long: at most {MAX_NAME} are allowed", name.len());
    }
    format!(
        "\"{}\" is not a valid {what} name: letters, digits and _, not starting with a digit",
        quote(name)
    )
}

/// Longest name for which a similar one is searched. The search costs the product of the lengths.
const LONGEST: usize = 64;

/// Maximum number of names among which a similar one is searched.
const SEARCHED: usize = 1_000;

/// Returns the known name most similar to `name`, if it is similar enough to be a typing error.
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

/// Returns the `count` known names most similar to `name`, ordered by distance and then by name.
pub(crate) fn nearest<'a>(
    name: &str,
    known: impl IntoIterator<Item = &'a str>,
    count: usize,
) -> Vec<&'a str> {
    let mut all = measured(name, known);
    all.sort_unstable();
    all.into_iter().take(count).map(|(_, name)| name).collect()
}

/// Returns known names with their distances, within [`LONGEST`] and [`SEARCHED`].
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

/// Returns the number of insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`.
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
    fn fault_107_a_name_has_a_greatest_length() {
        assert!(is_valid(&"a".repeat(MAX_NAME)));
        let long = "a".repeat(MAX_NAME + 1);
        assert!(!is_valid(&long));
        assert_eq!(
            complaint("step", &long),
            "a step name of 4097 bytes is too long: at most 4096 are allowed"
        );
    }

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
