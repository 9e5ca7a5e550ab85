//! The search terms: prepares phrases and prefixes, checks their limits, and chooses the forms (masking.md §2, §3, §8).

use std::{collections::HashSet, fmt, sync::Arc};

use super::{
    config::{MaskConfig, MaskLimitError},
    forms,
    token::{self, TokenPrefixes},
};

/// A problem with the phrases of a job that is not refused for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaskWarning {
    /// Phrases of a single byte hide this byte everywhere. For the operator's log.
    OneBytePhrases {
        /// Number of such phrases.
        count: usize,
    },
    /// For lack of room, encoded forms of the longest phrases are not searched for. For the operator's log and the
    /// job's (masking.md §8).
    FormsDropped {
        /// Number of phrases without encoded forms.
        phrases: usize,
    },
}

impl MaskWarning {
    /// True if the warning belongs in the job's log as well.
    pub fn is_for_job(self) -> bool {
        matches!(self, Self::FormsDropped { .. })
    }
}

impl fmt::Display for MaskWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OneBytePhrases { count } => {
                write!(
                    f,
                    "phrases of a single byte to mask: {count}; such a byte is hidden wherever it stands"
                )
            }
            Self::FormsDropped { phrases } => write!(
                f,
                "encoded forms of the longest phrases ({phrases} of them) are not masked: all forms together are too large"
            ),
        }
    }
}

/// Checked phrases and token prefixes of a job. Cheap to clone; `Debug` hides the content.
#[derive(Clone)]
pub struct PhraseSet {
    inner: Arc<Inner>,
}

struct Inner {
    /// Trimmed, without duplicates, in the order given.
    phrases: Vec<Vec<u8>>,
    /// All forms to search for, sorted, without duplicates.
    forms: Vec<Vec<u8>>,
    /// Length of all forms together, in bytes.
    form_bytes: usize,
    prefixes: Arc<TokenPrefixes>,
    config: MaskConfig,
}

impl PhraseSet {
    /// Trims phrases, drops empty ones and duplicates, checks limits and makes the forms (masking.md §2, §3, §8).
    pub fn prepare(
        phrases: impl IntoIterator<Item = impl AsRef<[u8]>>,
        prefixes: impl IntoIterator<Item = impl AsRef<[u8]>>,
        config: &MaskConfig,
    ) -> Result<(Self, Vec<MaskWarning>), MaskLimitError> {
        let prefixes = token::prepare(prefixes, config)?;
        Self::build(Vec::new(), phrases, prefixes, config)
    }

    /// Adds phrases that became known during the job (masking.md §7). If none of them is new, the result is a
    /// clone of this set, and nothing need be compiled again.
    pub fn with_added(
        &self,
        more: impl IntoIterator<Item = impl AsRef<[u8]>>,
    ) -> Result<(Self, Vec<MaskWarning>), MaskLimitError> {
        let Inner { phrases, prefixes, config, .. } = &*self.inner;
        let (set, warnings) = Self::build(phrases.clone(), more, Arc::clone(prefixes), config)?;
        if set.inner.phrases.len() == phrases.len() {
            return Ok((self.clone(), Vec::new()));
        }
        Ok((set, warnings))
    }

    /// Returns the number of phrases.
    pub(crate) fn len(&self) -> usize {
        self.inner.phrases.len()
    }

    /// Returns the length of all forms in bytes. A masker's cost is proportional to it.
    pub fn form_bytes(&self) -> usize {
        self.inner.form_bytes
    }

    /// Returns all forms, sorted, without duplicates.
    pub(super) fn forms(&self) -> &[Vec<u8>] {
        &self.inner.forms
    }

    /// True if encoded forms are searched for too.
    pub(super) fn has_encoded_forms(&self) -> bool {
        self.inner.config.forms
    }

    pub(super) fn prefixes(&self) -> &Arc<TokenPrefixes> {
        &self.inner.prefixes
    }

    fn build(
        mut phrases: Vec<Vec<u8>>,
        more: impl IntoIterator<Item = impl AsRef<[u8]>>,
        prefixes: Arc<TokenPrefixes>,
        config: &MaskConfig,
    ) -> Result<(Self, Vec<MaskWarning>), MaskLimitError> {
        let mut seen: HashSet<Vec<u8>> = phrases.iter().cloned().collect();
        for (index, phrase) in more.into_iter().enumerate() {
            let phrase = forms::trim(phrase.as_ref());
            let (length, limit) = (phrase.len(), config.limits.phrase_bytes);
            if length > limit {
                return Err(MaskLimitError::PhraseTooLong { number: index + 1, length, limit });
            }
            if length > 0 && seen.insert(phrase.to_vec()) {
                phrases.push(phrase.to_vec());
            }
        }
        let (count, limit) = (phrases.len(), config.limits.phrases);
        if count > limit {
            return Err(MaskLimitError::TooManyPhrases { count, limit });
        }
        let (length, limit) = (phrases.iter().map(Vec::len).sum(), config.limits.all_phrase_bytes);
        if length > limit {
            return Err(MaskLimitError::PhrasesTooLarge { length, limit });
        }

        let mut warnings = Vec::new();
        let one_byte = phrases.iter().filter(|phrase| phrase.len() == 1).count();
        if one_byte > 0 {
            warnings.push(MaskWarning::OneBytePhrases { count: one_byte });
        }
        let (forms, dropped) = choose_forms(&phrases, config);
        if dropped > 0 {
            warnings.push(MaskWarning::FormsDropped { phrases: dropped });
        }
        let form_bytes = forms.iter().map(Vec::len).sum();
        let inner = Inner { phrases, forms, form_bytes, prefixes, config: *config };
        Ok((Self { inner: Arc::new(inner) }, warnings))
    }
}

impl fmt::Debug for PhraseSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PhraseSet").field("phrases", &self.len()).finish_non_exhaustive()
    }
}

/// Returns the forms that fit, sorted, and how many phrases, the longest ones, have no room for encoded forms.
fn choose_forms(phrases: &[Vec<u8>], config: &MaskConfig) -> (Vec<Vec<u8>>, usize) {
    let mut chosen: HashSet<Vec<u8>> = phrases.iter().cloned().collect();
    let mut dropped = 0;
    if config.forms {
        chosen.extend(phrases.iter().flat_map(|phrase| forms::lines(phrase)));
        let mut size: usize = chosen.iter().map(Vec::len).sum();
        let mut by_length: Vec<&Vec<u8>> = phrases.iter().collect();
        by_length.sort_by_key(|phrase| phrase.len());
        for (index, phrase) in by_length.iter().enumerate() {
            let mut more: HashSet<Vec<u8>> = forms::encodings(phrase).into_iter().collect();
            more.retain(|form| !chosen.contains(form));
            size += more.iter().map(Vec::len).sum::<usize>();
            if size > config.limits.all_form_bytes && !more.is_empty() {
                dropped = by_length.len() - index;
                break;
            }
            chosen.extend(more);
        }
    }
    let mut chosen: Vec<Vec<u8>> = chosen.into_iter().collect();
    chosen.sort_unstable();
    (chosen, dropped)
}

#[cfg(test)]
mod tests;
