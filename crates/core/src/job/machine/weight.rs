//! Estimate of the work for an event, before it is handled. The job's actor handles small events itself and large ones
//! on another thread.

use indexmap::IndexMap;
use step_runner_lang::ast::Function;
use step_runner_lang::document;
use step_runner_lang::template::OPEN;
use step_runner_lang::value::Value;
use step_runner_model::StepResult;

use crate::job::event::{Event, FetchFailure, Fetched, FileContent};
use crate::plan::library::Loaded;

use super::{Machine, MachineState};

/// Number of bytes that are read, evaluated and copied in about a millisecond.
const SMALL: usize = 1 << 20;

/// Cost of parsing a document, relative to copying it.
const READING: usize = 16;

/// Length of the shortest reference to a value in an expression, with an operator after it.
const SHORTEST_NAME: usize = 4;

/// Number of secrets that one text is searched for in the time of one copy.
const SECRETS_A_COPY: usize = 8;

/// Limit on inputs, environments and returned values in a job's results, in bytes. They are kept until its end.
pub(super) const ROOM: usize = 128 << 20;

impl Machine {
    /// Reserves room in the results for inputs and environment of a step that begins.
    pub(super) fn keep_given(&mut self, inputs: &IndexMap<String, Value>) -> Result<(), String> {
        let left = values(inputs, self.room).and_then(|left| self.environment.take_from(left));
        self.keep(left)
    }

    /// Reserves room in the results for the values of a step that has succeeded.
    pub(super) fn keep_returned(&mut self, result: &StepResult) -> Result<(), String> {
        self.keep(result.take_returned_from(self.room))
    }

    fn keep(&mut self, left: Option<usize>) -> Result<(), String> {
        self.room = left.ok_or_else(|| {
            let most = ROOM >> 20;
            format!(
                "limit: what the steps of this job are given and return takes more than {most} MiB: hand large values \
                 over in files"
            )
        })?;
        Ok(())
    }

    /// True if handling `event` takes about a millisecond at most. The check itself takes little more.
    ///
    /// An expression can name every value that its function sees, and its result is visible in the calling function. So
    /// the values count once for each name in the expressions of each function under way, and double with each call of
    /// `str` in another. A text in an expression does that, too.
    pub fn is_small(&self, event: &Event) -> bool {
        let Some(left) = self.left_by(event) else { return false };
        let under_way = self.functions_read().map(|loaded| Some(Expressions::of(&loaded.function)));
        let (mut left, mut times) = (left, self.searches());
        for expressions in under_way.chain([Expressions::to_come(event)]) {
            let Some((factor, texts)) = expressions.and_then(Expressions::factor_and_texts) else {
                return false;
            };
            let (Some(product), Some(rest)) = (times.checked_mul(factor), left.checked_sub(texts)) else {
                return false;
            };
            (times, left) = (product, rest);
        }
        self.take_from(left / times).is_some()
    }

    /// Returns the part of [`SMALL`] that is left for the machine's own values.
    fn left_by(&self, event: &Event) -> Option<usize> {
        let bytes = match event {
            Event::Fetched { result: Ok(Fetched { text, .. }), .. } => text.len(),
            Event::Fetched { result: Err(FetchFailure { message, .. }), .. } => message.len(),
            Event::Exited { outputs, exports, .. } => {
                let len = |content: &Option<FileContent>| match content {
                    Some(FileContent::Bytes(bytes)) => bytes.len(),
                    Some(FileContent::Unreadable(_)) | None => 0,
                };
                len(outputs).saturating_add(len(exports))
            }
            // The first two occur only in records: the actor hands over the fetch and the files.
            Event::FetchedAgain { .. }
            | Event::Returned { .. }
            | Event::Accepted(_)
            | Event::Admitted { .. }
            | Event::CancelAsked { .. }
            | Event::Unprepared { .. }
            | Event::Broken { .. }
            | Event::Unmasked { .. } => 0,
        };
        SMALL.checked_sub(bytes.saturating_mul(READING))?.checked_sub(self.document_size())
    }

