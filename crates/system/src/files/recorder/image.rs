//! A folder in memory. Numbers identify its files, so that a file stays itself under any name.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::fs::Stat;

use super::Op;
use crate::files;

/// Number of a file or directory within a recording.
pub type Id = u64;

/// Number of the folder itself.
pub(super) const ROOT: Id = 0;

/// A file's bytes or a directory's names.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Node {
    File(Vec<u8>),
    Directory(BTreeMap<Vec<u8>, Id>),
}

/// A folder with everything in it. Entries without a name are kept: they may get one later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    nodes: HashMap<Id, Node>,
    next: Id,
}

impl Default for Image {
    fn default() -> Self {
        Self { nodes: HashMap::from([(ROOT, Node::Directory(BTreeMap::new()))]), next: ROOT + 1 }
    }
}

impl Image {
    /// Reads a folder. Calls `found` for everything that gets a number. Only files and directories are taken.
    pub fn read(root: &Path, mut found: impl FnMut(&Stat, Id)) -> io::Result<Self> {
        let mut image = Self::default();
        let mut todo = vec![(root.to_owned(), ROOT)];
        found(&files::stat_at(files::CWD, root)?, ROOT);
        while let Some((path, dir)) = todo.pop() {
            for entry in std::fs::read_dir(&path)? {
                let path = entry?.path();
                let stat = files::stat_at(files::CWD, path.as_path())?;
                let name = path.file_name().unwrap_or_default().as_bytes().to_vec();
                let kind = rustix::fs::FileType::from_raw_mode(stat.st_mode);
                let id = image.next_id();
                if kind.is_dir() {
                    image.apply(&Op::Mkdir { dir, name, id });
                    todo.push((path, id));
                } else if kind.is_file() {
                    image.apply(&Op::Create { dir, name, id });
                    image.nodes.insert(id, Node::File(std::fs::read(&path)?));
                } else {
                    continue;
                }
                found(&stat, id);
            }
        }
        Ok(image)
    }

    /// Writes the folder to `path`, which must not exist.
    pub fn write_to(&self, path: &Path) -> io::Result<()> {
        self.write_node(ROOT, path)
    }

    fn write_node(&self, id: Id, path: &Path) -> io::Result<()> {
        match self.nodes.get(&id) {
            Some(Node::Directory(names)) => {
                std::fs::create_dir(path)?;
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700))?;
                names
                    .iter()
                    .try_for_each(|(name, id)| self.write_node(*id, &path.join(OsStr::from_bytes(name))))
            }
            Some(Node::File(bytes)) => {
                std::fs::write(path, bytes)?;
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))
            }
            None => Ok(()),
        }
    }

    /// Returns the bytes of the file at `path`.
    pub fn file(&self, path: &str) -> Option<&[u8]> {
        let mut id = ROOT;
        for name in path.split('/') {
            id = self.entry(id, name.as_bytes())?;
        }
        match self.nodes.get(&id)? {
            Node::File(bytes) => Some(bytes),
            Node::Directory(_) => None,
        }
    }

    /// Returns all paths in order, with the bytes of files; directories have none.
    pub fn listing(&self) -> BTreeMap<String, Option<Vec<u8>>> {
        let mut list = BTreeMap::new();
        let mut todo = vec![(String::new(), ROOT)];
        while let Some((path, id)) = todo.pop() {
            match self.nodes.get(&id) {
                Some(Node::Directory(names)) => {
                    for (name, id) in names {
                        todo.push((format!("{path}/{}", String::from_utf8_lossy(name)), *id));
                    }
                    list.insert(path, None);
                }
                Some(Node::File(bytes)) => drop(list.insert(path, Some(bytes.clone()))),
                None => {}
            }
        }
        list
    }

    pub(super) const fn next_id(&mut self) -> Id {
        let id = self.next;
        self.next += 1;
        id
    }

    pub(super) fn entry(&self, dir: Id, name: &[u8]) -> Option<Id> {
        match self.nodes.get(&dir)? {
            Node::Directory(names) => names.get(name).copied(),
            Node::File(_) => None,
        }
    }

    pub(super) fn len(&self, id: Id) -> Option<u64> {
        match self.nodes.get(&id)? {
            Node::File(bytes) => Some(bytes.len() as u64),
            Node::Directory(_) => None,
        }
    }

    pub(super) fn apply(&mut self, op: &Op) {
        match op {
            Op::Create { dir, name, id } | Op::Mkdir { dir, name, id } => {
                self.exists(op);
                self.link(*dir, name, *id);
            }
            Op::Write { id, at, bytes } => self.put(*id, *at as usize, bytes),
            Op::Cut { id, len } => self.resize(*id, *len as usize),
            Op::Rename { from, old, to, new, id } => {
                if self.entry(*from, old) == Some(*id) {
                    self.unlink(*from, old);
                }
                self.link(*to, new, *id);
            }
            Op::Remove { dir, name } => self.unlink(*dir, name),
            Op::Sync { .. } | Op::SyncAll => {}
        }
    }

    /// Makes the file or directory of an operation, without its name.
    pub(super) fn exists(&mut self, op: &Op) {
        match op {
            Op::Create { id, .. } => {
                self.nodes.entry(*id).or_insert_with(|| Node::File(Vec::new()));
            }
            Op::Mkdir { id, .. } => {
                self.nodes.entry(*id).or_insert_with(|| Node::Directory(BTreeMap::new()));
            }
            _ => {}
        }
    }

    /// Puts bytes into a file; a gap behind its end becomes zeros.
    pub(super) fn put(&mut self, id: Id, at: usize, bytes: &[u8]) {
        if let Some(Node::File(content)) = self.nodes.get_mut(&id) {
            let end = at + bytes.len();
            content.resize(content.len().max(end), 0);
            if let Some(place) = content.get_mut(at..end) {
                place.copy_from_slice(bytes);
            }
        }
    }

    /// Makes a file at least `len` bytes long.
    pub(super) fn grow(&mut self, id: Id, len: usize) {
        if let Some(Node::File(content)) = self.nodes.get_mut(&id) {
            content.resize(content.len().max(len), 0);
        }
    }

    fn resize(&mut self, id: Id, len: usize) {
        if let Some(Node::File(content)) = self.nodes.get_mut(&id) {
            content.resize(len, 0);
        }
    }

    fn link(&mut self, dir: Id, name: &[u8], id: Id) {
        if let Some(Node::Directory(names)) = self.nodes.get_mut(&dir) {
            names.insert(name.to_vec(), id);
        }
    }

    fn unlink(&mut self, dir: Id, name: &[u8]) {
        if let Some(Node::Directory(names)) = self.nodes.get_mut(&dir) {
            names.remove(name);
        }
    }
}
