//! Texts of lines `KEY=value`: `dotenv` reports, and the files of `--var-file` (ci.md §2, §3).

use super::{Defined, Level};

/// Largest `dotenv` report in bytes, as in GitLab.
pub const REPORT_LIMIT: usize = 5 * 1024;

/// Reads the variables. Of equal names the last counts. The error names the line, and never a value.
pub fn read(text: &str) -> Result<Level, String> {
    let mut level = Level::new();
    for (index, line) in text.lines().enumerate() {
        let Some((name, value)) = line.split_once('=').filter(|(name, _)| is_name(name)) else {
            return Err(format!(
                "line {} is not KEY=value; blank lines and comments are not possible",
                index + 1
            ));
        };
        level.insert(name.to_owned(), Defined::expanded(value));
    }
    Ok(level)
}

/// True for a name of ASCII letters, digits and `_`.
fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_a_variable_and_the_last_of_a_name_counts() {
        let level = read("A=1\nB=x = \"y\" # z\nA=\n").unwrap();
        let values: Vec<(&str, &str)> =
            level.iter().map(|(name, defined)| (name.as_str(), defined.value.as_str())).collect();
        assert_eq!(values, [("A", ""), ("B", "x = \"y\" # z")]);
        assert!(read("").unwrap().is_empty());
        assert_eq!(read("A_1=x").unwrap()["A_1"].value, "x");
        assert_eq!(REPORT_LIMIT, 5_120);
    }

    #[test]
    fn other_lines_are_refused_without_what_they_hold() {
        for text in ["A=1\n\n", "# secret", "secret", "=secret", "a b=secret"] {
            let error = read(text).unwrap_err();
            assert!(error.starts_with("line ") && !error.contains("secret"), "{error}");
        }
    }
}
