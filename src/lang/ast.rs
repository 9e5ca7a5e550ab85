//! Syntax trees of function files and `run` lists (language.md §2–§8). Everything in here has been checked as far as
//! one file alone allows; names are valid, combinations are allowed.

pub(crate) mod print;

use std::sync::Arc;
use std::time::Duration;

use indexmap::IndexMap;

use super::diagnostic::{Diagnostic, Position};
use super::value::{Value, ValueType};

/// A definition file, or the document of a request.
#[derive(Clone, Debug)]
pub struct Function {
    /// Name of the document in messages.
    pub file: Arc<str>,
    /// Interface.
    pub spec: Spec,
    /// Implementation.
    pub definition: Definition,
    /// Warnings found while reading; they go to the job log.
    pub warnings: Vec<Diagnostic>,
}

/// Interface (language.md §3).
#[derive(Clone, Debug, Default)]
pub struct Spec {
    /// Declared inputs.
    pub inputs: IndexMap<String, Declaration>,
    /// Declared outputs.
    pub outputs: Outputs,
}

/// `spec.outputs`.
#[derive(Clone, Debug)]
pub enum Outputs {
    /// Declared one by one.
    Declared(IndexMap<String, Declaration>),
    /// The word `delegate`.
    Delegate,
}

impl Default for Outputs {
    fn default() -> Self {
        Self::Declared(IndexMap::new())
    }
}

/// A declared input or output.
#[derive(Clone, Debug)]
pub struct Declaration {
    /// Its type.
    pub value_type: ValueType,
    /// Its default; makes it optional.
    pub default: Option<Value>,
    /// Its value must be masked.
    pub sensitive: bool,
    /// Where it is declared.
    pub at: Position,
}

/// Implementation (language.md §4).
#[derive(Clone, Debug)]
pub struct Definition {
    /// `env` of the definition.
    pub env: IndexMap<String, Template>,
    /// What it does.
    pub body: Body,
}

/// Exactly one of `exec` and `run`.
#[derive(Clone, Debug)]
pub enum Body {
    /// One process.
    Exec(Exec),
    /// Steps one after another.
    Run(Run),
}

/// `exec`.
#[derive(Clone, Debug)]
pub struct Exec {
    /// At least one template, one argument each.
    pub command: Vec<Template>,
    /// Working directory; default the job's.
    pub work_dir: Option<Template>,
    /// Grace of this process (language.md §15).
    pub cancel_timeout: Option<Duration>,
    /// Where `exec` stands.
    pub at: Position,
}

/// `run` with what belongs to it.
#[derive(Clone, Debug)]
pub struct Run {
    /// At least one step.
    pub steps: Vec<Step>,
    /// `outputs` of the sequence.
    pub outputs: IndexMap<String, TemplateValue>,
    /// `delegate`, if the spec asks for it.
    pub delegate: Option<String>,
}

/// An item of `run` (language.md §5).
#[derive(Clone, Debug)]
pub struct Step {
    /// Its name.
    pub name: String,
    /// What it invokes.
    pub invokes: Invocation,
    /// Inputs; keys are templates too.
    pub inputs: Vec<(Template, TemplateValue)>,
    /// Environment; keys are templates too.
    pub env: Vec<(Template, Template)>,
    /// Where the step stands.
    pub at: Position,
    /// `run[2]`.
    pub path: String,
}

/// Exactly one of `func`/`step`, `script`, `action`.
#[derive(Clone, Debug)]
pub enum Invocation {
    /// `func:` or `step:`.
    Reference(Reference, Position),
    /// `script:`, short for the builtin (language.md §14.5).
    Script(Template),
    /// `action:` (language.md §14.6).
    Action(Template),
}

/// Where a function is loaded from (language.md §7).
#[derive(Clone, Debug, PartialEq)]
pub enum Reference {
    /// A folder or file of the job's environment.
    Local {
        /// Path as normalised, relative or absolute, without the file's name.
        path: String,
        /// Names to try in order.
        files: Vec<String>,
    },
    /// Ships with the program.
    Builtin {
        /// Name without the scheme.
        name: String,
        /// Written with the old scheme `dist://`.
        dist: bool,
    },
    /// A Git repository.
    Git {
        /// With scheme.
        url: Template,
        /// Revision.
        rev: Template,
        /// Folder from the repository's root.
        dir: Template,
        /// Names to try in order.
        files: Vec<Template>,
    },
    /// An OCI image.
    Oci {
        /// `host[:port]`.
        registry: Template,
        /// Repository.
        repository: Template,
        /// Tag or digest.
        tag: Template,
        /// Folder inside.
        dir: Template,
        /// Names to try in order.
        files: Vec<Template>,
    },
    /// Computed when the step's turn comes.
    Dynamic(Template),
}

