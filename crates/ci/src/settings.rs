//! Settings that a job has in its variables (ci.md §3.2). A value that is not valid is the default, with a warning.

use std::time::Duration;

use step_runner_model::text::quote;

use crate::duration;

/// Limit of `after_script` without a setting, as in GitLab Runner.
const AFTER_SCRIPT_TIMEOUT: Duration = Duration::from_mins(5);

/// Most attempts of a stage.
const ATTEMPTS: u8 = 10;

/// How sources come to the builds directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// A new clone.
    Clone,
    /// A fetch into what is there.
    Fetch,
    /// What is there, as it is.
    None,
    /// An empty directory.
    Empty,
}

impl Strategy {
    /// Returns the word that the variable has.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Clone => "clone",
            Self::Fetch => "fetch",
            Self::None => "none",
            Self::Empty => "empty",
        }
    }
}

/// Settings of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a variable")]
pub struct Settings {
    /// `GIT_STRATEGY`; `None` without one.
    pub strategy: Option<Strategy>,
    /// `GIT_CHECKOUT`.
    pub checkout: bool,
    /// `GET_SOURCES_ATTEMPTS`.
    pub get_sources_attempts: u8,
    /// `RESTORE_CACHE_ATTEMPTS`.
    pub restore_cache_attempts: u8,
    /// `ARTIFACT_DOWNLOAD_ATTEMPTS`.
    pub artifact_download_attempts: u8,
    /// `CI_DEBUG_TRACE`.
    pub debug_trace: bool,
    /// `FF_ENABLE_BASH_EXIT_CODE_CHECK`: the status is tested after each command, whatever errexit lets pass.
    pub checks_exit_codes: bool,
    /// `RUNNER_SCRIPT_TIMEOUT`.
    pub script_timeout: Option<Duration>,
    /// `RUNNER_AFTER_SCRIPT_TIMEOUT`.
    pub after_script_timeout: Duration,
    /// `AFTER_SCRIPT_IGNORE_ERRORS`.
    pub ignore_after_script_errors: bool,
    /// `CACHE_FALLBACK_KEY`.
    pub cache_fallback_key: Option<String>,
    /// Values that are not valid.
    pub warnings: Vec<String>,
}

impl Settings {
    /// Reads the settings. `lookup` returns the value of a variable that is set.
    pub fn read(lookup: &dyn Fn(&str) -> Option<String>) -> Self {
        let mut reader = Reader { lookup, warnings: Vec::new() };
        let strategy = reader.value("GIT_STRATEGY", "one of clone, fetch, none, empty", |word| match word {
            "clone" => Some(Strategy::Clone),
            "fetch" => Some(Strategy::Fetch),
            "none" => Some(Strategy::None),
            "empty" => Some(Strategy::Empty),
            _ => None,
        });
        Self {
            strategy,
            checkout: reader.boolean("GIT_CHECKOUT", true),
            get_sources_attempts: reader.attempts("GET_SOURCES_ATTEMPTS"),
            restore_cache_attempts: reader.attempts("RESTORE_CACHE_ATTEMPTS"),
            artifact_download_attempts: reader.attempts("ARTIFACT_DOWNLOAD_ATTEMPTS"),
            debug_trace: reader.boolean("CI_DEBUG_TRACE", false),
            checks_exit_codes: reader.boolean("FF_ENABLE_BASH_EXIT_CODE_CHECK", false),
            script_timeout: reader.duration("RUNNER_SCRIPT_TIMEOUT"),
            after_script_timeout: reader
                .duration("RUNNER_AFTER_SCRIPT_TIMEOUT")
                .unwrap_or(AFTER_SCRIPT_TIMEOUT),
            ignore_after_script_errors: reader.boolean("AFTER_SCRIPT_IGNORE_ERRORS", true),
            cache_fallback_key: lookup("CACHE_FALLBACK_KEY").filter(|key| !key.is_empty()),
            warnings: reader.warnings,
        }
    }
}

struct Reader<'r> {
    lookup: &'r dyn Fn(&str) -> Option<String>,
    warnings: Vec<String>,
}

