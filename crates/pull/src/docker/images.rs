//! Images of a job: pulled by its policies, with the logins that fit (agent.md §8.2, §8.4).

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value as Json, json};

use super::{Preparation, options};
use crate::engine::{Engine, Trouble};
use crate::order::Failed;
use crate::place::make_folder;
use crate::wanted::Container;
use step_runner_agent::environment::{AuthFile, Login, PullFailure, PullPolicy, Pulls, pull_failure};
use step_runner_agent::outcome::EnvironmentFailure;

/// Time limit of one pull. The time limit of the preparation is mostly shorter.
const PULL: Duration = Duration::from_hours(1);

/// Format in which `docker image inspect` answers.
const FORMAT: &str = "{{.Os}}/{{.Architecture}} {{json .Config.ExposedPorts}}";

/// Ports of a service that are waited for, at most.
const MOST_PORTS: usize = 20;

/// Address under which Docker keeps the login of its own registry.
const DOCKER_LOGIN: &str = "https://index.docker.io/v1/";

/// An image that is there.
pub(super) struct Image {
    /// Platform, such as `linux/amd64`.
    pub(super) platform: String,
    /// Its TCP ports.
    pub(super) ports: Vec<u16>,
}

impl Preparation<'_> {
    /// Sees to an image by its policies.
    pub(super) async fn image(&self, wanted: &Container) -> Result<Image, Failed> {
        let mut pulls = Pulls::new(wanted.policies.clone());
        loop {
            let policy = pulls.policy();
            if policy != PullPolicy::Always
                && let Some(image) = self.present(&wanted.image).await?
            {
                return Ok(image);
            }
            if policy == PullPolicy::Never {
                let text = format!("the image {} is not at the engine, and is never pulled", wanted.image);
                return Err(Failed::Environment(EnvironmentFailure::Image, text));
            }
            let (failure, words) = match self.pull(wanted).await {
                Ok(()) => match self.present(&wanted.image).await? {
                    Some(image) => return Ok(image),
                    None => (PullFailure::Other, "the image is gone again".to_owned()),
                },
                Err(Trouble::Stopped) => return Err(Failed::Stopped),
                Err(Trouble::Away(text)) => {
                    tracing::warn!("a pull is tried again: {text}");
                    self.engine.insist(&["version"]).await?;
                    continue;
                }
                Err(Trouble::Missing(words) | Trouble::Refused(words)) => (pull_failure(&words), words),
            };
            let text = format!("cannot pull the image {}: {}: {words}", wanted.image, failure.hint());
            let Some(wait) = pulls.failed(failure) else {
                return Err(self.order.failed(failure.reason(), &text));
            };
            self.order.line(&format!("WARNING: {text}")).await;
            if wait.is_zero() {
                self.order.line(&format!("Trying the pull policy {}", pulls.policy().word())).await;
            }
            self.engine.pause(wait).await?;
        }
    }

    /// Returns what is known of an image that the engine has.
    async fn present(&self, image: &str) -> Result<Option<Image>, Failed> {
        match self.engine.insist(&["image", "inspect", "--format", FORMAT, image]).await {
            Ok(text) => Ok(Some(read(&text))),
            Err(Trouble::Missing(_)) => Ok(None),
            Err(other) => Err(other.into()),
        }
    }

    async fn pull(&self, wanted: &Container) -> Result<(), Trouble> {
        let login = AuthFile::first(&self.order.wanted.logins, &wanted.image);
        let with = if login.is_some() { " with a login" } else { "" };
        self.order.line(&format!("Pulling the image {}{with}", wanted.image)).await;
        let mut words = vec!["pull", "--quiet"];
        if let Some(platform) = &wanted.platform {
            words.extend(["--platform", platform]);
        }
        words.push(&wanted.image);
        let folder = Logins::write(self.folder, &wanted.image, login)
            .map_err(|error| Trouble::Refused(format!("cannot write the login for the registry: {error}")))?;
        let config = folder.0.display().to_string();
        let engine: Engine = self.engine.with_options(&options(&config, &self.docker.host));
        engine.run(&words, None, PULL).await.map(drop)
    }
}

fn read(text: &str) -> Image {
    let (platform, ports) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
    let ports: Json = serde_json::from_str(ports).unwrap_or_default();
    let names = ports.as_object().into_iter().flatten().map(|(name, _)| name.as_str());
    let number = |name: &str| name.split_once('/').filter(|(_, kind)| *kind == "tcp")?.0.parse().ok();
    let mut ports: Vec<u16> = names.filter_map(number).collect();
    ports.sort_unstable();
    ports.truncate(MOST_PORTS);
    Image { platform: platform.to_owned(), ports }
}

/// A folder with one login, for one pull. It goes with this value, and with the record of its job.
struct Logins(PathBuf);

impl Logins {
    fn write(folder: &Path, image: &str, login: Option<&Login>) -> io::Result<Self> {
        let path = folder.join("login");
        remove(&path)?;
        make_folder(&path)?;
        let logins = Self(path);
        let auths = match login {
            Some(Login { user, password }) => {
                json!({registry(image): {"auth": STANDARD.encode(format!("{user}:{password}"))}})
            }
            None => json!({}),
        };
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).clone();
        file.open(logins.0.join("config.json"))?.write_all(json!({"auths": auths}).to_string().as_bytes())?;
        Ok(logins)
    }
}

impl Drop for Logins {
    fn drop(&mut self) {
        remove(&self.0).ok();
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Returns the address under which Docker looks for the login of an image.
fn registry(image: &str) -> &str {
    match image.split_once('/') {
        Some((host, _)) if host.contains(['.', ':']) || host == "localhost" => match host {
            "docker.io" | "index.docker.io" => DOCKER_LOGIN,
            other => other,
        },
        _ => DOCKER_LOGIN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a29_the_place_of_a_login() {
        for (image, wanted) in [
            ("alpine:3", DOCKER_LOGIN),
            ("group/alpine", DOCKER_LOGIN),
            ("docker.io/library/alpine", DOCKER_LOGIN),
            ("registry.test:5000/a/b", "registry.test:5000"),
            ("localhost/a", "localhost"),
        ] {
            assert_eq!(registry(image), wanted, "{image}");
        }
    }

    #[test]
    fn a30_platform_and_ports_of_an_image() {
        let image = read("linux/amd64 {\"5432/tcp\":{},\"53/udp\":{},\"80/tcp\":{}}\n");
        assert_eq!((&*image.platform, image.ports), ("linux/amd64", vec![80, 5432]));
        assert!(read("linux/arm64 null").ports.is_empty());
    }
}
