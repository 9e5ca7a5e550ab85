//! Unpacks layers of arbitrary bytes. This must not panic, touch a file outside of the tree, or make a link that leads
//! out.
//!
//! Input: one byte, then the archive. The byte selects the compression and the number of layers. It also says if the
//! rest is a raw archive or a list of entries to build one from, with correct header checksums.
#![no_main]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use step_runner::fetch::worker::archive::{Packing, unpack};
use step_runner::fetch::worker::tree::TreeWriter;

/// Folder in memory with a canary file. The tree is unpacked beside the canary.
static SITE: LazyLock<PathBuf> = LazyLock::new(|| {
    let memory = Path::new("/dev/shm");
    let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    let site = parent.join(format!("step-runner-fuzz-{}", std::process::id()));
    fs::create_dir(&site).expect("a folder");
    fs::write(site.join("canary"), "alive").expect("a canary");
    site
});

fuzz_target!(|input: &[u8]| {
    let Some((&shape, rest)) = input.split_first() else { return };
    let packing = match shape & 3 {
        1 => Packing::Gzip,
        2 => Packing::Zstd,
        _ => Packing::Plain,
    };
    let second = if shape & 4 == 0 { rest.len() } else { rest.len() / 2 };
    let tree = SITE.join("tree");
    fs::create_dir(&tree).expect("a folder");
    let mut writer = TreeWriter::new(&tree).expect("an empty folder");
    let (first, second) = rest.split_at(second);
    for layer in [first, second] {
        let failed = if shape & 8 == 0 {
            unpack(packing, layer, &mut writer)
        } else {
            unpack(Packing::Plain, crafted(layer).as_slice(), &mut writer)
        };
        if failed.is_err() {
            break;
        }
    }
    let stats = writer.finish().expect("a size");

    assert_eq!(names(&SITE), ["canary", "tree"]);
    assert_eq!(fs::read(SITE.join("canary")).expect("the canary"), b"alive");
    let mut counted = (0, 0);
    check(&tree, &tree, &mut counted);
    assert_eq!(counted, (stats.files, stats.bytes));
    fs::remove_dir_all(&tree).expect("the tree can be removed");
});

/// Builds an archive from a list of entries. An entry is: kind, length of the name, of the link and of the content,
/// then these three.
fn crafted(mut input: &[u8]) -> Vec<u8> {
    let mut archive = Vec::new();
    while let Some((&[kind, name, link, content], rest)) = input.split_first_chunk() {
        let mut rest = rest;
        let mut take = |length: u8, most: usize| {
            let (taken, left) = rest.split_at(usize::from(length).min(most).min(rest.len()));
            rest = left;
            taken
        };
        let (name, link, content) = (take(name, 100), take(link, 100), take(content, 255));
        let mut header = [0; 512];
        header[..name.len()].copy_from_slice(name);
        header[100..108].copy_from_slice(b"0000755\0");
        header[124..136].copy_from_slice(format!("{:011o}\0", content.len()).as_bytes());
        header[148..156].fill(b' ');
        header[156] = b"0125345gxLKS7"[usize::from(kind) % 13];
        header[157..157 + link.len()].copy_from_slice(link);
        header[257..265].copy_from_slice(if kind < 128 { b"ustar\x0000" } else { b"ustar  \0" });
        let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        archive.extend_from_slice(&header);
        archive.extend_from_slice(content);
        archive.resize(archive.len().next_multiple_of(512), 0);
        input = rest;
    }
    archive
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder");
    let mut names: Vec<_> =
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Asserts that the tree has only folders, regular files and links that stay inside. Counts the files and their bytes.
fn check(root: &Path, folder: &Path, counted: &mut (u64, u64)) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let kind = fs::symlink_metadata(&path).expect("it is there");
        if kind.is_dir() {
            check(root, &path, counted);
        } else if kind.is_file() {
            *counted = (counted.0 + 1, counted.1 + kind.len());
        } else {
            assert!(kind.is_symlink(), "a file of another kind");
            let inside = fs::canonicalize(&path).map_or(true, |real| real.starts_with(root));
            assert!(inside, "a link leads out");
        }
    }
}
