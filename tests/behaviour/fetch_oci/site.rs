//! A place to fetch into, with the fetching process of the real program, and what scripted registries answer.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::json;
use step_runner::fetch::order::{Answer, Order, Source, Stats, WorkerMessage};
use step_runner::job::event::FetchFailure;
use step_runner::oci::digest_of;
use step_runner::web::Network;

use crate::support::names;
use crate::support::registry::{MANIFEST, PLAIN_LAYER, Scripted, response};

/// A folder to fetch into, with a canary. Nothing must appear outside of its `tree` and `scratch`.
pub(super) struct Site {
    pub(super) dir: tempfile::TempDir,
    pub(super) docker_config: Option<String>,
    pub(super) network: Network,
}

impl Site {
    pub(super) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("canary"), "alive").unwrap();
        Self { dir, docker_config: None, network: Network::default() }
    }

    pub(super) fn with_config(config: &str) -> Self {
        Self { docker_config: Some(config.to_owned()), ..Self::new() }
    }

    pub(super) fn tree(&self) -> PathBuf {
        self.dir.path().join("tree")
    }

    pub(super) fn text(&self, path: &str) -> String {
        std::fs::read_to_string(self.tree().join(path)).unwrap()
    }

    /// Has these variables for reaching servers.
    pub(super) fn with_network(variables: &[(&str, &str)]) -> Self {
        let value =
            |name: &str| variables.iter().find(|known| known.0 == name).map(|known| known.1.to_owned());
        Self { network: Network::new(value, |_| None), ..Self::new() }
    }

    /// Fetches an image in a new process. Returns digest and size.
    pub(super) fn fetch(
        &self,
        registry: &str,
        repository: &str,
        version: &str,
    ) -> Result<(String, Stats), FetchFailure> {
        self.fetch_told(registry, repository, version).0
    }

    /// Like [`Self::fetch`]. Also returns what the process told of further tries.
    pub(super) fn fetch_told(
        &self,
        registry: &str,
        repository: &str,
        version: &str,
    ) -> (Result<(String, Stats), FetchFailure>, Vec<String>) {
        for name in ["tree", "scratch"] {
            std::fs::remove_dir_all(self.dir.path().join(name)).ok();
            std::fs::create_dir(self.dir.path().join(name)).unwrap();
        }
        let order = Order {
            source: Source::Oci {
                registry: registry.into(),
                repository: repository.into(),
                version: version.into(),
            },
            network: self.network.clone(),
            credentials: BTreeMap::from_iter(
                self.docker_config.clone().map(|config| ("DOCKER_AUTH_CONFIG".to_owned(), config)),
            ),
            scratch: self.dir.path().join("scratch"),
        };
        let done = ordered(&order, &self.tree());
        assert_eq!(names(self.dir.path()), ["canary", "scratch", "tree"]);
        assert_eq!(std::fs::read(self.dir.path().join("canary")).unwrap(), b"alive");
        assert_eq!(names(&self.dir.path().join("scratch")), [""; 0], "nothing is left behind");
        done
    }
}

fn ordered(order: &Order, into: &Path) -> (Result<(String, Stats), FetchFailure>, Vec<String>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_step-runner"));
    command.arg("fetch").env_clear().stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut say = |line: String| input.write_all((line + "\n").as_bytes()).unwrap();
    say(serde_json::to_string(order).unwrap());
    let mut version = None;
    let (mut last, mut retries) = (None, Vec::new());
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        match serde_json::from_str(&line.unwrap()).unwrap() {
            WorkerMessage::Resolved(found) => {
                version = Some(found);
                say(serde_json::to_string(&Answer { into: into.to_owned() }).unwrap());
            }
            WorkerMessage::Progress(progress) => {
                assert!(progress.total.is_some_and(|total| progress.bytes <= total));
            }
            WorkerMessage::Retry(why) => retries.push(why),
            WorkerMessage::Done(stats) => last = Some(Ok(stats)),
            WorkerMessage::Failed(failure) => last = Some(Err(failure)),
        }
    }
    assert!(child.wait().unwrap().success());
    (last.unwrap().map(|stats| (version.unwrap(), stats)), retries)
}

/// Starts a registry that answers requests for manifests and blobs with the result of `answer`.
pub(super) fn scripted(answer: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static) -> Scripted {
    Scripted::start(
        move |head| if head.starts_with("GET /v2/ ") { response("200 OK", "", b"{}") } else { answer(head) },
    )
}

/// Returns a manifest with one layer, as a registry sends it.
pub(super) fn manifest(digest: &str, size: usize) -> Vec<u8> {
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest_of(b"{}"), "size": 2},
        "layers": [{"mediaType": PLAIN_LAYER, "digest": digest, "size": size}],
    });
    response("200 OK", &format!("Content-Type: {MANIFEST}\r\n"), manifest.to_string().as_bytes())
}
