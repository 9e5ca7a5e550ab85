//! Finds credentials for a registry in a Docker configuration (language.md §7.7). Never starts a helper program.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use oci_client::secrets::RegistryAuth;
use serde::Deserialize;

use super::error::Problem;
use super::name::ImageName;

/// Variable of the step's environment with credentials: the JSON text of a Docker configuration file.
pub(crate) const DOCKER_AUTH_CONFIG: &str = "DOCKER_AUTH_CONFIG";

/// Names of the registry `docker.io` in configurations.
const DOCKER_HUB: [&str; 3] = ["docker.io", "index.docker.io", "registry-1.docker.io"];

#[derive(Deserialize)]
struct Config {
    #[serde(default)]
    auths: BTreeMap<String, Entry>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Entry {
    auth: String,
    username: String,
    password: String,
    identitytoken: String,
    registrytoken: String,
}

/// Finds the credentials for a repository: those of `registry/repository`, else of `registry`, else none.
pub(super) fn find(config: &str, name: &ImageName) -> Result<RegistryAuth, Problem> {
    if config.trim().is_empty() {
        return Ok(RegistryAuth::Anonymous);
    }
    // Drop the parser's reason: it may quote a secret.
    let config: Config = serde_json::from_str(config).map_err(|error| {
        Problem::Credentials(format!(
            "it is no Docker configuration with \"auths\" (line {}, column {})",
            error.line(),
            error.column()
        ))
    })?;
    let mut registries = vec![name.registry()];
    if DOCKER_HUB.contains(&name.registry()) {
        registries.extend(DOCKER_HUB);
    }
    let repositories = registries.iter().map(|registry| format!("{registry}/{}", name.repository()));
    let mut wanted = repositories.chain(registries.iter().map(|&registry| registry.to_owned()));
    let found = wanted.find_map(|wanted| config.auths.iter().find(|(key, _)| normal(key) == wanted));
    match found {
        Some((key, entry)) => entry.auth().map_err(|why| {
            let key = key.escape_debug();
            Problem::Credentials(format!("its entry \"{key}\" {why}"))
        }),
        None => Ok(RegistryAuth::Anonymous),
    }
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
    fn auth(&self) -> Result<RegistryAuth, &'static str> {
        if !self.auth.is_empty() {
            return basic(&self.auth);
        }
        if !self.username.is_empty() {
            return Ok(RegistryAuth::Basic(self.username.clone(), self.password.clone()));
        }
        if !self.registrytoken.is_empty() {
            return Ok(RegistryAuth::Bearer(self.registrytoken.clone()));
        }
        if !self.identitytoken.is_empty() {
            return Err("holds an identity token, which is not supported: use a user and a password");
        }
        // An empty entry: the credentials for this registry are with a helper program.
        Ok(RegistryAuth::Anonymous)
    }
}

fn basic(auth: &str) -> Result<RegistryAuth, &'static str> {
    const LENIENT: GeneralPurpose = GeneralPurpose::new(
        &alphabet::STANDARD,
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
    );
    let wrong = "has an \"auth\" that is not the base64 form of user:password";
    let bytes = LENIENT.decode(auth.trim()).map_err(|_| wrong)?;
    let text = String::from_utf8(bytes).map_err(|_| wrong)?;
    let (user, password) = text.trim_end_matches('\0').split_once(':').ok_or(wrong)?;
    Ok(RegistryAuth::Basic(user.to_owned(), password.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(config: &str, registry: &str) -> Result<RegistryAuth, String> {
        let name = ImageName::new(registry, "g/echo", "1").unwrap();
        find(config, &name).map_err(|problem| problem.to_string())
    }

    fn user(name: &str) -> RegistryAuth {
        RegistryAuth::Basic(name.into(), "pw".into())
    }

    #[test]
    fn the_repository_counts_before_its_registry() {
        // "YTpwdw==" is a:pw, "Yjpwdw==" is b:pw.
        let config = r#"{"auths": {"r.example.com": {"auth": "YTpwdw=="}, "r.example.com/g/echo": {"auth": "Yjpwdw"},
            "r.example.com/g": {"username": "c", "password": "pw"}, "other": {}}, "credsStore": "x"}"#;
        assert_eq!(found(config, "r.example.com"), Ok(user("b")));
        assert_eq!(found(config, "other"), Ok(RegistryAuth::Anonymous));
        assert_eq!(found(config, "r.example.com:444"), Ok(RegistryAuth::Anonymous));
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
        for config in ["", " ", "{}", r#"{"auths": {}}"#, r#"{"auths": {"r.example.com": {}}}"#] {
            assert_eq!(found(config, "r.example.com"), Ok(RegistryAuth::Anonymous), "{config}");
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
