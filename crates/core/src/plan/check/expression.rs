//! Checks expressions without their values: unknown names, types that do not fit, and failures that no value can avoid.
//!
//! Parts that use no names, except those of functions, are evaluated by the evaluator that a run uses. For all other
//! parts only the type is tracked, as far as it is certain.

mod access;

use std::sync::Arc;

use indexmap::IndexMap;
use step_runner_lang::ast::{
    BinaryOperator, Declaration, Expression, ExpressionKind, Part, Template, TemplateValue, UnaryOperator,
};
use step_runner_lang::diagnostic::{Class, Diagnostic, Position, Severity};
use step_runner_lang::eval::{self, Function, meant};
use step_runner_lang::value::{Data, Value, ValueType};

use super::Interface;

/// Knowledge about the type of a value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum KnownType {
    /// Nothing.
    Any,
    /// It is null.
    Null,
    /// It has this type.
    Is(ValueType),
    /// It has this type or is null, as inputs of a function.
    IsOrNull(ValueType),
}

/// Names that an expression can use.
#[derive(Default)]
pub(super) struct Names<'a> {
    /// Declared inputs; `None` if they are unknown.
    pub(super) inputs: Option<&'a IndexMap<String, Declaration>>,
    /// Steps that have run.
    pub(super) finished: IndexMap<&'a str, Ended>,
    /// What is visible of them; `None` outside of a list.
    pub(super) list: Option<Detail>,
    /// Keys of the matrix; `None` outside of a step with one.
    pub(super) matrix: Option<Vec<&'a str>>,
    /// All steps of the list.
    pub(super) coming: IndexMap<&'a str, Position>,
    /// Members of the group around the step.
    pub(super) members: Vec<&'a str>,
    /// True if there may be more steps.
    pub(super) open: bool,
}

/// What is visible of an ended step (flow.md §2).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Detail {
    /// Its outputs: a step of a plain list.
    Outputs,
    /// How it ended, too.
    All,
}

/// A step that has run.
#[derive(Clone)]
pub(super) enum Ended {
    /// It calls a function, with this interface if known.
    Function(Option<Arc<Interface>>),
    /// A group.
    Group,
    /// A step with a matrix.
    Matrix,
}

/// Knowledge about an expression.
enum Shape {
    /// It uses no names, so it can be evaluated.
    Closed,
    Value(KnownType),
    /// Result of an evaluated closed expression.
    Constant(Value),
    Environment,
    Variables,
    Inputs,
    Steps,
    Step(Ended),
    /// `run`.
    List,
    /// `matrix`.
    Matrix,
    StepOutputs(Option<Arc<Interface>>),
    Function(Function),
}

impl Shape {
    fn kind(&self) -> KnownType {
        match self {
            Self::Closed | Self::Function(_) => KnownType::Any,
            Self::Value(kind) => *kind,
            Self::Constant(value) => value.value_type().map_or(KnownType::Null, KnownType::Is),
            Self::Environment
            | Self::Variables
            | Self::Inputs
            | Self::Steps
            | Self::Step(_)
            | Self::List
            | Self::Matrix
            | Self::StepOutputs(_) => KnownType::Is(ValueType::Struct),
        }
    }

    const fn of(value_type: ValueType) -> Self {
        Self::Value(KnownType::Is(value_type))
    }
}

/// Certainty that an expression is evaluated, and handling of its errors.
#[derive(Clone, Copy)]
struct Reach {
    /// True if it is evaluated whenever its template is.
    certain: bool,
    /// True on the left side of "||", where an error of class not-found counts as false.
    forgiven: bool,
}

/// Checks the expressions of one document.
pub(super) struct Expressions<'a> {
    file: &'a Arc<str>,
    path: String,
    /// True where `output_file` and `export_file` are those of a function that runs steps: nobody reads them.
    pub(super) files_are_unread: bool,
    pub(super) findings: Vec<Diagnostic>,
}

impl<'a> Expressions<'a> {
    pub(super) const fn new(file: &'a Arc<str>) -> Self {
        Self { file, path: String::new(), files_are_unread: false, findings: Vec::new() }
    }

    /// Checks a template that becomes text.
    pub(super) fn text(&mut self, template: &Template, names: &Names<'a>, path: &str) {
        path.clone_into(&mut self.path);
        self.parts(&template.parts, names, Reach { certain: true, forgiven: false });
    }

