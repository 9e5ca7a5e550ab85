//! The folder of one job's record on disk (agent.md §9): replaced by renaming, synced where a record says so.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use step_runner_agent::lifecycle::Disk;
use step_runner_agent::names::is_folder;
use step_runner_agent::record::Record;
use step_runner_agent::sealed::{MAX_SIZE, Unusable};
use step_runner_agent::trace::Checkpoint;
use step_runner_model::error::Chain;

const RECORD: &str = "record";
const HEAD: &str = "head";
const TRACE: &str = "trace";
const CHECKPOINT: &str = "checkpoint";
const TAIL: &str = "tail";
const SENT: &str = "sent";

/// Returns the names of the environments that have a record in `jobs`. A folder that cannot be read counts: its job may
/// go on.
pub(super) fn environments(jobs: &Path) -> io::Result<BTreeSet<String>> {
    let names = fs::read_dir(jobs)?.map(|entry| Ok(format!("step-{}", entry?.file_name().display())));
    names.collect()
}

/// Returns the folders of records in `jobs`. Others there are not the agent's.
pub(super) fn all(jobs: &Path) -> Vec<PathBuf> {
    let is_ours = |entry: &fs::DirEntry| entry.file_name().to_str().is_some_and(is_folder);
    let entries = fs::read_dir(jobs).into_iter().flatten().flatten();
    entries.filter(is_ours).map(|entry| entry.path()).collect()
}

/// The folder of a job.
pub(super) struct JobFolder {
    path: PathBuf,
    /// The trace, opened at the first need.
    trace: Option<File>,
    /// Length of the trace's file.
    trace_len: u64,
    tail: Vec<u8>,
}

impl JobFolder {
    /// Names the folder of a job. Nothing is made yet.
    pub(super) const fn new(path: PathBuf) -> Self {
        Self { path, trace: None, trace_len: 0, tail: Vec::new() }
    }

    /// Returns its path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the folder, 0700.
    pub(super) fn make(&self) -> io::Result<()> {
        match DirBuilder::new().mode(0o700).create(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(error),
            Ok(()) => sync_folder(self.path.parent().unwrap_or(&self.path)),
        }
    }

    /// Reads the record. The error is `None` if it is not there, and comes with true if the folder has other files.
    pub(super) fn record(&self) -> Result<Record, (Option<Unusable>, bool)> {
        let has_files =
            [HEAD, TRACE, CHECKPOINT, TAIL, SENT].iter().any(|name| self.path.join(name).exists());
        let bytes = read(&self.path.join(RECORD)).map_err(|error| {
            let is_there = error.kind() != io::ErrorKind::NotFound;
            (is_there.then(|| Unusable::Unread(error.to_string())), has_files)
        })?;
        Record::decode(&bytes).map_err(|error| (Some(error), has_files))
    }

    /// Reads everything beside the record, for a job of an earlier run.
    pub(super) fn disk(&mut self) -> Disk {
        let bytes = |name: &str| read(&self.path.join(name)).unwrap_or_default();
        let (head, trace, tail) = (bytes(HEAD), bytes(TRACE), bytes(TAIL));
        let sent = String::from_utf8(bytes(SENT)).ok().and_then(|text| text.trim().parse().ok());
        let checkpoint = self.checkpoint();
        (self.trace_len, self.tail) = (trace.len() as u64, tail.clone());
        Disk { head, trace, checkpoint, tail, sent: sent.unwrap_or_default() }
    }

    /// Reads the checkpoint. One that is there and of no use is told in the log.
    fn checkpoint(&self) -> Result<Checkpoint, Unusable> {
        let read = read(&self.path.join(CHECKPOINT));
        let is_there = !matches!(&read, Err(error) if error.kind() == io::ErrorKind::NotFound);
        let read = read.map_err(|error| Unusable::Unread(error.to_string()));
        let found = read.and_then(|bytes| Checkpoint::decode(&bytes));
        if let Err(error) = &found
            && is_there
        {
            let folder = self.path.display();
            tracing::warn!(error = %Chain(error), "the checkpoint in {folder} is of no use: the trace is made anew");
        }
        found
    }

    /// Writes the record so that it survives the machine.
    pub(super) fn store(&self, record: &Record) -> io::Result<()> {
        let bytes = record.encode().map_err(io::Error::other)?;
        self.replace(RECORD, &bytes, true)
    }

    /// Appends to the head, and syncs it.
    pub(super) fn store_head(&self, bytes: &[u8]) -> io::Result<()> {
        let mut file = private().append(true).create(true).open(self.path.join(HEAD))?;
        file.write_all(bytes)?;
        file.sync_data()
    }

    /// Cuts the head.
    pub(super) fn cut_head(&self, len: u64) -> io::Result<()> {
        private().write(true).create(true).truncate(false).open(self.path.join(HEAD))?.set_len(len)
    }

