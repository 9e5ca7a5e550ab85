//! `step-runner unregister`: removes runners at the server, and their entries (agent.md §11.4).

use super::super::{CommandResult, terminal};
use super::options::{self, ConfigOption};
use super::verify::{Which, about, nothing, remove};
use crate::agent::config::Entry;
use crate::error::{Exit, Failure};
use crate::pull::check::tls_files;
use crate::pull::configuration::{self, Locked};

/// Remove runners at the server, and their entries
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  step-runner unregister --name shell
  step-runner unregister --all-runners

Of a runner that was created in GitLab only this machine is removed there. An entry stays if the server could not be \
asked. Exit codes: 0 done; 1 an entry was not removed; 2 usage; 3 the configuration cannot be used.")]
pub(in super::super) struct Arguments {
    #[command(flatten)]
    config: ConfigOption,
    #[command(flatten)]
    which: Which,
    /// All entries
    #[arg(long)]
    all_runners: bool,
}

pub(in super::super) async fn execute(arguments: Arguments) -> CommandResult {
    let path = arguments.config.path();
    let which = &arguments.which;
    let is_named = which.name.is_some() || which.token_file.is_some() || which.token.is_some();
    if is_named == arguments.all_runners {
        return Err(Failure::new(Exit::Usage, "which entry is not clear")
            .with_remedy("give one of --name, --token-file and --all-runners"));
    }
    let config = configuration::read(&path)?;
    let is_chosen = which.chosen()?;
    let chosen: Vec<&Entry> = config.entries.iter().filter(|entry| is_chosen(entry)).collect();
    if chosen.is_empty() {
        return Err(nothing(&path));
    }
    let mut has_failed = false;
    for entry in chosen {
        let hosts = entry.allowed_redirect_hosts.clone();
        let registry = options::registry(&path, entry.url.clone(), &tls_files(entry), hosts, about(entry))?;
        if let Err(error) = registry.remove(&entry.token).await {
            has_failed = true;
            terminal::say(&format!("step-runner: {}: the entry stays: {error}", entry.name));
            continue;
        }
        let mut file = Locked::take(&path)?;
        remove(&mut file, &entry.token)?;
        file.write()?;
        terminal::say(&format!("step-runner: {}: removed", entry.name));
    }
    Ok(u8::from(has_failed))
}
