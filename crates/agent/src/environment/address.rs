//! The address of an entry: which kind of environment its jobs have.

use std::fmt;

/// Where the jobs of an entry run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// In the agent's own daemon, on this machine.
    Own,
    /// In one daemon that somebody else looks after (connectors.md §4).
    Daemon(String),
    /// Each in its own container.
    DockerRun,
    /// Each in its own Pod.
    KubeRun {
        /// Context of `kubectl`; `None`: the current one.
        context: Option<String>,
        /// Namespace.
        namespace: String,
    },
}

/// A text that is no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadAddress {
    /// `docker-run://` with something behind it.
    #[error("`docker-run://` stands alone: the engine's address is `host` in `[runners.docker]`")]
    Docker,
    /// `kube-run://` without a namespace, or with an odd one.
    #[error(
        "write `kube-run://NAMESPACE` or `kube-run://CONTEXT@NAMESPACE`, with a namespace of a-z, 0-9 and -"
    )]
    Kubernetes,
    /// An empty text, or one that looks like an option.
    #[error("the address is empty or begins with `-`: leave it out for a daemon on this machine")]
    Other,
}

/// Longest name of a namespace: a label of DNS.
const LONGEST_NAMESPACE: usize = 63;

impl Address {
    /// Reads the address of an entry.
    pub fn parse(text: Option<&str>) -> Result<Self, BadAddress> {
        let Some(text) = text.map(str::trim) else { return Ok(Self::Own) };
        if let Some(rest) = text.strip_prefix("docker-run://") {
            return if rest.is_empty() { Ok(Self::DockerRun) } else { Err(BadAddress::Docker) };
        }
        if let Some(rest) = text.strip_prefix("kube-run://") {
            let (context, namespace) = match rest.rsplit_once('@') {
                Some((context, namespace)) => (Some(context.to_owned()), namespace),
                None => (None, rest),
            };
            let is_context = context.as_ref().is_none_or(|text| {
                !text.is_empty() && !text.starts_with('-') && text.bytes().all(|byte| byte.is_ascii_graphic())
            });
            let is_namespace = !namespace.is_empty()
                && namespace.len() <= LONGEST_NAMESPACE
                && !namespace.starts_with('-')
                && !namespace.ends_with('-')
                && namespace
                    .bytes()
                    .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
            return if is_context && is_namespace {
                Ok(Self::KubeRun { context, namespace: namespace.to_owned() })
            } else {
                Err(BadAddress::Kubernetes)
            };
        }
        if text.is_empty() || text.starts_with('-') || text.contains(['\0', '\n']) {
            return Err(BadAddress::Other);
        }
        Ok(Self::Daemon(text.to_owned()))
    }

    /// True if each job has an environment of its own, so that an image can be provided.
    pub const fn is_provider(&self) -> bool {
        matches!(self, Self::DockerRun | Self::KubeRun { .. })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own => f.write_str("own daemon"),
            Self::Daemon(address) => f.write_str(address),
            Self::DockerRun => f.write_str("docker-run://"),
            Self::KubeRun { context: None, namespace } => write!(f, "kube-run://{namespace}"),
            Self::KubeRun { context: Some(context), namespace } => {
                write!(f, "kube-run://{context}@{namespace}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_address_says_where_jobs_run() {
        let kube = |context: Option<&str>| Address::KubeRun {
            context: context.map(str::to_owned),
            namespace: "ci".to_owned(),
        };
        for (text, wanted) in [
            (None, Ok(Address::Own)),
            (Some("docker-run://"), Ok(Address::DockerRun)),
            (Some("docker-run://host"), Err(BadAddress::Docker)),
            (Some("kube-run://ci"), Ok(kube(None))),
            (Some("kube-run://a@b@ci"), Ok(kube(Some("a@b")))),
            (Some("kube-run://"), Err(BadAddress::Kubernetes)),
            (Some("kube-run://@ci"), Err(BadAddress::Kubernetes)),
            (Some("kube-run://--x@ci"), Err(BadAddress::Kubernetes)),
            (Some("kube-run://-ci"), Err(BadAddress::Kubernetes)),
            (Some("kube-run://CI"), Err(BadAddress::Kubernetes)),
            (Some("ssh://user@host"), Ok(Address::Daemon("ssh://user@host".to_owned()))),
            (Some(""), Err(BadAddress::Other)),
            (Some("--help"), Err(BadAddress::Other)),
        ] {
            assert_eq!(Address::parse(text), wanted, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn an_address_is_printed_as_it_is_read(text in "(docker-run://|kube-run://|ssh://)?[a-z@-]{0,12}") {
            if let Ok(address) = Address::parse(Some(&text)) {
                prop_assert_eq!(Address::parse(Some(&address.to_string())), Ok(address));
            }
        }
    }
}
