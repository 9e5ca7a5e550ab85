//! The program of a failed step as its author wrote it, and the place in it where the step stopped.
//!
//! Results name the process that ran. A script that went through a file names a file of the daemon, which is gone when
//! people read of it: the text is among the inputs of the step.

use prost_types::value::Kind;

use super::states::printable;
use super::stopped::{self, ShellReport};
use super::tail::{LINE_LENGTH, StepOutput};
use crate::pb::v1;
use v1::StepReferenceProtocol;

/// Line of `script_legacy` before each command: the command in bold green.
const PROMPT: &str = "\u{1b}[32;1m$ ";

/// End of such a line.
const PROMPT_END: &str = "\u{1b}[0;m";

/// Mark behind the first line of a command of several lines.
const COLLAPSED: &str = " # collapsed multi-line command";

/// A program as written.
pub(super) enum Program<'a> {
    /// A command line.
    Command,
    /// The text of a script. The file holds it if it was too long for an argument.
    Script { text: &'a str, file: Option<&'a str> },
    /// The commands of a `script_legacy`.
    Commands(Vec<&'a str>),
}

/// The program of a step.
pub(super) struct Written<'a> {
    /// The words of its process.
    pub(super) command: &'a [String],
    pub(super) program: Program<'a>,
}

impl<'a> Written<'a> {
    /// Returns the program of a step that has run a process.
    pub(super) fn of(result: &'a v1::StepResult) -> Option<Self> {
        let command = &*result.exec_result.as_ref()?.command;
        let program = match (stopped::script(command), command, script_input(result)) {
            (Some(text), ..) => Program::Script { text, file: None },
            (None, [_, file], Some(Kind::StringValue(text))) => Program::Script { text, file: Some(file) },
            (None, [_, _], Some(Kind::ListValue(list))) => {
                Program::Commands(list.values.iter().map(text_of).collect())
            }
            _ => Program::Command,
        };
        Some(Self { command, program })
    }

    /// Returns the index of the line of the script, or of the command, where the step stopped.
    pub(super) fn stopped_at(&self, report: Option<&ShellReport>, printed: &StepOutput) -> Option<usize> {
        match &self.program {
            Program::Command => None,
            Program::Script { text, file } => {
                let report = report.filter(|report| report.line_of(text, *file).is_some())?;
                report.line.checked_sub(1)
            }
            Program::Commands(commands) => last_begun(commands, &prompts(printed)),
        }
    }

    /// Returns the rows of a summary for it: a text of several lines in as many rows. The row where the step stopped is
    /// marked.
    pub(super) fn rows(&self, stopped_at: Option<usize>) -> Vec<String> {
        /// Maximum number of lines shown.
        const SHOWN: usize = 15;
        let (all, stopped_at) = self.lines(stopped_at);
        let is_in_command = matches!(self.program, Program::Command | Program::Script { file: None, .. });
        if is_in_command && all.len() < 2 {
            return vec![format!("  command    {}", command_line(self.command))];
        }
        // The line where the script stopped is near the end of the part shown.
        let last = stopped_at.map_or(SHOWN, |at| (at + 3).max(SHOWN)).min(all.len());
        let first = last.saturating_sub(SHOWN);
        let mut rows = vec![format!("  command    {}", command_line(self.shell()))];
        let omitted = |omitted: bool| omitted.then(|| "               …".to_owned());
        rows.extend(omitted(first > 0));
        for (at, line) in all.iter().enumerate().take(last).skip(first) {
            let mark = if stopped_at == Some(at) { '>' } else { ' ' };
            let line: String = printable(&line.replace('\t', "    ")).chars().take(LINE_LENGTH).collect();
            rows.push(format!("             {mark} {line}").trim_end().to_owned());
        }
        rows.extend(omitted(last < all.len()));
        rows
    }

