//! What the agent may do in a cluster, for `verify` (agent.md §8.6).

use std::path::PathBuf;
use std::sync::Arc;

use super::kube;
use super::order::Engines;
use super::program::Programs;
use super::settings::Cluster;
use step_runner_agent::environment::Address;

/// Returns the rights that an entry's jobs need and this account has not, as texts for people.
pub async fn missing_rights(address: &Address) -> Vec<String> {
    let Address::KubeRun { context, namespace } = address else { return Vec::new() };
    let cluster = Cluster { context: context.clone(), namespace: namespace.clone() };
    let engines =
        Engines { programs: Arc::new(Programs::new()), state: String::new(), config: PathBuf::new() };
    kube::missing_rights(&engines, &cluster).await
}
