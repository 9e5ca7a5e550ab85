//! Finds scripts that can succeed although a command in them failed (language.md §17, `script`).
//!
//! A shell ends with the status of its last command. Without `set -e`, the failure of any command before it is lost.
//! This module finds the first such command. It reads only as much shell as that needs and reports nothing when in
//! doubt: an unknown construct, `$?`, `&&`, `||`, `set -e` or a trap mean that the author handles failures.

mod words;

use words::{Reader, Token};

/// Commands that do not fail in practice, or whose failure does not matter. Sorted, for a binary search.
const HARMLESS: &[&str] = &[
    ":", "alias", "base64", "basename", "break", "cat", "clear", "column", "continue", "cut", "date",
    "declare", "df", "dirname", "du", "echo", "exit", "export", "false", "fold", "free", "head", "hostname",
    "id", "jobs", "let", "local", "locale", "ls", "nl", "nproc", "od", "printenv", "printf", "ps", "pwd",
    "read", "readonly", "return", "rev", "set", "shift", "shopt", "sleep", "sort", "tac", "tail", "tee",
    "tr", "trap", "tree", "true", "tty", "type", "typeset", "ulimit", "umask", "uname", "uniq", "unset",
    "wc", "xxd",
];

/// Commands that are harmless with this argument; empty stands for any arguments.
const HARMLESS_WITH: &[(&str, &str)] = &[
    ("command", "-v"),
    ("mkdir", "-p"),
    ("rm", "-f"),
    ("rm", "-fr"),
    ("rm", "-rf"),
    ("uptime", ""),
    ("wait", ""),
    ("which", ""),
];

/// Arguments that make any command print information about itself.
const ASKS_ABOUT_ITSELF: [&str; 6] = ["--version", "-version", "-v", "-V", "version", "--help"];

/// Deepest nesting that is examined.
const DEPTH_LIMIT: usize = 32;

/// Returns the byte offset of the first command whose failure is lost, in a script of at least two lines with text.
pub(super) fn lost_failure(script: &str) -> Option<usize> {
    if script.lines().filter(|line| !line.trim().is_empty()).count() < 2 {
        return None;
    }
    let mut parser = Parser { reader: Reader::new(script), next: None, is_guarded: false };
    let (list, _) = parser.list(0)?;
    // Report nothing for a script that cannot be read to its end.
    if parser.peek().is_some() {
        return None;
    }
    list.lost
}

/// Findings about a list of commands.
#[derive(Clone, Copy, Default)]
struct CommandList {
    /// True if its first command checks the status of the command before, or discards it on purpose.
    resets: bool,
    /// The first command whose failure is lost.
    lost: Option<usize>,
    /// The last command, if its failure would be lost when more commands follow.
    last: Option<usize>,
}

impl CommandList {
    /// Appends a command. `lost` and `last` of `command` are its own.
    fn push(&mut self, command: Self) {
        let before = self.last.take();
        self.lost = self.lost.or(before).or(command.lost);
        self.last = command.last;
    }

    /// Adds a branch that runs instead of the others.
    fn or(&mut self, branch: Self) {
        self.lost = self.lost.or(branch.lost);
        self.last = self.last.or(branch.last);
    }
}

/// The word that ends a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Script,
    Word(&'static str),
}

/// Reserved words that end a list of commands.
const ENDS: [&str; 11] = ["then", "elif", "else", "fi", "do", "done", "esac", "}", ")", ";;", ";;&"];

struct Parser<'t> {
    reader: Reader<'t>,
    next: Option<Token<'t>>,
    /// True once the author handles failures in the rest of the script.
    is_guarded: bool,
}

