//! `kube-run://`: each job in its own Pod, with the services that it asks for (agent.md §8.6).
//!
//! Pod and Secret have the name of the job's environment, and the record has it before. What `kubectl` is told to make
//! is on its standard input: no secret is among its words.

mod pod;
mod preparation;
mod state;
mod template;
mod things;

use std::sync::Arc;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value as Json;
use tokio_util::sync::CancellationToken;

use super::container::{AGAIN, Fate, PROGRAM, SOCKET, Seen};
use super::daemons::Daemons;
use super::engine::{Engine, Kind, LOOK, Trouble};
use super::order::{Engines, Failed, Order};
use super::settings::Cluster;
use preparation::Preparation;
use step_runner_agent::config::Kubernetes as Settings;
pub(super) use things::sweep;

/// How `kubectl` complains. An API server that has just started forbids everything for a moment, and a quota that is
/// used up is a matter of time, too.
pub(super) static KIND: Kind = Kind {
    program: "kubectl",
    remedy: "install Kubernetes' command line for jobs with `kube-run://`",
    away: &[
        "unable to connect to the server",
        "the connection to the server",
        "connection refused",
        "connection reset",
        "i/o timeout",
        "tls handshake timeout",
        "context deadline exceeded",
        "timed out waiting",
        "unable to handle the request",
        "serviceunavailable",
        "internalerror",
        "internal error",
        "too many requests",
        "etcdserver",
        "unexpected eof",
        "(forbidden)",
        "error dialing backend",
    ],
    missing: &["(notfound)", "container not found"],
    noise: &["memcache.go:", "Defaulted container", "command terminated with exit code"],
};

/// Rights that the agent needs in a namespace: verbs and resources, as in deploy/kubernetes/agent-rights.yaml.
const RIGHTS: [(&str, &str); 10] = [
    ("create", "pods"),
    ("get", "pods"),
    ("list", "pods"),
    ("watch", "pods"),
    ("delete", "pods"),
    ("create", "pods/exec"),
    ("get", "pods/exec"),
    ("get", "pods/log"),
    ("create", "secrets"),
    ("delete", "secrets"),
];

/// Container of the job in its Pod.
const BUILD: &str = "build";

/// The Pod of one job.
pub(super) struct Kube {
    engines: Engines,
    cluster: Cluster,
    settings: Settings,
    /// Name of the job's environment.
    name: String,
    job: u64,
}

impl Kube {
    /// Names the Pod of a job. Nothing is made yet.
    pub(super) const fn new(
        engines: Engines,
        cluster: Cluster,
        settings: Settings,
        name: String,
        job: u64,
    ) -> Self {
        Self { engines, cluster, settings, name, job }
    }

    /// Returns the address of the job's daemon.
    pub(super) fn address(&self) -> String {
        let coded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let context = self.cluster.context.as_ref().map(|context| format!("{}@", coded(context)));
        let (context, namespace, name) = (context.unwrap_or_default(), &self.cluster.namespace, &self.name);
        let (command, socket) = (coded(PROGRAM), coded(SOCKET));
        format!("kube://{context}{namespace}/{name}/{BUILD}?command={command}&socket={socket}")
    }

    /// Returns the place of the Pod, for people.
    pub(super) fn place(&self) -> String {
        place(&self.cluster)
    }

    fn engine(&self, stop: CancellationToken) -> Engine {
        engine(&self.engines, &self.cluster, stop)
    }

    /// Makes everything that a job asks for, up to a daemon that answers.
    pub(super) async fn prepare(
        &self,
        order: Order<'_>,
        daemons: &Daemons,
        stop: CancellationToken,
    ) -> Result<(), Failed> {
        let engine = self.engine(stop.clone());
        Preparation::new(self, engine, order).make(daemons, &stop).await
    }

    /// Removes everything of the job. True if nothing is left.
    pub(super) async fn remove(&self) -> bool {
        let engine = self.engine(CancellationToken::new());
        match things::remove(&engine, &self.engines.state, &self.name).await {
            Ok(()) => true,
            Err(trouble) => {
                tracing::warn!(job = self.job, "cannot remove a Pod, it is tried again: {trouble}");
                false
            }
        }
    }

