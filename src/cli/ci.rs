//! `step-runner ci`: runs the steps of a CI job whose runner cannot run them itself, in restricted mode
//! (language.md §13, §19).

use std::ffi::OsString;
use std::path::PathBuf;

use indexmap::IndexMap;

use super::interrupts::{Interrupts, OnInterrupt};
use super::output::OutputOptions;
use super::results::{self, Readers};
use super::selection::new_id;
use super::session::{self, FinishedJob};
use super::{CommandResult, Verbosity, findings, private};
use crate::app::PrivateDaemon;
use crate::client::{Address, AddressError, Client, Request};
use crate::config::EnvBase;
use crate::error::{Exit, Failure};
use crate::model::{JobId, Refusal, ResourceLimits, Variable};
use crate::net::Socket;
use crate::request::{JobPart, RequestLabels, RequestOrigin, Run, RunEnvironment};

/// The variable that holds the steps, and the name of the document in messages.
const STEPS: &str = "STEPS";

/// Prefixes of the variables that steps see as `vars` (language.md §13).
const SHOWN: [&str; 3] = ["CI_", "DOCKER_", "GITLAB_"];

/// Run the steps of a CI job whose runner does not run them itself
///
/// They are a JSON list in the variable STEPS. Of this environment they get a short list of names such as PATH, and as
/// `vars` what begins with CI_, DOCKER_ or GITLAB_. No daemon is needed; exit codes are those of `run`.
#[derive(clap::Args)]
#[command(after_long_help = "\
Example:
  STEPS='[{\"name\": \"hello\", \"script\": \"echo hello\"}]' step-runner ci")]
pub(super) struct Arguments {
    /// Write the step results to step-results.json in the current folder; they may hold secrets
    #[arg(long, env = "STEP_RUNNER_WRITE_STEPS_RESULTS")]
    write_steps_results: bool,
    #[command(flatten)]
    output: OutputOptions,
}

impl Arguments {
    /// Returns the file for the results, if they are wanted.
    fn results_file(&self) -> Option<PathBuf> {
        let asked = self.write_steps_results || results::is_debugged();
        asked.then(|| results::DEFAULT_FILE.into())
    }
}

pub(super) async fn execute(arguments: Arguments, verbosity: Verbosity) -> CommandResult {
    let mut interrupts = Interrupts::new(OnInterrupt::Cancel)?;
    let job = CiJob::of(new_id()?, std::env::vars_os())?;
    if let Some(path) = arguments.results_file() {
        results::check(&path)?;
    }
    let daemon = private::start(EnvBase::List, &mut interrupts).await?;
    let ended = run_with(&daemon, &arguments, &job, &mut interrupts, verbosity).await;
    let at_once = matches!(&ended, Err(failure) if failure.exit().is_by_signal());
    let gone = private::end(daemon, at_once).await;
    let ended = ended?;
    ended.explain(verbosity, Some(&Request::new(job.id, job.steps).file(STEPS)), &interrupts);
    gone?;
    Ok(ended.code(&interrupts))
}

async fn run_with(
    daemon: &PrivateDaemon,
    arguments: &Arguments,
    job: &CiJob,
    interrupts: &mut Interrupts,
    verbosity: Verbosity,
) -> Result<FinishedJob, Failure> {
    let request = job.request()?;
    interrupts
        .while_submitting(async {
            daemon.run(request).await.map_err(|refusal| {
                findings::of_document(&job.steps, STEPS).unwrap_or_else(|| failure(&refusal))
            })
        })
        .await?;
    let socket =
        Socket::named(&daemon.socket).map_err(AddressError::from).map_err(crate::client::Error::from)?;
    let connecting = async { Ok(Client::connect(Address::Unix(socket)).await?) };
    let client = interrupts.unless_interrupted(connecting).await?;
    let display = arguments.output.display(0, verbosity)?;
    let ended = Box::pin(session::follow(&client, &job.id, 0, display, interrupts, verbosity)).await?;
    if let Some(path) = arguments.results_file() {
        let readers = Readers::OfFirstStepRunner;
        results::write_root(path, ended.root.clone(), &ended.status, readers, interrupts).await?;
    }
    Ok(ended)
}