    /// Checks a template in which a single expression keeps its type. `declared` is the type of the receiving input.
    pub(super) fn native(
        &mut self,
        template: &Template,
        declared: Option<ValueType>,
        names: &Names<'a>,
        path: &str,
    ) -> KnownType {
        path.clone_into(&mut self.path);
        let reach = Reach { certain: true, forgiven: false };
        if let Some(expression) = eval::native_expression(template, declared) {
            self.value_of(expression, names, reach).kind()
        } else {
            self.parts(&template.parts, names, reach);
            KnownType::Is(ValueType::String)
        }
    }

    /// Checks a condition. Returns its type, and true if it names no context.
    pub(super) fn condition(
        &mut self,
        template: &Template,
        names: &Names<'a>,
        path: &str,
    ) -> (KnownType, bool) {
        path.clone_into(&mut self.path);
        let reach = Reach { certain: true, forgiven: false };
        let Some(expression) = eval::native_expression(template, None) else {
            return (KnownType::Any, false);
        };
        let shape = self.shape(expression, names, reach);
        let is_constant = matches!(shape, Shape::Closed);
        (self.settled(expression, shape, reach).kind(), is_constant)
    }

    pub(super) fn value(
        &mut self,
        value: &TemplateValue,
        declared: Option<ValueType>,
        names: &Names<'a>,
        path: &str,
    ) -> KnownType {
        match value {
            TemplateValue::Constant(constant) | TemplateValue::Written(constant, ..) => {
                constant.value_type().map_or(KnownType::Null, KnownType::Is)
            }
            TemplateValue::BeyondRange(number) => match declared {
                // Without a declaration nobody knows; the type of another one is compared later.
                None => KnownType::Any,
                Some(ValueType::Number) => {
                    path.clone_into(&mut self.path);
                    self.report(eval::beyond_range(number), Reach { certain: true, forgiven: false });
                    KnownType::Any
                }
                Some(_) => KnownType::Is(ValueType::Number),
            },
            TemplateValue::Text(template) => self.native(template, declared, names, path),
            TemplateValue::Array(items, _) => {
                for (index, item) in items.iter().enumerate() {
                    self.value(item, None, names, &format!("{path}[{index}]"));
                }
                KnownType::Is(ValueType::Array)
            }
            TemplateValue::Object(members, _) => {
                for (key, member) in members {
                    self.value(member, None, names, &format!("{path}.{key}"));
                }
                KnownType::Is(ValueType::Struct)
            }
        }
    }

    fn parts(&mut self, parts: &[Part], names: &Names<'a>, reach: Reach) {
        for expression in expressions(parts) {
            self.value_of(expression, names, reach);
        }
    }

    /// Returns the shape of an operand and evaluates it if it is closed. A function is an error.
    fn value_of(&mut self, expression: &Expression, names: &Names<'a>, reach: Reach) -> Shape {
        let shape = self.shape(expression, names, reach);
        self.settled(expression, shape, reach)
    }

    /// Evaluates a closed shape. Reports a function, which is not a value.
    fn settled(&mut self, expression: &Expression, shape: Shape, reach: Reach) -> Shape {
        match shape {
            Shape::Closed => match eval::evaluate_constant(expression, self.file) {
                Ok(value) => Shape::Constant(value),
                Err(error) => {
                    self.report(error, reach);
                    Shape::Value(KnownType::Any)
                }
            },
            Shape::Function(_) => {
                let message = "a function is no value: call it with one argument";
                self.error(Class::Type, expression.at, message, reach);
                Shape::Value(KnownType::Any)
            }
            shape => shape,
        }
    }

    /// Returns the shapes of `operands`, each evaluated as its [`Reach`] says. `None` if all are closed, and so their
    /// parent.
    fn operands<'e>(
        &mut self,
        operands: impl IntoIterator<Item = (&'e Expression, Reach)>,
        names: &Names<'a>,
    ) -> Option<Vec<Shape>> {
        let shapes: Vec<_> = operands
            .into_iter()
            .map(|(operand, reach)| (operand, reach, self.shape(operand, names, reach)))
            .collect();
        if shapes.iter().all(|(_, _, shape)| matches!(shape, Shape::Closed)) {
            return None;
        }
        Some(shapes.into_iter().map(|(operand, reach, shape)| self.settled(operand, shape, reach)).collect())
    }

