//! Hides secrets in the output of a job (masking.md).
//!
//! No byte of a phrase or of one of its encoded forms, no value of a sensitive URL parameter and no token behind a
//! known prefix leaves this module; [`MASK`] stands in its place. What is put out depends on the bytes of a source
//! alone, never on how they were cut into writes or on time.
//!
//! ```text
//!  phrases, prefixes ─► PhraseSet ─► Masker (one a job) ─► MaskStream (one a source)
//!                       checks,      automaton, filter     write ─► held bytes, phrase spans ─► URL values, tokens,
//!                       forms                                                                  joining ─► output
//! ```
//!
//! Phrases are found by an Aho–Corasick automaton; a filter in front of it passes over text in which no form can
//! start, which is nearly all text. This module is pure: no clock, no files, no environment. Types that hold
//! secrets hide them in `Debug`.

mod automaton;
mod detect;
mod filter;
mod forms;
mod phrases;
mod stream;
mod token;
mod url;

use std::{
    fmt,
    sync::{Arc, LazyLock},
};

use self::{automaton::Automaton, filter::Filter, token::TokenPrefixes};
pub use self::{
    phrases::{DefaultPrefixes, MaskConfig, MaskLimitError, MaskLimits, MaskWarning, PhraseSet},
    stream::MaskStream,
};

/// What stands in the place of each group of hidden bytes (masking.md §1).
pub const MASK: &[u8] = b"[MASKED]";

/// Long texts are masked in pieces of this size, which the caches hold between the passes over them.
const PIECE: usize = 64 * 1024;

/// Everything a job's sources share to be masked; made once for a set of phrases.
pub struct Masker {
    /// `None` without phrases.
    forms: Option<Forms>,
    prefixes: Arc<TokenPrefixes>,
}

/// The search for the forms of phrases.
struct Forms {
    automaton: Automaton,
    filter: Filter,
}

impl Masker {
    /// Builds the automaton of a set. A set without phrases and own prefixes shares one with all such jobs.
    pub fn compile(set: &PhraseSet) -> Arc<Self> {
        let prefixes = set.prefixes();
        if set.forms().is_empty() {
            let defaults = [DefaultPrefixes::None, DefaultPrefixes::Glpat, DefaultPrefixes::All];
            let shared =
                defaults.into_iter().find(|which| Arc::ptr_eq(prefixes, TokenPrefixes::defaults(*which)));
            return shared.map_or_else(
                || Arc::new(Self { forms: None, prefixes: Arc::clone(prefixes) }),
                Self::without_phrases,
            );
        }
        let automaton = Automaton::new(set.forms());
        let forms = Forms { filter: Filter::new(set.forms(), &automaton), automaton };
        Arc::new(Self { forms: Some(forms), prefixes: Arc::clone(prefixes) })
    }

    /// The masker of jobs without phrases and own prefixes. All of them share it.
    pub fn without_phrases(prefixes: DefaultPrefixes) -> Arc<Self> {
        static NONE: LazyLock<Arc<Masker>> = LazyLock::new(|| build(DefaultPrefixes::None));
        static GLPAT: LazyLock<Arc<Masker>> = LazyLock::new(|| build(DefaultPrefixes::Glpat));
        static ALL: LazyLock<Arc<Masker>> = LazyLock::new(|| build(DefaultPrefixes::All));
        fn build(which: DefaultPrefixes) -> Arc<Masker> {
            Arc::new(Masker { forms: None, prefixes: Arc::clone(TokenPrefixes::defaults(which)) })
        }
        Arc::clone(match prefixes {
            DefaultPrefixes::None => &NONE,
            DefaultPrefixes::Glpat => &GLPAT,
            DefaultPrefixes::All => &ALL,
        })
    }

    /// Masks a whole text as a source of its own (masking.md §7).
    ///
    /// A phrase that is no UTF-8 could leave half a character: this becomes U+FFFD.
    pub fn mask_str(self: &Arc<Self>, text: &str) -> String {
        String::from_utf8(self.mask_bytes(text.as_bytes()))
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
    }

    /// Masks a whole text as a source of its own (masking.md §7).
    pub fn mask_bytes(self: &Arc<Self>, text: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(text.len());
        let mut stream = MaskStream::new(Arc::clone(self));
        for piece in text.chunks(PIECE) {
            stream.push(piece, &mut out);
        }
        stream.finish(&mut out);
        out
    }
}

impl fmt::Debug for Masker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Masker").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
