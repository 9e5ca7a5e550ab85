//! Templates and the expressions in them (language.md §8, §9).

use std::sync::Arc;

use indexmap::IndexMap;

use crate::diagnostic::Position;
use crate::value::{Value, ValueType};

/// A scalar that may hold expressions (language.md §8). Two are equal if they mean the same, whatever their places.
#[derive(Clone, Debug)]
pub struct Template {
    /// Text and expressions in order. Adjacent texts are joined; the empty text has no part.
    pub parts: Vec<Part>,
    /// Name of the document, for errors at run time.
    pub(crate) file: Arc<str>,
    /// Place of the scalar.
    pub at: Position,
}

/// Part of a template.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// Plain text with escapes resolved.
    Text(String),
    /// `${{ … }}`.
    Expression(Expression),
}

/// An expression and its place in the document. Two are equal if their trees are, whatever their places.
#[derive(Clone, Debug)]
pub struct Expression {
    /// Form of the expression.
    pub kind: ExpressionKind,
    /// Place of its first character.
    pub at: Position,
}

/// Forms of expressions (language.md §9.1). A chain of operators of one level is one node, so the nesting of the text
/// bounds the depth of the tree, not its length.
#[derive(Clone, Debug, PartialEq)]
pub enum ExpressionKind {
    /// A constant.
    Literal(Value),
    /// A double-quoted string with expressions inside.
    Interpolation(Vec<Part>),
    /// A name (language.md §10).
    Name(String),
    /// `[a, b]`.
    Array(Vec<Expression>),
    /// `{a: b}`; a bare word as a key is a literal.
    Object(Vec<(Expression, Expression)>),
    /// `-a`, `!a`; operators apply from the last to the first.
    Unary(Vec<UnaryOperator>, Box<Expression>),
    /// `a + b - c`: operators of one precedence level apply from left to right.
    Binary(Box<Expression>, Vec<(BinaryOperator, Expression)>),
    /// `a.b[c](d)`: applies from left to right.
    Access(Box<Expression>, Vec<Access>),
}

impl Expression {
    /// Visits the numbers in its literals.
    pub(crate) fn for_each_number(&self, visit: &mut dyn FnMut(f64)) {
        match &self.kind {
            ExpressionKind::Literal(literal) => literal.for_each_number(&mut |number| visit(number)),
            _ => self.for_each_operand(&mut |operand| operand.for_each_number(visit)),
        }
    }

    /// Returns the deepest nesting of calls of `str`. Each call can double a text, because it writes a backslash
    /// before the quotes and backslashes of an array's texts.
    pub(crate) fn nested_str(&self) -> u32 {
        let mut inside = 0;
        self.for_each_operand(&mut |operand| inside = inside.max(operand.nested_str()));
        let is_str = |root: &Expression| matches!(&root.kind, ExpressionKind::Name(name) if name == "str");
        inside + u32::from(matches!(&self.kind, ExpressionKind::Access(root, _) if is_str(root)))
    }

    /// Visits the expressions that it directly consists of.
    fn for_each_operand(&self, visit: &mut dyn FnMut(&Self)) {
        match &self.kind {
            ExpressionKind::Literal(_) | ExpressionKind::Name(_) => {}
            ExpressionKind::Interpolation(parts) => {
                for part in parts {
                    if let Part::Expression(expression) = part {
                        visit(expression);
                    }
                }
            }
            ExpressionKind::Array(items) => items.iter().for_each(visit),
            ExpressionKind::Object(pairs) => pairs.iter().for_each(|(key, member)| {
                visit(key);
                visit(member);
            }),
            ExpressionKind::Unary(_, operand) => visit(operand),
            ExpressionKind::Binary(first, rest) => {
                visit(first);
                for (_, operand) in rest {
                    visit(operand);
                }
            }
            ExpressionKind::Access(root, path) => {
                visit(root);
                for access in path {
                    match access {
                        Access::Member(..) => {}
                        Access::Index(index, _) => visit(index),
                        Access::Call(arguments, _) => arguments.iter().for_each(&mut *visit),
                    }
                }
            }
        }
    }
}

/// One step of an access path and the place of its first character, which does not count for equality.
#[derive(Clone, Debug)]
pub enum Access {
    /// `.name`.
    Member(String, Position),
    /// `[index]`.
    Index(Expression, Position),
    /// `(arguments)`.
    Call(Vec<Expression>, Position),
}

/// Operators before an operand (language.md §9.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnaryOperator {
    /// `+`
    Plus,
    /// `-`
    Minus,
    /// `!`
    Not,
}

/// Operators between operands (language.md §9.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BinaryOperator {
    /// `||`
    Or,
    /// `&&`
    And,
    /// `==`
    Equal,
    /// `!=`
    NotEqual,
    /// `<`
    Less,
    /// `<=`
    LessEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterEqual,
    /// `+`
    Add,
    /// `-`
    Subtract,
    /// `*`
    Multiply,
    /// `/`
    Divide,
    /// `%`
    Remainder,
}

