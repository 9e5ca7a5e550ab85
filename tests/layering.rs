//! Imports point one way (docs/internals/architecture.md). Checks the `use` lines and paths of `src/` against the table
//! of layers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::allow_attributes, reason = "a test")]

#[path = "support/imports.rs"]
mod imports;
#[path = "support/source.rs"]
mod source;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use imports::Imports;

/// What a module may name of this crate, besides itself.
fn table() -> BTreeMap<&'static str, Vec<&'static str>> {
    let model = vec!["model"];
    let pure = [&model[..], &["lang", "log", "journal", "queue", "variables", "clock"]].concat();
    let plan = [&pure[..], &["config"]].concat();
    let job = [&plan[..], &["plan"]].concat();
    let io = [
        &job[..],
        &[
            "job",
            "process",
            "keeper",
            "store",
            "web",
            "oci",
            "fetch",
            "error",
            "files",
            "failpoint",
            "threads",
        ],
    ]
    .concat();
    let actors = [&io[..], &[]].concat();
    let grpc = [&actors[..], &["actors", "pb"]].concat();
    let app = [&grpc[..], &["grpc", "logging", "signal", "systemd", "net"]].concat();
    BTreeMap::from([
        ("model", vec![]),
        ("queue", vec![]),
        ("clock", vec![]),
        ("threads", vec!["clock"]),
        ("error", vec![]),
        ("signal", vec![]),
        ("systemd", vec!["process", "error"]),
        ("net", vec![]),
        ("failpoint", vec![]),
        ("files", vec!["failpoint"]),
        ("pb", vec!["error"]),
        ("lang", model.clone()),
        ("log", model.clone()),
        ("journal", model.clone()),
        ("variables", model.clone()),
        ("config", vec!["variables", "lang"]),
        ("logging", vec!["config", "files", "error"]),
        ("plan", pure.clone()),
        ("job", job.clone()),
        ("process", vec!["model", "store", "files", "failpoint"]),
        ("store", vec!["model", "journal", "log", "variables", "files", "failpoint", "error"]),
        (
            "keeper",
            vec!["model", "journal", "log", "process", "clock", "files", "failpoint", "threads", "error"],
        ),
        ("web", vec![]),
        ("oci", vec!["web"]),
        (
            "fetch",
            vec!["model", "clock", "lang", "job", "process", "store", "web", "oci", "threads", "error"],
        ),
        ("builtin", vec!["web", "oci", "fetch"]),
        ("actors", actors.clone()),
        ("grpc", grpc.clone()),
        ("app", app.clone()),
        ("client", vec!["model", "pb", "net", "log", "process", "error", "variables"]),
        ("custom_executor", vec!["client", "model", "pb", "log", "net", "process", "error", "files"]),
        ("proxy", vec!["net"]),
        ("bootstrap", vec![]),
        (
            "cli",
            [&app[..], &["app", "builtin", "bootstrap", "client", "custom_executor", "proxy", "net"]]
                .concat(),
        ),
    ])
}

/// Every file of the crate: its top module and its text without tests and comments.
fn files() -> Vec<(String, PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let is_test =
        |path: &Path| path.components().any(|c| c.as_os_str().to_string_lossy().starts_with("tests"));
    source::files(&root, "rs")
        .into_iter()
        .filter(|path| !is_test(path.strip_prefix(&root).unwrap()))
        .map(|path| {
            let inside = path.strip_prefix(&root).unwrap();
            let first = inside.components().next().unwrap().as_os_str().to_string_lossy().into_owned();
            let text = fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
            let code: Vec<_> = code.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
            (first.trim_end_matches(".rs").to_owned(), path.clone(), code.join("\n"))
        })
        .collect()
}

/// The module of a file, from the root of the crate.
fn module_of(path: &Path) -> Vec<String> {
    let inside =
        path.strip_prefix(Path::new(env!("CARGO_MANIFEST_DIR")).join("src")).unwrap().with_extension("");
    inside.components().map(|part| part.as_os_str().to_string_lossy().into_owned()).collect()
}

