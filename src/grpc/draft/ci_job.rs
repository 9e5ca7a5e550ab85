//! The job of a request as a mapping of keywords (service.md §5). What it means is decided by [`crate::ci`].

use std::sync::Arc;

use indexmap::IndexMap;
use serde_json::Value as Json;

use crate::ci::job::of_mapping;
use crate::ci::plan::{Images, Plan, plan};
use crate::lang::diagnostic::Diagnostic;
use crate::lang::value::{Data, Value};
use crate::model::{Reason, Refusal, text};

/// Name of the text in messages.
const FILE: &str = "<ci_job>";

/// Name of the document that is made of it.
pub(super) const PLANNED: &str = "<job>";

/// Maximum number of findings in the details of an answer (service.md §3.1).
const MAX_FINDINGS: usize = 20;

/// Maximum number of findings in the text of an answer, which shares the space for headers with the details.
const MAX_FINDINGS_IN_TEXT: usize = 8;

/// Makes the request of a job. Its client has made the environment that it asks for.
pub(super) fn planned(text: &str) -> Result<Plan, Refusal> {
    let job = of_mapping(FILE, text).map_err(|findings| refused(&findings))?;
    plan(&job, Images::Provided, None)
        .map_err(|refused| Refusal::new(Reason::MalformedSteps, refused.0).about("ci_job"))
}

fn refused(findings: &[Diagnostic]) -> Refusal {
    let findings = || findings.iter().take(MAX_FINDINGS);
    let shown = |description: &str| text::for_people(description).into_owned();
    let told: Vec<_> = findings().take(MAX_FINDINGS_IN_TEXT).map(ToString::to_string).collect();
    Refusal {
        violations: findings().map(|finding| finding.violation("ci_job", shown)).collect(),
        ..Refusal::new(Reason::MalformedSteps, told.join("\n")).about("ci_job")
    }
}

/// Returns the inputs of a plan as values of the language. The reader of YAML has bounded their depth.
pub(super) fn values(inputs: impl IntoIterator<Item = (String, Json)>) -> IndexMap<String, Value> {
    inputs.into_iter().map(|(name, value)| (name, value_of(value))).collect()
}

fn value_of(json: Json) -> Value {
    let data = match json {
        Json::Null => Data::Null,
        Json::Bool(value) => Data::Bool(value),
        Json::Number(number) => number.as_f64().map_or(Data::Null, Data::Number),
        Json::String(text) => Data::String(text),
        Json::Array(items) => Data::Array(items.into_iter().map(value_of).collect()),
        Json::Object(fields) => Data::Object(Arc::new(values(fields))),
    };
    Value { data, sensitive: false }
}
