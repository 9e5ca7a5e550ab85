//! Rooms side by side, as `actors::job` and `actors::step`, name one another in one direction only.

use std::collections::{BTreeMap, BTreeSet};

use super::imports::{self, CratePath};
use super::{SourceFile, files};

/// Returns the rooms beside one another that name each other in a circle, by crate and folder.
fn circles(files: &[SourceFile]) -> BTreeSet<(String, Vec<String>)> {
    let mut edges: BTreeMap<(String, CratePath), BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
    let parts: BTreeSet<Option<&String>> = files.iter().map(|file| file.part.as_ref()).collect();
    for part in parts {
        let own: Vec<_> = files.iter().filter(|file| file.part.as_ref() == part).collect();
        let rooms: BTreeSet<&[String]> = own.iter().map(|file| &file.module[..]).collect();
        let imports: Vec<_> = own.iter().map(|file| file.imports()).collect();
        let exported: BTreeMap<_, _> =
            imports.iter().flat_map(|imports| imports.exported.iter().cloned()).collect();
        for (file, imports) in own.iter().zip(&imports) {
            for path in imports.named.iter().flat_map(|path| [path.clone(), imports::origin(path, &exported)])
            {
                let within = path.iter().zip(&file.module).take_while(|(a, b)| a == b).count();
                let is_room = path.len() > within && rooms.contains(&path[..=within]);
                if let (Some(from), Some(to)) =
                    (file.module.get(within), path.get(within).filter(|_| is_room))
                {
                    let crate_name = part.map_or("src", String::as_str).to_owned();
                    let rooms = edges.entry((crate_name, path[..within].to_vec())).or_default();
                    rooms.entry(from.clone()).or_default().insert(to.clone());
                }
            }
        }
    }
    let mut found = BTreeSet::new();
    for ((part, folder), rooms) in edges {
        let reached: BTreeMap<&String, BTreeSet<&String>> =
            rooms.keys().map(|room| (room, reachable(&rooms, room))).collect();
        for (room, reached_by_room) in &reached {
            let is_mutual = |other: &&&String| reached.get(**other).is_some_and(|back| back.contains(room));
            let circle: Vec<String> =
                reached_by_room.iter().filter(is_mutual).map(|room| (*room).clone()).collect();
            if circle.len() > 1 {
                found.insert(([vec![part.clone()], folder.clone()].concat().join("::"), circle));
            }
        }
    }
    found
}

/// Returns the rooms that a room names, and those that they name.
fn reachable<'a>(rooms: &'a BTreeMap<String, BTreeSet<String>>, from: &String) -> BTreeSet<&'a String> {
    let mut found = BTreeSet::new();
    let mut open: Vec<&String> = rooms.get(from).into_iter().flatten().collect();
    while let Some(room) = open.pop() {
        if found.insert(room) {
            open.extend(rooms.get(room).into_iter().flatten());
        }
    }
    found
}

#[test]
fn rooms_beside_one_another_name_each_other_in_no_circle() {
    let found: Vec<String> = circles(&files()).iter().map(|circle| format!("a circle: {circle:?}")).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn a_circle_is_seen_at_any_depth_and_a_child_that_names_its_parent_is_none() {
    let file = |module: &[&str], text: &str| SourceFile {
        path: format!("src/{}.rs", module.join("/")).into(),
        part: None,
        module: module.iter().map(ToString::to_string).collect(),
        text: text.to_owned(),
    };
    let circle =
        |folder: &str, rooms: &[&str]| (folder.to_owned(), rooms.iter().map(ToString::to_string).collect());
    let through_a_third = [
        file(&["a"], "use crate::b::B;"),
        file(&["b"], "use crate::c::C;"),
        file(&["c"], "use super::a::A;"),
    ];
    assert_eq!(circles(&through_a_third), BTreeSet::from([circle("src", &["a", "b", "c"])]));
    let deep = [
        file(&["a"], ""),
        file(&["a", "b"], "use super::c::C;"),
        file(&["a", "c"], ""),
        file(&["a", "c", "d"], "use crate::a::b::B;"),
    ];
    assert_eq!(circles(&deep), BTreeSet::from([circle("src::a", &["b", "c"])]));
    let family = [file(&["a"], "mod b;\nuse b::B;"), file(&["a", "b"], "use super::A;")];
    assert_eq!(circles(&family), BTreeSet::new());
}
