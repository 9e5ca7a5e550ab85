//! Folders for trees of tests.

use std::fs;
use std::path::{Path, PathBuf};

use super::tree::TreeWriter;

/// A folder for a tree, with nothing beside it but a canary.
pub(super) struct Site {
    dir: tempfile::TempDir,
}

impl Site {
    pub(super) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("tree")).unwrap();
        fs::write(dir.path().join("canary"), "alive").unwrap();
        Self { dir }
    }

    pub(super) fn root(&self) -> PathBuf {
        self.dir.path().join("tree")
    }

    pub(super) fn beside(&self) -> &Path {
        self.dir.path()
    }

    pub(super) fn writer(&self) -> TreeWriter {
        TreeWriter::new(&self.root()).unwrap()
    }

    pub(super) fn text(&self, path: &str) -> String {
        fs::read_to_string(self.root().join(path)).unwrap()
    }

    pub(super) fn has(&self, path: &str) -> bool {
        fs::symlink_metadata(self.root().join(path)).is_ok()
    }

    /// True if only the unchanged canary is beside the tree.
    pub(super) fn is_untouched(&self) -> bool {
        let mut names: Vec<_> =
            fs::read_dir(self.dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names == ["canary", "tree"] && fs::read(self.dir.path().join("canary")).unwrap() == b"alive"
    }
}
