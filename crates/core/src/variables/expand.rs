//! Expands one value in a single pass from left to right. Inserted text is not expanded again (variables.md §4).

/// The output exceeds the budget.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct OverBudget;

/// Appends the expansion of `value`. `lookup` appends the value of a name to its second argument, or nothing if there
/// is no such name. Fails as soon as `out` is longer than `budget` bytes.
pub(super) fn expand(
    value: &str,
    out: &mut String,
    budget: usize,
    mut lookup: impl FnMut(&str, &mut String),
) -> Result<(), OverBudget> {
    // References in braces end before the last closing brace. Finding it once avoids a search at each `${`.
    let closed = value.rfind('}').unwrap_or(0);
    let mut rest = value;
    while let Some((before, after)) = rest.split_once('$') {
        out.push_str(before);
        let is_closed = value.len() - after.len() < closed;
        rest = reference(after, is_closed, out, &mut lookup);
        if out.len() > budget {
            return Err(OverBudget);
        }
    }
    out.push_str(rest);
    if out.len() > budget { Err(OverBudget) } else { Ok(()) }
}

/// Expands the reference after a `$` and returns the text after it. `is_closed` is true if a closing brace follows.
fn reference<'a>(
    after: &'a str,
    is_closed: bool,
    out: &mut String,
    lookup: &mut impl FnMut(&str, &mut String),
) -> &'a str {
    let mut chars = after.chars();
    match chars.next() {
        Some('$') => {
            out.push('$');
            chars.as_str()
        }
        Some('{') if !is_closed => chars.as_str(),
        Some('{') => match chars.as_str().split_once('}') {
            Some((name, rest)) => {
                if !is_nothing(name) {
                    lookup(name, out);
                }
                rest
            }
            None => chars.as_str(),
        },
        Some('*' | '#' | '@' | '!' | '?' | '-' | '0'..='9') => chars.as_str(),
        Some('a'..='z' | 'A'..='Z' | '_') => {
            let end = after.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(after.len());
            let (name, rest) = after.split_at(end);
            lookup(name, out);
            rest
        }
        _ => {
            out.push('$');
            after
        }
    }
}

/// True for names in braces that never have a value: the empty one and the shell's special parameters.
fn is_nothing(name: &str) -> bool {
    name.is_empty() || matches!(name.as_bytes(), [b'*' | b'#' | b'@' | b'!' | b'?' | b'-' | b'0'..=b'9'])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::variables::escape;

    fn expanded(value: &str) -> String {
        let mut out = String::new();
        expand(value, &mut out, usize::MAX, |name, out| {
            if name.starts_with('A') {
                out.push_str("<$B ${C} $$>");
            }
        })
        .unwrap();
        out
    }

    #[test]
    fn unclosed_brace_is_removed_and_the_rest_still_expands() {
        assert_eq!(expanded("a${b"), "ab");
        assert_eq!(expanded("${$A"), "<$B ${C} $$>");
    }

    #[test]
    fn braces_take_any_bytes_up_to_the_first_closing_one() {
        assert_eq!(expanded("${A b\n$}x}"), "<$B ${C} $$>x}");
        assert_eq!(expanded("${1}${-}${}|${10}"), "|");
    }

    /// A search for each of the braces would take minutes.
    #[test]
    fn fault_76_braces_that_nothing_closes_are_read_once() {
        let text = "${".repeat(2 << 20);
        assert_eq!(expanded(&text), "");
        assert_eq!(expanded(&format!("${{A}}{text}")), expanded("${A}"));
    }

    #[test]
    fn budget_is_kept_exactly() {
        let run = |budget| expand("a$A", &mut String::new(), budget, |_, out| out.push_str("bcd"));
        assert_eq!(run(3), Err(OverBudget));
        assert_eq!(run(4), Ok(()));
        assert_eq!(run(5), Ok(()));
    }

    proptest! {
        #[test]
        fn escaped_text_comes_back(text in any::<String>()) {
            prop_assert_eq!(expanded(&escape(&text)), text);
        }

        #[test]
        fn escaped_text_full_of_dollars_comes_back(text in "[$A{}_ 1]{0,40}") {
            prop_assert_eq!(expanded(&escape(&text)), text);
        }

        #[test]
        fn text_without_dollar_stays(text in "[^$]*") {
            prop_assert_eq!(expanded(&text), text);
        }

        #[test]
        fn what_is_put_in_is_not_looked_at_again(before in "[^$]*", after in "[^$a-zA-Z0-9_][^$]*") {
            prop_assert_eq!(expanded(&format!("{before}$A{after}")), format!("{before}<$B ${{C}} $$>{after}"));
        }

        #[test]
        fn no_text_panics(text in "[$A{}_ 1é*-]{0,60}") {
            expanded(&text);
        }
    }
}
