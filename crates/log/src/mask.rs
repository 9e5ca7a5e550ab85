//! Hides secrets in the output of a job (masking.md).
//!
//! Replaces with [`MASK`] every byte of a phrase or of one of its encoded forms, every value of a sensitive URL
//! parameter, and every token after a known prefix. The output depends on the bytes of a source alone, never on time
//! or on how the bytes were cut into writes.
//!
//! ```text
//!  phrases, prefixes ─► PhraseSet ─► Masker (per job)  ─► MaskStream (per source)
//!                       checks,      automaton, filter     write ─► held bytes, phrase spans ─► URL values, tokens,
//!                       forms                                                                  joining ─► output
//! ```
//!
//! An Aho–Corasick automaton finds the phrases. A filter in front of it skips text in which no form can start, which is
//! nearly all text. Pure: no clock, no files, no environment. Types that hold secrets hide them in `Debug`.

mod automaton;
mod bitmap;
mod candidates;
mod config;
mod detect;
mod escape;
mod filter;
mod forms;
mod members;
mod phrases;
mod readings;
mod stream;
mod token;
mod url;
mod view;
mod wrap;

use std::{
    fmt,
    sync::{Arc, LazyLock},
};

use step_runner_model::text;

use self::{automaton::Automaton, candidates::Escapes, filter::Filter, token::TokenPrefixes};
pub use self::{
    config::{DefaultPrefixes, MaskConfig, MaskLimitError, MaskLimits},
    members::json_members,
    phrases::{MaskWarning, PhraseSet},
    stream::MaskStream,
};

/// Replacement of each group of hidden bytes (masking.md §1).
pub const MASK: &[u8] = MASK_TEXT.as_bytes();

/// [`MASK`] as text.
pub const MASK_TEXT: &str = "[MASKED]";

/// Long texts are masked in pieces of this size, which stay in the CPU caches between the passes over them.
const PIECE: usize = 64 * 1024;

/// The search data that all sources of a job share, built once for a set of phrases.
pub struct Masker {
    /// `None` without phrases.
    forms: Option<Forms>,
    prefixes: Arc<TokenPrefixes>,
}

/// Search data for the forms of phrases.
struct Forms {
    automaton: Automaton,
    filter: Filter,
    /// `None` if escapes count as other text.
    escapes: Option<Escapes>,
    /// A line end after at least this many characters of base64 may be inside a form. `None`: never.
    columns: Option<usize>,
}

impl Masker {
    /// Builds the masker of a set. Jobs without phrases and without prefixes of their own share one.
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
        let columns = set.has_encoded_forms().then_some(wrap::COLUMNS);
        let escapes = if set.has_encoded_forms() { Escapes::new(set.forms()) } else { None };
        let forms = Forms { filter: Filter::new(set.forms(), &automaton), automaton, escapes, columns };
        Arc::new(Self { forms: Some(forms), prefixes: Arc::clone(prefixes) })
    }

    /// Returns the masker of jobs without phrases and without prefixes of their own. All of them share it.
    pub(crate) fn without_phrases(prefixes: DefaultPrefixes) -> Arc<Self> {
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
    /// Masking a phrase that is not UTF-8 can leave half a character, which becomes U+FFFD.
    pub fn mask(self: &Arc<Self>, text: &str) -> Masked {
        let masked = String::from_utf8(self.mask_bytes(text.as_bytes()));
        Masked(masked.unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
    }

    /// Masks a whole byte string as a source of its own (masking.md §7).
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

/// A text of a job without any secret: only a [`Masker`] makes one.
///
/// A text that was shortened, put on one line or escaped may hold a secret in a form that no masker finds. So the
/// functions that do this to texts of a job take this type.
#[derive(Clone, PartialEq, Eq)]
pub struct Masked(String);

impl Masked {
    /// Returns the text as data, neither shortened nor escaped.
    pub fn into_data(self) -> String {
        self.0
    }

    /// Returns the text for people: only its quotations are escaped and shortened.
    pub fn for_people(&self) -> String {
        text::for_people(&self.0).into_owned()
    }

    /// Returns the text for people on one line. If it is longer than `most` bytes, cuts out its middle. Changes the
    /// words `exit status`, except for the last ones if `tells_exit_status`, because clients take what follows them for
    /// the exit status that decided.
    pub fn line_of(&self, most: usize, tells_exit_status: bool) -> String {
        let line = text::on_one_line(&text::for_people(&self.0));
        let line = if tells_exit_status {
            text::with_last_exit_status(&line)
        } else {
            text::without_exit_status(&line)
        };
        shortened(line, most)
    }
}

/// Replaces the middle of a text that is longer than `most` bytes.
fn shortened(text: String, most: usize) -> String {
    const CUT: &str = " … ";
    if text.len() <= most {
        return text;
    }
    let half = most.saturating_sub(CUT.len()) / 2;
    let (head, tail) = (text.floor_char_boundary(half), text.ceil_char_boundary(text.len() - half));
    let part = |range| text.get(range).unwrap_or_default();
    [part(0..head), CUT, part(tail..text.len())].concat()
}

impl fmt::Debug for Masker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Masker").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
