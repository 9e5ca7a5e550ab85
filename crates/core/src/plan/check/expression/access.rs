//! Access to members and indexes, and calls of functions: `a.b`, `a[b]`, `f(a)` (language.md §9.4, §9.5).

use step_runner_lang::ast::{Access, Expression, ExpressionKind};
use step_runner_lang::diagnostic::{Class, Diagnostic, Position};
use step_runner_lang::eval::{self, Function, render};
use step_runner_lang::value::{Data, Value, ValueType};

use super::{Detail, Ended, Expressions, KnownType, Names, Reach, Shape, unlike};

impl<'a> Expressions<'a> {
    pub(super) fn access(
        &mut self,
        root: &Expression,
        path: &[Access],
        names: &Names<'a>,
        reach: Reach,
    ) -> Shape {
        let called = matches!(path.first(), Some(Access::Call(..)));
        let mut shape = match &root.kind {
            ExpressionKind::Name(name)
                if called
                    && Function::named(name).is_none()
                    && !eval::NAMES.contains(&name.as_str())
                    && !["run", "matrix"].contains(&name.as_str()) =>
            {
                self.not_found("function ", name, root.at, Function::NAMES, reach);
                Shape::Value(KnownType::Any)
            }
            _ => self.shape(root, names, reach),
        };
        // A closed root stays closed as long as the accesses are closed.
        let mut closed = matches!(shape, Shape::Closed);
        for (index, access) in path.iter().enumerate() {
            let before = path.get(..index).unwrap_or_default();
            shape = match access {
                Access::Member(_, _) if closed => Shape::Closed,
                Access::Member(name, at) => {
                    let shown = format!("{}.{name}: ", render(root, before));
                    self.member(shape, name, *at, &shown, names, reach)
                }
                Access::Index(position, at) => {
                    let inside = self.shape(position, names, reach);
                    if closed && matches!(inside, Shape::Closed) {
                        Shape::Closed
                    } else {
                        if closed {
                            shape = Shape::Value(KnownType::Any);
                        }
                        let inside = self.settled(position, inside, reach);
                        self.index(&shape, &inside, (position.at, *at), &render(root, before), names, reach)
                    }
                }
                Access::Call(arguments, at) => self.call(&shape, arguments, *at, names, reach),
            };
            closed = matches!(shape, Shape::Closed);
        }
        shape
    }

    fn member(
        &mut self,
        shape: Shape,
        name: &str,
        at: Position,
        shown: &str,
        names: &Names<'a>,
        reach: Reach,
    ) -> Shape {
        match shape {
            // The runner evaluates `job.inputs` before the request reaches us (language.md §9.5).
            Shape::Variables if name == "inputs" => Shape::Value(KnownType::Any),
            Shape::Environment | Shape::Variables => Shape::of(ValueType::String),
            Shape::Inputs => {
                let Some(inputs) = names.inputs else { return Shape::Value(KnownType::Any) };
                if let Some(declaration) = inputs.get(name) {
                    return Shape::Value(KnownType::IsOrNull(declaration.value_type));
                }
                self.not_found(shown, name, at, inputs.keys(), reach);
                Shape::Value(KnownType::Any)
            }
            Shape::Steps => self.step(name, at, shown, names, reach),
            Shape::Step(step) => self.step_member(step, name, at, shown, names, reach),
            Shape::List if name == "status" => Shape::of(ValueType::String),
            Shape::List => {
                self.not_found(shown, name, at, ["status"], reach);
                Shape::Value(KnownType::Any)
            }
            Shape::Matrix => {
                let keys = names.matrix.as_deref().unwrap_or_default();
                if !keys.contains(&name) {
                    self.not_found(shown, name, at, keys.iter().copied(), reach);
                }
                Shape::Value(KnownType::Any)
            }
            Shape::StepOutputs(callee) => {
                let Some(outputs) = callee.as_ref().and_then(|callee| callee.outputs.as_ref()) else {
                    return Shape::Value(KnownType::Any);
                };
                if let Some(value_type) = outputs.get(name) {
                    return Shape::Value(value_type.map_or(KnownType::Any, KnownType::Is));
                }
                self.not_found(shown, name, at, outputs.keys(), reach);
                Shape::Value(KnownType::Any)
            }
            Shape::Closed | Shape::Value(_) | Shape::Constant(_) | Shape::Function(_) => {
                if let Some(got) = unlike(shape.kind(), &[ValueType::Struct]) {
                    let object = shown.rsplit_once('.').map_or(shown, |(object, _)| object);
                    let message = format!("{object} is no object but {got}: it has no members");
                    self.error(Class::Type, at, message, reach);
                }
                Shape::Value(KnownType::Any)
            }
        }
    }

