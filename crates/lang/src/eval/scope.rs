//! Names that an expression can see (language.md §10). Their values are built only on demand.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};

use indexmap::IndexMap;

use super::budget::{Budget, Exhausted};
use super::functions::Function;
use super::operators::is_truthy;
use crate::environment::Environment;
use crate::value::{Data, Value};

/// Outputs of the finished steps of one `run` list, by name of the step.
pub type Steps = IndexMap<String, IndexMap<String, Value>>;

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

/// The names of language.md §10.
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
            "steps" => Item::Steps(self.steps),
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
        NAMES.into_iter().map(str::to_owned).collect()
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
    /// The object `steps`.
    Steps(&'a Steps),
    /// A step: an object with the member `outputs`.
    Step(&'a IndexMap<String, Value>),
    /// A function.
    Function(Function),
}

/// Reason why an item has no such member.
pub(super) enum NoMember {
    /// The object has no such key. Holds the keys it has.
    Missing(Vec<String>),
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
            Item::Steps(steps) => match steps.get(key) {
                Some(outputs) => Ok(Item::Step(outputs)),
                None => Err(missing(tell, || steps.keys().cloned().collect())),
            },
            Item::Step(outputs) if key == "outputs" => Ok(Item::Map(outputs)),
            Item::Step(_) => Err(missing(tell, || vec!["outputs".to_owned()])),
            Item::Function(_) => Err(NoMember::NotAnObject("function")),
            Item::Value(Cow::Borrowed(Value { data: Data::Object(members), sensitive })) => {
                match members.get(key) {
                    Some(value) => Ok(Item::Value(Cow::Borrowed(value)).marked(*sensitive)),
                    None => Err(missing(tell, || members.keys().cloned().collect())),
                }
            }
            Item::Value(Cow::Owned(Value { data: Data::Object(mut members), sensitive })) => {
                match members.swap_remove(key) {
                    Some(value) => Ok(Item::Value(Cow::Owned(value)).marked(sensitive)),
                    None => Err(missing(tell, || members.into_keys().collect())),
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
        Ok(match self {
            Item::Value(value) => (is_truthy(&value.data), budget.look(value)?),
            Item::Map(members) => (!members.is_empty(), marked(members)?),
            Item::Env(env) => {
                let members = env.to_object();
                (!members.is_empty(), marked(&members)?)
            }
            Item::Steps(steps) => {
                let any = steps.values().try_fold(false, |any, outputs| Ok(marked(outputs)? || any));
                (!steps.is_empty(), any?)
            }
            Item::Step(outputs) => (true, marked(outputs)?),
            Item::Function(_) => (true, false),
        })
    }

    /// Returns the value and builds objects. Returns `None` for a function, which is not a value.
    pub(super) fn into_value(self) -> Option<Cow<'a, Value>> {
        let object = |members| Some(Cow::Owned(Value::plain(Data::Object(members))));
        match self {
            Item::Value(value) => Some(value),
            Item::Map(members) => object(members.clone()),
            Item::Env(env) => object(env.to_object()),
            Item::Step(outputs) => object(step_object(outputs)),
            Item::Steps(steps) => object(
                steps
                    .iter()
                    .map(|(name, outputs)| (name.clone(), Value::plain(Data::Object(step_object(outputs)))))
                    .collect(),
            ),
            Item::Function(_) => None,
        }
    }
}

fn missing(tell: bool, names: impl FnOnce() -> Vec<String>) -> NoMember {
    NoMember::Missing(if tell { names() } else { Vec::new() })
}

fn step_object(outputs: &IndexMap<String, Value>) -> IndexMap<String, Value> {
    IndexMap::from([("outputs".to_owned(), Value::plain(Data::Object(outputs.clone())))])
}