impl Reader<'_> {
    fn value<T>(&mut self, name: &str, wanted: &str, parse: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        let value = (self.lookup)(name).filter(|value| !value.is_empty())?;
        let parsed = parse(&value);
        if parsed.is_none() {
            self.warnings.push(format!(
                "the variable {name} is \"{}\", which is not {wanted}: the default is used",
                quote(&value)
            ));
        }
        parsed
    }

    fn boolean(&mut self, name: &str, default: bool) -> bool {
        let parsed = self.value(name, "true or false", |word| match word {
            "true" | "TRUE" | "True" | "t" | "1" => Some(true),
            "false" | "FALSE" | "False" | "f" | "0" => Some(false),
            _ => None,
        });
        parsed.unwrap_or(default)
    }

    fn attempts(&mut self, name: &str) -> u8 {
        let parse = |text: &str| text.parse().ok().filter(|number| (1..=ATTEMPTS).contains(number));
        self.value(name, "a number from 1 to 10", parse).unwrap_or(1)
    }

    fn duration(&mut self, name: &str) -> Option<Duration> {
        self.value(name, "a duration", duration::parse)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_are_not_valid_are_the_default_with_a_warning() {
        let settings = Settings::read(&|name| {
            let value = match name {
                "GET_SOURCES_ATTEMPTS" => "3",
                "RESTORE_CACHE_ATTEMPTS" => "11",
                "GIT_STRATEGY" => "fetch",
                "CI_DEBUG_TRACE" => "true",
                "RUNNER_AFTER_SCRIPT_TIMEOUT" => "soon",
                "GIT_CHECKOUT" => "false",
                _ => return None,
            };
            Some(value.to_owned())
        });
        assert_eq!((settings.get_sources_attempts, settings.restore_cache_attempts), (3, 1));
        assert_eq!((settings.strategy, settings.checkout), (Some(Strategy::Fetch), false));
        assert_eq!(settings.after_script_timeout, AFTER_SCRIPT_TIMEOUT);
        assert!(settings.debug_trace && settings.ignore_after_script_errors);
        assert_eq!(settings.warnings.len(), 2, "{:?}", settings.warnings);
    }

    fn one(name: &str, value: &str) -> Settings {
        Settings::read(&|asked| (asked == name).then(|| value.to_owned()))
    }

    #[test]
    fn each_word_of_a_strategy_means_it_and_is_said_back() {
        for strategy in [Strategy::Clone, Strategy::Fetch, Strategy::None, Strategy::Empty] {
            let settings = one("GIT_STRATEGY", strategy.word());
            assert_eq!((settings.strategy, settings.warnings.len()), (Some(strategy), 0));
        }
        assert_eq!(one("GIT_STRATEGY", "pull").warnings.len(), 1);
    }

    #[test]
    fn each_setting_is_read_and_an_empty_one_is_absent() {
        let empty = Settings::read(&|_| Some(String::new()));
        assert_eq!(empty, Settings::read(&|_| None));
        assert_eq!((empty.strategy, empty.checkout, empty.debug_trace), (None, true, false));
        assert_eq!((empty.script_timeout, empty.after_script_timeout), (None, AFTER_SCRIPT_TIMEOUT));
        assert_eq!((empty.cache_fallback_key, empty.ignore_after_script_errors), (None, true));
        for word in ["true", "TRUE", "True", "t", "1"] {
            assert!(one("CI_DEBUG_TRACE", word).debug_trace, "{word}");
        }
        for word in ["false", "FALSE", "False", "f", "0"] {
            assert!(!one("GIT_CHECKOUT", word).checkout, "{word}");
            assert!(!one("AFTER_SCRIPT_IGNORE_ERRORS", word).ignore_after_script_errors, "{word}");
        }
        for (text, attempts) in [("0", 1), ("1", 1), ("2", 2), ("10", 10), ("11", 1), ("300", 1), ("x", 1)] {
            assert_eq!(one("GET_SOURCES_ATTEMPTS", text).get_sources_attempts, attempts, "{text}");
            assert_eq!(one("RESTORE_CACHE_ATTEMPTS", text).restore_cache_attempts, attempts, "{text}");
            assert_eq!(
                one("ARTIFACT_DOWNLOAD_ATTEMPTS", text).artifact_download_attempts,
                attempts,
                "{text}"
            );
        }
        let minute = Duration::from_mins(1);
        assert_eq!(one("RUNNER_SCRIPT_TIMEOUT", "1m").script_timeout, Some(minute));
        assert_eq!(one("RUNNER_AFTER_SCRIPT_TIMEOUT", "1m").after_script_timeout, minute);
        assert_eq!(one("CACHE_FALLBACK_KEY", "k").cache_fallback_key.as_deref(), Some("k"));
    }
}
