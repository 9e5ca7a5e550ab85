//! Imports point one way (docs/architecture.md): reads the `use` lines and paths of `src/` and checks them against the
//! table of layers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::allow_attributes, reason = "a test")]

#[path = "support/source.rs"]
mod source;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// What a module may name of this crate, besides itself.
fn table() -> BTreeMap<&'static str, Vec<&'static str>> {
    let model = vec!["model"];
    let pure = [&model[..], &["lang", "log", "journal", "queue", "variables", "clock"]].concat();
    let plan = [&pure[..], &["config"]].concat();
    let job = [&plan[..], &["plan"]].concat();
    let io = [
        &job[..],
        &["job", "process", "keeper", "store", "web", "oci", "fetch", "error", "files", "failpoint"],
    ]
    .concat();
    let actors = [&io[..], &[]].concat();
    let grpc = [&actors[..], &["actors", "pb"]].concat();
    let app = [&grpc[..], &["grpc", "logging", "signal", "systemd", "net"]].concat();
    BTreeMap::from([
        ("model", vec![]),
        ("queue", vec![]),
        ("clock", vec![]),
        ("error", vec![]),
        ("signal", vec![]),
        ("systemd", vec!["process"]),
        ("net", vec![]),
        ("failpoint", vec![]),
        ("files", vec!["failpoint"]),
        ("pb", vec![]),
        ("lang", model.clone()),
        ("log", model.clone()),
        ("journal", model.clone()),
        ("variables", model.clone()),
        ("config", vec!["variables", "lang"]),
        ("logging", vec!["config", "files"]),
        ("plan", pure.clone()),
        ("job", job.clone()),
        ("process", vec!["model", "store", "files", "failpoint"]),
        ("store", vec!["model", "journal", "log", "variables", "files", "failpoint"]),
        ("keeper", vec!["model", "journal", "log", "process", "clock", "files", "failpoint"]),
        ("web", vec![]),
        ("oci", vec!["web"]),
        ("fetch", vec!["model", "clock", "lang", "job", "process", "store", "web", "oci"]),
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

/// Modules of this crate that `code` names.
fn named(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        let rest = code.get(at + "crate::".len()..).unwrap();
        let group = rest.strip_prefix('{').map(|group| group.split('}').next().unwrap());
        for item in group.map_or_else(|| vec![rest], |group| group.split(',').collect()) {
            let name: String = item.trim().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            found.push(name);
        }
    }
    found
}

#[test]
fn imports_point_one_way() {
    let table = table();
    let mut wrong = Vec::new();
    for (module, path, code) in files() {
        if ["main", "lib"].contains(&module.as_str()) {
            continue;
        }
        let allowed = table.get(module.as_str()).unwrap_or_else(|| panic!("{module} is not in the table"));
        for name in named(&code) {
            let is_module = table.contains_key(name.as_str());
            if is_module && name != module && !allowed.contains(&name.as_str()) {
                wrong.push(format!("{}: {module} names {name}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
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

#[test]
fn unsafe_code_and_new_processes_are_where_they_may_be() {
    let mut wrong = Vec::new();
    for (module, path, code) in files() {
        let is_sys = path.ends_with("process/sys.rs")
            || path.parent().is_some_and(|folder| folder.ends_with("process/sys"));
        let is_unsafe = ["unsafe {", "unsafe fn", "unsafe impl"].iter().any(|kind| code.contains(kind));
        if is_unsafe && !is_sys {
            wrong.push(format!("{}: unsafe", path.display()));
        }
        let spawns = code.contains("Command::new(") && code.contains("process::Command");
        if spawns && !["process", "keeper"].contains(&module.as_str()) {
            wrong.push(format!("{}: starts a process", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
