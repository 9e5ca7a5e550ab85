//! Where tests put trees.

use std::fs;
use std::path::{Path, PathBuf};

use super::tree::TreeWriter;

/// A folder for a tree, beside which nothing may appear.
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

    /// The folder in which the tree is.
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

    /// Nothing is beside the tree, and what was there is as it was.
    pub(super) fn is_untouched(&self) -> bool {
        let mut names: Vec<_> =
            fs::read_dir(self.dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names == ["canary", "tree"] && fs::read(self.dir.path().join("canary")).unwrap() == b"alive"
    }
}
