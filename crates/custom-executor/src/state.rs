//! Folder that the calls of one preparation attempt share (custom-executor.md §4).
//!
//! What its files say is for messages, or harms the attempt alone if a script has written it. Which processes belong to
//! the attempt is told by the kernel (`processes`).
//!
//! This module removes and writes only the state root and names that follow from the attempt. Neither a variable, nor
//! the command line, nor a file in the folder, which scripts of the job may have written, can name anything else. A
//! folder is ours if it holds our [`MARKER`]. Links are never followed; other file systems are never entered.

mod lock;

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::geteuid;
use serde::{Deserialize, Serialize};

pub(super) use lock::Lock;

use super::identity::{Identity, digest, is_nonce};
use super::result::chain;
use step_runner_client::net::MAX_SOCKET_PATH;
use step_runner_model::error::{Exit, Failure};
use step_runner_process::detached::ProcessInfo;
use step_runner_system::files::{self, CWD};

/// Bytes of a private daemon's log above which it is cut.
const MAX_LOG: u64 = 1 << 20;

/// Bytes at its end that are kept then.
const KEPT_LOG: u32 = 1 << 19;

/// Bytes of a file in the folder that are read at most.
const MAX_FILE: u64 = 16 << 20;

/// Bits of a mode that give rights to others.
const OTHERS: u32 = 0o077;

/// Names in the folder.
const META: &str = "meta.json";
const JOBS: &str = "jobs";
const CLOSED: &str = "closed";
const LOG: &str = "daemon.log";
const BIN: &str = "bin";
const DAEMON_STATE: &str = "d";

/// Begins a line of the list of jobs whose job is gone from the daemon. Ids of attempts begin with `ce-`.
const GONE_JOB: char = '-';

/// Ends of names beside the folder. No nonce has a `~`.
const LOCK_SUFFIX: &str = "~lock";
const GONE_SUFFIX: &str = "~gone";

/// File by which we know a folder that we have made. Any other folder is left alone, whoever names it.
const MARKER: &str = "step-runner-custom-executor";

/// Place for a socket whose path would be too long in the folder.
const SHORT_ROOT: &str = "/tmp";

/// Content of `meta.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Meta {
    /// Version of the driver that wrote it.
    pub(super) version: String,
    pub(super) address: String,
    /// Prefix of all ids of the attempt.
    pub(super) prefix: String,
    /// True if the daemon is private.
    pub(super) private: bool,
    pub(super) owner: Owner,
}

/// Those for whom an attempt is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Owner {
    /// The Runner, if the process that started `prepare` could be seen.
    pub(super) runner: Option<ProcessInfo>,
    /// The job's private directory, which the Runner removes after `cleanup`.
    pub(super) private_dir: PathBuf,
}

/// The folder of one attempt; it may not exist.
#[derive(Clone, Debug)]
pub(super) struct AttemptFolder {
    root: PathBuf,
    nonce: String,
    path: PathBuf,
    /// [`SHORT_ROOT`], except in tests.
    short_root: PathBuf,
}

/// Returns the root without `--state-dir`: below `runtime_dir`, the Runner's `XDG_RUNTIME_DIR`, or `/tmp`.
pub(super) fn default_root(runtime_dir: Option<&Path>) -> PathBuf {
    let base = runtime_dir.filter(|dir| dir.is_absolute()).unwrap_or(Path::new("/tmp"));
    base.join(format!("step-runner-{}", geteuid().as_raw())).join("custom")
}

impl AttemptFolder {
    pub(super) fn new(root: &Path, identity: &Identity) -> Self {
        let nonce = identity.nonce().to_owned();
        Self { root: root.to_owned(), path: root.join(&nonce), nonce, short_root: SHORT_ROOT.into() }
    }

    /// Returns the folders of all other attempts below the root, also where only a rest of one is left.
    pub(super) fn others(&self) -> Vec<Self> {
        let names = fs::read_dir(&self.root).into_iter().flatten().flatten().map(|entry| entry.file_name());
        let nonces: BTreeSet<_> = names
            .filter_map(|name| {
                let name = name.to_str()?;
                let nonce = [LOCK_SUFFIX, GONE_SUFFIX].iter().find_map(|suffix| name.strip_suffix(suffix));
                Some(nonce.unwrap_or(name).to_owned())
            })
            .filter(|nonce| *nonce != self.nonce && is_nonce(nonce))
            .collect();
        let other = |nonce: String| Self {
            path: self.root.join(&nonce),
            nonce,
            root: self.root.clone(),
            short_root: self.short_root.clone(),
        };
        nonces.into_iter().map(other).collect()
    }

