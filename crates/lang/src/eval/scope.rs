//! Names that an expression can see (language.md §10). Their values are built only on demand.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use indexmap::IndexMap;
use step_runner_model::StepOutcome;

use super::ahead::StepsAhead;
use super::budget::{Budget, Exhausted};
use super::functions::Function;
use super::operators::is_truthy;
use crate::diagnostic::Class;
use crate::environment::Environment;
use crate::value::{Data, Value};

/// Ended steps of one `run` list, by name of the step.
pub type Steps = IndexMap<String, EndedStep>;

/// An ended step as expressions see it (flow.md §2).
#[derive(Clone, Debug, PartialEq)]
pub struct EndedStep {
    /// How it ended.
    pub outcome: StepOutcome,
    /// Exit code that decided the outcome, if a process did.
    pub exit_code: Option<i32>,
    /// Class of its failure.
    pub error: Option<Class>,
    /// Attempts begun.
    pub attempts: u32,
    /// Values returned.
    pub returned: Returned,
    /// True for a step of a plain list, of which only the outputs are visible.
    pub is_plain: bool,
}

/// Values that an ended step has returned.
#[derive(Clone, Debug, PartialEq)]
pub enum Returned {
    /// Outputs of a function.
    Outputs(IndexMap<String, Value>),
    /// Nothing: a group.
    Group,
    /// Results of the members of a matrix, an array.
    Results(Value),
}

impl EndedStep {
    /// A step of a plain list that has succeeded.
    pub const fn plain(outputs: IndexMap<String, Value>) -> Self {
        Self {
            outcome: StepOutcome::Success,
            exit_code: Some(0),
            error: None,
            attempts: 1,
            returned: Returned::Outputs(outputs),
            is_plain: true,
        }
    }

    /// A step that did not run. `nothing` is what a group that did not run has returned.
    pub fn skipped(nothing: Option<Returned>) -> Self {
        Self {
            outcome: StepOutcome::Skipped,
            exit_code: None,
            error: None,
            attempts: 0,
            returned: nothing.unwrap_or_else(|| Returned::Outputs(IndexMap::new())),
            is_plain: false,
        }
    }

    /// Returns the outputs of a function.
    pub const fn outputs(&self) -> Option<&IndexMap<String, Value>> {
        match &self.returned {
            Returned::Outputs(outputs) => Some(outputs),
            Returned::Group | Returned::Results(_) => None,
        }
    }

    /// Returns the reason why it has no outputs, if it has none whatever its function returns.
    pub fn lack(&self, name: &str) -> Option<String> {
        let what = match self.outcome {
            StepOutcome::Skipped => "was skipped",
            StepOutcome::Failure | StepOutcome::AllowedFailure => "failed",
            StepOutcome::Cancelled => "was cancelled",
            StepOutcome::Success | StepOutcome::Unspecified => return None,
        };
        Some(format!("step \"{name}\" {what}"))
    }

    /// Returns the names of its members.
    const fn names(&self) -> &'static [&'static str] {
        match self.returned {
            _ if self.is_plain => &["outputs"],
            Returned::Outputs(_) => &["outputs", "status", "exit_code", "error", "attempts"],
            Returned::Group => &["status", "exit_code", "error", "attempts"],
            Returned::Results(_) => &["results", "status", "exit_code", "error", "attempts"],
        }
    }

    /// Returns a member other than `outputs`.
    fn member(&self, key: &str) -> Option<Value> {
        if self.is_plain {
            return None;
        }
        Some(match (key, &self.returned) {
            ("status", _) => Value::text(self.outcome.word()),
            ("exit_code", _) => {
                Value::plain(self.exit_code.map_or(Data::Null, |code| Data::Number(f64::from(code))))
            }
            ("error", _) => self.error.map_or(Value::plain(Data::Null), |class| Value::text(class.word())),
            ("attempts", _) => Value::plain(Data::Number(f64::from(self.attempts))),
            ("results", Returned::Results(results)) => results.clone(),
            _ => return None,
        })
    }

    fn to_object(&self) -> IndexMap<String, Value> {
        let member = |name: &&str| match self.outputs() {
            Some(outputs) if *name == "outputs" => Some(Value::object(outputs.clone())),
            _ => self.member(name),
        };
        self.names().iter().filter_map(|name| Some(((*name).to_owned(), member(name)?))).collect()
    }
}

/// State of a list at one moment (`run.status`, flow.md §2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ListState {
    /// Nothing has failed.
    #[default]
    Success,
    /// A step has failed.
    Failure,
    /// It is cancelled.
    Cancelled,
    /// It is cancelled because a time limit passed.
    Timeout,
}

impl ListState {
    /// Returns the word that expressions see.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Failure => "failure",
            Self::Cancelled => "cancelled",
            Self::Timeout => "timeout",
        }
    }
}

/// Source of the names that an expression can use.
pub trait Scope {
    /// Returns the item with this name.
    fn lookup(&self, name: &str) -> Option<Item<'_>>;

    /// Returns all names, for messages.
    fn names(&self) -> Vec<String>;

    /// Notes that a marked number becomes text: the text need not contain any secret that is known so far.
    fn note_number(&self, _number: f64) {}
}

