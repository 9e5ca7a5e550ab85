//! Control flow of a step (docs/spec/flow.md §1): the keys `if`, `when`, `continue_on_error`, `timeout`, `retry`,
//! `matrix`, and `max` and `fail_fast` of groups.

use std::time::Duration;

use crate::ast::{Template, TemplateValue};
use crate::diagnostic::Position;
use crate::value::Value;

/// Most members of a job, and of a group, that run at the same time.
pub const MEMBERS_AT_A_TIME: u8 = 14;

/// Most members of a group and combinations of a matrix.
pub const MEMBER_LIMIT: usize = 256;

/// Control flow of a step that has at least one of the keys. A step without any has none.
#[derive(Clone, Debug)]
pub struct Flow {
    /// The keys as written, and their places, in the order of the text.
    pub keys: Vec<(String, Position)>,
    /// `if`.
    pub condition: Option<Condition>,
    /// `when`.
    pub when: When,
    /// `continue_on_error`.
    pub tolerance: Tolerance,
    /// `timeout`: limit of one attempt.
    pub timeout: Option<Duration>,
    /// `retry`.
    pub retry: Option<Retry>,
    /// `matrix`.
    pub matrix: Option<Matrix>,
    /// `max`: most members at a time. The job's default if absent.
    pub max: Option<u8>,
    /// `fail_fast`.
    pub fail_fast: bool,
}

/// `if`.
#[derive(Clone, Debug)]
pub enum Condition {
    /// A plain boolean.
    Constant(bool),
    /// One expression.
    Expression {
        /// The template that consists of it.
        template: Template,
        /// Its text between the delimiters, without the white space around it: the reason of a skipped step.
        text: String,
    },
}

/// `when`: states of a list in which a step runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum When {
    /// Neither failing nor cancelled.
    #[default]
    OnSuccess,
    /// Failing and not cancelled.
    OnFailure,
    /// Any state.
    Always,
}

impl When {
    /// All values with their words.
    pub const ALL: [(Self, &'static str); 3] =
        [(Self::OnSuccess, "on_success"), (Self::OnFailure, "on_failure"), (Self::Always, "always")];

    /// Returns the value as written.
    pub fn word(self) -> &'static str {
        Self::ALL.iter().find(|(when, _)| *when == self).map_or("", |(_, word)| *word)
    }
}

/// `continue_on_error`: failures that do not fail the list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Tolerance {
    /// None.
    #[default]
    None,
    /// All.
    All,
    /// Those with one of these exit codes.
    ExitCodes(Vec<u8>),
}

impl Tolerance {
    /// True if a failure with this exit code, if any, is allowed.
    pub fn allows(&self, exit_code: Option<i32>) -> bool {
        match self {
            Self::None => false,
            Self::All => true,
            Self::ExitCodes(codes) => is_among(codes, exit_code),
        }
    }
}

/// `retry`.
#[derive(Clone, Debug, PartialEq)]
pub struct Retry {
    /// Further attempts.
    pub max: u8,
    /// Delay before the second attempt.
    pub delay: Duration,
    /// Growth of each later delay.
    pub factor: f64,
    /// Upper bound of every delay.
    pub max_delay: Duration,
    /// Kinds of failures that are tried again.
    pub when: Vec<FailureKind>,
    /// Exit codes of failures that are tried again.
    pub exit_codes: Vec<u8>,
}

impl Default for Retry {
    /// The long form without any key.
    fn default() -> Self {
        Self {
            max: 2,
            delay: Duration::from_secs(1),
            factor: 2.0,
            max_delay: Duration::from_mins(1),
            when: Vec::new(),
            exit_codes: Vec::new(),
        }
    }
}

impl Retry {
    /// Returns the delay before attempt `attempt`, counted from 1.
    pub fn delay_before(&self, attempt: u32) -> Duration {
        let mut delay = self.delay.min(self.max_delay);
        for _ in 2..attempt {
            delay = delay.mul_f64(self.factor).min(self.max_delay);
        }
        delay
    }

    /// True if a failure is tried again. A failure without a kind is one of the file or of the caller.
    pub fn applies_to(&self, kind: Option<FailureKind>, exit_code: Option<i32>) -> bool {
        let Some(kind) = kind else { return false };
        if self.when.is_empty() && self.exit_codes.is_empty() {
            return true;
        }
        self.when.contains(&kind) || is_among(&self.exit_codes, exit_code)
    }
}

