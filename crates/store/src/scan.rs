//! Scan of the state folder at the start (service.md §6.4): the state of each job when the last daemon ended.
//!
//! A bad folder never fails the scan: damage is reported per job, and the other jobs are served (faults.md row 44). The
//! work is linear in the number of jobs, not in the size of their logs, and no descriptor stays open.

use std::ffi::{CStr, CString};
use std::io;
use std::time::{Duration, SystemTime};

use rustix::fs::FileType;

use super::folder::MAX_JOB_JSON;
use super::removed::GONE;
use super::state_dir::Shared;
use super::{JobFolder, JobRecord, Removed, StateDir, StoreError};
use step_runner_log::journal::event::{End, Event};
use step_runner_log::journal::{DamageKind, MAX_FILE, Reader};
use step_runner_model::error::Chain;
use step_runner_model::{JobId, JobKey, ProcessNumber};
use step_runner_system::files;

/// An entry of `jobs/`.
#[derive(Debug)]
pub enum Found {
    /// A job with a readable record.
    Job(Box<ScannedJob>),
    /// A folder whose record or journal cannot be read. It must be rewritten from the keeper's copy or set aside
    /// ([`JobFolder::set_aside`]).
    Unreadable {
        /// The folder.
        folder: JobFolder,
        /// The reason, for the operator.
        reason: String,
    },
    /// A removed job that still has to be deleted, which may take long.
    Gone(Removed),
    /// A folder without a record: its Run was never answered, or it belongs to no job. The reaper removes it after a
    /// day ([`StateDir::remove_orphan`]). With a note of a directory made for it, the scan removes it at once instead.
    Orphan {
        /// Its name.
        name: CString,
        /// Time of its last change.
        changed: SystemTime,
    },
}

/// A job found on disk.
#[derive(Debug)]
pub struct ScannedJob {
    /// Its folder.
    pub folder: JobFolder,
    /// `job.json`.
    pub record: JobRecord,
    /// Its journal.
    pub journal: Journal,
}

/// Summary of a journal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Journal {
    /// Time of the start, microseconds since the epoch; `None` if the job was waiting.
    pub started: Option<i64>,
    /// Time of the start, microseconds since the host's boot.
    pub started_boot: Option<u64>,
    /// File variables written: path, device, inode.
    pub files: Vec<(String, u64, u64)>,
    /// Processes of steps.
    pub processes: Vec<Leftover>,
    /// Cause of the cancel, if the job was being cancelled.
    pub cancel: Option<step_runner_model::CancelCause>,
    /// The end, if the job had ended.
    pub end: Option<End>,
    /// True if an earlier version had begun a removal, which must be completed. This version only renames the folder.
    pub removing: bool,
    /// Length of the good part, if a crash cut off the last record.
    pub torn: Option<u64>,
}

/// A process group that may have survived its keeper. It counts only if boot id, pid and start time match (service.md
/// §6.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leftover {
    /// Its number in the job.
    pub process: ProcessNumber,
    /// Process group.
    pub pgid: u32,
    /// Its leader.
    pub pid: u32,
    /// Start time of the leader in clock ticks since boot.
    pub start_time: u64,
    /// True if the leader has ended; other processes of the group may live.
    pub ended: bool,
}

impl Journal {
    /// Parses a journal. An error is the reason, for the operator. A torn tail is not an error.
    pub fn read(bytes: &[u8]) -> Result<Self, String> {
        match Self::read_good(bytes) {
            (journal, None) => Ok(journal),
            (_, Some(reason)) => Err(reason),
        }
    }

    /// Parses a journal as far as it is good. The second part says what is wrong behind that.
    fn read_good(bytes: &[u8]) -> (Self, Option<String>) {
        let mut journal = Self::default();
        for record in Reader::<Event>::new(bytes) {
            match record {
                Ok(record) => journal.apply(record.event),
                Err(damage) if damage.kind == DamageKind::Torn => journal.torn = Some(damage.at),
                Err(damage) => return (journal, Some(format!("journal: {damage}"))),
            }
        }
        (journal, None)
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::Started { at, boot } if self.started.is_none() => {
                (self.started, self.started_boot) = (Some(at), boot);
            }
            Event::File { path, device, inode } => self.files.push((path, device, inode)),
            Event::StepStarted { process, pgid, pid, start_time } => {
                self.processes.push(Leftover { process, pgid, pid, start_time, ended: false });
            }
            Event::StepEnded { process, .. } => {
                self.processes.iter_mut().filter(|left| left.process == process).for_each(|left| {
                    left.ended = true;
                });
            }
            Event::Cancel { cause } => self.cancel = self.cancel.or(Some(cause)),
            // The first end counts, except that a later one replaces an end that did not reach the disk.
            Event::Ended(end) if self.end.is_none() || end.lost_from.is_some() => self.end = Some(end),
            Event::Started { .. } | Event::Ended(_) => {}
            Event::Removing => self.removing = true,
        }
    }
}

