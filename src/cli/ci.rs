//! `step-runner ci`: the steps of a CI job whose runner cannot run them itself, in restricted mode (language.md §13, §19).

use std::ffi::OsString;

use indexmap::IndexMap;

use super::job::new_id;
use super::output::OutputOptions;
use super::session::{self, Ended, Interrupts, OnInterrupt};
use super::{Ending, Talk, private, run};
use crate::actors::handle::RunRequest;
use crate::app::PrivateDaemon;
use crate::client::{Address, AddressError, Client, Request};
use crate::config::EnvBase;
use crate::error::{Exit, Failure};
use crate::model::{JobId, Limits, Refusal, Variable};
use crate::net::Socket;
use crate::store::Origin;
use crate::variables;

/// The variable that holds the steps, and the name of the document in messages.
const STEPS: &str = "STEPS";

/// Beginnings of the names that steps see as `vars` (language.md §13).
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
    #[command(flatten)]
    output: OutputOptions,
}

pub(super) async fn execute(arguments: Arguments, talk: Talk) -> Ending {
    let mut interrupts = Interrupts::new(OnInterrupt::Cancel)?;
    let job = Job::of(new_id()?, std::env::vars_os())?;
    let daemon = interrupts.unless_interrupted(private::start(EnvBase::List)).await?;
    let ended = run_with(&daemon, &arguments, &job, &mut interrupts, talk).await;
    let at_once = matches!(&ended, Err(failure) if failure.exit().is_by_signal());
    let gone = private::end(daemon, at_once).await;
    let ended = ended?;
    ended.explain(talk, Some(&Request::new(job.id, job.steps).file(STEPS)), &interrupts);
    gone?;
    Ok(ended.code(&interrupts))
}

async fn run_with(
    daemon: &PrivateDaemon,
    arguments: &Arguments,
    job: &Job,
    interrupts: &mut Interrupts,
    talk: Talk,
) -> Result<Ended, Failure> {
    let request = job.request()?;
    interrupts
        .while_submitting(async {
            daemon.run(request).await.map_err(|refusal| {
                run::shown_findings(&job.steps, STEPS).unwrap_or_else(|| failure(&refusal))
            })
        })
        .await?;
    let socket =
        Socket::named(&daemon.socket).map_err(AddressError::from).map_err(crate::client::Error::from)?;
    let client = Client::connect(Address::Unix(socket)).await?;
    Box::pin(session::follow(&client, &job.id, 0, arguments.output.display(), interrupts, talk)).await
}

fn failure(refusal: &Refusal) -> Failure {
    let exit = if refusal.retry_after.is_some() { Exit::TryLater } else { Exit::Refused };
    Failure::new(exit, refusal.to_string())
}

/// What the environment says. Values may be secrets: no `Debug`.
struct Job {
    id: JobId,
    steps: String,
    variables: Vec<Variable>,
}

impl Job {
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

    /// As the compatible service would make it: variables are taken literally and are no environment.
    fn request(&self) -> Result<RunRequest, Failure> {
        let folder = std::env::current_dir()
            .map_err(|error| Failure::new(Exit::Failure, format!("working directory: {error}")))?;
        let work_dir = folder.into_os_string().into_string().map_err(|folder| {
            Failure::new(Exit::Usage, format!("the working directory {} is not UTF-8", folder.display()))
        })?;
        let job = variables::JobPart { variables: self.variables.clone(), ..Default::default() };
        Ok(RunRequest {
            id: self.id.clone(),
            digest: [0; 32],
            size: self.steps.len(),
            origin: Origin::Proto,
            labels: <(String, String)>::default(),
            variables: variables::Request { work_dir, job: Some(job), ..Default::default() },
            steps: self.steps.clone(),
            file: Some(STEPS.to_owned()),
            inputs: IndexMap::new(),
            timeout: None,
            cancel_grace: None,
            limits: Limits::default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(environment: &[(&str, &str)]) -> Result<Job, Failure> {
        let environment = environment.iter().map(|(name, value)| (name.into(), value.into()));
        Job::of(JobId::parse("1").unwrap(), environment)
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