    /// Returns the name of the folder, which ids of the attempt contain.
    pub(super) fn nonce(&self) -> &str {
        &self.nonce
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path with the links of the root resolved, as a keeper names it.
    pub(super) fn real_path(&self) -> PathBuf {
        files::resolved(&self.root).join(&self.nonce)
    }

    pub(super) fn exists(&self) -> bool {
        fs::symlink_metadata(&self.path).is_ok()
    }

    /// True if anything of the attempt is left: the folder, the rest of an interrupted removal, or the lock of a call
    /// that runs or has died.
    pub(super) fn is_left(&self) -> bool {
        let names = [self.nonce.clone(), self.gone(), self.lock_name()];
        names.iter().any(|name| fs::symlink_metadata(self.root.join(name)).is_ok())
    }

    fn lock_name(&self) -> String {
        format!("{}{LOCK_SUFFIX}", self.nonce)
    }

    /// Returns the name of the folder while it is removed.
    fn gone(&self) -> String {
        format!("{}{GONE_SUFFIX}", self.nonce)
    }

    /// True if the folder holds nothing, or our marker alone: its `prepare` has died at once.
    pub(super) fn is_bare(&self) -> bool {
        let entries = self.open().and_then(files::entries);
        entries.is_ok_and(|list| list.iter().all(|entry| entry.name.as_bytes() == MARKER.as_bytes()))
    }

    /// Returns the time since a call has last changed the folder; `None` if the clock was set back.
    pub(super) fn unused_for(&self) -> Option<Duration> {
        let changed = |path: PathBuf| fs::symlink_metadata(path).and_then(|found| found.modified()).ok();
        let changes = [self.path.clone(), self.path.join(JOBS), self.path.join(LOG)].map(changed);
        changes.into_iter().flatten().max()?.elapsed().ok()
    }

    /// Makes the folder, or checks that the one there is ours. Then marks it, and opens it if it was closed.
    pub(super) fn make(&self) -> Result<(), Failure> {
        match files::make_dir(CWD, &self.path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(unusable(&self.path, "make the folder", &error));
            }
            _ => self.check()?,
        }
        let mark = || {
            let folder = self.open()?;
            files::open_write(&folder, MARKER)?;
            unless(io::ErrorKind::NotFound, files::unlink(&folder, CLOSED))
        };
        mark().map_err(|error| unusable(&self.path, "mark the folder", &error))
    }

    /// Refuses a folder that is a link, no folder, not ours alone, or that we have not made.
    pub(super) fn check(&self) -> Result<(), Failure> {
        check_folder(&self.path, OTHERS)?;
        let made = || {
            let folder = self.open()?;
            // An empty folder may be ours: the marker comes after the folder.
            Ok(files::read_file(&folder, MARKER, 0).is_ok() || files::entries(&folder)?.is_empty())
        };
        match made() {
            Ok(true) => Ok(()),
            Ok(false) => {
                Err(refused(&self.path, &format!("it holds files, but no {MARKER}, so it is not ours")))
            }
            Err(error) => Err(unusable(&self.path, "look into", &error)),
        }
    }

    fn open(&self) -> io::Result<OwnedFd> {
        files::open_dir(CWD, &self.path)
    }

    /// Reads `meta.json`, if that is possible.
    pub(super) fn meta(&self) -> Option<Meta> {
        serde_json::from_slice(&files::read_file(self.open().ok()?, META, MAX_FILE).ok()?).ok()
    }

    /// Replaces `meta.json`. The caller holds the lock meanwhile.
    pub(super) fn write_meta(&self, meta: &Meta) -> Result<(), Failure> {
        let write = || files::replace(self.open()?, META, &serde_json::to_vec(meta)?);
        write().map_err(|error| unusable(&self.path.join(META), "write", &error))
    }

    /// Notes that the attempt is over, before its jobs are finished: a stage that is admitted after that ends its job
    /// itself. The folder counts as changed now.
    pub(super) fn close(&self) -> io::Result<()> {
        files::replace(self.open()?, CLOSED, b"")
    }

    /// True if [`Self::close`] was called, or the folder is gone.
    pub(super) fn is_closed(&self) -> bool {
        !self.exists() || fs::symlink_metadata(self.path.join(CLOSED)).is_ok()
    }

    /// Returns the time since the last `prepare`; `None` if it is not known.
    pub(super) fn age(&self) -> Option<Duration> {
        fs::symlink_metadata(self.path.join(MARKER)).and_then(|found| found.modified()).ok()?.elapsed().ok()
    }

