//! `COMMAND [--option [VALUE]]…`; what a test runner adds (`--test-threads 4`, `--nocapture`) is taken and ignored.

use std::collections::BTreeMap;

/// Options of ours that take a number.
const NUMBERS: &[&str] = &[
    "points",
    "ids",
    "jobs",
    "concurrency",
    "seed",
    "parallel",
    "stall",
    "rounds",
    "every",
    "seconds",
    "cases",
    "trees",
    "cuts",
];
/// Options of ours that take a number with a fraction.
const FRACTIONS: &[&str] = &["scale", "minutes"];
/// Options of ours that take a text.
const TEXTS: &[&str] = &["only", "grace", "cgroup"];
/// Flags of ours.
const FLAGS: &[&str] = &["keeper", "both", "run", "all", "syscalls"];
/// Options of test runners that take a value.
const FOREIGN: &[&str] = &["test-threads", "skip", "format", "color", "logfile", "shuffle-seed", "Z"];

#[derive(Clone, Default)]
pub(crate) struct Arguments {
    pub(crate) command: Option<String>,
    pub(crate) list: bool,
    numbers: BTreeMap<String, u64>,
    fractions: BTreeMap<String, f64>,
    texts: BTreeMap<String, String>,
    flags: Vec<String>,
}

impl Arguments {
    pub(crate) fn parse(words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut parsed = Self::default();
        let mut words = words;
        while let Some(word) = words.next() {
            let Some(option) = word.strip_prefix("--") else {
                if !word.starts_with('-') && parsed.command.is_none() {
                    parsed.command = Some(word);
                }
                continue;
            };
            let (name, attached) = match option.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (option, None),
            };
            if NUMBERS.contains(&name) {
                let value = attached.or_else(|| words.next()).ok_or(format!("--{name} needs a number"))?;
                let number = value.parse().map_err(|_| format!("--{name}: {value:?} is no number"))?;
                parsed.numbers.insert(name.to_owned(), number);
            } else if FRACTIONS.contains(&name) {
                let value = attached.or_else(|| words.next()).ok_or(format!("--{name} needs a number"))?;
                let number = value.parse().map_err(|_| format!("--{name}: {value:?} is no number"))?;
                parsed.fractions.insert(name.to_owned(), number);
            } else if TEXTS.contains(&name) {
                let value = attached.or_else(|| words.next()).ok_or(format!("--{name} needs a text"))?;
                parsed.texts.insert(name.to_owned(), value);
            } else if FLAGS.contains(&name) {
                parsed.flags.push(name.to_owned());
            } else if name == "list" {
                parsed.list = true;
            } else if FOREIGN.contains(&name) && attached.is_none() {
                words.next();
            }
        }
        Ok(parsed)
    }

    pub(crate) fn number(&self, name: &str, default: u64) -> u64 {
        self.numbers.get(name).copied().unwrap_or(default)
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

    /// The given seed, or a new one.
    pub(crate) fn seed(&self) -> u64 {
        self.numbers
            .get("seed")
            .copied()
            .unwrap_or_else(|| u64::from(std::process::id()) << 16 ^ crate::random::fresh())
    }
}
