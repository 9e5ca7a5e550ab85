//! Binds a step to the function it invokes: evaluates its templates in the caller's context and checks them against the
//! function's interface (language.md §5, §10, §11.3, §14.2).

use indexmap::IndexMap;
use step_runner_lang::ast::{Declaration, Function, Invocation, Run, Step};
use step_runner_lang::convert::contract;
use step_runner_lang::diagnostic::{Class, Diagnostic};
use step_runner_lang::environment::EnvironmentFrame;
use step_runner_lang::eval::{self, Scope};
use step_runner_lang::value::{Value, ValueType};

/// Inputs and environment that a step passes to its function.
pub(crate) struct Given {
    /// Inputs as the function gets them: checked and with defaults filled in.
    pub(crate) inputs: IndexMap<String, Value>,
    /// Names of the inputs that the step itself sets, for results.
    pub(crate) named: Vec<String>,
    /// The step's `env`.
    pub(crate) env: EnvironmentFrame,
}

/// Evaluates inputs and environment of `step`, a step of `caller`, for a function with the inputs `declared`. For
/// scripts, `inputs_scope` differs from `scope`: they name their own output and export files.
pub(crate) fn given(
    step: &Step,
    declared: &IndexMap<String, Declaration>,
    caller: &Function,
    inputs_scope: &dyn Scope,
    scope: &dyn Scope,
) -> Result<Given, Vec<Diagnostic>> {
    let in_step = |finding: Diagnostic| {
        let path = format!("{}.{}", step.path, finding.path);
        finding.with_path(path)
    };
    let (inputs, env) =
        match (step_inputs(step, declared, inputs_scope), eval::evaluate_env(&step.env, scope)) {
            (Ok(inputs), Ok(env)) => (inputs, env),
            (inputs, env) => return Err(inputs.err().into_iter().chain(env.err()).map(in_step).collect()),
        };
    for (name, value) in &inputs {
        if declared.get(name).is_some_and(|input| input.value_type == ValueType::String) {
            value.for_each_marked_number(&mut |number| scope.note_number(number));
        }
    }
    let named = inputs.keys().cloned().collect();
    match contract::bind_inputs(inputs, declared) {
        Ok(inputs) => Ok(Given { inputs, named, env }),
        Err(errors) => {
            let mut findings: Vec<_> = errors.into_iter().map(|error| refused(step, caller, error)).collect();
            findings.sort_by_key(|finding| finding.at);
            Err(findings)
        }
    }
}

fn step_inputs(
    step: &Step,
    declared: &IndexMap<String, Declaration>,
    scope: &dyn Scope,
) -> Result<IndexMap<String, Value>, Diagnostic> {
    let type_of = |name: &str| declared.get(name).map(|declaration| declaration.value_type);
    Ok(match &step.invokes {
        Invocation::Reference(..) | Invocation::Group(_) => {
            eval::evaluate_inputs(&step.inputs, type_of, scope)?
        }
        Invocation::Script(text) => {
            let text = eval::evaluate_text(text, scope)
                .map_err(|finding| eval::in_input("script", finding).with_path("script"))?;
            IndexMap::from([("script".to_owned(), text.into())])
        }
        Invocation::Action(action) => {
            let inner = eval::evaluate_inputs(&step.inputs, |_| None, scope)?;
            let action = eval::evaluate_text(action, scope).map_err(|finding| finding.with_path("action"))?;
            IndexMap::from([
                ("action".to_owned(), action.into()),
                ("inputs".to_owned(), Value::object(inner)),
            ])
        }
    })
}

/// Evaluates `outputs` of the run function `run`, before the check against `declared`.
pub(crate) fn outputs(
    run: &Run,
    declared: &IndexMap<String, Declaration>,
    scope: &dyn Scope,
) -> Result<IndexMap<String, Value>, Diagnostic> {
    eval::evaluate_outputs(&run.outputs, |name| declared.get(name).map(|output| output.value_type), scope)
}

/// Makes the diagnostic for a breach of the function's interface: at the value of an input if its type is wrong and its
/// place is known, else at the input's key in the step, else at the step.
pub(crate) fn refused(step: &Step, caller: &Function, error: contract::ContractError) -> Diagnostic {
    let input = step.inputs.iter().find(|(key, _)| key.as_literal() == Some(&error.name));
    let at = input.map_or(step.at, |(key, value)| match error.class {
        Class::Type => value.at().unwrap_or(key.at),
        _ => key.at,
    });
    let path = format!("{}.inputs.{}", step.path, error.name);
    Diagnostic::error(error.class, &caller.file, at, error.message).with_path(path)
}