/// Any YAML value whose strings are templates. Places do not count when two are compared.
#[derive(Clone, Debug)]
pub enum TemplateValue {
    /// Null, or a boolean or number that is an output or nested in a list or mapping. It stays as it is.
    Constant(Value),
    /// A boolean or number given to an input, with its source text for an input declared as string (`3.10`, not `3.1`).
    Written(Value, Box<str>, Position),
    /// A number given to an input that is beyond the range of doubles, as its source text. Only an input declared as
    /// string takes it: a commit hash such as `7e12345` looks like a number.
    BeyondRange(Template),
    /// A string.
    Text(Template),
    /// A list.
    Array(Vec<TemplateValue>, Position),
    /// A mapping; nested keys are not templates.
    Object(IndexMap<String, TemplateValue>, Position),
}

impl TemplateValue {
    /// Returns the type known without a run: `Some(None)` for null, `None` if an expression decides it.
    pub fn written_type(&self) -> Option<Option<ValueType>> {
        match self {
            Self::Constant(value) | Self::Written(value, ..) => Some(value.value_type()),
            Self::BeyondRange(_) => Some(Some(ValueType::Number)),
            Self::Text(template) => template.as_literal().map(|_| Some(ValueType::String)),
            Self::Array(..) => Some(Some(ValueType::Array)),
            Self::Object(..) => Some(Some(ValueType::Struct)),
        }
    }

    /// Returns its place. Null, and a boolean or number that is no input, do not record theirs.
    pub const fn at(&self) -> Option<Position> {
        match self {
            Self::Text(template) | Self::BeyondRange(template) => Some(template.at),
            Self::Written(_, _, at) | Self::Array(_, at) | Self::Object(_, at) => Some(*at),
            Self::Constant(_) => None,
        }
    }
}

impl PartialEq for TemplateValue {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Constant(a), Self::Constant(b)) => a == b,
            (Self::Written(a, written, _), Self::Written(b, other, _)) => a == b && written == other,
            (Self::BeyondRange(a), Self::BeyondRange(b)) | (Self::Text(a), Self::Text(b)) => a == b,
            (Self::Array(a, _), Self::Array(b, _)) => a == b,
            (Self::Object(a, _), Self::Object(b, _)) => a == b,
            (
                Self::Constant(_)
                | Self::Written(..)
                | Self::BeyondRange(_)
                | Self::Text(_)
                | Self::Array(..)
                | Self::Object(..),
                _,
            ) => false,
        }
    }
}

impl PartialEq for Template {
    fn eq(&self, other: &Self) -> bool {
        self.parts == other.parts
    }
}

impl PartialEq for Expression {
    fn eq(&self, other: &Self) -> bool {
        self.kind == other.kind
    }
}

impl PartialEq for Access {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Member(a, _), Self::Member(b, _)) => a == b,
            (Self::Index(a, _), Self::Index(b, _)) => a == b,
            (Self::Call(a, _), Self::Call(b, _)) => a == b,
            (Self::Member(..) | Self::Index(..) | Self::Call(..), _) => false,
        }
    }
}

impl BinaryOperator {
    /// Returns the operator as written.
    pub(crate) const fn symbol(self) -> &'static str {
        match self {
            Self::Or => "||",
            Self::And => "&&",
            Self::Equal => "==",
            Self::NotEqual => "!=",
            Self::Less => "<",
            Self::LessEqual => "<=",
            Self::Greater => ">",
            Self::GreaterEqual => ">=",
            Self::Add => "+",
            Self::Subtract => "-",
            Self::Multiply => "*",
            Self::Divide => "/",
            Self::Remainder => "%",
        }
    }

    /// Returns the precedence level. A higher one binds more strongly (language.md §9.3).
    pub(crate) const fn level(self) -> u8 {
        match self {
            Self::Or => 1,
            Self::And => 2,
            Self::Equal
            | Self::NotEqual
            | Self::Less
            | Self::LessEqual
            | Self::Greater
            | Self::GreaterEqual => 3,
            Self::Add | Self::Subtract => 4,
            Self::Multiply | Self::Divide | Self::Remainder => 5,
        }
    }
}

impl UnaryOperator {
    /// Returns the operator as written.
    pub(crate) const fn symbol(self) -> char {
        match self {
            Self::Plus => '+',
            Self::Minus => '-',
            Self::Not => '!',
        }
    }
}

impl Template {
    /// Makes a template of plain text.
    pub fn literal(text: impl Into<String>, file: &Arc<str>, at: Position) -> Self {
        let text = text.into();
        let parts = if text.is_empty() { Vec::new() } else { vec![Part::Text(text)] };
        Self { parts, file: Arc::clone(file), at }
    }

    /// Returns the deepest nesting of calls of `str` ([`Expression::nested_str`]).
    pub(crate) fn nested_str(&self) -> u32 {
        let nested = |part: &Part| match part {
            Part::Text(_) => 0,
            Part::Expression(expression) => expression.nested_str(),
        };
        self.parts.iter().map(nested).max().unwrap_or_default()
    }

    /// Returns the text if there is no expression.
    pub fn as_literal(&self) -> Option<&str> {
        match self.parts.as_slice() {
            [] => Some(""),
            [Part::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// Returns the expression if it is the whole template.
    pub(crate) fn as_expression(&self) -> Option<&Expression> {
        match self.parts.as_slice() {
            [Part::Expression(expression)] => Some(expression),
            _ => None,
        }
    }
}
