//! Reads a case's script of a process, and the texts that a log shows.

use serde_json::{Map, Value as Json, json};
use step_runner_lang::ast::{Reference, Template};
use step_runner_model::ExitStatus;

/// Returns how the process of a script ends.
pub(super) fn status(script: &Json) -> ExitStatus {
    match script["signal"].as_str() {
        Some("KILL") => ExitStatus::Signal(9),
        Some("SEGV") => ExitStatus::Signal(11),
        Some("TERM") => ExitStatus::Signal(15),
        Some("INT") => ExitStatus::Signal(2),
        Some(other) => panic!("signal {other}"),
        None => ExitStatus::Code(script["exit"].as_u64().unwrap_or(0) as u8),
    }
}

/// Returns the seconds of a duration such as `1m30s`.
pub(super) fn duration(text: &str) -> f64 {
    let (mut total, mut rest) = (0.0, text);
    while let Some(end) = rest.find(|letter: char| !letter.is_ascii_digit()) {
        let (number, tail) = rest.split_at(end);
        let unit_end = tail.find(|letter: char| letter.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        let factor = match unit {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 0.001,
            other => panic!("unit {other}"),
        };
        total += number.parse::<f64>().expect("a number") * factor;
        rest = tail;
    }
    total
}

/// Returns an output or export file with these members.
pub(super) fn lines(members: Option<&Map<String, Json>>) -> Option<Vec<u8>> {
    let lines = members?.iter().map(|(name, value)| format!("{}\n", json!({"name": name, "value": value})));
    Some(lines.collect::<String>().into_bytes())
}

/// Returns a reference as steps write it after evaluation.
pub(super) fn reference_text(reference: &Reference) -> String {
    let text = |template: &Template| template.as_literal().unwrap_or_default().to_owned();
    match reference {
        Reference::Local { path, .. } => path.clone(),
        Reference::Git { url, rev, .. } => {
            format!("{}@{}", text(url).trim_start_matches("https://"), text(rev))
        }
        Reference::Oci { registry, repository, tag, .. } => {
            format!("{}/{}:{}", text(registry), text(repository), text(tag))
        }
        Reference::Builtin { name, .. } => format!("builtin://{name}"),
        Reference::Dynamic(_) => String::new(),
    }
}
