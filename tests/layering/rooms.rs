//! The rooms of `actors` and `grpc`, and which siblings each may name.

use std::collections::{BTreeMap, BTreeSet};

use super::imports;
use super::{SourceFile, files};

/// A module of the root crate, a room of it, and the siblings that the room may name. A row names only rooms of rows above
/// it, so there is no circle.
const ROOMS: [(&str, &str, &[&str]); 44] = [
    ("actors", "followers", &[]),
    ("actors", "host", &[]),
    ("actors", "left_over", &[]),
    ("actors", "limits", &[]),
    ("actors", "remembered", &[]),
    ("actors", "stored", &[]),
    ("actors", "sync_group", &[]),
    ("actors", "watched", &[]),
    ("actors", "context", &["left_over", "sync_group"]),
    ("actors", "log_sink", &["followers", "sync_group", "watched"]),
    ("actors", "redact", &["stored"]),
    ("actors", "labels", &["redact"]),
    ("actors", "spec", &["limits", "redact"]),
    ("actors", "messages", &["redact", "spec", "sync_group"]),
    ("actors", "step", &["limits", "messages"]),
    ("actors", "trace_sink", &["followers", "log_sink", "messages", "sync_group", "watched"]),
    ("actors", "view", &["log_sink", "trace_sink"]),
    (
        "actors",
        "job",
        &[
            "context",
            "labels",
            "log_sink",
            "messages",
            "redact",
            "spec",
            "step",
            "stored",
            "sync_group",
            "trace_sink",
            "view",
        ],
    ),
    ("actors", "registry", &["job", "messages", "remembered", "view"]),
    ("actors", "admission", &["context", "labels", "limits", "redact", "registry", "spec", "step"]),
    ("actors", "keeper_port", &["host", "messages", "registry", "remembered", "view"]),
    (
        "actors",
        "supervisor",
        &[
            "admission",
            "context",
            "host",
            "job",
            "keeper_port",
            "labels",
            "left_over",
            "limits",
            "log_sink",
            "messages",
            "redact",
            "registry",
            "spec",
            "stored",
            "sync_group",
            "trace_sink",
            "view",
        ],
    ),
    (
        "actors",
        "handle",
        &[
            "admission",
            "context",
            "followers",
            "left_over",
            "log_sink",
            "messages",
            "redact",
            "registry",
            "supervisor",
            "trace_sink",
            "view",
        ],
    ),
    ("grpc", "length_headers", &[]),
    ("grpc", "names", &[]),
    ("grpc", "peer", &[]),
    ("grpc", "plain_log", &[]),
    ("grpc", "sizes", &[]),
    ("grpc", "status", &[]),
    ("grpc", "validate", &[]),
    ("grpc", "value", &[]),
    ("grpc", "deadline", &["status"]),
    ("grpc", "definition", &["value"]),
    ("grpc", "intake", &["length_headers", "sizes", "status"]),
    ("grpc", "encode", &["definition", "value"]),
    ("grpc", "reflection", &["intake", "names"]),
    ("grpc", "by_rights", &["intake", "names", "peer", "reflection", "status"]),
    ("grpc", "accept", &["by_rights", "peer"]),
    ("grpc", "calls", &["accept", "deadline", "encode", "peer", "plain_log", "sizes", "status", "validate"]),
    ("grpc", "compatible", &["calls", "deadline", "encode", "peer", "plain_log", "validate"]),
    ("grpc", "draft", &["calls", "deadline", "peer", "validate"]),
    ("grpc", "v1", &["calls", "deadline", "encode", "peer", "validate"]),
    ("grpc", "check", &["accept", "compatible", "draft", "validate"]),
    ("grpc", "server", &["by_rights", "calls", "compatible", "draft", "intake", "names", "sizes", "v1"]),
];

/// Returns which siblings each room of `module` may name.
fn rows_of(module: &str) -> BTreeMap<&'static str, &'static [&'static str]> {
    ROOMS.iter().filter(|(of, ..)| *of == module).map(|(_, room, others)| (*room, *others)).collect()
}

/// Returns what breaks the rows of `module`: an import of a sibling that is not in the room's row, or a room without one.
fn forbidden(module: &str, files: &[SourceFile]) -> Vec<String> {
    let rows = rows_of(module);
    let own: Vec<_> = files
        .iter()
        .filter(|file| file.part.is_none() && file.top() == module)
        .map(|file| (file, file.imports()))
        .collect();
    let exported: BTreeMap<_, _> =
        own.iter().flat_map(|(_, imports)| imports.exported.iter().cloned()).collect();
    let mut wrong = Vec::new();
    for (file, imports) in &own {
        // The module's own file may name all of its rooms.
        let Some(room) = file.module.get(1) else { continue };
        let Some(allowed) = rows.get(room.as_str()) else {
            wrong.push(format!("{}: {room} has no row", file.path.display()));
            continue;
        };
        for path in imports.named.iter().flat_map(|path| [path.clone(), imports::origin(path, &exported)]) {
            let [of, sibling, ..] = path.as_slice() else { continue };
            let is_sibling = of == module && rows.contains_key(sibling.as_str());
            if is_sibling && sibling != room && !allowed.contains(&sibling.as_str()) {
                wrong.push(format!("{}: names {}", file.path.display(), path.join("::")));
            }
        }
    }
    wrong
}

#[test]
fn rooms_name_the_siblings_in_their_rows_only() {
    let modules: BTreeSet<&str> = ROOMS.iter().map(|(module, ..)| *module).collect();
    let files = files();
    let wrong: Vec<String> = modules.iter().flat_map(|module| forbidden(module, &files)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn rows_of_rooms_name_rows_above_them() {
    let mut above: BTreeSet<(&str, &str)> = BTreeSet::new();
    for (module, room, others) in ROOMS {
        let early: Vec<_> = others.iter().filter(|other| !above.contains(&(module, **other))).collect();
        assert!(early.is_empty(), "{module}::{room} names {early:?}, whose rows are not above it");
        assert!(above.insert((module, room)), "{module}::{room} has two rows");
    }
}

#[test]
fn an_import_of_a_sibling_that_is_not_in_the_row_is_seen() {
    let file = |room: &str, text: &str| SourceFile {
        path: format!("src/grpc/{room}.rs").into(),
        part: None,
        module: vec!["grpc".to_owned(), room.to_owned()],
        text: text.to_owned(),
    };
    for (room, text, is_wrong) in [
        ("sizes", "use super::server::Services;", true),
        ("sizes", "use crate::grpc::server::Services;", true),
        ("sizes", "fn f() { super::server::f() }", true),
        ("unheard_of", "", true),
        ("server", "use super::sizes::MAX_REQUEST;", false),
        ("sizes", "use crate::actors::server::Thing;", false),
        ("sizes", "use super::helper;", false),
    ] {
        assert_eq!(!forbidden("grpc", &[file(room, text)]).is_empty(), is_wrong, "{room}: {text}");
    }
}