fn is_among(codes: &[u8], exit_code: Option<i32>) -> bool {
    exit_code.is_some_and(|code| codes.iter().any(|known| i32::from(*known) == code))
}

/// Kind of a failure that another attempt may cure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// The process ended with another code than 0.
    Exit,
    /// The process died of a signal.
    Signal,
    /// The limit passed.
    Timeout,
    /// The function could not be fetched.
    Fetch,
    /// The process could not be started.
    Start,
    /// The process succeeded, but one of its files is malformed or lacks an output. No word of `retry` names this kind.
    Outputs,
}

impl FailureKind {
    /// The kinds that `retry` can name, with their words.
    pub const NAMED: [(Self, &'static str); 5] = [
        (Self::Exit, "exit"),
        (Self::Signal, "signal"),
        (Self::Timeout, "timeout"),
        (Self::Fetch, "fetch"),
        (Self::Start, "start"),
    ];
}

/// `matrix`.
#[derive(Clone, Debug)]
pub struct Matrix {
    /// Its lists, at least one. The last one varies fastest.
    pub lists: Vec<MatrixList>,
    /// `exclude`: combinations that agree with all keys of one of these are left out.
    pub exclude: Vec<Vec<(String, Value)>>,
}

/// A list of a matrix.
#[derive(Clone, Debug)]
pub struct MatrixList {
    /// Its key.
    pub name: String,
    /// Place of the list.
    pub at: Position,
    /// Its items.
    pub items: MatrixItems,
}

/// Items of a list of a matrix.
#[derive(Clone, Debug)]
pub enum MatrixItems {
    /// Written one by one.
    Literal(Vec<MatrixItem>),
    /// Any other value. It must evaluate to an array.
    Value(TemplateValue),
}

/// An item of a literal list.
#[derive(Clone, Debug)]
pub struct MatrixItem {
    /// Its value, which must be a string, number or boolean.
    pub value: TemplateValue,
    /// Its place.
    pub at: Position,
}

impl Matrix {
    /// Returns the number of combinations before `exclude`. `None` if a list is computed.
    pub fn combinations(&self) -> Option<usize> {
        self.lists.iter().try_fold(1_usize, |product, list| match &list.items {
            MatrixItems::Literal(items) => Some(product.saturating_mul(items.len())),
            MatrixItems::Value(_) => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn delays_grow_up_to_their_bound() {
        let retry =
            Retry { delay: Duration::from_secs(3), max_delay: Duration::from_secs(10), ..Retry::default() };
        let delays: Vec<u64> = (2..6).map(|attempt| retry.delay_before(attempt).as_secs()).collect();
        assert_eq!(delays, [3, 6, 10, 10]);
        let bounded = Retry { delay: Duration::from_hours(1), ..Retry::default() };
        assert_eq!(bounded.delay_before(2), Duration::from_mins(1), "the first delay is bounded too");
    }

    #[test]
    fn a_failure_is_tried_again_if_its_kind_or_its_code_is_named() {
        let retry = |when: &[FailureKind], exit_codes: &[u8]| Retry {
            when: when.to_vec(),
            exit_codes: exit_codes.to_vec(),
            ..Retry::default()
        };
        let any = retry(&[], &[]);
        assert!(any.applies_to(Some(FailureKind::Outputs), None));
        assert!(!any.applies_to(None, None), "a wrong file stays wrong");
        let named = retry(&[FailureKind::Signal], &[75]);
        assert!(named.applies_to(Some(FailureKind::Signal), Some(137)));
        assert!(named.applies_to(Some(FailureKind::Exit), Some(75)));
        assert!(!named.applies_to(Some(FailureKind::Exit), Some(1)));
        assert!(!named.applies_to(Some(FailureKind::Start), None));
    }

    proptest! {
        #[test]
        fn no_delay_exceeds_its_bound(
            delay in 0..86_400_u64,
            bound in 0..86_400_u64,
            factor in 1.0..10.0_f64,
            attempt in 2..12_u32,
        ) {
            let retry = Retry {
                delay: Duration::from_secs(delay),
                max_delay: Duration::from_secs(bound),
                factor,
                ..Retry::default()
            };
            prop_assert!(retry.delay_before(attempt) <= Duration::from_secs(bound));
        }
    }
}
