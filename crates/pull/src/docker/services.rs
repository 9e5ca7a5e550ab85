//! Services of a job: containers beside its own, found by their aliases (agent.md §8.5).

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::preparation::{Preparation, of_image};
use crate::container::{PROGRAM, Seen};
use crate::engine::{LOOK, Trouble};
use crate::order::Failed;
use crate::wanted::Service;
use step_runner_agent::outcome::EnvironmentFailure;

impl Preparation<'_> {
    fn service_name(&self, number: usize) -> String {
        format!("{}.svc-{number}", self.docker.name)
    }

    /// Makes and starts the services. One that does not start is told, and the job goes on.
    pub(super) async fn services(&self) -> Result<(), Failed> {
        for (number, service) in self.order.wanted.services.iter().enumerate() {
            let image = &service.container.image;
            self.order.line(&format!("Starting the service {image}")).await;
            self.make_service(number, service).await?;
            match self.engine.insist(&["start", &self.service_name(number)]).await {
                Err(Trouble::Stopped) => return Err(Failed::Stopped),
                Err(trouble) => {
                    self.order.line(&format!("WARNING: the service {image} does not start: {trouble}")).await;
                }
                Ok(_) => {}
            }
        }
        Ok(())
    }

    async fn make_service(&self, number: usize, service: &Service) -> Result<(), Failed> {
        let docker = self.docker;
        let file = self.folder.join("variables");
        let cannot = |error: io::Error| {
            let text = format!("cannot write the variables of a service: {error}");
            Failed::Environment(EnvironmentFailure::System, text)
        };
        let _file = Variables::write(file.clone(), &service.variables).map_err(cannot)?;
        let mut words = vec!["create".to_owned()];
        words.extend(docker.settings.service_args.iter().cloned());
        words.extend(["--name".to_owned(), self.service_name(number)]);
        words.extend(self.labels("service"));
        if docker.settings.is_shared {
            words.extend(["--network".to_owned(), format!("container:{}", docker.name)]);
        } else {
            words.extend(["--network".to_owned(), docker.name.clone()]);
            let aliases = service.aliases.iter();
            words.extend(aliases.flat_map(|alias| ["--network-alias".to_owned(), alias.clone()]));
        }
        words.extend(self.mounts(&[self.builds()]));
        words.extend(["--env-file".to_owned(), file.display().to_string()]);
        words.extend(of_image(&service.container, service.command.iter().cloned()));
        self.create(&words).await
    }

    /// Waits until the services accept connections from the job's container, as long as the entry says.
    pub(super) async fn wait_for_services(&self, ports: &[Vec<u16>]) -> Result<(), Failed> {
        let Some(limit) = self.docker.settings.wait_for_services else { return Ok(()) };
        let begun = Instant::now();
        for (number, (service, ports)) in self.order.wanted.services.iter().zip(ports).enumerate() {
            let left = limit.saturating_sub(begun.elapsed());
            let is_ready = match self.is_ready(number, service, ports, left).await {
                Err(Trouble::Stopped) => return Err(Failed::Stopped),
                result => result,
            };
            if is_ready == Ok(true) {
                continue;
            }
            let image = &service.container.image;
            self.order.line(&format!("WARNING: the service {image} is not ready; its last lines:")).await;
            for line in self.last_lines(&self.service_name(number)).await {
                self.order.line(&format!("  {line}")).await;
            }
        }
        Ok(())
    }

    async fn is_ready(
        &self,
        number: usize,
        service: &Service,
        ports: &[u16],
        limit: Duration,
    ) -> Result<bool, Trouble> {
        let name = self.service_name(number);
        if self.docker.see(&self.engine, &name).await? != Seen::Running {
            return Ok(false);
        }
        if ports.is_empty() {
            return Ok(true);
        }
        let host = match service.aliases.first() {
            _ if self.docker.settings.is_shared => "127.0.0.1",
            Some(alias) => alias,
            None => &name,
        };
        let time = format!("{}ms", limit.as_millis());
        let mut words =
            ["exec", &self.docker.name, PROGRAM, "wait", "--timeout", &time].map(str::to_owned).to_vec();
        words.extend(ports.iter().map(|port| format!("{host}:{port}")));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        self.engine.run(&words, None, limit + LOOK).await.map(|_| true)
    }
}

/// A file with the variables of a service: they are no arguments, and none of the program that reads them. It goes with
/// this value, and with the record of its job.
struct Variables(PathBuf);

impl Variables {
    fn write(path: PathBuf, variables: &[(String, String)]) -> io::Result<Self> {
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = Self(path);
        let text: String = variables.iter().flat_map(|(key, value)| [key, "=", value, "\n"]).collect();
        let new = OpenOptions::new().write(true).create_new(true).mode(0o600).clone();
        new.open(&file.0)?.write_all(text.as_bytes())?;
        Ok(file)
    }
}

impl Drop for Variables {
    fn drop(&mut self) {
        fs::remove_file(&self.0).ok();
    }
}
