//! Turns the output of a job's steps into entries: search for its phrases, sources, clock (logs.md §2, §3).

use std::sync::Arc;

use step_runner_log::frame::{Stamp, Stamper};
use step_runner_log::mask::{
    DefaultPrefixes, MaskConfig, MaskLimitError, MaskWarning, Masked, Masker, PhraseSet,
};
use step_runner_log::pipeline::Pipeline;
use step_runner_model::LogChannel;
use step_runner_system::clock::now_micros;

/// Maximum number of bytes in one read of a pipe. One read is one write in the sense of logs.md §3.
pub(super) const READ_BYTES: usize = 64 << 10;

/// Real-time clock that stamps entries.
#[derive(Default)]
pub(super) struct Clock {
    stamper: Stamper,
}

impl Clock {
    pub(super) fn now(&mut self) -> Stamp {
        self.stamper.stamp(now_micros())
    }
}

/// Compiled search for the phrases and prefixes of a job.
#[derive(Clone)]
pub(super) struct Masking {
    set: PhraseSet,
    masker: Arc<Masker>,
    phrase_bytes: usize,
}

/// Input of [`Masking::build`]. Holds secrets, so it has no `Debug`.
pub(super) struct MaskingSource {
    /// Phrases, unprepared.
    pub(super) phrases: Vec<Vec<u8>>,
    /// Token prefixes of the request.
    pub(super) token_prefixes: Vec<String>,
    /// True to search encoded forms too.
    pub(super) forms: bool,
    /// True to search the default prefixes too.
    pub(super) default_prefixes: bool,
}

impl Masking {
    /// Returns the masking of a job without phrases.
    pub(super) fn none() -> Result<Self, MaskLimitError> {
        let none: [&[u8]; 0] = [];
        Ok(Self::of(PhraseSet::prepare(none, none, &MaskConfig::default())?, 0).0)
    }

    /// Prepares phrases and compiles the masker. Takes long for large sets.
    pub(super) fn build(source: &MaskingSource) -> Result<(Self, Vec<MaskWarning>), MaskLimitError> {
        let default_prefixes =
            if source.default_prefixes { DefaultPrefixes::All } else { DefaultPrefixes::None };
        let config = MaskConfig { forms: source.forms, default_prefixes, ..MaskConfig::default() };
        let bytes = source.phrases.iter().map(Vec::len).sum();
        Ok(Self::of(PhraseSet::prepare(&source.phrases, &source.token_prefixes, &config)?, bytes))
    }

    /// Returns this masking with further phrases.
    pub(super) fn with_added(&self, phrases: &[Vec<u8>]) -> Result<(Self, Vec<MaskWarning>), MaskLimitError> {
        let bytes = self.phrase_bytes + phrases.iter().map(Vec::len).sum::<usize>();
        Ok(Self::of(self.set.with_added(phrases)?, bytes))
    }

    fn of((set, warnings): (PhraseSet, Vec<MaskWarning>), phrase_bytes: usize) -> (Self, Vec<MaskWarning>) {
        let masker = Masker::compile(&set);
        (Self { set, masker, phrase_bytes }, warnings)
    }

    pub(super) const fn phrase_bytes(&self) -> usize {
        self.phrase_bytes
    }

    /// Returns a source of the job's log for one pipe of a step that writes the stream `slot`.
    pub(super) fn source(&self, slot: u8, kind: LogChannel) -> Pipeline {
        Pipeline::new(slot, kind, Arc::clone(&self.masker))
    }

    /// Returns the masker, to replace that of a running source.
    pub(super) fn masker(&self) -> Arc<Masker> {
        Arc::clone(&self.masker)
    }

    /// Masks a separate text, such as a line of the daemon.
    pub(super) fn mask(&self, text: &str) -> Masked {
        self.masker.mask(text)
    }
}
