//! Diagnoses connectors that do not reach a daemon (connectors.md §5). Pure: maps observations to a meaning.

use step_runner_model::ExitStatus;

use super::ConnectorKind;

/// Maximum number of bytes shown of a reply that is not HTTP/2 (connectors.md §4).
pub(super) const SHOWN: usize = 200;

/// Most lines of standard error in a message, and most characters of them.
const LAST_LINES: usize = 5;
const LONGEST: usize = 1000;

/// Messages of an engine about a missing container.
const ENGINE_GONE: [&str; 2] = ["no such container", "no container with"];

/// Messages of an engine about a stopped container, which may be started again.
const ENGINE_STOPPED: [&str; 3] =
    ["is not running", "container state improper", "in namespace \"moby\": not found"];

/// Remedy if the answer on a socket is not from a daemon.
const OTHER_PROGRAM: &str =
    "another program listens on this socket: name the daemon's with --socket or --address";

/// Observations of a failed connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen<'a> {
    /// Kind of the connector; `None` for a socket.
    pub(super) kind: Option<ConnectorKind>,
    /// Exit status of the program, if it has ended.
    pub(super) end: Option<ExitStatus>,
    /// End of the program's standard error.
    pub(super) stderr: &'a [u8],
    /// Received bytes that are not HTTP/2.
    pub(super) stdout: &'a [u8],
    /// True if nothing came in time.
    pub(super) silent: bool,
}

/// Reason why a connector does not reach the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub(crate) enum Meaning {
    /// The host refuses or does not answer, or takes no more sessions.
    Network,
    /// The name of the host is unknown.
    UnknownHost,
    /// The login, or the access, is refused.
    Denied,
    /// There is no `step-runner` on the far side.
    NoProgram,
    /// The container or pod does not exist, or will not run again.
    Gone,
    /// The container does not run, but may be started again.
    Stopped,
    /// The container engine or the API server does not answer.
    Engine,
    /// The far side exists, but no daemon listens there.
    NoDaemon,
    /// The socket there must not be used.
    BadSocket,
    /// The connector does not understand its command line.
    Usage,
    /// The connection ended or broke.
    Lost,
    /// Nothing came in time.
    Silent,
    /// The received bytes are not HTTP/2.
    Foreign,
}

/// Limit on repeating an attempt after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeats {
    Never,
    /// For a short time, and only if a connection worked before, because the far side may be restarting.
    Briefly,
    Twice,
    UntilTheLimit,
}

impl Meaning {
    pub(super) const fn repeats(self) -> Repeats {
        match self {
            Self::Network | Self::Engine | Self::NoDaemon | Self::Lost => Repeats::UntilTheLimit,
            Self::Silent => Repeats::Twice,
            // An API server that has just started forbids everything until it has read its rules.
            Self::Denied | Self::Stopped | Self::UnknownHost => Repeats::Briefly,
            Self::NoProgram | Self::Gone | Self::BadSocket | Self::Usage | Self::Foreign => Repeats::Never,
        }
    }

    const fn text(self) -> &'static str {
        match self {
            Self::Network => "the host does not answer, or takes no more sessions",
            Self::UnknownHost => "the host is unknown",
            Self::Denied => "access is refused",
            Self::NoProgram => "there is no such program on the far side",
            Self::Gone => "the container or pod is not there, or has ended for good",
            Self::Stopped => "the container does not run",
            Self::Engine => "the container engine or API server does not answer",
            Self::NoDaemon => "no daemon listens there yet",
            Self::BadSocket => "the daemon's socket cannot be used",
            Self::Usage => "it rejected its command line",
            Self::Lost => "the connection ended before the daemon answered",
            Self::Silent => "no answer came in time",
            Self::Foreign => "the answer is not from a step-runner daemon",
        }
    }

    /// Returns advice for the user of a connector.
    const fn remedy(self) -> Option<&'static str> {
        match self {
            Self::Denied => {
                Some("check user, key and known host, or the rights, by running the connector by hand")
            }
            Self::NoProgram => Some(
                "bring it there with `step-runner bootstrap DIR`, or say where it is with `?command=PATH` in the address",
            ),
            Self::Gone | Self::Stopped => Some("start it, or name another in the address"),
            Self::NoDaemon => {
                Some("start one there with `step-runner serve`, or name its socket in the address")
            }
            Self::Foreign => Some(
                "let the proxy alone write to standard output: login profiles and wrappers must print nothing there",
            ),
            Self::Silent => {
                Some("check whether the daemon, its container or its machine is stopped or frozen")
            }
            Self::UnknownHost => Some("correct the host in the address"),
            Self::Usage => Some("correct the address, or run the connector by hand to see what it rejects"),
            Self::Network | Self::Engine | Self::BadSocket | Self::Lost => None,
        }
    }
}

