//! `step-runner register`: makes an entry of the agent (agent.md §11.4).

use std::path::{Path, PathBuf};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Map, Value as Json};

use super::super::{CommandResult, terminal};
use super::import;
use super::options::{self, ConfigOption};
use crate::agent::config::edit::{self, Value};
use crate::agent::environment::Address;
use crate::agent::routing::Base;
use crate::agent::tokens::{RunnerTokenKind, Token};
use crate::error::{Exit, Failure};
use crate::pull::check::mistakes;
use crate::pull::configuration::{self, Locked};
use crate::pull::info::info;
use crate::pull::register::{Registry, Runner};
use crate::pull::settings::PROGRAM_IMAGE;
use crate::signal::StopSignals;
use crate::web::TlsFiles;

/// Time after a signal for which a server is waited for that may have made a runner, and between two looks.
const UNTOLD: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(50);

/// Kind of a runner that is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum RunnerType {
    #[value(name = "instance_type")]
    Instance,
    #[value(name = "group_type")]
    Group,
    #[value(name = "project_type")]
    Project,
}

impl RunnerType {
    const fn word(self) -> &'static str {
        match self {
            Self::Instance => "instance_type",
            Self::Group => "group_type",
            Self::Project => "project_type",
        }
    }
}

/// Options that the server keeps. With the token of a created runner they are refused: the server has them already.
#[derive(clap::Args)]
#[command(next_help_heading = "Options that the server keeps (with --create or a registration token)")]
struct ServerOptions {
    /// Description
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// Tags of jobs that the runner takes, separated by commas
    #[arg(long, value_name = "TAGS")]
    tag_list: Option<String>,
    /// Take jobs without tags, too [default: true if there are no tags]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    run_untagged: Option<bool>,
    /// Keep a project's runner from other projects [default: true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    locked: Option<bool>,
    /// not_protected or ref_protected
    #[arg(long, value_name = "LEVEL", value_parser = ["not_protected", "ref_protected"])]
    access_level: Option<String>,
    /// Longest time of a job in seconds
    #[arg(long, value_name = "SECONDS")]
    maximum_timeout: Option<u64>,
    /// Begin without taking jobs
    #[arg(long)]
    paused: bool,
    /// Note for those who maintain the runner
    #[arg(long, value_name = "TEXT")]
    maintenance_note: Option<String>,
}

impl ServerOptions {
    /// Returns the first option that is given.
    fn given(&self) -> Option<&'static str> {
        [
            ("--description", self.description.is_some()),
            ("--tag-list", self.tag_list.is_some()),
            ("--run-untagged", self.run_untagged.is_some()),
            ("--locked", self.locked.is_some()),
            ("--access-level", self.access_level.is_some()),
            ("--maximum-timeout", self.maximum_timeout.is_some()),
            ("--paused", self.paused),
            ("--maintenance-note", self.maintenance_note.is_some()),
        ]
        .into_iter()
        .find_map(|(name, is_given)| is_given.then_some(name))
    }

    /// Returns the fields of a request.
    fn fields(&self) -> Map<String, Json> {
        let mut fields = Map::new();
        let mut add = |key: &str, value: Option<Json>| {
            fields.extend(value.map(|value| (key.to_owned(), value)));
        };
        let tags = self.tag_list.as_deref().unwrap_or_default();
        let has_tags = tags.split(',').any(|tag| !tag.trim().is_empty());
        add("description", self.description.clone().map(Json::from));
        add("tag_list", has_tags.then(|| tags.into()));
        add("run_untagged", Some(self.run_untagged.unwrap_or(!has_tags).into()));
        add("locked", Some(self.locked.unwrap_or(true).into()));
        add("access_level", self.access_level.clone().map(Json::from));
        add("maximum_timeout", self.maximum_timeout.map(Json::from));
        add("paused", self.paused.then_some(true.into()));
        add("maintenance_note", self.maintenance_note.clone().map(Json::from));
        fields
    }
}

/// Register this machine as a runner of a GitLab instance
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  step-runner register --url https://gitlab.example.com --token-file token
  step-runner register --url https://gitlab.example.com --create --access-token-file access \\
      --runner-type project_type --project-id 7 --tag-list linux,docker
  step-runner register --import /etc/gitlab-runner/config.toml --check

