//! Combinations of a matrix, and the names of its members (flow.md §6).

use std::collections::HashMap;

use indexmap::IndexMap;
use step_runner_lang::ast::flow::{MEMBER_LIMIT, Matrix};
use step_runner_lang::convert::to_text;
use step_runner_lang::value::Value;

/// Longest name of a member in bytes.
const LONGEST_NAME: usize = 64;

/// Bytes kept of a longer name.
const KEPT_NAME: usize = 60;

/// Values of one member.
pub(crate) type Combination = IndexMap<String, Value>;

/// Returns all combinations but the excluded ones; `None` if there are too many. The last list varies fastest.
pub(crate) fn combinations(lists: &[(String, Vec<Value>)], matrix: &Matrix) -> Option<Vec<Combination>> {
    let count = lists.iter().fold(1_usize, |count, (_, values)| count.saturating_mul(values.len()));
    if count > MEMBER_LIMIT {
        return None;
    }
    let mut found = vec![Combination::new()];
    for (name, values) in lists {
        let with = |combination: &Combination, value: &Value| {
            let mut combination = combination.clone();
            combination.insert(name.clone(), value.clone());
            combination
        };
        found = found.iter().flat_map(|before| values.iter().map(move |value| with(before, value))).collect();
    }
    let is_excluded = |combination: &Combination| {
        matrix.exclude.iter().any(|keys| {
            keys.iter().all(|(key, value)| combination.get(key).is_some_and(|own| own.data == value.data))
        })
    };
    found.retain(|combination| !is_excluded(combination));
    Some(found)
}

/// Returns the names of the members of step `step`: its name and the values as text. The second member of one name gets
/// `#2` behind it.
pub(crate) fn names(step: &str, combinations: &[Combination]) -> Vec<String> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let name = |combination: &Combination| {
        let values: Vec<String> = combination.values().map(to_text).collect();
        let name = shortened(format!("{step}[{}]", values.join(",")));
        let count = seen.entry(name.clone()).and_modify(|count| *count += 1).or_insert(1);
        if *count == 1 { name } else { format!("{name}#{count}") }
    };
    combinations.iter().map(name).collect()
}

/// Returns at most [`KEPT_NAME`] bytes of a name that is too long, whole characters, and a mark.
fn shortened(name: String) -> String {
    if name.len() <= LONGEST_NAME {
        return name;
    }
    let kept = name.floor_char_boundary(KEPT_NAME);
    format!("{}...]", name.get(..kept).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lists(lists: &[(&str, &[&str])]) -> Vec<(String, Vec<Value>)> {
        let values = |values: &[&str]| values.iter().map(|value| Value::text(*value)).collect();
        lists.iter().map(|(name, items)| ((*name).to_owned(), values(items))).collect()
    }

    fn without_exclude() -> Matrix {
        Matrix { lists: Vec::new(), exclude: Vec::new() }
    }

    #[test]
    fn the_last_list_varies_fastest() {
        let lists = lists(&[("a", &["1", "2"]), ("b", &["x", "y"])]);
        let found = combinations(&lists, &without_exclude()).unwrap();
        assert_eq!(names("t", &found), ["t[1,x]", "t[1,y]", "t[2,x]", "t[2,y]"]);
    }

    #[test]
    fn a_million_combinations_are_counted_and_never_made() {
        let items: Vec<&str> = vec!["x"; 100];
        let lists = lists(&[("a", &items), ("b", &items), ("c", &items)]);
        assert!(combinations(&lists, &without_exclude()).is_none());
    }

    proptest! {
        #[test]
        fn names_of_members_differ_and_are_bounded(values in prop::collection::vec("[ab\u{e4}]{0,80}", 0..12)) {
            let combination = |value: &String| Combination::from([("k".to_owned(), Value::text(value.as_str()))]);
            let combinations: Vec<Combination> = values.iter().map(combination).collect();
            let names = names("step", &combinations);
            let different: std::collections::HashSet<&String> = names.iter().collect();
            prop_assert_eq!(different.len(), names.len());
            prop_assert!(names.iter().all(|name| name.len() <= LONGEST_NAME + 4));
        }
    }
}
