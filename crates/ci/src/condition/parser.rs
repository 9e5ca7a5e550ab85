//! Parses an expression of `rules:if`. `!` binds most, then comparisons, `&&`, `||`.

use super::token::{self, Token};
use super::{Mistake, Tree};
use crate::pattern;

/// Deepest nesting of parentheses and `!`.
const NESTING_LIMIT: usize = 64;

/// Maximum number of tokens. Trees of `&&` grow to one side, and walking them takes a stack.
const TOKENS_LIMIT: usize = 1_000;

/// Parses a whole expression.
pub(super) fn parse(text: &str) -> Result<Tree, Mistake> {
    let tokens = token::tokens(text)?;
    if let Some((offset, _)) = tokens.get(TOKENS_LIMIT) {
        return Err(Mistake {
            offset: *offset,
            message: format!("the expression has more than {TOKENS_LIMIT} words"),
            help: Some("use several rules"),
        });
    }
    let mut parser = Parser { tokens: &tokens, next: 0, end: text.trim_end().len(), depth: 0 };
    let tree = parser.or()?;
    match parser.peek() {
        None => Ok(tree),
        Some(_) => Err(parser.mistake("expected \"&&\", \"||\" or the end", None)),
    }
}

/// Returns pattern and flags if the whole text is `/pattern/flags`.
pub(super) fn split_pattern(text: &str) -> Option<(&str, &str)> {
    let (pattern, flags, length) = token::pattern(text)?;
    (length == text.len()).then_some((pattern, flags))
}

struct Parser<'t> {
    tokens: &'t [(usize, Token)],
    next: usize,
    end: usize,
    depth: usize,
}

impl Parser<'_> {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.next).map(|(_, token)| token)
    }

    fn take(&mut self, wanted: &Token) -> bool {
        let is_next = self.peek() == Some(wanted);
        self.next += usize::from(is_next);
        is_next
    }

    fn mistake(&self, message: &str, help: Option<&'static str>) -> Mistake {
        let offset = self.tokens.get(self.next).map_or(self.end, |(offset, _)| *offset);
        Mistake { offset, message: message.to_owned(), help }
    }

    fn or(&mut self) -> Result<Tree, Mistake> {
        let mut left = self.and()?;
        while self.take(&Token::Or) {
            left = Tree::Or(Box::new(left), Box::new(self.and()?));
        }
        Ok(left)
    }

    fn and(&mut self) -> Result<Tree, Mistake> {
        let mut left = self.comparison()?;
        while self.take(&Token::And) {
            left = Tree::And(Box::new(left), Box::new(self.comparison()?));
        }
        Ok(left)
    }

    fn comparison(&mut self) -> Result<Tree, Mistake> {
        let left = Box::new(self.operand()?);
        let (negated, is_match) = match self.peek() {
            Some(Token::Equal) => (false, false),
            Some(Token::NotEqual) => (true, false),
            Some(Token::Matches) => (false, true),
            Some(Token::NotMatches) => (true, true),
            _ => return Ok(*left),
        };
        self.next += 1;
        let at = self.next;
        let right = Box::new(self.operand()?);
        if !is_match {
            return Ok(Tree::Equal { left, right, negated });
        }
        if let Tree::Pattern { pattern, flags } = &*right
            && let Err(message) = pattern::regex(pattern, flags)
        {
            let offset = self.tokens.get(at).map_or(self.end, |(offset, _)| *offset);
            return Err(Mistake { offset, message, help: None });
        }
        Ok(Tree::Matches { left, right, negated })
    }

    fn operand(&mut self) -> Result<Tree, Mistake> {
        if self.depth >= NESTING_LIMIT {
            return Err(self.mistake("the expression is nested too deeply", None));
        }
        let Some(token) = self.peek().cloned() else {
            return Err(self.mistake("the expression ends too early", Some("a value is missing")));
        };
        self.next += 1;
        self.depth += 1;
        let tree = match token {
            Token::Not => Tree::Not(Box::new(self.operand()?)),
            Token::Open => {
                let inner = self.or()?;
                if !self.take(&Token::Close) {
                    let message = if self.peek().is_some() {
                        "expected \")\""
                    } else {
                        "the expression ends without \")\""
                    };
                    return Err(self.mistake(message, None));
                }
                inner
            }
            Token::Variable(name) => Tree::Variable(name),
            Token::Text(text) => Tree::Text(text),
            Token::Pattern { pattern, flags } => Tree::Pattern { pattern, flags },
            Token::Null => Tree::Null,
            _ => {
                self.next -= 1;
                return Err(
                    self.mistake("expected a value", Some("a value is a $NAME, a text in quotes or null"))
                );
            }
        };
        self.depth -= 1;
        Ok(tree)
    }
}