    /// Waits for an answer about the job's container. True if it runs.
    pub(super) async fn look(&self) -> bool {
        let engine = self.engine(CancellationToken::new());
        loop {
            match self.see(&engine).await {
                Ok(seen) => return seen == Seen::Running,
                Err(trouble) => tracing::warn!(job = self.job, "cannot look for a Pod: {trouble}"),
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Returns how the job's container has ended, if it has.
    pub(super) async fn end(&self) -> Option<String> {
        match self.see(&self.engine(CancellationToken::new())).await {
            Ok(Seen::Gone) => Some("the Pod of the job was removed".to_owned()),
            Ok(Seen::Ended { how, .. }) => Some(format!("the Pod of the job {how}")),
            Ok(Seen::Running) | Err(_) => None,
        }
    }

    /// Looks at the Pod of a job that runs. What is left of the log goes with it.
    pub(super) async fn fate(&self) -> Fate {
        match self.see(&self.engine(CancellationToken::new())).await {
            Ok(Seen::Running) => Fate::Runs(None),
            Ok(Seen::Gone) => Fate::Lost("the Pod of the job was removed while the job ran".to_owned()),
            Ok(Seen::Ended { how, .. }) => Fate::Lost(format!("the Pod of the job {how} while the job ran")),
            Err(trouble) => Fate::Unknown(trouble.to_string()),
        }
    }

    async fn see(&self, engine: &Engine) -> Result<Seen, Trouble> {
        Ok(self.pod(engine).await?.map_or(Seen::Gone, |pod| state::seen(&pod, BUILD)))
    }

    /// Returns the Pod as the cluster has it, if it is ours.
    async fn pod(&self, engine: &Engine) -> Result<Option<Json>, Trouble> {
        let words = ["get", "pod", &self.name, "--output", "json"];
        match engine.run(&words, None, LOOK).await {
            Ok((text, _)) => {
                let pod = serde_json::from_str(&text).map_err(|error| {
                    Trouble::Away(format!("`kubectl` says no JSON about the Pod {}: {error}", self.name))
                })?;
                Ok(Some(pod).filter(|pod| state::is_of(pod, &self.engines.state)))
            }
            Err(Trouble::Missing(_)) => Ok(None),
            Err(other) => Err(other),
        }
    }
}

fn place(cluster: &Cluster) -> String {
    match &cluster.context {
        Some(context) => format!("the namespace {} of {context}", cluster.namespace),
        None => format!("the namespace {}", cluster.namespace),
    }
}

fn engine(engines: &Engines, cluster: &Cluster, stop: CancellationToken) -> Engine {
    let context = cluster.context.iter().flat_map(|context| ["--context", context]);
    let options: Vec<&str> = context.chain(["--namespace", &cluster.namespace]).collect();
    let name = format!("the cluster with {}", place(cluster));
    Engine::new(&KIND, Arc::clone(&engines.programs), &options, name, stop)
}

/// Asks a cluster if Pods can be made there. The error is a text for people.
pub(super) async fn check(engines: &Engines, cluster: &Cluster) -> Result<(), String> {
    let engine = engine(engines, cluster, CancellationToken::new());
    match engine.run(&["auth", "can-i", "create", "pods"], None, LOOK).await {
        Ok(_) => Ok(()),
        Err(Trouble::Refused(text)) if text.is_empty() => Err(format!(
            "no right to create Pods in {}: give the agent's account the rights of deploy/kubernetes/agent-rights.yaml",
            place(cluster)
        )),
        Err(trouble) => Err(trouble.to_string()),
    }
}

/// Returns what this account may not do of what jobs need, as texts for people.
pub(super) async fn missing_rights(engines: &Engines, cluster: &Cluster) -> Vec<String> {
    let engine = engine(engines, cluster, CancellationToken::new());
    let mut missing = Vec::new();
    for (verb, resource) in RIGHTS {
        match engine.run(&["auth", "can-i", verb, resource], None, LOOK).await {
            Ok(_) => {}
            Err(Trouble::Refused(text)) if text.is_empty() => {
                missing.push(format!("no right to {verb} {resource} in {}", place(cluster)));
            }
            Err(trouble) => {
                missing.push(trouble.to_string());
                break;
            }
        }
    }
    missing
}
