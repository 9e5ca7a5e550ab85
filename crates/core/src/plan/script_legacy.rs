//! Script of the builtin `script_legacy`: commands of a CI job as CI runners have always run them (language.md §17).
//!
//! The script works in every POSIX shell. It prints each command exactly: the command is a single-quoted argument of
//! `printf`, so no shell and no `echo` interprets it.

use std::fmt::Write as _;

use step_runner_lang::convert::to_text;
use step_runner_lang::value::{Data, Value};

/// File in the project's temporary folder through which commands set variables for each other.
const ENV_FILE: &str = "gitlab_runner_env";

/// Exports each line of the file that `GITLAB_ENV` names. `read` must not split or unescape, and the last line may lack
/// its line feed.
const READ_ENV_FILE: &str = "\
if [ -f \"$GITLAB_ENV\" ]; then
  while IFS= read -r step_runner_line || [ -n \"$step_runner_line\" ]; do
    if [ -n \"$step_runner_line\" ]; then export \"$step_runner_line\"; fi
  done <\"$GITLAB_ENV\"
  unset step_runner_line
fi
";

/// Ends the script with the status of the previous command if that failed.
const CHECK: &str = "\
step_runner_status=$?
if [ \"$step_runner_status\" -ne 0 ]; then exit \"$step_runner_status\"; fi
";

/// Options of the script. `posix_escape` is not one of them: the quoting used here works in every POSIX shell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options<'a> {
    /// True if the shell prints every command that it runs.
    pub(crate) debug_trace: bool,
    /// True if a test of its status follows each command.
    pub(crate) check_for_errors: bool,
    /// True if commands of several lines become sections that a log viewer can fold.
    pub(crate) trace_sections: bool,
    /// The job variable `RUNNER_TEMP_PROJECT_DIR`.
    pub(crate) project_dir: Option<&'a str>,
}

/// Returns the commands in the input `script`, or the mistake in it.
pub(crate) fn commands(script: &Value) -> Result<Vec<String>, String> {
    let Data::Array(items) = &script.data else { return Err("expected an array of strings".to_owned()) };
    if items.is_empty() {
        return Err("expected at least one command, got an empty array".to_owned());
    }
    let text = |(index, item): (usize, &Value)| match &item.data {
        Data::String(text) if text.contains('\0') => {
            Err(format!("element {}: holds a NUL character, which no shell can read", index + 1))
        }
        Data::String(text) => Ok(text.clone()),
        Data::Bool(_) | Data::Number(_) => Ok(to_text(item)),
        Data::Null | Data::Array(_) | Data::Object(_) => {
            Err(format!("element {}: expected string, got {}", index + 1, item.type_name()))
        }
    };
    items.iter().enumerate().map(text).collect()
}

/// Returns the script without its first line, which names the shell.
pub(crate) fn text(commands: &[String], options: Options<'_>) -> String {
    let mut script = head(options);
    for (number, command) in commands.iter().enumerate() {
        add_command(&mut script, number, command.trim(), options);
    }
    script
}

fn head(options: Options<'_>) -> String {
    let mut head = String::from("trap exit 1 TERM\n");
    head.push_str("if (set -o pipefail) 2>/dev/null; then set -o pipefail; fi\n");
    head.push_str("set -o errexit\n");
    if options.debug_trace {
        head.push_str("set -o xtrace\n");
    }
    head.push_str("set +o noclobber\n");
    if let Some(folder) = options.project_dir.filter(|folder| !folder.is_empty()) {
        let path = quoted(&format!("{folder}/{ENV_FILE}"));
        head.push_str("GITLAB_ENV=");
        head.push_str(&path);
        head.push_str("\nexport GITLAB_ENV\n");
        head.push_str(READ_ENV_FILE);
    }
    head
}

fn add_command(script: &mut String, number: usize, command: &str, options: Options<'_>) {
    if command.is_empty() {
        script.push_str("echo\n");
        return;
    }
    let first_line = command.lines().next().unwrap_or_default();
    let is_long = first_line.len() < command.len();
    let in_section = is_long && options.trace_sections;
    if in_section {
        let marker = format!("section_script_step_{number}[hide_duration=true,collapsed=true]");
        section(script, &format!("section_start:%s:{marker}\\r\\033[0K"));
    }
    let shown = if is_long && !in_section {
        format!("$ {first_line} # collapsed multi-line command")
    } else {
        format!("$ {command}")
    };
    add_line(script, &format!("printf '\\033[32;1m%s\\033[0;m\\n' {}", quoted(&shown)));
    add_line(script, command);
    if command.ends_with('\\') {
        // An empty line ends the command. Otherwise its backslash would join it to our next line.
        script.push('\n');
    }
    if in_section {
        end_section(script, number);
    }
    if options.check_for_errors {
        script.push_str(CHECK);
    }
}

/// Ends the section of a command and keeps the command's status. Never reached if the command ended the script.
fn end_section(script: &mut String, number: usize) {
    script.push_str("step_runner_status=$?\n");
    section(script, &format!("section_end:%s:section_script_step_{number}\\r\\033[0K\\n"));
    // On the left of `&&`, errexit ignores a status that it has already let pass.
    script.push_str("(exit \"$step_runner_status\") && :\n");
}

/// Prints a marker with the time at which the script reaches it.
fn section(script: &mut String, format: &str) {
    // Writing to a string cannot fail.
    writeln!(script, "printf '{format}' \"$(date +%s)\"").ok();
}

fn add_line(script: &mut String, line: &str) {
    script.push_str(line);
    script.push('\n');
}

/// Quotes `text` as one word for every POSIX shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests;
