//! The stages of a CI job around its sources: `ci/prepare`, `ci/get_sources`, `ci/cleanup` (ci.md §5).
//!
//! The sources come by the `git` program of the machine. It gets the job's token from a credential helper, for the
//! server's address alone: never from an argument, the repository's configuration or a URL. Without the program, the files
//! of the commit come by a library.

mod git;
mod plain;

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use self::git::Git;
use super::{
    AUTHENTICATION, BuiltinEnvironment, BuiltinError, BuiltinValues, CONFIGURATION, DISK, FAULT_OF_JOB,
    NETWORK,
};
use step_runner_process::tool::{self, Tool};

/// User of the job's token.
const TOKEN_USER: &str = "gitlab-ci-token";

/// Variable with the folder for the runner's own files of the project.
const TEMPORARY: &str = "RUNNER_TEMP_PROJECT_DIR";

/// Files in that folder which a job leaves for none after it.
const LEFT_OVER: [&str; 1] = ["gitlab_runner_env"];

/// How the sources come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Strategy {
    Clone,
    Fetch,
    None,
    Empty,
}

/// Facts about the sources, from the job's payload.
struct Sources {
    url: String,
    sha: String,
    refspecs: Vec<String>,
    depth: u64,
    is_sha256: bool,
    strategy: Strategy,
    checkout: bool,
}

