//! What a cluster says of a Pod.

use serde_json::Value as Json;

use crate::container::Seen;
use step_runner_agent::environment::STATE_LABEL;

/// Reasons of a container that waits as each one does.
const USUAL: [&str; 2] = ["ContainerCreating", "PodInitializing"];

/// Reasons of a container whose image does not come.
const PULL: [&str; 5] =
    ["ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ImageInspectError", "RegistryUnavailable"];

/// Reason of a container whose image is not there and is not pulled.
const NEVER: &str = "ErrImageNeverPull";

/// A container that does not come up.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Hindered {
    /// Its name.
    pub(super) container: String,
    /// Why, in the cluster's words.
    pub(super) words: String,
    /// What hinders it.
    pub(super) by: Hindrance,
}

/// What hinders a container.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Hindrance {
    /// Its image does not come.
    Pull,
    /// Its image is not there, and is never pulled.
    Never,
    /// It cannot be made or started.
    Start,
}

/// How far a Pod is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// All containers have started.
    Started,
    /// Some have not.
    Waits {
        /// Why, if there is something to say.
        why: Option<String>,
        /// The first container that is hindered.
        hindered: Option<Hindered>,
    },
}

/// True if a Pod has the label of this state.
pub(super) fn is_of(pod: &Json, state: &str) -> bool {
    pod["metadata"]["labels"][STATE_LABEL].as_str() == Some(state)
}

/// Returns the state of a container. One that is not there yet runs as long as its Pod may go on.
pub(super) fn seen(pod: &Json, container: &str) -> Seen {
    if !pod["metadata"]["deletionTimestamp"].is_null() {
        return Seen::Gone;
    }
    let status = &pod["status"];
    let words = || with_message(status["reason"].as_str().unwrap_or_default(), &status["message"]);
    match status["reason"].as_str() {
        Some("Evicted") => return killed(format!("was evicted: {}", words())),
        Some(reason) if status["phase"] == "Failed" && !reason.is_empty() => {
            return killed(format!("was ended by the cluster: {}", words()));
        }
        _ => {}
    }
    if let Some(condition) = condition(pod, "DisruptionTarget").filter(|found| found["status"] == "True") {
        let why = with_message(condition["reason"].as_str().unwrap_or_default(), &condition["message"]);
        return killed(format!("was ended by the cluster: {why}"));
    }
    let ended = &state(pod, container)["terminated"];
    if ended.is_null() {
        return Seen::Running;
    }
    let code = ended["exitCode"].as_i64().unwrap_or(-1);
    match (Seen::ended(code, ended["reason"] == "OOMKilled"), ended["message"].as_str()) {
        (Seen::Ended { how, is_killed }, Some(message)) if !message.trim().is_empty() => {
            Seen::Ended { how: format!("{how} ({})", message.trim()), is_killed }
        }
        (seen, _) => seen,
    }
}

const fn killed(how: String) -> Seen {
    Seen::Ended { how, is_killed: true }
}

/// Returns how far a Pod is.
pub(super) fn progress(pod: &Json) -> Progress {
    let spec = &pod["spec"];
    let names = |of: &Json| -> Vec<String> {
        let all = of.as_array().into_iter().flatten();
        all.filter_map(|container| container["name"].as_str()).map(str::to_owned).collect()
    };
    let (before, containers) = (names(&spec["initContainers"]), names(&spec["containers"]));
    let hindered = before.iter().chain(&containers).find_map(|name| hindered(pod, name));
    let is_started = |name: &String| {
        let state = state(pod, name);
        !state["running"].is_null() || !state["terminated"].is_null()
    };
    if hindered.is_none() && !containers.is_empty() && containers.iter().all(is_started) {
        return Progress::Started;
    }
    let unscheduled = condition(pod, "PodScheduled").filter(|found| found["status"] == "False");
    let why = match &hindered {
        Some(Hindered { container, words, .. }) => Some(format!("{container}: {words}")),
        None => unscheduled
            .map(|found| with_message(found["reason"].as_str().unwrap_or_default(), &found["message"])),
    };
    Progress::Waits { why, hindered }
}

fn hindered(pod: &Json, name: &str) -> Option<Hindered> {
    let state = state(pod, name);
    let (waits, ended) = (&state["waiting"], &state["terminated"]);
    let is_init =
        pod["status"]["initContainerStatuses"].as_array().into_iter().flatten().any(|of| of["name"] == name);
    let (reason, message, by) = match waits["reason"].as_str() {
        Some(reason) if USUAL.contains(&reason) || reason.is_empty() => return None,
        Some(NEVER) => (NEVER, &waits["message"], Hindrance::Never),
        Some(reason) if PULL.contains(&reason) => (reason, &waits["message"], Hindrance::Pull),
        Some(reason) => (reason, &waits["message"], Hindrance::Start),
        None if is_init && ended["exitCode"].as_i64().is_some_and(|code| code != 0) => {
            (ended["reason"].as_str().unwrap_or("Error"), &ended["message"], Hindrance::Start)
        }
        None => return None,
    };
    Some(Hindered { container: name.to_owned(), words: with_message(reason, message), by })
}

