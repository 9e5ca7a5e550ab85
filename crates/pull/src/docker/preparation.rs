//! The preparation of a job's containers, in the order of agent.md §8.5.

use std::path::Path;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::{Docker, program};
use crate::container::{AGAIN, ANSWER, FOLDER, LINES, PROGRAM, Seen};
use crate::daemons::Daemons;
use crate::engine::{Engine, LOOK, Trouble};
use crate::info::platform;
use crate::order::{Failed, Order};
use crate::program::Input;
use crate::wanted::Container;
use step_runner_agent::environment::labels;
use step_runner_agent::outcome::EnvironmentFailure;

/// Time between two tries to reach it.
const PAUSE: Duration = Duration::from_millis(100);

/// Time limit of a copy into a container.
const COPY: Duration = Duration::from_mins(5);

/// A preparation at work.
pub(super) struct Preparation<'p> {
    pub(super) docker: &'p Docker,
    pub(super) engine: Engine,
    pub(super) order: Order<'p>,
    /// Folder of the job's record.
    pub(super) folder: &'p Path,
}

impl Preparation<'_> {
    /// Makes everything, up to services that answer.
    pub(super) async fn make(&self, daemons: &Daemons, stop: &CancellationToken) -> Result<(), Failed> {
        for warning in &self.order.wanted.warnings {
            self.order.line(warning).await;
        }
        let image = self.image(&self.order.wanted.build).await?;
        self.fits(&image.platform)?;
        let mut ports = Vec::new();
        for service in &self.order.wanted.services {
            let of_image = self.image(&service.container).await?.ports;
            ports.push(service.port.map_or(of_image, |port| vec![port]));
        }
        let settings = &self.docker.settings;
        if !settings.is_shared {
            self.make_thing("network", "network", &self.docker.name).await?;
        }
        self.volumes().await?;
        // With one network for all, the job's container is that which has it.
        if settings.is_shared {
            self.build().await?;
            self.services().await?;
        } else {
            self.services().await?;
            self.build().await?;
        }
        self.answers(daemons, stop).await?;
        self.wait_for_services(&ports).await?;
        self.still_runs().await
    }

    fn fits(&self, of_image: &str) -> Result<(), Failed> {
        let own = platform();
        // What stands behind the second `/` is a variant.
        let plain = |platform: &str| platform.split('/').take(2).collect::<Vec<_>>().join("/");
        if plain(of_image) == plain(&own) {
            return Ok(());
        }
        let text = format!(
            "the image {} is for {of_image}, and this step-runner for {own}: name an image for {own}",
            self.order.wanted.build.image
        );
        Err(Failed::Environment(EnvironmentFailure::Configuration, text))
    }

    /// Returns the options with the labels of a thing.
    pub(super) fn labels(&self, role: &str) -> Vec<String> {
        let labels = labels(&self.docker.engines.state, self.docker.job, role);
        labels.into_iter().flat_map(|(key, value)| ["--label".to_owned(), format!("{key}={value}")]).collect()
    }

    async fn make_thing(&self, kind: &str, role: &str, name: &str) -> Result<(), Failed> {
        let labels = self.labels(role);
        let words: Vec<&str> =
            [kind, "create"].into_iter().chain(labels.iter().map(String::as_str)).chain([name]).collect();
        match self.engine.insist(&words).await {
            // The answer to an earlier call was lost. Nobody else gives this name.
            Err(Trouble::Refused(text)) if text.contains("already exists") => Ok(()),
            result => Ok(result.map(drop)?),
        }
    }

    fn volume(&self, role: &str) -> String {
        format!("{}.{role}", self.docker.name)
    }

    async fn volumes(&self) -> Result<(), Failed> {
        self.make_thing("volume", "program", &self.volume("program")).await?;
        self.make_thing("volume", "builds", &self.volume("builds")).await?;
        // The caches outlive the job, so they have no label of this agent's jobs.
        let cache = &self.order.wanted.cache_volume;
        self.engine.insist(&["volume", "create", "--label", "step-runner.role=cache", cache]).await?;
        Ok(())
    }

    /// Returns the options for the volumes of a container.
    pub(super) fn mounts(&self, ours: &[(String, &str)]) -> Vec<String> {
        let all = mounted(ours, &self.docker.settings.volumes);
        all.flat_map(|volume| ["--volume".to_owned(), volume]).collect()
    }

    pub(super) fn builds(&self) -> (String, &str) {
        (self.volume("builds"), &self.order.wanted.builds_dir)
    }

    /// Makes the job's container, puts the program into it, and starts it.
    async fn build(&self) -> Result<(), Failed> {
        let (docker, wanted) = (self.docker, self.order.wanted);
        self.order.line(&format!("Starting a container of {}", wanted.build.image)).await;
        let mut words = vec!["create".to_owned()];
        words.extend(docker.settings.create_args.iter().cloned());
        words.extend(["--name".to_owned(), docker.name.clone()]);
        words.extend(self.labels("build"));
        words.extend(self.network());
        let ours = [
            self.builds(),
            (wanted.cache_volume.clone(), &*wanted.cache_dir),
            (self.volume("program"), FOLDER),
        ];
        words.extend(self.mounts(&ours));
        let (variable, spare) = self.order.spare();
        words.extend(["--env".to_owned(), format!("{variable}={spare}")]);
        let command = std::iter::once(PROGRAM.to_owned()).chain(self.order.serve());
        words.extend(of_image(&wanted.build, command));
        self.create(&words).await?;
        self.copy(program::program, FOLDER).await?;
        self.copy(|| program::folders(&wanted.build_folders), &wanted.builds_dir).await?;
        self.copy(|| program::folders(&wanted.cache_folders), &wanted.cache_dir).await?;
        match self.engine.insist(&["start", &docker.name]).await {
            Ok(_) => Ok(()),
            Err(Trouble::Refused(words)) if is_of_image(&words) => Err(self.explained(&words)),
            Err(other) => Err(other.into()),
        }
    }

    fn network(&self) -> Vec<String> {
        let settings = &self.docker.settings;
        let mut words = Vec::new();
        if settings.is_shared {
            let base = settings.network_base.as_deref().unwrap_or("bridge");
            words.extend(["--network".to_owned(), base.to_owned()]);
            let aliases = self.order.wanted.services.iter().flat_map(|service| &service.aliases);
            words.extend(aliases.flat_map(|alias| ["--add-host".to_owned(), format!("{alias}:127.0.0.1")]));
        } else {
            let name = &self.docker.name;
            words.extend(["--network", name, "--network-alias", "build"].map(str::to_owned));
        }
        words
    }

    /// Makes a container. One that an earlier call has made before its answer was lost is made anew.
    pub(super) async fn create(&self, words: &[String]) -> Result<(), Failed> {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let name = words.iter().skip_while(|word| **word != "--name").nth(1).copied().unwrap_or_default();
        match self.engine.insist(&words).await {
            Err(Trouble::Refused(text)) if text.contains("is already in use") => {
                if self.docker.see(&self.engine, name).await? == Seen::Gone {
                    return Err(Trouble::Refused(text).into());
                }
                self.engine.insist(&["rm", "--force", "--volumes", name]).await?;
                self.engine.insist(&words).await?;
            }
            result => drop(result?),
        }
        Ok(())
    }

    /// Puts an archive into the job's container. A second copy changes nothing.
    async fn copy(&self, input: impl Fn() -> Input + Sync, folder: &str) -> Result<(), Failed> {
        let target = format!("{}:{folder}", self.docker.name);
        let words = ["cp", "-", &target];
        match self.engine.insist_with(&words, Some(&input), COPY).await {
            // Jobs of one project share the volume for caches. Another one's copy has made the folder at the same moment.
            Err(Trouble::Refused(text)) if text.contains("mkdir ") && text.contains(": file exists") => {
                self.engine.insist_with(&words, Some(&input), COPY).await?;
            }
            result => drop(result?),
        }
        Ok(())
    }

    /// Waits for the daemon in the container.
    async fn answers(&self, daemons: &Daemons, stop: &CancellationToken) -> Result<(), Failed> {
        let (begun, address) = (Instant::now(), self.docker.address());
        loop {
            self.still_runs().await?;
            let answer = async {
                let client = daemons.client(Some(&address)).await?;
                client.overview().await.map_err(|error| error.to_string())
            };
            let answer = tokio::select! {
                answer = answer => answer,
                () = stop.cancelled() => return Err(Failed::Stopped),
            };
            let Err(why) = answer else { return Ok(()) };
            if begun.elapsed() >= ANSWER {
                let text = format!(
                    "the image {} has not started its command, a daemon for the job: set `entrypoint: [\"\"]`: {why}",
                    self.order.wanted.build.image
                );
                return Err(self.order.failed(EnvironmentFailure::Configuration, &text));
            }
            self.engine.pause(PAUSE).await?;
        }
    }

    /// Asserts that the job's container runs.
    async fn still_runs(&self) -> Result<(), Failed> {
        let seen = loop {
            match self.docker.see(&self.engine, &self.docker.name).await {
                Err(Trouble::Away(_)) => self.engine.pause(AGAIN).await?,
                result => break result?,
            }
        };
        match seen {
            Seen::Running => Ok(()),
            Seen::Gone => Err(Failed::Lost("its container was removed".to_owned())),
            Seen::Ended { how, is_killed: true } => Err(Failed::Lost(format!("its container {how}"))),
            Seen::Ended { how, is_killed: false } => {
                let lines = self.last_lines(&self.docker.name).await;
                for line in &lines {
                    self.order.line(&format!("  {line}")).await;
                }
                let words = lines.join("\n");
                if is_of_image(&words) {
                    return Err(self.explained(&words));
                }
                let text = format!(
                    "the container of {} {how} before the job could start: set `entrypoint: [\"\"]`, or see its lines",
                    self.order.wanted.build.image
                );
                Err(Failed::Environment(EnvironmentFailure::Configuration, text))
            }
        }
    }

    /// Returns why an image could not start the program.
    fn explained(&self, words: &str) -> Failed {
        let image = &self.order.wanted.build.image;
        let is_missing = words.contains(PROGRAM) && words.contains("no such file or directory");
        let text = if is_missing && program::needs_loader() {
            format!(
                "this step-runner is not a static program, and the image {image} has not the libraries that it needs: \
                 run the agent with the static program of a release"
            )
        } else {
            format!("the image {image} cannot start a container for the job: {words}")
        };
        self.order.failed(EnvironmentFailure::Configuration, &text)
    }

    /// Returns the last lines of a container.
    pub(super) async fn last_lines(&self, name: &str) -> Vec<String> {
        match self.engine.run(&["logs", "--tail", LINES, name], None, LOOK).await {
            Ok((out, err)) => out.lines().chain(err.lines()).map(str::to_owned).collect(),
            Err(_) => Vec::new(),
        }
    }
}