/// Removes what earlier jobs have left.
pub(super) fn prepare(environment: &BuiltinEnvironment<'_>) -> Result<BuiltinValues, BuiltinError> {
    let Some(folder) = (environment.variable)(TEMPORARY).map(PathBuf::from) else {
        return Ok(BuiltinValues::new());
    };
    for name in LEFT_OVER {
        let path = folder.join(name);
        match fs::remove_file(&path) {
            Err(error) if !is_absent(&error) => return Err(BuiltinError::file("remove", &path)(error)),
            _ => {}
        }
    }
    Ok(BuiltinValues::new())
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Brings the sources into the working directory, with the hooks around it.
pub(super) fn get(
    inputs: &BuiltinValues,
    environment: &BuiltinEnvironment<'_>,
) -> Result<BuiltinValues, BuiltinError> {
    let sources = Sources::read(inputs)?;
    hook(inputs, "pre_get_sources_script", environment)?;
    let token = inputs.get("token").and_then(Json::as_str).filter(|token| !token.is_empty());
    match sources.strategy {
        Strategy::None => (environment.say)("Skipping Git repository setup"),
        Strategy::Empty => {
            (environment.say)("Skipping Git repository setup, and creating an empty build directory");
            empty(&environment.work_dir, environment)?;
        }
        Strategy::Clone | Strategy::Fetch if tool::find("git").is_none() => {
            plain::bring(&sources, token, environment)?;
        }
        Strategy::Clone | Strategy::Fetch => {
            let git = Git::new(&sources, token, environment)?;
            let result = git.bring(&sources);
            if let Err(BuiltinError::Stage { code: FAULT_OF_JOB | DISK, .. }) = result {
                // The next attempt begins anew.
                fs::remove_dir_all(environment.work_dir.join(".git")).ok();
            }
            result?;
        }
    }
    hook(inputs, "post_get_sources_script", environment)?;
    Ok(BuiltinValues::new())
}

/// Removes what is in a folder.
fn empty(folder: &Path, environment: &BuiltinEnvironment<'_>) -> Result<(), BuiltinError> {
    let entries = fs::read_dir(folder).map_err(BuiltinError::file("read", folder))?;
    for entry in entries.flatten() {
        let path = entry.path();
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let removed = if is_folder { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        if let Err(error) = removed {
            (environment.say)(&format!("WARNING: cannot remove {}: {error}", path.display()));
        }
    }
    Ok(())
}

/// Runs commands of the job around its sources.
fn hook(
    inputs: &BuiltinValues,
    name: &'static str,
    environment: &BuiltinEnvironment<'_>,
) -> Result<(), BuiltinError> {
    let lines = inputs.get(name).and_then(Json::as_array).into_iter().flatten().filter_map(Json::as_str);
    let text = lines.collect::<Vec<_>>().join("\n");
    if text.trim().is_empty() {
        return Ok(());
    }
    let shell = if tool::find("bash").is_some() { "bash" } else { "sh" };
    let arguments = ["-e", "-c", &text].map(OsString::from);
    let failed = |why: String| BuiltinError::Stage { code: FAULT_OF_JOB, message: format!("{name}: {why}") };
    match Tool::new(shell, &environment.work_dir, arguments).run() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(failed(status.to_string())),
        Err(error) => Err(failed(format!("cannot start {shell}: {error}"))),
    }
}

impl Sources {
    /// Reads the input `sources`. Nothing in it can become an option of `git`.
    fn read(inputs: &BuiltinValues) -> Result<Self, BuiltinError> {
        let wrong = |message: &str| BuiltinError::input("sources", message);
        let facts = inputs.get("sources").and_then(Json::as_object).ok_or_else(|| wrong("is no object"))?;
        let text = |key: &str| facts.get(key).and_then(Json::as_str).unwrap_or_default().to_owned();
        let is_true = |key: &str, default| facts.get(key).and_then(Json::as_bool).unwrap_or(default);
        let strategy = match (text("strategy").as_str(), is_true("allow_git_fetch", false)) {
            ("clone", _) | ("", false) => Strategy::Clone,
            ("fetch", _) | ("", true) => Strategy::Fetch,
            ("none", _) => Strategy::None,
            ("empty", _) => Strategy::Empty,
            _ => return Err(wrong("has an unknown strategy")),
        };
        let refspecs: Vec<String> = facts
            .get("refspecs")
            .and_then(Json::as_array)
            .into_iter()
            .flatten()
            .filter_map(Json::as_str)
            .map(str::to_owned)
            .collect();
        let (url, sha) = (text("url"), text("sha"));
        if matches!(strategy, Strategy::Clone | Strategy::Fetch) {
            if !url.starts_with("https://") && !url.starts_with("http://") {
                return Err(wrong("has a URL that does not begin with https:// or http://"));
            }
            if sha.is_empty() || !sha.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                return Err(wrong("has no commit"));
            }
            if refspecs.iter().any(|refspec| refspec.starts_with('-')) {
                return Err(wrong("has a refspec that begins with `-`"));
            }
        }
        let depth = facts.get("depth").and_then(Json::as_f64).unwrap_or_default();
        Ok(Self {
            url,
            sha,
            refspecs,
            depth: depth.max(0.0) as u64,
            is_sha256: text("repo_object_format") == "sha256",
            strategy,
            checkout: is_true("checkout", true),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(change: impl FnOnce(&mut Json)) -> Result<Sources, BuiltinError> {
        let mut sources = json!({"url": "https://gitlab.test/a/b.git", "sha": "a1b2", "refspecs": ["+a:b"]});
        change(&mut sources);
        let inputs = json!({ "sources": sources });
        Sources::read(inputs.as_object().unwrap())
    }

    #[test]
    fn a17_nothing_in_a_payload_becomes_an_option_of_git() {
        assert!(read(|_| {}).is_ok());
        for (key, value) in [
            ("url", json!("--upload-pack=x")),
            ("url", json!("ext::sh -c x")),
            ("sha", json!("--help")),
            ("sha", json!("")),
            ("refspecs", json!(["+a:b", "--upload-pack=x"])),
            ("strategy", json!("other")),
        ] {
            assert!(read(|sources| sources[key] = value.clone()).is_err(), "{key}: {value}");
        }
        assert_eq!(
            read(|sources| sources["allow_git_fetch"] = json!(true)).unwrap().strategy,
            Strategy::Fetch
        );
        assert_eq!(read(|_| {}).unwrap().strategy, Strategy::Clone);
    }
}
