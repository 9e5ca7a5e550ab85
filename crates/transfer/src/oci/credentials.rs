//! Finds credentials for a registry in a Docker configuration (language.md §7.7). Never starts a helper program.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::general_purpose::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use http::HeaderValue;
use serde::Deserialize;

use super::error::Problem;
use super::name::{DOCKER_HUB, ImageName};

/// Variable of the step's environment with credentials: the JSON text of a Docker configuration file.
pub const DOCKER_AUTH_CONFIG: &str = "DOCKER_AUTH_CONFIG";

/// Credentials for a repository. They are secrets, so `Debug` is for tests alone.
#[cfg_attr(test, derive(Debug))]
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Credentials {
    /// None.
    Anonymous,
    /// A user and a password.
    Login {
        /// The user.
        user: String,
        /// The password.
        password: String,
    },
    /// A token that the registry itself accepts.
    Token(String),
}

impl Credentials {
    pub(super) const fn is_some(&self) -> bool {
        !matches!(self, Self::Anonymous)
    }

    /// Returns the value of `Authorization` for user and password, marked as secret.
    pub(super) fn basic(&self) -> Result<Option<HeaderValue>, Problem> {
        let Self::Login { user, password } = self else { return Ok(None) };
        let mut value =
            HeaderValue::try_from(format!("Basic {}", STANDARD.encode(format!("{user}:{password}"))))
                .map_err(|_| Problem::Credentials("user and password cannot be sent".into()))?;
        value.set_sensitive(true);
        Ok(Some(value))
    }
}

/// The part of a Docker configuration that is read. Tools write `null` for what is empty.
#[derive(Deserialize)]
struct Config {
    auths: Option<BTreeMap<String, Option<Entry>>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Entry {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
    identitytoken: Option<String>,
    registrytoken: Option<String>,
}

/// Finds the credentials for a repository: those of `registry/repository`, else of the nearest parent path that has
/// some, else of `registry`, else none.
pub(super) fn find(config: &str, name: &ImageName) -> Result<Credentials, Problem> {
    if config.trim().is_empty() {
        return Ok(Credentials::Anonymous);
    }
    // Drop the parser's reason: it may quote a secret.
    let config: Option<Config> = serde_json::from_str(config).map_err(|error| {
        Problem::Credentials(format!(
            "it is no Docker configuration with \"auths\" (line {}, column {})",
            error.line(),
            error.column()
        ))
    })?;
    let auths = config.and_then(|config| config.auths).unwrap_or_default();
    let mut registries = vec![name.registry()];
    if DOCKER_HUB.contains(&name.registry()) {
        registries.extend(DOCKER_HUB);
    }
    let full = format!("/{}", name.repository());
    let paths = std::iter::successors(Some(full.as_str()), |path| Some(path.rsplit_once('/')?.0));
    for path in paths {
        for registry in &registries {
            let wanted = format!("{registry}{path}");
            for (key, entry) in auths.iter().filter(|(key, _)| normal(key) == wanted) {
                let found = entry.as_ref().map_or(Ok(Credentials::Anonymous), Entry::credentials);
                let found = found.map_err(|why| {
                    Problem::Credentials(format!("its entry \"{}\" {why}", key.escape_debug()))
                })?;
                // An empty entry: the credentials for this registry are with a helper program.
                if found.is_some() {
                    return Ok(found);
                }
            }
        }
    }
    Ok(Credentials::Anonymous)
}

/// Normalises a key for comparison: `https://registry/v1/` is an old way to write `registry`.
fn normal(key: &str) -> String {
    let key = key.strip_prefix("https://").or_else(|| key.strip_prefix("http://")).unwrap_or(key);
    let key = key.trim_end_matches('/');
    let key = key.strip_suffix("/v1").or_else(|| key.strip_suffix("/v2")).unwrap_or(key);
    let (host, path) = key.split_once('/').map_or((key, None), |(host, path)| (host, Some(path)));
    let host = host.to_ascii_lowercase();
    path.map_or_else(|| host.clone(), |path| format!("{host}/{path}"))
}

impl Entry {
    fn credentials(&self) -> Result<Credentials, &'static str> {
        let given = |field: &Option<String>| field.clone().filter(|text| !text.is_empty());
        if let Some(auth) = given(&self.auth) {
            return login(&auth);
        }
        if let Some(user) = given(&self.username) {
            return Ok(Credentials::Login { user, password: self.password.clone().unwrap_or_default() });
        }
        if let Some(token) = given(&self.registrytoken) {
            return Ok(Credentials::Token(token));
        }
        if given(&self.identitytoken).is_some() {
            return Err("holds an identity token, which is not supported: use a user and a password");
        }
        Ok(Credentials::Anonymous)
    }
}

