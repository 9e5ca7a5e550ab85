//! Tells CI files from function files and steps documents.

use std::path::Path;

/// Keywords that only the top of a CI file has.
const TOP: [&str; 4] = ["stages", "workflow", "include", "default"];

/// Keywords that make a mapping a job.
const OF_A_JOB: [&str; 4] = ["script", "extends", "trigger", "stage"];

/// Keys at the top of function files and steps documents, whose values can look like jobs.
const OF_FUNCTIONS: [&str; 8] = ["spec", "exec", "run", "env", "outputs", "delegate", "steps", "description"];

/// True if a file is a CI file by its name, else by its text.
pub(in crate::cli) fn is_ci_file(path: &Path, text: &str) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.ends_with(".gitlab-ci.yml") || name.ends_with(".gitlab-ci.yaml") || is_ci_text(text)
}

/// True if the last document of a text has a keyword of CI files, or a job, at its top.
fn is_ci_text(text: &str) -> bool {
    let mut top = "";
    let mut is_ci = false;
    for line in text.lines() {
        // A byte order mark before a document belongs to no key (language.md §2).
        let line = line.trim_start_matches('\u{feff}');
        let key = line.split_once(':').map(|(key, _)| key.trim()).unwrap_or_default();
        if line.starts_with("---") {
            (top, is_ci) = ("", false);
        } else if !line.starts_with([' ', '\t', '#', '-', '[', '{', '}', ']']) && !key.is_empty() {
            top = key;
            is_ci |= TOP.contains(&key);
        } else if line.starts_with(' ') && !top.is_empty() && !OF_FUNCTIONS.contains(&top) {
            is_ci |= OF_A_JOB.contains(&key);
        }
    }
    is_ci
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ci_files_are_told_from_function_files() {
        for text in [
            "stages: [a]\n",
            "build:\n  script: make\n",
            "spec:\n  inputs: {}\n---\nbuild:\n  stage: b\n",
            "include: a.yml\n",
            "\u{feff}include: a.yml\n",
            "spec: {}\n\u{feff}---\nbuild:\n  script: make\n",
        ] {
            assert!(is_ci_text(text), "{text}");
        }
        for text in [
            "",
            "spec: {}\n---\nrun:\n  - name: a\n    script: b\n",
            "spec:\n  inputs:\n    script: {type: string}\n---\nexec: {command: [x]}\n",
            "- name: a\n  script: b\n",
            "apiVersion: v1\nkind: Pod\n",
        ] {
            assert!(!is_ci_text(text), "{text}");
            assert!(!is_ci_text(&format!("\u{feff}{text}")), "behind a byte order mark: {text}");
        }
        assert!(
            is_ci_file(Path::new("a/.gitlab-ci.yml"), "") && is_ci_file(Path::new("x.gitlab-ci.yml"), "")
        );
    }
}
