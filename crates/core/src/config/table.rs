//! Turns a row of the table of settings into a field, an option, an environment variable and a key of the file.

use super::{Config, TomlType};

/// A setting as the command line, the file and `--print-config` see it.
pub struct Setting {
    /// Key of the settings file and field of [`Config`].
    pub name: &'static str,
    /// One sentence, with a reference to the specification in parentheses.
    pub(crate) doc: &'static str,
    /// Form of a value.
    pub(crate) expected: &'static str,
    /// Further rule for values, or empty.
    pub(crate) rule: &'static str,
    /// TOML types a value may have.
    pub(crate) kinds: &'static [TomlType],
    pub(super) set: fn(&mut Config, &[String]) -> bool,
    pub(super) show: fn(&Config) -> Option<String>,
    /// Copies the value from another configuration.
    pub(super) take: fn(&mut Config, &Config),
}

impl Setting {
    /// Returns the name of the option: `max-jobs`.
    pub fn option(&self) -> String {
        self.name.replace('_', "-")
    }

    /// Returns the name of the environment variable: `STEP_RUNNER_MAX_JOBS`.
    pub(crate) fn variable(&self) -> String {
        format!("STEP_RUNNER_{}", self.name.to_ascii_uppercase())
    }

    /// True if the option may be repeated.
    pub fn is_list(&self) -> bool {
        self.kinds.contains(&TomlType::Array)
    }

    /// True if the option may stand without a value, meaning `true`.
    pub fn is_switch(&self) -> bool {
        self.kinds.contains(&TomlType::Boolean)
    }

    /// Returns the value in `config` as written in a settings file, or `None` if it is not set.
    pub(crate) fn show(&self, config: &Config) -> Option<String> {
        (self.show)(config)
    }

    /// Returns the text for `--help`: the sentence without its reference, which is for readers of the code, then the
    /// form of a value and the default, if any.
    pub fn help(&self) -> String {
        let sentence = self.doc.trim().trim_end_matches('.');
        let text = sentence.rsplit_once(" (").map_or(sentence, |(text, _)| text);
        let default = self.show(&Config::default()).filter(|default| default != "[]");
        let default = default.map(|default| format!(" [default: {}]", default.trim_matches('"')));
        let default = default.unwrap_or_default();
        format!("{text} [{}]{default} [env: {}]", self.expected, self.variable())
    }

    /// Returns the form and the rule of a value, in one phrase for messages.
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

        /// The table: one entry per setting, in the order of [`Config`]'s fields.
        pub const SETTINGS: &[Setting] = &[ $( Setting {
            name: stringify!($name),
            doc: concat!($($doc),+),
            expected: <$type as SettingValue>::EXPECTED,
            rule: concat!($($rule)?),
            kinds: <$type as SettingValue>::KINDS,
            set: |config, items| {
                let passes: fn(&$type) -> bool = settings!(@check $($check)?);
                match <$type as SettingValue>::parse(items) {
                    Some(value) if passes(&value) => {
                        config.$name = value;
                        true
                    }
                    _ => false,
                }
            },
            show: |config| SettingValue::show(&config.$name),
            take: |config, other| config.$name = other.$name.clone(),
        }, )+ ];
    };
    (@check $check:expr) => { $check };
    (@check) => { |_| true };
}
