//! References between texts resolve: sections (`service.md §3.1`), rows of docs/internals/faults.md, names of pages,
//! and links.
//!
//! A text names a page by its path or its file name: file names are unique below docs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// Folders and files whose texts can name pages.
const TEXTS: [&str; 16] = [
    "src",
    "crates",
    "proto",
    "tests",
    "benches",
    "fuzz",
    "scripts",
    "docs",
    "examples",
    "deploy",
    ".ci",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Cargo.toml",
    "justfile",
];

/// Folders without texts of this project.
const SKIPPED: [&str; 4] = ["target", "node_modules", "corpus", "artifacts"];

/// The page with numbered rows.
const FAULTS: &str = "faults.md";

/// Words that can stand between two references to one page: `queue.md §9 items 2 and 5, §7`.
const CONNECTORS: [&str; 6] = ["and", "or", "to", "item", "items", "with"];

/// The part of a page that a text names.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    /// The page as a whole.
    Whole,
    /// A numbered heading.
    Section(String),
    /// A numbered row.
    Row(u32),
}

/// A place in a text that names a page, or a part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Reference {
    line: usize,
    /// Name of the page as written: `logs.md` or `docs/spec/logs.md`. `None` if no page is named.
    page: Option<String>,
    part: Part,
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let page = self.page.as_deref().unwrap_or("(no page)");
        match &self.part {
            Part::Whole => write!(f, "{page}"),
            Part::Section(number) => write!(f, "{page} §{number}"),
            Part::Row(row) => write!(f, "{page} row {row}"),
        }
    }
}

/// Words that belong together, each with its line: a comment, a paragraph, a row of a table, or a line of code.
type Block<'t> = Vec<(usize, &'t str)>;

/// Returns the text of a comment line.
fn comment(line: &str) -> Option<&str> {
    let line = line.trim_start();
    ["///", "//!", "//", "#"].into_iter().find_map(|mark| line.strip_prefix(mark))
}

fn blocks(text: &str, is_page: bool) -> Vec<Block<'_>> {
    let (mut blocks, mut block) = (Vec::new(), Block::new());
    let (mut was_comment, mut is_code) = (false, false);
    for (index, line) in text.lines().enumerate() {
        if is_page && is_fence(line) {
            is_code = !is_code;
            continue;
        }
        if is_code {
            continue;
        }
        let comment = comment(line).filter(|_| !is_page);
        let goes_on = if is_page {
            !line.trim().is_empty() && !line.starts_with(['|', '#'])
        } else {
            comment.is_some() && was_comment
        };
        if !goes_on {
            blocks.push(std::mem::take(&mut block));
        }
        was_comment = comment.is_some();
        block.extend(comment.unwrap_or(line).split_whitespace().map(|word| (index + 1, word)));
    }
    blocks.push(block);
    blocks
}

/// True for the first and last line of a block of code in a page.
fn is_fence(line: &str) -> bool {
    line.trim_start().starts_with("```")
}

/// Returns the page that a word names, as in ``(`docs/spec/logs.md`)``.
fn page_in(word: &str) -> Option<&str> {
    let end = word.find(".md")? + ".md".len();
    let (name, rest) = word.split_at_checked(end)?;
    if rest.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return None;
    }
    let name = name.rsplit(|c: char| !c.is_ascii_alphanumeric() && !"_-./".contains(c)).next()?;
    // `$PWD/docs/…` is a page of this repository, too.
    let name = name.find("docs/").and_then(|at| name.get(at..)).unwrap_or(name);
    (name.len() > ".md".len()).then_some(name)
}

/// Returns the number at the start of a text: `6.4` of `6.4).`.
fn number(text: &str) -> String {
    let digits: String = text.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
    digits.trim_end_matches('.').to_owned()
}

/// Returns the sections that a word names: `§6.4–§6.6,` names two.
fn sections(word: &str) -> Vec<String> {
    word.split('§').skip(1).map(number).filter(|number| !number.is_empty()).collect()
}

