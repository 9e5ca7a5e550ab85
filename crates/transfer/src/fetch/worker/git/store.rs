//! Fetched objects in a folder of their own, found by hash. The folder is no repository: it has no configuration, no
//! hooks, nothing that could be executed.

use std::collections::HashSet;
use std::io;
use std::path::Path;

use gix::ObjectId;
use gix::hash::{Kind as Hash, Prefix};
use gix::objs::{FindExt, Kind, TreeRef};
use gix::odb::{Handle, HeaderExt, store};

use super::fault::Fault;

/// Largest object in bytes: one is held in memory whole.
pub(super) const MAX_OBJECT_BYTES: usize = 256 << 20;

/// The objects of one or more packs.
pub(super) struct Store {
    objects: Handle,
}

impl Store {
    /// Opens the folder whose `pack/` holds packs.
    pub(super) fn open(folder: &Path) -> io::Result<Self> {
        let options =
            store::init::Options { alloc_limit_bytes: Some(MAX_OBJECT_BYTES), ..Default::default() };
        let mut objects = gix::odb::at_opts(folder, Hash::Sha1, None, options)?;
        objects.refresh_never();
        Ok(Self { objects })
    }

    pub(super) fn kind(&self, id: &ObjectId) -> Option<Kind> {
        self.objects.header(id).ok().map(|header| header.kind())
    }

    /// Returns the commits whose hashes begin with `prefix`.
    pub(super) fn commits(&self, prefix: Prefix) -> Result<Vec<ObjectId>, Fault> {
        let mut found = HashSet::new();
        self.objects.lookup_prefix(prefix, Some(&mut found)).map_err(|error| Fault::damaged(&error))?;
        found.retain(|id| self.kind(id) == Some(Kind::Commit));
        Ok(found.into_iter().collect())
    }

    pub(super) fn tree_of(&self, commit: &ObjectId) -> Result<ObjectId, Fault> {
        let mut buffer = Vec::new();
        let found =
            self.objects.find_commit_iter(commit, &mut buffer).map_err(|error| Fault::damaged(&error))?;
        { found }.tree_id().map_err(|error| Fault::damaged(&error))
    }

    /// Reads a folder's entries into `buffer`.
    pub(super) fn tree<'a>(&self, id: &ObjectId, buffer: &'a mut Vec<u8>) -> Result<TreeRef<'a>, Fault> {
        self.objects.find_tree(id, buffer).map_err(|error| Fault::damaged(&error))
    }

    /// Reads a file's content into `buffer`.
    pub(super) fn file(&self, id: &ObjectId, buffer: &mut Vec<u8>) -> Result<(), Fault> {
        self.objects.find_blob(id, buffer).map(drop).map_err(|error| Fault::damaged(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_that_is_missing_or_of_another_kind_is_told_with_its_hash() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("pack")).unwrap();
        let store = Store::open(folder.path()).unwrap();
        let id = ObjectId::from_hex(b"1234567890123456789012345678901234567890").unwrap();
        let errors = [
            store.tree_of(&id).map(drop),
            store.tree(&id, &mut Vec::new()).map(drop),
            store.file(&id, &mut Vec::new()),
        ];
        for error in errors.map(Result::unwrap_err) {
            let text = error.to_string();
            assert!(text.contains("is damaged (") && text.contains(&id.to_string()), "{text}");
        }
    }
}
