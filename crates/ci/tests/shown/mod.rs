//! Plans and findings as text, for comparison.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use step_runner_ci::job::Job;
use step_runner_ci::plan::Plan;
use step_runner_lang::template::parse_inline;
use step_runner_lang::yaml::{self, NodeKind, Source, YamlNode};
use step_runner_model::text;

/// Predefined variables that every plan has, and that say nothing about a case.
const USUAL: [&str; 6] =
    ["CI_COMMIT_", "CI_PROJECT_", "CI_SERVER", "CI_PIPELINE_", "CI_RUNNER_", "CI_DEFAULT_"];

/// Names of the same kind.
const USUAL_NAMES: [&str; 4] = ["CI", "GITLAB_CI", "CI_JOB_ID", "CI_CONFIG_PATH"];

/// Checks that a document is two YAML documents, and that its templates can be read.
fn check(document: &str) {
    let file: Arc<str> = Arc::from("<plan>");
    let stream = yaml::read(&Source { file: Arc::clone(&file), text: document }, 3);
    assert!(stream.diagnostics.is_empty(), "{:?}", stream.diagnostics);
    let documents: Vec<YamlNode> = stream.documents.into_iter().flatten().collect();
    assert_eq!(documents.len(), 2, "{document}");
    let mut open: Vec<&YamlNode> = documents.iter().collect();
    while let Some(node) = open.pop() {
        match &node.kind {
            NodeKind::Scalar(scalar) => drop(parse_inline(&scalar.text, &file, node.at).unwrap()),
            NodeKind::Sequence(items) => open.extend(items),
            NodeKind::Mapping(entries) => open.extend(entries.iter().map(|entry| &entry.value)),
        }
    }
}

/// Returns a plan.
pub(crate) fn plan(job: &Job, plan: &Plan) -> String {
    check(&plan.steps);
    let mut shown = String::new();
    let mut line = |text: String| {
        shown.push_str(&text);
        shown.push('\n');
    };
    for message in &plan.messages {
        line(format!(
            "{}: {}",
            if message.is_warning { "warning" } else { "info" },
            text::for_people(&message.text)
        ));
    }
    if let Some(timeout) = plan.timeout {
        line(format!("timeout: {timeout:?}"));
    }
    line(format!("cleanup_timeout: {:?}", plan.cleanup_timeout));
    if let Some(image) = &job.image {
        line(format!(
            "image: {} {:?} {}",
            image.name,
            image.entrypoint,
            serde_json::Value::from(image.options.clone())
        ));
    }
    for service in &job.services {
        line(format!("service: {} {:?} {:?}", service.name, service.alias, service.command));
    }
    for variable in &plan.variables {
        let key = variable.key.as_str();
        let is_usual = USUAL.iter().any(|prefix| key.starts_with(prefix)) || USUAL_NAMES.contains(&key);
        if !is_usual {
            let marks = [(variable.file, " (file)"), (variable.masked, " (masked)")];
            let marks: String = marks.iter().filter(|(is, _)| *is).map(|(_, mark)| *mark).collect();
            line(format!("variable{marks} {key}={}", variable.value));
        }
    }
    for phrase in &plan.phrases {
        line(format!("phrase: {phrase}"));
    }
    shown.push_str("----- steps\n");
    shown.push_str(&plan.steps);
    shown.push_str("----- inputs\n");
    shown.push_str(&serde_json::to_string_pretty(&plan.inputs).unwrap());
    shown.push('\n');
    shown
}

/// Compares with a file, or renews it. Returns what differs.
pub(crate) fn compare(path: &Path, output: &str) -> Option<String> {
    if std::env::var_os("UPDATE_EXPECTED").is_some() {
        fs::write(path, output).unwrap();
        return None;
    }
    let expected = fs::read_to_string(path).unwrap_or_default();
    let differs = expected.lines().zip(output.lines()).position(|(a, b)| a != b);
    (expected != output).then(|| {
        let line = differs.unwrap_or_else(|| expected.lines().count().min(output.lines().count()));
        let shown = |text: &str| text.lines().nth(line).unwrap_or("(end)").to_owned();
        format!(
            "{}:{}\n  expected {}\n  is       {}",
            path.display(),
            line + 1,
            shown(&expected),
            shown(output)
        )
    })
}