    fn shape(&mut self, expression: &Expression, names: &Names<'a>, reach: Reach) -> Shape {
        let all = |value_type| {
            move |shapes: Option<Vec<Shape>>| shapes.map_or(Shape::Closed, |_| Shape::of(value_type))
        };
        let same = |operand| (operand, reach);
        match &expression.kind {
            ExpressionKind::Literal(_) => Shape::Closed,
            ExpressionKind::Interpolation(parts) => {
                all(ValueType::String)(self.operands(expressions(parts).map(same), names))
            }
            ExpressionKind::Name(name) => self.name(name, expression.at, names, reach),
            ExpressionKind::Array(items) => {
                all(ValueType::Array)(self.operands(items.iter().map(same), names))
            }
            ExpressionKind::Object(pairs) => {
                let operands = pairs.iter().flat_map(|(key, value)| [key, value]).map(same);
                all(ValueType::Struct)(self.operands(operands, names))
            }
            ExpressionKind::Unary(operators, operand) => {
                self.unary(operators, operand, expression.at, names, reach)
            }
            ExpressionKind::Binary(first, rest) => self.binary(first, rest, names, reach),
            ExpressionKind::Access(root, path) => self.access(root, path, names, reach),
        }
    }

    fn name(&mut self, name: &str, at: Position, names: &Names<'a>, reach: Reach) -> Shape {
        match name {
            "run" if names.list.is_some() => Shape::List,
            "matrix" if names.matrix.is_some() => Shape::Matrix,
            "env" => Shape::Environment,
            "vars" | "job" => Shape::Variables,
            "inputs" => Shape::Inputs,
            "steps" => Shape::Steps,
            "func_dir" | "step_dir" | "work_dir" => Shape::of(ValueType::String),
            "output_file" | "export_file" => {
                if self.files_are_unread {
                    self.unread_file(name, at);
                }
                Shape::of(ValueType::String)
            }
            _ => {
                if let Some(function) = Function::named(name) {
                    return Shape::Function(function);
                }
                let run = names.list.map(|_| "run");
                let matrix = names.matrix.as_ref().map(|_| "matrix");
                self.not_found("", name, at, eval::NAMES.into_iter().chain(run).chain(matrix), reach);
                Shape::Value(KnownType::Any)
            }
        }
    }

    fn unread_file(&mut self, name: &str, at: Position) {
        let message = format!("\"{name}\" is the file of the function around the step here: nobody reads it");
        let help = format!(
            "name {name} in the script, or in command or env of the function that the step calls: there it is its own"
        );
        let finding = Diagnostic::warning(Class::Schema, self.file, at, message).with_help(help);
        self.findings.push(finding.with_path(self.path.as_str()));
    }

    fn unary(
        &mut self,
        operators: &[UnaryOperator],
        operand: &Expression,
        at: Position,
        names: &Names<'a>,
        reach: Reach,
    ) -> Shape {
        let Some(shapes) = self.operands([(operand, reach)], names) else { return Shape::Closed };
        if operators.contains(&UnaryOperator::Not) {
            // Operators before the last "!" get a boolean.
            let before = operators.iter().take_while(|operator| **operator != UnaryOperator::Not).count();
            if before > 0 {
                self.error(Class::Type, at, "\"-\" and \"+\" need a number, got boolean", reach);
            }
            return Shape::of(ValueType::Boolean);
        }
        if let Some(got) = shapes.first().and_then(|shape| unlike(shape.kind(), &[ValueType::Number])) {
            let sign = if operators.last() == Some(&UnaryOperator::Plus) { "+" } else { "-" };
            self.error(Class::Type, at, format!("\"{sign}\" needs a number, got {got}"), reach);
        }
        Shape::of(ValueType::Number)
    }

    fn binary(
        &mut self,
        first: &Expression,
        rest: &[(BinaryOperator, Expression)],
        names: &Names<'a>,
        reach: Reach,
    ) -> Shape {
        let operators: Vec<BinaryOperator> = rest.iter().map(|(operator, _)| *operator).collect();
        let reach_of = |index: usize| {
            let before = index.checked_sub(1).and_then(|before| operators.get(before));
            let lazy = matches!(before, Some(BinaryOperator::Or | BinaryOperator::And));
            let forgiven = operators.get(index) == Some(&BinaryOperator::Or);
            Reach { certain: reach.certain && !lazy, forgiven: reach.forgiven || forgiven }
        };
        let operands: Vec<&Expression> =
            std::iter::once(first).chain(rest.iter().map(|(_, operand)| operand)).collect();
        let reached = operands.iter().enumerate().map(|(index, operand)| (*operand, reach_of(index)));
        let Some(shapes) = self.operands(reached, names) else { return Shape::Closed };
        let mut shapes = shapes.into_iter();
        let mut left = shapes.next().map_or(KnownType::Any, |shape| shape.kind());
        for ((operator, operand), right) in rest.iter().zip(shapes) {
            left = self.combined(*operator, left, &right, operand.at, reach);
        }
        Shape::Value(left)
    }