    /// Cuts the trace.
    pub(super) fn cut_trace(&mut self, len: u64) -> io::Result<()> {
        self.trace()?.set_len(len)?;
        self.trace_len = len;
        Ok(())
    }

    /// Appends to the trace. A write that failed half-way is repeated from the same place.
    pub(super) fn extend(&mut self, bytes: &[u8]) -> io::Result<()> {
        let at = self.trace_len;
        let file = self.trace()?;
        file.write_all_at(bytes, at)?;
        self.trace_len += bytes.len() as u64;
        Ok(())
    }

    /// Replaces the checkpoint.
    pub(super) fn store_checkpoint(&self, checkpoint: &Checkpoint) -> io::Result<()> {
        let bytes = checkpoint.encode().map_err(io::Error::other)?;
        self.replace(CHECKPOINT, &bytes, false)
    }

    /// Writes the tail so that it survives the machine with all files before it.
    pub(super) fn store_tail(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.trace()?.sync_all()?;
        if let Ok(file) = File::open(self.path.join(CHECKPOINT)) {
            file.sync_all()?;
        }
        self.replace(TAIL, bytes, true)?;
        bytes.clone_into(&mut self.tail);
        Ok(())
    }

    /// Writes how much of the trace the server has.
    pub(super) fn store_sent(&self, sent: u64) -> io::Result<()> {
        self.replace(SENT, format!("{sent}\n").as_bytes(), false)
    }

    /// Reads bytes of the trace with its tail.
    pub(super) fn read(&mut self, from: u64, to: u64) -> io::Result<Vec<u8>> {
        let of_file = to.min(self.trace_len).saturating_sub(from);
        let mut bytes = vec![0; usize::try_from(of_file).map_err(io::Error::other)?];
        let mut file = self.trace()?;
        file.seek(SeekFrom::Start(from))?;
        file.read_exact(&mut bytes)?;
        let rest =
            |position: u64| usize::try_from(position.saturating_sub(self.trace_len)).unwrap_or(usize::MAX);
        bytes.extend_from_slice(self.tail.get(rest(from)..rest(to)).unwrap_or_default());
        Ok(bytes)
    }

    /// Deletes the folder. The record goes first: what is left without it is nobody's job.
    pub(super) fn delete(&self) -> io::Result<()> {
        match fs::remove_file(self.path.join(RECORD)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        match fs::remove_dir_all(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => sync_folder(self.path.parent().unwrap_or(&self.path)),
        }
    }

    fn trace(&mut self) -> io::Result<&File> {
        let file = match self.trace.take() {
            Some(file) => file,
            None => {
                private().read(true).write(true).create(true).truncate(false).open(self.path.join(TRACE))?
            }
        };
        Ok(self.trace.insert(file))
    }

    fn replace(&self, name: &str, bytes: &[u8], is_synced: bool) -> io::Result<()> {
        replace(&self.path.join(name), bytes, is_synced)
    }
}

/// Replaces a file, 0600, by renaming. A synced one survives the machine.
pub(super) fn replace(path: &Path, bytes: &[u8], is_synced: bool) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let beside = path.with_file_name(name);
    let mut file = private().write(true).create(true).truncate(true).open(&beside)?;
    file.write_all(bytes)?;
    if is_synced {
        file.sync_all()?;
    }
    fs::rename(&beside, path)?;
    if is_synced { sync_folder(path.parent().unwrap_or(path)) } else { Ok(()) }
}

fn private() -> OpenOptions {
    OpenOptions::new().mode(0o600).clone()
}

fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Reads a file that is at most as large as any of ours.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_SIZE as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_that_the_system_does_not_give_is_told_from_one_that_is_torn() {
        let folder = tempfile::tempdir().unwrap();
        let mut job = JobFolder::new(folder.path().to_owned());
        let found = |job: &mut JobFolder| job.disk().checkpoint.unwrap_err();
        assert!(matches!(found(&mut job), Unusable::Unread(_)));
        let path = folder.path().join(CHECKPOINT);
        fs::create_dir(&path).unwrap();
        assert_eq!(found(&mut job).to_string(), "the file cannot be read: Is a directory (os error 21)");
        fs::remove_dir(&path).unwrap();
        fs::write(&path, "").unwrap();
        assert_eq!(found(&mut job), Unusable::Torn);
    }

    #[test]
    fn a_record_that_the_system_does_not_give_stays_and_says_why() {
        let folder = tempfile::tempdir().unwrap();
        let job = JobFolder::new(folder.path().to_owned());
        assert!(matches!(job.record(), Err((None, false))));
        fs::create_dir(folder.path().join(RECORD)).unwrap();
        let Err((Some(why), false)) = job.record() else { panic!("it is read") };
        assert_eq!(why.to_string(), "the file cannot be read: Is a directory (os error 21)");
    }
}