The entry is written once the server has accepted it. Create the runner in GitLab and give its token (`glrt-…`), or let \
--create do so with an access token that has the scope `create_runner`. The access token is not stored. Exit codes: 0 \
done; 1 the server refused or was not reached, nothing was written; 2 usage; 3 the configuration cannot be used.")]
pub(in super::super) struct Arguments {
    #[command(flatten)]
    config: ConfigOption,
    /// Address of the instance
    #[arg(long, value_name = "URL", required_unless_present = "import", env = "CI_SERVER_URL")]
    url: Option<String>,
    /// File with the token of a created runner [env: CI_SERVER_TOKEN has the token itself]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// The token itself: others see it among the arguments
    #[arg(long, value_name = "TOKEN", hide = true)]
    token: Option<String>,
    /// File with a registration token of an older server [env: REGISTRATION_TOKEN has the token itself]
    #[arg(long, value_name = "FILE")]
    registration_token_file: Option<PathBuf>,
    /// The registration token itself: others see it among the arguments
    #[arg(long, value_name = "TOKEN", hide = true)]
    registration_token: Option<String>,
    /// Create the runner at the server first
    #[arg(long)]
    create: bool,
    /// File with an access token that may create runners
    #[arg(long, value_name = "FILE", requires = "create")]
    access_token_file: Option<PathBuf>,
    /// The access token itself: others see it among the arguments
    #[arg(long, value_name = "TOKEN", requires = "create", hide = true)]
    access_token: Option<String>,
    /// Whose jobs the created runner takes
    #[arg(long, value_name = "TYPE", requires = "create", value_enum)]
    runner_type: Option<RunnerType>,
    /// Group of a `group_type` runner
    #[arg(long, value_name = "ID", requires = "create")]
    group_id: Option<u64>,
    /// Project of a `project_type` runner
    #[arg(long, value_name = "ID", requires = "create")]
    project_id: Option<u64>,
    /// Name of the entry [default: the address of the instance]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Where jobs run: docker-run://, kube-run://NAMESPACE, or the address of a daemon [default: a daemon of
    /// the agent's own on this machine]
    #[arg(long, value_name = "ADDRESS")]
    address: Option<String>,
    /// Folder for sources; needed with the address of a daemon
    #[arg(long, value_name = "DIR")]
    builds_dir: Option<String>,
    /// Most jobs at one time
    #[arg(long, value_name = "N")]
    limit: Option<u32>,
    /// Certificates to trust beside those of the system
    #[arg(long, value_name = "FILE")]
    tls_ca_file: Option<PathBuf>,
    /// Take the entries of a GitLab Runner's configuration over; it is only read
    #[arg(long, value_name = "CONFIG.TOML", conflicts_with_all = ["url", "create"])]
    import: Option<PathBuf>,
    /// Say what --import would do, and write nothing; exit code 1 if a key is not supported
    #[arg(long, requires = "import")]
    check: bool,
    #[command(flatten)]
    server: ServerOptions,
}

pub(in super::super) async fn execute(arguments: Arguments) -> CommandResult {
    let config = arguments.config.path();
    if let Some(file) = &arguments.import {
        return import::execute(file, &config, arguments.check);
    }
    let url = options::base(arguments.url.as_deref().unwrap_or_default())?;
    let way = Way::of(&arguments)?;
    let mut file = Locked::take(&config)?;
    if let Way::Verify(token) = &way {
        is_new(&file, &config, &url, token)?;
    }
    let files = TlsFiles { authorities: arguments.tls_ca_file.clone(), identity: None };
    let address = Address::parse(arguments.address.as_deref());
    let about = info(&[], address.is_ok_and(|address| address.is_provider()));
    let registry = options::registry(&config, url.clone(), &files, Vec::new(), about)?;
    if url.is_plain() {
        terminal::say(
            "step-runner: warning: the address is without TLS: tokens and jobs can be read on the way",
        );
    }
    check(&config, &arguments, &url)?;
    let (makes, made) = (!matches!(way, Way::Verify(_)), Mutex::new(Made::default()));
    let work = async {
        let (token, runner) = way.go(&registry, &arguments, &made).await?;
        file.refresh()?;
        write(&mut file, &arguments, &url, &token, &runner)
    };
    if let Err(failure) = until_signal(work, makes, &made).await {
        let made = made.lock().token.take();
        return Err(match made {
            Some(token) => undone(failure, &registry, &token, &url).await,
            None => failure,
        });
    }
    terminal::say(&format!(
        "step-runner: registered at {url}, entry written to {}; start it with `step-runner agent --config {}`",
        config.display(),
        config.display()
    ));
    Ok(0)
}

/// A runner that the server has made for this command.
#[derive(Default)]
struct Made {
    token: Option<Token>,
    /// True once a signal has come: then a runner that is made is for nothing.
    is_stopped: bool,
}

/// How the runner comes to be.
enum Way {
    /// Its token is there.
    Verify(Token),
    /// An older server makes it for a registration token.
    Register(Token),
    /// The server makes it for an access token.
    Create(Token, Map<String, Json>),
}

