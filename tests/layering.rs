//! Imports point one way (docs/internals/architecture.md). The compiler checks the borders of crates: a crate can name
//! only those that its manifest lists. This test checks the `use` lines and paths inside them against the tables below.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::allow_attributes, reason = "a test")]

#[path = "layering/circles.rs"]
mod circles;
#[path = "layering/code.rs"]
mod code;
#[path = "support/imports.rs"]
mod imports;
#[path = "layering/rooms.rs"]
mod rooms;
#[path = "support/source.rs"]
mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use imports::Imports;

/// Modules that the root crate re-exports from the crates below it.
const CRATES: [&str; 30] = [
    "model",
    "ci",
    "error",
    "lang",
    "log",
    "journal",
    "pb",
    "process",
    "client",
    "insight",
    "custom_executor",
    "keeper",
    "pull",
    "store",
    "web",
    "oci",
    "fetch",
    "builtin",
    "clock",
    "failpoint",
    "files",
    "signal",
    "threads",
    "net",
    "config",
    "job",
    "plan",
    "queue",
    "request",
    "variables",
];

/// Allowed imports between modules of one crate: the crate's folder, the module, the modules that it can name. `*` is
/// the rest of the crate.
const INSIDE: [(&str, &str, &[&str]); 57] = [
    ("model", "error", &[]),
    ("model", "*", &["error"]),
    ("log", "journal", &[]),
    ("log", "*", &[]),
    ("client", "net", &[]),
    ("client", "*", &["net"]),
    ("core", "queue", &[]),
    ("core", "request", &[]),
    ("core", "variables", &["request"]),
    ("core", "config", &["variables"]),
    ("core", "plan", &[]),
    ("core", "job", &["config", "plan"]),
    ("ci", "duration", &[]),
    ("ci", "files", &[]),
    ("ci", "node", &[]),
    ("ci", "pattern", &[]),
    ("ci", "scalar", &[]),
    ("ci", "variables", &[]),
    ("ci", "condition", &["pattern"]),
    ("ci", "finding", &["node"]),
    ("ci", "settings", &["duration"]),
    ("ci", "yaml", &["finding", "node", "scalar"]),
    (
        "ci",
        "file",
        &["condition", "duration", "files", "finding", "node", "pattern", "scalar", "variables", "yaml"],
    ),
    ("ci", "job", &["file", "files", "node", "settings", "variables"]),
    ("ci", "plan", &["file", "job", "settings"]),
    ("ci", "*", &["condition", "files", "node", "settings"]),
    ("system", "clock", &[]),
    ("system", "failpoint", &[]),
    ("system", "files", &["failpoint"]),
    ("system", "signal", &[]),
    ("system", "threads", &["clock", "failpoint"]),
    ("keeper", "protocol", &[]),
    ("keeper", "core", &["protocol"]),
    ("keeper", "link", &["protocol"]),
    ("keeper", "runtime", &["core", "link", "protocol"]),
    ("transfer", "oci", &[]),
    ("transfer", "fetch", &["oci"]),
    ("transfer", "builtin", &["fetch", "oci"]),
    ("insight", "tree", &[]),
    ("insight", "order", &["tree"]),
    ("insight", "run", &["order", "tree"]),
    ("agent", "time", &[]),
    ("agent", "tokens", &[]),
    ("agent", "routing", &["tokens"]),
    ("agent", "answer", &["time", "tokens"]),
    ("agent", "outcome", &[]),
    ("agent", "environment", &["outcome", "payload"]),
    ("agent", "config", &["answer", "environment", "routing", "scheduler", "time", "tokens"]),
    ("agent", "import", &["answer", "config", "environment"]),
    ("agent", "names", &["routing", "tokens"]),
    ("agent", "payload", &["answer", "tokens"]),
    ("agent", "record", &["outcome", "scheduler", "sealed", "time", "tokens", "trace"]),
    ("agent", "lifecycle", &["answer", "final_update", "outcome", "record", "sealed", "time", "trace"]),
    ("agent", "scheduler", &["answer", "routing", "time"]),
    ("agent", "sealed", &[]),
    ("agent", "trace", &["answer", "sealed", "time"]),
    ("agent", "final_update", &["answer", "outcome", "time", "tokens", "trace"]),
];

