//! Archives that are read again, and hostile ones.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;

use proptest::prelude::*;

use super::*;

fn file_with(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file
}

/// Makes a tar.zst of entries: type, name, target or content.
fn tar_zst(entries: &[(::tar::EntryType, &str, &str)]) -> File {
    let mut tar = ::tar::Builder::new(Vec::new());
    for (kind, name, text) in entries {
        let mut header = ::tar::Header::new_gnu();
        header.set_entry_type(*kind);
        header.set_mode(0o4_750);
        // Names are set as bytes: `set_path` refuses hostile ones.
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        if kind.is_symlink() || kind.is_hard_link() {
            header.as_old_mut().linkname[..text.len()].copy_from_slice(text.as_bytes());
            header.set_size(0);
            header.set_cksum();
            tar.append(&header, io::empty()).unwrap();
        } else {
            header.set_size(text.len() as u64);
            header.set_cksum();
            tar.append(&header, text.as_bytes()).unwrap();
        }
    }
    file_with(&zstd::encode_all(&*tar.into_inner().unwrap(), 0).unwrap())
}

fn refused(file: &File) -> String {
    let to = tempfile::tempdir().unwrap();
    let error = read(file, to.path()).unwrap_err().to_string();
    assert_eq!(fs::read_dir(to.path()).unwrap().count(), 0, "{error}");
    error
}

#[test]
fn a16_entries_that_lead_out_of_the_project_are_refused() {
    let of = |name: &str, kind: Kind<'_>| check(&Entry { name: name.to_owned(), kind, mode: None });
    for name in ["a", "a/b.txt", "./a", "a.git/x", "..a/b"] {
        assert_eq!(of(name, Kind::Folder), Ok(()), "{name}");
    }
    for name in ["../a", "/etc/passwd", "a/../../b", ".git/hooks/x", "a/.GIT/config", "a\0b"] {
        assert!(of(name, Kind::Folder).is_err(), "{name:?}");
    }
    assert!(of("a", Kind::Other).is_err());
    for (name, target, is_fit) in [
        ("a", "b", true),
        ("a/b", "../c", true),
        ("a", "../c", false),
        ("a/b", "../../c", false),
        ("a", "/etc", false),
    ] {
        assert_eq!(of(name, Kind::Link(target.to_owned())).is_ok(), is_fit, "{name} -> {target}");
    }
}

#[test]
fn a16_a_link_without_end_is_refused_before_anything_is_written() {
    let file = tempfile::tempfile().unwrap();
    let mut zip = ::zip::ZipWriter::new(&file);
    let options = ::zip::write::SimpleFileOptions::default();
    zip.start_file("first", options).unwrap();
    zip.add_symlink("link", "a".repeat(5_000), options).unwrap();
    zip.finish().unwrap();
    assert!(refused(&file).contains("longer than a path"));
}

#[test]
fn what_is_written_as_zip_is_read_again() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::create_dir_all(from.path().join("a/empty")).unwrap();
    fs::write(from.path().join("a/run"), "text").unwrap();
    fs::set_permissions(from.path().join("a/run"), fs::Permissions::from_mode(0o750)).unwrap();
    symlink("a/run", from.path().join("link")).unwrap();
    let file = tempfile::tempfile().unwrap();
    let paths = ["a/empty", "a/run", "link"].map(str::to_owned);
    write_zip(&paths, from.path(), &file).unwrap();
    assert_eq!(read(&file, to.path()).unwrap(), 3);
    assert_eq!(fs::read_to_string(to.path().join("link")).unwrap(), "text");
    assert!(to.path().join("a/empty").is_dir());
    let mode = fs::metadata(to.path().join("a/run")).unwrap().permissions().mode();
    assert_eq!(mode & 0o700, 0o700);
    // An archive without entries is one, too.
    let file = tempfile::tempfile().unwrap();
    write_zip(&[], from.path(), &file).unwrap();
    assert_eq!(read(&file, to.path()).unwrap(), 0);
}