impl Way {
    fn of(arguments: &Arguments) -> Result<Self, Failure> {
        let usage = |text: &str| Failure::new(Exit::Usage, text.to_owned());
        if arguments.create {
            let (file, text) = (arguments.access_token_file.as_ref(), arguments.access_token.as_ref());
            let token = options::token("--access-token", file, text, None)?
                .ok_or_else(|| usage("--create needs --access-token-file"))?;
            return Ok(Self::Create(token, created(arguments)?));
        }
        let (file, text) =
            (arguments.registration_token_file.as_ref(), arguments.registration_token.as_ref());
        let is_named = arguments.token_file.is_some() || arguments.token.is_some();
        let registration =
            options::token("--registration-token", file, text, (!is_named).then_some("REGISTRATION_TOKEN"))?;
        if is_named && registration.is_some() {
            return Err(usage("give a runner's token or a registration token, not both"));
        }
        let (file, text) = (arguments.token_file.as_ref(), arguments.token.as_ref());
        let token =
            options::token("--token", file, text, registration.is_none().then_some("CI_SERVER_TOKEN"))?;
        let token = match (token, registration) {
            (None, Some(token)) if token.runner_kind() == RunnerTokenKind::Registered => {
                return Ok(Self::Register(token));
            }
            // People give the token of a created runner for a registration token.
            (Some(token), _) | (None, Some(token)) => token,
            (None, None) => {
                return Err(usage("no token is given")
                    .with_remedy("create a runner in GitLab and give its token with --token-file"));
            }
        };
        match arguments.server.given() {
            Some(option) => {
                Err(Failure::new(Exit::Usage, format!("{option}: the server keeps this of a created runner"))
                    .with_remedy("leave it out, and set it in GitLab"))
            }
            None => Ok(Self::Verify(token)),
        }
    }

    /// Returns token and runner. `made` hears of a runner that was made just now.
    async fn go(
        self,
        registry: &Registry,
        arguments: &Arguments,
        made: &Mutex<Made>,
    ) -> Result<(Token, Runner), Failure> {
        let failed = |error| Failure::new(Exit::Failure, error);
        match self {
            Self::Verify(token) => {
                let runner = registry.verify(&token).await.map_err(failed)?;
                Ok((token, runner))
            }
            Self::Register(token) => {
                let runner = registry.register(&token, &arguments.server.fields()).await.map_err(failed)?;
                Self::made(runner, made)
            }
            Self::Create(access, fields) => {
                let runner = registry.create(&access, &fields).await.map_err(failed)?;
                let (token, runner) = Self::made(runner, made)?;
                registry.verify(&token).await.map_err(failed)?;
                Ok((token, runner))
            }
        }
    }

    fn made(runner: Runner, made: &Mutex<Made>) -> Result<(Token, Runner), Failure> {
        match runner.token.clone() {
            Some(token) => {
                let mut made = made.lock();
                made.token = Some(token.clone());
                if made.is_stopped {
                    return Err(Failure::new(Exit::Failure, "stopped"));
                }
                Ok((token, runner))
            }
            None => Err(Failure::new(Exit::Failure, "the server gave no token")),
        }
    }
}

/// Returns the fields of a runner to create.
fn created(arguments: &Arguments) -> Result<Map<String, Json>, Failure> {
    let usage = |text: &str| Failure::new(Exit::Usage, text.to_owned());
    let kind = arguments.runner_type.ok_or_else(|| usage("--create needs --runner-type"))?;
    let mut fields = arguments.server.fields();
    fields.insert("runner_type".to_owned(), kind.word().into());
    match (kind, arguments.group_id, arguments.project_id) {
        (RunnerType::Instance, None, None) => {}
        (RunnerType::Group, Some(id), None) => drop(fields.insert("group_id".to_owned(), id.into())),
        (RunnerType::Project, None, Some(id)) => drop(fields.insert("project_id".to_owned(), id.into())),
        (RunnerType::Instance, ..) => {
            return Err(usage("an instance_type runner has no group and no project"));
        }
        (RunnerType::Group, ..) => {
            return Err(usage("a group_type runner needs --group-id, and nothing else"));
        }
        (RunnerType::Project, ..) => {
            return Err(usage("a project_type runner needs --project-id, and nothing else"));
        }
    }
    Ok(fields)
}

