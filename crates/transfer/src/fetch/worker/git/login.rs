//! User and password for a Git server: from the repository's URL, from `~/.netrc`, or the job's token.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::header::HeaderValue;
use url::Url;

/// User name for a job's token.
const TOKEN_USER: &str = "gitlab-ci-token";

/// A user and a password. Holds a secret, so there is no `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Login {
    user: Vec<u8>,
    password: Vec<u8>,
}

impl Login {
    /// Returns the credentials in `url`, decoded.
    pub(super) fn of_url(url: &Url) -> Option<Self> {
        if url.username().is_empty() && url.password().is_none() {
            return None;
        }
        Some(Self { user: decoded(url.username()), password: decoded(url.password().unwrap_or_default()) })
    }

    /// Finds the login for the server of `url`: an entry of `netrc`, or else the job's token if the job belongs to this
    /// server. `default` allows the `netrc` entry for all hosts.
    pub(super) fn find(credentials: &BTreeMap<String, String>, url: &Url, default: bool) -> Option<Self> {
        let host = url.host_str()?;
        let netrc = credentials.get("netrc").and_then(|text| of_netrc(text, host, default));
        netrc.or_else(|| {
            let token = credentials.get("CI_JOB_TOKEN").filter(|token| !token.is_empty())?;
            let server = credentials.get("CI_SERVER_HOST")?;
            // Without TLS anybody could read the token.
            let trusted = url.scheme() == "https" && server.eq_ignore_ascii_case(host);
            trusted.then(|| Self { user: TOKEN_USER.into(), password: token.clone().into() })
        })
    }

    /// Returns the value of the header `Authorization`, marked as secret.
    pub(super) fn header(&self) -> Option<HeaderValue> {
        let pair = [self.user.as_slice(), self.password.as_slice()].join(&b':');
        let mut value = HeaderValue::try_from(format!("Basic {}", STANDARD.encode(pair))).ok()?;
        value.set_sensitive(true);
        Some(value)
    }
}

/// Decodes a percent-encoded part of a URL.
fn decoded(text: &str) -> Vec<u8> {
    percent_encoding::percent_decode_str(text).collect()
}

/// Finds the entry for `host` in the text of a `.netrc` file: the first with a password. If `default`, the entry for
/// all hosts counts too.
fn of_netrc(text: &str, host: &str, default: bool) -> Option<Login> {
    let mut words = Words { rest: text };
    let mut entry: Option<(bool, Login)> = None;
    let complete = |entry: Option<(bool, Login)>| {
        entry.filter(|(applies, login)| *applies && !login.password.is_empty()).map(|(_, login)| login)
    };
    let empty = || Login { user: Vec::new(), password: Vec::new() };
    while let Some(word) = words.next() {
        match word.as_str() {
            "machine" | "default" => {
                if let Some(login) = complete(entry.take()) {
                    return Some(login);
                }
                let applies = if word == "machine" {
                    words.next().is_some_and(|name| name.eq_ignore_ascii_case(host))
                } else {
                    default
                };
                entry = Some((applies, empty()));
            }
            "login" | "password" | "account" => {
                let value = words.next().unwrap_or_default().into_bytes();
                if let Some((_, login)) = &mut entry {
                    match word.as_str() {
                        "login" => login.user = value,
                        "password" => login.password = value,
                        _ => {}
                    }
                }
            }
            "macdef" => words.skip_macro(),
            _ => {}
        }
    }
    complete(entry)
}

/// Words of a `.netrc` file, split at white space. In double quotes a word may hold white space, and `\` escapes a
/// character. A word that starts with `#` hides the rest of its line.
struct Words<'a> {
    rest: &'a str,
}

impl Words<'_> {
    /// Skips a macro, which ends at the next empty line.
    fn skip_macro(&mut self) {
        let rest = self.rest.replace("\r\n", "\n");
        let skipped = rest.split_once("\n\n").map_or(0, |(_, after)| after.len());
        let start = self.rest.len().saturating_sub(skipped);
        self.rest = self.rest.get(start..).unwrap_or_default();
    }
}

impl Iterator for Words<'_> {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        loop {
            self.rest = self.rest.trim_start();
            if !self.rest.starts_with('#') {
                break;
            }
            self.rest = self.rest.split_once('\n').map_or("", |(_, after)| after);
        }
        let mut chars = self.rest.chars();
        let mut word = String::new();
        if self.rest.starts_with('"') {
            chars.next();
            while let Some(c) = chars.next().filter(|c| *c != '"') {
                word.extend(if c == '\\' { chars.next() } else { Some(c) });
            }
            self.rest = chars.as_str();
            return Some(word);
        }
        let end = self.rest.find(char::is_whitespace).unwrap_or(self.rest.len());
        let (found, rest) = self.rest.split_at_checked(end)?;
        self.rest = rest;
        (!found.is_empty()).then(|| found.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn netrc(text: &str, host: &str) -> Option<(String, String)> {
        of_netrc(text, host, true)
            .map(|login| (String::from_utf8(login.user).unwrap(), String::from_utf8(login.password).unwrap()))
    }

    fn pair(user: &str, password: &str) -> (String, String) {
        (user.to_owned(), password.to_owned())
    }

    #[test]
    fn the_entry_of_the_host_is_found_in_a_netrc_file() {
        let text = "# mine\nmachine a.example login ann password one\n\
                    machine b.example\n  login bob\n  password \"two \\\"2\"\n\
                    macdef init\nmachine c.example login mac password ro\n\n\
                    machine c.example account x password three login cat\ndefault login any password four\n";
        assert_eq!(netrc(text, "a.example"), Some(pair("ann", "one")));
        assert_eq!(netrc(text, "B.example"), Some(pair("bob", "two \"2")));
        assert_eq!(netrc(text, "c.example"), Some(pair("cat", "three")));
        assert_eq!(netrc(text, "d.example"), Some(pair("any", "four")));
        assert!(of_netrc(text, "d.example", false).is_none());
    }

    #[test]
    fn a_netrc_file_without_use_gives_nothing() {
        for text in
            ["", "machine", "machine h login x", "login x password y", "default", "macdef m", "\"", "#"]
        {
            assert_eq!(netrc(text, "h"), None, "{text:?}");
        }
    }

    #[test]
    fn credentials_in_a_url_are_decoded() {
        let login = |text: &str| Login::of_url(&Url::parse(text).unwrap());
        let pair = |user: &str, password: &str| Login { user: user.into(), password: password.into() };
        assert!(login("https://h/p").is_none());
        assert!(login("https://us%40er:p%3aw%25@h/p") == Some(pair("us@er", "p:w%")));
        assert!(login("https://token@h/p") == Some(pair("token", "")));
        assert!(login("https://u:100%@h/p") == Some(pair("u", "100%")));
        let header = pair("Aladdin", "open sesame").header().unwrap();
        assert!(header.is_sensitive());
        assert_eq!(header, "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
    }

    #[test]
    fn the_jobs_token_goes_to_its_own_server_over_tls_only() {
        let credentials = BTreeMap::from([
            ("CI_JOB_TOKEN".to_owned(), "t0ken".to_owned()),
            ("CI_SERVER_HOST".to_owned(), "Git.example.com".to_owned()),
        ]);
        let login = |url: &str| Login::find(&credentials, &Url::parse(url).unwrap(), true);
        assert!(login("https://git.example.com/g/p").is_some_and(|login| login.user == b"gitlab-ci-token"));
        assert!(login("http://git.example.com/g/p").is_none());
        assert!(login("https://git.example.com.evil.example/g/p").is_none());
        assert!(login("https://example.com/g/p").is_none());
    }
}
