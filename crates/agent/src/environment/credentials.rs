//! Which login a registry gets.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value as Json;

use crate::payload::Credential;

/// A login for one image.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    /// User.
    pub user: String,
    /// Password.
    pub password: String,
}

/// Hides user and password.
impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Login(…)")
    }
}

/// Logins of one source, as a `config.json` of Docker has them.
#[derive(Clone, Default)]
pub struct AuthFile {
    /// Address of a registry, perhaps with a path, and its login.
    logins: Vec<(String, Login)>,
    /// What is not used of it.
    pub warnings: Vec<&'static str>,
}

impl AuthFile {
    /// Reads the text of `DOCKER_AUTH_CONFIG` or of a file.
    ///
    /// # Errors
    /// It is no JSON. The error says where, and quotes nothing: the text holds passwords.
    pub fn parse(text: &str) -> Result<Self, String> {
        let json: Json = serde_json::from_str(text).map_err(|error| {
            let (line, column) = (error.line(), error.column());
            format!("the logins for registries are no JSON: see line {line}, column {column}")
        })?;
        let mut warnings = Vec::new();
        for (key, warning) in [
            ("credHelpers", "`credHelpers` of the logins for registries is ignored: it names programs"),
            ("credsStore", "`credsStore` of the logins for registries is ignored: it names a program"),
        ] {
            if json.get(key).is_some() {
                warnings.push(warning);
            }
        }
        let auths = json.get("auths").and_then(Json::as_object).into_iter().flatten();
        let logins =
            auths.filter_map(|(address, login)| Some((plain(address), Login::read(login)?))).collect();
        Ok(Self { logins, warnings })
    }

    /// Takes the logins of a payload.
    pub fn of_payload(credentials: &[Credential]) -> Self {
        let login = |found: &Credential| {
            (plain(&found.registry), Login { user: found.user.clone(), password: found.password.clone() })
        };
        Self { logins: credentials.iter().map(login).collect(), warnings: Vec::new() }
    }

    /// Returns the login for an image: the one with the longest path that fits.
    fn login(&self, image: &str) -> Option<&Login> {
        let address = address(image);
        let fits = |(place, _): &&(String, Login)| {
            address.strip_prefix(place.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        self.logins.iter().filter(fits).max_by_key(|(place, _)| place.len()).map(|(_, login)| login)
    }

    /// Returns the login for an image from the first source that has one.
    pub fn first<'a>(sources: &'a [Self], image: &str) -> Option<&'a Login> {
        sources.iter().find_map(|source| source.login(image))
    }
}

impl Login {
    fn read(json: &Json) -> Option<Self> {
        let text = |key: &str| json.get(key).and_then(Json::as_str).map(str::to_owned);
        if let (Some(user), Some(password)) = (text("username"), text("password")) {
            return Some(Self { user, password });
        }
        let decoded = String::from_utf8(STANDARD.decode(text("auth")?.trim()).ok()?).ok()?;
        let (user, password) = decoded.split_once(':')?;
        Some(Self { user: user.to_owned(), password: password.to_owned() })
    }
}

/// Address of Docker's own registry, as images without a registry have it.
const DOCKER: &str = "docker.io";

/// Returns the address of a registry without scheme, version of the API and `/` at the end.
fn plain(address: &str) -> String {
    let address = address.split_once("://").map_or(address, |(_, rest)| rest);
    let address = address.trim_end_matches('/');
    let address = address.strip_suffix("/v1").or_else(|| address.strip_suffix("/v2")).unwrap_or(address);
    match address {
        "index.docker.io" | "registry-1.docker.io" => DOCKER.to_owned(),
        other => other.to_ascii_lowercase(),
    }
}

/// Address under which Docker's own registry is known to what reads logins.
const DOCKER_LOGIN: &str = "https://index.docker.io/v1/";

/// Returns the address under which the login of an image stands in a file of logins: its registry and path.
pub fn registry_of(image: &str) -> String {
    let address = address(image);
    if address.starts_with("docker.io/") { DOCKER_LOGIN.to_owned() } else { address }
}

/// Returns registry and path of an image, without tag and digest.
fn address(image: &str) -> String {
    let name = image.split('@').next().unwrap_or_default();
    let name = match name.rsplit_once(':') {
        Some((before, tag)) if !tag.contains('/') => before,
        _ => name,
    };
    let first = name.split('/').next().unwrap_or_default();
    let has_registry = name.contains('/') && (first.contains(['.', ':']) || first == "localhost");
    if has_registry { name.to_ascii_lowercase() } else { format!("{DOCKER}/{name}") }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a29_the_place_of_a_login_in_a_cluster() {
        for (image, wanted) in [
            ("alpine:3", DOCKER_LOGIN),
            ("docker.io/library/alpine@sha256:a", DOCKER_LOGIN),
            ("registry.test:5000/a/b:1", "registry.test:5000/a/b"),
        ] {
            assert_eq!(registry_of(image), wanted, "{image}");
        }
    }

    fn file(pairs: &[(&str, &str)]) -> AuthFile {
        let auths: serde_json::Map<String, Json> = pairs
            .iter()
            .map(|(address, user)| {
                (
                    (*address).to_owned(),
                    serde_json::json!({"auth": STANDARD.encode(format!("{user}:secret"))}),
                )
            })
            .collect();
        AuthFile::parse(&serde_json::json!({"auths": auths, "credsStore": "x"}).to_string()).unwrap()
    }

    #[test]
    fn a29_the_first_source_counts_and_in_it_the_longest_path() {
        let sources = [
            file(&[("registry.test", "wide"), ("https://registry.test/group/", "narrow")]),
            file(&[("registry.test/group/a", "later"), ("https://index.docker.io/v1/", "hub")]),
        ];
        for (image, user) in [
            ("registry.test/x:1", Some("wide")),
            ("registry.test/group/a:1", Some("narrow")),
            ("registry.test/groups/a", Some("wide")),
            ("registry.test:5000/x", None),
            ("alpine", Some("hub")),
            ("library/alpine@sha256:abc", Some("hub")),
            ("other.test/x", None),
        ] {
            let found = AuthFile::first(&sources, image).map(|login| login.user.as_str());
            assert_eq!(found, user, "{image}");
        }
        assert_eq!(sources[0].warnings.len(), 1);
        assert!(!format!("{:?}", AuthFile::first(&sources, "alpine")).contains("secret"));
    }

    #[test]
    fn text_that_is_no_json_is_refused_with_its_place_and_without_its_words() {
        let why = AuthFile::parse("{\"auths\":\n {\"a\": secret}}").err();
        assert_eq!(why.as_deref(), Some("the logins for registries are no JSON: see line 2, column 8"));
    }

    proptest! {
        #[test]
        fn a17_any_text_is_a_file_of_logins_or_an_error(text: String, image: String) {
            let file = AuthFile::parse(&text).unwrap_or_default();
            prop_assert!(AuthFile::first(&[file], &image).is_none());
        }
    }
}