/// Returns the rows that a word names: `27,` or `1–5).`. `None`: the word belongs to no list of rows.
fn rows(word: &str) -> Option<Vec<u32>> {
    let word = word.trim_end_matches(|c: char| c.is_ascii_punctuation());
    let numbers: Option<Vec<u32>> = word.split('–').map(|number| number.parse().ok()).collect();
    numbers.or_else(|| CONNECTORS.contains(&word).then(Vec::new))
}

/// Returns all references in a text. `own` is the path of the page that the text is. A section without a page is one of
/// the page itself; in other texts it is one of the page that its comment has named last.
fn references(text: &str, own: Option<&str>) -> Vec<Reference> {
    let own = own.map(ToOwned::to_owned);
    let mut found = Vec::new();
    for block in blocks(text, own.is_some()) {
        let mut page = own.clone();
        let (mut is_rfc, mut in_rows) = (false, false);
        for (line, word) in block {
            let plain = word.trim_matches(|c: char| !c.is_alphanumeric());
            let named = page_in(word);
            if let Some(name) = named {
                (page, is_rfc) = (Some(name.to_owned()), false);
                found.push(Reference { line, page: page.clone(), part: Part::Whole });
            } else if plain == "RFC" {
                is_rfc = true;
            }
            let sections = sections(word);
            let rows = if in_rows { rows(word) } else { None };
            // In a page, a section belongs to the page itself, unless only words of a list of references stand between
            // it and another page.
            let connects = named.is_some()
                || is_rfc
                || rows.is_some()
                || !sections.is_empty()
                || CONNECTORS.contains(&plain)
                || plain.starts_with(|c: char| c.is_ascii_digit());
            let is_about_faults = page.as_deref().is_some_and(|page| page.ends_with(FAULTS));
            in_rows = rows.is_some() && !word.ends_with(['.', ':', ';', ')'])
                || is_about_faults && ["row", "rows", "Row", "Rows"].contains(&plain);
            let sections = sections.into_iter().filter(|_| !is_rfc).map(Part::Section);
            let rows = rows.into_iter().flatten().map(Part::Row);
            found.extend(sections.chain(rows).map(|part| Reference { line, page: page.clone(), part }));
            if own.is_some() && !connects && !in_rows {
                page.clone_from(&own);
            }
        }
    }
    found
}

/// Returns the texts of a page's headings.
fn headings(text: &str) -> Vec<&str> {
    let mut is_code = false;
    let mut found = Vec::new();
    for line in text.lines() {
        is_code ^= is_fence(line);
        let title = line.trim_start_matches('#');
        if !is_code && title.len() < line.len() && title.starts_with(' ') {
            found.push(title.trim());
        }
    }
    found
}

/// Returns the numbers of a page's headings: `## 3. Calls` and `### 3.1 Run`.
fn numbered(text: &str) -> BTreeSet<String> {
    headings(text).into_iter().map(number).filter(|number| !number.is_empty()).collect()
}

/// Returns the numbers of a page's rows: `| 27 | EIO, …`.
fn rows_of(text: &str) -> BTreeSet<u32> {
    let number = |line: &str| line.strip_prefix("| ")?.split(" |").next()?.parse().ok();
    text.lines().filter_map(number).collect()
}

/// Returns the names by which links reach a page's headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    let mut found = BTreeSet::new();
    for title in headings(text) {
        let title = title.to_lowercase();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
        let name: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
        let count = counts.entry(name.clone()).or_default();
        found.insert(if *count == 0 { name } else { format!("{name}-{count}") });
        *count += 1;
    }
    found
}

/// Returns the targets of a page's links, each with its line. Code holds none.
fn links(text: &str) -> Vec<(usize, String)> {
    let (mut found, mut is_code) = (Vec::new(), false);
    for (index, line) in text.lines().enumerate() {
        is_code ^= is_fence(line);
        if is_code {
            continue;
        }
        // Drops code between backticks, which is every second part. Targets of links contain no backticks.
        let parts: Vec<&str> = line.split('`').step_by(2).collect();
        let line = parts.join("`");
        let targets = line.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
        found.extend(targets.map(|target| (index + 1, target.to_owned())));
    }
    found
}

