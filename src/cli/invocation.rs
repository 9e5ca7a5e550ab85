//! Arguments of this process, as images and CI runners pass them (connectors.md §2, §2.4).

use std::ffi::{OsStr, OsString};
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::variables::RECOVERY_VARIABLE;

/// Names under which the program stands in for a CI runner's own program.
const STAND_INS: [&str; 2] = ["gitlab-runner-helper", "gitlab-runner"];

/// Returns the arguments to parse, the program's name first, or a stand-in's message for a command that is not ours.
pub(super) fn words(
    mut words: Vec<OsString>,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Vec<OsString>, String> {
    if words.len() < 2 {
        words.extend(variable(RECOVERY_VARIABLE).and_then(|text| recover(&text)).into_iter().flatten());
    }
    if words.first().is_some_and(|name| is_stand_in(name)) {
        match words.get(1).and_then(|word| word.to_str()) {
            Some("steps" | "--version" | "-V") | None => {}
            Some(other) => return Err(format!("Command {other} not found")),
        }
    }
    Ok(words)
}

/// True if `--version` is asked for its details: with `--verbose`, or by a CI runner, which reads them.
pub(super) fn wants_details() -> bool {
    let mut words = std::env::args_os();
    words.next().is_some_and(|name| is_stand_in(&name))
        || words.any(|word| word == "-v" || word == "--verbose")
}

fn is_stand_in(program: &OsStr) -> bool {
    let name = Path::new(program).file_name().and_then(OsStr::to_str);
    name.is_some_and(|name| STAND_INS.contains(&name))
}

/// Decodes the recovery variable. Undecodable text is ignored.
fn recover(text: &str) -> Option<Vec<OsString>> {
    let json = STANDARD.decode(text.trim()).ok()?;
    let words: Vec<String> = serde_json::from_slice(&json).ok()?;
    Some(words.into_iter().map(OsString::from).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(given: &[&str], recovery: Option<&str>) -> Result<Vec<OsString>, String> {
        words(given.iter().map(Into::into).collect(), |name| {
            assert_eq!(name, RECOVERY_VARIABLE);
            recovery.map(str::to_owned)
        })
    }

    #[test]
    fn dropped_arguments_are_recovered_only_if_there_are_none() {
        let recovery = STANDARD.encode(r#"["steps", "serve", "sh"]"#);
        let all = ["step-runner", "steps", "serve", "sh"];
        assert_eq!(parse(&["step-runner"], Some(&recovery)).unwrap(), all);
        assert_eq!(parse(&["step-runner", "status"], Some(&recovery)).unwrap(), ["step-runner", "status"]);
        for malformed in ["%", "e30=", "", "WzFd"] {
            assert_eq!(parse(&["step-runner"], Some(malformed)).unwrap(), ["step-runner"], "{malformed}");
        }
    }

    #[test]
    fn a_stand_in_knows_steps_and_version_only() {
        for name in ["gitlab-runner-helper", "/opt/gitlab-runner/gitlab-runner"] {
            assert!(parse(&[name, "steps", "proxy"], None).is_ok());
            assert!(parse(&[name, "--version"], None).is_ok());
            assert_eq!(parse(&[name, "read-logs"], None), Err("Command read-logs not found".to_owned()));
        }
        assert!(parse(&["step-runner", "read-logs"], None).is_ok());
    }
}
