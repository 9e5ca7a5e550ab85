//! How a job comes to the agent: from the answer to a request, or from the record of an earlier agent.

use std::time::Duration;

use tokio::sync::mpsc::unbounded_channel;

use super::{Agency, Running, Served};
use crate::api::{Apis, CallResult};
use crate::clock::wall;
use crate::folder::{self, JobFolder};
use crate::job::{JobTask, OfEntry};
use crate::settings::Settings;
use step_runner_agent::names::Names;
use step_runner_agent::payload::{self, Taken};
use step_runner_agent::record::{self, Phase, Record, Unreadable, Wanted};
use step_runner_agent::routing::Base;
use step_runner_agent::scheduler::{EntryId, Event};
use step_runner_model::error::Chain;

/// Time limit of a job whose payload cannot be read.
const UNREAD_TIMEOUT: Duration = Duration::from_hours(1);

impl Agency {
    /// Takes the answer to a request. True if it brought a job.
    pub(super) fn answered(&mut self, entry: EntryId, result: &CallResult) -> bool {
        let Some(served) = self.served.get(&entry) else { return false };
        let name = &served.entry.name;
        let response = match result {
            Ok(response) => response,
            Err(error) => {
                tracing::warn!(runner = %name, error = %Chain(error), "no answer to a request for a job");
                return false;
            }
        };
        match response.answer.status {
            _ if response.is_page => {
                let said = response.message(&served.entry.token);
                tracing::warn!(runner = %name, "no answer to a request for a job: {said}; check `url`");
                return false;
            }
            201 => {}
            204 | 409 => return false,
            200 | 404 | 405 => {
                let said = response.message(&served.entry.token);
                tracing::warn!(runner = %name, "this is not the API of a GitLab instance: {said}; check `url`");
                return false;
            }
            _ => {
                let said = response.message(&served.entry.token);
                tracing::warn!(runner = %name, "the server refuses a request for a job: {said}");
                return false;
            }
        }
        let taken = match payload::take(&response.body) {
            Ok(taken) => taken,
            Err(message) => {
                tracing::error!(runner = %name, "{message}");
                return false;
            }
        };
        let record = self.record(entry, served, taken, &response.body);
        let Some(record) = record else { return false };
        let of_entry = OfEntry {
            settings: served.settings.clone(),
            server: served.entry.url.clone(),
            api: served.api.clone(),
        };
        self.begin(record, true, of_entry)
    }

    /// Makes the record of a job that the server has given.
    fn record(&self, entry: EntryId, served: &Served, taken: Taken, body: &[u8]) -> Option<Record> {
        let Taken { id, token, content } = taken;
        let (content, refused) = match content {
            Ok(content) => (Some(content), None),
            Err(reason) => (None, Some(reason)),
        };
        let project = content.as_ref().and_then(|content| content.project);
        let same_entry = self.jobs.values().filter(|job| job.entry == entry);
        let concurrent = record::concurrent_ids(same_entry.filter_map(|job| job.slot.as_ref()), project);
        Some(Record {
            phase: Phase::Taken,
            entry,
            server: served.entry.url.to_string(),
            settings: serde_json::to_value(&served.settings).ok()?,
            job: id,
            token,
            project,
            failure_reasons: content.as_ref().map(|found| found.failure_reasons.clone()).unwrap_or_default(),
            has_timestamps: content
                .as_ref()
                .is_none_or(|content| content.has_timestamps(&served.entry.environment)),
            is_debug: content.as_ref().is_some_and(|content| content.job.settings.debug_trace),
            output_limit: served.entry.output_limit,
            timeout: content.as_ref().map_or(UNREAD_TIMEOUT, |content| content.timeout),
            prepare_timeout: served.entry.prepare_timeout,
            concurrent,
            taken: wall(),
            acknowledged: None,
            time_limit: None,
            preparations: 0,
            wanted: Wanted::default(),
            end: None,
            ended: None,
            was_submitted: false,
            stages: Vec::new(),
            payload: Some(String::from_utf8_lossy(body).into_owned()),
            refused,
        })
    }

    /// Starts the task of a job. False if there is one for it.
    fn begin(&mut self, record: Record, is_new: bool, of_entry: OfEntry) -> bool {
        let names = Names::new(&of_entry.server, record.job);
        if self.jobs.contains_key(&names.folder) {
            tracing::warn!(job = record.job, "the server gives a job that this agent has already");
            return false;
        }
        let folder = JobFolder::new(self.state.jobs().join(&names.folder));
        if let Err(error) = folder.make() {
            tracing::error!(job = record.job, error = %Chain(&error), "cannot make the folder of a job");
            return false;
        }
        self.has_taken = true;
        let slot = record.holds_slot().then(|| Record { payload: None, ..record.clone() });
        let (stops, stopped) = unbounded_channel();
        tracing::info!(
            job = record.job,
            project = record.project,
            "{}",
            if is_new { "job" } else { "job goes on" }
        );
        self.jobs.insert(names.folder, Running { entry: record.entry, slot, stops });
        tokio::spawn(JobTask::start(record, is_new, folder, of_entry, self.around.clone(), stopped));
        true
    }

    /// Takes up the jobs of earlier agents.
    pub(super) fn adopt(&mut self, mut apis: Apis) {
        for path in folder::all(&self.state.jobs()) {
            let folder = JobFolder::new(path.clone());
            let record = match folder.record() {
                Ok(record) => record,
                Err((why, has_files)) => {
                    match record::unreadable(why, has_files) {
                        Unreadable::Remove => drop(folder.delete()),
                        Unreadable::Keep(why) => tracing::error!(
                            "the record in {} stays as it is: {why}; remove it when the server has ended the job",
                            path.display()
                        ),
                    }
                    continue;
                }
            };
            if let Err(text) = self.resume(record, &mut apis) {
                tracing::error!("the record in {} stays as it is: {text}", path.display());
            }
        }
    }

    fn resume(&mut self, record: Record, apis: &mut Apis) -> Result<(), String> {
        let server = Base::new(&record.server).map_err(|error| error.to_string())?;
        let settings = Settings::of_record(&record.settings)?;
        let api = apis.of(&settings, &server).map_err(|error| error.to_string())?;
        let event = Event::Adopted { entry: record.entry, is_running: record.holds_slot() };
        if self.begin(record, false, OfEntry { settings, server, api }) {
            self.decide(event);
        }
        Ok(())
    }
}
