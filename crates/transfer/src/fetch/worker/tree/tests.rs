use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use proptest::prelude::*;

use super::*;
use crate::fetch::worker::site::Site;

fn put(tree: &mut TreeWriter, path: &str, content: &str) -> Result<(), FetchFailure> {
    tree.file(path.as_bytes(), false, &mut content.as_bytes())
}

#[test]
fn files_folders_and_links_arrive_with_their_modes() {
    let site = Site::new();
    let mut tree = site.writer();
    tree.folder(b"./").unwrap();
    tree.folder(b"./bin/").unwrap();
    tree.file(b"bin/run", true, &mut &b"#!/bin/sh\n"[..]).unwrap();
    put(&mut tree, "deep/er/func.yml", "spec:\n").unwrap();
    tree.link(b"deep/run", b"../bin/run").unwrap();
    let stats = tree.finish().unwrap();

    assert_eq!(stats, Stats { files: 2, entries: 6, bytes: 16 });
    let mode = |path: &str| fs::symlink_metadata(site.root().join(path)).unwrap().permissions().mode();
    assert_eq!(mode("bin/run"), 0o100_555);
    assert_eq!(mode("deep/er/func.yml"), 0o100_444);
    assert_eq!(mode("deep/er"), 0o040_755);
    assert_eq!(fs::read(site.root().join("deep/run")).unwrap(), b"#!/bin/sh\n");
}

#[test]
fn fault_69_names_that_could_mean_another_place_are_refused() {
    let site = Site::new();
    let mut tree = site.writer();
    let long = "n".repeat(256);
    for path in ["", "/etc/x", "../x", "a/../x", "a/./x", "a//x", "..", "x/..", "a\0b", "a/\0", "//", &long] {
        let error = put(&mut tree, path, "x").unwrap_err();
        assert_eq!(error.class, Class::Fetch, "{path:?}: {}", error.message);
        assert!(tree.folder(path.as_bytes()).is_err(), "{path:?}");
        assert!(tree.link(path.as_bytes(), b"y").is_err(), "{path:?}");
        assert!(tree.remove(path.as_bytes(), &|_| false).is_err(), "{path:?}");
    }
    for path in [".", "./"] {
        assert!(put(&mut tree, path, "x").is_err(), "{path:?}");
    }
    assert!(site.is_untouched());
    assert_eq!(fs::read_dir(site.root()).unwrap().count(), 0);
}

#[test]
fn fault_69_links_out_of_the_tree_are_refused() {
    let site = Site::new();
    let mut tree = site.writer();
    for (path, target) in [
        ("l", "/etc/passwd"),
        ("l", ".."),
        ("l", "../x"),
        ("a/l", "../../x"),
        ("a/b/c/l", "d/../x"),
        ("a/l", "./../../x"),
        ("l", ""),
        ("l", "x\0y"),
    ] {
        let error = tree.link(path.as_bytes(), target.as_bytes()).unwrap_err();
        assert_eq!(error.class, Class::Fetch, "{path} -> {target}");
    }
    tree.link(b"a/b/l", b"../../x").unwrap();
    tree.link(b"m", b"a/b/l").unwrap();
    tree.link(b"a/b/up", b"..").unwrap();
}

#[test]
fn fault_69_nothing_is_written_through_a_link() {
    let site = Site::new();
    let mut tree = site.writer();
    tree.link(b"inside", b"d").unwrap();
    tree.folder(b"d").unwrap();
    // Something else puts a link into the tree.
    symlink(site.beside(), site.root().join("outside")).unwrap();
    for path in ["inside/x", "outside/canary", "outside/y/z"] {
        let error = put(&mut tree, path, "bad").unwrap_err();
        assert!(error.message.contains("stands where it needs a folder"), "{}", error.message);
        assert!(tree.folder(path.as_bytes()).is_err());
        assert!(tree.link(path.as_bytes(), b"x").is_err());
        tree.remove(path.as_bytes(), &|_| false).unwrap();
    }
    tree.empty(b"outside", &|_| false).unwrap();
    // An entry at the path of a link replaces the link, not its target.
    put(&mut tree, "outside", "file").unwrap();
    assert!(site.is_untouched());
    assert!(fs::symlink_metadata(site.root().join("outside")).unwrap().is_file());
}

#[test]
fn a_later_entry_replaces_an_earlier_one_and_the_size_is_what_is_there() {
    let site = Site::new();
    let mut tree = site.writer();
    put(&mut tree, "x", "four").unwrap();
    let first = fs::metadata(site.root().join("x")).unwrap().ino();
    fs::hard_link(site.root().join("x"), site.beside().join("other")).unwrap();
    put(&mut tree, "x", "sixsix").unwrap();
    assert_eq!(fs::read(site.beside().join("other")).unwrap(), b"four", "the old file is not written into");
    assert_ne!(fs::metadata(site.root().join("x")).unwrap().ino(), first);

    put(&mut tree, "d/a", "a").unwrap();
    put(&mut tree, "d/e/b", "bb").unwrap();
    put(&mut tree, "d", "ddd").unwrap();
    let error = put(&mut tree, "d/a", "a").unwrap_err();
    assert!(error.message.contains("stands where it needs a folder"), "{}", error.message);
    assert_eq!(tree.finish().unwrap(), Stats { files: 2, entries: 2, bytes: 9 });
}

