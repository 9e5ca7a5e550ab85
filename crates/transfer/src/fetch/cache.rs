//! The cache of fetched trees (language.md §7.7): `STATE/cache/{git,oci}/KEY/tree`, each complete or absent.
//!
//! A tree is filled in a temporary folder on the same file system. It appears and disappears by a rename, so nobody
//! ever sees a partial tree. Beside it lies `entry.json`, whose modification time is the tree's last use. Trees in use
//! are *leased* to jobs until these are over, and are not evicted.
//!
//! Nothing is synced to disk, so a power cut can leave a tree with empty files. `entry.json` therefore names the boot
//! in which it was written; trees of another boot are fetched anew.
//!
//! Calls block for a few system calls; the scan at the start takes longer. A [`Remover`] does the deleting.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::order::Stats;
use super::removal::Remover;
use step_runner_model::JobKey;
use step_runner_model::error::Chain;
use step_runner_system::clock;

/// Disk space of a file, folder or link besides its bytes: its inode, its name, and half of its last block.
const ENTRY_COST: u64 = 4 << 10;

/// Largest `entry.json` that is read; ours have some 100 bytes.
const MAX_RECORD: u64 = 4 << 10;

/// Folder of trees that are incomplete or about to be deleted.
const TEMPORARY: &str = "tmp";

/// Names in the folder of one tree.
const RECORD: &str = "entry.json";
const TREE: &str = "tree";

/// Kind of a tree's remote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    /// A Git repository.
    Git,
    /// A registry.
    Oci,
}

impl Kind {
    const ALL: [Self; 2] = [Self::Git, Self::Oci];

    const fn folder(self) -> &'static str {
        match self {
            Self::Git => "git",
            Self::Oci => "oci",
        }
    }
}

/// Key of a tree: a digest of its location and version.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct CacheKey {
    pub(super) kind: Kind,
    pub(super) digest: [u8; 32],
}

impl CacheKey {
    fn parse(kind: Kind, name: &str) -> Option<Self> {
        let mut digest = [0; 32];
        if name.len() != 64 || name.bytes().any(|byte| byte.is_ascii_uppercase()) {
            return None;
        }
        for (at, byte) in digest.iter_mut().enumerate() {
            *byte = u8::from_str_radix(name.get(2 * at..2 * at + 2)?, 16).ok()?;
        }
        Some(Self { kind, digest })
    }
}

/// Path below the cache's folder.
impl fmt::Display for CacheKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/", self.kind.folder())?;
        self.digest.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for CacheKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Content of `entry.json`.
#[derive(Serialize, Deserialize)]
struct Record {
    version: String,
    size: u64,
    /// The kernel's id of the boot in which it was written.
    boot: String,
}

/// A complete tree.
struct Entry {
    size: u64,
    used: SystemTime,
}

pub(super) struct Cache {
    /// Without symbolic links, so that a path shows if it is inside a tree.
    root: PathBuf,
    limit: u64,
    /// Distinguishes this daemon's temporary folders from older ones.
    run: u64,
    boot: String,
    serial: AtomicU64,
    /// True once [`Self::scan`] is done; locked during the scan.
    scanned: Mutex<bool>,
    shared: Mutex<Shared>,
    remover: Arc<Remover>,
}

#[derive(Default)]
struct Shared {
    entries: HashMap<CacheKey, Entry>,
    /// Bytes of all entries together.
    size: u64,
    leases: HashMap<JobKey, HashSet<CacheKey>>,
    /// True once the leases of earlier daemons' jobs are known. Nothing may be evicted before.
    recovered: bool,
}

/// A folder to fill. Dropping it removes it with its content, so drop it only after the worker that fills it is dead.
#[derive(Debug)]
pub(super) struct Temporary {
    path: PathBuf,
    remover: Arc<Remover>,
}

impl Temporary {
    pub(super) fn scratch(&self) -> PathBuf {
        self.path.join("scratch")
    }

    pub(super) fn tree(&self) -> PathBuf {
        self.entry().join(TREE)
    }

    fn entry(&self) -> PathBuf {
        self.path.join("entry")
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        self.remover.remove([std::mem::take(&mut self.path)]);
    }
}

