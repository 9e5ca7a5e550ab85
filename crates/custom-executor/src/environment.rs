//! Environment that the Runner gives a call (custom-executor.md §2.1). Pure: the caller passes the variables.

use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

/// Prefix of the job's variables.
const JOB_VARIABLE: &str = "CUSTOM_ENV_";

/// Upper bound of a job's time limit, because the job's author can set the variable.
const MAX_TIMEOUT: Duration = Duration::from_hours(31 * 24);

/// The environment of a call.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// The job's private directory; `None` if unset or empty.
    pub tmpdir: Option<PathBuf>,
    /// Exit codes by which the Runner tells failures apart.
    pub codes: Codes,
    /// File from which the Runner reads the exit code of a failed build, if it does. It is removed and written, so it
    /// always lies below `tmpdir`.
    pub code_file: Option<PathBuf>,
    /// File for the exit code that is not below `tmpdir`. It is left alone.
    pub foreign_code_file: Option<PathBuf>,
    /// File with the job as GitLab sent it, if the Runner names one.
    pub job_response: Option<PathBuf>,
    /// Variables of the job.
    pub job: JobVariables,
    /// True if no variable of a job is set, so no Runner has started this.
    pub by_hand: bool,
}

/// Variables of the job. Its author can set them, so they are never trusted. Absent ones are empty.
#[derive(Clone, Debug, Default)]
pub struct JobVariables {
    /// `CI_JOB_ID`.
    pub id: String,
    /// `CI_PIPELINE_ID`.
    pub pipeline_id: String,
    /// `CI_PROJECT_ID`.
    pub project_id: String,
    /// `CI_PROJECT_PATH_SLUG`.
    pub project_slug: String,
    /// `CI_CONCURRENT_ID`.
    pub concurrent_id: String,
    /// `CI_CONCURRENT_PROJECT_ID`.
    pub concurrent_project_id: String,
    /// `CI_RUNNER_SHORT_TOKEN`.
    pub runner_short: String,
    /// `CI_SERVER_URL`.
    pub server_url: String,
    /// `CI_BUILDS_DIR`: known after `config`.
    pub builds_dir: String,
    /// `CI_JOB_TIMEOUT`, at most a month; `None` if unknown.
    pub timeout: Option<Duration>,
    /// True if it names an image or services, which this executor does not provide.
    pub wants_containers: bool,
}

/// Exit codes by which the Runner tells failures apart (custom-executor.md §2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Codes {
    /// Code of a failure of the build.
    pub build: u8,
    /// Code of a failure of the system.
    pub system: u8,
    /// True if the Runner did not give two numbers in 1..=255. Then both codes are today's defaults.
    pub assumed: bool,
}

impl Default for Codes {
    fn default() -> Self {
        Self { build: 1, system: 2, assumed: true }
    }
}

impl Codes {
    fn read(build: Option<&str>, system: Option<&str>) -> Self {
        let code = |text: Option<&str>| text?.trim().parse::<u8>().ok().filter(|code| *code > 0);
        match (code(build), code(system)) {
            (Some(build), Some(system)) => Self { build, system, assumed: false },
            _ => Self::default(),
        }
    }
}

impl Environment {
    /// Reads `variables`, the whole environment.
    pub fn read(variables: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        let mut found = Self { by_hand: true, ..Self::default() };
        let (mut build, mut system) = (None, None);
        for (name, value) in variables {
            let Some(name) = name.to_str() else { continue };
            let text = || value.to_string_lossy().into_owned();
            let path = || (!value.is_empty()).then(|| PathBuf::from(&value));
            match name {
                "TMPDIR" => found.tmpdir = path(),
                "BUILD_FAILURE_EXIT_CODE" => build = Some(text()),
                "SYSTEM_FAILURE_EXIT_CODE" => system = Some(text()),
                "BUILD_EXIT_CODE_FILE" => found.code_file = path(),
                "JOB_RESPONSE_FILE" => found.job_response = path(),
                _ => {
                    if let Some(name) = name.strip_prefix(JOB_VARIABLE) {
                        found.by_hand = false;
                        found.job.take(name, text);
                    }
                }
            }
        }
        found.codes = Codes::read(build.as_deref(), system.as_deref());
        found.foreign_code_file = found.code_file.take_if(|file| !is_below(file, found.tmpdir.as_deref()));
        found
    }
}

/// True if `file` is named as something below `folder`.
fn is_below(file: &Path, folder: Option<&Path>) -> bool {
    let rest = folder.filter(|folder| folder.is_absolute()).and_then(|folder| file.strip_prefix(folder).ok());
    rest.is_some_and(|rest| {
        let mut components = rest.components().peekable();
        components.peek().is_some() && components.all(|part| matches!(part, Component::Normal(_)))
    })
}

impl JobVariables {
    fn take(&mut self, name: &str, value: impl Fn() -> String) {
        let field = match name {
            "CI_JOB_ID" => &mut self.id,
            "CI_PIPELINE_ID" => &mut self.pipeline_id,
            "CI_PROJECT_ID" => &mut self.project_id,
            "CI_PROJECT_PATH_SLUG" => &mut self.project_slug,
            "CI_CONCURRENT_ID" => &mut self.concurrent_id,
            "CI_CONCURRENT_PROJECT_ID" => &mut self.concurrent_project_id,
            "CI_RUNNER_SHORT_TOKEN" => &mut self.runner_short,
            "CI_SERVER_URL" => &mut self.server_url,
            "CI_BUILDS_DIR" => &mut self.builds_dir,
            "CI_JOB_TIMEOUT" => {
                self.timeout = value().trim().parse().ok().map(seconds).filter(|limit| !limit.is_zero());
                return;
            }
            "CI_JOB_IMAGE" => {
                self.wants_containers |= !value().is_empty();
                return;
            }
            "CI_JOB_SERVICES" => {
                self.wants_containers |= !["", "[]", "null"].contains(&value().trim());
                return;
            }
            _ => return,
        };
        *field = value();
    }
}