    /// Looks up a member of an ended step (flow.md §2).
    fn step_member(
        &mut self,
        step: Ended,
        name: &str,
        at: Position,
        shown: &str,
        names: &Names<'a>,
        reach: Reach,
    ) -> Shape {
        const DETAILS: [&str; 4] = ["status", "exit_code", "error", "attempts"];
        let details = if names.list == Some(Detail::All) { &DETAILS[..] } else { &[] };
        let (own, shape) = match step {
            Ended::Function(callee) => (Some("outputs"), Shape::StepOutputs(callee)),
            Ended::Matrix => (Some("results"), Shape::of(ValueType::Array)),
            Ended::Group => (None, Shape::Value(KnownType::Any)),
        };
        match name {
            name if Some(name) == own => shape,
            "status" if details.contains(&name) => Shape::of(ValueType::String),
            "attempts" if details.contains(&name) => Shape::of(ValueType::Number),
            "exit_code" if details.contains(&name) => Shape::Value(KnownType::IsOrNull(ValueType::Number)),
            "error" if details.contains(&name) => Shape::Value(KnownType::IsOrNull(ValueType::String)),
            _ => {
                self.not_found(shown, name, at, own.iter().chain(details).copied(), reach);
                Shape::Value(KnownType::Any)
            }
        }
    }

    /// Looks up a step of the list. Only steps that have run are visible (language.md §10).
    fn step(&mut self, name: &str, at: Position, shown: &str, names: &Names<'a>, reach: Reach) -> Shape {
        if let Some(step) = names.finished.get(name) {
            return Shape::Step(step.clone());
        }
        if let Some(place) = names.coming.get(name) {
            let error =
                Diagnostic::error(Class::NotFound, self.file, at, format!("{shown}\"{name}\" was not found"));
            let help = if names.members.contains(&name) { eval::beside() } else { eval::later(*place) };
            self.report(error.with_help(help), reach);
        } else if !names.open {
            self.not_found(shown, name, at, names.finished.keys(), reach);
        }
        Shape::Value(KnownType::Any)
    }

    fn index(
        &mut self,
        shape: &Shape,
        index: &Shape,
        (at, bracket): (Position, Position),
        before: &str,
        names: &Names<'a>,
        reach: Reach,
    ) -> Shape {
        let kind = shape.kind();
        let object =
            !matches!(shape, Shape::Value(_) | Shape::Constant(_) | Shape::Closed | Shape::Function(_));
        match index {
            Shape::Constant(Value { data: Data::String(key), .. }) if object => {
                let shown = format!("{before}[{key:?}]: ");
                let object = match shape {
                    Shape::Environment => Shape::Environment,
                    Shape::Variables => Shape::Variables,
                    Shape::Inputs => Shape::Inputs,
                    Shape::Step(step) => Shape::Step(step.clone()),
                    Shape::List => Shape::List,
                    Shape::Matrix => Shape::Matrix,
                    Shape::StepOutputs(callee) => Shape::StepOutputs(callee.clone()),
                    _ => Shape::Steps,
                };
                self.member(object, key, at, &shown, names, reach)
            }
            _ if object => {
                if let Some(got) = unlike(index.kind(), &[ValueType::String]) {
                    self.error(
                        Class::Type,
                        at,
                        format!("an object is indexed by a string, got {got}"),
                        reach,
                    );
                }
                Shape::Value(KnownType::Any)
            }
            _ => {
                if let Some(got) = unlike(kind, &[ValueType::Struct, ValueType::Array]) {
                    let message = format!("{before} is {got}: it cannot be indexed");
                    self.error(Class::Type, bracket, message, reach);
                }
                Shape::Value(KnownType::Any)
            }
        }
    }

    fn call(
        &mut self,
        shape: &Shape,
        arguments: &[Expression],
        at: Position,
        names: &Names<'a>,
        reach: Reach,
    ) -> Shape {
        let operands = self.operands(arguments.iter().map(|argument| (argument, reach)), names);
        let Shape::Function(function) = shape else {
            if matches!(shape, Shape::Value(KnownType::Any)) {
                return Shape::Value(KnownType::Any);
            }
            self.error(Class::Type, at, "only functions can be called", reach);
            return Shape::Value(KnownType::Any);
        };
        let [argument] = arguments else {
            let message =
                format!("{}() takes exactly one argument, got {}", function.name(), arguments.len());
            self.error(Class::Type, at, message, reach);
            return Shape::Value(KnownType::Any);
        };
        let Some(operands) = operands else { return Shape::Closed };
        match function {
            Function::Str => Shape::of(ValueType::String),
            Function::Bool => Shape::of(ValueType::Boolean),
            Function::Num => {
                let kind = operands.first().map_or(KnownType::Any, Shape::kind);
                if let Some(got) = unlike(kind, &[ValueType::String, ValueType::Number]) {
                    let message = format!("num() needs a string or a number, got {got}");
                    self.error(Class::Type, argument.at, message, reach);
                }
                Shape::of(ValueType::Number)
            }
        }
    }
}
