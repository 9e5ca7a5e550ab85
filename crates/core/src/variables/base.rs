//! The part of the daemon's own environment that steps and lookups see (variables.md §7).

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use flate2::read::MultiGzDecoder;
use indexmap::{IndexMap, IndexSet};

/// Setting `env_base`: the part of the daemon's environment passed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EnvBase {
    /// Only [`LISTED`] names and those of `env_pass`. For hosts on which the daemon was installed by hand.
    List,
    /// Everything. The daemon runs inside the job's environment, and the job needs the variables of its image.
    #[default]
    All,
}

/// Names passed on by [`EnvBase::List`]: the documented list of a step runner installed by hand, and `HOME`, without
/// which too many programs fail.
const LISTED: [&str; 18] = [
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "all_proxy",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "LOGNAME",
    "USER",
    "PATH",
    "SHELL",
    "TERM",
    "TMPDIR",
    "TZ",
    "HOME",
];

const OWN_PREFIX: &[u8] = b"STEP_RUNNER_";

/// Arguments that a runner passes in the environment (connectors.md §2.4).
pub const RECOVERY_VARIABLE: &str = "_GITLAB_RUNNER_HELPER_NATIVE_STEPS_ARGV";

/// Variables of a service manager for the daemon alone. A step that saw them could answer in the daemon's name.
const OF_THE_MANAGER: [&str; 6] =
    ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"];

/// Variable that lists the job variables a runner put into the container's environment.
const JOB_VAR_NAMES: &str = "RUNNER_JOB_VAR_NAMES";

/// Most unpacked bytes of the list in [`JOB_VAR_NAMES`].
const MAX_JOB_VAR_NAMES: u64 = 1 << 20;

/// Padding is optional, because some writers of the list omit it.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The base environment: layer 1 of language.md §13 and the last resort of a lookup (variables.md §4). Values may be
/// secrets of the operator and need not be UTF-8.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Base(IndexMap<OsString, OsString>);

/// Warning for the operator's log: the list of names to remove was ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BaseWarning {
    /// It is not base64 of gzip of text.
    #[error("RUNNER_JOB_VAR_NAMES is not base64 of gzip of names; it is ignored")]
    Unreadable,
    /// It unpacks to more than 1 MiB.
    #[error("RUNNER_JOB_VAR_NAMES is longer than {MAX_JOB_VAR_NAMES} bytes unpacked; it is ignored")]
    TooLong,
}

impl Base {
    /// Filters `entries`, the daemon's environment. Of equal names the first one counts, as for `getenv`.
    pub fn new(
        entries: impl IntoIterator<Item = (OsString, OsString)>,
        env_base: EnvBase,
        env_pass: &[String],
    ) -> (Self, Option<BaseWarning>) {
        let mut kept: IndexMap<OsString, OsString> = IndexMap::new();
        for (name, value) in entries {
            kept.entry(name).or_insert(value);
        }
        let (hidden, warning) =
            match kept.get(OsStr::new(JOB_VAR_NAMES)).map(|packed| unpack(packed.as_bytes())) {
                None => (IndexSet::new(), None),
                Some(Ok(names)) => (names, None),
                Some(Err(warning)) => (IndexSet::new(), Some(warning)),
            };
        kept.retain(|name, _| {
            let listed = || {
                LISTED.iter().any(|n| name == n) || env_pass.iter().any(|n| name.as_os_str() == n.as_str())
            };
            !is_own(name) && !hidden.contains(name.as_bytes()) && (env_base == EnvBase::All || listed())
        });
        (Self(kept), warning)
    }

    /// Returns the value of `name` for a lookup. Replaces bytes that are not UTF-8, because variables are text.
    pub fn get(&self, name: &str) -> Option<Cow<'_, str>> {
        self.0.get(OsStr::new(name)).map(|value| value.to_string_lossy())
    }

    /// Returns all entries as passed on to steps.
    pub fn iter(&self) -> impl Iterator<Item = (&OsStr, &OsStr)> {
        self.0.iter().map(|(name, value)| (name.as_os_str(), value.as_os_str()))
    }
}

impl std::fmt::Debug for Base {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Base([{} entries])", self.0.len())
    }
}

