//! The preparation of a job's Pod, in the order of agent.md §8.6.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map as JsonMap, Value as Json, json};
use tokio_util::sync::CancellationToken;

use super::pod::{Plan, is_host, secret};
use super::state::{Hindered, Hindrance, Progress, progress, seen};
use super::template::Template;
use super::{BUILD, Kube, things};
use crate::container::{AGAIN, ANSWER, LINES, PROGRAM, Seen};
use crate::daemons::Daemons;
use crate::engine::{Engine, LOOK, Trouble};
use crate::order::{Failed, Order};
use crate::program::Input;
use crate::wanted::Service;
use step_runner_agent::environment::{AuthFile, pull_failure, registry_of};
use step_runner_agent::outcome::EnvironmentFailure;

/// Time between two looks at a Pod.
const PAUSE: Duration = Duration::from_secs(1);

/// Time limit of a call that makes something.
const CALL: Duration = Duration::from_mins(1);

/// Time for a node to try a pull again: it does so after 10 s and after 20 s more.
const PULLS: Duration = Duration::from_secs(35);

/// A preparation at work.
pub(super) struct Preparation<'p> {
    kube: &'p Kube,
    engine: Engine,
    order: Order<'p>,
    /// Lines about the cluster that the trace has already.
    told: BTreeSet<String>,
}

impl<'p> Preparation<'p> {
    /// Begins a preparation.
    pub(super) const fn new(kube: &'p Kube, engine: Engine, order: Order<'p>) -> Self {
        Self { kube, engine, order, told: BTreeSet::new() }
    }

    /// Makes everything, up to services that answer.
    pub(super) async fn make(&mut self, daemons: &Daemons, stop: &CancellationToken) -> Result<(), Failed> {
        self.warn().await;
        let settings = &self.kube.settings;
        let template = match settings.pod_template.as_deref().map(Template::read) {
            None => Template::default(),
            Some(Ok(template)) => template,
            Some(Err(why)) => return Err(self.order.failed(EnvironmentFailure::System, &why)),
        };
        let logins = self.logins();
        let has_logins = !logins.is_empty();
        if has_logins {
            let kube = self.kube;
            self.create(&secret(&kube.name, &kube.engines.state, kube.job, &logins.into())).await?;
        }
        let mut policy = 0;
        loop {
            let pod = self.plan(&template, policy, has_logins).pod();
            let pod = pod.map_err(|why| self.order.failed(EnvironmentFailure::Configuration, &why))?;
            self.order.line(&format!("Starting a Pod with {}", self.order.wanted.build.image)).await;
            self.create(&pod).await?;
            if self.started(policy).await? {
                break;
            }
            things::remove(&self.engine, &self.kube.engines.state, &self.kube.name).await?;
            policy += 1;
            self.order.line("Trying the next pull policy").await;
        }
        self.answers(daemons, stop).await?;
        self.wait_for_services().await?;
        if has_logins {
            things::remove_secret(&self.engine, &self.kube.name).await?;
        }
        self.still_runs().await
    }

    async fn warn(&self) {
        for warning in &self.order.wanted.warnings {
            self.order.line(warning).await;
        }
        for service in &self.order.wanted.services {
            let aliases: Vec<&str> = service.aliases.iter().map(String::as_str).collect();
            if !aliases.is_empty() && !aliases.iter().any(|alias| is_host(&alias.to_ascii_lowercase())) {
                let name = &service.container.image;
                let text = format!(
                    "WARNING: the service {name} is not found as {}: no host in a Pod can have such a name",
                    aliases.join(", ")
                );
                self.order.line(&text).await;
            }
        }
    }

    fn plan<'t>(&'t self, template: &'t Template, policy: usize, has_logins: bool) -> Plan<'t> {
        let Kube { engines, settings, name, job, .. } = self.kube;
        Plan {
            name,
            state: &engines.state,
            job: *job,
            wanted: self.order.wanted,
            template,
            program_image: settings.program_image.as_deref().unwrap_or_default(),
            lifetime: self.order.lifetime,
            serve: self.order.serve(),
            spare: self.order.spare(),
            policy,
            has_default_policy: settings.rules.pull_policies.is_empty(),
            has_logins,
        }
    }

