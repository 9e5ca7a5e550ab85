//! The settings of an entry that a job keeps, also when the entry is changed or gone. They stand in the job's record.

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::users;
use step_runner_agent::config::{Docker, Entry, Kubernetes};
use step_runner_agent::environment::{Address, ImagePolicy};

/// The part of a cluster in which Pods are made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Cluster {
    /// Context of `kubectl`; `None`: its current one.
    pub(super) context: Option<String>,
    /// Namespace.
    pub(super) namespace: String,
}

/// What makes environments of jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Provider {
    /// An engine.
    Docker(Docker),
    /// A cluster.
    Kubernetes(Cluster, Kubernetes),
}

impl Provider {
    /// True if both have their things at the same place.
    pub(super) fn shares_place_with(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Docker(one), Self::Docker(two)) => one.host == two.host,
            (Self::Kubernetes(one, _), Self::Kubernetes(two, _)) => one == two,
            _ => false,
        }
    }
}

/// Settings of a job's entry, without its token.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Settings {
    /// Name of the entry, for people.
    pub(super) name: String,
    /// Number of the runner at the server.
    pub(super) runner: u64,
    /// Address of the daemon; `None`: the agent's own, or one in a container.
    pub(super) address: Option<String>,
    /// Settings of containers, if each job has one of its own.
    #[serde(default)]
    docker: Option<Docker>,
    /// Settings of Pods, if each job has one of its own.
    #[serde(default)]
    kubernetes: Option<(Cluster, Kubernetes)>,
    /// True if jobs with an image run without it.
    pub(super) ignores_images: bool,
    /// Folder for sources.
    pub(super) builds_dir: String,
    /// Folder for caches; without one there are none.
    pub(super) cache_dir: Option<String>,
    /// Variables of each job.
    pub(super) environment: Vec<(String, String)>,
    /// Scripts of the entry, by the names of the configuration.
    pub(super) pre_get_sources: Option<String>,
    pub(super) post_get_sources: Option<String>,
    pub(super) pre_build: Option<String>,
    pub(super) post_build: Option<String>,
    /// Address for `git` instead of the server's.
    pub(super) clone_url: Option<String>,
    /// Certificates to trust besides the system's.
    pub(super) tls_ca_file: Option<String>,
    /// Certificate of this client and its key.
    pub(super) tls_identity: Option<(String, String)>,
    /// Hosts that a call with a token may be redirected to.
    pub(super) allowed_redirect_hosts: Vec<String>,
}

/// Why this version cannot serve an entry.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unserved {
    /// Nobody says where Pods have this program from.
    #[error(
        "the entry has no `program_image`: name an image with this program as its entrypoint, which the cluster can \
         pull, in `[runners.kubernetes]`"
    )]
    NoProgramImage,
    /// Nobody says where its jobs have their sources.
    #[error("the entry has an `address` and no `builds_dir`: name a folder that the daemon there can write")]
    NoBuildsDir,
    /// Its jobs run as the agent's user, and it says that they may not.
    #[error(
        "the entry has `require_separate_user`, and its jobs would run as the agent's own user: name a daemon of \
         another user with `address`, or use docker-run:// or kube-run://"
    )]
    SameUser,
    /// A volume cannot be at a folder.
    #[error("{key}: no volume can be at {folder:?}: write a path such as /builds")]
    Folder {
        /// The key.
        key: &'static str,
        /// The folder.
        folder: String,
    },
    /// A folder of jobs has no whole path.
    #[error("{0} is a relative path: write it from the root")]
    Relative(&'static str),
    /// Its address is none.
    #[error("address: {0}")]
    Address(step_runner_client::AddressError),
}

impl Unserved {
    /// Returns the key that is to be changed.
    pub(super) const fn key(&self) -> &'static str {
        match self {
            Self::NoProgramImage => PROGRAM_IMAGE,
            Self::NoBuildsDir | Self::Address(_) => "address",
            Self::SameUser => "require_separate_user",
            Self::Folder { key, .. } | Self::Relative(key) => key,
        }
    }
}

/// The key that names an image with this program.
pub const PROGRAM_IMAGE: &str = "kubernetes.program_image";

impl Settings {
    /// Reads the settings of a job's record.
    ///
    /// # Errors
    /// Another version wrote them. The error names a field, and no value: that may be a secret.
    pub(super) fn of_record(settings: &Json) -> Result<Self, String> {
        let read = |settings: &Json| serde_json::from_value::<Self>(settings.clone());
        read(settings).map_err(|error| {
            let reason = error.to_string();
            // The other errors quote values. The field to blame is the one without which there is another error.
            let is_to_blame = |field: &String| {
                let mut rest = settings.clone();
                rest.as_object_mut().map(|fields| fields.shift_remove(field));
                read(&rest).err().is_none_or(|other| other.to_string() != reason)
            };
            let mut fields = settings.as_object().into_iter().flat_map(serde_json::Map::keys);
            match (reason.strip_prefix("missing field "), fields.find(|field| is_to_blame(field))) {
                (Some(missing), _) => format!("its settings are not understood: {missing} is missing"),
                (None, Some(field)) => format!("its settings are not understood: `{field}` has another form"),
                (None, None) => "its settings are not understood".to_owned(),
            }
        })
    }