/// A scalar that may hold expressions (language.md §8). Two are equal if they mean the same, wherever they stand.
#[derive(Clone, Debug)]
pub struct Template {
    /// Text and expressions in order; adjacent texts are joined; empty for the empty text.
    pub parts: Vec<Part>,
    /// Document, for errors at run time.
    pub file: Arc<str>,
    /// Where the scalar stands.
    pub at: Position,
}

/// Part of a template.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// Plain text, escapes resolved.
    Text(String),
    /// `${{ … }}`.
    Expression(Expression),
}

/// An expression with its place in the document. Two are equal if their trees are, wherever they stand.
#[derive(Clone, Debug)]
pub struct Expression {
    /// What it is.
    pub kind: ExpressionKind,
    /// Its first character.
    pub at: Position,
}

/// Forms of expressions (language.md §9.1). Chains of one precedence level are one node, so that the depth of the
/// tree is bounded by the nesting of the text, not by its length.
#[derive(Clone, Debug, PartialEq)]
pub enum ExpressionKind {
    /// A constant.
    Literal(Value),
    /// A double-quoted string with expressions inside.
    Interpolation(Vec<Part>),
    /// A name of language.md §10.
    Name(String),
    /// `[a, b]`.
    Array(Vec<Expression>),
    /// `{a: b}`; a bare word as key is a literal.
    Object(Vec<(Expression, Expression)>),
    /// `-a`, `!a`; applied from the last to the first.
    Unary(Vec<UnaryOperator>, Box<Expression>),
    /// `a + b - c`: operators of one precedence level, applied from left to right.
    Binary(Box<Expression>, Vec<(BinaryOperator, Expression)>),
    /// `a.b[c](d)`: applied from left to right.
    Access(Box<Expression>, Vec<Access>),
}

/// One step of an access path, with the place of its first character, which does not count for equality.
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

/// Any YAML value whose strings are templates.
#[derive(Clone, Debug, PartialEq)]
pub enum TemplateValue {
    /// null, boolean or number: stays as it is.
    Constant(Value),
    /// A string.
    Text(Template),
    /// A list.
    Array(Vec<TemplateValue>),
    /// A mapping; nested keys are no templates.
    Object(IndexMap<String, TemplateValue>),
}

impl TemplateValue {
    /// The type of a value that holds no expression at its own level: `Some(None)` for null. `None`: a run decides.
    pub fn written_type(&self) -> Option<Option<ValueType>> {
        match self {
            Self::Constant(value) => Some(value.value_type()),
            Self::Text(template) => template.as_literal().map(|_| Some(ValueType::String)),
            Self::Array(_) => Some(Some(ValueType::Array)),
            Self::Object(_) => Some(Some(ValueType::Struct)),
        }
    }

    /// Where it stands, if it says so.
    pub const fn at(&self) -> Option<Position> {
        match self {
            Self::Text(template) => Some(template.at),
            Self::Constant(_) | Self::Array(_) | Self::Object(_) => None,
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
    /// How it is written.
    pub const fn symbol(self) -> &'static str {
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

    /// Its level of precedence: a higher one binds stronger (language.md §9.3).
    pub const fn level(self) -> u8 {
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
    /// How it is written.
    pub const fn symbol(self) -> char {
        match self {
            Self::Plus => '+',
            Self::Minus => '-',
            Self::Not => '!',
        }
    }
}

impl Template {
    /// A template that is plain text.
    pub fn literal(text: impl Into<String>, file: &Arc<str>, at: Position) -> Self {
        let text = text.into();
        let parts = if text.is_empty() { Vec::new() } else { vec![Part::Text(text)] };
        Self { parts, file: Arc::clone(file), at }
    }

    /// Its text, if it holds no expression.
    pub fn as_literal(&self) -> Option<&str> {
        match self.parts.as_slice() {
            [] => Some(""),
            [Part::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// The expression, if the template is one expression and nothing else.
    pub fn as_expression(&self) -> Option<&Expression> {
        match self.parts.as_slice() {
            [Part::Expression(expression)] => Some(expression),
            _ => None,
        }
    }
}