#[test]
fn removing_leaves_what_is_to_be_kept() {
    let site = Site::new();
    let mut tree = site.writer();
    for path in ["d/old", "d/new", "d/e/old", "d/e/new", "d/f/old"] {
        put(&mut tree, path, "x").unwrap();
    }
    let keep = |path: &[u8]| path.ends_with(b"new");
    tree.empty(b"d", &keep).unwrap();
    assert!(site.root().join("d/new").exists() && site.root().join("d/e/new").exists());
    assert!(!site.root().join("d/old").exists() && !site.root().join("d/e/old").exists());
    assert!(!site.root().join("d/f").exists());
    tree.remove(b"d/e", &|_| false).unwrap();
    tree.remove(b"d/nothing", &|_| false).unwrap();
    assert_eq!(tree.finish().unwrap(), Stats { files: 1, entries: 2, bytes: 1 });
}

#[test]
fn fault_69_the_size_of_a_tree_is_limited() {
    let site = Site::new();
    let mut tree = TreeWriter { max_bytes: 10, max_entries: 4, ..site.writer() };
    put(&mut tree, "a", "0123456789").unwrap();
    assert_eq!(put(&mut tree, "b", "x").unwrap_err().class, Class::Limit);
    tree.folder(b"c/d").unwrap();
    assert_eq!(put(&mut tree, "e", "").unwrap_err().class, Class::Limit);

    let mut tree = site.writer();
    let deep = |depth: usize| vec!["d"; depth].join("/");
    tree.folder(deep(MAX_DEPTH).as_bytes()).unwrap();
    assert_eq!(tree.folder(deep(MAX_DEPTH + 1).as_bytes()).unwrap_err().class, Class::Limit);
    let long = |bytes: usize| "n".repeat(200).chars().chain(['/']).cycle().take(bytes).collect::<String>();
    tree.folder(long(MAX_PATH_BYTES).as_bytes()).unwrap();
    assert_eq!(tree.folder(long(MAX_PATH_BYTES + 1).as_bytes()).unwrap_err().class, Class::Limit);
    tree.empty(b".", &|_| false).unwrap();
    assert_eq!(fs::read_dir(site.root()).unwrap().count(), 0);
}

#[test]
fn a_name_in_a_message_does_nothing_to_a_terminal() {
    let shown = |name: &[u8]| text::for_people(&refused(name, "no").message).into_owned();
    let message = shown(b"\x1b[2J\r\xff");
    assert!(message.chars().all(|c| !c.is_control()), "{message:?}");
    assert!(shown(&[b'x'; 5000]).len() < 300);
}

#[derive(Clone, Debug)]
enum Step {
    Folder(String),
    File(String),
    Link(String, String),
    Remove(String),
    Empty(String),
}

/// Paths of few names, so that they collide.
fn path() -> impl Strategy<Value = String> {
    let name = prop_oneof![8 => "[a-c]", 2 => Just("..".to_owned()), 1 => Just(".".to_owned()), 1 => Just(String::new())];
    prop::collection::vec(name, 1..5).prop_map(|names| names.join("/"))
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        path().prop_map(Step::Folder),
        path().prop_map(Step::File),
        (path(), path()).prop_map(|(path, target)| Step::Link(path, target)),
        path().prop_map(Step::Remove),
        path().prop_map(Step::Empty),
    ]
}

/// True if no link below `folder` leads out of `root`.
fn links_stay(root: &Path, folder: &Path) -> bool {
    fs::read_dir(folder).unwrap().all(|entry| {
        let path = entry.unwrap().path();
        let kind = fs::symlink_metadata(&path).unwrap();
        if kind.is_dir() {
            return links_stay(root, &path);
        }
        fs::canonicalize(&path).map_or(true, |real| real.starts_with(root))
    })
}

proptest! {
    #[test]
    fn fault_69_no_order_of_entries_reaches_out(steps in prop::collection::vec(step(), 0..40)) {
        let site = Site::new();
        let mut tree = site.writer();
        for step in &steps {
            // Many steps are refused. Later ones must still find the tree consistent.
            match step {
                Step::Folder(path) => tree.folder(path.as_bytes()).ok(),
                Step::File(path) => put(&mut tree, path, path).ok(),
                Step::Link(path, target) => tree.link(path.as_bytes(), target.as_bytes()).ok(),
                Step::Remove(path) => tree.remove(path.as_bytes(), &|_| false).ok(),
                Step::Empty(path) => tree.empty(path.as_bytes(), &|_| false).ok(),
            };
        }
        prop_assert!(site.is_untouched());
        prop_assert!(links_stay(&fs::canonicalize(site.root()).unwrap(), &site.root()));
        let stats = tree.finish().unwrap();
        prop_assert_eq!(stats, counted(&site.root()));
    }
}

fn counted(folder: &Path) -> Stats {
    fs::read_dir(folder).unwrap().fold(Stats::default(), |sum, entry| {
        let path = entry.unwrap().path();
        let kind = fs::symlink_metadata(&path).unwrap();
        let here = match () {
            () if kind.is_dir() => counted(&path),
            () if kind.is_file() => Stats { files: 1, entries: 0, bytes: kind.len() },
            () => Stats::default(),
        };
        Stats {
            files: sum.files + here.files,
            entries: sum.entries + here.entries + 1,
            bytes: sum.bytes + here.bytes,
        }
    })
}
