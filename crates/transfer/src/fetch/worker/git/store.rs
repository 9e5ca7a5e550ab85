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
        self.objects.lookup_prefix(prefix, Some(&mut found)).map_err(|_| Fault::Damaged)?;
        found.retain(|id| self.kind(id) == Some(Kind::Commit));
        Ok(found.into_iter().collect())
    }

    pub(super) fn tree_of(&self, commit: &ObjectId) -> Result<ObjectId, Fault> {
        let mut buffer = Vec::new();
        let found = self.objects.find_commit_iter(commit, &mut buffer).map_err(|_| Fault::Damaged)?;
        { found }.tree_id().map_err(|_| Fault::Damaged)
    }

    /// Reads a folder's entries into `buffer`.
    pub(super) fn tree<'a>(&self, id: &ObjectId, buffer: &'a mut Vec<u8>) -> Result<TreeRef<'a>, Fault> {
        self.objects.find_tree(id, buffer).map_err(|_| Fault::Damaged)
    }

    /// Reads a file's content into `buffer`.
    pub(super) fn file(&self, id: &ObjectId, buffer: &mut Vec<u8>) -> Result<(), Fault> {
        self.objects.find_blob(id, buffer).map(drop).map_err(|_| Fault::Damaged)
    }
}
