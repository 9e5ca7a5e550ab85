//! Estimate of the work for an event, before it is handled. The job's actor handles small events itself and large ones
//! on another thread.

use indexmap::IndexMap;
use step_runner_lang::ast::Function;
use step_runner_lang::document;
use step_runner_lang::environment::Environment;
use step_runner_lang::eval::EndedStep;
use step_runner_lang::template::OPEN;
use step_runner_lang::value::Value;
use step_runner_model::StepResult;

use crate::job::event::{CallId, Event, FetchFailure, Fetched, FileContent};
use crate::plan::library::Loaded;

use super::call::{Call, Work};
use super::{Machine, Phase, ROOT};

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
    pub(super) fn keep_given(
        &mut self,
        inputs: &IndexMap<String, Value>,
        environment: &Environment,
    ) -> Result<(), String> {
        let left = values(inputs, self.room).and_then(|left| environment.take_from(left));
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
        let around = self.around(event);
        let under_way = self.functions_read(around).map(|loaded| Some(Expressions::of(&loaded.function)));
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
        self.take_from(around, left / times).is_some()
    }

    /// Returns the call that an event concerns: what it does is evaluated in the functions around that one.
    fn around(&self, event: &Event) -> CallId {
        let process = match event {
            Event::Fetched { process, .. }
            | Event::FetchRetried { process, .. }
            | Event::Exited { process, .. }
            | Event::Returned { process, .. } => *process,
            _ => return self.calls.keys().next_back().copied().unwrap_or(ROOT),
        };
        self.step_of(process).unwrap_or(ROOT)
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
            | Event::Due { .. }
            | Event::Cleared { .. }
            | Event::FetchRetried { .. }
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
        let lists = self.calls.values().filter_map(|call| Some(loaded_of(call)?.size()));
        lists.sum::<usize>() + self.root().map_or(0, Loaded::size)
    }

    /// Cost factor of sensitive texts: each is searched for all secrets.
    fn searches(&self) -> usize {
        let masked = self.constants.vars.values().filter(|value| value.sensitive).count();
        1 + (masked + self.secrets.count()) / SECRETS_A_COPY
    }

    /// Returns the functions under way around a call, its own among them.
    fn functions_read(&self, around: CallId) -> impl Iterator<Item = &Loaded> {
        self.root().into_iter().chain(self.chain(around).filter_map(|(_, call)| loaded_of(call)))
    }

    /// Returns the function of the request while the job waits for its slot.
    fn root(&self) -> Option<&Loaded> {
        match &self.phase {
            Phase::Queued(root) => Some(&root.loaded),
            Phase::Running | Phase::Handling | Phase::Ended => None,
        }
    }

    /// Subtracts the values that expressions around a call can see from `left` bytes.
    fn take_from(&self, around: CallId, left: usize) -> Option<usize> {
        let mut left = values(&self.constants.vars, left)?;
        if let Phase::Queued(root) = &self.phase {
            return values(&root.inputs, self.constants.environment.take_from(left)?);
        }
        left = texts(&self.domain(around).all, left)?;
        for (_, call) in self.chain(around) {
            left = call.result.take_from(left)?;
            match &call.work {
                Work::Fetching(fetching) => left = values(&fetching.entry.inputs, left)?,
                Work::List(list) => {
                    left = list.environment.take_from(values(&list.inputs, left)?)?;
                    left = list
                        .steps
                        .values()
                        .filter_map(EndedStep::outputs)
                        .try_fold(left, |left, outputs| values(outputs, left))?;
                }
                Work::Nothing | Work::Loading(_) | Work::Running(_) | Work::Group(_) | Work::Delay { .. } => {
                }
            }
        }
        Some(left)
    }
}

/// Returns the function of a call that is loaded.
fn loaded_of(call: &Call) -> Option<&Loaded> {
    match &call.work {
        Work::List(list) => Some(&list.loaded),
        Work::Running(leaf) => Some(&leaf.loaded),
        Work::Fetching(fetching) => Some(&fetching.entry.loaded),
        Work::Nothing | Work::Loading(_) | Work::Group(_) | Work::Delay { .. } => None,
    }
}

fn texts(texts: &IndexMap<String, String>, left: usize) -> Option<usize> {
    texts.iter().try_fold(left, |left, (name, text)| left.checked_sub(name.len() + text.len()))
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
