//! docs/faults.md has every row once, and names exactly the tests that are there.
#![allow(clippy::unwrap_used, clippy::allow_attributes, reason = "a test")]

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Rows of the list of faults.
const ROWS: u32 = 74;

/// Names of tests, `fault_NN_…`, in `text` wherever `before` stands in front of one.
fn names(text: &str, before: &str) -> BTreeSet<String> {
    let starts = text.split(before).skip(1);
    let name = |rest: &str| -> String {
        rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect()
    };
    starts.map(name).filter(|name| name.starts_with("fault_")).collect()
}

fn of_source(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            of_source(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(path).unwrap();
            found.extend(names(&text, "fn "));
            // Of the simulator, which names its tests as values.
            found.extend(names(&text, "trial(\""));
        }
    }
}

#[test]
fn every_row_is_shown_by_a_test_or_a_proof_that_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(root.join("docs/faults.md")).unwrap();
    let mut rows = BTreeMap::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("| ")) {
        let Some(row) = line.split(" |").next().and_then(|row| row.parse::<u32>().ok()) else { continue };
        assert!(rows.insert(row, line).is_none(), "row {row} is there twice");
    }
    assert_eq!(rows.keys().copied().collect::<Vec<_>>(), (1..=ROWS).collect::<Vec<_>>());
    for (row, line) in &rows {
        let tests = names(line, "`");
        assert!(!tests.is_empty(), "no test shows row {row}");
        let begins = format!("fault_{row:02}_");
        assert!(tests.iter().all(|test| test.starts_with(&begins)), "row {row}: {tests:?}");
    }
    let mut source = BTreeSet::new();
    for folder in ["src", "tests"] {
        of_source(&root.join(folder), &mut source);
    }
    // `fault_NN_…` in the text is no test.
    let listed: BTreeSet<_> =
        names(&text, "`").into_iter().filter(|name| !name.starts_with("fault_NN")).collect();
    assert_eq!(listed, source, "docs/faults.md and the source name different tests");
}
