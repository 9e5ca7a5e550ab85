//! Types of settings: how they are written and read.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::MAX_DURATION;
use crate::variables::EnvBase;

/// Types of a settings file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `"text"`.
    String,
    /// `1`.
    Integer,
    /// `1.5`.
    Float,
    /// `true`.
    Boolean,
    /// `[1, 2]`.
    Array,
}

/// A type a setting can have.
pub trait Value: Sized {
    /// What it looks like; follows "expected ".
    const EXPECTED: &'static str;
    /// TOML types that can hold it.
    const KINDS: &'static [Kind];

    /// Reads it. `items` are the values given in one place: for all types but lists the last one counts.
    fn parse(items: &[String]) -> Option<Self>;

    /// Writes it as TOML; `None` if it is not set.
    fn show(&self) -> Option<String>;
}

/// A size in bytes, written `64MiB`, `1GB` or `4096`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

/// Suffixes of sizes and their worth; the largest binary one that divides a size is used to print it.
const UNITS: [(&str, u64); 10] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("KB", 1_000),
    ("B", 1),
];

impl Bytes {
    /// Reads `64MiB`; a number alone is bytes.
    pub fn from_text(text: &str) -> Option<Self> {
        let (digits, unit) = UNITS
            .iter()
            .find_map(|(name, worth)| Some((text.strip_suffix(name)?, *worth)))
            .unwrap_or((text, 1));
        digits.trim_end().parse::<u64>().ok()?.checked_mul(unit).map(Self)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |(_, worth): &&(&str, u64)| self.0 > 0 && self.0.is_multiple_of(*worth);
        match UNITS.iter().take(4).find(fits) {
            Some((name, worth)) => write!(f, "{}{name}", self.0 / worth),
            None => write!(f, "{}", self.0),
        }
    }
}

impl Value for Bytes {
    const EXPECTED: &'static str = "a size such as `64MiB`";
    const KINDS: &'static [Kind] = &[Kind::String, Kind::Integer];

    fn parse(items: &[String]) -> Option<Self> {
        Self::from_text(items.last()?)
    }

    fn show(&self) -> Option<String> {
        Some(quoted(self))
    }
}

/// A number, or `none` for no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit(pub Option<u64>);

impl Value for Limit {
    const EXPECTED: &'static str = "a whole number or `none`";
    const KINDS: &'static [Kind] = &[Kind::String, Kind::Integer];

    fn parse(items: &[String]) -> Option<Self> {
        match items.last()?.as_str() {
            "none" => Some(Self(None)),
            text => text.parse().ok().map(|number| Self(Some(number))),
        }
    }

    fn show(&self) -> Option<String> {
        Some(self.0.map_or_else(|| quoted("none"), |number| number.to_string()))
    }
}

/// Permission bits, written octal: `0600`, `0o600` or `600`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode(pub u32);

impl Value for Mode {
    const EXPECTED: &'static str = "octal permissions such as `0600`";
    const KINDS: &'static [Kind] = &[Kind::String, Kind::Integer];

    fn parse(items: &[String]) -> Option<Self> {
        let text = items.last()?;
        u32::from_str_radix(text.strip_prefix("0o").unwrap_or(text), 8).ok().map(Self)
    }

    fn show(&self) -> Option<String> {
        Some(format!("\"{:04o}\"", self.0))
    }
}

impl Value for u64 {
    const EXPECTED: &'static str = "a whole number";
    const KINDS: &'static [Kind] = &[Kind::Integer];

    fn parse(items: &[String]) -> Option<Self> {
        items.last()?.parse().ok()
    }

    fn show(&self) -> Option<String> {
        Some(self.to_string())
    }
}

impl Value for f64 {
    const EXPECTED: &'static str = "a number such as `1.5`";
    const KINDS: &'static [Kind] = &[Kind::Float, Kind::Integer];

    fn parse(items: &[String]) -> Option<Self> {
        items.last()?.parse().ok()
    }

    fn show(&self) -> Option<String> {
        Some(self.to_string())
    }
}

impl Value for bool {
    const EXPECTED: &'static str = "`true` or `false`";
    const KINDS: &'static [Kind] = &[Kind::Boolean];

    fn parse(items: &[String]) -> Option<Self> {
        items.last()?.parse().ok()
    }

    fn show(&self) -> Option<String> {
        Some(self.to_string())
    }
}

impl Value for Duration {
    const EXPECTED: &'static str = "a time such as `90s` or `1h 30m`, at most 100 years";
    const KINDS: &'static [Kind] = &[Kind::String, Kind::Integer];

    fn parse(items: &[String]) -> Option<Self> {
        let text = items.last()?;
        if text == "0" {
            return Some(Self::ZERO);
        }
        humantime::parse_duration(text).ok().filter(|time| *time <= MAX_DURATION)
    }

    fn show(&self) -> Option<String> {
        Some(if self.is_zero() { "0".to_owned() } else { quoted(humantime::format_duration(*self)) })
    }
}

impl Value for Option<PathBuf> {
    const EXPECTED: &'static str = "a path";
    const KINDS: &'static [Kind] = &[Kind::String];

    fn parse(items: &[String]) -> Option<Self> {
        let text = items.last()?;
        (!text.is_empty() && !text.contains('\0')).then(|| Some(PathBuf::from(text)))
    }

    fn show(&self) -> Option<String> {
        self.as_ref().map(|path| quoted(path.display()))
    }
}

impl Value for Vec<String> {
    const EXPECTED: &'static str = "a list of names";
    const KINDS: &'static [Kind] = &[Kind::Array];

