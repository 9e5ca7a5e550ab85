//! Comments that silence the warnings of a line (language.md §18): `# step-runner: allow CLASS, CLASS`.

use crate::diagnostic::{Diagnostic, Severity};

/// Begins the comment. A `#` and any blanks stand before it, and blanks or classes behind it.
const MARKER: &str = "step-runner:";

/// Removes the warnings whose line in `text` allows their class. Errors stay.
pub(super) fn filter(text: &str, found: &mut Vec<Diagnostic>) {
    let is_warning = |finding: &Diagnostic| finding.severity == Severity::Warning;
    if !found.iter().any(is_warning) || !text.contains(MARKER) {
        return;
    }
    let lines: Vec<&str> = text.lines().collect();
    found.retain(|finding| {
        let index = usize::try_from(finding.at.line).unwrap_or(usize::MAX).wrapping_sub(1);
        let is_allowed = lines.get(index).is_some_and(|line| allows(line, finding.class.word()));
        !(is_warning(finding) && is_allowed)
    });
}

/// True if a line has a comment that allows a class.
fn allows(line: &str, class: &str) -> bool {
    let Some((before, behind)) = line.split_once(MARKER) else { return false };
    let Some(classes) = behind.trim_start().strip_prefix("allow ") else { return false };
    before.trim_end().ends_with('#') && classes.split(',').any(|allowed| allowed.trim() == class)
}
