//! `--env-file`: variables of the steps' environment, one a line (cli.md §2).

use std::ffi::OsString;
use std::path::Path;

use super::text_file::read_text;
use crate::error::{Exit, Failure};

/// Reads the variables in a file. `lookup` knows the caller's environment. Errors name the line, and never a value.
pub(super) fn read(
    path: &Path,
    lookup: &impl Fn(&str) -> Option<OsString>,
) -> Result<Vec<(String, String)>, Failure> {
    let option = format!("--env-file {}", path.display());
    let refuse = |what: String| Failure::new(Exit::Usage, format!("{option}{what}"));
    let text = read_text(path, &option)?;
    let mut variables = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let read = variable(line, lookup).map_err(|what| refuse(format!(":{}: {what}", at + 1)))?;
        variables.extend(read);
    }
    Ok(variables)
}

/// Reads a line. Blank lines and comments are none.
fn variable(
    line: &str,
    lookup: &impl Fn(&str) -> Option<OsString>,
) -> Result<Option<(String, String)>, &'static str> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return Ok(None);
    }
    let line = line.strip_prefix("export ").map_or(line, str::trim_start);
    let Some((name, value)) = line.split_once('=') else {
        if line.contains(char::is_whitespace) {
            return Err("write NAME=VALUE, or NAME for a copy of the caller's variable");
        }
        let value = lookup(line).ok_or("there is no variable of this name in the environment")?;
        let value = value.into_string().map_err(|_| "the value of this variable is not UTF-8")?;
        return Ok(Some((line.to_owned(), value)));
    };
    let name = name.trim_end();
    if name.is_empty() || name.contains(char::is_whitespace) {
        return Err("write NAME=VALUE, with a name without blanks before the `=`");
    }
    Ok(Some((name.to_owned(), unquoted(value.trim_start())?)))
}

/// Returns a value without its quotes. Within double quotes a backslash stands before a special character.
fn unquoted(value: &str) -> Result<String, &'static str> {
    const OPEN: &str = "the value has no closing quote";
    if let Some(rest) = value.strip_prefix('\'') {
        return rest.strip_suffix('\'').map(str::to_owned).ok_or(OPEN);
    }
    let Some(rest) = value.strip_prefix('"') else { return Ok(value.to_owned()) };
    let mut text = String::new();
    let mut letters = rest.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '"' if letters.as_str().is_empty() => return Ok(text),
            '\\' => match letters.next().ok_or(OPEN)? {
                'n' => text.push('\n'),
                't' => text.push('\t'),
                other @ ('"' | '\\' | '$') => text.push(other),
                other => text.extend(['\\', other]),
            },
            other => text.push(other),
        }
    }
    Err(OPEN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_line(line: &str) -> Result<Option<(String, String)>, &'static str> {
        variable(line, &|name: &str| (name == "OWN").then(|| "mine".into()))
    }

    #[test]
    fn a_line_is_a_variable_as_people_write_it() {
        for (line, value) in [
            ("A=b", "b"),
            ("A = b c ", "b c"),
            ("export A=b", "b"),
            ("A=", ""),
            ("A=b=c", "b=c"),
            ("A=b # no comment", "b # no comment"),
            ("A='x $Y \"z\"'", "x $Y \"z\""),
            (r#"A="one\ntwo \"three\" \$4 \d""#, "one\ntwo \"three\" $4 \\d"),
        ] {
            assert_eq!(read_line(line), Ok(Some(("A".to_owned(), value.to_owned()))), "{line}");
        }
        assert_eq!(read_line("OWN"), Ok(Some(("OWN".to_owned(), "mine".to_owned()))));
        for line in ["", "  ", "# comment"] {
            assert_eq!(read_line(line), Ok(None));
        }
        for line in ["=x", "A B=c", "two words", "NO_SUCH", "A='x", "A=\"x", "A=\"x\\"] {
            assert!(read_line(line).is_err(), "{line}");
        }
    }
}
