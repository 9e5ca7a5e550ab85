//! docs/internals/faults.md has every row once. It names exactly the existing tests, each with its file.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Number up to which the list of faults has every row. Among later numbers some may be free.
const ROWS: u32 = 93;

/// Returns the names of tests, `fault_NN_…`, that follow `before` in `text`.
fn names(text: &str, before: &str) -> BTreeSet<String> {
    let starts = text.split(before).skip(1);
    let name = |rest: &str| -> String {
        rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect()
    };
    starts.map(name).filter(|name| name.starts_with("fault_")).collect()
}

/// Returns the tests in the source, each with its file: `tests/x.rs: fault_NN_…`.
fn of_source(root: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for path in
        ["src", "crates", "tests"].map(|folder| crate::source::files(&root.join(folder), "rs")).concat()
    {
        let text = fs::read_to_string(&path).unwrap();
        // The simulator's tests are values, not functions.
        let tests = names(&text, "fn ").into_iter().chain(names(&text, "trial(\""));
        let file = path.strip_prefix(root).unwrap().display();
        found.extend(tests.map(|test| format!("{file}: {test}")));
    }
    found
}

/// Returns the tests that a row names, in the same form. The row has them as `FILE: TEST, TEST; FILE: TEST`.
fn of_row(line: &str) -> BTreeSet<String> {
    let shown_by = line.trim_end_matches(" |").rsplit("| ").next().unwrap();
    let files = shown_by.split("; ").filter_map(|part| part.split_once(": "));
    files
        .flat_map(|(file, tests)| names(tests, "`").into_iter().map(move |test| format!("{file}: {test}")))
        .collect()
}

#[test]
fn every_row_is_shown_by_a_test_or_a_proof_that_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(root.join("docs/internals/faults.md")).unwrap();
    let mut rows = BTreeMap::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("| ")) {
        let Some(row) = line.split(" |").next().and_then(|row| row.parse::<u32>().ok()) else { continue };
        assert!(rows.insert(row, line).is_none(), "row {row} is there twice");
    }
    let missing: Vec<u32> = (1..=ROWS).filter(|row| !rows.contains_key(row)).collect();
    assert!(missing.is_empty(), "no row {missing:?}");
    let mut listed = BTreeSet::new();
    for (row, line) in &rows {
        let tests = names(line, "`");
        assert!(!tests.is_empty(), "no test shows row {row}");
        let begins = format!("fault_{row:02}_");
        assert!(tests.iter().all(|test| test.starts_with(&begins)), "row {row}: {tests:?}");
        listed.extend(of_row(line));
    }
    let source = of_source(root);
    let missing: Vec<_> = source.difference(&listed).collect();
    let unknown: Vec<_> = listed.difference(&source).collect();
    assert!(missing.is_empty() && unknown.is_empty(), "not listed: {missing:#?}, not there: {unknown:#?}");
}