    fn combined(
        &mut self,
        operator: BinaryOperator,
        left: KnownType,
        right: &Shape,
        at: Position,
        reach: Reach,
    ) -> KnownType {
        use BinaryOperator as Op;
        const NUMBER: KnownType = KnownType::Is(ValueType::Number);
        let kinds = [left, right.kind()];
        match operator {
            Op::Or | Op::And if kinds.first() == kinds.last() => left,
            Op::Or | Op::And => KnownType::Any,
            Op::Equal | Op::NotEqual | Op::Less | Op::LessEqual | Op::Greater | Op::GreaterEqual => {
                KnownType::Is(ValueType::Boolean)
            }
            Op::Add => self.sum(left, right.kind(), at, reach),
            Op::Subtract | Op::Multiply | Op::Divide | Op::Remainder => {
                let zero = matches!(right, Shape::Constant(Value { data: Data::Number(0.0), .. }));
                if let Some(got) = kinds.into_iter().find_map(|kind| unlike(kind, &[ValueType::Number])) {
                    let message = format!("arithmetic needs numbers, got {got}");
                    self.error(Class::Type, at, message, reach);
                } else if zero && matches!(operator, Op::Divide | Op::Remainder) {
                    self.error(Class::DivZero, at, "division by zero", reach);
                }
                NUMBER
            }
        }
    }

    /// Returns the type of a sum. `+` joins two numbers or two strings.
    fn sum(&mut self, left: KnownType, right: KnownType, at: Position, reach: Reach) -> KnownType {
        let addable = [ValueType::Number, ValueType::String];
        let mismatch = match (left, right) {
            (
                KnownType::Is(left) | KnownType::IsOrNull(left),
                KnownType::Is(right) | KnownType::IsOrNull(right),
            ) if left != right => Some((left.name(), right.name())),
            _ => unlike(left, &addable)
                .map(|got| (got, name_of(right)))
                .or_else(|| unlike(right, &addable).map(|got| (name_of(left), got))),
        };
        if let Some((left, right)) = mismatch {
            let error = Diagnostic::error(
                Class::Type,
                self.file,
                at,
                format!("\"+\" cannot combine {left} and {right}"),
            );
            self.report(error.with_help("str() makes text of any value"), reach);
            return KnownType::Any;
        }
        match (left, right) {
            (KnownType::Is(known) | KnownType::IsOrNull(known), _)
            | (_, KnownType::Is(known) | KnownType::IsOrNull(known)) => KnownType::Is(known),
            _ => KnownType::Any,
        }
    }

    fn not_found<N: AsRef<str>>(
        &mut self,
        before: &str,
        name: &str,
        at: Position,
        known: impl IntoIterator<Item = N>,
        reach: Reach,
    ) {
        let known: Vec<String> = known.into_iter().map(|name| name.as_ref().to_owned()).collect();
        let message = format!("{before}\"{}\" was not found", name.escape_debug());
        let error = Diagnostic::error(Class::NotFound, self.file, at, message);
        self.report(error.with_help(meant(before, name, &known)), reach);
    }

    fn error(&mut self, class: Class, at: Position, message: impl Into<String>, reach: Reach) {
        self.report(Diagnostic::error(class, self.file, at, message), reach);
    }

    fn report(&mut self, finding: Diagnostic, reach: Reach) {
        let forgiven = reach.forgiven && finding.class == Class::NotFound;
        let severity = if reach.certain && !forgiven { Severity::Error } else { Severity::Warning };
        self.findings.push(Diagnostic { severity, ..finding }.with_path(self.path.as_str()));
    }
}

fn expressions(parts: &[Part]) -> impl Iterator<Item = &Expression> {
    parts.iter().filter_map(|part| match part {
        Part::Expression(expression) => Some(expression),
        Part::Text(_) => None,
    })
}

/// Returns the name of the value's type if it certainly is none of `types`.
fn unlike(kind: KnownType, types: &[ValueType]) -> Option<&'static str> {
    match kind {
        KnownType::Any => None,
        KnownType::Null => Some("null"),
        KnownType::Is(found) | KnownType::IsOrNull(found) => (!types.contains(&found)).then(|| found.name()),
    }
}

fn name_of(kind: KnownType) -> &'static str {
    match kind {
        KnownType::Any => "another value",
        KnownType::Null => "null",
        KnownType::Is(found) | KnownType::IsOrNull(found) => found.name(),
    }
}