/// The names of language.md §10 for one invocation.
pub struct Context<'a> {
    /// `env`.
    pub env: &'a Environment,
    /// `vars` and `job`.
    pub vars: &'a IndexMap<String, Value>,
    /// `inputs` of the current function.
    pub inputs: &'a IndexMap<String, Value>,
    /// `steps`: earlier steps of the same list.
    pub steps: &'a Steps,
    /// All steps of that list. Empty outside of lists.
    pub ahead: StepsAhead<'a>,
    /// `run`: state of the list. `None` outside of lists.
    pub run: Option<ListState>,
    /// `matrix`: values of this member. `None` outside of a step with `matrix`.
    pub matrix: Option<&'a IndexMap<String, Value>>,
    /// `func_dir` and `step_dir`.
    pub func_dir: &'a str,
    /// `work_dir`.
    pub work_dir: &'a str,
    /// `output_file` of the current invocation.
    pub output_file: &'a str,
    /// `export_file` of the current invocation.
    pub export_file: &'a str,
    /// Set when `output_file` or `export_file` was used. The files are created only then.
    pub files_used: Cell<bool>,
    /// Marked numbers that became text.
    pub numbers: &'a RefCell<Vec<f64>>,
}

/// The names of language.md §10 that are visible everywhere. `run` is visible in lists, `matrix` in steps with that key.
pub const NAMES: [&str; 10] = [
    "env",
    "vars",
    "job",
    "inputs",
    "steps",
    "func_dir",
    "step_dir",
    "work_dir",
    "output_file",
    "export_file",
];

impl Scope for Context<'_> {
    fn lookup(&self, name: &str) -> Option<Item<'_>> {
        let text = |text: &str| Item::Value(Cow::Owned(Value::text(text)));
        Some(match name {
            "env" => Item::Env(self.env),
            "vars" | "job" => Item::Map(self.vars),
            "inputs" => Item::Map(self.inputs),
            "steps" => Item::Steps(self.steps, self.ahead),
            "run" => Item::Run(self.run?),
            "matrix" => Item::Map(self.matrix?),
            "func_dir" | "step_dir" => text(self.func_dir),
            "work_dir" => text(self.work_dir),
            "output_file" | "export_file" => {
                self.files_used.set(true);
                text(if name == "output_file" { self.output_file } else { self.export_file })
            }
            _ => return None,
        })
    }

    fn names(&self) -> Vec<String> {
        let (run, matrix) = (self.run.map(|_| "run"), self.matrix.map(|_| "matrix"));
        NAMES.into_iter().chain(run).chain(matrix).map(str::to_owned).collect()
    }

    fn note_number(&self, number: f64) {
        self.numbers.borrow_mut().push(number);
    }
}

/// A scope of arbitrary names.
impl Scope for IndexMap<String, Value> {
    fn lookup(&self, name: &str) -> Option<Item<'_>> {
        self.get(name).map(|value| Item::Value(Cow::Borrowed(value)))
    }

    fn names(&self) -> Vec<String> {
        self.keys().cloned().collect()
    }
}