/// Returns the words for image, user and command of a container.
pub(super) fn of_image(wanted: &Container, command: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut words = vec!["--pull".to_owned(), "never".to_owned()];
    if let Some(user) = &wanted.user {
        words.extend(["--user".to_owned(), user.clone()]);
    }
    if let Some(platform) = &wanted.platform {
        words.extend(["--platform".to_owned(), platform.clone()]);
    }
    let entrypoint = wanted.entrypoint.as_deref().unwrap_or_default();
    if let Some(first) = entrypoint.first() {
        words.extend(["--entrypoint".to_owned(), first.clone()]);
    }
    words.push(wanted.image.clone());
    words.extend(entrypoint.iter().skip(1).cloned());
    words.extend(command);
    words
}

/// True if the engine complains about what is in an image, or about the user.
fn is_of_image(words: &str) -> bool {
    ["OCI runtime", "unable to find user", "no matching entries", "exec /", "exec format error"]
        .iter()
        .any(|word| words.contains(word))
}

/// Returns the volumes of a container. Those of the entry stand for ours, unless they are folders alone: with `/cache`, which
/// `config.toml` of a Runner has from its start, the caches of the project are meant.
fn mounted<'a>(ours: &'a [(String, &str)], of_entry: &'a [String]) -> impl Iterator<Item = String> + 'a {
    let is_at = |folder: &str, volume: &str| destination(volume) == folder.trim_end_matches('/');
    let stands = move |(_, folder): &&(String, &str)| {
        !of_entry.iter().any(|volume| volume.contains(':') && is_at(folder, volume))
    };
    let kept =
        move |volume: &&String| volume.contains(':') || !ours.iter().any(|(_, folder)| is_at(folder, volume));
    let free = ours.iter().filter(stands).map(|(name, folder)| format!("{name}:{folder}"));
    free.chain(of_entry.iter().filter(kept).cloned())
}