    /// Returns the logins for the images of the job, as Docker's configuration has them.
    fn logins(&self) -> JsonMap<String, Json> {
        let wanted = self.order.wanted;
        let services = wanted.services.iter().map(|service| &service.container);
        let images = std::iter::once(&wanted.build).chain(services).map(|container| &container.image);
        let login = |image: &String| {
            let login = AuthFile::first(&wanted.logins, image)?;
            let auth = STANDARD.encode(format!("{}:{}", login.user, login.password));
            Some((registry_of(image), json!({"auth": auth})))
        };
        images.filter_map(login).collect()
    }

    /// Tells the trace once what the cluster says.
    async fn tell(&mut self, text: String) {
        if self.told.insert(text.clone()) {
            self.order.line(&text).await;
        }
    }

    /// Makes a thing, until the cluster does.
    async fn create(&mut self, thing: &Json) -> Result<(), Failed> {
        let text = thing.to_string();
        loop {
            let input = text.clone();
            let input: Input = Box::new(move |mut pipe| pipe.write_all(input.as_bytes()));
            match self.engine.run(&["create", "--filename", "-"], Some(input), CALL).await {
                Ok(_) => return Ok(()),
                // The answer to an earlier call was lost. Nobody else gives this name.
                Err(Trouble::Refused(text)) if text.contains("AlreadyExists") => return Ok(()),
                Err(Trouble::Away(text)) => {
                    self.tell(format!("The cluster does not take the Pod yet: {text}")).await;
                    self.engine.pause(AGAIN).await?;
                }
                Err(Trouble::Stopped) => return Err(Failed::Stopped),
                Err(Trouble::Missing(text) | Trouble::Refused(text)) => {
                    let text = format!("the cluster refuses the Pod of the job: {text}");
                    return Err(self.order.failed(EnvironmentFailure::System, &text));
                }
            }
        }
    }

    /// Returns the Pod as the cluster has it, once it answers.
    async fn pod(&mut self) -> Result<Json, Failed> {
        loop {
            match self.kube.pod(&self.engine).await {
                Ok(Some(pod)) => return Ok(pod),
                Ok(None) => return Err(Failed::Lost("its Pod was removed".to_owned())),
                Err(Trouble::Away(text)) => {
                    self.tell(format!("The cluster does not answer: {text}")).await;
                    self.engine.pause(AGAIN).await?;
                }
                Err(other) => return Err(other.into()),
            }
        }
    }

    /// Waits until all containers have started. False: an image does not come, and another pull policy may bring it.
    async fn started(&mut self, policy: usize) -> Result<bool, Failed> {
        let mut pull_failed: Option<Instant> = None;
        loop {
            let pod = self.pod().await?;
            self.lives(&pod).await?;
            let Progress::Waits { why, hindered } = progress(&pod) else { return Ok(true) };
            if let Some(why) = why {
                self.tell(format!("Waiting for the Pod: {why}")).await;
            }
            match hindered {
                None => pull_failed = None,
                Some(Hindered { container, words, by: Hindrance::Pull }) => {
                    let since = pull_failed.get_or_insert_with(Instant::now).elapsed();
                    let (failure, image) = (pull_failure(&words), self.image(&container));
                    if failure.may_use_old() && since < PULLS {
                        self.engine.pause(PAUSE).await?;
                        continue;
                    }
                    if failure.may_use_old() && self.has_policy(policy + 1) {
                        return Ok(false);
                    }
                    let text = format!("cannot pull the image {image}: {}: {words}", failure.hint());
                    return Err(self.order.failed(failure.reason(), &text));
                }
                Some(Hindered { container, by: Hindrance::Never, .. }) => {
                    let text = format!(
                        "the image {} is not on the node, and is never pulled",
                        self.image(&container)
                    );
                    return Err(self.order.failed(EnvironmentFailure::Image, &text));
                }
                Some(Hindered { container, words, by: Hindrance::Start }) => {
                    let failure = if container == BUILD || container.starts_with("svc-") {
                        EnvironmentFailure::Configuration
                    } else {
                        EnvironmentFailure::System
                    };
                    let text = format!("a container of {} does not start: {words}", self.image(&container));
                    return Err(self.order.failed(failure, &text));
                }
            }
            self.engine.pause(PAUSE).await?;
        }
    }

