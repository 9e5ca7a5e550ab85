//! Names of images: registry, repository and version.

use std::fmt;

use url::Url;

use super::error::{OciError, Problem};

/// Longest name of a repository.
const MAX_REPOSITORY: usize = 255;

/// Longest tag.
const MAX_TAG: usize = 128;

/// Names of the registry `docker.io`.
pub(super) const DOCKER_HUB: [&str; 3] = ["docker.io", "index.docker.io", DOCKER_HUB_HOST];

/// Host of the registry `docker.io`.
const DOCKER_HUB_HOST: &str = "registry-1.docker.io";

/// Version of an image: a tag or a digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageVersion {
    /// A name that can be moved.
    Tag(String),
    /// A digest, which always names the same content.
    Digest(String),
}

impl ImageVersion {
    /// Parses a well-formed digest whose algorithm we can check.
    pub fn digest(text: &str) -> Option<Self> {
        let (algorithm, hex) = text.split_once(':')?;
        let length = match algorithm {
            "sha256" => 64,
            "sha512" => 128,
            _ => return None,
        };
        let lower_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        (hex.len() == length && hex.bytes().all(lower_hex)).then(|| Self::Digest(text.to_owned()))
    }

    /// Returns the text that stands for it in a URL.
    pub(super) fn text(&self) -> &str {
        let (Self::Tag(text) | Self::Digest(text)) = self;
        text
    }

    /// Parses a well-formed tag.
    pub fn tag(text: &str) -> Option<Self> {
        let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        let mut bytes = text.bytes();
        let good = text.len() <= MAX_TAG
            && bytes.next().is_some_and(word)
            && bytes.all(|byte| word(byte) || matches!(byte, b'.' | b'-'));
        good.then(|| Self::Tag(text.to_owned()))
    }
}

/// Returns `text` without what people may have written as a login: messages show no credentials (language.md §7).
fn without_login(text: &str) -> &str {
    text.rsplit_once('@').map_or(text, |(_, rest)| rest)
}

/// The checked name of an image; it can be used in a URL unchanged. Displays as `registry/repository:tag` or
/// `registry/repository@digest`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageName {
    registry: String,
    repository: String,
    version: ImageVersion,
    /// True if the registry is on this machine. It is then contacted without TLS (language.md §7.4).
    loopback: bool,
}

impl ImageName {
    /// Checks a name. `registry` is `host[:port]`; `version` a tag, a digest in either case, or empty for `latest`.
    pub fn new(registry: &str, repository: &str, version: &str) -> Result<Self, OciError> {
        let wrong = |what, text: &str, remedy| {
            let shown = |text: &str| without_login(text).escape_debug().to_string();
            let problem = Problem::Name { what, text: shown(text), remedy };
            Err(OciError { image: format!("{}/{}", shown(registry), shown(repository)), problem })
        };
        let registry_lower = registry.to_ascii_lowercase();
        let Some(url) = registry_url(&registry_lower) else {
            return wrong("registry", registry, "expected host or host:port");
        };
        if !is_repository(repository) {
            return wrong(
                "repository",
                repository,
                "expected lower-case letters, digits, and . _ - / between them",
            );
        }
        let found = match version {
            "" => ImageVersion::tag("latest"),
            digest if digest.contains(':') => ImageVersion::digest(&digest.to_ascii_lowercase()),
            tag => ImageVersion::tag(tag),
        };
        let Some(found) = found else {
            return wrong(
                "tag",
                version,
                "expected letters, digits, . _ -, or sha256: with 64 hexadecimal digits",
            );
        };
        let loopback = step_runner_web::is_loopback(&url);
        Ok(Self { registry: registry_lower, repository: repository.to_owned(), version: found, loopback })
    }

    /// Returns `host[:port]` in lower case.
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// Returns the repository there.
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// Returns the tag or digest.
    pub fn version(&self) -> &ImageVersion {
        &self.version
    }

    /// Returns another version of this repository.
    #[must_use]
    pub fn with(&self, version: ImageVersion) -> Self {
        Self { version, ..self.clone() }
    }

    /// Makes the error of an action on the image that failed because of `problem`.
    pub(super) fn failed(&self, problem: Problem) -> OciError {
        OciError { image: self.to_string(), problem }
    }