/// The diagnosis of a failed connection: the observations in words, then the connector's last lines.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Diagnosis {
    meaning: Meaning,
    /// True if no program of a connector is involved.
    is_socket: bool,
    text: String,
}

impl Diagnosis {
    /// Meaning of the failure.
    pub(crate) const fn meaning(&self) -> Meaning {
        self.meaning
    }

    /// Returns advice for the user.
    pub(crate) const fn remedy(&self) -> Option<&'static str> {
        match self.meaning {
            Meaning::Foreign if self.is_socket => Some(OTHER_PROGRAM),
            meaning => meaning.remedy(),
        }
    }

    /// Diagnoses the program or socket `name`.
    pub(super) fn of(name: &str, seen: &Seen<'_>) -> Self {
        let meaning = meaning(seen);
        let mut text = match seen.end {
            Some(end) => format!("`{name}` ended with {end}: {}", meaning.text()),
            None => format!("`{name}`: {}", meaning.text()),
        };
        if !seen.stdout.is_empty() {
            let shown = seen.stdout.get(..SHOWN).unwrap_or(seen.stdout);
            text = format!("{text}; the output was \"{}\"", shown.escape_ascii());
        }
        text.push_str(&last_lines(seen.stderr));
        Self { meaning, is_socket: seen.kind.is_none(), text }
    }
}

/// Formats the last lines of standard error as `: LINE | LINE`, printable; empty if there are none.
pub(super) fn last_lines(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let last = lines.get(lines.len().saturating_sub(LAST_LINES)..).unwrap_or_default();
    if last.is_empty() {
        return String::new();
    }
    let printable = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    let text: String = last.join(" | ").chars().take(LONGEST).map(printable).collect();
    format!(": {text}")
}

/// Applies the table of connectors.md §5.
fn meaning(seen: &Seen<'_>) -> Meaning {
    if seen.silent {
        return Meaning::Silent;
    }
    // Container runtimes write their errors to standard output.
    let said =
        [seen.stderr, seen.stdout].map(|bytes| String::from_utf8_lossy(bytes).to_lowercase()).join("\n");
    let code = match seen.end {
        Some(ExitStatus::Code(code)) => Some(code),
        _ => None,
    };
    if let Some(meaning) = of_proxy(&said) {
        return meaning;
    }
    if let Some(meaning) = of_runtime(&said) {
        return meaning;
    }
    if matches!(seen.kind, Some(ConnectorKind::Docker | ConnectorKind::Podman))
        && let Some(meaning) = of_container(&said)
    {
        return meaning;
    }
    if matches!(code, Some(126 | 127)) {
        // Docker exits with 126 whatever kept it from starting the program. Its standard output says what.
        let told = seen.kind == Some(ConnectorKind::Docker) && code == Some(126) && !seen.stdout.is_empty();
        return if told { of_engine(&said).unwrap_or(Meaning::Lost) } else { Meaning::NoProgram };
    }
    let of_kind = match seen.kind {
        Some(ConnectorKind::Ssh) if code == Some(255) => Some(of_ssh(&said)),
        Some(ConnectorKind::Docker | ConnectorKind::Podman) => of_engine(&said),
        Some(ConnectorKind::Kube) => of_kubectl(&said),
        _ => None,
    };
    match of_kind {
        Some(meaning) => meaning,
        None if !seen.stdout.is_empty() => Meaning::Foreign,
        None if matches!(code, Some(2 | 125)) => Meaning::Usage,
        None => Meaning::Lost,
    }
}

