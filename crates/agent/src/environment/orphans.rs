//! What earlier runs of the agent left at an engine or a cluster.

use std::collections::BTreeSet;

/// Label with the id of the state directory.
pub const STATE_LABEL: &str = "step-runner.state";
/// Label with the job.
pub const JOB_LABEL: &str = "step-runner.job";
/// Label with the part that a thing has in the environment of a job.
pub const ROLE_LABEL: &str = "step-runner.role";

/// Returns the labels of a thing.
pub fn labels(state: &str, job: u64, role: &str) -> [(&'static str, String); 3] {
    [(STATE_LABEL, state.to_owned()), (JOB_LABEL, job.to_string()), (ROLE_LABEL, role.to_owned())]
}

/// A container, network, volume, Pod or Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its own name.
    pub name: String,
    /// Value of [`STATE_LABEL`].
    pub state: Option<String>,
    /// The name of its environment: its own name, or the beginning of it.
    pub environment: String,
}

/// Returns what is to be removed: all that has this state's label and no record. Nothing else is touched.
pub fn orphans<'f>(found: &'f [Found], state: &str, environments: &BTreeSet<String>) -> Vec<&'f str> {
    let is_ours =
        |thing: &&Found| thing.state.as_deref() == Some(state) && !environments.contains(&thing.environment);
    found.iter().filter(is_ours).map(|thing| thing.name.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a31_exactly_what_is_ours_and_has_no_record_is_removed() {
        let thing = |name: &str, state: Option<&str>| Found {
            name: name.to_owned(),
            state: state.map(str::to_owned),
            environment: name.split('.').next().unwrap().to_owned(),
        };
        let found = [
            thing("step-aa", Some("mine")),
            thing("step-aa.svc-0", Some("mine")),
            thing("step-bb", Some("mine")),
            thing("step-cc", Some("another agent")),
            thing("step-dd", None),
            thing("postgres", None),
        ];
        let records = BTreeSet::from(["step-bb".to_owned()]);
        assert_eq!(orphans(&found, "mine", &records), ["step-aa", "step-aa.svc-0"]);
        assert_eq!(labels("mine", 7, "build")[1], (JOB_LABEL, "7".to_owned()));
    }
}