fn joined(names: impl IntoIterator<Item = String>) -> String {
    let names: Vec<String> = names.into_iter().collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// The texts and pages of this repository.
struct Repository {
    root: PathBuf,
    /// Pages below `docs`, by name.
    pages: BTreeMap<String, Vec<PathBuf>>,
}

impl Repository {
    fn new() -> Self {
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        let mut pages: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
        for path in crate::source::files(&root.join("docs"), "md") {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            pages.entry(name).or_default().push(path);
        }
        Self { root, pages }
    }

    /// Returns all texts, each with its path below the root.
    fn texts(&self) -> Vec<(PathBuf, String)> {
        let mut found = Vec::new();
        let mut paths: Vec<_> = TEXTS.iter().map(|name| self.root.join(name)).collect();
        while let Some(path) = paths.pop() {
            let is_skipped = path.file_name().is_some_and(|own| SKIPPED.iter().any(|name| own == *name));
            if path.is_dir() && !is_skipped {
                paths.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            } else if let Ok(text) = fs::read_to_string(&path) {
                found.push((path.strip_prefix(&self.root).unwrap().to_owned(), text));
            }
        }
        found.sort();
        found
    }

    /// Finds the page that a text in `folder` calls `name`. The error lists the candidates.
    fn page(&self, name: &str, folder: &Path) -> Result<PathBuf, String> {
        let mut places = vec![self.root.clone()];
        if name.contains('/') {
            places.extend([self.root.join(folder), self.root.join("docs")]);
        }
        if let Some(path) = places.iter().map(|place| place.join(name)).find(|path| path.is_file()) {
            return Ok(path);
        }
        match self.pages.get(name).map_or(&[][..], Vec::as_slice) {
            [page] => Ok(page.clone()),
            [] => Err(format!(
                "there is no such page; below docs there are {}",
                joined(self.pages.keys().cloned())
            )),
            several => Err(format!("several pages have this name: {several:?}")),
        }
    }

    /// Returns the reason why a reference in a text of `folder` leads nowhere, if it does.
    fn problem(&self, reference: &Reference, folder: &Path) -> Option<String> {
        let Some(name) = &reference.page else {
            return Some("the page is missing in front of the section".to_owned());
        };
        let page = match (self.page(name, folder), &reference.part) {
            (Ok(page), _) => page,
            (Err(problem), Part::Whole) => return Some(problem),
            // Not reported here: the name of the page is a reference too, and is reported as such.
            (Err(_), Part::Section(_) | Part::Row(_)) => return None,
        };
        let text = fs::read_to_string(&page).unwrap();
        let page = page.strip_prefix(&self.root).unwrap().display();
        match &reference.part {
            Part::Section(number) if !numbered(&text).contains(number) => {
                Some(format!("sections of {page}: {}", joined(numbered(&text))))
            }
            Part::Row(row) if !rows_of(&text).contains(row) => {
                Some(format!("{page} has {} rows", rows_of(&text).len()))
            }
            Part::Whole | Part::Section(_) | Part::Row(_) => None,
        }
    }

    /// Returns the reason why a link in the page `from` leads nowhere, if it does.
    fn problem_of_link(&self, from: &Path, target: &str) -> Option<String> {
        let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
        let own = self.root.join(from);
        let file = if path.is_empty() { own } else { own.parent().unwrap().join(path) };
        if !file.exists() {
            return Some("there is no such file".to_owned());
        }
        if anchor.is_empty() {
            return None;
        }
        let there = anchors(&fs::read_to_string(&file).unwrap_or_default());
        (!there.contains(anchor)).then(|| format!("headings there: {}", joined(there)))
    }
}

/// Returns the page whose sections a file names without the page: itself, or the page that vectors belong to.
fn own_page(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    if let Some(subject) = name.strip_suffix("-vectors.json") {
        return Some(format!("./docs/spec/{subject}.md"));
    }
    // The whole path, because another page can have the same name.
    is_page(path).then(|| Path::new(".").join(path).to_string_lossy().into_owned())
}

fn is_page(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "md")
}