/// Interprets the message of a proxy that found no daemon (connectors.md §2.2).
fn of_proxy(said: &str) -> Option<Meaning> {
    let (_, reason) = said.split_once("step-runner proxy: connect")?;
    let line = reason.lines().next().unwrap_or_default();
    let refused =
        ["permission denied", "belongs to user", "bytes long", "cannot find out who", "is not a socket"];
    Some(if has(line, &refused) { Meaning::BadSocket } else { Meaning::NoDaemon })
}

/// Interprets a container runtime's message that it could not start the program, whoever passes it on. The message may
/// be cut at [`SHOWN`], so we look only for parts that come before the program's path.
fn of_runtime(said: &str) -> Option<Meaning> {
    let stopped =
        ["cannot exec in a stopped", "cannot exec in a deleted", "cannot exec a container that has"];
    let refused = ["oci runtime exec failed", "unable to start container process"];
    // Only these are about the program. In a container that is just ending, other files are missing too.
    let program = ["exec: ", "exec /", "exec format error", "executable"];
    // The container has ended. The runtime knows it, its engine not yet.
    if has(said, &stopped) {
        Some(Meaning::Stopped)
    } else if said.contains("executable file") && said.contains("not found") {
        Some(Meaning::NoProgram)
    } else if has(said, &refused) {
        Some(if has(said, &program) { Meaning::NoProgram } else { Meaning::Lost })
    } else {
        None
    }
}

fn of_ssh(said: &str) -> Meaning {
    let denied = [
        "permission denied",
        "host key verification failed",
        "too many authentication failures",
        "no supported authentication methods",
    ];
    if has(said, &denied) {
        Meaning::Denied
    } else if said.contains("could not resolve hostname") && !said.contains("temporary failure") {
        Meaning::UnknownHost
    } else if has(said, &["usage: ssh", "bad configuration option", "bad port"]) {
        Meaning::Usage
    } else {
        Meaning::Network
    }
}

/// Interprets an engine's message about the container, whatever the exit code.
fn of_container(said: &str) -> Option<Meaning> {
    if has(said, &ENGINE_GONE) {
        Some(Meaning::Gone)
    } else {
        has(said, &ENGINE_STOPPED).then_some(Meaning::Stopped)
    }
}

fn of_engine(said: &str) -> Option<Meaning> {
    let absent =
        ["cannot connect to", "unable to connect", "error during connect", "connection refused", "is paused"];
    if let Some(meaning) = of_container(said) {
        Some(meaning)
    } else if said.contains("permission denied") {
        Some(Meaning::Denied)
    } else {
        has(said, &absent).then_some(Meaning::Engine)
    }
}

fn of_kubectl(said: &str) -> Option<Meaning> {
    // "pod does not exist" is not among them: a kubelet that has just started knows none of its pods yet. If the pod
    // was deleted, the API server says so at the next attempt.
    let gone = ["(notfound)", "completed pod", "is not valid for pod"];
    // The kubelet may start the container again.
    let stopped = [
        "container not found",
        "container is in container_exited state",
        "no running task found",
        "container is not created or running",
    ];
    let denied = ["(forbidden)", "(unauthorized)", "must be logged in"];
    let absent = [
        "unable to connect",
        "was refused",
        "connection refused",
        "i/o timeout",
        "handshake timeout",
        "(serviceunavailable)",
        "(toomanyrequests)",
        "(timeout)",
    ];
    if has(said, &gone) {
        Some(Meaning::Gone)
    } else if has(said, &stopped) {
        Some(Meaning::Stopped)
    } else if has(said, &denied) {
        Some(Meaning::Denied)
    } else if said.contains("context") && has(said, &["does not exist", "no context exists"]) {
        Some(Meaning::Usage)
    } else {
        has(said, &absent).then_some(Meaning::Engine)
    }
}

fn has(text: &str, any: &[&str]) -> bool {
    any.iter().any(|part| text.contains(part))
}

#[cfg(test)]
mod tests;