    /// Returns the settings of an entry. `own` returns a folder of jobs on the agent's own daemon.
    ///
    /// # Errors
    /// All that is wrong with the entry.
    pub(super) fn of(entry: &Entry, own: impl Fn(&str) -> String) -> Result<Self, Vec<Unserved>> {
        let mut wrong = Vec::new();
        if entry.require_separate_user && users::is_shared(entry) {
            wrong.push(Unserved::SameUser);
        }
        let address = match &entry.address {
            Address::Own | Address::DockerRun | Address::KubeRun { .. } => None,
            Address::Daemon(text) => {
                wrong.extend(text.parse::<step_runner_client::Address>().err().map(Unserved::Address));
                Some(text.clone())
            }
        };
        let kubernetes = match &entry.address {
            Address::KubeRun { context, namespace } => {
                if entry.kubernetes.program_image.is_none() {
                    wrong.push(Unserved::NoProgramImage);
                }
                let (context, namespace) = (context.clone(), namespace.clone());
                Some((Cluster { context, namespace }, entry.kubernetes.clone()))
            }
            _ => None,
        };
        let docker = (entry.address == Address::DockerRun).then(|| entry.docker.clone());
        let is_provider = entry.address.is_provider();
        if entry.builds_dir.is_none() && address.is_some() {
            wrong.push(Unserved::NoBuildsDir);
        }
        let folder = |name| if is_provider { format!("/{name}") } else { own(name) };
        let builds_dir = entry.builds_dir.clone().unwrap_or_else(|| folder("builds"));
        let own_cache = address.is_none().then(|| folder("cache"));
        let cache_dir = entry.cache_dir.clone().or(own_cache);
        for (key, folder) in [("builds_dir", Some(&builds_dir)), ("cache_dir", cache_dir.as_ref())] {
            let Some(folder) = folder else { continue };
            if is_provider && !is_mountable(folder) {
                wrong.push(Unserved::Folder { key, folder: folder.clone() });
            } else if !folder.starts_with('/') {
                wrong.push(Unserved::Relative(key));
            }
        }
        if !wrong.is_empty() {
            return Err(wrong);
        }
        Ok(Self {
            name: entry.name.clone(),
            runner: entry.id.unwrap_or_default(),
            address,
            ignores_images: entry.image_policy == ImagePolicy::Ignore,
            builds_dir,
            docker,
            kubernetes,
            cache_dir,
            environment: entry.environment.clone(),
            pre_get_sources: entry.scripts.pre_get_sources.clone(),
            post_get_sources: entry.scripts.post_get_sources.clone(),
            pre_build: entry.scripts.pre_build.clone(),
            post_build: entry.scripts.post_build.clone(),
            clone_url: entry.clone_url.clone(),
            tls_ca_file: entry.tls_ca_file.clone(),
            tls_identity: entry.tls_cert_file.clone().zip(entry.tls_key_file.clone()),
            allowed_redirect_hosts: entry.allowed_redirect_hosts.clone(),
        })
    }

    /// Returns what makes the environments of the entry's jobs, if each has one of its own.
    pub(super) fn provider(&self) -> Option<Provider> {
        let docker = self.docker.clone().map(Provider::Docker);
        let pods = || self.kubernetes.clone().map(|(cluster, pods)| Provider::Kubernetes(cluster, pods));
        docker.or_else(pods)
    }

    /// True if each job has an environment of its own.
    pub(super) const fn has_environments(&self) -> bool {
        self.docker.is_some() || self.kubernetes.is_some()
    }
}

/// True for a folder that a volume can be at: its path has none of the signs by which options are split.
fn is_mountable(folder: &str) -> bool {
    folder.len() > 1 && folder.starts_with('/') && !folder.contains([':', ',', '\0', '\n'])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn settings_of_another_version_are_refused_with_the_field_and_without_its_value() {
        let whole = json!({
            "name": "a", "runner": 1, "address": null, "ignores_images": false, "builds_dir": "/b", "cache_dir": null,
            "environment": [["A", "s3cret"]], "allowed_redirect_hosts": [], "certificates": {},
        });
        let told = |field: &str, value: Option<Json>| {
            let mut settings = whole.clone();
            let fields = settings.as_object_mut().unwrap();
            match value {
                Some(value) => drop(fields.insert(field.to_owned(), value)),
                None => drop(fields.shift_remove(field)),
            }
            Settings::of_record(&settings).err().unwrap()
        };
        let text = told("runner", None);
        assert!(text.ends_with("`runner` is missing"), "{text}");
        for (field, value) in [
            ("runner", json!("s3cret")),
            ("environment", json!("s3cret")),
            ("environment", json!([["A", ["s3cret"]]])),
            ("docker", json!({"host": ["s3cret"]})),
        ] {
            let text = told(field, Some(value));
            assert!(text.contains(field) && !text.contains("s3cret"), "{text}");
        }
        assert!(!Settings::of_record(&json!("s3cret")).err().unwrap().contains("s3cret"));
    }
}
