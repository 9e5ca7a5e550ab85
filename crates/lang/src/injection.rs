//! Finds values that become part of a shell's text (language.md §18, `injection`).
//!
//! An expression in a script is replaced before the shell reads the script. If its value is a text from elsewhere, whoever
//! chooses the text chooses commands. The same value in an environment variable stays one word. This module knows the
//! shapes of expressions and the types of declared inputs. It evaluates nothing, and reads no shell.

use crate::ast::{Access, BinaryOperator, Body, Exec, Expression, ExpressionKind, Function, Step};
use crate::ast::{Invocation, Part, Spec, Template};
use crate::diagnostic::{Class, Diagnostic};
use crate::shell::is_shell;
use crate::value::{Data, Value, ValueType};

/// Members of `steps.NAME` that are numbers or words of this program.
const OWN_WORDS: [&str; 3] = ["status", "exit_code", "attempts"];

/// A value whose text somebody else can choose.
#[derive(Debug, PartialEq, Eq)]
struct Foreign {
    /// The expression that gives it, such as `inputs.target`.
    path: String,
    /// A name for a variable that holds it, such as `TARGET`.
    variable: String,
    /// True if the script has it in a variable of this name already.
    is_variable: bool,
}

/// Returns a warning for each expression that puts such a value into the text of a script.
pub(crate) fn findings(function: &Function) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    let spec = &function.spec;
    match &function.definition.body {
        Body::Exec(exec) => {
            if let Some(script) = shell_text(exec) {
                template(script, "exec.command[2]", spec, &mut found);
            }
        }
        Body::Run(run) => run.steps.iter().for_each(|step| scripts(step, spec, &mut found)),
    }
    found
}

/// Returns the text that a command gives to a shell. It is the third argument.
fn shell_text(exec: &Exec) -> Option<&Template> {
    let [shell, option, script, ..] = exec.command.as_slice() else { return None };
    let is_script = shell.as_literal().is_some_and(is_shell)
        && option.as_literal().is_some_and(|option| option.starts_with('-') && option.ends_with('c'));
    is_script.then_some(script)
}

/// Looks at the script of a step, or at those of its members.
fn scripts(step: &Step, spec: &Spec, found: &mut Vec<Diagnostic>) {
    if let Invocation::Script(script) = &step.invokes {
        template(script, &format!("{}.script", step.path), spec, found);
    }
    step.members().iter().for_each(|member| scripts(member, spec, found));
}

fn template(script: &Template, path: &str, spec: &Spec, found: &mut Vec<Diagnostic>) {
    for part in &script.parts {
        if let Part::Expression(expression) = part
            && let Some(foreign) = foreign(expression, spec)
        {
            let message = format!("the value of {} becomes shell text, and can hold commands", foreign.path);
            let warning = Diagnostic::warning(Class::Injection, &script.file, expression.at, message);
            found.push(warning.with_path(path).with_help(foreign.remedy()));
        }
    }
}

impl Foreign {
    fn remedy(&self) -> String {
        let Self { path, variable, is_variable } = self;
        let word = format!("write \"${variable}\", which stays one word");
        let silence = "a comment \"# step-runner: allow injection\" on the line silences this";
        if *is_variable {
            format!("{word}; {silence}")
        } else {
            format!("give it as env, {variable}: ${{{{ {path} }}}}, and {word}; {silence}")
        }
    }
}

/// Returns a text from elsewhere that can become the value of an expression.
fn foreign(expression: &Expression, spec: &Spec) -> Option<Foreign> {
    match &expression.kind {
        ExpressionKind::Literal(_) | ExpressionKind::Unary(..) => None,
        ExpressionKind::Name(name) => named(name, &[], spec),
        ExpressionKind::Interpolation(parts) => parts.iter().find_map(|part| match part {
            Part::Expression(expression) => foreign(expression, spec),
            Part::Text(_) => None,
        }),
        ExpressionKind::Array(items) => items.iter().find_map(|item| foreign(item, spec)),
        ExpressionKind::Object(pairs) => {
            pairs.iter().find_map(|(key, member)| foreign(key, spec).or_else(|| foreign(member, spec)))
        }
        ExpressionKind::Binary(first, rest) => operands(first, rest, spec),
        ExpressionKind::Access(root, path) => match &root.kind {
            ExpressionKind::Name(name) => named(name, path, spec),
            _ => foreign(root, spec),
        },
    }
}

/// Looks at those operands of a chain that can become its value as they are.
fn operands(first: &Expression, rest: &[(BinaryOperator, Expression)], spec: &Spec) -> Option<Foreign> {
    let (operator, last) = rest.last()?;
    match operator {
        // An operand before the last one is the value only if it is false, and no text that counts as false does harm.
        BinaryOperator::And => foreign(last, spec),
        BinaryOperator::Or | BinaryOperator::Add => {
            foreign(first, spec).or_else(|| rest.iter().find_map(|(_, operand)| foreign(operand, spec)))
        }
        // Other operators make numbers and truths.
        _ => None,
    }
}

/// Looks at a name and what is read from it.
fn named(name: &str, path: &[Access], spec: &Spec) -> Option<Foreign> {
    let members: Vec<&str> = path.iter().map_while(member).collect();
    match (name, members.as_slice(), path) {
        ("str", [], [Access::Call(arguments, _), ..]) => {
            return arguments.first().and_then(|argument| foreign(argument, spec));
        }
        ("inputs", [input, ..], _) => {
            let kind = spec.inputs.get(*input).map(|declared| declared.value_type);
            if matches!(kind, Some(ValueType::Number | ValueType::Boolean)) {
                return None;
            }
        }
        ("steps", [_, member, ..], _) if OWN_WORDS.contains(member) => return None,
        ("env" | "vars" | "job" | "inputs" | "steps", ..) => {}
        _ => return None,
    }
    let shown = members.iter().fold(name.to_owned(), |shown, member| format!("{shown}.{member}"));
    let last = members.last().copied().unwrap_or("value");
    let is_variable = name == "env" && members.len() == 1 && crate::name::is_valid(last);
    let variable = if is_variable { last.to_owned() } else { variable(last) };
    Some(Foreign { path: shown, variable, is_variable })
}

/// Returns the name that a member is read by, if it is written in the expression.
fn member(access: &Access) -> Option<&str> {
    match access {
        Access::Member(name, _) => Some(name),
        Access::Index(index, _) => match &index.kind {
            ExpressionKind::Literal(Value { data: Data::String(name), .. }) => Some(name),
            _ => None,
        },
        Access::Call(..) => None,
    }
}

/// Makes the name of a variable from that of a value.
fn variable(name: &str) -> String {
    let upper = name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' });
    let upper: String = upper.collect();
    if crate::name::is_valid(&upper) { upper } else { "VALUE".to_owned() }
}

#[cfg(test)]
mod tests;
