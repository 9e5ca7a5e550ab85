//! Describes what a step asks for: its location, credentials and network (language.md §7.7). Blocks to read one file,
//! the user's `.netrc`.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use url::Url;

use super::cache::{CacheKey, Kind};
use super::order::{Order, Source};
use step_runner_core::job::event::FetchFailure;
use step_runner_lang::ast::{Reference, Template};
use step_runner_lang::diagnostic::Class;
use step_runner_lang::reference;
use step_runner_model::error::Chain;
use step_runner_web::Network;

/// Largest `.netrc` that is read, in bytes. Usual ones have a few lines.
const MAX_NETRC: u64 = 64 << 10;

/// Variables with a CI job's credentials for its own server. They are used for no other host.
const OF_SERVER: [&str; 2] = ["CI_SERVER_HOST", "CI_JOB_TOKEN"];

/// A Git or OCI reference with all that is needed to fetch it. Holds credentials, so there is no `Debug`.
pub(super) struct Wanted {
    source: Source,
    network: Network,
    credentials: BTreeMap<String, String>,
    /// Part of the tree's key besides the version: the address without user, password, query and fragment.
    location: String,
    /// Location for messages, without credentials.
    pub(super) origin: String,
    /// Folder in the tree.
    pub(super) dir: String,
    /// Names of files to try, in order.
    pub(super) files: Vec<String>,
}

/// The environment variables of a step.
#[derive(Clone, Copy)]
pub(super) struct Environment<'a>(pub(super) &'a [(Vec<u8>, Vec<u8>)]);

impl<'a> Environment<'a> {
    fn bytes(self, name: &str) -> Option<&'a [u8]> {
        self.0.iter().find(|(key, _)| key == name.as_bytes()).map(|(_, value)| value.as_slice())
    }

    /// Returns the value of a variable; `None` if it is empty or not UTF-8.
    fn text(self, name: &str) -> Option<String> {
        let value = std::str::from_utf8(self.bytes(name)?).ok()?;
        (!value.is_empty()).then(|| value.to_owned())
    }

    fn path(self, name: &str) -> Option<PathBuf> {
        self.bytes(name).filter(|path| !path.is_empty()).map(|path| PathBuf::from(OsStr::from_bytes(path)))
    }
}

impl Wanted {
    /// Reads what the Git or OCI `reference`, which must be evaluated, asks for in `environment`. `daemon` has the
    /// daemon's own network settings.
    pub(super) fn new(
        reference: &Reference,
        environment: Environment<'_>,
        daemon: &BTreeMap<String, String>,
    ) -> Result<Self, FetchFailure> {
        let network = Network::new(|name| environment.text(name), |name| daemon.get(name).cloned());
        let origin = reference::origin(reference).ok_or_else(unevaluated)?;
        match reference {
            Reference::Git { url, rev, dir, files } => {
                let url = text(url)?;
                let location = git_location(&url)?;
                let source = Source::Git { url, revision: text(rev)? };
                let credentials = git_credentials(environment);
                let (dir, files) = (text(dir)?, texts(files)?);
                Ok(Self { source, network, credentials, location, origin, dir, files })
            }
            Reference::Oci { registry, repository, tag, dir, files } => {
                let (registry, repository) = (text(registry)?, text(repository)?);
                let location = format!("{}/{repository}", registry.to_lowercase());
                let source = Source::Oci { registry, repository, version: text(tag)? };
                let credentials = named(environment, &["DOCKER_AUTH_CONFIG"]);
                let (dir, files) = (text(dir)?, texts(files)?);
                Ok(Self { source, network, credentials, location, origin, dir, files })
            }
            _ => Err(unevaluated()),
        }
    }

    pub(super) fn order(&self, scratch: PathBuf) -> Order {
        let Self { source, network, credentials, .. } = self;
        Order { source: source.clone(), network: network.clone(), credentials: credentials.clone(), scratch }
    }

    /// Returns the host and port of the remote.
    pub(super) fn host(&self) -> &str {
        let address = self.location.split_once("://").map_or(self.location.as_str(), |(_, rest)| rest);
        address.split_once('/').map_or(address, |(host, _)| host)
    }

    /// Returns the cache key of the tree of `version`.
    pub(super) fn key(&self, version: &str) -> CacheKey {
        let kind = match self.source {
            Source::Git { .. } => Kind::Git,
            Source::Oci { .. } => Kind::Oci,
        };
        // Neither a location nor a version holds a zero byte.
        let digest = Sha256::new().chain_update(&self.location).chain_update([0]).chain_update(version);
        CacheKey { kind, digest: digest.finalize().into() }
    }

