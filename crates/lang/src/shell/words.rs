//! Splits a shell script into words and operators. Quotes stay in the words.

/// A word, and its properties that matter for failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word<'t> {
    pub(super) text: &'t str,
    pub(super) at: usize,
    pub(super) is_redirection: bool,
    /// True if it takes the output of a command that can fail.
    pub(super) substitutes: bool,
    pub(super) asks_status: bool,
}

/// A word or an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token<'t> {
    Word(Word<'t>),
    /// A line end or `;`.
    Separator,
    /// `&`
    Background,
    /// `&&`
    And,
    /// `||`
    Or,
    /// `|` or `|&`
    Pipe,
}

/// Commands that do not fail in practice when a word takes their output.
const SAFE_OUTPUT: [&str; 12] = [
    "basename", "cat", "date", "dirname", "echo", "hostname", "id", "nproc", "printf", "pwd", "uname",
    "whoami",
];

/// Reads tokens. Stops early at text that it does not understand; see [`Reader::is_whole`].
pub(super) struct Reader<'t> {
    text: &'t str,
    at: usize,
    /// Here-documents that begin with the next line: their end words, and true if tabs may indent these.
    documents: Vec<(String, bool)>,
    is_broken: bool,
}

impl<'t> Reader<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        Self { text, at: 0, documents: Vec::new(), is_broken: false }
    }

    /// True if the whole text was read and understood.
    pub(super) fn is_whole(&self) -> bool {
        !self.is_broken && self.at >= self.text.len()
    }

    fn rest(&self) -> &'t str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn skip(&mut self, prefix: &str) -> bool {
        let found = self.rest().starts_with(prefix);
        if found {
            self.at += prefix.len();
        }
        found
    }

    /// Returns the next token. `None` at the end and at text that is not understood.
    pub(super) fn next(&mut self) -> Option<Token<'t>> {
        if self.is_broken {
            return None;
        }
        loop {
            let rest = self.rest();
            let first = rest.chars().next()?;
            match first {
                ' ' | '\t' | '\r' => self.at += 1,
                '\\' if self.skip("\\\n") || self.skip("\\\r\n") => {}
                '#' => self.at += rest.find('\n').unwrap_or(rest.len()),
                '\n' => {
                    self.at += 1;
                    self.here_documents();
                    return Some(Token::Separator);
                }
                _ => break,
            }
        }
        for (sign, token) in [("&&", Token::And), ("||", Token::Or), ("|&", Token::Pipe), ("|", Token::Pipe)]
        {
            if self.skip(sign) {
                return Some(token);
            }
        }
        let start = self.at;
        if self.skip("((") {
            // Arithmetic.
            self.at -= 1;
            self.up_to(')')?;
            return Some(self.word(start, false));
        }
        for sign in [";;&", ";;", "(", ")"] {
            if self.skip(sign) {
                return Some(self.word(start, false));
            }
        }
        if self.skip(";") {
            return Some(Token::Separator);
        }
        if self.rest().starts_with('&') && !self.rest().starts_with("&>") {
            self.at += 1;
            return Some(Token::Background);
        }
        self.read_word(start)
    }

    fn word(&self, start: usize, is_redirection: bool) -> Token<'t> {
        let text = self.text.get(start..self.at).unwrap_or_default();
        let substitutes = substitution(text);
        Token::Word(Word { text, at: start, is_redirection, substitutes, asks_status: text.contains("$?") })
    }

    /// Reads a word, or a redirection with its target.
    fn read_word(&mut self, start: usize) -> Option<Token<'t>> {
        while let Some(first) = self.rest().chars().next() {
            let own = self.text.get(start..self.at).unwrap_or_default();
            match first {
                // Elements of an array.
                '(' if own.ends_with('=') => self.nested()?,
                '<' | '>' if self.rest().get(1..2) == Some("(") => {
                    self.at += 1;
                    self.nested()?;
                }
                '<' | '>' if own.bytes().all(|byte| byte.is_ascii_digit()) => return self.redirection(start),
                ' ' | '\t' | '\r' | '\n' | ';' | '|' | ')' | '(' | '&' | '<' | '>' => break,
                _ => self.character(first)?,
            }
        }
        if self.at > start {
            let is_redirection = self.text.get(start..).is_some_and(|word| word.starts_with(['<', '>']));
            return Some(self.word(start, is_redirection));
        }
        self.found(self.rest().starts_with("&>").then_some(()))?;
        self.at += 1;
        self.redirection(start)
    }

    /// Reads the operator of a redirection and the word after it.
    fn redirection(&mut self, start: usize) -> Option<Token<'t>> {
        let signs = ["<<<", "<<-", "<<", "<&", "<>", ">>", ">&", ">|", "<", ">"];
        let sign = signs.into_iter().find(|sign| self.skip(sign))?;
        while self.skip(" ") || self.skip("\t") {}
        let target = self.at;
        loop {
            match self.rest().chars().next() {
                None | Some(' ' | '\t' | '\r' | '\n' | ';' | '|' | '<' | '>' | ')' | '&') => break,
                Some('(') => {
                    self.is_broken = true;
                    return None;
                }
                Some(first) => self.character(first)?,
            }
        }
        let target = self.text.get(target..self.at).unwrap_or_default();
        if sign == "<<" || sign == "<<-" {
            let end = target.chars().filter(|character| !matches!(character, '\'' | '"' | '\\')).collect();
            self.documents.push((end, sign == "<<-"));
        }
        Some(self.word(start, true))
    }

    /// Skips the here-documents that begin after this line end.
    fn here_documents(&mut self) {
        for (end, may_be_indented) in std::mem::take(&mut self.documents) {
            loop {
                let rest = self.rest();
                if rest.is_empty() {
                    break;
                }
                let line = rest.lines().next().unwrap_or_default();
                self.at = (self.at + rest.find('\n').map_or(rest.len(), |at| at + 1)).min(self.text.len());
                let line = if may_be_indented { line.trim_start_matches('\t') } else { line };
                if line == end {
                    break;
                }
            }
        }
    }

    /// Takes a character of a word with everything that it quotes or opens.
    fn character(&mut self, first: char) -> Option<()> {
        match first {
            '\'' => {
                self.at += 1;
                let end = self.found(self.rest().find('\''))?;
                self.at += end + 1;
            }
            '"' => {
                self.at += 1;
                self.double_quoted()?;
            }
            '\\' => {
                self.at += 1;
                self.at += self.rest().chars().next().map_or(0, char::len_utf8);
            }
            '`' => {
                self.at += 1;
                let end = self.found(self.rest().find('`'))?;
                self.at += end + 1;
            }
            '$' => self.dollar()?,
            other => self.at += other.len_utf8(),
        }
        Some(())
    }

    fn found<T>(&mut self, found: Option<T>) -> Option<T> {
        self.is_broken |= found.is_none();
        found
    }

    fn double_quoted(&mut self) -> Option<()> {
        loop {
            let next = self.rest().chars().next();
            match self.found(next)? {
                '"' => {
                    self.at += 1;
                    return Some(());
                }
                '\'' => self.at += 1,
                other => self.character(other)?,
            }
        }
    }

    /// Takes `$NAME`, `${…}`, `$(…)`, `$((…))`, or an expression of the language, `${{ … }}`.
    fn dollar(&mut self) -> Option<()> {
        if self.skip("${{") {
            let end = self.found(self.rest().find("}}"))?;
            self.at += end + 2;
            return Some(());
        }
        if self.rest().starts_with("$(") {
            self.at += 1;
            return self.nested();
        }
        if self.skip("${") {
            return self.up_to('}');
        }
        self.at += 1;
        Some(())
    }

    /// Skips from an opening parenthesis to its end.
    fn nested(&mut self) -> Option<()> {
        self.at += 1;
        self.up_to(')')
    }

    /// Skips to the closing sign that matches the one already read.
    fn up_to(&mut self, close: char) -> Option<()> {
        let mut open = 1_usize;
        loop {
            let next = self.rest().chars().next();
            match self.found(next)? {
                found if found == close => {
                    self.at += 1;
                    open -= 1;
                    if open == 0 {
                        return Some(());
                    }
                }
                '(' if close == ')' => {
                    self.at += 1;
                    open += 1;
                }
                other => {
                    // Too deep for a script that people write. The loop itself does not recurse.
                    if open > super::DEPTH_LIMIT {
                        self.is_broken = true;
                        return None;
                    }
                    self.quoted_or_plain(other)?;
                }
            }
        }
    }

    /// Takes a character inside of parentheses or braces. Skips quoted text but does not parse substitutions in it.
    fn quoted_or_plain(&mut self, first: char) -> Option<()> {
        match first {
            '\'' | '\\' | '`' => self.character(first),
            '"' => {
                self.at += 1;
                loop {
                    let next = self.rest().chars().next();
                    match self.found(next)? {
                        '"' => {
                            self.at += 1;
                            return Some(());
                        }
                        '\\' => self.character('\\')?,
                        other => self.at += other.len_utf8(),
                    }
                }
            }
            other => {
                self.at += other.len_utf8();
                Some(())
            }
        }
    }
}

/// True if a word takes the output of a command that can fail.
fn substitution(text: &str) -> bool {
    let opened = text.split("$(").skip(1).filter(|inner| !inner.starts_with('('));
    let quoted = text.split('`').skip(1).step_by(2);
    opened.chain(quoted).any(|inner| {
        let name = inner.trim_start().split([' ', '\t', '\n', ')', '`']).next().unwrap_or_default();
        !SAFE_OUTPUT.contains(&name)
    })
}
