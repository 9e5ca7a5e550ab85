//! Recognises keys and files of other systems and suggests the equivalent here.

use crate::yaml::{NodeKind, YamlEntry};

/// Returns the alternative to a key that steps of other systems have.
pub(super) fn step_key(key: &str) -> Option<&'static str> {
    Some(match key {
        "unless" | "only" | "except" | "rules" => "write \"if\" with an expression, or \"when\"",
        "loop" | "for" | "foreach" | "with_items" | "strategy" => "write \"matrix\"",
        "needs" | "depends_on" | "dependencies" => {
            "steps run in the order of the list; \"parallel\" runs some of them side by side"
        }
        "timeout-minutes" | "timeout_minutes" => "write \"timeout\" with a unit, such as 5m",
        "continue-on-error" | "continue_on_err" | "allow_failure" | "ignore_errors" => {
            "write \"continue_on_error\""
        }
        "uses" => "write \"func\"; an action of another system is no function",
        "with" => "write \"inputs\"",
        "id" => "write \"name\"",
        "working-directory" | "working_directory" | "workdir" | "work_dir" | "dir" => {
            "write \"cd DIR\" in the script; a function with exec has \"work_dir\""
        }
        "environment" | "variables" => "write \"env\"",
        "before_script" => "write a step of its own before this one",
        "after_script" => "write a step of its own after this one, with \"when: always\"",
        "command" | "cmd" | "shell" => "write \"script\", or call a function with exec",
        _ => return None,
    })
}

/// Returns the alternative to a key in `retry` that other systems have, or that YAML 1.1 reads as something else.
pub(super) fn retry_key(key: &str) -> Option<&'static str> {
    match key {
        "on" => Some("write \"when\": YAML 1.1 reads \"on\" as a boolean"),
        _ => None,
    }
}

/// True if the key names the action of a step in another system.
pub(super) fn is_invocation(key: &str) -> bool {
    matches!(key, "uses" | "command" | "cmd" | "shell")
}

/// Keys that occur only at the top of a GitLab CI/CD pipeline.
const PIPELINE_KEYS: [&str; 8] =
    ["stages", "before_script", "after_script", "workflow", "variables", "image", "include", "default"];

/// Keys that identify a job of GitLab CI/CD.
const JOB_KEYS: [&str; 6] = ["script", "stage", "extends", "trigger", "needs", "rules"];

/// Returns the kind of a document of another system, and the alternative to it.
pub(super) fn document(entries: &[YamlEntry]) -> Option<(&'static str, &'static str)> {
    let has = |key: &str| entries.iter().any(|entry| entry.key.text == key);
    if has("jobs") && (has("on") || has("name")) {
        return Some((
            "this is a workflow of another system, not a function",
            "write a list of steps, each with \"name\" and \"script\" or \"func\"; see \"step-runner help language\"",
        ));
    }
    let is_job = |entry: &YamlEntry| match &entry.value.kind {
        NodeKind::Mapping(keys) => keys.iter().any(|key| JOB_KEYS.contains(&key.key.text.as_str())),
        NodeKind::Sequence(_) | NodeKind::Scalar(_) => false,
    };
    if PIPELINE_KEYS.into_iter().any(has) || entries.iter().any(is_job) {
        return Some((
            "this is a pipeline of GitLab CI/CD, not a function",
            "save it in its project and run one of its jobs: \"step-runner run --job NAME FILE\"; a function is a list of steps: \"step-runner help language\"",
        ));
    }
    None
}
