//! The places of a job that is about to be registered: its folder, its directories, its `job.json`.

use std::path::Path;

use super::Supervisor;
use super::refusals::{refusal, store_refusal};
use super::remove::request_digest;
use crate::actors::admission::PreparedJob;
use crate::actors::left_over::LeftOvers;
use crate::actors::messages::RegisteredRequest;
use crate::actors::spec::{Brief, JobActorSpec};
use crate::clock;
use crate::error::Chain;
use crate::model::{Reason, Refusal};
use crate::store::{JobFolder, JobRecord, MadeDirectory, RecordedLimits, StoreError, file_vars};

/// Folder and directories made for a job that is not registered yet.
pub(super) struct Placed {
    pub(super) tag: u128,
    /// The content of `job.json`.
    pub(super) record: JobRecord,
    pub(super) request: RegisteredRequest,
}

impl Supervisor {
    /// Makes the job's folder and its directories. On failure nothing is left behind.
    pub(super) fn make_places(&self, prepared: &mut PreparedJob) -> Result<Placed, Refusal> {
        let JobActorSpec { work_dir, own_work_dir, files, .. } = &prepared.spec;
        if self.registry.is_broken(prepared.id.key()) {
            let removed = prepared.folder.remove_set_aside().map_err(|e| store_refusal(&e))?;
            self.context.left_over.delete_later(removed);
            self.registry.mend(prepared.id.key());
        }
        let mut tag = [0; 16];
        getrandom::fill(&mut tag).map_err(|e| Refusal::new(Reason::Internal, e.to_string()))?;
        let tag = u128::from_le_bytes(tag);
        let directory = files.first().map(|file| file.directory.as_str());
        let own_vars = directory.is_some_and(|dir| Path::new(dir) == prepared.folder.path("vars"));
        let (record, request) = (self.recorded(&prepared.spec, tag), RegisteredRequest::default());
        let mut placed = Placed { tag, record, request };
        let folder = make_folder(&prepared.folder, &self.context.left_over).and_then(|()| {
            match self.context.sync_group {
                Some(_) => prepared.folder.begin_synced(),
                None => Ok(()),
            }
        });
        let made = folder.map_err(|e| store_refusal(&e)).and_then(|()| {
            if let Some(directory) = directory.filter(|_| !own_vars) {
                let probed = probe(&prepared.folder, directory);
                placed.record.made_directory = probed.map_err(|e| e.about(prepared.work_dir_field))?;
            }
            if !prepared.has_work_dir {
                let made = make_work_dir(&prepared.folder, work_dir, *own_work_dir);
                made.map_err(|e| e.about(prepared.work_dir_field))?;
            }
            let brief = Brief::new(&prepared.spec, prepared.place.clone(), &placed.record).encode()?;
            placed.request.brief = brief.into();
            // Write the record before the keeper has the job: from then on, processes of the job may run when the
            // daemon dies.
            prepared.folder.write_record(&placed.record).map_err(|e| store_refusal(&e))
        });
        placed.request.head = std::mem::take(&mut prepared.head).into();
        match made {
            Ok(()) => Ok(placed),
            Err(refusal) => {
                if let Some(made) = &placed.record.made_directory {
                    drop(file_vars::remove_directory(made));
                }
                prepared.folder.discard();
                Err(refusal)
            }
        }
    }

    /// Returns the contents of `job.json`, except for a directory that was made for the job.
    pub(super) fn recorded(&self, spec: &JobActorSpec, tag: u128) -> JobRecord {
        let digest = u128::from_be_bytes(request_digest(&self.port.digest_key(), &spec.digest));
        JobRecord {
            id: spec.id.clone(),
            registered: spec.registered,
            registered_boot: Some(clock::boot_micros()),
            origin: spec.origin,
            work_dir: spec.work_dir.clone(),
            files: spec.files.iter().map(|file| file.path.clone()).collect(),
            made_directory: None,
            tag: format!("{tag:032x}"),
            boot_id: self.boot_id.to_string(),
            digest: Some(format!("{digest:032x}")),
            limits: RecordedLimits {
                timeout: spec.timeout.and_then(|t| u64::try_from(t.as_micros()).ok()),
                cancel_grace: None,
                resources: spec.limits.all(),
            },
        }
    }
}

/// Makes the folder. Removes an existing one first: a crash left it before its Run was answered.
fn make_folder(folder: &JobFolder, left_over: &LeftOvers) -> Result<(), StoreError> {
    match folder.make() {
        Err(error) if error.source.kind() == std::io::ErrorKind::AlreadyExists => {
            left_over.delete_later(folder.begin_removal()?);
            folder.make()
        }
        made => made,
    }
}

/// Makes and probes the directory of file variables; `Some` if it did not exist.
fn probe(folder: &JobFolder, directory: &str) -> Result<Option<MadeDirectory>, Refusal> {
    if !Path::new(directory).exists() {
        folder.note_making(directory).map_err(|e| store_refusal(&e))?;
    }
    file_vars::probe(folder.key(), directory).map_err(|e| refusal(e.reason(), Chain(&e).to_string()))
}

fn make_work_dir(folder: &JobFolder, work_dir: &str, own: bool) -> Result<(), Refusal> {
    if own {
        return folder.make_dir("work").map(drop).map_err(|e| store_refusal(&e));
    }
    crate::store::make_work_dir(Path::new(work_dir)).map_err(|e| refusal(e.reason(), Chain(&e).to_string()))
}