#[test]
fn what_is_written_as_gzip_is_read_again() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::create_dir(from.path().join("a")).unwrap();
    fs::write(from.path().join("a/one.xml"), "one\n".repeat(100_000)).unwrap();
    fs::write(from.path().join("two.xml"), "").unwrap();
    let file = tempfile::tempfile().unwrap();
    write_gzip(&["a/one.xml", "two.xml"].map(str::to_owned), from.path(), &file).unwrap();
    assert_eq!(read(&file, to.path()).unwrap(), 2);
    assert_eq!(fs::read_to_string(to.path().join("a/one.xml")).unwrap().len(), 400_000);
    assert_eq!(fs::read_to_string(to.path().join("two.xml")).unwrap(), "");
}

#[test]
fn tar_zst_is_read_with_folders_links_and_modes() {
    use ::tar::EntryType;
    let to = tempfile::tempdir().unwrap();
    let long = "x".repeat(2_000_000);
    let file = tar_zst(&[
        (EntryType::Directory, "a/", ""),
        (EntryType::Regular, "a/run", &long),
        (EntryType::Symlink, "link", "a/run"),
        (EntryType::Regular, "./b/c", "text"),
    ]);
    assert_eq!(read(&file, to.path()).unwrap(), 4);
    assert_eq!(fs::read_to_string(to.path().join("link")).unwrap(), long);
    assert_eq!(fs::read_to_string(to.path().join("b/c")).unwrap(), "text");
    let mode = fs::metadata(to.path().join("a/run")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7_700, 0o700);
}

#[test]
fn a16_hostile_entries_of_tar_zst_are_refused_before_anything_is_written() {
    use ::tar::EntryType;
    let first = (EntryType::Regular, "first", "text");
    for (entry, part) in [
        ((EntryType::Regular, "../out", ""), "leads out of the project"),
        ((EntryType::Regular, "/etc/passwd", ""), "leads out of the project"),
        ((EntryType::Regular, ".git/config", ""), "is below .git"),
        ((EntryType::Symlink, "a", "../.."), "a link that leads out"),
        // The folder of a link is one more name, but no folder to go up from.
        ((EntryType::Symlink, "./a", ".."), "a link that leads out"),
        ((EntryType::Symlink, "a", "b/../.."), "`..` behind a name"),
        // If `b/c` is a link to the project, this leads out of it.
        ((EntryType::Symlink, "a", "b/c/.."), "`..` behind a name"),
        ((EntryType::Link, "a", "first"), "neither a file"),
        ((EntryType::Char, "null", ""), "neither a file"),
        ((EntryType::Fifo, "pipe", ""), "neither a file"),
    ] {
        let error = refused(&tar_zst(&[first, entry]));
        assert!(error.contains(part), "{part}: {error}");
    }
    // A name of many megabytes packs into a few bytes.
    let huge = "n".repeat(32 << 20);
    let error = refused(&tar_zst(&[first, (EntryType::GNULongName, "././@LongLink", &huge), first]));
    assert!(error.contains("more than 1 MiB"), "{error}");
}

#[test]
fn other_bytes_are_named_as_damaged() {
    for (bytes, part) in [
        (&b""[..], "none of zip, gzip and tar.zst"),
        (b"no archive", "none of zip, gzip and tar.zst"),
        (b"PK\x03\x04", "damaged"),
        (b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\x03\x00", "has no name"),
        (b"\x1f\x8bxx", "damaged"),
        (b"\x28\xb5\x2f\xfdxx", "damaged"),
    ] {
        let error = refused(&file_with(bytes));
        assert!(error.contains(part), "{bytes:?}: {error}");
    }
}

proptest! {
    #[test]
    fn any_bytes_behind_a_magic_are_read_or_refused(which in 0_usize..4, bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let to = tempfile::tempdir().unwrap();
        read(&file_with(&[FORMATS[which].0, &bytes].concat()), to.path()).ok();
    }
}
