//! Names that tell jobs apart: the nonce, ids of stages, their prefix (custom-executor.md §4). Pure.

use std::path::Path;

use sha2::{Digest, Sha256};

use step_runner_model::{InvalidId, JobId};

/// Longest path component that serves as a name unchanged.
const MAX_COMPONENT: usize = 64;

/// Longest number of a job in digits: 2^64 has 20.
const MAX_JOB_NUMBER: usize = 20;

/// Longest id of a job in bytes (service.md §3).
const MAX_ID: usize = 128;

/// Names of one preparation attempt of one job. Each of its calls finds the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    nonce: String,
    prefix: String,
}

impl Identity {
    /// Makes the names for the job with number `job_id` and the attempt whose private directory is `tmpdir` (the
    /// Runner's `TMPDIR`).
    pub(super) fn new(tmpdir: &Path, job_id: &str) -> Self {
        let nonce = component(tmpdir);
        let prefix = format!("ce-{}-{nonce}-", job_number(job_id));
        Self { nonce, prefix }
    }

    /// Returns a number of the job that gives the same names, of bounded length.
    pub(super) fn job(&self) -> &str {
        let job =
            self.prefix.strip_prefix("ce-").and_then(|rest| rest.strip_suffix(&format!("-{}-", self.nonce)));
        job.unwrap_or_default()
    }

    /// True if `prefix` can be that of the attempt with this nonce.
    pub(super) fn is_prefix(prefix: &str, nonce: &str) -> bool {
        prefix
            .strip_prefix("ce-")
            .and_then(|rest| rest.strip_suffix(&format!("-{nonce}-")))
            .is_some_and(|job| (1..=MAX_JOB_NUMBER).contains(&job.len()) && job.bytes().all(is_plain))
    }

    /// Returns a name for files that is unique for each attempt.
    pub(super) fn nonce(&self) -> &str {
        &self.nonce
    }

    /// Returns the prefix that all ids of this attempt have, and no others.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns the id of the daemon's job for a stage, the same for the same call. A repeated stage has another one,
    /// because the Runner gives each call's script a directory of its own.
    pub(super) fn stage(&self, script: &Path, stage: &str) -> Result<JobId, InvalidId> {
        let folder = script.parent().map_or_else(String::new, component);
        self.id(&format!("{folder}-{stage}"))
    }

    /// Returns the id of the job by which `prepare` looks at the environment. `unique` tells one `prepare` from the
    /// next.
    pub(super) fn preparation(&self, unique: u64) -> Result<JobId, InvalidId> {
        self.id(&format!("{unique:016x}-prepare"))
    }

    fn id(&self, rest: &str) -> Result<JobId, InvalidId> {
        let rest = replaced(rest);
        let long = self.prefix.len() + rest.len() > MAX_ID;
        JobId::parse(&format!("{}{}", self.prefix, if long { digest(rest.as_bytes(), 32) } else { rest }))
    }
}

/// True if `name` can be a nonce.
pub(super) fn is_nonce(name: &str) -> bool {
    (1..=MAX_COMPONENT).contains(&name.len()) && name.bytes().all(is_plain) && ![".", ".."].contains(&name)
}

/// Returns the last component of a path if it can serve as a name, else the start of the path's digest.
fn component(path: &Path) -> String {
    let name = path.file_name().and_then(|name| name.to_str()).filter(|name| is_nonce(name));
    name.map_or_else(|| digest(path.as_os_str().as_encoded_bytes(), 16), str::to_owned)
}

/// Returns the number of the job, of bounded length even if it is no number: a job's author can set its variable.
fn job_number(text: &str) -> String {
    match text.len() {
        0 => "0".to_owned(),
        1..=MAX_JOB_NUMBER => replaced(text),
        _ => digest(text.as_bytes(), 16),
    }
}

const fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-')
}

fn replaced(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii() && is_plain(c as u8) { c } else { '_' }).collect()
}

