//! Steps with a matrix: a group with a member for each combination (flow.md §6).

use std::sync::Arc;

use step_runner_lang::ast::flow::{MEMBER_LIMIT, Matrix, MatrixItems, MatrixList};
use step_runner_lang::ast::{Step, TemplateValue};
use step_runner_lang::diagnostic::{Class, Diagnostic, Position};
use step_runner_lang::eval::{self, Context};
use step_runner_lang::value::{Data, Value};
use step_runner_log::words::{DaemonLine, Warning};

use crate::job::event::CallId;
use crate::plan::matrix::{Combination, combinations, names};

use super::Machine;
use super::call::{GroupMember, Member, StepAt};
use super::failure::Failure;

/// Reason of a step whose matrix has no combination.
const NO_COMBINATIONS: &str = "matrix: no combinations";

impl Machine {
    /// Begins a step with a matrix, fails it if its lists are wrong, or skips it if it has no combination.
    pub(super) fn begin_matrix(&mut self, list: CallId, at: &StepAt, step: &Step, matrix: &Matrix) {
        match self.combinations_of(list, at, step, matrix) {
            Err(failure) => {
                let call = self.add_call(list, at.clone(), step.name.clone(), None);
                self.fail_unbegun(call, failure);
            }
            Ok(combinations) if combinations.is_empty() => {
                self.log(&DaemonLine::Warning(Warning::NoCombinations { name: &step.name }));
                self.skip_step(list, at, NO_COMBINATIONS);
            }
            Ok(combinations) => {
                let call = self.add_call(list, at.clone(), step.name.clone(), None);
                let names = names(&step.name, &combinations);
                let members =
                    combinations.into_iter().zip(names).enumerate().map(|(index, (values, name))| {
                        GroupMember::new(at.clone(), name, Member { index, values: Some(Arc::new(values)) })
                    });
                let members = members.collect();
                self.note_start(call);
                self.open_group(call, step, members);
            }
        }
    }

    fn combinations_of(
        &mut self,
        list: CallId,
        at: &StepAt,
        step: &Step,
        matrix: &Matrix,
    ) -> Result<Vec<Combination>, Failure> {
        let environment = self.environment_of(list);
        let (lists, used) = {
            let Some(view) = self.view_of_list(list, list, &environment) else { return Ok(Vec::new()) };
            let lists: Result<Vec<_>, Diagnostic> =
                matrix.lists.iter().map(|list| values_of(list, &at.loaded.function.file, &view)).collect();
            (lists, view.files_used.get())
        };
        self.make_files_if(list, used);
        let path = |key: &str| format!("{}.matrix{}{key}", step.path, if key.is_empty() { "" } else { "." });
        let lists = lists.map_err(|finding| Failure::at(&[finding.with_path(path(""))]))?;
        combinations(&lists, matrix).ok_or_else(|| {
            let message = format!("more than {MEMBER_LIMIT} combinations");
            let finding = Diagnostic::error(Class::Limit, &at.loaded.function.file, step.at, message);
            Failure::at(&[finding.with_path(path(""))])
        })
    }
}

/// Evaluates a list of a matrix. Its items must be strings, numbers or booleans.
fn values_of(
    list: &MatrixList,
    file: &Arc<str>,
    view: &Context<'_>,
) -> Result<(String, Vec<Value>), Diagnostic> {
    let wrong = |at: Position, message: String| Diagnostic::error(Class::Type, file, at, message);
    let scalar = |value: Value, at: Position| match value.data {
        Data::String(_) | Data::Number(_) | Data::Bool(_) => Ok(value),
        Data::Null | Data::Array(_) | Data::Object(_) => {
            let message = format!(
                "an item of the matrix list \"{}\" is {}: expected a string, a number or a boolean",
                list.name,
                value.type_name()
            );
            Err(wrong(at, message))
        }
    };
    let values: Result<Vec<Value>, Diagnostic> = match &list.items {
        MatrixItems::Literal(items) => {
            items.iter().map(|item| scalar(eval::evaluate_value(&item.value, None, view)?, item.at)).collect()
        }
        MatrixItems::Value(value) => match evaluated(value, view)? {
            Value { data: Data::Array(items), sensitive } => items
                .iter()
                .cloned()
                .map(|item| scalar(Value { sensitive: sensitive || item.sensitive, ..item }, list.at))
                .collect(),
            other => {
                let message =
                    format!("the matrix list \"{}\" is {}: expected an array", list.name, other.type_name());
                Err(wrong(list.at, message))
            }
        },
    };
    Ok((list.name.clone(), values?))
}

fn evaluated(value: &TemplateValue, view: &Context<'_>) -> Result<Value, Diagnostic> {
    eval::evaluate_value(value, None, view)
}