    /// Returns the words of the command before the text.
    fn shell(&self) -> &'a [String] {
        let words = match self.program {
            Program::Command => self.command.len(),
            Program::Script { file: None, .. } => 2,
            Program::Script { .. } | Program::Commands(_) => 1,
        };
        self.command.get(..words).unwrap_or_default()
    }

    /// Returns the lines of the text, and the index of the one where the step stopped. A command line has none.
    fn lines(&self, stopped_at: Option<usize>) -> (Vec<&'a str>, Option<usize>) {
        match &self.program {
            Program::Command => (Vec::new(), None),
            Program::Script { text, .. } => (text.trim_end().lines().collect(), stopped_at),
            Program::Commands(commands) => {
                let before = stopped_at.and_then(|at| commands.get(..at)).unwrap_or_default();
                let row = before.iter().map(|command| command.trim().lines().count().max(1)).sum();
                let lines = commands.iter().flat_map(|command| match command.trim() {
                    "" => vec![""],
                    command => command.lines().collect(),
                });
                (lines.collect(), stopped_at.map(|_| row))
            }
        }
    }
}

/// Returns the command as one would type it: words with anything but plain characters are in quotes.
pub(super) fn command_line(words: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./=:,@%+".contains(c);
    let quote = |word: &String| {
        if !word.is_empty() && word.chars().all(plain) {
            word.clone()
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
    };
    let line = printable(&words.iter().map(quote).collect::<Vec<_>>().join(" "));
    if line.chars().count() <= LINE_LENGTH {
        line
    } else {
        line.chars().take(LINE_LENGTH).chain("…".chars()).collect()
    }
}

/// Returns the input `script` of a builtin.
fn script_input(result: &v1::StepResult) -> Option<&Kind> {
    let step = result.step.as_ref()?;
    let is_builtin =
        step.step.as_ref().is_some_and(|called| called.protocol() == StepReferenceProtocol::Dist);
    step.inputs.get("script").filter(|_| is_builtin)?.kind.as_ref()
}

fn text_of(value: &prost_types::Value) -> &str {
    match &value.kind {
        Some(Kind::StringValue(text)) => text,
        _ => "",
    }
}

/// Returns the first lines of the commands that a `script_legacy` has begun, as far as the end of the log has them.
fn prompts(printed: &StepOutput) -> Vec<String> {
    let begun = |line: &str| {
        let (_, shown) = line.split_once(PROMPT)?;
        let shown = shown.split_once(PROMPT_END).map_or(shown, |(shown, _)| shown);
        Some(shown.strip_suffix(COLLAPSED).unwrap_or(shown).to_owned())
    };
    printed.stdout().iter().filter_map(|line| begun(line)).collect()
}

/// Returns the index of the command that was begun last. Of equal commands it is the one before which the others were
/// begun, too.
fn last_begun(commands: &[&str], prompts: &[String]) -> Option<usize> {
    let first_line = |command: &str| command.trim().lines().next().unwrap_or_default().to_owned();
    // An empty command has no prompt.
    let written: Vec<(usize, String)> = commands
        .iter()
        .enumerate()
        .map(|(at, command)| (at, first_line(command)))
        .filter(|(_, line)| !line.is_empty())
        .collect();
    let agreeing = |end: usize| {
        let before = written.get(..=end).unwrap_or_default().iter().rev();
        before.zip(prompts.iter().rev()).take_while(|((_, line), prompt)| line == *prompt).count()
    };
    let best = (0..written.len()).rev().max_by_key(|end| agreeing(*end)).filter(|end| agreeing(*end) > 0)?;
    written.get(best).map(|(at, _)| *at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_equal_commands_the_one_is_found_whose_predecessors_were_begun() {
        let commands = ["echo a", "", "false || true", "echo a", "make\nmake test", "echo a"];
        let at = |prompts: &[&str]| {
            let prompts: Vec<String> = prompts.iter().map(|&prompt| prompt.to_owned()).collect();
            last_begun(&commands, &prompts)
        };
        assert_eq!(at(&["echo a"]), Some(0));
        assert_eq!(at(&["echo a", "false || true"]), Some(2));
        assert_eq!(at(&["echo a", "false || true", "echo a"]), Some(3));
        assert_eq!(at(&["echo a", "false || true", "echo a", "make"]), Some(4));
        // The log begins in the middle.
        assert_eq!(at(&["make", "echo a"]), Some(5));
        assert_eq!(at(&[]), None);
        assert_eq!(at(&["something else"]), None);
    }
}