    /// Notes the id of a job before it is submitted. Does nothing without a folder.
    pub(super) fn add_job(&self, id: &str) -> io::Result<()> {
        self.note(&format!("{id}\n"))
    }

    /// Notes that a job is gone from the daemon. Does nothing without a folder.
    pub(super) fn drop_job(&self, id: &str) -> io::Result<()> {
        self.note(&format!("{GONE_JOB}{id}\n"))
    }

    fn note(&self, line: &str) -> io::Result<()> {
        if !self.exists() {
            return Ok(());
        }
        files::append(files::open_append(self.open()?, JOBS)?, line.as_bytes())
    }

    /// Returns the ids of the jobs that were submitted and may not be gone.
    pub(super) fn jobs(&self) -> BTreeSet<String> {
        let text =
            self.open().and_then(|folder| files::read_file(folder, JOBS, MAX_FILE)).unwrap_or_default();
        let mut jobs = BTreeSet::new();
        for line in String::from_utf8_lossy(&text).lines() {
            match line.strip_prefix(GONE_JOB) {
                Some(id) => jobs.remove(id),
                None => jobs.insert(line.to_owned()),
            };
        }
        jobs
    }

    pub(super) fn daemon_state(&self) -> PathBuf {
        self.path.join(DAEMON_STATE)
    }

    /// Returns the path of the private daemon's socket: in the folder, or elsewhere if that would be too long.
    pub(super) fn socket(&self) -> PathBuf {
        let socket = self.path.join("s");
        if socket.as_os_str().as_bytes().len() <= MAX_SOCKET_PATH {
            socket
        } else {
            self.short_folder().join("s")
        }
    }

    /// Returns the folder of a socket whose path would be too long. Its name follows from the state folder's path.
    fn short_folder(&self) -> PathBuf {
        let name = digest(self.path.as_os_str().as_bytes(), 16);
        self.short_root.join(format!("step-runner-{}-{name}", geteuid().as_raw()))
    }

    /// Makes the folder of [`Self::socket`], or checks the one that is there. Removes what a script has put in the place
    /// of the socket, because a daemon refuses to start then. The caller knows that no daemon listens there.
    pub(super) fn make_place_for_socket(&self) -> Result<(), Failure> {
        self.make_socket_folder()?;
        let socket = self.socket();
        let removed = unless(io::ErrorKind::NotFound, files::unlink(CWD, &socket));
        removed.map_err(|error| unusable(&socket, "remove the old socket", &error))
    }

