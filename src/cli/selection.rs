//! Which job a command is about: an id, the beginning of one, or the last job (cli.md §1).

use super::connection::parse_id;
use super::{Verbosity, terminal};
use crate::client::{Client, Error};
use crate::error::{Exit, Failure};
use crate::model::JobId;

/// Fewest characters that name a job whose id is longer. Fewer are too easily those of another job.
const LEAST: usize = 4;

/// Most ids named as candidates.
const CANDIDATES: usize = 5;

/// Lengths of the groups of characters in an id that this program has made.
const GROUPS: [usize; 3] = [4, 4, 3];

/// Characters of such an id: no two look alike, and none needs the shift key. The first 22 are letters.
const ALPHABET: &[u8; 32] = b"abcdefghjkmnpqrstvwxyz0123456789";

/// Letters at the beginning of [`ALPHABET`]. An id begins with one, so that no number is the beginning of an id.
const LETTERS: u64 = 22;

/// Makes a new id of 13 characters, such as `k7m2-x9qd-4tb`: 54 random bits, so that no two of a daemon are equal.
pub(super) fn new_id() -> Result<JobId, Failure> {
    let mut random = getrandom::u64().map_err(|error| Failure::new(Exit::Failure, error.to_string()))?;
    let mut draw = |of: u64| {
        let index = usize::try_from(random % of).unwrap_or_default();
        random /= of;
        ALPHABET.get(index).copied().map_or('a', char::from)
    };
    let mut id = String::from(draw(LETTERS));
    for (group, length) in GROUPS.into_iter().enumerate() {
        if group > 0 {
            id.push('-');
        }
        let first = usize::from(group == 0);
        id.extend((first..length).map(|_| draw(ALPHABET.len() as u64)));
    }
    JobId::parse(&id).map_err(|error| Failure::new(Exit::Defect, error))
}

/// True for an id that [`new_id`] could have made.
fn is_made_here(id: &str) -> bool {
    let groups: Vec<&str> = id.split('-').collect();
    groups.iter().map(|group| group.len()).eq(GROUPS)
        && id.bytes().all(|byte| byte == b'-' || ALPHABET.contains(&byte))
        && !id.starts_with(|first: char| first.is_ascii_digit())
}

/// What a command does with the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Shows it. The beginning of any id names a job.
    Show,
    /// Ends it. Only the beginning of an id that this program has made names a job: `finish 12` for a job 12 that is gone
    /// must not end a job 123.
    End,
}

impl Purpose {
    /// True if `given` may stand for the longer `id`.
    fn allows(self, given: &str, id: &str) -> bool {
        let is_number = given.bytes().all(|byte| byte.is_ascii_digit());
        id.len() > given.len()
            && id.starts_with(given)
            && given.len() >= LEAST
            && !is_number
            && (self == Self::Show || is_made_here(id))
    }
}

/// Arguments of a command about one job.
#[derive(clap::Args)]
pub(super) struct OneJob {
    /// Id of the job, or the beginning of one from 4 characters on
    #[arg(value_name = "ID", value_parser = parse_id, required_unless_present = "last")]
    id: Option<JobId>,
    /// The job that was registered last, whoever started it
    #[arg(long, env = "STEP_RUNNER_LAST", conflicts_with = "id")]
    last: bool,
}

impl OneJob {
    /// Returns the id of the job. A beginning that names none is returned as it is: the command's own call reports it.
    pub(super) async fn id(&self, client: &Client, verbosity: Verbosity) -> Result<JobId, Failure> {
        match &self.id {
            Some(id) => of_beginning(client, id, Purpose::Show, verbosity).await,
            None => last(client, verbosity).await,
        }
    }
}

/// Arguments of a command that ends jobs.
#[derive(clap::Args)]
pub(super) struct EndedJobs {
    /// Ids of the jobs, or the beginnings of default ids from 4 characters on
    #[arg(required_unless_present = "last", value_name = "ID", value_parser = parse_id)]
    ids: Vec<JobId>,
    /// The job that was registered last, whoever started it
    #[arg(long, env = "STEP_RUNNER_LAST", conflicts_with = "ids")]
    last: bool,
}

