//! The command line: `--proof NAME [--option [VALUE]]…`, or the arguments of a test runner. Words select the proofs
//! whose names contain them; options (`--test-threads 4`, `--nocapture`) are accepted and ignored.

use std::collections::BTreeMap;

/// Our options that take a number.
const NUMBERS: &[&str] = &[
    "points",
    "ids",
    "jobs",
    "concurrency",
    "concurrent",
    "seed",
    "parallel",
    "stall",
    "rounds",
    "every",
    "seconds",
    "cases",
    "trees",
    "cuts",
    "mib",
    "seeds",
    "from",
    "races",
    "abandoned",
];
/// Our options that take a number with a fraction.
const FRACTIONS: &[&str] = &["scale", "minutes"];
/// Our options that take a text. `jobs` is a number in some proofs, and a kind of jobs in others.
const TEXTS: &[&str] = &["only", "grace", "cgroup", "jobs", "fault"];
/// Our flags.
const FLAGS: &[&str] =
    &["keeper", "both", "run", "all", "syscalls", "untimed", "records", "bless", "worker", "no-keep"];
/// Options of test runners that take a value.
const FOREIGN: &[&str] = &["test-threads", "skip", "format", "color", "logfile", "shuffle-seed", "Z"];
/// Options of test runners without a value.
const FOREIGN_FLAGS: &[&str] = &[
    "nocapture",
    "no-capture",
    "quiet",
    "exact",
    "ignored",
    "include-ignored",
    "show-output",
    "test",
    "bench",
];

#[derive(Clone, Default)]
pub(crate) struct Arguments {
    /// The proof to run with its full counts.
    pub(crate) proof: Option<String>,
    /// Parts of names of proofs to run with small counts. Empty: all of them.
    filters: Vec<String>,
    pub(crate) list: bool,
    numbers: BTreeMap<String, u64>,
    fractions: BTreeMap<String, f64>,
    texts: BTreeMap<String, String>,
    flags: Vec<String>,
}

impl Arguments {
    /// Parses the command line. With `--proof` an unknown word is an error. Without it our own options are an error,
    /// because they belong to no proof.
    pub(crate) fn parse(words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut parsed = Self::default();
        let (mut ours, mut unknown) = (None, None);
        let mut words = words;
        while let Some(word) = words.next() {
            let Some(option) = word.strip_prefix("--") else {
                if word.starts_with('-') {
                    unknown.get_or_insert(word);
                } else {
                    parsed.filters.push(word);
                }
                continue;
            };
            let (name, attached) = match option.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (option, None),
            };
            if name == "proof" {
                parsed.proof = Some(attached.or_else(|| words.next()).ok_or("--proof needs a name")?);
            } else if parsed.take(name, attached.as_ref(), &mut words)? {
                ours.get_or_insert(word);
            } else if name == "list" {
                parsed.list = true;
            } else if FOREIGN.contains(&name) {
                if attached.is_none() {
                    words.next();
                }
            } else if !FOREIGN_FLAGS.contains(&name) {
                unknown.get_or_insert(word);
            }
        }
        match (&parsed.proof, ours, unknown.or_else(|| parsed.filters.first().cloned())) {
            (Some(_), _, Some(unknown)) => Err(format!("{unknown} is no option of a proof")),
            (None, Some(option), _) => {
                Err(format!("{option} is an option of a proof: --proof NAME {option}"))
            }
            _ => Ok(parsed),
        }
    }

    /// Takes an option of ours. Returns true if it is one.
    fn take(
        &mut self,
        name: &str,
        attached: Option<&String>,
        words: &mut impl Iterator<Item = String>,
    ) -> Result<bool, String> {
        let mut value = |what: &str| {
            attached.cloned().or_else(|| words.next()).ok_or_else(|| format!("--{name} needs a {what}"))
        };
        let wrong = |value: &str| format!("--{name}: {value:?} is no number");
        if NUMBERS.contains(&name) {
            let value = value("number")?;
            match value.parse() {
                Ok(number) => drop(self.numbers.insert(name.to_owned(), number)),
                Err(_) if TEXTS.contains(&name) => drop(self.texts.insert(name.to_owned(), value)),
                Err(_) => return Err(wrong(&value)),
            }
        } else if FRACTIONS.contains(&name) {
            let value = value("number")?;
            self.fractions.insert(name.to_owned(), value.parse().map_err(|_| wrong(&value))?);
        } else if TEXTS.contains(&name) {
            self.texts.insert(name.to_owned(), value("text")?);
        } else if FLAGS.contains(&name) {
            self.flags.push(name.to_owned());
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// True if the proof `name` is to run with small counts.
    pub(crate) fn is_wanted(&self, name: &str) -> bool {
        self.filters.is_empty() || self.filters.iter().any(|filter| name.contains(filter.as_str()))
    }

    pub(crate) fn number(&self, name: &str, default: u64) -> u64 {
        self.numbers.get(name).copied().unwrap_or(default)
    }

    /// Returns the number of an option, if it was given.
    #[cfg(feature = "failpoints")]
    pub(crate) fn given(&self, name: &str) -> Option<u64> {
        self.numbers.get(name).copied()
    }

    pub(crate) fn fraction(&self, name: &str, default: f64) -> f64 {
        self.fractions.get(name).copied().unwrap_or(default)
    }

    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.texts.get(name).map(String::as_str)
    }

    pub(crate) fn flag(&self, name: &str) -> bool {
        self.flags.iter().any(|flag| flag == name)
    }

    pub(crate) fn with_flag(&self, name: &str) -> Self {
        let mut with = self.clone();
        with.flags = vec![name.to_owned()];
        with
    }

    pub(crate) fn with_text(&self, name: &str, text: &str) -> Self {
        let mut with = self.clone();
        with.texts.insert(name.to_owned(), text.to_owned());
        with
    }

    /// True if bounds on time are checked. They hold only for an idle machine and a release build. With `--untimed` and
    /// in small proofs the times are printed and not checked.
    pub(crate) fn judges_time(&self, small: bool) -> bool {
        !small && !cfg!(debug_assertions) && !self.flag("untimed")
    }

    /// Returns the given seed, or a new one.
    pub(crate) fn seed(&self) -> u64 {
        self.numbers
            .get("seed")
            .copied()
            .unwrap_or_else(|| u64::from(std::process::id()) << 16 ^ crate::random::fresh())
    }
}