    fn make_socket_folder(&self) -> Result<(), Failure> {
        let folder = self.short_folder();
        if !self.socket().starts_with(&folder) {
            return Ok(());
        }
        match files::make_dir(CWD, &folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(unusable(&folder, "make the folder", &error))
            }
            _ => check_folder(&folder, OTHERS),
        }
    }

    /// Returns the folder that comes first in the `PATH` of a private daemon.
    pub(super) fn bin(&self) -> PathBuf {
        self.path.join(BIN)
    }

    /// Removes the record of the attempt, so that no later call takes a folder that is kept for one without a Runner.
    pub(super) fn forget_owner(&self) -> io::Result<()> {
        unless(io::ErrorKind::NotFound, self.open().and_then(|folder| files::unlink(folder, META)))
    }

    /// Makes `bin/`, with a link to this program under the name that scripts know.
    pub(super) fn make_bin(&self) -> Result<PathBuf, Failure> {
        let make = || {
            let folder = self.open()?;
            unless(io::ErrorKind::AlreadyExists, files::make_dir(&folder, BIN))?;
            let bin = files::open_dir(&folder, BIN)?;
            let program = std::env::current_exe()?;
            let linked = rustix::fs::symlinkat(program, bin, "step-runner");
            unless(io::ErrorKind::AlreadyExists, linked.map_err(io::Error::from))
        };
        let bin = self.bin();
        make().map_err(|error| unusable(&bin, "fill the folder", &error))?;
        Ok(bin)
    }

    /// Opens the private daemon's log for appending.
    pub(super) fn open_log(&self) -> Result<File, Failure> {
        let log = self.open().and_then(|folder| files::open_append(folder, LOG));
        log.map(File::from).map_err(|error| unusable(&self.path.join(LOG), "open the log", &error))
    }

    /// Returns the last `lines` lines of the private daemon's log.
    pub(super) fn log_tail(&self, lines: usize) -> Vec<String> {
        let read = || files::tail::read(&files::open_read(self.open()?, LOG)?.0, KEPT_LOG);
        let text = read().unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let all: Vec<_> = text.lines().collect();
        all.iter().skip(all.len().saturating_sub(lines)).map(|line| (*line).to_owned()).collect()
    }

    /// Cuts the beginning of a private daemon's log that has grown too long. The daemon appends, so it goes on at the
    /// new end.
    pub(super) fn trim_log(&self) {
        let trim = || {
            let log = self.open_log().map_err(io::Error::other)?;
            files::tail::keep(&log, MAX_LOG, KEPT_LOG)
        };
        // A log that is too long is no reason to fail.
        trim().ok();
    }

    /// Removes the folder, and the one of its socket. The caller holds the lock meanwhile.
    ///
    /// Only a folder that passes [`Self::check`] is renamed, and all contents are removed under the new name. So a
    /// folder of that name is ours, even after an interrupted removal.
    pub(super) fn remove(&self) -> io::Result<()> {
        self.remove_if(|| self.check())
    }

    /// Like [`Self::remove`], but the caller knows that we have made the folder: it needs no marker.
    pub(super) fn remove_proved(&self) -> io::Result<()> {
        self.remove_if(|| check_folder(&self.path, OTHERS))
    }

    fn remove_if(&self, check: impl Fn() -> Result<(), Failure>) -> io::Result<()> {
        let gone = CString::new(self.gone())?;
        match files::open_dir(CWD, &self.root) {
            Ok(root) => {
                files::remove_tree(&root, &gone)?;
                if self.exists() {
                    check().map_err(|refusal| io::Error::other(refusal.to_string()))?;
                    files::rename(&root, self.nonce.as_str(), &root, gone.as_c_str())?;
                    files::remove_tree(&root, &gone)?;
                }
            }
            Err(error) => unless(io::ErrorKind::NotFound, Err(error))?,
        }
        self.remove_socket_folder()
    }

    /// Removes the socket's folder, with no files but the daemon's two.
    fn remove_socket_folder(&self) -> io::Result<()> {
        let folder = self.short_folder();
        if !self.socket().starts_with(&folder) || fs::symlink_metadata(&folder).is_err() {
            return Ok(());
        }
        check_folder(&folder, OTHERS).map_err(|refusal| io::Error::other(refusal.to_string()))?;
        let open = files::open_dir(CWD, &folder)?;
        for name in ["s", "s.lock"] {
            unless(io::ErrorKind::NotFound, files::unlink(&open, name))?;
        }
        files::remove_dir(CWD, &folder)
    }
}

/// Drops an error of the kind `harmless`: everything is as it should be.
fn unless(harmless: io::ErrorKind, result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() != harmless => Err(error),
        _ => Ok(()),
    }
}

fn make_root(root: &Path) -> Result<(), Failure> {
    files::make_dirs(root).map_err(|error| unusable(root, "make the state root", &error))?;
    // A user who may write there could put other folders in the place of ours.
    check_folder(root, 0o022)?;
    match root.parent() {
        Some(parent) if root.ends_with("custom") => check_folder(parent, 0o022),
        _ => Ok(()),
    }
}

/// Refuses a path that is a link, no folder, somebody else's, or gives others one of `rights`.
fn check_folder(path: &Path, rights: u32) -> Result<(), Failure> {
    let found = fs::symlink_metadata(path).map_err(|error| unusable(path, "look at", &error))?;
    let own = geteuid().as_raw();
    let wrong = if found.is_symlink() {
        "it is a symbolic link".to_owned()
    } else if !found.is_dir() {
        "it is no folder".to_owned()
    } else if found.uid() != own {
        format!("it belongs to user {}, not to user {own}", found.uid())
    } else if found.mode() & rights != 0 {
        format!("others may use it (mode {:o})", found.mode() & 0o777)
    } else {
        return Ok(());
    };
    Err(refused(path, &wrong))
}

fn refused(path: &Path, why: &str) -> Failure {
    Failure::new(Exit::Failure, format!("the state folder {} is refused: {why}", path.display()))
        .with_remedy("remove it, or name another place with --state-dir")
}

fn unusable(path: &Path, action: &str, error: &io::Error) -> Failure {
    let owner = fs::symlink_metadata(path.parent().unwrap_or(path)).map(|found| found.uid());
    let owner = owner.map_or_else(|_| String::new(), |uid| format!(" (its folder belongs to user {uid})"));
    Failure::new(Exit::Failure, format!("cannot {action} {}{owner}: {}", path.display(), chain(error)))
        .with_remedy("name a folder of your own with --state-dir")
}

#[cfg(test)]
mod tests;
