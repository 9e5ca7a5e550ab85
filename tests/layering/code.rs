//! Rules for the code of each part, beyond modules: frameworks, files, processes, words of the log.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::{SourceFile, files};

#[test]
fn frameworks_are_named_where_they_may_be() {
    let rules: [(&str, &[&str]); 5] = [
        ("actix", &["actors", "app"]),
        ("tonic", &["grpc"]),
        ("prost", &["grpc", "cli"]),
        ("clap", &["cli"]),
        ("tokio", &["actors", "app", "cli", "grpc", "proxy", "systemd"]),
    ];
    let mut wrong = Vec::new();
    for file in files().iter().filter(|file| file.part.is_none()) {
        let code = file.code();
        for (framework, allowed) in rules {
            let names =
                code.contains(&format!("{framework}::")) || code.contains(&format!("use {framework}"));
            if names && !allowed.contains(&file.top()) {
                wrong.push(format!("{}: names {framework}", file.path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Returns calls in `code` that access files without going through the seam.
fn direct_calls(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("fs::") {
        let rest = code.get(at + "fs::".len()..).unwrap();
        let name: String = rest.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect();
        // Setting permissions of a socket is part of making it.
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
    for file in files() {
        if ["store", "keeper"].contains(&file.top()) {
            let calls = direct_calls(&file.code());
            wrong.extend(calls.into_iter().map(|call| format!("{}: {call}", file.path.display())));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Names that code without descriptors, processes, threads and clock has no use for.
const OF_THE_SYSTEM: [&str; 21] = [
    "std::{",
    "rustix",
    "libc",
    "tokio",
    "std::fs",
    "std::io",
    "std::net",
    "std::os",
    "std::process",
    "std::thread",
    "std::env",
    "crate::clock",
    "crate::failpoint",
    "crate::files",
    "crate::process",
    "crate::runtime",
    "step_runner_process",
    "step_runner_system",
    "Instant::now(",
    "SystemTime",
    ".elapsed()",
];

/// Modules that decide and touch nothing: the module's path, and the names that it has no use for besides.
const DECIDERS: [(&[&str], &[&str]); 2] = [
    (&["keeper", "core"], &[]),
    (
        &["actors", "job", "driver"],
        &["actix", "tracing", "crate::store", "crate::threads", "crate::fetch", "KeeperLink", "SyncGroup"],
    ),
];

#[test]
fn a_module_that_decides_names_nothing_of_the_system() {
    let mut wrong = Vec::new();
    for (module, others) in DECIDERS {
        let is_part = |file: &&SourceFile| {
            let path = file.part.iter().chain(&file.module);
            path.take(module.len()).eq(module)
        };
        let all = files();
        let parts: Vec<&SourceFile> = all.iter().filter(is_part).collect();
        assert!(parts.len() > 5, "{}: {} files", module.join("::"), parts.len());
        for file in parts {
            let code = file.code();
            let named: BTreeSet<String> =
                file.imports().named.iter().map(|path| format!("crate::{}", path.join("::"))).collect();
            for name in OF_THE_SYSTEM.iter().chain(others) {
                if code.contains(name) || named.iter().any(|path| path.contains(name)) {
                    wrong.push(format!("{}: names {name}", file.path.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Crates that touch nothing: their callers read files and ask the time.
const PURE_CRATES: [&str; 4] = ["agent", "ci", "insight", "lang"];

#[test]
fn a_pure_crate_names_nothing_of_the_system() {
    for part in PURE_CRATES {
        let all = files();
        let parts: Vec<_> = all.iter().filter(|file| file.part.as_deref() == Some(part)).collect();
        assert!(!parts.is_empty(), "{part} has no files");
        for file in parts {
            let code = file.code();
            let named =
                OF_THE_SYSTEM.iter().find(|name| !name.starts_with("crate::") && code.contains(**name));
            assert!(named.is_none(), "{}: names {named:?}", file.path.display());
        }
    }
}

/// Returns fields of the operator's log that show an error without its causes.
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
    for file in files() {
        wrong.extend(
            bare_errors(&file.code())
                .iter()
                .map(|name| format!("{}: write error = %Chain(&{name})", file.path.display())),
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn unsafe_code_and_new_processes_are_where_they_may_be() {
    let mut wrong = Vec::new();
    for file in files() {
        let (path, code) = (&file.path, file.code());
        let is_sys = path.ends_with("process/src/sys.rs")
            || path.parent().is_some_and(|folder| folder.ends_with("process/src/sys"));
        let is_unsafe = ["unsafe {", "unsafe fn", "unsafe impl", "unsafe trait", "unsafe extern", "unsafe("]
            .iter()
            .any(|kind| code.contains(kind));
        if is_unsafe && !is_sys {
            wrong.push(format!("{}: unsafe", path.display()));
        }
        let imported = code.contains("process::Command") || code.contains("process::{");
        let spawns = imported && code.contains("Command::new(");
        if spawns && !["process", "keeper"].contains(&file.top()) {
            wrong.push(format!("{}: starts a process", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn words_of_the_daemons_lines_are_in_one_place() {
    let words = [
        "\"Running step name=",
        "\"Skipped step name=",
        "\"Retrying step name=",
        "\"Fetched step name=",
        "\"job failed",
        "\"job cancelled",
        "\"job ended by time limit",
        "\"job interrupted",
        "\"log limit reached",
    ];
    let mut owners = BTreeSet::new();
    for file in files() {
        let code = file.code();
        if words.iter().any(|word| code.contains(word)) {
            owners.insert(file.path);
        }
    }
    assert_eq!(owners, BTreeSet::from([PathBuf::from("crates/log/src/words.rs")]));
}