fn is_own(name: &OsStr) -> bool {
    name.as_bytes().starts_with(OWN_PREFIX)
        || name == RECOVERY_VARIABLE
        || name == JOB_VAR_NAMES
        || OF_THE_MANAGER.iter().any(|of_the_manager| name == *of_the_manager)
}

/// Unpacks the names: base64 of gzip of names joined by `;`.
fn unpack(packed: &[u8]) -> Result<IndexSet<Vec<u8>>, BaseWarning> {
    if packed.trim_ascii().is_empty() {
        return Ok(IndexSet::new());
    }
    let gzip = BASE64.decode(packed.trim_ascii()).map_err(|_| BaseWarning::Unreadable)?;
    let mut names = Vec::new();
    MultiGzDecoder::new(gzip.as_slice())
        .take(MAX_JOB_VAR_NAMES + 1)
        .read_to_end(&mut names)
        .map_err(|_| BaseWarning::Unreadable)?;
    if names.len() as u64 > MAX_JOB_VAR_NAMES {
        return Err(BaseWarning::TooLong);
    }
    Ok(names.split(|byte| *byte == b';').filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect())
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::ffi::OsStringExt;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn entries(list: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
        list.iter().map(|(name, value)| (name.into(), value.into())).collect()
    }

    fn names(base: &Base) -> Vec<&str> {
        base.iter().map(|(name, _)| name.to_str().unwrap()).collect()
    }

    fn packed(text: &[u8]) -> String {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(text).unwrap();
        BASE64.encode(gzip.finish().unwrap())
    }

    #[test]
    fn fault_71_list_passes_the_documented_names_home_and_those_asked_for() {
        let daemon = entries(&[
            ("PATH", "/bin"),
            ("AWS_SECRET", "x"),
            ("HOME", "/h"),
            ("JAVA_HOME", "/j"),
            ("all", ""),
        ]);
        let (base, _) = Base::new(daemon, EnvBase::List, &["JAVA_HOME".to_owned()]);
        assert_eq!(names(&base), ["PATH", "HOME", "JAVA_HOME"]);
    }

    #[test]
    fn fault_71_own_variables_never_get_through_even_if_asked_for() {
        let daemon = entries(&[("STEP_RUNNER_SOCKET", "s"), (RECOVERY_VARIABLE, "r"), ("A", "1")]);
        let (base, _) =
            Base::new(daemon, EnvBase::All, &["STEP_RUNNER_SOCKET".to_owned(), RECOVERY_VARIABLE.to_owned()]);
        assert_eq!(names(&base), ["A"]);
    }

    #[test]
    fn value_that_is_not_utf8_survives_for_steps() {
        let raw = OsString::from_vec(b"a\xff".to_vec());
        let (base, _) = Base::new([("A".into(), raw.clone())], EnvBase::All, &[]);
        assert_eq!(base.iter().next().unwrap().1, raw);
        assert_eq!(base.get("A").unwrap(), "a\u{fffd}");
    }

    #[test]
    fn fault_71_names_of_job_variables_are_taken_out_up_to_the_limit_and_not_beyond() {
        let max = MAX_JOB_VAR_NAMES as usize;
        for (length, warning) in [(max - 1, None), (max, None), (max + 1, Some(BaseWarning::TooLong))] {
            let mut text = b"A;".to_vec();
            text.resize(length, b'x');
            let daemon = entries(&[("A", "1"), (JOB_VAR_NAMES, &packed(&text))]);
            let (base, got) = Base::new(daemon, EnvBase::All, &[]);
            assert_eq!(got, warning, "{length}");
            assert_eq!(base.get("A").is_none(), warning.is_none(), "{length}");
        }
    }

    #[test]
    fn unreadable_names_are_ignored_with_a_warning() {
        for bad in ["%%%", "aGVsbG8=", "", "H4sIAAAAAAACA3MM"] {
            let (base, warning) = Base::new(entries(&[("A", "1"), (JOB_VAR_NAMES, bad)]), EnvBase::All, &[]);
            assert_eq!(names(&base), ["A"]);
            assert_eq!(warning.is_some(), !bad.is_empty(), "{bad}");
        }
    }
}
