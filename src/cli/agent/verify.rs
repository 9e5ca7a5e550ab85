//! `step-runner verify`: asks the servers if the entries' tokens are valid (agent.md §11.4).

use std::path::PathBuf;

use super::super::{CommandResult, terminal};
use super::options::{self, ConfigOption};
use crate::agent::config::Entry;
use crate::agent::config::edit;
use crate::agent::tokens::Token;
use crate::agent::tokens::routable::Routable;
use crate::error::{Exit, Failure};
use crate::pull::check::tls_files;
use crate::pull::configuration::{self, Locked};
use crate::pull::info::info;
use crate::pull::register::RegisterFailure;
use crate::pull::rights::missing_rights;
use crate::pull::users;

/// Ask the servers if the tokens of the agent's entries are valid
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  step-runner verify
  step-runner verify --name shell --delete   remove the entry if the server does not know it any more

For an entry with kube-run:// it also looks if this account has the rights that jobs in Pods need.

Exit codes: 0 all are valid; 1 one is not, could not be asked, or lacks a right; 3 the configuration cannot be used.")]
pub(in super::super) struct Arguments {
    #[command(flatten)]
    config: ConfigOption,
    #[command(flatten)]
    which: Which,
    /// Remove entries that the server refuses
    #[arg(long)]
    delete: bool,
}

/// Remedy that follows the verdict on a refused entry.
const REMEDY: &str = "; register it anew, or remove it with `step-runner verify --delete`";

/// Entries that a command is about; all without an option.
#[derive(clap::Args)]
pub(super) struct Which {
    /// Only entries of this name
    #[arg(long, value_name = "NAME")]
    pub(super) name: Option<String>,
    /// Only entries of this instance
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// Only the entry with the token in this file
    #[arg(long, value_name = "FILE")]
    pub(super) token_file: Option<PathBuf>,
    /// The token itself: others see it among the arguments
    #[arg(long, value_name = "TOKEN", hide = true)]
    pub(super) token: Option<String>,
}

impl Which {
    /// Returns a test for entries.
    pub(super) fn chosen(&self) -> Result<impl Fn(&Entry) -> bool, Failure> {
        let token = options::token("--token", self.token_file.as_ref(), self.token.as_ref(), None)?;
        let url = self.url.as_deref().map(options::base).transpose()?;
        let name = self.name.clone();
        Ok(move |entry: &Entry| {
            name.as_ref().is_none_or(|name| *name == entry.name)
                && url.as_ref().is_none_or(|url| *url == entry.url)
                && token.as_ref().is_none_or(|token| *token == entry.token)
        })
    }
}

/// Returns the description of the agent for an entry.
pub(super) fn about(entry: &Entry) -> serde_json::Value {
    info(&entry.labels, entry.address.is_provider())
}

/// Returns the failure if no entry is meant.
pub(super) fn nothing(config: &std::path::Path) -> Failure {
    Failure::new(Exit::Configuration, format!("the configuration {} has no such entry", config.display()))
        .with_remedy("see its names and addresses with `step-runner verify`")
}

pub(in super::super) async fn execute(arguments: Arguments) -> CommandResult {
    let path = arguments.config.path();
    let is_chosen = arguments.which.chosen()?;
    let config = configuration::read_to_use(&path, &is_chosen)?;
    for warning in &config.warnings {
        terminal::say(&format!("step-runner: warning: {warning}"));
    }
    let chosen: Vec<&Entry> = config.entries.iter().filter(|entry| is_chosen(entry)).collect();
    if chosen.is_empty() {
        return Err(nothing(&path));
    }
    let (mut has_failed, mut refused, mut names) = (false, Vec::new(), Vec::new());
    for entry in chosen {
        let hosts = entry.allowed_redirect_hosts.clone();
        let registry = options::registry(&path, entry.url.clone(), &tls_files(entry), hosts, about(entry))?;
        let result = registry.verify(&entry.token).await;
        terminal::print(
            format!("{}: {}\n", entry.name, verdict(&entry.token, result.as_ref().err(), arguments.delete))
                .as_bytes(),
        )?;
        has_failed |= result.is_err();
        if users::is_shared(entry) {
            terminal::say(&format!("step-runner: warning: {}", users::warning(entry)));
        }
        for missing in missing_rights(&entry.address).await {
            terminal::print(format!("{}: {missing}\n", entry.name).as_bytes())?;
            has_failed = true;
        }
        if result.is_err_and(|error| error.is_refusal()) {
            names.push(entry.name.clone());
            refused.push(entry.token.clone());
        }
    }
    if arguments.delete && !refused.is_empty() {
        let mut file = Locked::take(&path)?;
        for token in &refused {
            remove(&mut file, token)?;
        }
        file.write()?;
        terminal::say(&format!("step-runner: removed the refused entries: {}", names.join(", ")));
    }
    Ok(u8::from(has_failed))
}

fn verdict(token: &Token, error: Option<&RegisterFailure>, deletes: bool) -> String {
    let kind = Routable::of_runner_token(token.expose()).and_then(|routable| routable.runner_type_name());
    match error {
        None => kind.map_or_else(|| "valid".to_owned(), |kind| format!("valid, {kind}")),
        Some(error) if error.is_refusal() => {
            format!("not valid: {error}{}", if deletes { "" } else { REMEDY })
        }
        Some(error) => format!("could not be asked: {error}"),
    }
}

/// Removes the entries with a token from the text of the file.
pub(super) fn remove(file: &mut Locked, token: &Token) -> Result<(), Failure> {
    while let Some(at) = file.config()?.entries.iter().position(|entry| entry.token == *token) {
        file.edit(|text| edit::remove(text, at))?;
    }
    Ok(())
}
