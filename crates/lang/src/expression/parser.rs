//! Precedence parser of expressions. A chain of operators of one level becomes one node. So only brackets and
//! interpolations nest, and the parser counts them.

use super::lexer::{Lexer, Token};
use super::string::{self, Piece};
use super::{NESTING_LIMIT, ParseError, RESERVED};
use crate::ast::{Access, BinaryOperator, Expression, ExpressionKind, Part, UnaryOperator};
use crate::diagnostic::Position;
use crate::value::{Data, Value};
use crate::yaml::places::Places;

type Result<T> = std::result::Result<T, ParseError>;

/// Operators of one level whose last operand is still missing.
struct Chain {
    first: Expression,
    rest: Vec<(BinaryOperator, Expression)>,
    /// The operator before the next operand.
    operator: BinaryOperator,
}

impl Chain {
    fn add(&mut self, operand: Expression, next: BinaryOperator) {
        self.rest.push((std::mem::replace(&mut self.operator, next), operand));
    }

    fn close(mut self, operand: Expression) -> Expression {
        self.rest.push((self.operator, operand));
        let at = self.first.at;
        Expression { kind: ExpressionKind::Binary(Box::new(self.first), self.rest), at }
    }
}

pub(super) struct Parser<'t, 'p> {
    text: &'t str,
    places: &'p Places,
    lexer: Lexer<'t>,
    /// The next token and its offset, once peeked.
    peeked: Option<(Token<'t>, usize)>,
    depth: usize,
    /// Open braces in the innermost template. Inside them `}` closes an object.
    braces: usize,
}

impl<'t, 'p> Parser<'t, 'p> {
    pub(super) const fn new(text: &'t str, start: usize, places: &'p Places) -> Self {
        Self { text, places, lexer: Lexer::new(text, start), peeked: None, depth: 0, braces: 0 }
    }

    pub(super) fn reached_end(&self) -> bool {
        matches!(self.peeked, Some((Token::End, _)))
    }

    /// Parses an expression and its `}}`. Also returns the offset after it.
    pub(super) fn embedded(&mut self) -> Result<(Expression, usize)> {
        if self.peek()? == Token::Close {
            return Err(self.error_here("empty expression"));
        }
        let expression = self.expression()?;
        match self.peek()? {
            Token::Close => {
                self.peeked = None;
                Ok((expression, self.lexer.offset))
            }
            _ => Err(self.unexpected("an operator or \"}}\"")),
        }
    }

    /// Parses an expression up to the end of the text.
    pub(super) fn whole(&mut self) -> Result<Expression> {
        let expression = self.expression()?;
        match self.peek()? {
            Token::End => Ok(expression),
            _ => Err(self.unexpected("an operator or the end")),
        }
    }

    /// Parses operands joined by operators. Recurses only for brackets, to spare the thread's stack.
    fn expression(&mut self) -> Result<Expression> {
        let mut open: Vec<Chain> = Vec::new();
        let mut operand = self.unary()?;
        loop {
            let next = self.operator()?;
            let level = next.map_or(0, BinaryOperator::level);
            // Chains that bind more strongly than the next operator are complete.
            while let Some(chain) = open.pop_if(|chain| chain.operator.level() > level) {
                operand = chain.close(operand);
            }
            let Some(operator) = next else { return Ok(operand) };
            self.advance();
            match open.last_mut() {
                Some(chain) if chain.operator.level() == level => chain.add(operand, operator),
                _ => open.push(Chain { first: operand, rest: Vec::new(), operator }),
            }
            operand = self.unary()?;
        }
    }

    fn operator(&mut self) -> Result<Option<BinaryOperator>> {
        use BinaryOperator as Op;
        let Token::Sign(sign) = self.peek()? else { return Ok(None) };
        Ok(Some(match sign {
            "||" => Op::Or,
            "&&" => Op::And,
            "==" => Op::Equal,
            "!=" => Op::NotEqual,
            "<" => Op::Less,
            "<=" => Op::LessEqual,
            ">" => Op::Greater,
            ">=" => Op::GreaterEqual,
            "+" => Op::Add,
            "-" => Op::Subtract,
            "*" => Op::Multiply,
            "/" => Op::Divide,
            "%" => Op::Remainder,
            _ => return Ok(None),
        }))
    }

