//! `run --list-jobs`: the jobs of a CI file, what its rules say, and what cannot run here.

use std::fmt::Write as _;

use serde_json::json;

use super::{CiOptions, Configuration};
use crate::ci::file::{CiFile, Definition};
use crate::ci::job::{Circumstances, Pipeline, Standing};
use crate::ci::plan::plan;
use crate::ci::variables::Level;
use crate::cli::states::printable;
use crate::cli::{secrets, terminal};
use crate::error::Failure;
use crate::lang::diagnostic::Diagnostic;
use crate::model::text;

/// Form of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli) enum ListFormat {
    /// A table for people.
    Table,
    /// Names alone, one a line.
    Names,
    /// A JSON object for each job, one a line.
    Json,
}

/// A job in the list.
struct Listed<'f> {
    name: &'f str,
    stage: &'f str,
    allow_failure: bool,
    standing: Standing,
    /// Reasons why it cannot run here.
    cannot: Vec<String>,
}

/// Prints the list.
pub(in crate::cli) fn list(
    configuration: &Configuration,
    options: &CiOptions,
    format: ListFormat,
) -> Result<(), Failure> {
    let dotenv = Level::new();
    let Configuration { project, file, facts, given } = configuration;
    let circumstances = Circumstances { facts: Some(facts), files: project, given, dotenv: &dotenv };
    let mut pipeline = Pipeline::new(file, &circumstances);
    let text = match format {
        ListFormat::Table => jobs(file, &mut pipeline, options).map(|jobs| table(&jobs)),
        ListFormat::Names => Ok(names(file)),
        ListFormat::Json => objects(file, &mut pipeline, options),
    };
    terminal::print(text.map_err(|findings| project.refused(&findings))?.as_bytes())
}

/// Returns the jobs with the full names of each, in the order of stages.
fn definitions(file: &CiFile) -> Vec<&Definition> {
    let mut jobs: Vec<&Definition> = file.jobs.values().collect();
    jobs.sort_by_key(|job| file.stages.iter().position(|stage| *stage == job.stage));
    jobs
}

fn jobs<'f>(
    file: &'f CiFile,
    pipeline: &mut Pipeline<'f>,
    options: &CiOptions,
) -> Result<Vec<Listed<'f>>, Vec<Diagnostic>> {
    let mut jobs = Vec::new();
    for definition in definitions(file) {
        for name in definition.full_names() {
            let (standing, allowed) = pipeline.standing(name)?;
            let cannot = match pipeline.job(name) {
                Err(findings) => findings.iter().map(reason).collect(),
                Ok(job) => plan(&job, options.images(), None)
                    .err()
                    .map(|refused| text::for_people(&secrets::hide(&refused.0)).into_owned())
                    .into_iter()
                    .collect(),
            };
            let (stage, allow_failure) = (definition.stage.as_str(), allowed.is_some());
            jobs.push(Listed { name, stage, allow_failure, standing, cannot });
        }
    }
    Ok(jobs)
}

/// Returns a finding without its place.
fn reason(finding: &Diagnostic) -> String {
    let help = finding.help.as_ref().map(|help| format!(" ({help})")).unwrap_or_default();
    text::for_people(&secrets::hide(&format!("{}{help}", finding.message))).into_owned()
}

fn words(standing: &Standing) -> String {
    match standing {
        Standing::Runs => "starts by itself".to_owned(),
        Standing::Always => "starts by itself, also after a failure".to_owned(),
        Standing::Waits(when) => when.clone(),
        Standing::Absent(why) => format!("not in it: {}", text::for_people(why)),
    }
}

fn names(file: &CiFile) -> String {
    let names = definitions(file).into_iter().flat_map(Definition::full_names);
    names.fold(String::new(), |text, name| text + &printable(name) + "\n")
}

fn table(jobs: &[Listed<'_>]) -> String {
    let rows = jobs.iter().map(|job| [printable(job.name), printable(job.stage), words(&job.standing)]);
    let head = ["JOB", "STAGE", "IN A PIPELINE"].map(str::to_owned);
    let rows: Vec<[String; 3]> = std::iter::once(head).chain(rows).collect();
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let (first, second) = (width(0), width(1));
    let mut lines = String::new();
    for (index, [name, stage, pipeline]) in rows.iter().enumerate() {
        // Writing to memory does not fail.
        writeln!(lines, "{name:first$}  {stage:second$}  {pipeline}").ok();
        let cannot = index.checked_sub(1).and_then(|index| jobs.get(index)).map(|job| job.cannot.as_slice());
        for reason in cannot.unwrap_or_default() {
            writeln!(lines, "    cannot run here: {reason}").ok();
        }
    }
    lines
}

fn objects<'f>(
    file: &'f CiFile,
    pipeline: &mut Pipeline<'f>,
    options: &CiOptions,
) -> Result<String, Vec<Diagnostic>> {
    let mut lines = String::new();
    for job in jobs(file, pipeline, options)? {
        let needs = pipeline.needs(job.name)?;
        // Writing to memory does not fail.
        writeln!(lines, "{}", object(&job, &needs)).ok();
    }
    Ok(lines)
}

fn object(job: &Listed<'_>, needs: &[&str]) -> serde_json::Value {
    let (pipeline, when, why) = match &job.standing {
        Standing::Runs => ("runs", "on_success", None),
        Standing::Always => ("runs", "always", None),
        Standing::Waits(when) => ("waits", when.as_str(), None),
        Standing::Absent(why) => ("absent", "never", Some(text::for_people(why))),
    };
    json!({
        "name": job.name,
        "stage": job.stage,
        "pipeline": pipeline,
        "when": when,
        "why": why,
        "allow_failure": job.allow_failure,
        "needs": needs,
        "cannot_run": job.cannot,
    })
}