/// A value, or an object that is built only if it is needed as a whole.
#[derive(Clone)]
pub enum Item<'a> {
    /// A value.
    Value(Cow<'a, Value>),
    /// An object.
    Map(&'a IndexMap<String, Value>),
    /// The object `env`.
    Env(&'a Environment),
    /// The object `steps`, and the steps that are not in it yet.
    Steps(&'a Steps, StepsAhead<'a>),
    /// An ended step and its name.
    Step(&'a str, &'a EndedStep),
    /// Outputs of an ended step, and the reason if it has none.
    Outputs(&'a IndexMap<String, Value>, Option<Rc<str>>),
    /// The object `run`.
    Run(ListState),
    /// A function.
    Function(Function),
}

/// Reason why an item has no such member.
pub(super) enum NoMember {
    /// The object has no such key. Holds the keys it has.
    Missing(Vec<String>),
    /// The object has no such key. Holds the reason.
    Because(String),
    /// The item is not an object. Holds the name of its type.
    NotAnObject(&'static str),
}

impl<'a> Item<'a> {
    /// Returns a member of an object. A member of a marked object is marked too. If `tell` is true, an error lists the
    /// existing names, at a cost proportional to their number.
    pub(super) fn member(self, key: &str, tell: bool) -> Result<Self, NoMember> {
        match self {
            Item::Map(members) => match members.get(key) {
                Some(value) => Ok(Item::Value(Cow::Borrowed(value))),
                None => Err(missing(tell, || members.keys().cloned().collect())),
            },
            Item::Env(env) => match env.get(key) {
                Some(value) => Ok(Item::Value(Cow::Owned(value))),
                None => Err(missing(tell, || env.names().into_iter().map(Cow::into_owned).collect())),
            },
            Item::Steps(steps, ahead) => match steps.get_key_value(key) {
                Some((name, step)) => Ok(Item::Step(name, step)),
                None => Err(match tell.then(|| ahead.reason(key)).flatten() {
                    Some(reason) => NoMember::Because(reason),
                    None => missing(tell, || steps.keys().cloned().collect()),
                }),
            },
            Item::Step(name, step) => step_member(name, step, key, tell),
            Item::Outputs(outputs, lack) => match (outputs.get(key), lack) {
                (Some(value), _) => Ok(Item::Value(Cow::Borrowed(value))),
                (None, Some(lack)) => Err(NoMember::Because(lack.to_string())),
                (None, None) => Err(missing(tell, || outputs.keys().cloned().collect())),
            },
            Item::Run(state) if key == "status" => Ok(Item::Value(Cow::Owned(Value::text(state.word())))),
            Item::Run(_) => Err(missing(tell, || vec!["status".to_owned()])),
            Item::Function(_) => Err(NoMember::NotAnObject("function")),
            Item::Value(Cow::Borrowed(Value { data: Data::Object(members), sensitive })) => {
                match members.get(key) {
                    Some(value) => Ok(Item::Value(Cow::Borrowed(value)).marked(*sensitive)),
                    None => Err(missing(tell, || members.keys().cloned().collect())),
                }
            }
            Item::Value(Cow::Owned(Value { data: Data::Object(members), sensitive })) => {
                match members.get(key) {
                    Some(value) => Ok(Item::Value(Cow::Owned(value.clone())).marked(sensitive)),
                    None => Err(missing(tell, || members.keys().cloned().collect())),
                }
            }
            Item::Value(value) => Err(NoMember::NotAnObject(value.type_name())),
        }
    }

    /// Marks the item if `sensitive`. An object that is not built stays unmarked.
    pub(super) fn marked(self, sensitive: bool) -> Self {
        match self {
            Item::Value(value) if sensitive && !value.sensitive => {
                let mut value = value.into_owned();
                value.mark_sensitive();
                Item::Value(Cow::Owned(value))
            }
            other => other,
        }
    }

    /// Returns two flags: the item counts as true, and it or a value inside is marked.
    pub(super) fn truth(&self, budget: &Budget) -> Result<(bool, bool), Exhausted> {
        let marked = |members: &IndexMap<String, Value>| {
            members.values().try_fold(false, |marked, member| Ok(budget.look(member)? || marked))
        };
        let is_marked = |step: &EndedStep| match &step.returned {
            Returned::Outputs(outputs) => marked(outputs),
            Returned::Results(results) => budget.look(results),
            Returned::Group => Ok(false),
        };
        Ok(match self {
            Item::Value(value) => (is_truthy(&value.data), budget.look(value)?),
            Item::Map(members) => (!members.is_empty(), marked(members)?),
            Item::Env(env) => {
                let members = env.to_object();
                (!members.is_empty(), marked(&members)?)
            }
            Item::Steps(steps, _) => {
                let any = steps.values().try_fold(false, |any, step| Ok(is_marked(step)? || any));
                (!steps.is_empty(), any?)
            }
            Item::Step(_, step) => (true, is_marked(step)?),
            Item::Outputs(outputs, _) => (!outputs.is_empty(), marked(outputs)?),
            Item::Run(_) | Item::Function(_) => (true, false),
        })
    }

    /// Returns the value and builds objects. Returns `None` for a function, which is not a value.
    pub(super) fn into_value(self) -> Option<Cow<'a, Value>> {
        let object = |members| Some(Cow::Owned(Value::object(members)));
        match self {
            Item::Value(value) => Some(value),
            Item::Map(members) | Item::Outputs(members, _) => object(members.clone()),
            Item::Env(env) => object(env.to_object()),
            Item::Step(_, step) => object(step.to_object()),
            Item::Steps(steps, _) => object(
                steps.iter().map(|(name, step)| (name.clone(), Value::object(step.to_object()))).collect(),
            ),
            Item::Run(state) => object(IndexMap::from([("status".to_owned(), Value::text(state.word()))])),
            Item::Function(_) => None,
        }
    }
}

fn missing(tell: bool, names: impl FnOnce() -> Vec<String>) -> NoMember {
    NoMember::Missing(if tell { names() } else { Vec::new() })
}

/// Returns a member of an ended step. A step of a list that is no success has no outputs, and the error says why.
fn step_member<'a>(name: &str, step: &'a EndedStep, key: &str, tell: bool) -> Result<Item<'a>, NoMember> {
    match (key, &step.returned) {
        ("outputs", Returned::Outputs(outputs)) => {
            let lack = step.lack(name).filter(|_| tell);
            Ok(Item::Outputs(outputs, lack.map(Rc::from)))
        }
        ("outputs", Returned::Group) => Err(NoMember::Because(format!(
            "\"{name}\" is a group: write steps.MEMBER.outputs with the name of a member"
        ))),
        ("outputs", Returned::Results(_)) => Err(NoMember::Because(format!(
            "\"{name}\" has a matrix: its members are in steps.{name}.results"
        ))),
        ("results", Returned::Results(results)) => Ok(Item::Value(Cow::Borrowed(results))),
        _ => match step.member(key) {
            Some(value) => Ok(Item::Value(Cow::Owned(value))),
            None => Err(missing(tell, || step.names().iter().map(|name| (*name).to_owned()).collect())),
        },
    }
}
