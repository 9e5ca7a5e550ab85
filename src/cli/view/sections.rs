//! Section markers of the log viewer of a GitLab Runner.

/// Opens the section of the step at `path`, at `at` in microseconds since the epoch.
pub(super) fn start(path: &[String], at: i64) -> String {
    format!("\x1b[0Ksection_start:{}:{}\r\x1b[0K", at / 1_000_000, key(path))
}

pub(super) fn end(path: &[String], at: i64) -> String {
    format!("\x1b[0Ksection_end:{}:{}\r\x1b[0K", at / 1_000_000, key(path))
}

/// Returns a section's name in the characters that a marker takes.
fn key(path: &[String]) -> String {
    let of_name = |name: &String| -> String {
        name.chars().map(|c| if c.is_ascii_alphanumeric() || "_-".contains(c) { c } else { '_' }).collect()
    };
    format!("step.{}", path.iter().map(of_name).collect::<Vec<_>>().join("."))
}