/// Does `work`, unless a signal comes. If it makes a runner at the server, it is waited for until the server has told the
/// runner's token, which `made` gets.
async fn until_signal(
    work: impl Future<Output = Result<(), Failure>>,
    makes: bool,
    made: &Mutex<Made>,
) -> Result<(), Failure> {
    let mut work = std::pin::pin!(work);
    let mut signals = StopSignals::listen().map_err(|error| Failure::new(Exit::Failure, error))?;
    let signal = tokio::select! {
        result = &mut work => return result,
        signal = signals.next() => signal,
    };
    made.lock().is_stopped = true;
    let until = tokio::time::Instant::now() + UNTOLD;
    while makes && made.lock().token.is_none() && tokio::time::Instant::now() < until {
        tokio::select! {
            result = &mut work => if result.is_ok() { return result } else { break },
            () = tokio::time::sleep(LOOK) => {}
        }
    }
    let exit = if signal == "SIGINT" { Exit::Interrupted } else { Exit::Terminated };
    let text = if makes && made.lock().token.is_none() {
        format!("{signal}: stopped; the server may have made a runner, whose token is lost: look there")
    } else {
        format!("{signal}: stopped, nothing was written")
    };
    Err(Failure::new(exit, text))
}

/// Removes a runner that was made just now and would be nobody's. Returns the failure with what became of it.
async fn undone(failure: Failure, registry: &Registry, token: &Token, url: &Base) -> Failure {
    match registry.delete(token).await {
        Ok(()) => {
            terminal::say("step-runner: the runner that was made at the server is removed there");
            failure
        }
        Err(error) => {
            terminal::say(&format!(
                "step-runner: the runner that was made at {url} could not be removed, and its token is lost: {error}"
            ));
            failure.with_remedy("delete the runner in GitLab")
        }
    }
}

/// Refuses a runner that has an entry already.
fn is_new(file: &Locked, config: &Path, url: &Base, token: &Token) -> Result<(), Failure> {
    if file.text.trim().is_empty() {
        return Ok(());
    }
    match file.config()?.entries.iter().find(|entry| entry.url == *url && entry.token == *token) {
        Some(entry) => {
            let text =
                format!("{} has this runner already, as the entry \"{}\"", config.display(), entry.name);
            Err(Failure::new(Exit::Configuration, text)
                .with_remedy("start it with `step-runner agent`, or create another runner in GitLab"))
        }
        None => Ok(()),
    }
}

/// Finds what the agent would refuse in the entry, before the server is asked for anything.
fn check(config: &Path, arguments: &Arguments, url: &Base) -> Result<(), Failure> {
    // The token of a runner that is made is not known yet.
    let values = values(arguments, url, "glrt-placeholder", &Runner::default());
    let config = configuration::preview(config, "register", |old| edit::append(old, &values, &[]))?;
    let wrong = config.entries.last().map(mistakes).unwrap_or_default();
    // That is written into the file by hand.
    match wrong.into_iter().find(|wrong| wrong.key != PROGRAM_IMAGE) {
        Some(wrong) => Err(Failure::new(Exit::Configuration, wrong.message)),
        None => Ok(()),
    }
}

/// Returns keys and values of the entry.
fn values(arguments: &Arguments, url: &Base, token: &str, runner: &Runner) -> Vec<(&'static str, Value)> {
    let text = |value: &str| Value::Text(value.to_owned());
    let number = |value: u64| i64::try_from(value).ok().map(Value::Number);
    let now = chrono::Utc::now().format("%Y-%m-%dT%H:%M:%SZ").to_string();
    let name = arguments.name.clone().unwrap_or_else(|| url.to_string());
    let expires = runner.expires.as_deref().and_then(|date| chrono::DateTime::parse_from_rfc3339(date).ok());
    let expires = expires.map(|date| date.to_utc().format("%Y-%m-%dT%H:%M:%SZ").to_string());
    let ca = arguments.tls_ca_file.as_ref().map(|path| Value::Text(path.display().to_string()));
    [
        ("name", Some(text(&name))),
        ("url", Some(text(url.as_str()))),
        ("id", runner.id.and_then(number)),
        ("token", Some(text(token))),
        ("token_obtained_at", Some(Value::Date(now))),
        ("token_expires_at", expires.map(Value::Date)),
        ("limit", arguments.limit.map(|limit| Value::Number(limit.into()))),
        ("address", arguments.address.as_deref().map(text)),
        ("builds_dir", arguments.builds_dir.as_deref().map(text)),
        ("tls-ca-file", ca),
    ]
    .into_iter()
    .filter_map(|(key, value)| Some((key, value?)))
    .collect()
}

/// Writes the entry.
fn write(
    file: &mut Locked,
    arguments: &Arguments,
    url: &Base,
    token: &Token,
    runner: &Runner,
) -> Result<(), Failure> {
    let values = values(arguments, url, token.expose(), runner);
    file.edit(|old| edit::append(old, &values, &[]))?;
    file.write()?;
    Ok(())
}
