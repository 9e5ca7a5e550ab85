//! Finds out if a program runs scripts, and if a script can succeed although a command in them failed (language.md §17, `script`).
//!
//! A shell ends with the status of its last command. Without `set -e`, the failure of any command before it is lost. This
//! module does not read shell: it looks at the first word of each line, and says nothing at the first sign that the author
//! looks after failures.

/// Signs, anywhere in a script, that its author looks after failures.
const SIGNS: [&str; 3] = ["&&", "||", "$?"];

/// First words of lines that do not fail in practice. Loops that wait for something begin with a command that may fail.
const HARMLESS: [&str; 10] =
    [":", "echo", "export", "printf", "set", "shift", "sleep", "unset", "until", "while"];

/// True if a program of this name or path runs the text after `-c` as shells do.
pub(super) fn is_shell(program: &str) -> bool {
    ["sh", "bash", "ash", "dash", "ksh"].contains(&program.rsplit('/').next().unwrap_or(program))
}

/// Returns the byte offset of the first line of a script whose failure is lost: a line follows it, and nothing in the
/// script looks after failures.
pub(super) fn lost_failure(script: &str) -> Option<usize> {
    if SIGNS.iter().any(|sign| script.contains(sign)) || script.lines().any(ends_at_failures) {
        return None;
    }
    let (mut offset, mut continues, mut lost) = (0, false, None);
    for line in script.split_inclusive('\n') {
        let text = line.trim();
        if !continues && !text.is_empty() && !text.starts_with('#') {
            if lost.is_some() {
                return lost;
            }
            let first = text.split_ascii_whitespace().next().unwrap_or_default();
            if !HARMLESS.contains(&first) {
                lost = Some(offset + line.len() - line.trim_start().len());
            }
        }
        continues = text.ends_with('\\');
        offset += line.len();
    }
    None
}

/// True for lines such as `set -eu` and `set -o errexit`, and for traps.
fn ends_at_failures(line: &str) -> bool {
    let mut words = line.split_ascii_whitespace();
    match words.next() {
        Some("set") => words.any(|word| word == "errexit" || word.starts_with('-') && word.contains('e')),
        Some("trap") => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
