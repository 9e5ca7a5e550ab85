//! The keys of a step that say when, how often and beside what it runs (flow.md §1).

use std::collections::BTreeMap;

use schemars::JsonSchema;

use super::{Any, Duration, NAME, Step};
use crate::ast::flow::{MEMBER_LIMIT, MEMBERS_AT_A_TIME};

#[derive(Default, JsonSchema)]
#[schemars(transparent, extend("minItems" = 1, "maxItems" = MEMBER_LIMIT, "items" = {
    "allOf": [{"$ref": "#/$defs/Step"}],
    "properties": {"when": false, "parallel": false, "matrix": false},
}))]
pub(super) struct Members(Vec<Step>);

#[derive(Default, JsonSchema)]
#[schemars(transparent, extend("minimum" = 1, "maximum" = MEMBERS_AT_A_TIME))]
pub(super) struct AtATime(u8);

#[derive(JsonSchema)]
#[schemars(untagged)]
pub(super) enum Condition {
    Constant(bool),
    Expression(ConditionText),
}

impl Default for Condition {
    fn default() -> Self {
        Self::Constant(true)
    }
}

#[derive(JsonSchema)]
#[schemars(transparent, extend("pattern" = r"^\$\{\{[\s\S]*\}\}$"))]
pub(super) struct ConditionText(String);

#[derive(Default, JsonSchema)]
#[schemars(rename_all = "snake_case")]
pub(super) enum When {
    #[default]
    OnSuccess,
    OnFailure,
    Always,
}

#[derive(JsonSchema)]
#[schemars(untagged)]
pub(super) enum Tolerance {
    All(bool),
    Some(TolerableExits),
}

impl Default for Tolerance {
    fn default() -> Self {
        Self::All(false)
    }
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct TolerableExits {
    /// Exit codes of allowed failures.
    exit_codes: ExitCodes,
}

/// An exit code, or a list of them. Death by signal S is 128+S, a time limit 124.
#[derive(JsonSchema)]
#[schemars(untagged)]
pub(super) enum ExitCodes {
    One(ExitCode),
    Some(ExitCodeList),
}

impl Default for ExitCodes {
    fn default() -> Self {
        Self::One(ExitCode(1))
    }
}

#[derive(JsonSchema)]
#[schemars(transparent, extend("minimum" = 1, "maximum" = 255))]
pub(super) struct ExitCode(u8);

#[derive(JsonSchema)]
#[schemars(transparent, extend("minItems" = 1))]
pub(super) struct ExitCodeList(Vec<ExitCode>);

#[derive(JsonSchema)]
#[schemars(untagged)]
pub(super) enum RetryForm {
    Number(Attempts),
    Long(Retry),
}

impl Default for RetryForm {
    fn default() -> Self {
        Self::Number(Attempts(0))
    }
}

#[derive(Default, JsonSchema)]
#[schemars(transparent, extend("minimum" = 0, "maximum" = 10))]
pub(super) struct Attempts(u8);

/// Further attempts of a failed step.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct Retry {
    /// Number of further attempts; default: 2.
    #[schemars(default)]
    max: Attempts,
    /// Delay before the second attempt; default: `1s`.
    #[schemars(default)]
    delay: Duration,
    /// Growth of each later delay, 1 to 10; default: 2.
    #[schemars(default)]
    factor: Factor,
    /// Upper bound of every delay; default: `1m`.
    #[schemars(default)]
    max_delay: Duration,
    /// Kinds of failures that are tried again; default: all, also beside `exit_codes` if neither is given.
    #[schemars(default)]
    when: Kinds,
    /// Exit codes of failures that are tried again.
    #[schemars(default)]
    exit_codes: ExitCodes,
}

#[derive(Default, JsonSchema)]
#[schemars(transparent, extend("minimum" = 1, "maximum" = 10))]
pub(super) struct Factor(f64);

#[derive(JsonSchema)]
#[schemars(untagged)]
pub(super) enum Kinds {
    One(Kind),
    Some(KindList),
}

impl Default for Kinds {
    fn default() -> Self {
        Self::One(Kind::Exit)
    }
}

#[derive(JsonSchema)]
#[schemars(transparent, extend("minItems" = 1))]
pub(super) struct KindList(Vec<Kind>);

#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
pub(super) enum Kind {
    Exit,
    Signal,
    Timeout,
    Fetch,
    Start,
}

/// Lists by name, and `exclude`.
#[derive(JsonSchema)]
#[schemars(extend("propertyNames" = {"pattern": NAME}, "minProperties" = 1))]
pub(super) struct Matrix {
    /// Combinations to leave out: those that agree with all keys of an item.
    #[schemars(default)]
    exclude: Vec<Excluded>,
    /// A list of strings, numbers or booleans, or a template that gives one.
    #[schemars(flatten)]
    lists: BTreeMap<String, Any>,
}

#[derive(JsonSchema)]
#[schemars(transparent, extend("minProperties" = 1))]
pub(super) struct Excluded(BTreeMap<String, Any>);
