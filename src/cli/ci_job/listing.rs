//! `run --list-jobs`: the jobs of a CI file, what its rules say, and what cannot run here.

use std::fmt::Write as _;

use serde_json::json;

use super::{CiOptions, Configuration};
use crate::ci::job::{Circumstances, Standing, needed, of_file, standing};
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
struct Listed {
    name: String,
    stage: String,
    allow_failure: bool,
    standing: Standing,
    needs: Vec<String>,
    /// Reasons why it cannot run here.
    cannot: Vec<String>,
}

/// Prints the list.
pub(in crate::cli) fn list(
    configuration: &Configuration,
    options: &CiOptions,
    format: ListFormat,
) -> Result<(), Failure> {
    let jobs = listed(configuration, options).map_err(|findings| configuration.project.refused(&findings))?;
    let text = match format {
        ListFormat::Table => table(&jobs),
        ListFormat::Names => names(&jobs),
        ListFormat::Json => jobs.iter().map(object).collect(),
    };
    terminal::print(text.as_bytes())
}

fn listed(configuration: &Configuration, options: &CiOptions) -> Result<Vec<Listed>, Vec<Diagnostic>> {
    let dotenv = Level::new();
    let Configuration { project, file, facts, given } = configuration;
    let circumstances = Circumstances { facts: Some(facts), files: project, given, dotenv: &dotenv };
    let mut jobs = Vec::new();
    for definition in file.jobs.values() {
        for name in definition.full_names() {
            let (standing, allowed) = standing(file, name, &circumstances)?;
            let cannot = match of_file(file, name, &circumstances) {
                Err(findings) => findings.iter().map(reason).collect(),
                Ok(job) => plan(&job, options.images(), None)
                    .err()
                    .map(|refused| text::for_people(&secrets::hide(&refused.0)).into_owned())
                    .into_iter()
                    .collect(),
            };
            jobs.push(Listed {
                name: name.to_owned(),
                stage: definition.stage.clone(),
                allow_failure: allowed.is_some(),
                standing,
                needs: needed(file, name, &circumstances)?,
                cannot,
            });
        }
    }
    let place = |job: &Listed| file.stages.iter().position(|stage| *stage == job.stage);
    jobs.sort_by_key(place);
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
        Standing::Waits(when) => when.clone(),
        Standing::Absent(why) => format!("not in it: {why}"),
    }
}

fn names(jobs: &[Listed]) -> String {
    jobs.iter().fold(String::new(), |text, job| text + &printable(&job.name) + "\n")
}

fn table(jobs: &[Listed]) -> String {
    let rows = jobs.iter().map(|job| [printable(&job.name), printable(&job.stage), words(&job.standing)]);
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

fn object(job: &Listed) -> String {
    let (pipeline, when, why) = match &job.standing {
        Standing::Runs => ("runs", "on_success", None),
        Standing::Waits(when) => ("waits", when.as_str(), None),
        Standing::Absent(why) => ("absent", "never", Some(*why)),
    };
    let object = json!({
        "name": job.name,
        "stage": job.stage,
        "pipeline": pipeline,
        "when": when,
        "why": why,
        "allow_failure": job.allow_failure,
        "needs": job.needs,
        "cannot_run": job.cannot,
    });
    format!("{object}\n")
}
