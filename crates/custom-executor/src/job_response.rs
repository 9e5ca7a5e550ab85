//! Reads the secrets and the time limit from the job as GitLab sent it, if the Runner hands it on
//! (custom-executor.md §7.2). Pure.

use std::fmt;
use std::time::Duration;

use super::environment::seconds;
use step_runner_ci::job::secrets_of_payload;

/// Limits of a request: number of phrases, bytes of one, and bytes of all (masking.md §8).
const MAX_PHRASES: usize = 4_096;
const MAX_PHRASE: usize = 256 << 10;
const MAX_ALL: usize = 4 << 20;

/// Limits of a request's prefixes: their number, with room for the daemon's own, and bytes of one (masking.md §8).
const MAX_PREFIXES: usize = 200;
const MAX_PREFIX: usize = 256;

/// Secrets and time limit of a job.
#[derive(Default, PartialEq, Eq)]
pub(super) struct JobResponse {
    /// Texts to mask.
    pub(super) phrases: Vec<String>,
    /// Prefixes of tokens to mask.
    pub(super) token_prefixes: Vec<String>,
    /// The job's time limit. Its author cannot set this one.
    pub(super) timeout: Option<Duration>,
    /// True if secrets were left out, because a daemon accepts no more.
    pub(super) cut: bool,
}

impl fmt::Debug for JobResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobResponse").field("phrases", &self.phrases.len()).finish_non_exhaustive()
    }
}

impl JobResponse {
    /// Parses the content of the file; `None`, without a reason, if it is not what GitLab sends: the text is secret.
    pub(super) fn parse(json: &[u8]) -> Option<Self> {
        let secrets = secrets_of_payload(json)?;
        let mut found =
            Self { timeout: secrets.timeout.map(|limit| seconds(limit.as_secs())), ..Self::default() };
        let mut all = 0;
        for phrase in secrets.phrases {
            all += phrase.len();
            if found.phrases.len() < MAX_PHRASES && phrase.len() <= MAX_PHRASE && all <= MAX_ALL {
                found.phrases.push(phrase);
            } else {
                found.cut = true;
            }
        }
        for prefix in secrets.token_prefixes {
            if found.token_prefixes.len() < MAX_PREFIXES && prefix.len() <= MAX_PREFIX {
                found.token_prefixes.push(prefix);
            } else {
                found.cut = true;
            }
        }
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_of_every_kind_are_found() {
        let json = br#"{
            "id": 7, "token": "job-token", "unknown": [1],
            "variables": [
                {"key": "A", "value": "masked-one", "masked": true, "public": false},
                {"key": "B", "value": "shown", "masked": false},
                {"key": "C", "value": "", "masked": true}
            ],
            "dependencies": [{"id": 6, "token": "dependency-token"}],
            "credentials": [{"type": "registry", "password": "pass-word"}],
            "features": {"token_mask_prefixes": ["tok-", ""]},
            "runner_info": {"timeout": 3600}
        }"#;
        let found = JobResponse::parse(json).unwrap();
        assert_eq!(found.phrases, ["job-token", "masked-one", "dependency-token", "pass-word"]);
        assert_eq!(found.token_prefixes, ["tok-"]);
        assert_eq!(found.timeout, Some(Duration::from_hours(1)));
        assert!(!found.cut && !format!("{found:?}").contains("token"));
    }

    #[test]
    fn absent_and_null_fields_are_nothing() {
        for json in ["{}", r#"{"variables": null, "features": {"token_mask_prefixes": null}, "token": null}"#]
        {
            assert_eq!(JobResponse::parse(json.as_bytes()), Some(JobResponse::default()), "{json}");
        }
    }

    #[test]
    fn what_is_no_job_is_none() {
        for json in ["", "[]x", "{", r#"{"variables": 7}"#] {
            assert_eq!(JobResponse::parse(json.as_bytes()), None, "{json}");
        }
    }

    #[test]
    fn more_than_a_daemon_takes_is_cut() {
        let token = "x".repeat(MAX_PHRASE + 1);
        let found = JobResponse::parse(format!(r#"{{"token": "{token}"}}"#).as_bytes()).unwrap();
        assert!(found.cut && found.phrases.is_empty());
    }
}
