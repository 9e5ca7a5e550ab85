//! Checks values of keywords without effect (ci.md §2): a server would refuse the whole file for a wrong one.

use crate::duration;
use crate::finding::{Findings, join};
use crate::node::{Kind, Node};

/// Maximum number of retries, as in GitLab.
const RETRIES: u32 = 2;

/// Checks the value of a keyword of a job.
pub(super) fn check(keyword: &str, node: &Node, path: &str, findings: &mut Findings) {
    match keyword {
        "coverage" => coverage(node, path, findings),
        "interruptible" => drop(findings.boolean(node, path)),
        "only" | "except" if !matches!(node.kind, Kind::List(_) | Kind::Map(_)) => {
            findings.expected(node, path, "a list of conditions, or a mapping");
        }
        "retry" => retry(node, path, findings),
        "tags" => drop(findings.list_of_texts(node, path)),
        _ => {}
    }
}

fn coverage(node: &Node, path: &str, findings: &mut Findings) {
    let Some(text) = findings.text(node, path) else { return };
    if !(text.len() > 2 && text.starts_with('/') && text.ends_with('/')) {
        let help = "write it between slashes: /EXPRESSION/";
        findings.error_with_help(&node.place, path, "\"coverage\" is a regular expression", help);
    }
}

fn retry(node: &Node, path: &str, findings: &mut Findings) {
    if node.as_map().is_none() {
        findings.whole(node, path, 0, RETRIES);
        return;
    }
    findings.mapping(node, path, &["max", "when", "exit_codes"]);
    if let Some(max) = node.get("max") {
        findings.whole(max, &join(path, "max"), 0, RETRIES);
    }
}

fn start_in(node: &Node, path: &str, findings: &mut Findings) {
    if let Some(text) = findings.scalar(node, path)
        && duration::parse(&text).is_none()
    {
        let help = "write one such as \"30 minutes\"";
        findings.error_with_help(&node.place, path, "it is no duration", help);
    }
}

/// Checks `expire_in` of artifacts.
pub(super) fn expire_in(node: &Node, path: &str, findings: &mut Findings) {
    if let Some(text) = findings.scalar(node, path)
        && !duration::is_expiry(&text)
    {
        let help = "write one such as \"1 week\", or \"never\"";
        findings.error_with_help(&node.place, path, "it is no duration", help);
    }
}

/// Checks that a job or rule has `start_in` if it is delayed, and only then.
pub(super) fn check_delay(node: &Node, when: Option<&str>, path: &str, findings: &mut Findings) {
    match (when == Some("delayed"), node.get("start_in")) {
        (true, None) => {
            let help = "write \"start_in\", such as \"30 minutes\"";
            findings.error_with_help(&node.place, path, "\"delayed\" needs a time", help);
        }
        (false, Some(start_in)) => {
            let help = "write \"when: delayed\", or remove it";
            findings.error_with_help(&start_in.place, path, "\"start_in\" is for \"when: delayed\"", help);
        }
        (true, Some(time)) => start_in(time, &join(path, "start_in"), findings),
        (false, None) => {}
    }
}