impl Cache {
    /// Creates the cache in the state folder `state`, with a limit in bytes for all trees. `run` is a random number of
    /// this daemon, `boot` the kernel's id of the running boot. Does not change the disk.
    pub(super) fn new(state: &Path, limit: u64, run: u64, boot: String) -> io::Result<Self> {
        let root = state.canonicalize()?.join("cache");
        Ok(Self {
            root,
            limit,
            run,
            boot,
            serial: AtomicU64::new(0),
            scanned: Mutex::default(),
            shared: Mutex::default(),
            remover: Arc::default(),
        })
    }

    /// True if an earlier daemon may have left something.
    pub(super) fn exists(&self) -> bool {
        self.root.exists()
    }

    /// Reads what an earlier daemon left and removes what is useless, once; takes time for each tree. Call it before
    /// anything is put into the cache.
    pub(super) fn scan(&self) -> io::Result<()> {
        let mut scanned = self.scanned.lock();
        if *scanned {
            return Ok(());
        }
        let (mut entries, mut doomed) = (HashMap::new(), Vec::new());
        for left in self.listed(TEMPORARY)? {
            doomed.push(left?.path());
        }
        for kind in Kind::ALL {
            for found in self.listed(kind.folder())? {
                let found = found?;
                let key = found.file_name().to_str().and_then(|name| CacheKey::parse(kind, name));
                match key.and_then(|key| Some((key, self.read_entry(&found.path())?))) {
                    Some((key, entry)) => drop(entries.insert(key, entry)),
                    None => doomed.extend(self.put_away(&found.path())),
                }
            }
        }
        self.remover.remove(doomed);
        let mut shared = self.shared.lock();
        shared.size = entries.values().fold(0, |sum, entry| sum.saturating_add(entry.size));
        shared.entries = entries;
        *scanned = true;
        Ok(())
    }

    /// Lists a folder of the cache. A missing one is empty: a daemon that never fetches creates none.
    fn listed(&self, name: &str) -> io::Result<impl Iterator<Item = io::Result<fs::DirEntry>>> {
        let found = match fs::read_dir(self.root.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            found => Some(found?),
        };
        Ok(found.into_iter().flatten())
    }

    /// Returns the tree of `key`, leased to `job`, if the cache has it.
    pub(super) fn take(&self, key: CacheKey, job: JobKey) -> Option<PathBuf> {
        let mut shared = self.shared.lock();
        let entry = shared.entries.get_mut(&key)?;
        let folder = self.root.join(key.to_string());
        let tree = folder.join(TREE);
        if is_gone(&tree) {
            // Somebody else deleted it from our folder.
            let size = entry.size;
            shared.entries.remove(&key);
            shared.size -= size;
            return None;
        }
        let used = clock::now();
        entry.used = used;
        // If this fails, the next daemon may evict the tree too early, no more.
        File::options().write(true).open(folder.join(RECORD)).and_then(|file| file.set_modified(used)).ok();
        shared.leases.entry(job).or_default().insert(key);
        Some(tree)
    }

    /// Leases to `job` the tree at `path`, which an earlier daemon leased to it.
    pub(super) fn hold(&self, job: JobKey, path: &Path) {
        let key = path.strip_prefix(&self.root).ok().and_then(|inside| {
            let mut parts = inside.iter().filter_map(|part| part.to_str());
            let (folder, name) = (parts.next()?, parts.next()?);
            CacheKey::parse(Kind::ALL.into_iter().find(|kind| kind.folder() == folder)?, name)
        });
        if let Some(key) = key {
            self.shared.lock().leases.entry(job).or_default().insert(key);
        }
    }

    /// Ends all leases of a job that is over.
    pub(super) fn release(&self, job: JobKey) {
        self.shared.lock().leases.remove(&job);
    }

    /// Allows eviction. Call it when the trees of earlier daemons' jobs are leased.
    pub(super) fn recovered(&self) {
        self.shared.lock().recovered = true;
    }

    /// Creates a folder to fill.
    pub(super) fn temporary(&self) -> io::Result<Temporary> {
        let temporary = Temporary { path: self.temporary_path(), remover: Arc::clone(&self.remover) };
        let make = |path: PathBuf| DirBuilder::new().recursive(true).mode(0o700).create(path);
        make(temporary.scratch())?;
        make(temporary.tree())?;
        Ok(temporary)
    }

