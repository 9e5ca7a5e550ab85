//! `step-runner doctor`.

mod host;
mod network;
mod places;

use std::fmt::Write as _;
use std::path::PathBuf;

use anstyle::AnsiColor;
use clap::ValueEnum;
use serde_json::{Value, json};

use super::states::printable;
use super::{CommandResult, Verbosity, terminal};
use crate::error::Exit;

/// Find out what works on this machine, and what to do about the rest
///
/// Looks at what jobs need: control groups, namespaces, limits, disk, socket, shell, Git, certificates, proxies, clock. It
/// changes nothing, starts no job and shows no secret. Run it as the user and in the place of the daemon. Ends with 0 if
/// nothing is broken, also with warnings; with 1 if something that jobs need does not work.
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  step-runner doctor
  step-runner doctor --state-dir /var/lib/step-runner --socket /run/step-runner.sock
  step-runner doctor --output json | jq '.checks[] | select(.state != \"ok\")'")]
pub(super) struct Arguments {
    /// Output format: text for people or one JSON object
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "pretty")]
    output: DoctorFormat,
    /// The daemon's socket [env: STEP_RUNNER_SOCKET] [default: step-runner.sock in the temporary folder]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// The daemon's state folder; default: the one that `serve` would choose
    #[arg(long, value_name = "DIR", env = "STEP_RUNNER_STATE_DIR")]
    state_dir: Option<PathBuf>,
}

/// Formats of `--output`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DoctorFormat {
    Pretty,
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum CheckState {
    Good,
    /// Jobs run, but some may miss something.
    Warning,
    /// Jobs, or some of them, fail.
    Broken,
}

impl CheckState {
    const fn word(self) -> &'static str {
        match self {
            Self::Good => "ok",
            Self::Warning => "warning",
            Self::Broken => "error",
        }
    }

    const fn color(self) -> AnsiColor {
        match self {
            Self::Good => AnsiColor::Green,
            Self::Warning => AnsiColor::Yellow,
            Self::Broken => AnsiColor::Red,
        }
    }
}

/// Result of one check.
#[derive(Debug)]
struct Finding {
    /// Name of the check, stable for programs.
    name: &'static str,
    state: CheckState,
    /// Description of what was found.
    found: String,
    /// Advice, or `None` if nothing needs doing.
    remedy: Option<String>,
}

impl Finding {
    fn good(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, state: CheckState::Good, found: found.into(), remedy: None }
    }

    fn warning(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { name, state: CheckState::Warning, found: found.into(), remedy: Some(remedy.into()) }
    }

    fn broken(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { name, state: CheckState::Broken, found: found.into(), remedy: Some(remedy.into()) }
    }
}

pub(super) fn execute(arguments: &Arguments, verbosity: Verbosity) -> CommandResult {
    let places = places::Places::of(arguments.socket.clone(), arguments.state_dir.clone());
    let mut findings = vec![
        host::kernel(),
        host::control_groups(),
        host::job_limits(),
        host::namespaces(),
        host::open_files(),
        host::processes(),
    ];
    findings.extend(places.check());
    findings.extend([host::shell(), host::git(), network::certificates(), network::proxy(), host::clock()]);
    let text = match arguments.output {
        DoctorFormat::Pretty => pretty(&findings, verbosity.quiet),
        DoctorFormat::Json => format!("{}\n", to_json(&findings)),
    };
    terminal::print(text.as_bytes())?;
    let is_broken = findings.iter().any(|finding| finding.state == CheckState::Broken);
    Ok(if is_broken { Exit::Failure.code() } else { 0 })
}

/// Shows each check on a line, and its remedy on the next. `quiet` omits checks without a problem.
fn pretty(findings: &[Finding], quiet: bool) -> String {
    let width = findings.iter().map(|finding| finding.name.len()).max().unwrap_or_default();
    let has_color = terminal::stdout_has_color();
    let mut text = String::new();
    for Finding { name, state, found, remedy } in findings {
        if quiet && *state == CheckState::Good {
            continue;
        }
        let style = if has_color { state.color().on_default().bold() } else { anstyle::Style::new() };
        let (word, name, found) = (state.word(), name.replace('_', " "), printable(found));
        // Writing to memory does not fail.
        writeln!(text, "{style}{word:<7}{style:#}  {name:<width$}  {found}").ok();
        if let Some(remedy) = remedy {
            writeln!(text, "{:9}{:width$}  try: {}", "", "", printable(remedy)).ok();
        }
    }
    text
}

fn to_json(findings: &[Finding]) -> Value {
    let checks = findings.iter().map(|finding| {
        json!({
            "name": finding.name,
            "state": finding.state.word(),
            "found": printable(&finding.found),
            "remedy": finding.remedy.as_deref().map(printable),
        })
    });
    let worst = findings.iter().map(|finding| finding.state).max().unwrap_or(CheckState::Good);
    json!({"format": 1, "state": worst.word(), "checks": checks.collect::<Vec<_>>()})
}
