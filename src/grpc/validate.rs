//! Converts messages to checked requests. Every message is destructured without `..`, so that a new field does not
//! compile until it is handled.

use std::sync::Arc;
use std::time::Duration;

use indexmap::IndexMap;
use prost::Message;
use prost_types::value::Kind as PbKind;

use crate::config::MAX_CLEANUP;
use crate::lang::value::{Data, Value};
use crate::model::{JobId, Reason, Refusal, ResourceLimits, Variable};
use crate::pb::v1;
use crate::request::{JobPart, Masking, RequestLabels, RequestOrigin, Run, RunEnvironment};

/// Maximum size of the `steps` text in bytes (service.md §3.7).
const MAX_STEPS: usize = 16 << 20;

/// Maximum length of `file` in bytes (service.md §3.7): that of a path.
const MAX_FILE: usize = 4 << 10;

/// Checks a job id.
pub(super) fn job_id(id: &str) -> Result<JobId, Refusal> {
    JobId::parse(id).map_err(|e| Refusal::caused(Reason::InvalidId, &e).about("id"))
}

/// Checks an offset.
pub(super) fn offset(offset: i64) -> Result<u64, Refusal> {
    u64::try_from(offset).map_err(|_| {
        Refusal::new(
            Reason::OffsetNegative,
            format!("offset {offset} is negative: 0 is the log's first byte"),
        )
        .about("offset")
    })
}

/// Checks the shape of a request to run a job. The caller has checked its id.
pub(super) fn run_request(id: JobId, digest: [u8; 32], request: v1::RunRequest) -> Result<Run, Refusal> {
    let size = request.encoded_len();
    let v1::RunRequest {
        id: _,
        work_dir,
        env,
        masking,
        job,
        steps,
        timeout,
        cancel_grace,
        inputs,
        file,
        limits,
        cleanup_timeout,
        errexit,
        trace_sections,
    } = request;
    let (labels, job) = job.map(job_part).unzip();
    Ok(Run {
        id,
        digest,
        size,
        origin: RequestOrigin::V1,
        labels: labels.unwrap_or_default(),
        environment: RunEnvironment {
            work_dir,
            env: env.into_iter().collect(),
            job,
            masking: masking.map(masking_part).unwrap_or_default(),
        },
        steps: self::steps(steps)?,
        file: file_name(file)?,
        inputs: input_values(inputs)?,
        timeout: positive("timeout", timeout)?,
        cancel_grace: positive("cancel_grace", cancel_grace)?,
        errexit,
        trace_sections,
        cleanup_timeout: cleanup_time(positive("cleanup_timeout", cleanup_timeout)?)?,
        limits: limits.map(job_limits).transpose()?.unwrap_or_default(),
    })
}

/// Checks the bound of the cleanup (flow.md §9).
fn cleanup_time(time: Option<Duration>) -> Result<Option<Duration>, Refusal> {
    if time.is_some_and(|time| time > MAX_CLEANUP) {
        let text = "cleanup_timeout is longer than 24 hours";
        return Err(Refusal::new(Reason::MalformedRequest, text).about("cleanup_timeout"));
    }
    Ok(time)
}

/// Checks the length of the document's name. Messages and results hold it.
fn file_name(file: String) -> Result<Option<String>, Refusal> {
    if file.len() > MAX_FILE {
        let text = format!("file has {} bytes, at most {MAX_FILE} are allowed", file.len());
        return Err(Refusal::new(Reason::TooLarge, text).about("file"));
    }
    Ok(Some(file).filter(|file| !file.is_empty()))
}

/// Checks the size of the steps' text.
pub(super) fn steps(steps: String) -> Result<String, Refusal> {
    if steps.len() > MAX_STEPS {
        return Err(Refusal::new(
            Reason::TooLarge,
            format!("steps has {} bytes, at most {MAX_STEPS} are allowed", steps.len()),
        )
        .about("steps"));
    }
    Ok(steps)
}

fn job_part(job: v1::Job) -> (RequestLabels, JobPart) {
    let v1::Job { variables, job_id, pipeline_id, build_dir, token_prefixes, private_file_variables } = job;
    let variables = variables.into_iter().map(variable).collect();
    let labels = RequestLabels { ci_job: job_id, pipeline: pipeline_id, ..RequestLabels::default() };
    (labels, JobPart { variables, build_dir, token_prefixes, private_file_variables })
}

pub(super) fn variable(variable: v1::Variable) -> Variable {
    let v1::Variable { key, value, file, masked } = variable;
    Variable { key, value, file, masked }
}

fn masking_part(masking: v1::Masking) -> Masking {
    let v1::Masking { phrases, token_prefixes } = masking;
    Masking { phrases, token_prefixes }
}

/// Checks resource limits; 0 means none (service.md §2).
fn job_limits(limits: v1::Limits) -> Result<ResourceLimits, Refusal> {
    const MICROS: f64 = 1e6;
    let v1::Limits { processes, memory, cpus, open_files } = limits;
    let refused = |name: &str| {
        Refusal::new(
            Reason::MalformedRequest,
            format!("limit {name} must be greater than zero; leave it out for none"),
        )
        .about(format!("limits.{name}"))
    };
    let whole = |name, value: i64| -> Result<Option<u64>, Refusal> {
        let value = u64::try_from(value).map_err(|_| refused(name))?;
        Ok(Some(value).filter(|&value| value > 0))
    };
    if !cpus.is_finite() || cpus < 0.0 {
        return Err(refused("cpus"));
    }
    Ok(ResourceLimits {
        processes: whole("processes", processes)?,
        memory: whole("memory", memory)?,
        cpu_micros: Some((cpus * MICROS).ceil() as u64).filter(|&micros| micros > 0),
        open_files: whole("open_files", open_files)?,
    })
}

fn positive(name: &str, duration: Option<prost_types::Duration>) -> Result<Option<Duration>, Refusal> {
    let Some(duration) = duration else { return Ok(None) };
    match Duration::try_from(duration) {
        Ok(duration) if !duration.is_zero() => Ok(Some(duration)),
        _ => Err(Refusal::new(
            Reason::MalformedRequest,
            format!("{name} must be greater than zero; leave it out for none"),
        )
        .about(name)),
    }
}

fn input_values(
    inputs: impl IntoIterator<Item = (String, prost_types::Value)>,
) -> Result<IndexMap<String, Value>, Refusal> {
    inputs.into_iter().map(|(name, value)| Ok((name, input_value(value)?))).collect()
}

/// The decoder limits the nesting of messages to 100, so this recursion is bounded.
fn input_value(value: prost_types::Value) -> Result<Value, Refusal> {
    let data = match value.kind {
        None | Some(PbKind::NullValue(_)) => Data::Null,
        Some(PbKind::BoolValue(b)) => Data::Bool(b),
        Some(PbKind::NumberValue(n)) if n.is_finite() => Data::Number(n),
        Some(PbKind::NumberValue(_)) => {
            let text = "inputs hold a number that is not finite";
            return Err(Refusal::new(Reason::MalformedRequest, text).about("inputs"));
        }
        Some(PbKind::StringValue(s)) => Data::String(s),
        Some(PbKind::ListValue(list)) => {
            Data::Array(list.values.into_iter().map(input_value).collect::<Result<_, _>>()?)
        }
        Some(PbKind::StructValue(object)) => Data::Object(Arc::new(input_values(object.fields)?)),
    };
    Ok(Value::plain(data))
}
