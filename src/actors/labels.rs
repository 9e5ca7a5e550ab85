//! Texts of a request in the operator's log. They come from a client, so they are masked, on one line, and short.

use std::time::Instant;

use super::redact::Redactor;
use crate::log::mask::Masked;
use crate::model::JobId;
use crate::queue::ShareKey;
use crate::request::RequestLabels;

/// Maximum length of a label in bytes: labels are numbers and addresses.
const MOST: usize = 256;

/// The labels of a job without its secrets.
#[derive(Default)]
pub(super) struct MaskedLabels {
    ci_job: Option<Masked>,
    pipeline: Option<Masked>,
    peer: Option<String>,
    received: Option<Instant>,
}

impl MaskedLabels {
    pub(super) fn new(labels: RequestLabels, redactor: &mut Redactor) -> Self {
        let RequestLabels { ci_job, pipeline, peer, received } = labels;
        Self { ci_job: masked(&ci_job, redactor), pipeline: masked(&pipeline, redactor), peer, received }
    }

    /// Writes the first line of a job to the operator's log. The lines about its events follow.
    pub(super) fn tell_registered(&self, id: &JobId) {
        let took = self.received.map(|received| tracing::field::debug(received.elapsed()));
        let peer = self.peer.as_ref().map(tracing::field::display);
        let [ci_job, pipeline] = [&self.ci_job, &self.pipeline].map(|label| label.as_ref().map(shown));
        tracing::info!(job = %id, peer, ci_job, pipeline, took, "job registered");
    }
}

/// Writes the line of a job that had to wait. A redactor that is not ready would take long to mask two labels; then the
/// line is without them.
pub(super) fn tell_waited(id: &JobId, key: &ShareKey, redactor: &mut Redactor, seconds: i64) {
    let mut label = |text: &str| {
        if redactor.is_ready() { masked(text, redactor).as_ref().map(shown) } else { None }
    };
    let (server, project) = (label(&key.server), label(&key.project));
    tracing::info!(job = %id, server, project, seconds, "the job had to wait and starts now");
}

fn masked(text: &str, redactor: &mut Redactor) -> Option<Masked> {
    (!text.is_empty()).then(|| redactor.mask(text))
}

fn shown(label: &Masked) -> String {
    label.line_of(MOST, true)
}