fn failure(refusal: &Refusal) -> Failure {
    let exit = if refusal.retry_after.is_some() { Exit::TryLater } else { Exit::Refused };
    Failure::new(exit, refusal.to_string())
}

/// Job as the environment describes it. Values may be secrets: no `Debug`.
struct CiJob {
    id: JobId,
    steps: String,
    variables: Vec<Variable>,
}

impl CiJob {
    fn of(id: JobId, environment: impl IntoIterator<Item = (OsString, OsString)>) -> Result<Self, Failure> {
        let mut steps = None;
        let mut variables = Vec::new();
        for (name, value) in environment {
            let Ok(key) = name.into_string() else { continue };
            if key == STEPS {
                let refused = |_| Failure::new(Exit::Usage, format!("the variable {STEPS} is not UTF-8"));
                steps = Some(value.into_string().map_err(refused)?);
            } else if SHOWN.iter().any(|beginning| key.starts_with(beginning)) {
                let value = value.to_string_lossy().into_owned();
                variables.push(Variable { key, value, file: false, masked: false });
            }
        }
        let Some(steps) = steps.filter(|steps| !steps.trim().is_empty()) else {
            return Err(Failure::new(Exit::Usage, format!("the variable {STEPS} is not set"))
                .with_remedy("put the list of steps into it, as JSON"));
        };
        Ok(Self { id, steps, variables })
    }

    /// Makes the same request as the compatible service: variables are taken literally and are not exported to steps.
    fn request(&self) -> Result<Run, Failure> {
        let folder = std::env::current_dir().map_err(|error| {
            Failure::new(Exit::Failure, format!("cannot find the working directory: {error}"))
        })?;
        let work_dir = folder.into_os_string().into_string().map_err(|folder| {
            Failure::new(Exit::Usage, format!("the working directory {} is not UTF-8", folder.display()))
        })?;
        let job = JobPart { variables: self.variables.clone(), ..Default::default() };
        Ok(Run {
            id: self.id.clone(),
            digest: [0; 32],
            size: self.steps.len(),
            origin: RequestOrigin::Proto,
            labels: RequestLabels::default(),
            environment: RunEnvironment { work_dir, job: Some(job), ..Default::default() },
            steps: self.steps.clone(),
            file: Some(STEPS.to_owned()),
            inputs: IndexMap::new(),
            timeout: None,
            cancel_grace: None,
            cleanup_timeout: None,
            errexit: false,
            trace_sections: false,
            limits: ResourceLimits::default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(environment: &[(&str, &str)]) -> Result<CiJob, Failure> {
        let environment = environment.iter().map(|(name, value)| (name.into(), value.into()));
        CiJob::of(JobId::parse("1").unwrap(), environment)
    }

    #[test]
    fn variables_are_those_with_the_documented_beginnings() {
        let job = job(&[
            ("STEPS", "[]"),
            ("CI_A", "1"),
            ("ci_b", "2"),
            ("DOCKER_C", "$3"),
            ("GITLAB_D", ""),
            ("E", "5"),
        ])
        .unwrap();
        let shown: Vec<_> = job.variables.iter().map(|v| (v.key.as_str(), v.value.as_str())).collect();
        assert_eq!(shown, [("CI_A", "1"), ("DOCKER_C", "$3"), ("GITLAB_D", "")]);
    }

    #[test]
    fn steps_that_are_not_there_are_asked_for() {
        for environment in [&[][..], &[("STEPS", "")], &[("STEPS", " \n")]] {
            let failure = job(environment).err().unwrap();
            assert_eq!(failure.exit(), Exit::Usage);
            assert!(failure.to_string().contains("STEPS"), "{failure}");
        }
    }
}