/// All methods return `None` for a script beyond what this parser understands.
impl<'t> Parser<'t> {
    fn peek(&mut self) -> Option<Token<'t>> {
        if self.next.is_none() {
            self.next = self.reader.next();
        }
        self.next
    }

    fn take(&mut self) -> Option<Token<'t>> {
        self.peek();
        self.next.take()
    }

    /// Reads commands up to and including the word that ends the list.
    fn list(&mut self, depth: usize) -> Option<(CommandList, End)> {
        if depth > DEPTH_LIMIT {
            return None;
        }
        let mut list = CommandList::default();
        let mut is_first = true;
        loop {
            match self.peek() {
                None => return self.reader.is_whole().then_some((list, End::Script)),
                Some(Token::Separator | Token::Background) => {
                    self.take();
                }
                Some(Token::Word(word)) if let Some(end) = ends(word.text) => {
                    self.take();
                    return Some((list, End::Word(end)));
                }
                Some(_) => {
                    let command = self.and_or(depth)?;
                    list.resets |= is_first && command.resets;
                    is_first = false;
                    if command.resets || self.is_guarded {
                        list.last = None;
                    }
                    if !self.is_guarded {
                        list.push(command);
                    }
                }
            }
        }
    }

    /// Reads pipelines joined by `&&` and `||`.
    fn and_or(&mut self, depth: usize) -> Option<CommandList> {
        let mut command = self.pipeline(depth)?;
        while let Some(Token::And | Token::Or) = self.peek() {
            self.take();
            while self.peek() == Some(Token::Separator) {
                self.take();
            }
            let next = self.pipeline(depth)?;
            // With these, the author handles failures.
            command = CommandList { resets: command.resets || next.resets, ..CommandList::default() };
        }
        if self.peek() == Some(Token::Background) {
            command.last = None;
        }
        Some(command)
    }

    fn pipeline(&mut self, depth: usize) -> Option<CommandList> {
        let mut whole = self.command(depth)?;
        while self.peek() == Some(Token::Pipe) {
            self.take();
            while self.peek() == Some(Token::Separator) {
                self.take();
            }
            let next = self.command(depth)?;
            whole.resets |= next.resets;
            whole.or(next);
        }
        Some(whole)
    }

    fn command(&mut self, depth: usize) -> Option<CommandList> {
        if depth > DEPTH_LIMIT {
            return None;
        }
        let mut is_negated = false;
        while let Some(Token::Word(word)) = self.peek()
            && word.text == "!"
        {
            is_negated = true;
            self.take();
        }
        let Some(Token::Word(first)) = self.peek() else { return None };
        let list = match first.text {
            "if" => self.conditional(depth)?,
            "while" | "until" => {
                self.take();
                self.body_after_condition(depth)?
            }
            "for" | "select" => {
                self.take();
                self.skip_to_do()?;
                self.body(depth)?
            }
            "case" => self.cases(depth)?,
            "{" => self.group(depth, "}")?,
            "(" => self.group(depth, ")")?,
            "function" => return None,
            _ => self.simple(depth)?,
        };
        self.redirections()?;
        Some(if is_negated { CommandList { resets: list.resets, ..CommandList::default() } } else { list })
    }

    fn group(&mut self, depth: usize, end: &'static str) -> Option<CommandList> {
        self.take();
        let (list, found) = self.list(depth + 1)?;
        (found == End::Word(end)).then_some(list)
    }

    /// Reads `if` with its branches. The failure of a condition is not lost.
    fn conditional(&mut self, depth: usize) -> Option<CommandList> {
        self.take();
        let mut all = CommandList::default();
        let mut is_first = true;
        loop {
            let (condition, end) = self.list(depth + 1)?;
            if end != End::Word("then") {
                return None;
            }
            all.resets |= std::mem::take(&mut is_first) && condition.resets;
            all.lost = all.lost.or(condition.lost);
            let (branch, end) = self.list(depth + 1)?;
            all.or(branch);
            match end {
                End::Word("elif") => {}
                End::Word("else") => {
                    let (branch, end) = self.list(depth + 1)?;
                    all.or(branch);
                    return (end == End::Word("fi")).then_some(all);
                }
                End::Word("fi") => return Some(all),
                End::Word(_) | End::Script => return None,
            }
        }
    }

    fn body_after_condition(&mut self, depth: usize) -> Option<CommandList> {
        let (condition, end) = self.list(depth + 1)?;
        if end != End::Word("do") {
            return None;
        }
        let list = self.body_of_do(depth)?;
        Some(CommandList { resets: condition.resets, lost: condition.lost.or(list.lost), last: list.last })
    }

    fn body(&mut self, depth: usize) -> Option<CommandList> {
        match self.take()? {
            Token::Word(word) if word.text == "do" => self.body_of_do(depth),
            _ => None,
        }
    }

    fn body_of_do(&mut self, depth: usize) -> Option<CommandList> {
        let (list, end) = self.list(depth + 1)?;
        (end == End::Word("done")).then_some(list)
    }

    fn skip_to_do(&mut self) -> Option<()> {
        loop {
            match self.peek()? {
                Token::Word(word) if word.text == "do" => return Some(()),
                Token::Word(_) | Token::Separator => {
                    self.take();
                }
                _ => return None,
            }
        }
    }

    /// Reads `case WORD in PATTERN) LIST ;; … esac`.
    fn cases(&mut self, depth: usize) -> Option<CommandList> {
        self.take();
        let mut all = CommandList::default();
        loop {
            match self.take()? {
                Token::Word(word) if word.text == "in" => break,
                Token::Word(word) => all.resets |= word.asks_status,
                Token::Separator => {}
                _ => return None,
            }
        }
        loop {
            while self.peek()? == Token::Separator {
                self.take();
            }
            if let Some(Token::Word(word)) = self.peek()
                && word.text == "esac"
            {
                self.take();
                return Some(all);
            }
            self.pattern()?;
            let (branch, end) = self.list(depth + 1)?;
            all.or(branch);
            match end {
                End::Word(";;" | ";;&") => {}
                End::Word("esac") => return Some(all),
                End::Word(_) | End::Script => return None,
            }
        }
    }

    fn pattern(&mut self) -> Option<()> {
        loop {
            match self.take()? {
                Token::Word(word) if word.text == ")" => return Some(()),
                Token::Word(_) | Token::Pipe => {}
                _ => return None,
            }
        }
    }

    /// Reads redirections after a compound command.
    fn redirections(&mut self) -> Option<()> {
        while let Some(Token::Word(word)) = self.peek() {
            if ends(word.text).is_some() {
                break;
            }
            if !word.is_redirection {
                return None;
            }
            self.take();
        }
        Some(())
    }

    fn simple(&mut self, depth: usize) -> Option<CommandList> {
        let mut words = Vec::new();
        while let Some(Token::Word(word)) = self.peek() {
            if [")", ";;", ";;&"].contains(&word.text) {
                break;
            }
            if word.text == "(" {
                return match words.as_slice() {
                    [_] => self.function(depth),
                    _ => None,
                };
            }
            words.push(word);
            self.take();
        }
        let at = words.first()?.at;
        let resets = words.iter().any(|word| word.asks_status);
        let plain: Vec<&str> =
            words.iter().filter(|word| !word.is_redirection).map(|word| word.text).collect();
        if guards(&plain) {
            self.is_guarded = true;
        }
        let assigned = plain.iter().take_while(|word| is_assignment(word)).count();
        let substitutes = words.iter().any(|word| word.substitutes);
        let can_fail = match plain.get(assigned..).unwrap_or_default() {
            [] => assigned > 0 && substitutes,
            // The status of these commands hides that of a command substituted into their arguments.
            ["export" | "local" | "readonly" | "declare" | "typeset", ..] => substitutes,
            [name, rest @ ..] => !is_harmless(name, rest),
        };
        // No command runs after an explicit end. With `exit 0` the author wants the script to succeed.
        let resets = resets || plain.starts_with(&["exit", "0"]);
        Some(CommandList { resets, lost: None, last: can_fail.then_some(at) })
    }

    /// Reads the body of `NAME()`. A failure at its end is the failure of its calls.
    fn function(&mut self, depth: usize) -> Option<CommandList> {
        self.take();
        match self.take()? {
            Token::Word(word) if word.text == ")" => {}
            _ => return None,
        }
        while self.peek()? == Token::Separator {
            self.take();
        }
        let was_guarded = self.is_guarded;
        let body = self.command(depth + 1)?;
        // `set -e` inside takes effect only with a call.
        if self.is_guarded && !was_guarded {
            return None;
        }
        Some(CommandList { lost: body.lost, ..CommandList::default() })
    }
}

fn ends(word: &str) -> Option<&'static str> {
    ENDS.into_iter().find(|end| *end == word)
}

/// True if the shell or the script handles failures from this command on, or the author waives that with `set +e`.
fn guards(words: &[&str]) -> bool {
    match words {
        ["set", options @ ..] => {
            options.iter().any(|option| {
                *option == "errexit"
                    || option
                        .strip_prefix('-')
                        .is_some_and(|short| !short.starts_with('-') && short.contains('e'))
            }) || options.iter().any(|option| option.starts_with("+e"))
        }
        ["trap", rest @ ..] => rest.contains(&"ERR"),
        _ => false,
    }
}

fn is_assignment(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| super::name::is_valid(name.trim_end_matches('+')))
}

fn is_harmless(name: &str, arguments: &[&str]) -> bool {
    HARMLESS.binary_search(&name).is_ok()
        || HARMLESS_WITH.iter().any(|(known, with)| {
            *known == name && (with.is_empty() || arguments.iter().any(|argument| argument == with))
        })
        || (matches!(name, "env" | "exec") && arguments.is_empty())
        || name.starts_with("((")
        || matches!(arguments, [only] if ASKS_ABOUT_ITSELF.contains(only))
}

#[cfg(test)]
mod tests;