fn with_message(reason: &str, message: &Json) -> String {
    match message.as_str().map(str::trim).filter(|message| !message.is_empty()) {
        Some(message) => format!("{reason}: {message}"),
        None => reason.to_owned(),
    }
}

fn condition<'p>(pod: &'p Json, kind: &str) -> Option<&'p Json> {
    pod["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind)
}

/// Returns the state of a container, or nothing.
fn state<'p>(pod: &'p Json, name: &str) -> &'p Json {
    let lists = ["initContainerStatuses", "containerStatuses"].map(|key| pod["status"][key].as_array());
    let mut all = lists.into_iter().flatten().flatten();
    all.find(|status| status["name"] == name).map_or(&Json::Null, |status| &status["state"])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(build: &Json, status: &Json) -> Json {
        let mut pod = json!({
            "metadata": {"labels": {STATE_LABEL: "mine"}},
            "spec": {"initContainers": [{"name": "program"}], "containers": [{"name": "build"}, {"name": "svc-0"}]},
            "status": {"phase": "Running", "containerStatuses": [
                {"name": "build", "state": build}, {"name": "svc-0", "state": {"running": {}}},
            ]},
        });
        for (key, value) in status.as_object().into_iter().flatten() {
            pod["status"][key] = value.clone();
        }
        pod
    }

    #[test]
    fn a28_what_a_cluster_says_of_a_pod() {
        let runs = json!({"running": {"startedAt": "now"}});
        assert_eq!(seen(&pod(&runs, &json!({})), "build"), Seen::Running);
        let ended = |build: &Json, status: &Json| match seen(&pod(build, status), "build") {
            Seen::Ended { how, is_killed } => (how, is_killed),
            other => panic!("{other:?}"),
        };
        for (build, status, how, is_killed) in [
            (
                json!({"terminated": {"exitCode": 3, "reason": "Error"}}),
                json!({}),
                "ended with exit code 3",
                false,
            ),
            (json!({"terminated": {"exitCode": 137, "reason": "Error"}}), json!({}), "was killed", true),
            (
                json!({"terminated": {"exitCode": 137, "reason": "OOMKilled"}}),
                json!({}),
                "ran out of memory and was killed",
                true,
            ),
            (
                json!({"terminated": {"exitCode": 128, "reason": "StartError", "message": "no such file"}}),
                json!({}),
                "ended with exit code 128 (no such file)",
                false,
            ),
            (
                runs.clone(),
                json!({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}),
                "was evicted: Evicted: low on memory",
                true,
            ),
            (
                runs.clone(),
                json!({"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]}),
                "was ended by the cluster: PreemptionByScheduler",
                true,
            ),
        ] {
            assert_eq!(ended(&build, &status), (how.to_owned(), is_killed));
        }
        let mut removed = pod(&runs, &json!({}));
        assert!(is_of(&removed, "mine") && !is_of(&removed, "other"));
        removed["metadata"]["deletionTimestamp"] = "now".into();
        assert_eq!(seen(&removed, "build"), Seen::Gone);
    }

    #[test]
    fn a28_why_a_pod_does_not_come_up() {
        let waits = |reason: &str, message: &str| json!({"waiting": {"reason": reason, "message": message}});
        assert_eq!(progress(&pod(&json!({"running": {}}), &json!({}))), Progress::Started);
        let usual = progress(&pod(&waits("ContainerCreating", ""), &json!({})));
        assert_eq!(usual, Progress::Waits { why: None, hindered: None });
        let unscheduled = json!({"conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes are available"},
        ]});
        let Progress::Waits { why, .. } = progress(&pod(&json!({}), &unscheduled)) else { panic!("started") };
        assert_eq!(why.unwrap(), "Unschedulable: 0/1 nodes are available");
        let init = json!({"initContainerStatuses": [
            {"name": "program", "state": {"terminated": {"exitCode": 1, "reason": "Error", "message": "no space"}}},
        ]});
        for (pod, container, by) in [
            (pod(&waits("ErrImagePull", "not found"), &json!({})), "build", Hindrance::Pull),
            (pod(&waits("ErrImageNeverPull", ""), &json!({})), "build", Hindrance::Never),
            (pod(&waits("RunContainerError", "exec: no such file"), &json!({})), "build", Hindrance::Start),
            (pod(&waits("PodInitializing", ""), &init), "program", Hindrance::Start),
        ] {
            let Progress::Waits { hindered: Some(found), .. } = progress(&pod) else { panic!("{pod}") };
            assert_eq!((&*found.container, found.by), (container, by));
        }
    }
}