/// Imports that break the table: the file's module, and the module it must not name.
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
                if named != top && table.contains_key(named.as_str()) && !allowed.contains(&named.as_str()) {
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
    for (top, path, _) in files() {
        if ["main", "lib"].contains(&top.as_str()) {
            continue;
        }
        let module = module_of(&path);
        let names: Vec<&str> = module.iter().map(String::as_str).collect();
        let imports = imports::of(&names, &fs::read_to_string(&path).unwrap());
        read.push((module, imports));
    }
    let wrong: Vec<String> = forbidden(&table(), &read)
        .into_iter()
        .map(|(module, named)| format!("{module} names {named}"))
        .collect();
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

#[test]
fn frameworks_are_named_where_they_may_be() {
    let rules: [(&str, &[&str]); 5] = [
        ("actix", &["actors", "app"]),
        ("tonic", &["pb", "grpc", "client"]),
        ("prost", &["pb", "grpc", "client", "cli"]),
        ("clap", &["cli", "config"]),
        (
            "tokio",
            &[
                "actors",
                "app",
                "client",
                "cli",
                "custom_executor",
                "grpc",
                "keeper",
                "proxy",
                "signal",
                "systemd",
                "net",
                "oci",
                "fetch",
                "threads",
            ],
        ),
    ];
    let mut wrong = Vec::new();
    for (module, path, code) in files() {
        for (framework, allowed) in rules {
            let names =
                code.contains(&format!("{framework}::")) || code.contains(&format!("use {framework}"));
            if names && !allowed.contains(&module.as_str()) {
                wrong.push(format!("{}: names {framework}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Calls in `code` that touch files by another way than the seam.
fn direct_calls(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("fs::") {
        let rest = code.get(at + "fs::".len()..).unwrap();
        let name: String = rest.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect();
        // Permissions of a socket are part of making it.
        let is_call = !name.is_empty() && rest.strip_prefix(&*name).is_some_and(|rest| rest.starts_with('('));
        if is_call && !["chmod", "fchmod"].contains(&&*name) {
            found.push(name);
        }
    }
    let makers = ["File::open(", "File::create(", "OpenOptions::", "DirBuilder::"];
    found.extend(makers.iter().filter(|maker| code.contains(**maker)).map(|maker| (*maker).to_owned()));
    found
}

#[test]
fn store_and_keeper_touch_files_through_the_seam_only() {
    let mut wrong = Vec::new();
    for (module, path, code) in files() {
        if ["store", "keeper"].contains(&module.as_str()) {
            wrong.extend(direct_calls(&code).into_iter().map(|call| format!("{}: {call}", path.display())));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Fields of the operator's log that show an error without its causes.
fn bare_errors(code: &str) -> Vec<&str> {
    let fields = code.match_indices('%').filter_map(|(at, _)| {
        let (before, value) = (code.get(..at)?.trim_end(), code.get(at + 1..)?);
        let is_field = before.ends_with(['(', ','])
            || before.strip_suffix('=').is_some_and(|name| name.trim_end().ends_with("error"));
        let name: &str = value.split(|c: char| !c.is_alphanumeric() && c != '_').next()?;
        let is_named_error =
            before.ends_with('=') || ["error", "err", "e", "problem", "cause"].contains(&name);
        (is_field && is_named_error && name != "Chain").then_some(name)
    });
    fields.collect()
}

#[test]
fn errors_are_logged_with_their_causes() {
    assert_eq!(bare_errors("warn!(%error, \"x\")"), ["error"]);
    assert_eq!(bare_errors("warn!(id = %id, error = %lost)"), ["lost"]);
    assert!(bare_errors("warn!(error = %Chain(&error), job = %id); 1 % e").is_empty());
    let mut wrong = Vec::new();
    for (_, path, code) in files() {
        wrong.extend(
            bare_errors(&code)
                .iter()
                .map(|name| format!("{}: write error = %Chain(&{name})", path.display())),
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn unsafe_code_and_new_processes_are_where_they_may_be() {
    let mut wrong = Vec::new();
    for (module, path, code) in files() {
        let is_sys = path.ends_with("process/sys.rs")
            || path.parent().is_some_and(|folder| folder.ends_with("process/sys"));
        let is_unsafe = ["unsafe {", "unsafe fn", "unsafe impl", "unsafe trait", "unsafe extern", "unsafe("]
            .iter()
            .any(|kind| code.contains(kind));
        if is_unsafe && !is_sys {
            wrong.push(format!("{}: unsafe", path.display()));
        }
        let imported = code.contains("process::Command") || code.contains("process::{");
        let spawns = imported && code.contains("Command::new(");
        if spawns && !["process", "keeper"].contains(&module.as_str()) {
            wrong.push(format!("{}: starts a process", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