/// Returns a time limit of `count` seconds, at most a month.
pub(super) fn seconds(count: u64) -> Duration {
    Duration::from_secs(count).min(MAX_TIMEOUT)
}

/// True if a private daemon, and so every script, gets the variable `name` of the Runner's environment. Variables for
/// the driver's call alone are left out (custom-executor.md §6).
pub(super) fn reaches_daemon(name: &str) -> bool {
    let prefixes = [JOB_VARIABLE, "BUILD_", "SYSTEM_", "STEP_RUNNER_CE_"];
    !prefixes.iter().any(|prefix| name.starts_with(prefix))
        && !["JOB_RESPONSE_FILE", "TMPDIR"].contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Environment {
        Environment::read(pairs.iter().map(|(name, value)| (name.into(), value.into())))
    }

    #[test]
    fn codes_are_read_and_never_assumed_when_they_are_given() {
        let codes = |build, system| {
            read(&[("BUILD_FAILURE_EXIT_CODE", build), ("SYSTEM_FAILURE_EXIT_CODE", system)]).codes
        };
        assert_eq!(codes("7", "9"), Codes { build: 7, system: 9, assumed: false });
        for (build, system) in [("0", "2"), ("1", "256"), ("", "2"), ("1", "two"), ("-1", "2")] {
            assert_eq!(
                codes(build, system),
                Codes { build: 1, system: 2, assumed: true },
                "{build} {system}"
            );
        }
        assert!(read(&[]).codes.assumed);
    }

    #[test]
    fn an_empty_path_is_none() {
        let found = read(&[("TMPDIR", ""), ("BUILD_EXIT_CODE_FILE", ""), ("JOB_RESPONSE_FILE", "/j")]);
        assert_eq!((found.tmpdir, found.code_file, found.foreign_code_file), (None, None, None));
        assert_eq!(found.job_response, Some("/j".into()));
    }

    #[test]
    fn the_file_for_the_exit_code_lies_in_the_private_directory() {
        let file = |tmpdir: &str, file: &str| {
            let found = read(&[("BUILD_EXIT_CODE_FILE", file), ("TMPDIR", tmpdir)]);
            assert_ne!(found.code_file, found.foreign_code_file);
            found.code_file
        };
        for inside in ["/t/job/code", "/t/job/folder/code", "/t/job//code"] {
            assert_eq!(file("/t/job", inside), Some(inside.into()));
        }
        for (tmpdir, foreign) in [
            ("/t/job", "/t/job"),
            ("/t/job", "/t/job/"),
            ("/t/job", "/t/other/code"),
            ("/t/job", "/t/job2"),
            ("/t/job", "/t/job/../other"),
            ("/t/job", "code"),
            ("t", "t/code"),
            ("", "/t/job/code"),
        ] {
            assert_eq!(file(tmpdir, foreign), None, "{foreign} with {tmpdir:?}");
        }
    }

    #[test]
    fn a_call_by_hand_has_no_variable_of_a_job() {
        assert!(read(&[("TMPDIR", "/tmp"), ("PATH", "/bin")]).by_hand);
        assert!(!read(&[("CUSTOM_ENV_CI_JOB_ID", "1")]).by_hand);
    }

    #[test]
    fn time_limits_of_the_author_are_bounded() {
        let limit = |text: &str| read(&[("CUSTOM_ENV_CI_JOB_TIMEOUT", text)]).job.timeout;
        assert_eq!(limit("3600"), Some(Duration::from_hours(1)));
        assert_eq!(limit("18446744073709551615"), Some(MAX_TIMEOUT));
        for none in ["", "0", "-1", "1h"] {
            assert_eq!(limit(none), None, "{none}");
        }
    }

    #[test]
    fn images_and_services_are_noticed() {
        assert!(read(&[("CUSTOM_ENV_CI_JOB_IMAGE", "alpine")]).job.wants_containers);
        assert!(read(&[("CUSTOM_ENV_CI_JOB_SERVICES", r#"[{"name":"redis"}]"#)]).job.wants_containers);
        let none = [("CUSTOM_ENV_CI_JOB_IMAGE", ""), ("CUSTOM_ENV_CI_JOB_SERVICES", "[]")];
        assert!(!read(&none).job.wants_containers);
    }

    #[test]
    fn a_daemon_gets_nothing_of_the_call() {
        for name in [
            "CUSTOM_ENV_TOKEN",
            "BUILD_EXIT_CODE_FILE",
            "SYSTEM_FAILURE_EXIT_CODE",
            "TMPDIR",
            "STEP_RUNNER_CE_STATE",
        ] {
            assert!(!reaches_daemon(name), "{name}");
        }
        assert!(reaches_daemon("PATH") && reaches_daemon("STEP_RUNNER_MAX_RUNNING"));
    }
}