    /// Returns the size of the documents of all functions under way, in bytes, with aliases unfolded.
    pub fn document_size(&self) -> usize {
        self.functions_read().map(Loaded::size).sum()
    }

    /// Cost factor of sensitive texts: each is searched for all secrets.
    fn searches(&self) -> usize {
        let masked = self.constants.vars.values().filter(|value| value.sensitive).count();
        1 + (masked + self.secrets.count()) / SECRETS_A_COPY
    }

    fn functions_read(&self) -> impl Iterator<Item = &Loaded> {
        let root = match &self.state {
            MachineState::Queued(root) => Some(&*root.loaded),
            MachineState::Running(leaf) => Some(&*leaf.loaded),
            MachineState::Fetching(fetching) => Some(&*fetching.call.loaded),
            MachineState::Loading(_) | MachineState::Handling | MachineState::Over => None,
        };
        root.into_iter().chain(self.frames.iter().map(|frame| &*frame.loaded))
    }

    /// Subtracts the values that expressions can see, and the results under way, from `left` bytes.
    fn take_from(&self, left: usize) -> Option<usize> {
        let mut left = self.environment.take_from(values(&self.constants.vars, left)?)?;
        left = match &self.state {
            MachineState::Queued(root) => values(&root.inputs, left),
            MachineState::Running(leaf) => leaf.result.take_from(left),
            MachineState::Fetching(fetching) => values(&fetching.call.inputs, left),
            MachineState::Loading(_) | MachineState::Handling | MachineState::Over => Some(left),
        }?;
        for (depth, frame) in self.frames.iter().enumerate() {
            left = values(&frame.inputs, left)?;
            left = frame.steps.values().try_fold(left, |left, outputs| values(outputs, left))?;
            // Results of the job's own list are already sent.
            if depth > 0 {
                left = frame.sub_steps.iter().try_fold(left, |left, result| result.take_from(left))?;
            }
        }
        Some(left)
    }
}

/// All expressions of a function.
#[derive(Clone, Copy, Default)]
struct Expressions {
    bytes: usize,
    /// Deepest nesting of calls of `str`; more if that was not counted exactly.
    nested_str: u32,
}

impl Expressions {
    const fn of(function: &Function) -> Self {
        Self { bytes: function.expressions, nested_str: function.nested_str }
    }

    /// Returns the expressions of a function that was fetched; `None` if only parsing can tell.
    fn to_come(event: &Event) -> Option<Self> {
        let Event::Fetched { result: Ok(Fetched { text, .. }), .. } = event else {
            return Some(Self::default());
        };
        let is_escaped = ["\\x", "\\u", "\\U"].iter().any(|escape| text.contains(escape));
        if is_escaped || document::may_unfold(text) {
            return None; // escapes may spell the begin of an expression, aliases repeat one
        }
        let behind = text.split(OPEN).skip(1);
        let expressions = behind.map(|rest| rest.find("}}").and_then(|end| rest.get(..end)).unwrap_or(rest));
        Some(expressions.fold(Self::default(), |all, expression| Self {
            bytes: all.bytes + expression.len(),
            nested_str: all.nested_str.max(expression.matches("str").count() as u32),
        }))
    }

    /// Returns how often and how much the values count that they can name, and the most bytes that their own texts become.
    fn factor_and_texts(self) -> Option<(usize, usize)> {
        let growth = 1_usize.checked_shl(self.nested_str)?;
        Some(((1 + self.bytes / SHORTEST_NAME).checked_mul(growth)?, self.bytes.checked_mul(growth)?))
    }
}

fn values<'v>(values: impl IntoIterator<Item = (&'v String, &'v Value)>, left: usize) -> Option<usize> {
    let mut values = values.into_iter();
    values.try_fold(left, |left, (name, value)| value.take_from(left.checked_sub(name.len())?))
}
