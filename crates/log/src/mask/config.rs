//! Settings and limits of masking (masking.md §2, §3, §8).

/// Settings of masking. The default is the strictest: all forms, all prefixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaskConfig {
    /// Search for encoded forms of phrases too, `mask_forms` (masking.md §2).
    pub forms: bool,
    /// Token prefixes to search for besides those of the request (masking.md §3).
    pub default_prefixes: DefaultPrefixes,
    /// Bounds of memory and time.
    pub limits: MaskLimits,
}

impl Default for MaskConfig {
    fn default() -> Self {
        Self { forms: true, default_prefixes: DefaultPrefixes::All, limits: MaskLimits::default() }
    }
}

/// Selection of the default token prefixes (masking.md §3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DefaultPrefixes {
    /// None: only the request's prefixes are searched for.
    None,
    /// Only `glpat-`.
    Glpat,
    /// The whole list.
    #[default]
    All,
}

/// The limits of masking.md §8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaskLimits {
    /// Number of phrases after preparation.
    pub(crate) phrases: usize,
    /// Length of one phrase, in bytes.
    pub(crate) phrase_bytes: usize,
    /// Length of all phrases together, in bytes.
    pub(crate) all_phrase_bytes: usize,
    /// Number of token prefixes, with the default ones.
    pub(crate) prefixes: usize,
    /// Length of one prefix, in bytes.
    pub(crate) prefix_bytes: usize,
    /// Length of all forms together, in bytes. Beyond it, encoded forms of the longest phrases are left out.
    pub(crate) all_form_bytes: usize,
}

/// Maximum length of one phrase, in bytes (masking.md §8).
pub(super) const PHRASE_BYTES: usize = 256 * 1024;

impl Default for MaskLimits {
    fn default() -> Self {
        Self {
            phrases: 4096,
            phrase_bytes: PHRASE_BYTES,
            all_phrase_bytes: 4 * 1024 * 1024,
            prefixes: 256,
            prefix_bytes: 256,
            all_form_bytes: 16 * 1024 * 1024,
        }
    }
}

/// A limit of masking.md §8 is exceeded. The job must be refused, because parts of its secrets would stay visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MaskLimitError {
    /// Too many phrases, counted after trimming and without empty ones and duplicates.
    #[error("{count} phrases to mask are more than the allowed {limit}; mask fewer values")]
    TooManyPhrases {
        /// Number of phrases.
        count: usize,
        /// The limit.
        limit: usize,
    },
    /// A phrase is too long after trimming.
    #[error(
        "phrase {number} to mask has {length} bytes, more than the allowed {limit}; mask a shorter value"
    )]
    PhraseTooLong {
        /// Its place in the list as given, counted from 1.
        number: usize,
        /// Its length in bytes.
        length: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// All phrases together are too long.
    #[error(
        "the phrases to mask have {length} bytes together, more than the allowed {limit}; mask fewer values"
    )]
    PhrasesTooLarge {
        /// Their length in bytes.
        length: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// Too many token prefixes, counted with the default ones.
    #[error(
        "{count} token prefixes (the default ones included) are more than the allowed {limit}; name fewer"
    )]
    TooManyPrefixes {
        /// Number of prefixes.
        count: usize,
        /// The limit.
        limit: usize,
    },
    /// A token prefix is too long after trimming.
    #[error("token prefix {number} has {length} bytes, more than the allowed {limit}; name a shorter one")]
    PrefixTooLong {
        /// Its place in the list as given, counted from 1.
        number: usize,
        /// Its length in bytes.
        length: usize,
        /// The limit in bytes.
        limit: usize,
    },
}