    /// Gives a filled tree its name and leases it to `job`. If a known tree has the name, that one is used.
    pub(super) fn publish(
        &self,
        key: CacheKey,
        job: JobKey,
        filled: &Temporary,
        version: &str,
        stats: Stats,
    ) -> io::Result<PathBuf> {
        let size = stats.bytes.saturating_add(stats.entries.saturating_mul(ENTRY_COST));
        let (version, boot) = (version.to_owned(), self.boot.clone());
        let record = serde_json::to_vec(&Record { version, size, boot })?;
        fs::write(filled.entry().join(RECORD), record)?;
        let folder = self.root.join(key.to_string());
        DirBuilder::new().recursive(true).mode(0o700).create(self.root.join(key.kind.folder()))?;
        let mut shared = self.shared.lock();
        let known = shared.entries.contains_key(&key);
        let name = || fs::rename(filled.entry(), &folder);
        let named = match name() {
            // An unknown folder has the name, such as a partly deleted tree.
            Err(error) if is_taken(&error) && !known => {
                self.remover.remove(self.put_away(&folder));
                name()
            }
            named => named,
        };
        match named {
            Ok(()) => {
                let replaced = shared.entries.insert(key, Entry { size, used: clock::now() });
                shared.size = shared.size.saturating_add(size) - replaced.map_or(0, |entry| entry.size);
            }
            Err(error) if is_taken(&error) && known => {}
            Err(error) => return Err(error),
        }
        shared.leases.entry(job).or_default().insert(key);
        Ok(folder.join(TREE))
    }

    /// Evicts the trees unused for longest until the rest is within the limit.
    pub(super) fn evict(&self) {
        self.evict_more(0);
    }

    /// Evicts like [`Self::evict`], but also tries to free `wanted` bytes. [`Self::removed`] waits for that.
    pub(super) fn evict_more(&self, wanted: u64) {
        let mut shared = self.shared.lock();
        let limit = self.limit.min(shared.size.saturating_sub(wanted));
        if !shared.recovered || shared.size <= limit {
            return;
        }
        let in_use: HashSet<CacheKey> = shared.leases.values().flatten().copied().collect();
        let mut idle: Vec<_> = shared.entries.iter().filter(|(key, _)| !in_use.contains(key)).collect();
        idle.sort_by_key(|(_, entry)| entry.used);
        let idle: Vec<_> = idle.into_iter().map(|(key, entry)| (*key, entry.size)).collect();
        let mut doomed = Vec::new();
        for (key, size) in idle {
            if shared.size <= limit {
                break;
            }
            // We hold the lock, so the next request for this key finds neither the entry nor its folder.
            if let Some(path) = self.put_away(&self.root.join(key.to_string())) {
                tracing::debug!(%key, size, "a fetched tree is evicted");
                shared.entries.remove(&key);
                shared.size -= size;
                doomed.push(path);
            }
        }
        self.remover.remove(doomed);
    }

    /// Waits until everything queued for removal so far is gone.
    pub(super) async fn removed(&self) {
        self.remover.removed().await;
    }

    /// Moves a folder to where nobody looks for it. Returns its new path.
    fn put_away(&self, folder: &Path) -> Option<PathBuf> {
        let path = self.temporary_path();
        let made = DirBuilder::new().recursive(true).mode(0o700).create(self.root.join(TEMPORARY));
        match made.and_then(|()| fs::rename(folder, &path)) {
            Ok(()) => Some(path),
            Err(error) => {
                tracing::warn!(error = %Chain(&error), "a folder of the cache was not put away");
                None
            }
        }
    }

    fn temporary_path(&self) -> PathBuf {
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        self.root.join(TEMPORARY).join(format!("{:016x}-{serial}", self.run))
    }

    /// Reads the record of a tree; `None` if it is not a complete tree of this boot.
    fn read_entry(&self, folder: &Path) -> Option<Entry> {
        let path = folder.join(RECORD);
        let metadata = fs::symlink_metadata(&path).ok()?;
        if !metadata.is_file() || metadata.len() > MAX_RECORD || !folder.join(TREE).is_dir() {
            return None;
        }
        let record: Record = serde_json::from_slice(&fs::read(&path).ok()?).ok()?;
        let used = metadata.modified().ok()?;
        (record.boot == self.boot).then_some(Entry { size: record.size, used })
    }
}

/// True if certainly no tree is at this path. Other look-up errors prove nothing.
fn is_gone(tree: &Path) -> bool {
    match fs::symlink_metadata(tree) {
        Ok(found) => !found.is_dir(),
        Err(error) => matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory),
    }
}

fn is_taken(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::AlreadyExists | io::ErrorKind::DirectoryNotEmpty)
}

#[cfg(test)]
mod tests;
