//! `step-runner register --import`: a GitLab Runner's configuration as the agent's own (agent.md §3.1).

use std::path::Path;

use super::super::{CommandResult, terminal};
use crate::agent::import::{Fate, Import};
use crate::error::{Exit, Failure};
use crate::files::operators::read_text;
use crate::pull::configuration::Locked;

/// Longest file of a Runner.
const LONGEST: u64 = 16 << 20;

pub(super) fn execute(file: &Path, config: &Path, only_checks: bool) -> CommandResult {
    let cannot = |error: &dyn std::fmt::Display| {
        Failure::new(Exit::Configuration, format!("cannot import {}: {error}", file.display()))
    };
    let text = read_text(file, LONGEST).map_err(|error| cannot(&error))?;
    let import = Import::read(&text).map_err(|error| cannot(&error))?;
    let lines: Vec<String> = import.lines.iter().map(|line| format!("{}:{line}\n", file.display())).collect();
    terminal::print(lines.concat().as_bytes())?;
    let lost = import.lines.iter().filter(|line| matches!(line.fate, Fate::NotSupported(_))).count();
    if only_checks {
        return Ok(u8::from(!import.is_complete()));
    }
    if import.entries.is_empty() {
        return Err(cannot(&"no entry can be taken over").with_remedy("see the lines above"));
    }
    if import.entries.iter().any(|entry| entry.pod_template.is_some()) {
        return Err(cannot(&"jobs in Pods do not work in this version yet")
            .with_remedy("remove the kubernetes entries from a copy of the file, and import that"));
    }
    let mut own = Locked::take(config)?;
    own.edit(|old| import.apply(old, &|_| String::new()))?;
    own.write()?;
    terminal::say(&format!(
        "step-runner: {} entries written to {}, {lost} keys not supported; stop the GitLab Runner before you start the \
         agent, or both take jobs; check the tokens with `step-runner verify`",
        import.entries.len(),
        config.display()
    ));
    Ok(0)
}
