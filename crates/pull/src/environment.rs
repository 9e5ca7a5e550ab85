//! An environment of a job's own: containers at an engine, or a Pod in a cluster (agent.md §8).

use std::path::Path;

use tokio_util::sync::CancellationToken;

use super::container::Fate;
use super::daemons::Daemons;
use super::docker::{self, Docker};
use super::kube::{self, Kube};
use super::order::{Engines, Failed, Order};
use super::settings::{Provider, Settings};

/// Asks an engine or a cluster if it is there. The error is a text for people.
pub(super) async fn check(engines: &Engines, provider: &Provider) -> Result<(), String> {
    match provider {
        Provider::Docker(settings) => docker::check(engines, settings).await,
        Provider::Kubernetes(place, _) => kube::check(engines, place).await,
    }
}

/// Removes what earlier runs of the agent left: all of this state that no record in `jobs` names.
pub(super) async fn sweep(engines: &Engines, provider: &Provider, jobs: &Path) {
    match provider {
        Provider::Docker(settings) => docker::sweep(engines, settings, jobs).await,
        Provider::Kubernetes(place, _) => kube::sweep(engines, place, jobs).await,
    }
}

/// The environment of one job.
pub(super) enum Environment {
    /// Containers at an engine.
    Docker(Docker),
    /// A Pod in a cluster.
    Kube(Kube),
}

impl Environment {
    /// Names the environment of a job, if it has one of its own. Nothing is made yet.
    pub(super) fn of(
        settings: &Settings,
        engines: Engines,
        name: String,
        job: u64,
        folder: &Path,
    ) -> Option<Self> {
        Some(match settings.provider()? {
            Provider::Docker(of_entry) => Self::Docker(Docker::new(engines, of_entry, name, job, folder)),
            Provider::Kubernetes(place, of_entry) => {
                Self::Kube(Kube::new(engines, place, of_entry, name, job))
            }
        })
    }

    /// Returns the address of the job's daemon.
    pub(super) fn address(&self) -> String {
        match self {
            Self::Docker(docker) => docker.address(),
            Self::Kube(kube) => kube.address(),
        }
    }

    /// Returns where the job runs, for people.
    pub(super) fn place(&self) -> String {
        match self {
            Self::Docker(docker) => format!("containers of the engine at {}", docker.host()),
            Self::Kube(kube) => format!("a Pod in {}", kube.place()),
        }
    }

    /// Makes everything that a job asks for, up to a daemon that answers.
    pub(super) async fn prepare(
        &self,
        order: Order<'_>,
        daemons: &Daemons,
        stop: CancellationToken,
    ) -> Result<(), Failed> {
        match self {
            Self::Docker(docker) => docker.prepare(order, daemons, stop).await,
            Self::Kube(kube) => kube.prepare(order, daemons, stop).await,
        }
    }

    /// Removes everything of the job. True if nothing is left.
    pub(super) async fn remove(&self) -> bool {
        match self {
            Self::Docker(docker) => docker.remove().await,
            Self::Kube(kube) => kube.remove().await,
        }
    }

    /// Waits for an answer about the job's container. True if it runs.
    pub(super) async fn look(&self) -> bool {
        match self {
            Self::Docker(docker) => docker.look().await,
            Self::Kube(kube) => kube.look().await,
        }
    }

    /// Returns how the job's container has ended, if it has.
    pub(super) async fn end(&self) -> Option<String> {
        match self {
            Self::Docker(docker) => docker.end().await,
            Self::Kube(kube) => kube.end().await,
        }
    }

    /// Looks at the container of a job that runs.
    pub(super) async fn fate(&self) -> Fate {
        match self {
            Self::Docker(docker) => docker.fate().await,
            Self::Kube(kube) => kube.fate().await,
        }
    }
}