impl EndedJobs {
    /// Makes a call for each job, even after one has failed. Returns the first error.
    pub(super) async fn for_each<E: Into<Failure>>(
        &self,
        client: &Client,
        verbosity: Verbosity,
        call: impl AsyncFn(&JobId) -> Result<(), E>,
    ) -> super::CommandResult {
        if self.last {
            let id = last(client, verbosity).await?;
            return call(&id).await.map(|()| 0).map_err(Into::into);
        }
        let mut first_error = Ok(0);
        for id in &self.ids {
            let called = match of_beginning(client, id, Purpose::End, verbosity).await {
                Ok(id) => call(&id).await.map_err(Into::into),
                Err(failure) => Err(failure),
            };
            if let Err(failure) = called {
                first_error = first_error.and(Err(failure));
            }
        }
        first_error
    }
}

/// Returns the whole id of the job that `given` names, and tells it to the user if it was longer.
pub(super) async fn of_beginning(
    client: &Client,
    given: &JobId,
    purpose: Purpose,
    verbosity: Verbosity,
) -> Result<JobId, Failure> {
    match client.status(given).await {
        Err(error) if error.is_unknown_job() && !error.is_finished_job() => {}
        Err(error @ (Error::Unreachable { .. } | Error::NoAnswer { .. })) => return Err(error.into()),
        _ => return Ok(given.clone()),
    }
    let jobs = client.jobs().await?;
    let ids = jobs.iter().map(|job| job.id.as_str());
    let mut found: Vec<&str> = ids.filter(|id| purpose.allows(given.as_str(), id)).collect();
    found.sort_unstable();
    match found.as_slice() {
        [] => Ok(given.clone()),
        [id] => chosen(id, verbosity),
        several => {
            let named = several.get(..CANDIDATES.min(several.len())).unwrap_or_default().join(", ");
            let more = if several.len() > CANDIDATES { " and more" } else { "" };
            let text = format!("{} jobs begin with {given}: {named}{more}", several.len());
            Err(Failure::new(Exit::Usage, text).with_remedy("write more characters"))
        }
    }
}

/// Returns the id of the job that was registered last.
pub(super) async fn last(client: &Client, verbosity: Verbosity) -> Result<JobId, Failure> {
    let jobs = client.jobs().await?;
    match jobs.last() {
        Some(job) => chosen(&job.id, verbosity),
        None => Err(Failure::new(Exit::Lost, "the daemon has no job")),
    }
}

fn chosen(id: &str, verbosity: Verbosity) -> Result<JobId, Failure> {
    if !verbosity.quiet {
        terminal::say(&format!("step-runner: job {id}"));
    }
    JobId::parse(id).map_err(|error| Failure::new(Exit::Defect, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_ids_are_short_and_differ() {
        let ids: Vec<JobId> = (0..1000).map(|_| new_id().unwrap()).collect();
        for id in &ids {
            assert!(id.as_str().len() == 13 && is_made_here(id.as_str()), "{id}");
        }
        let distinct: std::collections::HashSet<&JobId> = ids.iter().collect();
        assert_eq!(distinct.len(), ids.len());
    }

    #[test]
    fn a_beginning_ends_only_jobs_whose_ids_were_made_here() {
        for (given, id, shows, ends) in [
            ("k7m2", "k7m2-x9qd-4tb", true, true),
            ("k7m2-x", "k7m2-x9qd-4tb", true, true),
            ("k7m", "k7m2-x9qd-4tb", false, false),
            ("k7m3", "k7m2-x9qd-4tb", false, false),
            ("k7m2-x9qd-4tb", "k7m2-x9qd-4tb", false, false),
            ("build-1", "build-12", true, false),
            ("1234", "12345", false, false),
            ("1234-", "1234-5678-901", true, false),
        ] {
            assert_eq!(Purpose::Show.allows(given, id), shows, "{given} {id}");
            assert_eq!(Purpose::End.allows(given, id), ends, "{given} {id}");
        }
    }
}
