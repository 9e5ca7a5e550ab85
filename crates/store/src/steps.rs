//! The file `steps` of a job: one record for each result and each event of a step. It is read record by record, so a long
//! file costs no memory.

use std::fs::File;
use std::io;

use super::{JobFolder, StoreError, believed};
use step_runner_log::journal::{self, Damage, DamageKind, MAX_FRAMED, Records};
use step_runner_system::files;

/// First read for one record, in bytes: most results are small.
const READ_AHEAD: usize = 16 << 10;

/// Summary of the file `steps`.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Steps {
    /// Number of whole results before the first damage.
    pub count: u32,
    /// Number of them for which the reader's predicate is true.
    pub marked: u32,
    /// The last whole result, encoded.
    pub last: Option<Vec<u8>>,
    /// The first damage, if the file does not end after `last`.
    pub damage: Option<Damage>,
}

/// The file `steps`, open for reading at offsets.
#[derive(Debug)]
pub struct StepsFile {
    file: File,
}

/// Reason why there is no record at an offset.
#[derive(Debug, thiserror::Error)]
pub enum StepLost {
    /// The file differs from what was written.
    #[error("a record is damaged")]
    Damaged(Damage),
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl StepsFile {
    /// Returns the record at offset `at` and the offset of its end. `at` must be within the file's first `len` bytes.
    /// Never reads more than the longest record, so a damaged length or a huge file costs no memory.
    pub fn record_at(&self, at: u64, len: u64) -> Result<(Vec<u8>, u64), StepLost> {
        let left = usize::try_from(len.saturating_sub(at)).unwrap_or(usize::MAX).min(MAX_FRAMED);
        let mut want = left.min(READ_AHEAD);
        loop {
            let bytes = files::read_piece(&self.file, at, want)?;
            let is_all = want == left || bytes.len() < want;
            let mut records = Records::starting_at(&bytes, at);
            match records.next() {
                Some(Ok(record)) => return Ok((record.to_vec(), records.position())),
                // With more bytes the record may be whole, or the kind of damage may become clear.
                Some(Err(_)) if !is_all => want = left.min(want * 8),
                Some(Err(damage)) => return Err(StepLost::Damaged(damage)),
                None => return Err(StepLost::Damaged(Damage { at, kind: DamageKind::Torn })),
            }
        }
    }
}

impl JobFolder {
    /// Appends an encoded step result to `steps`. Returns the number of bytes added.
    pub fn append_step(&self, result: &[u8]) -> Result<u64, StoreError> {
        let mut record = Vec::new();
        self.frame_step(result, &mut record)?;
        self.append_steps(&record)?;
        Ok(record.len() as u64)
    }

    /// Frames an encoded step result and appends it to `records`. Fails for one that is too long, and adds nothing.
    pub fn frame_step(&self, result: &[u8], records: &mut Vec<u8>) -> Result<(), StoreError> {
        journal::append_record(result, records)
            .map_err(|error| self.error("write", "steps")(io::Error::new(io::ErrorKind::InvalidInput, error)))
    }

    /// Appends framed results to `steps`: all or none.
    pub fn append_steps(&self, records: &[u8]) -> Result<(), StoreError> {
        self.append_bytes("steps", records, false)
    }

    /// Cuts `steps` to its first `len` bytes: a step that runs as the daemon's own user can write to it. Returns the
    /// number of bytes removed.
    pub fn cut_steps_behind(&self, len: u64) -> Result<u64, StoreError> {
        let foreign = self.steps_len().saturating_sub(len);
        if foreign > 0 {
            self.cut("steps", len)?;
        }
        Ok(foreign)
    }

    /// Counts the step results.
    pub fn read_steps(&self) -> Result<Steps, StoreError> {
        self.read_steps_of(|_| true)
    }

    /// Like [`Self::read_steps`]; also counts the results for which `is_marked` is true.
    pub fn read_steps_of(&self, is_marked: impl Fn(&[u8]) -> bool) -> Result<Steps, StoreError> {
        match believed(|| self.scan_steps(&is_marked)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Steps::default()),
            read => read.map_err(self.error("read", "steps")),
        }
    }

    /// Like [`Self::read_steps_of`]; also cuts off the torn end of an interrupted write, because results appended after it
    /// could not be read. Other damage stays, so that clients that ask for the results hear of it.
    pub fn mend_steps_of(&self, is_marked: impl Fn(&[u8]) -> bool) -> Result<Steps, StoreError> {
        self.cut_torn_steps(self.read_steps_of(is_marked)?)
    }

    /// Cuts off a torn end; see [`Self::mend_steps_of`].
    pub(super) fn cut_torn_steps(&self, mut steps: Steps) -> Result<Steps, StoreError> {
        if let Some(torn) = steps.damage.take_if(|damage| damage.kind == DamageKind::Torn) {
            self.cut("steps", torn.at)?;
        }
        Ok(steps)
    }

    fn scan_steps(&self, mut is_marked: impl FnMut(&[u8]) -> bool) -> io::Result<Steps> {
        let (file, stat) = files::open_read(&self.shared.jobs, self.inside("steps").as_str())?;
        let (file, len) = (StepsFile { file: file.into() }, u64::try_from(stat.st_size).unwrap_or_default());
        let (mut steps, mut at) = (Steps::default(), 0);
        while at < len {
            match file.record_at(at, len) {
                Ok((record, end)) => {
                    steps.marked += u32::from(is_marked(&record));
                    (steps.count, steps.last) = (steps.count.saturating_add(1), Some(record));
                    at = end;
                }
                Err(StepLost::Damaged(damage)) => {
                    steps.damage = Some(damage);
                    break;
                }
                Err(StepLost::Io(error)) => return Err(error),
            }
        }
        Ok(steps)
    }

    #[cfg(test)]
    pub(crate) fn step_records(&self) -> Vec<Vec<u8>> {
        let mut records = Vec::new();
        drop(self.scan_steps(|record| {
            records.push(record.to_vec());
            true
        }));
        records
    }

    /// Length of `steps`; 0 without a file.
    pub fn steps_len(&self) -> u64 {
        let stat = files::stat_at(&self.shared.jobs, self.inside("steps").as_str()).ok();
        stat.and_then(|stat| u64::try_from(stat.st_size).ok()).unwrap_or_default()
    }

    /// Opens `steps` for reading at offsets.
    pub fn open_steps(&self) -> Result<StepsFile, StoreError> {
        let opened = files::open_read(&self.shared.jobs, self.inside("steps").as_str());
        opened.map(|(file, _)| StepsFile { file: file.into() }).map_err(self.error("open", "steps"))
    }

    /// Opens `steps` of a running job for reading at offsets; makes the file if missing.
    pub fn open_growing_steps(&self) -> Result<StepsFile, StoreError> {
        let opened = files::open_append(&self.shared.jobs, self.inside("steps").as_str());
        opened.map(|file| StepsFile { file: file.into() }).map_err(self.error("open", "steps"))
    }
}