/// Returns the folder in the container at which a volume of the entry is.
fn destination(volume: &str) -> &str {
    let mut parts = volume.split(':');
    let first = parts.next().unwrap_or_default();
    parts.next().unwrap_or(first).trim_end_matches('/')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_volume_of_the_entry_is() {
        for (volume, wanted) in [("/cache", "/cache"), ("/srv/c:/cache:ro", "/cache"), ("name:/b/", "/b")] {
            assert_eq!(destination(volume), wanted, "{volume}");
        }
    }

    #[test]
    fn a_volume_of_the_entry_stands_for_ours_unless_it_is_a_folder_alone() {
        let ours = [("builds".to_owned(), "/builds"), ("cache".to_owned(), "/cache/")];
        let all = |of_entry: &[&str]| {
            let of_entry: Vec<String> = of_entry.iter().map(|volume| (*volume).to_owned()).collect();
            mounted(&ours, &of_entry).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(all(&["/cache", "/data"]), "builds:/builds cache:/cache/ /data");
        assert_eq!(all(&["/srv/c:/cache:ro"]), "builds:/builds /srv/c:/cache:ro");
    }

    #[test]
    fn an_entrypoint_stays_unless_another_is_given() {
        let words = |entrypoint: Option<&[&str]>| {
            let container = Container {
                image: "alpine".to_owned(),
                platform: None,
                policies: Vec::new(),
                user: Some("7:8".to_owned()),
                entrypoint: entrypoint.map(|words| words.iter().map(|word| (*word).to_owned()).collect()),
            };
            of_image(&container, ["serve".to_owned()]).join(" ")
        };
        assert_eq!(words(None), "--pull never --user 7:8 alpine serve");
        assert_eq!(words(Some(&[""])), "--pull never --user 7:8 --entrypoint  alpine serve");
        assert_eq!(words(Some(&["a", "b"])), "--pull never --user 7:8 --entrypoint a alpine b serve");
    }
}