/// Returns which other modules each module of the root crate can name.
fn table() -> BTreeMap<&'static str, Vec<&'static str>> {
    let pure = [
        "model",
        "lang",
        "log",
        "journal",
        "queue",
        "request",
        "variables",
        "config",
        "plan",
        "job",
        "clock",
    ];
    let io = [
        &pure[..],
        &["process", "keeper", "store", "web", "oci", "fetch", "error", "files", "failpoint", "threads"],
    ]
    .concat();
    let actors = [&io[..], &[]].concat();
    let grpc = [&actors[..], &["actors", "ci", "pb"]].concat();
    let app = [&grpc[..], &["grpc", "logging", "signal", "systemd", "net"]].concat();
    BTreeMap::from([
        ("systemd", vec!["process", "error"]),
        ("logging", vec!["config", "files", "error"]),
        ("actors", actors.clone()),
        ("grpc", grpc.clone()),
        ("app", app.clone()),
        ("proxy", vec!["net"]),
        (
            "cli",
            [
                &app[..],
                &[
                    "agent",
                    "app",
                    "builtin",
                    "bootstrap",
                    "client",
                    "custom_executor",
                    "insight",
                    "proxy",
                    "pull",
                    "net",
                ],
            ]
            .concat(),
        ),
    ])
}

/// A source file of the program, outside of test code.
struct SourceFile {
    /// Path below the repository.
    path: PathBuf,
    /// Folder of its crate below `crates/`. `None` for the root crate.
    part: Option<String>,
    /// Path of its module from the root of its crate.
    module: Vec<String>,
    text: String,
}

impl SourceFile {
    fn read(root: &Path, path: &Path) -> Option<Self> {
        let path = path.strip_prefix(root).unwrap();
        let module = path.with_extension("");
        let mut names = module.components().map(|name| name.as_os_str().to_string_lossy().into_owned());
        let part = if names.next().unwrap() == "crates" { names.next() } else { None };
        let is_source = part.is_none() || names.next().unwrap() == "src";
        let module: Vec<String> = names.filter(|name| name != "lib").collect();
        if !is_source || module.iter().any(|name| name.starts_with("tests")) {
            return None;
        }
        let text = fs::read_to_string(root.join(path)).unwrap();
        Some(Self { path: path.to_owned(), part, module, text })
    }

    /// Returns the crate that holds the file, or its top module in the root crate.
    fn top(&self) -> &str {
        self.part.as_ref().or(self.module.first()).map_or("lib", String::as_str)
    }

    /// Returns the text without tests and comments.
    fn code(&self) -> String {
        let tests = ["#[cfg(test)]\nmod tests {", "#[cfg(test)]\npub(super) mod tests {"];
        let end = tests.iter().filter_map(|tests| self.text.find(tests)).min().unwrap_or(self.text.len());
        let code = self.text.get(..end).unwrap();
        let code: Vec<_> = code.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
        code.join("\n")
    }

    fn imports(&self) -> Imports {
        let module: Vec<&str> = self.module.iter().map(String::as_str).collect();
        imports::of(&module, &self.text)
    }
}

/// Returns every file of the root crate and of the crates below it.
fn files() -> Vec<SourceFile> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let paths = ["src", "crates"].map(|folder| source::files(&root.join(folder), "rs")).concat();
    paths.iter().filter_map(|path| SourceFile::read(root, path)).collect()
}

/// Returns the imports that break the table: the file's module, and the module that it must not name.
fn forbidden(table: &BTreeMap<&str, Vec<&str>>, read: &[(Vec<String>, Imports)]) -> Vec<(String, String)> {
    let exported: BTreeMap<_, _> =
        read.iter().flat_map(|(_, imports)| imports.exported.iter().cloned()).collect();
    let mut wrong = Vec::new();
    for (module, imports) in read {
        let top = module.first().unwrap().as_str();
        let allowed = table.get(top).unwrap_or_else(|| panic!("{top} is not in the table"));
        for path in &imports.named {
            for named in [path.first().cloned(), imports::origin(path, &exported).first().cloned()]
                .into_iter()
                .flatten()
            {
                let name = named.as_str();
                let is_known = table.contains_key(name) || CRATES.contains(&name);
                if named != top && is_known && !allowed.contains(&name) {
                    wrong.push((module.join("::"), path.join("::")));
                }
            }
        }
    }
    wrong.dedup();
    wrong
}