/// Returns the first `digits` hex digits of the SHA-256 of `bytes`.
pub(super) fn digest(bytes: &[u8], digits: usize) -> String {
    let digit = |nibble: u8| char::from_digit(u32::from(nibble), 16).unwrap_or_default();
    Sha256::digest(bytes)
        .into_iter()
        .flat_map(|byte| [digit(byte >> 4), digit(byte & 15)])
        .take(digits)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn identity() -> Identity {
        Identity::new(Path::new("/tmp/custom-executor123"), "77")
    }

    #[test]
    fn ids_are_made_of_job_attempt_call_and_stage() {
        let id =
            identity().stage(Path::new("/tmp/custom-executor123/script456/script"), "step_script").unwrap();
        assert_eq!(id.as_str(), "ce-77-custom-executor123-script456-step_script");
        assert_eq!(identity().nonce(), "custom-executor123");
        assert_eq!(
            identity().preparation(10).unwrap().as_str(),
            "ce-77-custom-executor123-000000000000000a-prepare"
        );
    }

    #[test]
    fn a_prefix_belongs_to_one_nonce() {
        let identity = identity();
        assert!(Identity::is_prefix(identity.prefix(), identity.nonce()));
        for (prefix, nonce) in
            [("", "a"), ("ce-", ""), ("ce--a-", "a"), ("ce-1-b-", "a"), ("ce-1-a", "a"), ("ce-1/2-a-", "a")]
        {
            assert!(!Identity::is_prefix(prefix, nonce), "{prefix} {nonce}");
        }
        assert!(!Identity::is_prefix(&format!("ce-{}-a-", "1".repeat(21)), "a"));
    }

    #[test]
    fn what_cannot_be_a_name_is_replaced_by_a_digest() {
        for path in ["/", "/tmp/..", "/tmp/a b", "/tmp/ä", &format!("/tmp/{}", "x".repeat(65))] {
            let nonce = Identity::new(Path::new(path), "1").nonce;
            assert!(nonce.len() == 16 && nonce.bytes().all(|b| b.is_ascii_hexdigit()), "{path}: {nonce}");
        }
        assert_eq!(Identity::new(Path::new("/tmp/x"), "").prefix, "ce-0-x-");
        assert_eq!(Identity::new(Path::new("/tmp/x"), "7/8").prefix, "ce-7_8-x-");
    }

    #[test]
    fn a_long_rest_becomes_its_digest() {
        let script = Path::new("/t/s/script");
        let (one, other) = ("a".repeat(200), "b".repeat(200));
        let (one, other) =
            (identity().stage(script, &one).unwrap(), identity().stage(script, &other).unwrap());
        assert_eq!(one.as_str().len(), identity().prefix.len() + 32);
        assert_ne!(one, other);
    }

    proptest! {
        #[test]
        fn every_call_has_a_valid_id_with_the_prefix_and_always_the_same(
            tmpdir in ".{0,100}", job in ".{0,200}", script in ".{0,200}", stage in ".{0,200}",
        ) {
            let identity = Identity::new(Path::new(&tmpdir), &job);
            let id = identity.stage(Path::new(&script), &stage).unwrap();
            prop_assert_eq!(&identity, &Identity::new(Path::new(&tmpdir), identity.job()));
            prop_assert!(id.as_str().starts_with(identity.prefix()));
            prop_assert_eq!(&id, &Identity::new(Path::new(&tmpdir), &job).stage(Path::new(&script), &stage).unwrap());
        }

        #[test]
        fn attempts_never_share_a_prefix(one in "[a-z0-9.-]{1,64}", other in "[a-z0-9.-]{1,64}") {
            prop_assume!(one != other && ![".", ".."].contains(&&*one) && ![".", ".."].contains(&&*other));
            let prefix = |nonce: &str| Identity::new(&Path::new("/tmp").join(nonce), "5").prefix;
            prop_assert_ne!(prefix(&one), prefix(&other));
        }
    }
}