    /// Returns the URL of the registry's interface.
    pub(super) fn base(&self) -> Option<Url> {
        let scheme = if self.loopback { "http" } else { "https" };
        let host = if DOCKER_HUB.contains(&self.registry()) { DOCKER_HUB_HOST } else { &self.registry };
        Url::parse(&format!("{scheme}://{host}/v2/")).ok()
    }
}

impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { registry, repository, version, .. } = self;
        match version {
            ImageVersion::Tag(tag) => write!(f, "{registry}/{repository}:{tag}"),
            ImageVersion::Digest(digest) => write!(f, "{registry}/{repository}@{digest}"),
        }
    }
}

/// Returns the registry's URL if its name is only host and port.
fn registry_url(registry: &str) -> Option<Url> {
    let plain =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b':' | b'[' | b']');
    if registry.is_empty() || !registry.bytes().all(plain) {
        return None;
    }
    let url = Url::parse(&format!("https://{registry}/")).ok()?;
    (url.host_str().is_some_and(|host| registry.starts_with(host)) && url.path() == "/").then_some(url)
}

/// True for a valid repository name, whose segments begin and end with a letter or digit.
fn is_repository(text: &str) -> bool {
    let edge = |byte: Option<&u8>| byte.is_some_and(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9'));
    let inner = |byte: &u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-');
    let good = |segment: &[u8]| {
        edge(segment.first())
            && edge(segment.last())
            && segment.iter().all(inner)
            && !segment.windows(2).any(|pair| pair == b"..")
    };
    text.len() <= MAX_REPOSITORY && text.as_bytes().split(|&byte| byte == b'/').all(good)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_images_are_checked() {
        let shown = |registry: &str, repository: &str, version: &str| {
            ImageName::new(registry, repository, version).map(|name| name.to_string()).ok()
        };
        let hex = "0123456789abcdef".repeat(4);
        assert_eq!(shown("r.example.com", "g/echo", "1").unwrap(), "r.example.com/g/echo:1");
        assert_eq!(
            shown("R.Example.com:5000", "g_a/b-c.d", "").unwrap(),
            "r.example.com:5000/g_a/b-c.d:latest"
        );
        assert_eq!(shown("[::1]:5000", "e", "v1").unwrap(), "[::1]:5000/e:v1");
        let by_digest = format!("sha256:{}", hex.to_uppercase());
        assert_eq!(shown("localhost", "e", &by_digest).unwrap(), format!("localhost/e@sha256:{hex}"));
        for (registry, repository, version) in [
            ("", "e", "1"),
            ("u:p@r.example.com", "e", "1"),
            ("r.example.com/x", "e", "1"),
            ("r.example.com:port", "e", "1"),
            ("r.example.com?x", "e", "1"),
            ("r\n.example.com", "e", "1"),
            ("r.example.com", "", "1"),
            ("r.example.com", "Echo", "1"),
            ("r.example.com", "../e", "1"),
            ("r.example.com", "a/../e", "1"),
            ("r.example.com", "a//e", "1"),
            ("r.example.com", "e?x=y", "1"),
            ("r.example.com", "e#x", "1"),
            ("r.example.com", "e%2f", "1"),
            ("r.example.com", "e", "../x"),
            ("r.example.com", "e", ".x"),
            ("r.example.com", "e", "a/b"),
            ("r.example.com", "e", "sha256:abc"),
            ("r.example.com", "e", "md5:d41d8cd98f00b204e9800998ecf8427e"),
        ] {
            assert_eq!(shown(registry, repository, version), None, "{registry} {repository} {version}");
        }
        assert_eq!(shown("r.example.com", "e", &"t".repeat(129)), None);
        assert_eq!(shown("r.example.com", &"r".repeat(256), "1"), None);
    }

    #[test]
    fn registries_on_this_machine_are_known() {
        let base = |registry| ImageName::new(registry, "e", "1").unwrap().base().unwrap().to_string();
        for registry in ["localhost", "localhost:5000", "127.0.0.1:5000", "127.9.9.9", "[::1]:81"] {
            assert_eq!(base(registry), format!("http://{registry}/v2/"));
        }
        for registry in ["localhost.example.com", "10.0.0.1:5000", "r.example.com", "[2001:db8::1]"] {
            assert_eq!(base(registry), format!("https://{registry}/v2/"));
        }
        assert_eq!(base("docker.io"), "https://registry-1.docker.io/v2/");
    }
}
