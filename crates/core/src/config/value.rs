//! Types of settings: parsing and printing.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::MAX_DURATION;
use crate::variables::EnvBase;

/// Types of TOML values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TomlType {
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

/// A type that a setting can have.
pub trait SettingValue: Sized {
    /// Form of a value; follows "expected ".
    const EXPECTED: &'static str;
    /// TOML types that can hold a value.
    const KINDS: &'static [TomlType];

    /// Parses a value. `items` are all values given in one place. The last one counts, except for lists.
    fn parse(items: &[String]) -> Option<Self>;

    /// Prints the value as TOML; `None` if it is not set.
    fn show(&self) -> Option<String>;
}

/// A size in bytes, written `64MiB`, `1GB` or `4096`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

/// Suffixes of sizes and their factors. A size is printed with the largest binary one that divides it.
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
    /// Parses a size such as `64MiB`. A number without a suffix counts bytes.
    pub(crate) fn from_text(text: &str) -> Option<Self> {
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

impl SettingValue for Bytes {
    const EXPECTED: &'static str = "a size such as `64MiB`";
    const KINDS: &'static [TomlType] = &[TomlType::String, TomlType::Integer];

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

impl SettingValue for Limit {
    const EXPECTED: &'static str = "a whole number or `none`";
    const KINDS: &'static [TomlType] = &[TomlType::String, TomlType::Integer];

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

impl SettingValue for Mode {
    const EXPECTED: &'static str = "octal permissions such as `0600`";
    const KINDS: &'static [TomlType] = &[TomlType::String, TomlType::Integer];

    fn parse(items: &[String]) -> Option<Self> {
        let text = items.last()?;
        u32::from_str_radix(text.strip_prefix("0o").unwrap_or(text), 8).ok().map(Self)
    }

    fn show(&self) -> Option<String> {
        Some(format!("\"{:04o}\"", self.0))
    }
}

/// Implements [`SettingValue`] for types that TOML writes as Rust does.
macro_rules! written_alike {
    ($( $type:ty: $expected:literal, [$( $kind:ident ),+]; )+) => { $(
        impl SettingValue for $type {
            const EXPECTED: &'static str = $expected;
            const KINDS: &'static [TomlType] = &[$( TomlType::$kind ),+];

            fn parse(items: &[String]) -> Option<Self> {
                items.last()?.parse().ok()
            }

            fn show(&self) -> Option<String> {
                Some(self.to_string())
            }
        }
    )+ };
}

written_alike! {
    u64: "a whole number", [Integer];
    f64: "a number such as `1.5`", [Float, Integer];
    bool: "`true` or `false`", [Boolean];
}

impl SettingValue for Duration {
    const EXPECTED: &'static str = "a time such as `90s` or `1h 30m`, at most 100 years";
    const KINDS: &'static [TomlType] = &[TomlType::String, TomlType::Integer];

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

impl SettingValue for Option<PathBuf> {
    const EXPECTED: &'static str = "a path";
    const KINDS: &'static [TomlType] = &[TomlType::String];

    fn parse(items: &[String]) -> Option<Self> {
        let text = items.last()?;
        (!text.is_empty() && !text.contains('\0')).then(|| Some(PathBuf::from(text)))
    }

    fn show(&self) -> Option<String> {
        self.as_ref().map(|path| quoted(path.display()))
    }
}

impl SettingValue for Vec<String> {
    const EXPECTED: &'static str = "a list of names";
    const KINDS: &'static [TomlType] = &[TomlType::Array];

    fn parse(items: &[String]) -> Option<Self> {
        let names: Self = list(items).map(str::to_owned).collect();
        names.iter().all(|name| !name.contains('\0')).then_some(names)
    }

    fn show(&self) -> Option<String> {
        Some(format!("[{}]", self.iter().map(quoted).collect::<Vec<_>>().join(", ")))
    }
}

impl SettingValue for Vec<u32> {
    const EXPECTED: &'static str = "a list of numeric user ids";
    const KINDS: &'static [TomlType] = &[TomlType::Array];

    fn parse(items: &[String]) -> Option<Self> {
        list(items).map(|item| item.parse().ok()).collect()
    }

    fn show(&self) -> Option<String> {
        Some(format!("[{}]", self.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")))
    }
}

/// Yields the elements of a list. Options and environment variables can put several into one item, separated by commas.
fn list(items: &[String]) -> impl Iterator<Item = &str> {
    items.iter().flat_map(|item| item.split(',')).map(str::trim).filter(|item| !item.is_empty())
}

fn quoted(text: impl fmt::Display) -> String {
    toml::Value::String(text.to_string()).to_string()
}

/// Declares enums whose values are words.
macro_rules! words {
    ($( $(#[$meta:meta])* $name:ident { $( $(#[$variant_meta:meta])* $variant:ident = $word:literal ),+ $(,)? } )+) => { $(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $( $(#[$variant_meta])* $variant, )+ }
        words!(@value $name { $( $variant = $word ),+ });
    )+ };
    (@value $name:ident { $first:ident = $first_word:literal $(, $variant:ident = $word:literal )* }) => {
        impl $name {
            /// Returns the word for the value.
            pub const fn word(self) -> &'static str {
                match self { Self::$first => $first_word, $( Self::$variant => $word, )* }
            }
        }

        impl SettingValue for $name {
            const EXPECTED: &'static str = concat!("`", $first_word, "`" $(, " or `", $word, "`" )*);
            const KINDS: &'static [TomlType] = &[TomlType::String];

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
    /// Failures that state on disk survives.
    Durability {
        /// Death of any process.
        Crash = "crash",
        /// Also a power cut.
        Power = "power",
    }
    /// Rule that picks the next waiting job.
    QueuePolicy {
        /// The oldest one.
        Fifo = "fifo",
        /// A job of the project with the fewest running jobs.
        Fair = "fair",
    }
    /// Callers that may read the definitions of the services.
    Reflection {
        /// The daemon's own user and root.
        Owner = "owner",
        /// Everyone who may call.
        On = "on",
        /// Nobody.
        Off = "off",
    }
    /// Fate of processes that a step leaves running.
    Leftover {
        /// They live until the job ends.
        Keep = "keep",
        /// They end with the step.
        Kill = "kill",
    }
    /// Effect on jobs when the daemon is stopped.
    OnStop {
        /// They are cancelled.
        Cancel = "cancel",
        /// The daemon waits for them to end first.
        Drain = "drain",
    }
    /// Use of cgroups.
    CgroupUse {
        /// Used if they are writable.
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
    /// Format of jobs' logs in the compatible service.
    JobLogFormat {
        /// Without headers for jobs of a GitLab Runner that adds its own, otherwise with headers.
        Auto = "auto",
        /// With headers.
        Framed = "framed",
        /// Without headers.
        Plain = "plain",
    }
    /// Format of the daemon's own log.
    LogFormat {
        /// Lines for people.
        Text = "text",
        /// One JSON object per line.
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

impl SettingValue for EnvBase {
    const EXPECTED: &'static str = "`list` or `all`";
    const KINDS: &'static [TomlType] = &[TomlType::String];

    fn parse(items: &[String]) -> Option<Self> {
        [Self::List, Self::All].into_iter().find(|base| items.last().is_some_and(|item| item == base.word()))
    }

    fn show(&self) -> Option<String> {
        Some(quoted(self.word()))
    }
}

impl SettingValue for Option<OperatorLevel> {
    const EXPECTED: &'static str = OperatorLevel::EXPECTED;
    const KINDS: &'static [TomlType] = OperatorLevel::KINDS;

    fn parse(items: &[String]) -> Option<Self> {
        OperatorLevel::parse(items).map(Some)
    }

    fn show(&self) -> Option<String> {
        self.as_ref().and_then(SettingValue::show)
    }
}
