//! Containers, volumes and networks of this agent at an engine, known by their labels (agent.md §8.3).

use std::path::Path;

use tokio_util::sync::CancellationToken;

use super::{engine, host};
use crate::engine::{Engine, Trouble};
use crate::folder::environments;
use crate::order::Engines;
use step_runner_agent::config::Docker as Settings;
use step_runner_agent::environment::{Found, STATE_LABEL, orphans};

/// A kind of things: how its things are listed and removed. A container holds its volumes and its network, so it goes
/// before.
struct Kind {
    list: &'static [&'static str],
    name: &'static str,
    remove: &'static [&'static str],
}

const KINDS: [Kind; 3] = [
    Kind { list: &["ps", "--all"], name: "{{.Names}}", remove: &["rm", "--force", "--volumes"] },
    Kind { list: &["volume", "ls"], name: "{{.Name}}", remove: &["volume", "rm", "--force"] },
    Kind { list: &["network", "ls"], name: "{{.Name}}", remove: &["network", "rm"] },
];

async fn list(engine: &Engine, kind: &Kind, state: &str) -> Result<Vec<Found>, Trouble> {
    let filter = format!("label={STATE_LABEL}={state}");
    let words = [kind.list, &["--filter", &filter, "--format", kind.name]].concat();
    let names = engine.call(&words).await?;
    let found = |name: &str| Found {
        name: name.to_owned(),
        state: Some(state.to_owned()),
        environment: name.split('.').next().unwrap_or_default().to_owned(),
    };
    Ok(names.split_whitespace().map(found).collect())
}

/// Removes the things of these environments. Returns their names.
pub(super) async fn remove(
    engine: &Engine,
    state: &str,
    is_meant: impl Fn(&str) -> bool,
) -> Result<Vec<String>, Trouble> {
    let mut removed = Vec::new();
    for kind in &KINDS {
        let mut found = list(engine, kind, state).await?;
        found.retain(|thing| is_meant(&thing.environment));
        removed.extend(remove_these(engine, kind, found.iter().map(|thing| &*thing.name).collect()).await?);
    }
    Ok(removed)
}

async fn remove_these(engine: &Engine, kind: &Kind, names: Vec<&str>) -> Result<Vec<String>, Trouble> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    match engine.call(&[kind.remove, &names].concat()).await {
        // Another one has removed it.
        Ok(_) | Err(Trouble::Missing(_)) => Ok(names.into_iter().map(str::to_owned).collect()),
        Err(other) => Err(other),
    }
}

/// Removes what earlier runs of the agent left at an engine: all of this state that no record in `jobs` names.
pub(crate) async fn sweep(engines: &Engines, settings: &Settings, jobs: &Path) {
    let engine = engine(engines, &host(settings.host.as_deref()), CancellationToken::new());
    let mut removed = Vec::new();
    for kind in &KINDS {
        // The records come after the things: a thing has its record before it is made.
        let left = match list(&engine, kind, &engines.state).await {
            Ok(found) => found,
            Err(trouble) => return tracing::warn!("cannot look for what earlier runs left: {trouble}"),
        };
        let Ok(records) = environments(jobs) else { return };
        let names = orphans(&left, &engines.state, &records);
        match remove_these(&engine, kind, names).await {
            Ok(names) => removed.extend(names),
            Err(trouble) => tracing::warn!("cannot remove what earlier runs left: {trouble}"),
        }
    }
    if !removed.is_empty() {
        tracing::warn!("removed what earlier runs left: {}", removed.join(", "));
    }
}