#[test]
fn imports_point_one_way() {
    let mut read = Vec::new();
    for file in files() {
        if file.part.is_none() && !["main", "lib"].contains(&file.top()) {
            read.push((file.module.clone(), file.imports()));
        }
    }
    let wrong: Vec<String> = forbidden(&table(), &read)
        .into_iter()
        .map(|(module, named)| format!("{module} names {named}"))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn imports_inside_a_crate_point_one_way() {
    let mut wrong = Vec::new();
    for file in files() {
        let rows: BTreeMap<_, _> = INSIDE
            .iter()
            .filter(|(part, ..)| file.part.as_deref() == Some(*part))
            .map(|(_, module, others)| (*module, *others))
            .collect();
        let row_of = |name: Option<&String>| {
            name.and_then(|name| rows.get_key_value(name.as_str())).map_or("*", |(module, _)| *module)
        };
        let Some(allowed) = rows.get(row_of(file.module.first())) else { continue };
        for path in file.imports().named {
            let named = row_of(path.first());
            if named != row_of(file.module.first()) && !allowed.contains(&named) {
                wrong.push(format!("{}: names {}", file.path.display(), path.join("::")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_root_crate_calls_the_others_by_their_short_names() {
    let parts: BTreeSet<String> = files().into_iter().filter_map(|file| file.part).collect();
    assert!(!parts.is_empty());
    let mut wrong = Vec::new();
    for file in files().iter().filter(|file| file.part.is_none() && file.top() != "lib") {
        let code = file.code();
        let names =
            parts.iter().filter(|part| code.contains(&format!("step_runner_{}", part.replace('-', "_"))));
        wrong.extend(
            names.map(|part| format!("{}: use the name of {part} in src/lib.rs", file.path.display())),
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_way_to_name_a_module_is_seen() {
    let table = BTreeMap::from([
        ("low", vec![]),
        ("high", vec!["low"]),
        ("facade", vec!["low", "high"]),
        ("middle", vec!["low", "facade"]),
    ]);
    for (module, code, is_wrong) in [
        ("low", "use crate::high::Thing;", true),
        ("low", "use crate::{low::One, high::{Two, Three}};", true),
        ("low", "use crate::{low::{One, Two}, high};", true),
        ("low", "fn f() { crate::high::thing() }", true),
        ("low", "use super::high::Thing;", true),
        ("low::inner", "use super::super::high::Thing;", true),
        ("low::inner", "fn f() { super::super::high::thing() }", true),
        ("low", "mod inner { use super::super::high::Thing; }", true),
        ("low", "#[cfg(test)]\nmod tests { use crate::high::Thing; }\nuse crate::high::Thing;", true),
        ("low", "macro_rules! m { () => { $crate::high::Thing } }", true),
        ("middle", "use crate::facade::FromHigh;", true),
        ("middle::inner", "use super::super::facade::inner::Deeper;", true),
        ("low", "use crate::{self as all, high as other};", true),
        ("middle", "fn f() { crate::low::call(|| crate::high::call()) }", true),
        ("middle", "use crate::facade::FromLow;", false),
        ("low::inner", "use super::high::Thing;", false),
        ("low", "mod inner { mod deeper {} use super::high::Thing; }", false),
        ("low", "#[cfg(test)]\nmod tests { use crate::high::Thing; fn f() { \"}\"; } }", false),
        (
            "low",
            "// crate::high\n/* crate::high /* */ crate::high */ const A: &str = \"crate::high\";",
            false,
        ),
        (
            "low",
            "const A: &str = r#\"\" crate::high\"#; const B: char = '\"'; fn f<'a>(_: &'a str) {}",
            false,
        ),
        ("middle", "use crate::low::{self, Thing};", false),
    ] {
        let facade = "pub use crate::high::Thing as FromHigh;\npub(crate) use crate::low::{Thing as FromLow};\n\
            pub mod inner { pub use super::FromHigh as Deeper; }";
        let read = |module: &str, code: &str| {
            let path: Vec<&str> = module.split("::").collect();
            (path.iter().map(ToString::to_string).collect::<Vec<_>>(), imports::of(&path, code))
        };
        let wrong = forbidden(&table, &[read(module, code), read("facade", facade)]);
        assert_eq!(!wrong.is_empty(), is_wrong, "{module}: {code}: {wrong:?}");
    }
}