    /// True if the reference itself fixes the version, so that it means `resolved` at any time.
    pub(super) fn is_pinned(&self, resolved: &str) -> bool {
        match &self.source {
            Source::Git { revision, .. } => {
                is_commit_hash(revision) && revision.eq_ignore_ascii_case(resolved)
            }
            Source::Oci { version, .. } => version.starts_with("sha256:"),
        }
    }

    /// True if a remote's answer has the form of a version.
    pub(super) fn is_version(&self, text: &str) -> bool {
        match self.source {
            Source::Git { .. } => is_commit_hash(text),
            Source::Oci { .. } => {
                text.strip_prefix("sha256:").is_some_and(|hex| hex.len() == 64 && is_hex(hex))
            }
        }
    }

    /// Returns a digest of all that decides the remote's answer: source, credentials, network.
    pub(super) fn proof(&self, key: &[u8; 32]) -> Option<[u8; 32]> {
        let Self { source, network, credentials, .. } = self;
        let all = serde_json::to_vec(&(source, network, credentials)).ok()?;
        Some(Sha256::new().chain_update(key).chain_update(all).finalize().into())
    }
}

fn is_commit_hash(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && is_hex(text)
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn unevaluated() -> FetchFailure {
    FetchFailure { class: Class::Fetch, message: "the reference was not evaluated".to_owned() }
}

fn text(template: &Template) -> Result<String, FetchFailure> {
    template.as_literal().map(str::to_owned).ok_or_else(unevaluated)
}

fn texts(templates: &[Template]) -> Result<Vec<String>, FetchFailure> {
    templates.iter().map(text).collect()
}

/// Returns scheme, lower-cased host, port and path. The URL may hold a password, so no error quotes it.
fn git_location(url: &str) -> Result<String, FetchFailure> {
    let schema = |message: &str| FetchFailure { class: Class::Schema, message: message.to_owned() };
    let url = Url::parse(url)
        .map_err(|_| schema("the address of the repository is no URL: expected https://HOST/PATH, with \"/\", \"?\" and \"#\" of a password as %2F, %3F and %23"))?;
    let host = url.host_str().filter(|_| matches!(url.scheme(), "http" | "https"));
    let host = host.ok_or_else(|| schema("the address of the repository must be https://HOST/PATH"))?;
    let port = url.port_or_known_default().unwrap_or_default();
    Ok(format!("{}://{}:{port}{}", url.scheme(), host.to_lowercase(), url.path()))
}

fn named(environment: Environment<'_>, names: &[&str]) -> BTreeMap<String, String> {
    names.iter().filter_map(|name| Some(((*name).to_owned(), environment.text(name)?))).collect()
}

fn git_credentials(environment: Environment<'_>) -> BTreeMap<String, String> {
    let mut credentials = named(environment, &OF_SERVER);
    if credentials.len() < OF_SERVER.len() {
        credentials.clear();
    }
    let path = environment
        .path("NETRC")
        .or_else(|| environment.path("HOME").map(|home| home.join(".netrc")))
        .filter(|path| path.is_absolute());
    if let Some(netrc) = path.and_then(|path| read_netrc(&path)) {
        credentials.insert("netrc".to_owned(), netrc);
    }
    credentials
}

/// Reads the file. An unreadable one counts as missing, as for other programs that use it.
fn read_netrc(path: &Path) -> Option<String> {
    let read = || -> io::Result<String> {
        let file = File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC).open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let mut text = String::new();
        file.take(MAX_NETRC + 1).read_to_string(&mut text)?;
        if text.len() as u64 > MAX_NETRC {
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                format!("larger than {MAX_NETRC} bytes"),
            ));
        }
        Ok(text)
    };
    match read() {
        Ok(text) => Some(text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => {
            tracing::warn!(error = %Chain(&error), "a .netrc is not used");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use step_runner_lang::diagnostic::Position;

    const HASH: &str = "0123456789abcdef0123456789abcdef01234567";

    fn git(url: &str, rev: &str) -> Reference {
        let file: Arc<str> = "f".into();
        let text = |text: &str| Template::literal(text, &file, Position::START);
        Reference::Git { url: text(url), rev: text(rev), dir: text(""), files: vec![text("func.yml")] }
    }

    fn oci(registry: &str, tag: &str) -> Reference {
        let file: Arc<str> = "f".into();
        let text = |text: &str| Template::literal(text, &file, Position::START);
        let (registry, repository) = (text(registry), text("g/p"));
        Reference::Oci { registry, repository, tag: text(tag), dir: text(""), files: vec![text("func.yml")] }
    }

    fn environment(values: &[(&str, &str)]) -> Vec<(Vec<u8>, Vec<u8>)> {
        values.iter().map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec())).collect()
    }

    fn wanted(reference: &Reference, values: &[(&str, &str)]) -> Wanted {
        Wanted::new(reference, Environment(&environment(values)), &BTreeMap::new()).ok().unwrap()
    }

    #[test]
    fn one_repository_and_commit_have_one_key_whoever_asks() {
        let key = |url: &str| wanted(&git(url, "v1"), &[]).key(HASH);
        let one = key("https://Example.COM/g/p.git");
        for same in ["https://u:p@example.com/g/p.git", "https://example.com:443/g/p.git?a=b#c"] {
            assert!(key(same) == one, "{same}");
        }
        for other in
            ["https://example.com/g/p", "https://example.com:8443/g/p.git", "http://example.com/g/p.git"]
        {
            assert!(key(other) != one, "{other}");
        }
        assert!(wanted(&git("https://Example.COM/g/p.git", "v1"), &[]).key(&HASH.replace('0', "f")) != one);
    }

    #[test]
    fn the_host_is_told_without_credentials() {
        for url in ["https://u:p@Example.COM/g/p.git", "https://example.com:443"] {
            assert_eq!(wanted(&git(url, "v1"), &[]).host(), "example.com:443");
        }
        assert_eq!(wanted(&oci("H:5000", "1"), &[]).host(), "h:5000");
    }

    #[test]
    fn only_a_full_hash_or_a_digest_pins() {
        let digest = format!("sha256:{}", "a".repeat(64));
        assert!(wanted(&git("https://h/p", HASH), &[]).is_pinned(HASH));
        assert!(wanted(&git("https://h/p", &HASH.to_uppercase()), &[]).is_pinned(HASH));
        assert!(!wanted(&git("https://h/p", "v1"), &[]).is_pinned(HASH));
        // A tag can look like a commit hash.
        assert!(!wanted(&git("https://h/p", &"f".repeat(40)), &[]).is_pinned(HASH));
        assert!(wanted(&oci("h", &digest), &[]).is_pinned("sha256:another"));
        assert!(!wanted(&oci("h", "1"), &[]).is_pinned(&digest));
    }

    #[test]
    fn other_credentials_or_another_network_are_another_proof() {
        let proof =
            |reference: &Reference, values: &[(&str, &str)]| wanted(reference, values).proof(&[7; 32]);
        let (git, oci) = (git("https://h/p", HASH), oci("h", "1"));
        let plain = proof(&git, &[]);
        assert!(plain.is_some() && plain == proof(&git, &[("X", "y")]));
        assert_ne!(plain, wanted(&git, &[]).proof(&[8; 32]));
        for values in
            [&[("CI_SERVER_HOST", "h"), ("CI_JOB_TOKEN", "t")][..], &[("HTTPS_PROXY", "http://p:1")]]
        {
            assert_ne!(plain, proof(&git, values));
        }
        assert_ne!(proof(&oci, &[]), proof(&oci, &[("DOCKER_AUTH_CONFIG", "{}")]));
    }

    #[test]
    fn credentials_come_from_the_environment_and_its_netrc() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join(".netrc"), "machine h").unwrap();
        let path = home.path().to_str().unwrap();
        let git = git("https://h/p", "v1");
        let of = |values: &[(&str, &str)]| wanted(&git, values).credentials;
        assert_eq!(of(&[("HOME", path)]).get("netrc").unwrap(), "machine h");
        let other = home.path().join("other");
        std::fs::write(&other, "machine o").unwrap();
        let other = other.to_str().unwrap();
        assert_eq!(of(&[("HOME", path), ("NETRC", other)]).get("netrc").unwrap(), "machine o");
        std::fs::write(home.path().join("large"), vec![b' '; MAX_NETRC as usize + 1]).unwrap();
        assert!(of(&[("NETRC", &format!("{path}/large"))]).is_empty());
        assert!(of(&[("NETRC", path)]).is_empty(), "a folder is none");
        // A token without its server is sent nowhere, and no credential of another kind goes along.
        assert!(of(&[("CI_JOB_TOKEN", "t"), ("DOCKER_AUTH_CONFIG", "{}")]).is_empty());
        assert_eq!(of(&[("CI_JOB_TOKEN", "t"), ("CI_SERVER_HOST", "h")]).len(), 2);
    }

    #[test]
    fn a_bad_address_is_refused_without_quoting_it() {
        for url in ["https://u:p/w@h/p", "ssh://u:p@h/p", "https://u:p@", "no url p"] {
            let empty = Environment(&[]);
            let failure = Wanted::new(&git(url, "v1"), empty, &BTreeMap::new()).err().unwrap();
            assert_eq!(failure.class, Class::Schema, "{url}");
            assert!(!failure.message.contains("u:p"), "{}", failure.message);
        }
    }
}
