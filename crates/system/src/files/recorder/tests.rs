use std::path::PathBuf;

use tempfile::TempDir;

use super::*;
use crate::files;

/// Records what `work` does in a folder.
fn recorded(work: impl FnOnce(&Path)) -> (TempDir, PathBuf, History) {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().join("root");
    std::fs::create_dir_all(root.join("old")).unwrap();
    std::fs::write(root.join("old/file"), "before").unwrap();
    let recording = Recording::start(&root).unwrap();
    work(&root);
    let history = recording.finish();
    (temp, root, history)
}

fn busy(root: &Path) {
    let dir = files::open_dir(files::CWD, root).unwrap();
    files::make_dir(&dir, "new").unwrap();
    files::replace(&dir, "new/record", b"one").unwrap();
    files::replace(&dir, "new/record", b"two").unwrap();
    let log = files::open_append(&dir, "new/log").unwrap();
    files::append(&log, &[b'x'; 1_300]).unwrap();
    files::append(&log, b"tail").unwrap();
    files::sync(&log).unwrap();
    files::append(files::open_append(&dir, "old/file").unwrap(), b" and after").unwrap();
    files::cut(files::open_write(&dir, "old/file").unwrap(), 4).unwrap();
    files::reserve(files::open_write(&dir, "reserve").unwrap(), 100).unwrap();
    files::rename(&dir, "new", &dir, ".gone").unwrap();
    files::unlink(&dir, ".gone/record").unwrap();
    // A file that takes the name of a removed one is another file.
    files::append(files::open_append(&dir, ".gone/record").unwrap(), b"again").unwrap();
    files::remove_tree(&dir, c"old").unwrap();
}

#[test]
fn recording_replayed_whole_is_the_folder() {
    let (_temp, root, history) = recorded(busy);
    let real = Image::read(&root, |_, _| {}).unwrap().listing();
    assert_eq!(history.killed(history.ops.len(), 0).listing(), real);
    assert_eq!(history.power_cut(history.ops.len(), Choices::All).listing(), real);
    let copy = root.with_file_name("copy");
    history.killed(history.ops.len(), 0).write_to(&copy).unwrap();
    assert_eq!(Image::read(&copy, |_, _| {}).unwrap().listing(), real);
    assert_eq!(history.kills(8).last().unwrap().1.listing(), real);
}

#[test]
fn power_cut_keeps_what_was_synced_and_nothing_else_for_certain() {
    let (_temp, _root, history) = recorded(|root| {
        let dir = files::open_dir(files::CWD, root).unwrap();
        let log = files::open_append(&dir, "log").unwrap();
        files::append(&log, b"synced").unwrap();
        files::sync(&log).unwrap();
        files::append(&log, b" lost").unwrap();
        files::sync(&dir).unwrap();
        files::open_append(&dir, "lost").unwrap();
    });
    let count = history.ops.len();
    let none = history.power_cut(count, Choices::None);
    assert_eq!(none.file("log"), Some(&b"synced"[..]));
    assert_eq!((none.file("lost"), none.file("old/file")), (None, Some(&b"before"[..])));
    // Before its directory was synced the file had no name.
    assert_eq!(history.power_cut(count - 2, Choices::None).file("log"), None);
    assert_eq!(history.unsynced(count), [Piece::Length(3), Piece::Sector(3, 0), Piece::Names(5)]);
    let longer = history.power_cut(count, Choices::Only(0));
    assert_eq!(longer.file("log"), Some(&b"synced\0\0\0\0\0"[..]));
}

#[test]
fn unsynced_write_is_torn_at_sectors_of_the_file() {
    let (_temp, _root, history) = recorded(|root| {
        let log = files::open_append(files::open_dir(files::CWD, root).unwrap(), "old/file").unwrap();
        files::append(&log, &[b'x'; 1_024]).unwrap();
    });
    let pieces = history.unsynced(history.ops.len());
    assert_eq!(pieces.len(), 4, "{pieces:?}");
    let torn = history.power_cut(history.ops.len(), Choices::AllBut(2));
    let file = torn.file("old/file").unwrap();
    assert_eq!((file.len(), &file[..7]), (1_030, &b"beforex"[..]));
    assert!(file[512..1_024].iter().all(|byte| *byte == 0) && file[1_024] == b'x');
    assert_eq!(Choices::list(4, 6, 9).len(), 16);
    assert_eq!(Choices::list(7, 6, 9).len(), 2 + 14 + 9);
}
