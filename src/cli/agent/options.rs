//! Options that several commands for entries share.

use std::path::PathBuf;

use super::super::terminal;
use crate::agent::config::CONNECTION_MAX_AGE;
use crate::agent::routing::Base;
use crate::agent::tokens::Token;
use crate::error::{Exit, Failure};
use crate::files::operators::read_text;
use crate::pull::api::{Api, NoApi};
use crate::pull::place;
use crate::pull::register::Registry;
use crate::web::TlsFiles;

/// Longest file with a token.
const MAX_TOKEN_FILE: u64 = 8 << 10;

/// The configuration.
#[derive(clap::Args)]
pub(super) struct ConfigOption {
    /// Configuration of the agent [default: agent.toml in the user's configuration, as root /etc/step-runner/agent.toml]
    #[arg(long, value_name = "FILE", env = "STEP_RUNNER_AGENT_CONFIG")]
    config: Option<PathBuf>,
}

impl ConfigOption {
    pub(super) fn path(&self) -> PathBuf {
        whole(self.config.clone().unwrap_or_else(place::default_config))
    }
}

/// Returns a path from the root: daemons and jobs have folders of their own.
pub(super) fn whole(path: PathBuf) -> PathBuf {
    std::path::absolute(&path).unwrap_or(path)
}

/// Returns a token from a file, from an option, or from a variable, whichever is given first in this order. A token in
/// an argument is warned about.
pub(super) fn token(
    option: &str,
    file: Option<&PathBuf>,
    text: Option<&String>,
    variable: Option<&str>,
) -> Result<Option<Token>, Failure> {
    let found = match (file, text) {
        (Some(path), _) => {
            let cannot = |error: std::io::Error| {
                let text = format!("cannot read the token in {}: {error}", path.display());
                Failure::new(Exit::Usage, text).with_remedy("name a file that has the token alone")
            };
            Some(read_text(path, MAX_TOKEN_FILE).map_err(cannot)?)
        }
        (None, Some(text)) => {
            terminal::say(&format!(
                "step-runner: warning: other users of this machine see the arguments of a command: use {option}-file"
            ));
            Some(text.clone())
        }
        (None, None) => {
            variable.and_then(|name| std::env::var(name).ok()).filter(|token| !token.trim().is_empty())
        }
    };
    let from = match (file, text) {
        (Some(path), _) => format!("{option}-file: {}", path.display()),
        (None, Some(_)) => option.to_owned(),
        (None, None) => variable.unwrap_or_default().to_owned(),
    };
    let parse = |text: String| {
        Token::new(&text).map_err(|error| Failure::new(Exit::Usage, format!("{from}: {error}")))
    };
    found.map(parse).transpose()
}

/// Returns the address of an instance.
pub(super) fn base(text: &str) -> Result<Base, Failure> {
    Base::new(text).map_err(|error| Failure::new(Exit::Usage, format!("--url: {error}")))
}

/// Returns the calls to a server from this machine. `info` is the description of the agent.
pub(super) fn registry(
    config: &std::path::Path,
    url: Base,
    files: &TlsFiles,
    hosts: Vec<String>,
    info: serde_json::Value,
) -> Result<Registry, Failure> {
    let cannot = |error: std::io::Error| {
        let text = format!("cannot write the system id beside {}: {error}", config.display());
        Failure::new(Exit::Configuration, text)
    };
    let id = place::system_id(config).map_err(cannot)?;
    let shown = url.to_string();
    let api = Api::new(url, files, hosts, CONNECTION_MAX_AGE)
        .map_err(|error: NoApi| Failure::new(Exit::Failure, error))?;
    Ok(Registry::new(api, shown, id, info))
}
