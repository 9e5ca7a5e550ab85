//! Checks a function before it runs: steps against the functions they call, and expressions against the names they can
//! see (language.md §4–§6, §9–§11, §17).
//!
//! Pure: the caller reads the files and passes in the functions that the steps call. A finding is an error if it fails
//! whenever it is reached. If it can be right at run time, it is at most a warning.

mod expression;
mod literals;

use std::sync::Arc;

use indexmap::IndexMap;
use step_runner_lang::ast::flow::{Condition, MatrixItems};
use step_runner_lang::ast::{
    Body, Declaration, Exec, Function, Invocation, Outputs, Reference, Run, Step, Template,
};
use step_runner_lang::convert::contract::{self, ContractError};
use step_runner_lang::diagnostic::{Class, Diagnostic, Position, Severity};
use step_runner_lang::value::{Data, Value, ValueType};

use super::builtin;
pub use literals::sensitive_literals;

use expression::{Detail, Ended, Expressions, KnownType, Names};

/// The part of a function that its caller sees.
#[derive(Debug, Default)]
pub struct Interface {
    inputs: IndexMap<String, Declaration>,
    /// Possible outputs of a run, with their types if known. `None` if they are those of a delegate.
    outputs: Option<IndexMap<String, Option<ValueType>>>,
}

impl Interface {
    /// Returns the interface of a function.
    pub fn of(function: &Function) -> Self {
        let outputs = match (&function.spec.outputs, &function.definition.body) {
            (Outputs::Delegate, _) => None,
            (Outputs::Declared(declared), body) => {
                let mut outputs: IndexMap<_, _> =
                    declared.iter().map(|(name, output)| (name.clone(), Some(output.value_type))).collect();
                // A run function keeps undeclared outputs (language.md §4).
                if let Body::Run(run) = body {
                    for name in run.outputs.keys() {
                        outputs.entry(name.clone()).or_insert(None);
                    }
                }
                Some(outputs)
            }
        };
        // The check only asks if there is a default, and a default can be large.
        let light = |input: &Declaration| Declaration {
            default: input.default.as_ref().map(|_| Value::plain(Data::Null)),
            ..input.clone()
        };
        let inputs = function.spec.inputs.iter().map(|(name, input)| (name.clone(), light(input))).collect();
        Self { inputs, outputs }
    }

    /// Returns the interface of a `script` step, which takes no inputs and has no outputs.
    fn script() -> Self {
        Self { inputs: IndexMap::new(), outputs: Some(IndexMap::new()) }
    }
}

/// A function to check.
pub struct Subject<'a> {
    /// The function as far as it could be read.
    pub function: &'a Function,
    /// True if no part of the function is missing. Otherwise that part may define unknown names.
    pub whole: bool,
    /// Interfaces that its steps call, as far as known, in the order of [`calling_steps`]. Builtins may be left out.
    pub callees: &'a [Option<Arc<Interface>>],
}

impl Subject<'_> {
    /// Returns the interface that the calling step at `index` calls, if it is known.
    ///
    /// # Errors
    /// There is no such builtin.
    fn callee(&self, step: &Step, index: usize) -> Result<Option<Arc<Interface>>, (Class, String)> {
        match &step.invokes {
            Invocation::Script(_) => Ok(Some(Arc::new(Interface::script()))),
            Invocation::Reference(Reference::Builtin { name, .. }, _) => {
                builtin::find(name).map(|loaded| Some(Arc::new(Interface::of(&loaded.function))))
            }
            Invocation::Reference(Reference::Local { .. }, _) => {
                Ok(self.callees.get(index).cloned().flatten())
            }
            Invocation::Reference(..) | Invocation::Action(_) | Invocation::Group(_) => Ok(None),
        }
    }
}

/// Returns the steps of a list that can call a function: the members of a group in its place.
pub fn calling_steps(run: &Run) -> impl Iterator<Item = &Step> {
    run.steps.iter().flat_map(|step| match step.members() {
        [] => std::slice::from_ref(step),
        members => members,
    })
}

