//! How a line of the table becomes a field, an option, an environment variable and a key of the file.

use super::{Config, Kind};

/// A setting as the command line, the file and `--print-config` see it.
pub struct Setting {
    /// Key of the settings file and field of [`Config`].
    pub name: &'static str,
    /// One sentence, with its source.
    pub doc: &'static str,
    /// What a value looks like.
    pub expected: &'static str,
    /// Further rule for values; empty if there is none.
    pub rule: &'static str,
    /// TOML types a value may have.
    pub kinds: &'static [Kind],
    pub(super) set: fn(&mut Config, &[String]) -> bool,
    pub(super) show: fn(&Config) -> Option<String>,
    /// Takes the value over from another configuration.
    pub(super) take: fn(&mut Config, &Config),
}

impl Setting {
    /// Name of the option: `max-jobs`.
    pub fn option(&self) -> String {
        self.name.replace('_', "-")
    }

    /// Name of the environment variable: `STEP_RUNNER_MAX_JOBS`.
    pub fn variable(&self) -> String {
        format!("STEP_RUNNER_{}", self.name.to_ascii_uppercase())
    }

    /// The option may be repeated.
    pub fn is_list(&self) -> bool {
        self.kinds.contains(&Kind::Array)
    }

    /// The option may stand without a value, meaning `true`.
    pub fn is_switch(&self) -> bool {
        self.kinds.contains(&Kind::Boolean)
    }

    /// The value in `config`, as the settings file would have it; `None` if it is not set.
    pub fn show(&self, config: &Config) -> Option<String> {
        (self.show)(config)
    }

    /// What `--help` says of it: the sentence without its source, which is for readers of the code, what a value looks
    /// like, and the default if there is one.
    pub fn help(&self) -> String {
        let sentence = self.doc.trim().trim_end_matches('.');
        let text = sentence.rsplit_once(" (").map_or(sentence, |(text, _)| text);
        let default = self.show(&Config::default()).filter(|default| default != "[]");
        let default = default.map(|default| format!(" [default: {}]", default.trim_matches('"')));
        let default = default.unwrap_or_default();
        format!("{text} [{}]{default} [env: {}]", self.expected, self.variable())
    }

    /// What a value must be, in one phrase for messages.
    pub(super) fn demand(&self) -> String {
        if self.rule.is_empty() {
            self.expected.to_owned()
        } else {
            format!("{}, {}", self.expected, self.rule)
        }
    }
}

macro_rules! settings {
    ($(
        $(#[doc = $doc:literal])+
        $name:ident: $type:ty = $default:expr $(, $rule:literal if $check:expr)?;
    )+) => {
        /// All settings in force.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Config {
            $( $(#[doc = $doc])+ pub $name: $type, )+
        }

        impl Default for Config {
            fn default() -> Self {
                Self { $( $name: $default, )+ }
            }
        }

        /// The table: one entry a setting, in the order of [`Config`]'s fields.
        pub const SETTINGS: &[Setting] = &[ $( Setting {
            name: stringify!($name),
            doc: concat!($($doc),+),
            expected: <$type as Value>::EXPECTED,
            rule: concat!($($rule)?),
            kinds: <$type as Value>::KINDS,
            set: |config, items| {
                let passes: fn(&$type) -> bool = settings!(@check $($check)?);
                match <$type as Value>::parse(items) {
                    Some(value) if passes(&value) => {
                        config.$name = value;
                        true
                    }
                    _ => false,
                }
            },
            show: |config| Value::show(&config.$name),
            take: |config, other| config.$name = other.$name.clone(),
        }, )+ ];
    };
    (@check $check:expr) => { $check };
    (@check) => { |_| true };
}