fn login(auth: &str) -> Result<Credentials, &'static str> {
    const LENIENT: GeneralPurpose = GeneralPurpose::new(
        &alphabet::STANDARD,
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
    );
    let wrong = "has an \"auth\" that is not the base64 form of user:password";
    let bytes = LENIENT.decode(auth.trim()).map_err(|_| wrong)?;
    let text = String::from_utf8(bytes).map_err(|_| wrong)?;
    let (user, password) = text.trim_end_matches('\0').split_once(':').ok_or(wrong)?;
    Ok(Credentials::Login { user: user.to_owned(), password: password.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found_for(config: &str, registry: &str, repository: &str) -> Result<Credentials, String> {
        let name = ImageName::new(registry, repository, "1").unwrap();
        find(config, &name).map_err(|problem| problem.to_string())
    }

    fn found(config: &str, registry: &str) -> Result<Credentials, String> {
        found_for(config, registry, "g/echo")
    }

    fn user(name: &str) -> Credentials {
        Credentials::Login { user: name.into(), password: "pw".into() }
    }

    #[test]
    fn the_repository_counts_before_its_registry() {
        // "YTpwdw==" is a:pw, "Yjpwdw==" is b:pw.
        let config = r#"{"auths": {"r.example.com": {"auth": "YTpwdw=="}, "r.example.com/g/echo": {"auth": "Yjpwdw"},
            "r.example.com/g": {"username": "c", "password": "pw"}, "other": {}}, "credsStore": "x"}"#;
        assert_eq!(found(config, "r.example.com"), Ok(user("b")));
        assert_eq!(found(config, "other"), Ok(Credentials::Anonymous));
        assert_eq!(found(config, "r.example.com:444"), Ok(Credentials::Anonymous));
    }

    #[test]
    fn bug_oci_credentials_of_a_group() {
        let entry = |user: &str| format!(r#"{{"username": "{user}", "password": "pw"}}"#);
        let config = format!(
            r#"{{"auths": {{"r.example.com": {}, "r.example.com/a": {}, "https://r.example.com/a/b/c": {},
                "r.example.com/a/b": {{}}, "r.example.com/te": {}}}}}"#,
            entry("registry"),
            entry("a"),
            entry("c"),
            entry("te")
        );
        for (repository, expected) in [
            ("a/b/c/d", "c"),
            ("a/b/c", "c"),
            ("a/b/cd", "a"),
            ("a/b", "a"),
            ("a/x/y", "a"),
            ("a", "a"),
            ("ab/c", "registry"),
            ("team/c", "registry"),
            ("te/am", "te"),
        ] {
            assert_eq!(found_for(&config, "r.example.com", repository), Ok(user(expected)), "{repository}");
        }
        let group = format!(r#"{{"auths": {{"localhost:5511/team": {}}}}}"#, entry("t"));
        assert_eq!(found_for(&group, "localhost:5511", "team/sub/func"), Ok(user("t")));
        assert_eq!(found_for(&group, "localhost:5512", "team/sub/func"), Ok(Credentials::Anonymous));
    }

    #[test]
    fn keys_may_be_written_as_addresses() {
        for key in [
            "https://R.example.com",
            "https://r.example.com/v1/",
            "http://r.example.com/v2",
            "r.example.com/",
        ] {
            let config = format!(r#"{{"auths": {{"{key}": {{"username": "a", "password": "pw"}}}}}}"#);
            assert_eq!(found(&config, "r.example.com"), Ok(user("a")), "{key}");
        }
        let hub = r#"{"auths": {"https://index.docker.io/v1/": {"auth": "YTpwdw=="}}}"#;
        assert_eq!(found(hub, "docker.io"), Ok(user("a")));
    }

    #[test]
    fn no_entry_means_anybody() {
        for config in [
            "",
            " ",
            "null",
            "{}",
            r#"{"auths": {}}"#,
            r#"{"auths": null, "credHelpers": null, "credsStore": null}"#,
            r#"{"auths": {"r.example.com": {}}}"#,
            r#"{"auths": {"r.example.com": null}}"#,
            r#"{"auths": {"r.example.com": {"auth": null, "username": null, "identitytoken": null}}}"#,
        ] {
            assert_eq!(found(config, "r.example.com"), Ok(Credentials::Anonymous), "{config}");
        }
    }

    #[test]
    fn fields_that_are_null_count_as_missing() {
        for entry in [
            r#"{"auth": "YTpwdw==", "identitytoken": null, "username": null}"#,
            r#"{"auth": null, "username": "a", "password": "pw"}"#,
        ] {
            let config =
                format!(r#"{{"auths": {{"r.example.com": {entry}, "x": null}}, "credHelpers": null}}"#);
            assert_eq!(found(&config, "r.example.com"), Ok(user("a")), "{entry}");
        }
    }

    #[test]
    fn what_cannot_be_used_is_said_without_the_secret() {
        let entry = |entry: &str| format!(r#"{{"auths": {{"r.example.com": {entry}}}}}"#);
        for config in [
            "hunter2".to_owned(),
            r#"{"auths": "hunter2"}"#.to_owned(),
            entry(r#"{"auth": ["hunter2"]}"#),
            entry(r#"{"auth": "hunter2!"}"#),
            entry(r#"{"auth": "aHVudGVyMg=="}"#),
            entry(r#"{"identitytoken": "hunter2"}"#),
        ] {
            let text = found(&config, "r.example.com").unwrap_err();
            assert!(text.contains("DOCKER_AUTH_CONFIG") && !text.contains("hunter2"), "{text}");
        }
    }
}