/// Returns every mistake in a function that its text alone does not show, sorted by place.
pub fn function(subject: &Subject<'_>) -> Vec<Diagnostic> {
    let function = subject.function;
    let mut check = Check { subject, expressions: Expressions::new(&function.file) };
    check.definition_env();
    match &function.definition.body {
        Body::Exec(exec) => check.exec(exec),
        Body::Run(run) => check.run(run),
    }
    let mut findings = check.expressions.findings;
    findings.sort_by(|a, b| (a.at, &a.path).cmp(&(b.at, &b.path)));
    // Aliases repeat one place many times.
    findings.dedup_by(|a, b| a.at == b.at && a.class == b.class && a.message == b.message);
    findings
}

struct Check<'a> {
    subject: &'a Subject<'a>,
    expressions: Expressions<'a>,
}

impl<'a> Check<'a> {
    /// Returns the names without `steps`: those for `exec` and the definition's `env`.
    fn own_names(&self) -> Names<'a> {
        let inputs = self.subject.whole.then_some(&self.subject.function.spec.inputs);
        Names { inputs, open: !self.subject.whole, ..Names::default() }
    }

    fn definition_env(&mut self) {
        let names = self.own_names();
        self.expressions.files_are_unread = matches!(self.subject.function.definition.body, Body::Run(_));
        for (name, value) in &self.subject.function.definition.env {
            self.expressions.text(value, &names, &format!("env.{name}"));
        }
        self.expressions.files_are_unread = false;
    }

    fn exec(&mut self, exec: &'a Exec) {
        let names = self.own_names();
        for (index, argument) in exec.command.iter().enumerate() {
            self.expressions.text(argument, &names, &format!("exec.command[{index}]"));
        }
        if let Some(folder) = &exec.work_dir {
            self.expressions.text(folder, &names, "exec.work_dir");
        }
    }

    fn run(&mut self, run: &'a Run) {
        let mut names = self.own_names();
        names.list = Some(if run.steps.iter().all(|step| step.flow.is_none()) {
            Detail::Outputs
        } else {
            Detail::All
        });
        let all = run.steps.iter().flat_map(|step| std::iter::once(step).chain(step.members()));
        names.coming = all.map(|step| (step.name.as_str(), step.at)).collect();
        let mut index = 0;
        for step in &run.steps {
            let is_matrix = step.flow.as_ref().is_some_and(|flow| flow.matrix.is_some());
            self.condition(step, &names);
            let mut ended = Vec::new();
            if let Invocation::Group(members) = &step.invokes {
                names.members = members.iter().map(|member| member.name.as_str()).collect();
                for member in members {
                    self.condition(member, &names);
                    let callee = self.callee(member, index);
                    index += 1;
                    self.step(member, callee.as_deref(), &names);
                    ended.push((member.name.as_str(), Ended::Function(callee)));
                }
                names.members.clear();
                ended.push((step.name.as_str(), Ended::Group));
            } else {
                let callee = self.callee(step, index);
                index += 1;
                self.matrix(step, &names);
                names.matrix = matrix_keys(step);
                self.step(step, callee.as_deref(), &names);
                names.matrix = None;
                let shape = if is_matrix { Ended::Matrix } else { Ended::Function(callee) };
                ended.push((step.name.as_str(), shape));
            }
            names.finished.extend(ended);
        }
        self.outputs(run, &names);
    }

    /// Checks `if`: a boolean, which depends on something.
    fn condition(&mut self, step: &'a Step, names: &Names<'a>) {
        let Some(Condition::Expression { template, .. }) =
            step.flow.as_ref().and_then(|flow| flow.condition.as_ref())
        else {
            return;
        };
        let path = format!("{}.if", step.path);
        let (kind, is_constant) = self.expressions.condition(template, names, &path);
        let is_boolean = matches!(
            kind,
            KnownType::Is(ValueType::Boolean) | KnownType::Any | KnownType::IsOrNull(ValueType::Boolean)
        );
        if !is_boolean {
            let message = "the condition is no boolean";
            let finding = Diagnostic::error(Class::Type, &self.subject.function.file, template.at, message);
            let help = "write a comparison, or bool(…)";
            self.expressions.findings.push(finding.with_path(path).with_help(help));
        } else if is_constant {
            let message = "the condition names no context, so it is always the same";
            let finding = Diagnostic::warning(Class::Type, &self.subject.function.file, template.at, message);
            self.expressions.findings.push(finding.with_path(path));
        }
    }

    /// Checks the lists of a matrix, which see what the step's list sees.
    fn matrix(&mut self, step: &'a Step, names: &Names<'a>) {
        let Some(matrix) = step.flow.as_ref().and_then(|flow| flow.matrix.as_ref()) else { return };
        for list in &matrix.lists {
            let path = format!("{}.matrix.{}", step.path, list.name);
            match &list.items {
                MatrixItems::Literal(items) => {
                    for item in items {
                        let kind = self.expressions.value(&item.value, None, names, &path);
                        let got = match kind {
                            KnownType::Null => "null".to_owned(),
                            KnownType::Is(kind @ (ValueType::Array | ValueType::Struct)) => kind.to_string(),
                            KnownType::Any | KnownType::Is(_) | KnownType::IsOrNull(_) => continue,
                        };
                        let message =
                            format!("an item of a matrix is a string, a number or a boolean, got {got}");
                        self.wrong_matrix(item.at, &path, message);
                    }
                }
                MatrixItems::Value(value) => {
                    let kind = self.expressions.value(value, None, names, &path);
                    let is_array = matches!(
                        kind,
                        KnownType::Any
                            | KnownType::Is(ValueType::Array)
                            | KnownType::IsOrNull(ValueType::Array)
                    );
                    if !is_array {
                        self.wrong_matrix(
                            list.at,
                            &path,
                            "expected a list, or an expression that gives one".to_owned(),
                        );
                    }
                }
            }
        }
    }

    fn wrong_matrix(&mut self, at: Position, path: &str, message: String) {
        let finding = Diagnostic::error(Class::Type, &self.subject.function.file, at, message);
        self.expressions.findings.push(finding.with_path(path));
    }

    /// Returns the interface that a step calls, if it is known. Reports a builtin that there is not.
    fn callee(&mut self, step: &Step, index: usize) -> Option<Arc<Interface>> {
        self.subject.callee(step, index).unwrap_or_else(|(class, message)| {
            let at = match &step.invokes {
                Invocation::Reference(_, at) => *at,
                Invocation::Script(_) | Invocation::Action(_) | Invocation::Group(_) => step.at,
            };
            let error = Diagnostic::error(class, &self.subject.function.file, at, message);
            self.expressions.findings.push(error.with_path(format!("{}.func", step.path)));
            None
        })
    }

    fn step(&mut self, step: &'a Step, callee: Option<&Interface>, names: &Names<'a>) {
        let path = |field: &str| format!("{}.{field}", step.path);
        match &step.invokes {
            Invocation::Script(text) => self.expressions.text(text, names, &path("script")),
            Invocation::Action(text) => self.expressions.text(text, names, &path("action")),
            Invocation::Reference(reference, _) => self.reference(reference, names, &path("func")),
            Invocation::Group(_) => {}
        }
        self.expressions.files_are_unread = true;
        for (key, value) in &step.env {
            let path = path(&format!("env.{}", shown(key)));
            self.expressions.text(key, names, &path);
            self.expressions.text(value, names, &path);
        }
        let declared = callee.map(|callee| &callee.inputs);
        self.expressions.files_are_unread = !is_script(&step.invokes);
        for (key, value) in &step.inputs {
            let path = path(&format!("inputs.{}", shown(key)));
            self.expressions.native(key, None, names, &path);
            let declaration = declared
                .zip(key.as_literal())
                .and_then(|(declared, name)| declared.get(name))
                .map(|d| d.value_type);
            let kind = self.expressions.value(value, declaration, names, &path);
            if let (Some(expected), Some(name)) = (declaration, key.as_literal()) {
                self.input(name, expected, kind, value.at().unwrap_or(key.at), &path);
            }
        }
        self.expressions.files_are_unread = false;
        if let (Some(declared), Invocation::Reference(..)) = (declared, &step.invokes) {
            self.given(step, declared);
        }
    }

    fn reference(&mut self, reference: &'a Reference, names: &Names<'a>, path: &str) {
        let templates: Vec<&Template> = match reference {
            Reference::Local { .. } | Reference::Builtin { .. } => Vec::new(),
            Reference::Dynamic(template) => vec![template],
            Reference::Git { url, rev, dir, files } => [url, rev, dir].into_iter().chain(files).collect(),
            Reference::Oci { registry, repository, tag, dir, files } => {
                [registry, repository, tag, dir].into_iter().chain(files).collect()
            }
        };
        for template in templates {
            self.expressions.text(template, names, path);
        }
    }

    /// Checks the type of an input. Numbers and booleans become text; null fits any type (language.md §11.3).
    fn input(&mut self, name: &str, expected: ValueType, kind: KnownType, at: Position, path: &str) {
        let (got, severity) = match kind {
            KnownType::Is(got) => (got, Severity::Error),
            KnownType::IsOrNull(got) => (got, Severity::Warning),
            KnownType::Null | KnownType::Any => return,
        };
        let becomes_text =
            expected == ValueType::String && matches!(got, ValueType::Number | ValueType::Boolean);
        if got != expected && !becomes_text {
            self.refused(contract::wrong_input(name, expected, Some(got)), severity, at, path);
        }
    }

    /// Checks the names of a step's inputs against the declared ones.
    fn given(&mut self, step: &Step, declared: &IndexMap<String, Declaration>) {
        let path = |name: &str| format!("{}.inputs.{name}", step.path);
        let mut computed = false;
        for (key, _) in &step.inputs {
            match key.as_literal() {
                Some(name) if !declared.contains_key(name) => {
                    self.refused(
                        contract::unknown_input(name, declared),
                        Severity::Error,
                        key.at,
                        &path(name),
                    );
                }
                Some(_) => {}
                None => computed = true,
            }
        }
        if computed {
            return;
        }
        for (name, declaration) in declared {
            let is_given = step.inputs.iter().any(|(key, _)| key.as_literal() == Some(name));
            if declaration.default.is_none() && !is_given {
                self.refused(contract::missing_input(name), Severity::Error, step.at, &path(name));
            }
        }
    }

    /// Checks the outputs of a sequence against the declared ones (language.md §4).
    fn outputs(&mut self, run: &'a Run, names: &Names<'a>) {
        let declared = match &self.subject.function.spec.outputs {
            Outputs::Declared(declared) => Some(declared),
            Outputs::Delegate => None,
        };
        for (name, value) in &run.outputs {
            let path = format!("outputs.{name}");
            let declaration = declared.and_then(|declared| declared.get(name));
            let expected = declaration.map(|declaration| declaration.value_type);
            let kind = self.expressions.value(value, expected, names, &path);
            // Literal outputs were compared when the text was read.
            let Some(expected) = expected.filter(|_| value.written_type().is_none()) else { continue };
            let (got, severity) = match kind {
                KnownType::Is(got) => (Some(got), Severity::Error),
                KnownType::Null => (None, Severity::Error),
                KnownType::IsOrNull(got) => (Some(got), Severity::Warning),
                KnownType::Any => continue,
            };
            if got != Some(expected) {
                let at = value.at().or(declaration.map(|declaration| declaration.at)).unwrap_or_default();
                self.refused(contract::wrong_output(name, expected, got), severity, at, &path);
            }
        }
        for (name, declaration) in declared.into_iter().flatten().filter(|_| self.subject.whole) {
            if declaration.default.is_none() && !run.outputs.contains_key(name) {
                let path = format!("spec.outputs.{name}");
                let help = "give it under \"outputs\" of the definition";
                let error = contract::missing_output(name);
                let error = Diagnostic::error(
                    error.class,
                    &self.subject.function.file,
                    declaration.at,
                    error.message,
                );
                self.expressions.findings.push(error.with_path(path).with_help(help));
            }
        }
    }

    fn refused(&mut self, error: ContractError, severity: Severity, at: Position, path: &str) {
        let finding = Diagnostic::error(error.class, &self.subject.function.file, at, error.message);
        self.expressions.findings.push(Diagnostic { severity, ..finding }.with_path(path));
    }
}

/// True if the inputs of what is called are texts of a script: they name its own files (language.md §10).
fn is_script(invokes: &Invocation) -> bool {
    matches!(invokes, Invocation::Reference(Reference::Builtin { name, .. }, _)
        if builtin::kind(name).is_some_and(builtin::BuiltinKind::is_script))
}

/// Returns the keys of a step's matrix.
fn matrix_keys(step: &Step) -> Option<Vec<&str>> {
    let matrix = step.flow.as_ref()?.matrix.as_ref()?;
    Some(matrix.lists.iter().map(|list| list.name.as_str()).collect())
}

fn shown(key: &Template) -> &str {
    key.as_literal().unwrap_or("…")
}

#[cfg(test)]
mod tests;
