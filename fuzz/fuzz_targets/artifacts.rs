//! Unpacks archives of artifacts from arbitrary bytes, as a job does with one of a server. This must not panic, touch a file
//! outside of the project or below its `.git`, or make a link that leads out.
//!
//! Input: one byte, then the archive. The byte says if the rest is a whole archive, a tar archive to compress with
//! Zstandard, or a list of entries to make a zip archive or members of gzip from, with correct checksums.
#![no_main]

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use flate2::{Compression, GzBuilder};
use libfuzzer_sys::fuzz_target;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

/// Folder in memory with a canary file, beside which projects are.
static SITE: LazyLock<PathBuf> = LazyLock::new(|| {
    let memory = Path::new("/dev/shm");
    let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    let site = parent.join(format!("step-runner-fuzz-artifacts-{}", std::process::id()));
    fs::create_dir(&site).expect("a folder");
    fs::write(site.join("canary"), "alive").expect("a canary");
    site
});

fuzz_target!(|input: &[u8]| {
    let Some((&shape, rest)) = input.split_first() else { return };
    let archive = match shape & 3 {
        0 => Some(rest.to_vec()),
        1 => zstd::encode_all(rest, 1).ok(),
        2 => zipped(rest),
        _ => gzipped(rest),
    };
    let Some(archive) = archive else { return };
    let path = SITE.join("archive");
    fs::write(&path, archive).expect("an archive");
    let project = SITE.join("project");
    fs::create_dir_all(project.join(".git")).expect("a project");
    fs::write(project.join(".git/config"), "alive").expect("a canary");
    let file = File::open(&path).expect("the archive");
    drop(step_runner::builtin::unpack_artifacts(&file, &project));

    assert_eq!(names(&SITE), ["archive", "canary", "project"]);
    assert_eq!(fs::read(SITE.join("canary")).expect("the canary"), b"alive");
    assert_eq!(names(&project.join(".git")), ["config"]);
    assert_eq!(fs::read(project.join(".git/config")).expect("the canary"), b"alive");
    check(&project, &project);
    fs::remove_dir_all(&project).expect("the project can be removed");
});

/// Entries of a list: kind, length of the name and of the content, then these two.
fn entries(mut input: &[u8]) -> impl Iterator<Item = (u8, String, &[u8])> {
    std::iter::from_fn(move || {
        let (&[kind, name, content], rest) = input.split_first_chunk()?;
        let (name, rest) = rest.split_at(usize::from(name).min(rest.len()));
        let (content, rest) = rest.split_at(usize::from(content).min(rest.len()));
        input = rest;
        Some((kind, String::from_utf8_lossy(name).into_owned(), content))
    })
}

fn zipped(input: &[u8]) -> Option<Vec<u8>> {
    let mut zip = ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (kind, name, content) in entries(input) {
        let method = if kind & 4 == 0 { CompressionMethod::Stored } else { CompressionMethod::Deflated };
        let options =
            SimpleFileOptions::default().compression_method(method).unix_permissions(u32::from(kind) << 4);
        match kind & 3 {
            0 => zip.add_directory(name, options).ok()?,
            1 => zip.add_symlink(name, String::from_utf8_lossy(content), options).ok()?,
            _ => {
                zip.start_file(name, options).ok()?;
                zip.write_all(content).ok()?;
            }
        }
    }
    Some(zip.finish().ok()?.into_inner())
}

fn gzipped(input: &[u8]) -> Option<Vec<u8>> {
    let mut archive = Vec::new();
    for (_, name, content) in entries(input) {
        let name = name.replace('\0', "/");
        let mut member = GzBuilder::new().filename(name.as_bytes()).write(&mut archive, Compression::fast());
        member.write_all(content).ok()?;
        member.finish().ok()?;
    }
    Some(archive)
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder");
    let mut names: Vec<_> =
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Asserts that a folder has only folders, regular files and links that stay in the project.
fn check(project: &Path, folder: &Path) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let kind = fs::symlink_metadata(&path).expect("it is there");
        if kind.is_dir() {
            check(project, &path);
        } else if kind.is_symlink() {
            let inside = fs::canonicalize(&path).map_or(true, |real| real.starts_with(project));
            assert!(inside, "a link leads out");
        } else {
            assert!(kind.is_file(), "a file of another kind");
        }
    }
}
