//! `step-runner register --import`: a GitLab Runner's configuration as the agent's own (agent.md §3.1).

use std::path::Path;

use super::super::{CommandResult, terminal};
use crate::agent::import::{Fate, Import};
use crate::error::{Exit, Failure};
use crate::files::operators::read_text;
use crate::pull::configuration::{self, Locked};

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
        configuration::preview(config, "--import", |old| import.apply(old, &|_| String::new()))?;
        return Ok(u8::from(!import.is_complete()));
    }
    if import.entries.is_empty() {
        return Err(cannot(&"no entry can be taken over").with_remedy("see the lines above"));
    }
    let mut own = Locked::take(config)?;
    let paths: Vec<_> = (1..=import.entries.len()).map(|number| own.free_path(number, "pod.json")).collect();
    let place = |index: usize| paths.get(index).map(|path| path.display().to_string()).unwrap_or_default();
    configuration::preview(config, "--import", |old| import.apply(old, &place))?;
    own.edit(|old| import.apply(old, &place))?;
    for (entry, path) in import.entries.iter().zip(&paths) {
        if let Some(template) = &entry.pod_template {
            Locked::write_beside(path, format!("{template:#}\n").as_bytes())?;
        }
    }
    own.write()?;
    terminal::say(&format!(
        "step-runner: {} entries written to {}, {lost} keys not supported; stop the GitLab Runner before you start the \
         agent, or both take jobs; check the tokens with `step-runner verify --config {}`",
        import.entries.len(),
        config.display(),
        config.display()
    ));
    if import.entries.iter().any(|entry| entry.tables.iter().any(|(table, _)| *table == "kubernetes")) {
        terminal::say(
            "step-runner: jobs in Pods need an image with this program: write its name as `program_image` into \
             `[runners.kubernetes]`",
        );
    }
    Ok(0)
}
