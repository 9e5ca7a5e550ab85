//! Pulls of an image: which failures are tried again, and whose fault they are (agent.md §8.4).

use std::time::Duration;

use super::rules::PullPolicy;
use crate::outcome::EnvironmentFailure;

/// Waits before the second and the third try of a pull.
pub const PULL_WAITS: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(10)];

/// A pull that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullFailure {
    /// The registry limits its clients: log in, or use a mirror.
    Limited,
    /// The registry or the network: later it may work.
    Unreachable,
    /// The image is not there, or may not be had.
    Missing,
    /// Something else.
    Other,
}

impl PullFailure {
    /// True if an older image on disk may be taken instead. A denied image never is.
    pub const fn may_use_old(self) -> bool {
        matches!(self, Self::Limited | Self::Unreachable)
    }

    /// Returns whose fault it is.
    pub const fn reason(self) -> EnvironmentFailure {
        match self {
            Self::Limited | Self::Unreachable => EnvironmentFailure::External,
            Self::Missing => EnvironmentFailure::Image,
            Self::Other => EnvironmentFailure::Pull,
        }
    }

    /// Returns what to do about it.
    pub const fn hint(self) -> &'static str {
        match self {
            Self::Limited => {
                "the registry limits pulls: log in with `DOCKER_AUTH_CONFIG` or `auth_file`, or use a mirror"
            }
            Self::Unreachable => "the registry cannot be reached now",
            Self::Missing => "check the name of the image and who may read it",
            Self::Other => "the words of the engine follow",
        }
    }
}

/// Words of engines, in lower case, by what they mean. The first row that fits counts: a refused token is often
/// followed by `not found`.
const WORDS: [(PullFailure, &[&str]); 3] = [
    (PullFailure::Limited, &["toomanyrequests", "too many requests", "429", "rate limit"]),
    (
        PullFailure::Missing,
        &[
            "manifest unknown",
            "not found",
            "access denied",
            "denied:",
            "unauthorized",
            "authentication required",
            "invalid reference",
            "repository does not exist",
            "no matching manifest",
            "403 forbidden",
        ],
    ),
    (
        PullFailure::Unreachable,
        &[
            "no such host",
            "connection refused",
            "connection reset",
            "i/o timeout",
            "timeout",
            "timed out",
            "network is unreachable",
            "temporary failure",
            "server misbehaving",
            "eof",
            "500 internal",
            "502 bad",
            "503 service",
            "504 gateway",
        ],
    ),
];

/// Reads the words of an engine or a cluster about a pull that failed.
pub fn pull_failure(words: &str) -> PullFailure {
    let words = words.to_ascii_lowercase();
    // An unknown host is no missing image, although it is "not found", too.
    if words.contains("no such host") || words.contains("lookup ") {
        return PullFailure::Unreachable;
    }
    let fits = |(_, all): &&(PullFailure, &[&str])| all.iter().any(|word| words.contains(word));
    WORDS.iter().find(fits).map_or(PullFailure::Other, |(failure, _)| *failure)
}

/// The pulls of one image: three tries of a policy, and the next policy only if the registry cannot be reached.
#[derive(Clone, Debug)]
pub struct Pulls {
    policies: Vec<PullPolicy>,
    policy: usize,
    tries: usize,
}

impl Pulls {
    /// Begins with the first of some policies.
    pub const fn new(policies: Vec<PullPolicy>) -> Self {
        Self { policies, policy: 0, tries: 0 }
    }

    /// Returns the policy to go by.
    pub fn policy(&self) -> PullPolicy {
        self.policies.get(self.policy).copied().unwrap_or(PullPolicy::Always)
    }

    /// Takes a failure. Returns the wait before the next try; `None`: it has failed.
    pub fn failed(&mut self, failure: PullFailure) -> Option<Duration> {
        let wait = PULL_WAITS.get(self.tries).copied();
        self.tries += 1;
        if failure == PullFailure::Missing {
            return None;
        }
        if wait.is_some() {
            return wait;
        }
        if !failure.may_use_old() || self.policy + 1 >= self.policies.len() {
            return None;
        }
        (self.policy, self.tries) = (self.policy + 1, 0);
        Some(Duration::ZERO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a29_the_words_of_an_engine_have_a_reason() {
        for (words, wanted) in [
            ("toomanyrequests: You have reached your pull rate limit.", PullFailure::Limited),
            ("received unexpected HTTP status: 503 Service Unavailable", PullFailure::Unreachable),
            ("dial tcp: lookup registry.test: no such host", PullFailure::Unreachable),
            (
                "Get \"https://r.test/v2/\": dial tcp 127.0.0.1:443: connect: connection refused",
                PullFailure::Unreachable,
            ),
            ("net/http: TLS handshake timeout", PullFailure::Unreachable),
            ("manifest for alpine:nosuch not found: manifest unknown", PullFailure::Missing),
            (
                "pull access denied for x, repository does not exist or may require 'docker login'",
                PullFailure::Missing,
            ),
            ("unauthorized: authentication required", PullFailure::Missing),
            ("failed to register layer: no space left on device", PullFailure::Other),
            ("", PullFailure::Other),
        ] {
            assert_eq!(pull_failure(words), wanted, "{words}");
        }
    }

    #[test]
    fn a29_a_denied_image_is_never_taken_from_disk() {
        let policies = vec![PullPolicy::Always, PullPolicy::IfNotPresent];
        let mut pulls = Pulls::new(policies.clone());
        let waits: Vec<_> =
            (0..3).map(|_| pulls.failed(PullFailure::Unreachable).map(|wait| wait.as_secs())).collect();
        assert_eq!(waits, [Some(2), Some(10), Some(0)]);
        assert_eq!(pulls.policy(), PullPolicy::IfNotPresent);
        assert_eq!(Pulls::new(policies.clone()).failed(PullFailure::Missing), None);
        let mut other = Pulls::new(policies);
        let waits: Vec<_> = (0..3).map(|_| other.failed(PullFailure::Other)).collect();
        assert_eq!(waits[2], None, "only the network is a reason for another policy");
        let mut last = Pulls::new(vec![PullPolicy::Always]);
        assert_eq!((0..3).filter_map(|_| last.failed(PullFailure::Limited)).count(), 2);
    }
}