impl ScannedJob {
    /// False if no keeper has ever taken the job: then its log was never opened, and its Run was never answered.
    pub fn was_registered(&self) -> bool {
        !self.journal.processes.is_empty() || self.folder.log_inode().is_some()
    }

    /// Removes a job whose Run was never answered, with the directory that was made for it. The result must be deleted.
    pub fn discard(&self) -> Option<Removed> {
        if let Err(left) = super::file_vars::remove(self.folder.key(), &self.record, &self.journal.files) {
            let job = &self.record.id;
            tracing::warn!(error = %Chain(&left), job, "file variables of a job that was never answered were not removed");
        }
        self.folder.begin_removal().unwrap_or_else(|error| {
            let job = &self.record.id;
            tracing::warn!(error = %Chain(&error), job, "a job that was never answered was not removed");
            None
        })
    }

    /// Returns the process groups to look for if no keeper holds the job. Empty after a reboot, because the pids then
    /// belong to other processes.
    pub fn leftovers(&self, boot_id: &str) -> &[Leftover] {
        if self.record.boot_id == boot_id { &self.journal.processes } else { &[] }
    }
}

impl StateDir {
    /// Reads all folders. A removal that had begun appears only as [`Found::Gone`].
    pub fn scan(&self) -> Result<Vec<Found>, StoreError> {
        let mut found = Vec::new();
        let mut entries = files::entries(&self.shared.jobs).map_err(StoreError::new("read", "jobs"))?;
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        for entry in entries {
            let name = entry.name.as_c_str();
            if name.to_bytes().starts_with(GONE.as_bytes()) {
                found.push(Found::Gone(Removed::left(&self.shared, name)));
                continue;
            }
            let key = name.to_str().ok().and_then(JobKey::parse);
            let is_folder = matches!(entry.kind, FileType::Directory | FileType::Unknown);
            match key.filter(|_| is_folder) {
                Some(key) => found.extend(self.folder(key).scan(name)),
                None => found.push(orphan(&self.shared, name)),
            }
        }
        Ok(found)
    }

    /// Returns the names of folders without a record and the time of their last change. Does not read any record. Removed
    /// folders are none of these.
    pub fn orphans(&self, known: impl Fn(JobKey) -> bool) -> Result<Vec<(CString, SystemTime)>, StoreError> {
        let entries = files::entries(&self.shared.jobs).map_err(StoreError::new("read", "jobs"))?;
        let is_gone = |name: &CStr| name.to_bytes().starts_with(GONE.as_bytes());
        let is_orphan =
            |name: &CStr| !is_gone(name) && !name.to_str().ok().and_then(JobKey::parse).is_some_and(&known);
        let names = entries.into_iter().map(|entry| entry.name).filter(|name| is_orphan(name));
        let dated = |name: CString| {
            let changed = changed(&self.shared, &name);
            (name, changed)
        };
        Ok(names.map(dated).collect())
    }

    /// Returns the keys of the jobs whose records were set aside, also by earlier daemons. Calls about them get
    /// `data_loss` (service.md §3.6).
    pub fn set_aside_keys(&self) -> Result<Vec<JobKey>, StoreError> {
        let Some(broken) = self.shared.open_broken()? else { return Ok(Vec::new()) };
        let entries = files::entries(&broken).map_err(StoreError::new("read", "broken"))?;
        Ok(entries.iter().filter_map(|entry| JobKey::parse(entry.name.to_str().ok()?)).collect())
    }

    /// Moves a [`Found::Orphan`] out of the way. Its name is free then. `None` if it is gone already.
    pub fn remove_orphan(&self, name: &CStr) -> Result<Option<Removed>, StoreError> {
        self.shared
            .set_gone(&self.shared.jobs, name, "orphan")
            .map_err(StoreError::new("remove", format!("jobs/{}", name.to_string_lossy())))
    }
}

