//! Builds the command line of each process connector (connectors.md §4).

use std::fmt;

use super::AddressError;
use super::form::{
    self, COMMAND, DOCKER, Form, KUBE, PODMAN, Pieces, SSH, bracketed, encode_path, encode_value,
};

/// Kind of a connector: the program that reaches the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConnectorKind {
    /// `ssh`.
    Ssh,
    /// `docker exec`.
    Docker,
    /// `podman exec`.
    Podman,
    /// `kubectl exec`.
    Kube,
    /// A program of the caller's choice.
    Command,
}

/// A program whose standard streams are the connection to a daemon. Every word of its command line has been checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connector {
    kind: ConnectorKind,
    words: Vec<String>,
    /// The address, in canonical form.
    shown: String,
}

impl Connector {
    /// Returns the connector's kind.
    pub const fn kind(&self) -> ConnectorKind {
        self.kind
    }

    /// Program and arguments.
    pub fn words(&self) -> &[String] {
        &self.words
    }

    pub(super) fn command(text: &str) -> Result<Self, AddressError> {
        let words = form::words(text, "command", COMMAND)?;
        let shown = format!("cmd:{}", shell_words::join(&words));
        Ok(Self { kind: ConnectorKind::Command, words, shown })
    }

    pub(super) fn ssh(rest: &str) -> Result<Self, AddressError> {
        let pieces = Pieces::of(rest, SSH)?;
        let (user, place) = match pieces.authority.rsplit_once('@') {
            Some((user, place)) => (Some(SSH.login(user)?), place),
            None => (None, pieces.authority),
        };
        let (host, port) = SSH.host_and_port(place)?;
        let (command, socket) = (pieces.command()?, pieces.socket(true)?);
        let mut words = words(&["ssh", "-T", "-o", "BatchMode=yes"]);
        words.extend(port.iter().flat_map(|port| ["-p".to_owned(), port.to_string()]));
        words.push("--".to_owned());
        words.push(user.as_ref().map_or_else(|| host.clone(), |user| format!("{user}@{host}")));
        // The far side is a shell, so quote every word.
        words.extend(far_side(&command, socket.as_deref()).iter().map(|word| quoted(word)));
        let shown = format!(
            "ssh://{}{}{}{}{}",
            user.map(|user| user + "@").unwrap_or_default(),
            bracketed(&host),
            port.map(|port| format!(":{port}")).unwrap_or_default(),
            encode_path(socket.as_deref().unwrap_or_default()),
            form::query(&command, &[]),
        );
        Ok(Self { kind: ConnectorKind::Ssh, words, shown })
    }

    pub(super) fn container(kind: ConnectorKind, rest: &str) -> Result<Self, AddressError> {
        let (form, program): (Form, _) =
            if kind == ConnectorKind::Podman { (PODMAN, "podman") } else { (DOCKER, "docker") };
        let pieces = Pieces::of(rest, form)?;
        let container = form.name("container", pieces.authority)?;
        let (command, socket) = (pieces.command()?, pieces.socket(true)?);
        let (user, host) = (pieces.user()?, pieces.host()?);
        let mut words = words(&[program]);
        words.extend(host.iter().flat_map(|host| ["-H".to_owned(), (*host).to_owned()]));
        words.extend(["exec", "-i"].map(str::to_owned));
        words.extend(user.iter().flat_map(|user| ["--user".to_owned(), (*user).to_owned()]));
        words.push(container.clone());
        words.extend(far_side(&command, socket.as_deref()));
        let path = encode_path(socket.as_deref().unwrap_or_default());
        let query = form::query(&command, &[("host", host), ("user", user)]);
        Ok(Self { kind, words, shown: format!("{program}://{container}{path}{query}") })
    }

    pub(super) fn kube(rest: &str) -> Result<Self, AddressError> {
        let pieces = Pieces::of(rest, KUBE)?;
        let (context, namespace) = match pieces.authority.rsplit_once('@') {
            Some((context, namespace)) => (Some(KUBE.name_with("context", context, b"._:@/-")?), namespace),
            None => (None, pieces.authority),
        };
        let namespace = KUBE.name("namespace", namespace)?;
        let mut path = pieces.path.split('/').skip(1);
        let pod = KUBE.name("pod", path.next().unwrap_or_default())?;
        let container = path.next().map(|name| KUBE.name("container", name)).transpose()?;
        if path.next().is_some() {
            return Err(KUBE.malformed("path", "has a part behind the container; a socket is `?socket=`"));
        }
        let (command, socket) = (pieces.command()?, pieces.socket(false)?);
        let mut words = words(&["kubectl"]);
        words.extend(context.iter().flat_map(|context| ["--context".to_owned(), context.clone()]));
        words.extend(["-n", &namespace, "exec", "-i", &pod].map(str::to_owned));
        words.extend(container.iter().flat_map(|container| ["-c".to_owned(), container.clone()]));
        words.push("--".to_owned());
        words.extend(far_side(&command, socket.as_deref()));
        let shown = format!(
            "kube://{}{namespace}/{pod}{}{}",
            context.map(|context| encode_value(&context) + "@").unwrap_or_default(),
            container.map(|container| format!("/{container}")).unwrap_or_default(),
            form::query(&command, &[("socket", socket.as_deref())]),
        );
        Ok(Self { kind: ConnectorKind::Kube, words, shown })
    }
}

/// Shows the address. It holds nothing that is not on the connector's command line too.
impl fmt::Display for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

/// Returns the command to run beside the daemon.
fn far_side(command: &[String], socket: Option<&str>) -> Vec<String> {
    let mut words = command.to_vec();
    words.push("proxy".to_owned());
    words.extend(socket.iter().flat_map(|socket| ["--socket".to_owned(), (*socket).to_owned()]));
    words
}

/// Quotes a word for a shell. In quotes it is no alias and no assignment either.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}
