//! The failpoints in the source are exactly those that docs/internals/failpoints.md lists.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Starts of calls that name a failpoint in the source.
const CALLS: [&str; 5] = ["io(", "hit(", "amount(", "late(", "retry("];

fn of_source(root: &Path) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for path in ["src", "crates"].map(|folder| crate::source::files(&root.join(folder), "rs")).concat() {
        let text = fs::read_to_string(path).unwrap();
        // Looks at every string of a statement that contains such a call.
        for statement in text.split(';').filter(|text| CALLS.iter().any(|call| text.contains(call))) {
            names.extend(statement.split('"').filter(|text| is_name(text)).map(str::to_owned));
        }
    }
    names
}

/// True for names such as `module::what`, in lower case.
fn is_name(text: &str) -> bool {
    let is_word = |word: &str| !word.is_empty() && word.bytes().all(|c| c.is_ascii_lowercase() || c == b'_');
    text.contains("::") && text.split("::").all(is_word)
}

fn of_documentation(root: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(root.join("docs/internals/failpoints.md")).unwrap();
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.map(|row| row.split('`').next().unwrap().to_owned()).collect()
}

#[test]
fn failpoints_of_the_source_are_those_of_the_documentation() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let source = of_source(root);
    assert!(source.len() > 20, "{source:?}");
    let documentation = of_documentation(root);
    let missing: Vec<_> = source.difference(&documentation).collect();
    let unknown: Vec<_> = documentation.difference(&source).collect();
    assert!(missing.is_empty() && unknown.is_empty(), "not listed: {missing:?}, not there: {unknown:?}");
}
