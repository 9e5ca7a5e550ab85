//! What the output of a job's steps is turned into entries with: its masking, the sources behind it, the clock
//! (logs.md §2, §3).

use std::sync::Arc;

use crate::clock::now_micros;
use crate::log::frame::{STEP, Stamp, Stamper};
use crate::log::mask::{DefaultPrefixes, MaskConfig, MaskLimitError, MaskWarning, Masker, PhraseSet};
use crate::log::pipeline::Pipeline;
use crate::model::Kind;

/// Most bytes of one read of a pipe, so of one write in the sense of logs.md §3.
pub(super) const READ_BYTES: usize = 64 << 10;

/// The real-time clock as entries show it.
#[derive(Default)]
pub(super) struct Clock {
    stamper: Stamper,
}

impl Clock {
    pub(super) fn now(&mut self) -> Stamp {
        self.stamper.stamp(now_micros())
    }
}

/// What a job's output is searched for.
#[derive(Clone)]
pub(super) struct Masking {
    set: PhraseSet,
    masker: Arc<Masker>,
    phrase_bytes: usize,
}

/// What a masking is made of. Holds secrets, so it has no `Debug`.
pub(super) struct MaskingSource {
    /// Phrases, unprepared.
    pub(super) phrases: Vec<Vec<u8>>,
    /// Of the request.
    pub(super) token_prefixes: Vec<String>,
    /// Search encoded forms too.
    pub(super) forms: bool,
    /// Search the default prefixes too.
    pub(super) default_prefixes: bool,
}

impl Masking {
    /// Of a job that asks for nothing.
    pub(super) fn none() -> Result<Self, MaskLimitError> {
        let none: [&[u8]; 0] = [];
        Ok(Self::of(PhraseSet::prepare(none, none, &MaskConfig::default())?, 0).0)
    }

    /// Prepares phrases and builds what searches for them. Takes long for large sets.
    pub(super) fn build(source: &MaskingSource) -> Result<(Self, Vec<MaskWarning>), MaskLimitError> {
        let default_prefixes =
            if source.default_prefixes { DefaultPrefixes::All } else { DefaultPrefixes::None };
        let config = MaskConfig { forms: source.forms, default_prefixes, ..MaskConfig::default() };
        let bytes = source.phrases.iter().map(Vec::len).sum();
        Ok(Self::of(PhraseSet::prepare(&source.phrases, &source.token_prefixes, &config)?, bytes))
    }

    /// The same with further phrases.
    pub(super) fn with_added(&self, phrases: &[Vec<u8>]) -> Result<(Self, Vec<MaskWarning>), MaskLimitError> {
        let bytes = self.phrase_bytes + phrases.iter().map(Vec::len).sum::<usize>();
        Ok(Self::of(self.set.with_added(phrases)?, bytes))
    }

    fn of((set, warnings): (PhraseSet, Vec<MaskWarning>), phrase_bytes: usize) -> (Self, Vec<MaskWarning>) {
        let masker = Masker::compile(&set);
        (Self { set, masker, phrase_bytes }, warnings)
    }

    /// Length of all phrases that it was made of, in bytes.
    pub(super) const fn phrase_bytes(&self) -> usize {
        self.phrase_bytes
    }

    /// A source of the job's log: one pipe of a step.
    pub(super) fn source(&self, kind: Kind) -> Pipeline {
        Pipeline::new(STEP, kind, Arc::clone(&self.masker))
    }

    /// What a source goes on with after phrases were added.
    pub(super) fn masker(&self) -> Arc<Masker> {
        Arc::clone(&self.masker)
    }

    /// Masks a text of its own: a line of the daemon.
    pub(super) fn mask(&self, text: &str) -> Vec<u8> {
        self.masker.mask_bytes(text.as_bytes())
    }
}
