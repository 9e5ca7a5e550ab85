//! The file `steps` of a job: its step results, one record each. It is read record by record, so its length costs no memory.

use std::fs::File;
use std::io;

use super::{JobFolder, StoreError, believed};
use crate::files;
use crate::journal::{self, Damage, DamageKind, MAX_FRAMED, Records};

/// Bytes read for one record at first: most results are small.
const READ_AHEAD: usize = 16 << 10;

/// What `steps` holds.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Steps {
    /// Whole results before the first damage.
    pub count: u32,
    /// The last of them, encoded.
    pub last: Option<Vec<u8>>,
    /// Set if the file does not end with it.
    pub damage: Option<Damage>,
}

/// `steps`, open for reading at offsets.
#[derive(Debug)]
pub struct StepsFile {
    file: File,
}

/// Why there is no record at an offset.
#[derive(Debug, thiserror::Error)]
pub enum StepLost {
    /// The file is not what was written.
    #[error("a record is damaged")]
    Damaged(Damage),
    /// It cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl StepsFile {
    /// The record that begins at byte `at` of the file's first `len`, which there must be, and where it ends. Never reads
    /// more than the longest record: a damaged length, or a huge file, costs no memory.
    pub fn record_at(&self, at: u64, len: u64) -> Result<(Vec<u8>, u64), StepLost> {
        let left = usize::try_from(len.saturating_sub(at)).unwrap_or(usize::MAX).min(MAX_FRAMED);
        let mut want = left.min(READ_AHEAD);
        loop {
            let bytes = files::read_piece(&self.file, at, want)?;
            let is_all = want == left || bytes.len() < want;
            let mut records = Records::starting_at(&bytes, at);
            match records.next() {
                Some(Ok(record)) => return Ok((record.to_vec(), records.position())),
                // What is torn here may be whole behind it, and of what is damaged it may be told how.
                Some(Err(_)) if !is_all => want = left.min(want * 8),
                Some(Err(damage)) => return Err(StepLost::Damaged(damage)),
                None => return Err(StepLost::Damaged(Damage { at, kind: DamageKind::Torn })),
            }
        }
    }
}

impl JobFolder {
    /// Appends an encoded step result to `steps`. Returns by how many bytes the file grew.
    pub fn append_step(&self, result: &[u8]) -> Result<u64, StoreError> {
        let mut record = Vec::new();
        self.frame_step(result, &mut record)?;
        self.append_steps(&record)?;
        Ok(record.len() as u64)
    }

    /// Adds an encoded step result to `records`, as `steps` holds it. Fails for one that is too long, and adds nothing.
    pub fn frame_step(&self, result: &[u8], records: &mut Vec<u8>) -> Result<(), StoreError> {
        journal::append_record(result, records)
            .map_err(|error| self.error("write", "steps")(io::Error::new(io::ErrorKind::InvalidInput, error)))
    }

    /// Appends framed results to `steps`: all of them or none.
    pub fn append_steps(&self, records: &[u8]) -> Result<(), StoreError> {
        self.append_bytes("steps", records, false)
    }

    /// Counts the step results.
    pub fn read_steps(&self) -> Result<Steps, StoreError> {
        match believed(|| self.scan_steps(|_| {})) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Steps::default()),
            read => read.map_err(self.error("read", "steps")),
        }
    }

    /// The same; a torn end, of a write that was cut off, is cut from the file: what is appended behind it could not be read.
    /// Other damage stays to be seen: whoever asks for the results is told of it.
    pub fn mend_steps(&self) -> Result<Steps, StoreError> {
        self.cut_torn_steps(self.read_steps()?)
    }

    /// See [`Self::mend_steps`].
    pub(super) fn cut_torn_steps(&self, mut steps: Steps) -> Result<Steps, StoreError> {
        if let Some(torn) = steps.damage.take_if(|damage| damage.kind == DamageKind::Torn) {
            self.cut("steps", torn.at)?;
        }
        Ok(steps)
    }

    /// Visits the step results in order.
    fn scan_steps(&self, mut visit: impl FnMut(&[u8])) -> io::Result<Steps> {
        let (file, stat) = files::open_read(&self.shared.jobs, self.inside("steps").as_str())?;
        let (file, len) = (StepsFile { file: file.into() }, u64::try_from(stat.st_size).unwrap_or_default());
        let (mut steps, mut at) = (Steps::default(), 0);
        while at < len {
            match file.record_at(at, len) {
                Ok((record, end)) => {
                    visit(&record);
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

    /// All step results.
    #[cfg(test)]
    pub(crate) fn step_records(&self) -> Vec<Vec<u8>> {
        let mut records = Vec::new();
        drop(self.scan_steps(|record| records.push(record.to_vec())));
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

    /// Opens `steps` of a job that goes on for reading at offsets, as [`Self::append_step`] would: made if it is missing.
    pub fn open_growing_steps(&self) -> Result<StepsFile, StoreError> {
        let opened = files::open_append(&self.shared.jobs, self.inside("steps").as_str());
        opened.map(|file| StepsFile { file: file.into() }).map_err(self.error("open", "steps"))
    }
}