    fn unary(&mut self) -> Result<Expression> {
        let at = self.here()?;
        let mut operators = Vec::new();
        loop {
            operators.push(match self.peek()? {
                Token::Sign("+") => UnaryOperator::Plus,
                Token::Sign("-") => UnaryOperator::Minus,
                Token::Sign("!") => UnaryOperator::Not,
                _ => break,
            });
            self.advance();
        }
        let operand = self.postfix()?;
        if operators.is_empty() {
            return Ok(operand);
        }
        Ok(Expression { kind: ExpressionKind::Unary(operators, Box::new(operand)), at })
    }

    fn postfix(&mut self) -> Result<Expression> {
        let root = self.primary()?;
        let mut path = Vec::new();
        loop {
            let at = self.here()?;
            path.push(match self.peek()? {
                Token::Sign(".") => {
                    self.advance();
                    let at = self.here()?;
                    let Token::Word(name) = self.peek()? else {
                        return Err(self.unexpected("a name after \".\""));
                    };
                    self.advance();
                    Access::Member(name.to_owned(), at)
                }
                Token::Sign("[") => Access::Index(self.nested(Self::index)?, at),
                Token::Sign("(") => Access::Call(self.nested(|parser| parser.list(")", false))?, at),
                _ => break,
            });
        }
        if path.is_empty() {
            return Ok(root);
        }
        let at = root.at;
        Ok(Expression { kind: ExpressionKind::Access(Box::new(root), path), at })
    }

    fn index(&mut self) -> Result<Expression> {
        let index = self.expression()?;
        self.expect("]")?;
        Ok(index)
    }

    fn primary(&mut self) -> Result<Expression> {
        let at = self.here()?;
        let literal = |data| ExpressionKind::Literal(Value::plain(data));
        let kind = match self.peek()? {
            Token::Number(number) => {
                self.advance();
                literal(Data::Number(number))
            }
            Token::SingleQuote => {
                let open = self.advance();
                literal(Data::String(string::single(&mut self.lexer, open)?))
            }
            Token::DoubleQuote => self.double()?,
            Token::Word(word) => {
                let kind = match word {
                    "null" => literal(Data::Null),
                    "true" => literal(Data::Bool(true)),
                    "false" => literal(Data::Bool(false)),
                    _ if RESERVED.contains(&word) => {
                        return Err(
                            self.error_here(format!("\"{word}\" is a reserved word and cannot be a name"))
                        );
                    }
                    _ => ExpressionKind::Name(word.to_owned()),
                };
                self.advance();
                kind
            }
            Token::Sign("(") => {
                return self.nested(|parser| {
                    let inner = parser.expression()?;
                    parser.expect(")")?;
                    Ok(inner)
                });
            }
            Token::Sign("[") => ExpressionKind::Array(self.nested(|parser| parser.list("]", true))?),
            Token::Sign("{") => self.nested(Self::object)?,
            _ => return Err(self.unexpected("a value")),
        };
        Ok(Expression { kind, at })
    }

