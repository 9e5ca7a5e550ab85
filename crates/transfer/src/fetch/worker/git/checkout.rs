//! Writes the tree of a commit as files. Contents are written exactly as they are in the repository, without filters,
//! attributes or conversion of line ends.

use std::path::Path;

use gix::ObjectId;
use gix::objs::tree::EntryKind;
use gix::validate::path::component;

use super::fault::failure;
use super::location::Location;
use super::store::Store;
use crate::fetch::order::Stats;
use crate::fetch::worker::tree::{self, TreeWriter};
use step_runner_core::job::event::FetchFailure;

/// Writes the tree of `commit` into the empty folder `into`. Skips submodules and links that could lead out of the
/// tree, because a repository can hold some that its functions do not need.
pub(super) fn write(
    store: &Store,
    commit: &ObjectId,
    location: &Location,
    into: &Path,
) -> Result<Stats, FetchFailure> {
    let root = store.tree_of(commit).map_err(|fault| fault.at(location))?;
    let mut checkout = Checkout { store, location, writer: TreeWriter::new(into)?, content: Vec::new() };
    checkout.folder(&root, &mut Vec::new())?;
    checkout.writer.finish()
}

struct Checkout<'a> {
    store: &'a Store,
    location: &'a Location,
    writer: TreeWriter,
    /// Content of the current file or link.
    content: Vec<u8>,
}

impl Checkout<'_> {
    /// Writes the folder at `path`; restores `path` before it returns. The writer bounds the depth.
    fn folder(&mut self, id: &ObjectId, path: &mut Vec<u8>) -> Result<(), FetchFailure> {
        let mut buffer = Vec::new();
        let folder = self.store.tree(id, &mut buffer).map_err(|fault| fault.at(self.location))?;
        for entry in &folder.entries {
            let kind = entry.mode.kind();
            self.check_name(entry.filename, kind)?;
            let length = path.len();
            if length > 0 {
                path.push(b'/');
            }
            path.extend_from_slice(entry.filename);
            self.entry(&entry.oid.to_owned(), kind, path)?;
            path.truncate(length);
        }
        Ok(())
    }

    fn entry(&mut self, id: &ObjectId, kind: EntryKind, path: &mut Vec<u8>) -> Result<(), FetchFailure> {
        match kind {
            EntryKind::Tree => {
                self.writer.folder(path)?;
                self.folder(id, path)
            }
            EntryKind::Blob | EntryKind::BlobExecutable => {
                let executable = kind == EntryKind::BlobExecutable;
                self.read(id)?;
                self.writer.file(path, executable, &mut self.content.as_slice())
            }
            EntryKind::Link => {
                self.read(id)?;
                let target = self.content.as_slice();
                if tree::takes_target(path, target) {
                    self.writer.link(path, target)
                } else {
                    self.writer.pass_over(path)
                }
            }
            EntryKind::Commit => self.writer.pass_over(path),
        }
    }

    fn read(&mut self, id: &ObjectId) -> Result<(), FetchFailure> {
        self.store.file(id, &mut self.content).map_err(|fault| fault.at(self.location))
    }

    /// Refuses names that some file system treats as `.git`: programs would take such a folder for a repository.
    fn check_name(&self, name: &gix::bstr::BStr, kind: EntryKind) -> Result<(), FetchFailure> {
        let options = component::Options { protect_windows: false, protect_hfs: true, protect_ntfs: true };
        let mode = (kind == EntryKind::Link).then_some(component::Mode::Symlink);
        gix::validate::path::component(name, mode, options).map(drop).map_err(|_| {
            let name = tree::shown(name);
            failure(format!(
                "the tree of {} holds a file or folder named {name}, which is refused",
                self.location
            ))
        })
    }
}