    fn has_policy(&self, number: usize) -> bool {
        let wanted = self.order.wanted;
        let services = wanted.services.iter().map(|service| &service.container);
        std::iter::once(&wanted.build).chain(services).any(|container| container.policies.len() > number)
    }

    /// Returns the image of a container of the Pod.
    fn image(&self, container: &str) -> String {
        let wanted = self.order.wanted;
        let service = || wanted.services.get(container.strip_prefix("svc-")?.parse::<usize>().ok()?);
        match container {
            BUILD => wanted.build.image.clone(),
            "program" => self.kube.settings.program_image.clone().unwrap_or_default(),
            other => service().map_or_else(|| other.to_owned(), |service| service.container.image.clone()),
        }
    }

    /// Waits for the daemon in the Pod.
    async fn answers(&mut self, daemons: &Daemons, stop: &CancellationToken) -> Result<(), Failed> {
        let (begun, address) = (Instant::now(), self.kube.address());
        loop {
            let answer = async {
                let client = daemons.client(Some(&address)).await?;
                client.overview().await.map_err(|error| error.to_string())
            };
            let answer = tokio::select! {
                answer = answer => answer,
                () = stop.cancelled() => return Err(Failed::Stopped),
            };
            let Err(why) = answer else { return Ok(()) };
            self.still_runs().await?;
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
    async fn still_runs(&mut self) -> Result<(), Failed> {
        let pod = self.pod().await?;
        self.lives(&pod).await
    }

    /// Asserts that the job's container runs, or may come.
    async fn lives(&self, pod: &Json) -> Result<(), Failed> {
        match seen(pod, BUILD) {
            Seen::Running => Ok(()),
            Seen::Gone => Err(Failed::Lost("its Pod was removed".to_owned())),
            Seen::Ended { how, is_killed: true } => Err(Failed::Lost(format!("its Pod {how}"))),
            Seen::Ended { how, is_killed: false } => {
                for line in self.last_lines(BUILD).await {
                    self.order.line(&format!("  {line}")).await;
                }
                let text = format!(
                    "the container of {} {how} before the job could start: set `entrypoint: [\"\"]`, or see its lines",
                    self.order.wanted.build.image
                );
                Err(self.order.failed(EnvironmentFailure::Configuration, &text))
            }
        }
    }

    async fn last_lines(&self, container: &str) -> Vec<String> {
        let words = ["logs", &self.kube.name, "--container", container, "--tail", LINES];
        match self.engine.run(&words, None, LOOK).await {
            Ok((out, _)) => out.lines().map(str::to_owned).collect(),
            Err(_) => Vec::new(),
        }
    }

    /// Waits until the services accept connections from the job's container, as long as the entry says.
    async fn wait_for_services(&mut self) -> Result<(), Failed> {
        let Some(limit) = self.kube.settings.wait_for_services else { return Ok(()) };
        let begun = Instant::now();
        for (number, service) in self.order.wanted.services.iter().enumerate() {
            let left = limit.saturating_sub(begun.elapsed());
            let name = format!("svc-{number}");
            let is_ready = match self.is_ready(&name, service, left).await {
                Err(Trouble::Stopped) => return Err(Failed::Stopped),
                result => result,
            };
            if is_ready == Ok(true) {
                continue;
            }
            let image = &service.container.image;
            self.order.line(&format!("WARNING: the service {image} is not ready; its last lines:")).await;
            for line in self.last_lines(&name).await {
                self.order.line(&format!("  {line}")).await;
            }
        }
        Ok(())
    }

    async fn is_ready(&self, name: &str, service: &Service, limit: Duration) -> Result<bool, Trouble> {
        let pod = self.kube.pod(&self.engine).await?;
        if pod.is_none_or(|pod| seen(&pod, name) != Seen::Running) {
            return Ok(false);
        }
        let ports = service.port.map_or_else(|| service.ports.clone(), |port| vec![port]);
        if ports.is_empty() {
            return Ok(true);
        }
        let time = format!("{}ms", limit.as_millis());
        let start =
            ["exec", &self.kube.name, "--container", BUILD, "--", PROGRAM, "wait", "--timeout", &time];
        let mut words: Vec<String> = start.map(str::to_owned).to_vec();
        words.extend(ports.iter().map(|port| format!("127.0.0.1:{port}")));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        self.engine.run(&words, None, limit + LOOK).await.map(|_| true)
    }
}
