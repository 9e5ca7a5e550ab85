//! Replaces the tokens of runners before they expire (agent.md §3.2).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use parking_lot::Mutex;

use super::api::Api;
use super::configuration::Locked;
use super::info;
use super::job::Surroundings;
use super::register::{Registry, Runner};
use step_runner_agent::config::Entry;
use step_runner_agent::config::edit::{self, Value};
use step_runner_agent::scheduler::EntryId;
use step_runner_agent::time::{Moment, Now};

/// Time after a try at which the next one may begin.
const AGAIN: Duration = Duration::from_mins(10);

/// Time before the end of a token from which it is told that it stays.
const WARNED: Duration = Duration::from_hours(7 * 24);

/// Time between two such warnings.
const DAY: Duration = Duration::from_hours(24);

/// Readings of a file with mistakes before a new token is given up, and the time between them.
const READINGS: u32 = 100;
const READ_AGAIN: Duration = Duration::from_secs(3);

/// Form of dates in the configuration.
const DATE: &str = "%Y-%m-%dT%H:%M:%SZ";

/// The tries to replace tokens.
#[derive(Default)]
pub(super) struct Rotation {
    tried: Mutex<BTreeMap<EntryId, Moment>>,
    told: Mutex<BTreeMap<EntryId, Moment>>,
}

impl Rotation {
    /// Replaces the token of an entry if it is time. `tell` is called when the file has changed: until it is read again,
    /// requests have a token that is not valid any more.
    pub(super) fn see_to(
        &self,
        id: EntryId,
        entry: &Entry,
        api: &Api,
        around: &Surroundings,
        config: &Path,
        tell: impl FnOnce() + Send + 'static,
    ) {
        let now = around.clock.now();
        self.warn(id, entry, now);
        if self.is_due(id, entry, now) {
            let about = info::info(&entry.labels, entry.address.is_provider());
            let registry = Registry::new(api.clone(), entry.url.to_string(), around.system_id.clone(), about);
            tokio::spawn(rotate(entry.clone(), registry, config.to_owned(), tell));
        }
    }

    /// Warns of a token that stays although it expires soon. It is told each day.
    fn warn(&self, id: EntryId, entry: &Entry, now: Now) {
        let Some(left) = entry.token_expires_at.map(|at| at.since(now.wall)) else { return };
        if entry.rotate || left > WARNED {
            return;
        }
        let mut told = self.told.lock();
        if told.get(&id).is_none_or(|at| now.steady.since(*at) >= DAY) {
            told.insert(id, now.steady);
            let when = match left.as_secs() / 3_600 {
                _ if left.is_zero() => "has expired".to_owned(),
                hours => format!("expires in {hours} h"),
            };
            tracing::warn!(
                runner = %entry.name,
                "its token {when}, and `rotate` is false: create a runner and register it",
            );
        }
    }

    /// True if the token of an entry is to be replaced now. That is told once a try.
    fn is_due(&self, id: EntryId, entry: &Entry, now: Now) -> bool {
        if entry.rotates_at().is_none_or(|at| now.wall < at) {
            return false;
        }
        let mut tried = self.tried.lock();
        let is_due = tried.get(&id).is_none_or(|at| now.steady.since(*at) >= AGAIN);
        if is_due {
            tried.insert(id, now.steady);
        }
        is_due
    }
}

/// Asks the server for a new token of an entry, and writes it into the file, which is locked all the time: what the
/// server has given is lost only if this process is killed in between.
async fn rotate(entry: Entry, registry: Registry, config: PathBuf, tell: impl FnOnce() + Send) {
    let name = &entry.name;
    match go(&entry, &registry, &config).await {
        Ok(()) => {
            tracing::info!(runner = %name, "the token was replaced before it expires");
            tell();
        }
        Err(why) => tracing::error!(
            runner = %name,
            "the token was not replaced, and expires: {why}; it is tried again in {} min",
            AGAIN.as_secs() / 60
        ),
    }
}

async fn go(entry: &Entry, registry: &Registry, config: &Path) -> Result<(), String> {
    let mut file = tokio::task::block_in_place(|| Locked::take(config)).map_err(|error| error.to_string())?;
    place_of(entry, &file)?;
    let Runner { token, expires, .. } =
        registry.reset(&entry.token).await.map_err(|error| error.to_string())?;
    let token = token.ok_or_else(|| "the answer has no token".to_owned())?;
    let expires = expires.as_deref().and_then(|date| chrono::DateTime::parse_from_rfc3339(date).ok());
    let expires = expires.map(|date| date.to_utc().format(DATE).to_string());
    let now = chrono::Utc::now().format(DATE).to_string();
    // Without a date it does not expire. The year 1 stands for that.
    let never = || "0001-01-01T00:00:00Z".to_owned();
    let values = [
        ("token", Value::Text(token.expose().to_owned())),
        ("token_obtained_at", Value::Date(now)),
        ("token_expires_at", Value::Date(expires.unwrap_or_else(never))),
    ];
    let lost = |error: &dyn std::fmt::Display| {
        format!(
            "the server has given a new token, and it cannot be written: {error}: register the runner anew"
        )
    };
    let at = written(entry, &mut file).await.map_err(|error| lost(&error))?;
    let edited = file.edit(|text| {
        values.iter().try_fold(text.to_owned(), |text, (key, value)| edit::set(&text, at, key, value))
    });
    edited.map_err(|error| lost(&error))?;
    tokio::task::block_in_place(|| file.write()).map_err(|error| lost(&error))
}

/// Returns the place of the entry in the file as it is now. A person may have changed the file while the server was asked,
/// and one who is still at it gets some time.
async fn written(entry: &Entry, file: &mut Locked) -> Result<usize, String> {
    let mut tries = 0;
    while let Err(error) = tokio::task::block_in_place(|| file.refresh()) {
        tries += 1;
        if tries == READINGS {
            return Err(error.to_string());
        }
        tokio::time::sleep(READ_AGAIN).await;
    }
    place_of(entry, file)
}

fn place_of(entry: &Entry, file: &Locked) -> Result<usize, String> {
    let entries = file.config().map_err(|error| error.to_string())?.entries;
    let at = entries.iter().position(|other| other.token == entry.token && other.url == entry.url);
    at.ok_or_else(|| "the entry is not in the configuration any more".to_owned())
}
