//! The folders of jobs. What was written whole stays; the last append of a killed agent can be cut.

use std::collections::BTreeMap;

use step_runner_agent::lifecycle::{Action, Disk};
use step_runner_agent::record::Record;
use step_runner_agent::sealed::Unusable;
use step_runner_agent::trace::Checkpoint;

use super::random::Random;

/// Files of one job.
#[derive(Clone, Default)]
pub(crate) struct Folder {
    pub(crate) record: Vec<u8>,
    pub(crate) head: Vec<u8>,
    pub(crate) trace: Vec<u8>,
    pub(crate) checkpoint: Vec<u8>,
    pub(crate) tail: Vec<u8>,
    pub(crate) sent: u64,
}

/// All folders, by job.
#[derive(Default)]
pub(crate) struct Folders(pub(crate) BTreeMap<u64, Folder>);

impl Folders {
    /// Performs an action on files. Returns false for another action.
    pub(crate) fn perform(&mut self, job: u64, action: &Action) -> bool {
        if let Action::Store(record) = action {
            self.0.entry(job).or_default().record = record.encode().unwrap();
            return true;
        }
        if *action == Action::DeleteRecord {
            self.0.remove(&job);
            return true;
        }
        let Some(folder) = self.0.get_mut(&job) else { return false };
        match action {
            Action::StoreHead(bytes) => folder.head.extend_from_slice(bytes),
            Action::CutHead(len) => folder.head.truncate(*len as usize),
            Action::CutTrace(len) => folder.trace.truncate(*len as usize),
            Action::Extend(bytes) => folder.trace.extend_from_slice(bytes),
            Action::StoreCheckpoint(checkpoint) => folder.checkpoint = checkpoint.encode().unwrap(),
            Action::StoreTail(bytes) => folder.tail.clone_from(bytes),
            Action::StoreSent(sent) => folder.sent = *sent,
            _ => return false,
        }
        true
    }

    /// Performs an append of an agent that is killed in it.
    pub(crate) fn tear(&mut self, job: u64, action: &Action, random: &mut Random) {
        let Some(folder) = self.0.get_mut(&job) else { return };
        let (file, bytes) = match action {
            Action::StoreHead(bytes) => (&mut folder.head, bytes),
            Action::Extend(bytes) => (&mut folder.trace, bytes),
            _ => return,
        };
        file.extend_from_slice(&bytes[..random.below(bytes.len() as u64) as usize]);
    }
}

impl Folder {
    /// Returns what a starting agent reads.
    pub(crate) fn read(&self) -> (Record, Disk) {
        let checkpoint = match self.checkpoint.as_slice() {
            [] => Err(Unusable::Torn),
            file => Checkpoint::decode(file),
        };
        let disk = Disk {
            head: self.head.clone(),
            trace: self.trace.clone(),
            checkpoint,
            tail: self.tail.clone(),
            sent: self.sent,
        };
        (Record::decode(&self.record).unwrap(), disk)
    }
}