#[test]
fn every_page_section_and_row_that_is_named_is_there() {
    let repository = Repository::new();
    let (mut problems, mut count) = (Vec::new(), 0);
    for (path, text) in repository.texts() {
        // The samples in this file are no references.
        if path.ends_with("tests/behaviour/references.rs") {
            continue;
        }
        let own = own_page(&path);
        for reference in references(&text, own.as_deref()) {
            count += 1;
            if let Some(problem) = repository.problem(&reference, path.parent().unwrap()) {
                problems.push(format!("{}:{}: {reference}: {problem}", path.display(), reference.line));
            }
        }
    }
    assert!(count > 1_000, "only {count} references were found: is the source there?");
    let wrong = problems.len();
    assert!(problems.is_empty(), "{wrong} of {count} references lead nowhere:\n{}", problems.join("\n"));
}

#[test]
fn every_link_of_a_page_leads_to_a_file_and_a_heading() {
    let repository = Repository::new();
    let (mut problems, mut count) = (Vec::new(), 0);
    for (path, text) in repository.texts().into_iter().filter(|(path, _)| is_page(path)) {
        // Links to the web are not checked.
        for (line, target) in links(&text).into_iter().filter(|(_, target)| !target.contains(':')) {
            count += 1;
            if let Some(problem) = repository.problem_of_link(&path, &target) {
                problems.push(format!("{}:{line}: {target}: {problem}", path.display()));
            }
        }
    }
    assert!(count > 100, "only {count} links were found: are the pages there?");
    let wrong = problems.len();
    assert!(problems.is_empty(), "{wrong} of {count} links lead nowhere:\n{}", problems.join("\n"));
}

#[test]
fn references_are_found_however_they_are_written() {
    let parts = |text: &str, own| -> Vec<String> {
        let found = references(text, own).into_iter().filter(|one| one.part != Part::Whole);
        found.map(|one| format!("{}: {one}", one.line)).collect()
    };
    let source =
        "//! Bounded (service.md §6.4,\n//! §6.6; `queue.md` §9 Q2, Q5; RFC 9113 §4.2, §6.5).\nf(); // §2\n";
    let expected = ["1: service.md §6.4", "2: service.md §6.6", "2: queue.md §9", "3: (no page) §2"];
    assert_eq!(parts(source, None), expected);
    let source = "/// As docs/spec/queue.md\n/// §2–§5 and the invariants of §7 (faults.md rows 27,\n/// 41 and 43, row 5: 192 KiB).";
    let expected = [
        "2: docs/spec/queue.md §2",
        "2: docs/spec/queue.md §5",
        "2: docs/spec/queue.md §7",
        "2: faults.md row 27",
        "3: faults.md row 41",
        "3: faults.md row 43",
        "3: faults.md row 5",
    ];
    assert_eq!(parts(source, None), expected);
    let page = "As §3 says, and [queue.md §2](queue.md#2-settings) item 4 and §5, so does §3.1.\n\n```\n§8\n```\n| §4 | queue.md |\n| §5 |\n";
    let expected = [
        "1: own.md §3",
        "1: queue.md §2",
        "1: queue.md §5",
        "1: own.md §3.1",
        "6: own.md §4",
        "7: own.md §5",
    ];
    assert_eq!(parts(page, Some("own.md")), expected);
}

#[test]
fn headings_are_found_by_number_and_by_name() {
    let page = "# A page\n\n## 3. Calls, and `codes`\n```sh\n# 4. no heading\n```\n### 3.1 Run\n### Run\n### Run\n| 27 | x |\n#5 none\n";
    assert!(numbered(page).into_iter().eq(["3", "3.1"]));
    assert!(anchors(page).into_iter().eq(["3-calls-and-codes", "31-run", "a-page", "run", "run-1"]));
    assert!(rows_of(page).into_iter().eq([27]));
    let page = "a [b `](c)` d](e.md#f) and `[g](h)`\n```\n[i](j)\n```\n![k](l.svg \"m\")\n";
    assert_eq!(links(page), [(1, "e.md#f".to_owned()), (5, "l.svg".to_owned())]);
}