    fn parse(items: &[String]) -> Option<Self> {
        let names: Self = list(items).map(str::to_owned).collect();
        names.iter().all(|name| !name.contains('\0')).then_some(names)
    }

    fn show(&self) -> Option<String> {
        Some(format!("[{}]", self.iter().map(quoted).collect::<Vec<_>>().join(", ")))
    }
}

impl Value for Vec<u32> {
    const EXPECTED: &'static str = "a list of numeric user ids";
    const KINDS: &'static [Kind] = &[Kind::Array];

    fn parse(items: &[String]) -> Option<Self> {
        list(items).map(|item| item.parse().ok()).collect()
    }

    fn show(&self) -> Option<String> {
        Some(format!("[{}]", self.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")))
    }
}

/// Items, each of which may itself be a list with commas: the form of options and environment variables.
fn list(items: &[String]) -> impl Iterator<Item = &str> {
    items.iter().flat_map(|item| item.split(',')).map(str::trim).filter(|item| !item.is_empty())
}

/// Where metrics are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Metrics {
    /// On a loopback address.
    Tcp(SocketAddr),
    /// On a unix socket.
    Unix(PathBuf),
}

impl Value for Option<Metrics> {
    const EXPECTED: &'static str = "a loopback address such as `127.0.0.1:9100` or an absolute path";
    const KINDS: &'static [Kind] = &[Kind::String];

    fn parse(items: &[String]) -> Option<Self> {
        let text = items.last()?;
        if text.starts_with('/') {
            return Some(Some(Metrics::Unix(PathBuf::from(text))));
        }
        let address: SocketAddr = text.parse().ok()?;
        address.ip().is_loopback().then_some(Some(Metrics::Tcp(address)))
    }

    fn show(&self) -> Option<String> {
        match self.as_ref()? {
            Metrics::Tcp(address) => Some(quoted(address)),
            Metrics::Unix(path) => Some(quoted(path.display())),
        }
    }
}

/// `text` as a TOML string.
fn quoted(text: impl fmt::Display) -> String {
    toml::Value::String(text.to_string()).to_string()
}

/// Enums whose values are words.
macro_rules! words {
    ($( $(#[$meta:meta])* $name:ident { $( $(#[$variant_meta:meta])* $variant:ident = $word:literal ),+ $(,)? } )+) => { $(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $( $(#[$variant_meta])* $variant, )+ }
        words!(@value $name { $( $variant = $word ),+ });
    )+ };
    (@value $name:ident { $first:ident = $first_word:literal $(, $variant:ident = $word:literal )* }) => {
        impl $name {
            /// The word for it.
            pub const fn word(self) -> &'static str {
                match self { Self::$first => $first_word, $( Self::$variant => $word, )* }
            }
        }

        impl Value for $name {
            const EXPECTED: &'static str = concat!("`", $first_word, "`" $(, " or `", $word, "`" )*);
            const KINDS: &'static [Kind] = &[Kind::String];

            fn parse(items: &[String]) -> Option<Self> {
                match items.last()?.as_str() {
                    $first_word => Some(Self::$first),
                    $( $word => Some(Self::$variant), )*
                    _ => None,
                }
            }

            fn show(&self) -> Option<String> {
                Some(quoted(self.word()))
            }
        }
    };
}

words! {
    /// What state on disk survives.
    Durability {
        /// A kill of any process.
        Crash = "crash",
        /// A power cut too.
        Power = "power",
    }
    /// Which waiting job starts next.
    QueuePolicy {
        /// The one that came first.
        Fifo = "fifo",
        /// One of the project with the fewest running jobs.
        Fair = "fair",
    }
    /// What happens to processes a step leaves running.
    Leftover {
        /// They live to the end of the job.
        Keep = "keep",
        /// They end with the step.
        Kill = "kill",
    }
    /// What a stop of the daemon does to jobs.
    OnStop {
        /// They are cancelled.
        Cancel = "cancel",
        /// They may end by themselves first.
        Drain = "drain",
    }
    /// Use of cgroups.
    CgroupUse {
        /// Where they are writable.
        Auto = "auto",
        /// Required.
        On = "on",
        /// Never.
        Off = "off",
    }
    /// Level of the daemon's own log.
    OperatorLevel {
        /// `error`.
        Error = "error",
        /// `warn`.
        Warn = "warn",
        /// `info`.
        Info = "info",
        /// `debug`.
        Debug = "debug",
        /// `trace`.
        Trace = "trace",
    }
    /// Format of the daemon's own log.
    LogFormat {
        /// Lines for people.
        Text = "text",
        /// One JSON object a line.
        Json = "json",
    }
}

impl EnvBase {
    fn word(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::All => "all",
        }
    }
}

impl Value for EnvBase {
    const EXPECTED: &'static str = "`list` or `all`";
    const KINDS: &'static [Kind] = &[Kind::String];

    fn parse(items: &[String]) -> Option<Self> {
        [Self::List, Self::All].into_iter().find(|base| items.last().is_some_and(|item| item == base.word()))
    }

    fn show(&self) -> Option<String> {
        Some(quoted(self.word()))
    }
}

impl Value for Option<OperatorLevel> {
    const EXPECTED: &'static str = OperatorLevel::EXPECTED;
    const KINDS: &'static [Kind] = OperatorLevel::KINDS;

    fn parse(items: &[String]) -> Option<Self> {
        OperatorLevel::parse(items).map(Some)
    }

    fn show(&self) -> Option<String> {
        self.as_ref().and_then(Value::show)
    }
}
