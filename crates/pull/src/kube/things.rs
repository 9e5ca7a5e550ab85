//! Pods and Secrets of this agent in a cluster, known by their labels (agent.md §8.3).

use std::path::Path;

use tokio_util::sync::CancellationToken;

use super::engine;
use crate::engine::{Engine, Trouble};
use crate::folder::environments;
use crate::order::Engines;
use crate::settings::Cluster;
use step_runner_agent::environment::{Found, STATE_LABEL, orphans};

/// Time for a Pod to go. That of a node which is lost never does by itself.
const LEAVES: &str = "--timeout=60s";

/// Removes Pod and Secret of an environment. It returns once they are gone.
pub(super) async fn remove(engine: &Engine, state: &str, name: &str) -> Result<(), Trouble> {
    let (label, field) = (format!("{STATE_LABEL}={state}"), format!("metadata.name={name}"));
    let ours = ["delete", "pod", "--selector", &label, "--field-selector", &field];
    match engine.call(&[&ours[..], &["--grace-period=1", LEAVES]].concat()).await {
        Err(Trouble::Away(text)) if text.contains("timed out waiting") => {
            engine.call(&[&ours[..], &["--grace-period=0", "--force", LEAVES]].concat()).await?;
        }
        result => drop(result?),
    }
    remove_secret(engine, name).await
}

/// Removes the logins of an environment.
pub(super) async fn remove_secret(engine: &Engine, name: &str) -> Result<(), Trouble> {
    engine.call(&["delete", "secret", name, "--ignore-not-found"]).await.map(drop)
}

/// Removes what earlier runs of the agent left in a namespace: all Pods of this state that no record in `jobs` names,
/// and their Secrets.
pub(crate) async fn sweep(engines: &Engines, cluster: &Cluster, jobs: &Path) {
    let engine = engine(engines, cluster, CancellationToken::new());
    let label = format!("{STATE_LABEL}={}", engines.state);
    let names = match engine.call(&["get", "pods", "--selector", &label, "--output", "name"]).await {
        Ok(names) => names,
        Err(trouble) => return tracing::warn!("cannot look for what earlier runs left: {trouble}"),
    };
    // The records come after the Pods: a Pod has its record before it is made.
    let Ok(records) = environments(jobs) else { return };
    let found = |line: &str| {
        let name = line.trim().trim_start_matches("pod/").to_owned();
        Found { environment: name.clone(), name, state: Some(engines.state.clone()) }
    };
    let left: Vec<Found> = names.split_whitespace().map(found).collect();
    for name in orphans(&left, &engines.state, &records) {
        match remove(&engine, &engines.state, name).await {
            Ok(()) => tracing::warn!("removed what earlier runs left: {name}"),
            Err(trouble) => tracing::warn!("cannot remove what earlier runs left: {name}: {trouble}"),
        }
    }
}
