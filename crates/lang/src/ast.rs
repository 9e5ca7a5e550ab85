//! Syntax trees of function files and `run` lists (language.md §2–§8). A tree has passed every check that one file
//! alone allows: names are valid and combinations are allowed.

mod expression;
pub mod flow;

use std::sync::Arc;
use std::time::Duration;

use indexmap::IndexMap;

use super::diagnostic::{Diagnostic, Position};
use super::value::{Value, ValueType};

pub use expression::{
    Access, BinaryOperator, Expression, ExpressionKind, Part, Template, TemplateValue, UnaryOperator,
};

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
    /// Total bytes of all expressions.
    pub expressions: usize,
    /// Deepest nesting of calls of `str` in its expressions.
    pub nested_str: u32,
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
    /// Its default value, if any. An input or output with a default is optional.
    pub default: Option<Value>,
    /// True if its value must be masked.
    pub sensitive: bool,
    /// Place of the declaration.
    pub at: Position,
}

/// Implementation (language.md §4).
#[derive(Clone, Debug)]
pub struct Definition {
    /// `env` of the definition.
    pub env: IndexMap<String, Template>,
    /// The process or the steps.
    pub body: Body,
}

/// Exactly one of `exec` and `run`.
#[derive(Clone, Debug)]
pub enum Body {
    /// One process.
    Exec(Exec),
    /// Steps, one after another.
    Run(Run),
}

/// `exec`.
#[derive(Clone, Debug)]
pub struct Exec {
    /// At least one template, one argument each.
    pub command: Vec<Template>,
    /// Working directory. Default: the job's.
    pub work_dir: Option<Template>,
    /// Grace of this process (language.md §15).
    pub cancel_timeout: Option<Duration>,
    /// Place of `exec`.
    pub at: Position,
}

/// `run` and the keys that belong to it.
#[derive(Clone, Debug)]
pub struct Run {
    /// At least one step.
    pub steps: Vec<Step>,
    /// `outputs` of the sequence.
    pub outputs: IndexMap<String, TemplateValue>,
    /// `delegate`, if the spec asks for it.
    pub delegate: Option<Delegate>,
}

/// The step whose outputs are those of its function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delegate {
    /// Its name.
    pub name: String,
    /// Place of the name in `delegate`.
    pub at: Position,
}

/// An item of `run` (language.md §5).
#[derive(Clone, Debug)]
pub struct Step {
    /// Its name.
    pub name: String,
    /// Place of its name.
    pub name_at: Position,
    /// The function, script or action that it invokes, or its members.
    pub invokes: Invocation,
    /// Inputs; keys are templates too.
    pub inputs: Vec<(Template, TemplateValue)>,
    /// Environment; keys are templates too.
    pub env: Vec<(Template, Template)>,
    /// Control flow; `None` without a key of flow.md.
    pub flow: Option<Box<flow::Flow>>,
    /// `errexit`; `None` without the key: the job decides.
    pub errexit: Option<Errexit>,
    /// Place of the step.
    pub at: Position,
    /// Path in the document, such as `run[2]`.
    pub path: String,
}

/// The key `errexit` of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errexit {
    /// True if a failing line ends the script.
    pub is_on: bool,
    /// Place of the key.
    pub at: Position,
}

impl Step {
    /// True if it is a group: `parallel`, or a step with `matrix`.
    pub fn is_group(&self) -> bool {
        matches!(self.invokes, Invocation::Group(_))
            || self.flow.as_ref().is_some_and(|flow| flow.matrix.is_some())
    }

    /// Returns its members, if it is written as a group.
    pub fn members(&self) -> &[Self] {
        match &self.invokes {
            Invocation::Group(members) => members,
            Invocation::Reference(..) | Invocation::Script(_) | Invocation::Action(_) => &[],
        }
    }
}

/// Exactly one of `func`/`step`, `script`, `action`, `parallel`.
#[derive(Clone, Debug)]
pub enum Invocation {
    /// `func:` or `step:`.
    Reference(Reference, Position),
    /// `script:`, short for the builtin (language.md §14.5).
    Script(Template),
    /// `action:` (language.md §14.6).
    Action(Template),
    /// `parallel:` (flow.md §5).
    Group(Vec<Step>),
}

/// Source of a function (language.md §7).
#[derive(Clone, Debug, PartialEq)]
pub enum Reference {
    /// A folder or file of the job's environment.
    Local {
        /// Normalised path, relative or absolute, without the file name.
        path: String,
        /// Names to try in order.
        files: Vec<String>,
    },
    /// Ships with the program.
    Builtin {
        /// Name without the scheme.
        name: String,
        /// True if it is written with the old scheme `dist://`.
        dist: bool,
    },
    /// A Git repository.
    Git {
        /// URL with its scheme.
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
    /// Computed when the step is about to start.
    Dynamic(Template),
}
