//! Token prefixes such as `glpat-`. The run of token bytes after a prefix is hidden (masking.md §3).

use std::sync::{Arc, LazyLock};

use aho_corasick::packed;

use super::{
    automaton::Automaton,
    config::{DefaultPrefixes, MaskConfig, MaskLimitError},
    filter::Filter,
    forms,
};

/// The default prefixes (masking.md §3).
const DEFAULTS: [&[u8]; 14] = [
    b"glpat-",
    b"gloas-",
    b"gldt-",
    b"glrt-",
    b"glcbt-",
    b"glrtr-",
    b"glptt-",
    b"glft-",
    b"glimt-",
    b"glagent-",
    b"glsoat-",
    b"glffct-",
    b"_gitlab_session=",
    b"gltok-",
];

/// True if a byte belongs to a run even where no phrase covers it.
pub(super) fn is_run_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'=')
}

/// The prefixes in force, ready for the search.
pub(super) struct TokenPrefixes {
    /// Sorted, without duplicates.
    prefixes: Vec<Vec<u8>>,
    /// Finds the end of each prefix, even of one inside another.
    pub(super) automaton: Automaton,
    finder: Finder,
    longest: usize,
}

/// Finds the start of the next prefix quickly.
enum Finder {
    /// There is no prefix.
    None,
    /// A vector algorithm, if the machine and the prefixes allow it.
    Packed(Box<packed::Searcher>),
    Filter(Box<Filter>),
}

impl TokenPrefixes {
    fn new(mut prefixes: Vec<Vec<u8>>) -> Self {
        prefixes.sort_unstable();
        let automaton = Automaton::new(&prefixes);
        let packed = packed::Config::new()
            .match_kind(packed::MatchKind::LeftmostFirst)
            .builder()
            .extend(&prefixes)
            .build();
        let finder = match packed {
            _ if prefixes.is_empty() => Finder::None,
            Some(searcher) => Finder::Packed(Box::new(searcher)),
            None => Finder::Filter(Box::new(Filter::new(&prefixes, &automaton))),
        };
        let longest = prefixes.iter().map(Vec::len).max().unwrap_or(0);
        Self { prefixes, automaton, finder, longest }
    }

    /// Returns the default prefixes alone, built once for all jobs.
    pub(super) fn defaults(which: DefaultPrefixes) -> &'static Arc<Self> {
        static NONE: LazyLock<Arc<TokenPrefixes>> = LazyLock::new(|| build(DefaultPrefixes::None));
        static GLPAT: LazyLock<Arc<TokenPrefixes>> = LazyLock::new(|| build(DefaultPrefixes::Glpat));
        static ALL: LazyLock<Arc<TokenPrefixes>> = LazyLock::new(|| build(DefaultPrefixes::All));
        fn build(which: DefaultPrefixes) -> Arc<TokenPrefixes> {
            Arc::new(TokenPrefixes::new(default_list(which).iter().map(|prefix| prefix.to_vec()).collect()))
        }
        match which {
            DefaultPrefixes::None => &NONE,
            DefaultPrefixes::Glpat => &GLPAT,
            DefaultPrefixes::All => &ALL,
        }
    }

    /// True if both have the same prefixes, so that states of one automaton are valid in the other.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.prefixes == other.prefixes
    }

    /// Returns the first position at or after `from` where a prefix starts. Near the end of `text`, this is also any
    /// position where a prefix can start that continues after the end.
    pub(super) fn first_possible_start(&self, text: &[u8], from: usize) -> usize {
        let open = text.len() - text.len().min(self.longest.saturating_sub(1));
        if from < open {
            let found = match &self.finder {
                Finder::None => None,
                Finder::Packed(searcher) => searcher
                    .find_in(text, aho_corasick::Span { start: from, end: text.len() })
                    .map(|found| found.start()),
                Finder::Filter(filter) => Some(filter.first_possible_start(&self.automaton, text, from).at),
            };
            if let Some(start) = found
                && start < open
            {
                return start;
            }
        }
        let from = from.max(open);
        text.iter()
            .skip(from)
            .position(|&byte| self.automaton.leaves_root(byte))
            .map_or(text.len(), |at| from + at)
    }
}

fn default_list(which: DefaultPrefixes) -> &'static [&'static [u8]] {
    match which {
        DefaultPrefixes::None => &[],
        DefaultPrefixes::Glpat => &DEFAULTS[..1],
        DefaultPrefixes::All => &DEFAULTS,
    }
}

/// Combines the default prefixes in force with `more`, trimmed, without empty ones and duplicates (masking.md §3, §8).
pub(super) fn prepare(
    more: impl IntoIterator<Item = impl AsRef<[u8]>>,
    config: &MaskConfig,
) -> Result<Arc<TokenPrefixes>, MaskLimitError> {
    let mut added = Vec::new();
    for (index, prefix) in more.into_iter().enumerate() {
        let prefix = forms::trim(prefix.as_ref());
        let (length, limit) = (prefix.len(), config.limits.prefix_bytes);
        if length > limit {
            return Err(MaskLimitError::PrefixTooLong { number: index + 1, length, limit });
        }
        if length > 0 {
            added.push(prefix.to_vec());
        }
    }
    let defaults = default_list(config.default_prefixes);
    if added.is_empty() && defaults.len() <= config.limits.prefixes {
        return Ok(Arc::clone(TokenPrefixes::defaults(config.default_prefixes)));
    }
    let mut prefixes: Vec<Vec<u8>> = defaults.iter().map(|prefix| prefix.to_vec()).chain(added).collect();
    prefixes.sort_unstable();
    prefixes.dedup();
    let (count, limit) = (prefixes.len(), config.limits.prefixes);
    if count > limit {
        return Err(MaskLimitError::TooManyPrefixes { count, limit });
    }
    if count == defaults.len() {
        return Ok(Arc::clone(TokenPrefixes::defaults(config.default_prefixes)));
    }
    Ok(Arc::new(TokenPrefixes::new(prefixes)))
}
