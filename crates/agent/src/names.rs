//! Names that are made of the server's address and the number of a job: the same after each restart, and different for
//! each job of each server.

use sha2::{Digest, Sha256};

use crate::routing::Base;
use crate::tokens::hex;

/// Hex digits of a folder's name.
const FOLDER_DIGITS: usize = 16;

/// Names of one job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// Id of the daemon's job.
    pub daemon_job: String,
    /// Folder of the record.
    pub folder: String,
    /// Container or Pod, and all that belongs to it.
    pub environment: String,
}

impl Names {
    /// Makes the names of a job.
    pub fn new(server: &Base, job: u64) -> Self {
        let hash = Sha256::digest(format!("{server}\n{job}").as_bytes());
        let of_server = Sha256::digest(server.as_str().as_bytes());
        let folder = hex(&hash, FOLDER_DIGITS);
        Self {
            daemon_job: format!("ci-{}-{job}", hex(&of_server, 8)),
            environment: format!("step-{folder}"),
            folder,
        }
    }
}

/// True if a folder can be that of a job's record: others in its place are not the agent's, such as `lost+found` of a disk.
pub fn is_folder(name: &str) -> bool {
    name.len() == FOLDER_DIGITS && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Returns the name of the volume with a project's caches: one for each runner, project, and kind of branch. What jobs of
/// other branches put there, those of a protected one must not find.
pub fn cache_volume(server: &Base, runner: u64, project: u64, is_protected: bool) -> String {
    let text = format!("{server}\nrunner {runner}\nproject {project}\nprotected {is_protected}");
    format!("step-cache-{}", hex(&Sha256::digest(text.as_bytes()), 16))
}

/// Returns `CI_RUNNER_SHORT_TOKEN`: 8 hex digits that have nothing of the token and stay after it was replaced.
pub fn short_token(server: &Base, runner: u64) -> String {
    hex(&Sha256::digest(format!("{server}\nrunner {runner}").as_bytes()), 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a11_each_project_has_caches_of_its_own_and_protected_branches_have_others() {
        let server = Base::new("https://gitlab.test").unwrap();
        let name = cache_volume(&server, 1, 5, false);
        assert_eq!(name, cache_volume(&server, 1, 5, false));
        for other in [(2, 5, false), (1, 6, false), (1, 5, true)] {
            assert_ne!(cache_volume(&server, other.0, other.1, other.2), name, "{other:?}");
        }
    }

    #[test]
    fn a31_names_differ_by_server_and_job_and_stay() {
        let server = |text: &str| Base::new(text).unwrap();
        let one = Names::new(&server("https://gitlab.test"), 1001);
        assert_eq!(one, Names::new(&server("https://gitlab.test/"), 1001));
        assert_eq!(one.environment, format!("step-{}", one.folder));
        assert!(one.daemon_job.starts_with("ci-") && one.daemon_job.ends_with("-1001"));
        assert_eq!((one.daemon_job.len(), one.folder.len()), (16, 16));
        for other in [
            Names::new(&server("https://gitlab.test/a"), 1001),
            Names::new(&server("https://gitlab.test"), 1002),
        ] {
            assert!(other.folder != one.folder && other.daemon_job != one.daemon_job);
        }
        assert_ne!(
            short_token(&server("https://gitlab.test"), 1),
            short_token(&server("https://gitlab.test"), 2)
        );
    }
}