    /// Parses a double-quoted string: a literal, or text with expressions.
    fn double(&mut self) -> Result<ExpressionKind> {
        let open = self.advance();
        let mut parts = Vec::new();
        let mut text = String::new();
        while let Piece::Expression = string::double(&mut self.lexer, open, &mut text)? {
            if !text.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut text)));
            }
            self.enter(open)?;
            let braces = std::mem::take(&mut self.braces);
            parts.push(Part::Expression(self.embedded()?.0));
            self.braces = braces;
            self.depth -= 1;
        }
        if parts.is_empty() {
            return Ok(ExpressionKind::Literal(Value::text(text)));
        }
        if !text.is_empty() {
            parts.push(Part::Text(text));
        }
        Ok(ExpressionKind::Interpolation(parts))
    }

    /// Parses expressions separated by commas up to `close`. Its opening bracket has been read.
    fn list(&mut self, close: &'static str, trailing_comma: bool) -> Result<Vec<Expression>> {
        let mut items = Vec::new();
        if self.accept(close)? {
            return Ok(items);
        }
        loop {
            items.push(self.expression()?);
            if self.accept(",")? {
                if trailing_comma && self.accept(close)? {
                    return Ok(items);
                }
            } else {
                self.expect_or_comma(close)?;
                return Ok(items);
            }
        }
    }

    /// Parses pairs up to `}`.
    fn object(&mut self) -> Result<ExpressionKind> {
        self.braces += 1;
        let mut pairs = Vec::new();
        while self.peek()? != Token::Sign("}") {
            let key = self.key()?;
            self.expect(":")?;
            pairs.push((key, self.expression()?));
            if !self.accept(",")? {
                break;
            }
        }
        // Peek before leaving the braces: the token after this one is outside of them.
        if self.peek()? != Token::Sign("}") {
            return Err(self.unexpected("\",\" or \"}\""));
        }
        self.braces -= 1;
        self.advance();
        Ok(ExpressionKind::Object(pairs))
    }

    /// Parses a key. A bare word directly before ":" is the key's text, even if it is reserved.
    fn key(&mut self) -> Result<Expression> {
        if let Token::Word(word) = self.peek()? {
            let mut ahead = Lexer::new(self.text, self.lexer.offset);
            if ahead.token(true).is_ok_and(|(token, _)| token == Token::Sign(":")) {
                let at = self.here()?;
                self.advance();
                return Ok(Expression { kind: ExpressionKind::Literal(Value::text(word)), at });
            }
        }
        self.expression()
    }

    /// Reads an opening bracket and its content.
    fn nested<T>(&mut self, inside: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let open = self.peek_with_offset()?.1;
        self.enter(open)?;
        self.advance();
        let result = inside(self)?;
        self.depth -= 1;
        Ok(result)
    }

    fn enter(&mut self, offset: usize) -> Result<()> {
        if self.depth >= NESTING_LIMIT {
            return Err(ParseError::limit(offset, format!("expression nested deeper than {NESTING_LIMIT}")));
        }
        self.depth += 1;
        Ok(())
    }

    fn peek_with_offset(&mut self) -> Result<(Token<'t>, usize)> {
        if let Some(token) = self.peeked {
            return Ok(token);
        }
        let token = self.lexer.token(self.braces > 0)?;
        self.peeked = Some(token);
        Ok(token)
    }

    fn peek(&mut self) -> Result<Token<'t>> {
        Ok(self.peek_with_offset()?.0)
    }

    /// Takes the peeked token and returns its offset.
    fn advance(&mut self) -> usize {
        self.peeked.take().map_or(self.lexer.offset, |(_, offset)| offset)
    }

    fn here(&mut self) -> Result<Position> {
        let offset = self.peek_with_offset()?.1;
        Ok(self.places.at(self.text, offset))
    }

    fn accept(&mut self, sign: &'static str) -> Result<bool> {
        let found = self.peek()? == Token::Sign(sign);
        if found {
            self.advance();
        }
        Ok(found)
    }

    fn expect(&mut self, sign: &'static str) -> Result<()> {
        if self.accept(sign)? { Ok(()) } else { Err(self.unexpected(&format!("\"{sign}\""))) }
    }

    fn expect_or_comma(&mut self, close: &'static str) -> Result<()> {
        if self.accept(close)? { Ok(()) } else { Err(self.unexpected(&format!("\",\" or \"{close}\""))) }
    }

    fn unexpected(&self, expected: &str) -> ParseError {
        let found = self.peeked.map_or_else(String::new, |(token, _)| token.show());
        let help = match self.peeked {
            Some((Token::Word("and"), _)) => ": \"and\" is written \"&&\"",
            Some((Token::Word("or"), _)) => ": \"or\" is written \"||\"",
            _ => "",
        };
        self.error_here(format!("unexpected {found}, expected {expected}{help}"))
    }

    fn error_here(&self, message: impl Into<String>) -> ParseError {
        let offset = self.peeked.map_or(self.lexer.offset, |(_, offset)| offset);
        ParseError::new(offset, message)
    }
}