impl JobFolder {
    /// Reads one folder; `None` if nothing is left of it.
    fn scan(&self, name: &CStr) -> Option<Found> {
        let record = match self.find_record() {
            Ok(Some(record)) => record,
            Ok(None) if self.undo_making() => return None,
            Ok(None) => return Some(orphan(&self.shared, name)),
            Err(reason) => return Some(Found::Unreadable { folder: self.clone(), reason }),
        };
        match self.read_journal() {
            Ok(journal) if journal.removing => {
                let gone = self.set_gone().unwrap_or_else(|error| {
                    tracing::warn!(error = %Chain(&error), "a removed job is still in its place");
                    None
                });
                gone.map(Found::Gone)
            }
            Ok(journal) => Some(Found::Job(Box::new(ScannedJob { folder: self.clone(), record, journal }))),
            Err(reason) => Some(Found::Unreadable { folder: self.clone(), reason }),
        }
    }

    /// Reads the record. An error is the reason, for the operator.
    pub(super) fn read_record(&self) -> Result<JobRecord, String> {
        self.find_record()?.ok_or_else(|| "job.json: there is none".to_owned())
    }

    /// Reads record and journal, as [`StateDir::scan`] does.
    pub fn read_job(&self) -> Result<ScannedJob, String> {
        Ok(ScannedJob { folder: self.clone(), record: self.read_record()?, journal: self.read_journal()? })
    }

    /// Rewrites a damaged record from the keeper's copy, and cuts a damaged journal after its last good event
    /// (service.md §6.4 item 5).
    pub fn renew(&self, record: &JobRecord) -> Result<(), StoreError> {
        // A full disk must not cost a running job its record.
        self.shared.with_reserve(|| self.write_record(record))?;
        let name = self.inside("journal");
        match files::read_file(&self.shared.jobs, name.as_str(), MAX_FILE) {
            Ok(bytes) => match Reader::<Event>::new(&bytes).find_map(Result::err) {
                Some(damage) => self.cut("journal", damage.at),
                None => Ok(()),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            // Not a regular file, or far too large: it holds nothing of ours.
            Err(_) => files::remove_tree(&self.shared.jobs, &CString::new(name).unwrap_or_default())
                .map_err(self.error("remove", "journal")),
        }
    }

    /// Reads `job.json`; `None` if there is none.
    fn find_record(&self) -> Result<Option<JobRecord>, String> {
        let bytes = match super::read_record(&self.shared.jobs, &self.inside("job.json"), MAX_JOB_JSON) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            result => result.map_err(|error| format!("job.json: {error}"))?,
        };
        let mut records = Reader::<JobRecord>::new(&bytes);
        let record = match (records.next(), records.next()) {
            (Some(Ok(record)), None) => record.event,
            (Some(Err(damage)), _) | (_, Some(Err(damage))) => return Err(format!("job.json: {damage}")),
            (None, _) => return Err("job.json: it is empty".to_owned()),
            (Some(Ok(_)), Some(Ok(_))) => return Err("job.json: it holds two records".to_owned()),
        };
        match JobId::parse(&record.id) {
            Ok(id) if id.key() == self.key() => Ok(Some(record)),
            _ => Err("job.json: it is the record of another id".to_owned()),
        }
    }

    /// Reads the journal; a missing file counts as empty. An error is the reason, for the operator.
    pub fn read_journal(&self) -> Result<Journal, String> {
        match self.read_good_journal() {
            (journal, None) => Ok(journal),
            (_, Some(reason)) => Err(reason),
        }
    }

    /// Reads the journal as far as it is good. The second part says what is wrong behind that.
    pub(super) fn read_good_journal(&self) -> (Journal, Option<String>) {
        match super::read_record(&self.shared.jobs, &self.inside("journal"), MAX_FILE) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => (Journal::default(), None),
            Err(error) => (Journal::default(), Some(format!("journal: {error}"))),
            Ok(bytes) => Journal::read_good(&bytes),
        }
    }
}

fn orphan(shared: &Shared, name: &CStr) -> Found {
    Found::Orphan { name: name.to_owned(), changed: changed(shared, name) }
}

/// Returns the time of the last change of a name in `jobs/`, or the epoch if unknown.
fn changed(shared: &Shared, name: &CStr) -> SystemTime {
    let stat = files::stat_at(&shared.jobs, name).ok();
    let seconds = stat.and_then(|stat| u64::try_from(stat.st_mtime).ok()).unwrap_or_default();
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}
