//! Locations of repositories: which URLs are accepted, and how they are shown without secrets (faults.md row 68).

use std::fmt;

use url::Url;

use super::login::Login;
use step_runner_web::redirect::without_login;

/// A parsed repository URL. Its `Display`, `HOST[:PORT]/PATH`, is the only form in which a location may appear in a
/// text; there is no `Debug`.
#[derive(Clone)]
pub(super) struct Location {
    /// Has scheme `http` or `https`, and no user, password, query, fragment or final `/`.
    base: Url,
    /// Credentials in the URL.
    login: Option<Login>,
}

/// Reasons why a URL is refused. Never quotes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum LocationError {
    #[error("the repository's URL does not start with http:// or https://, the only ones supported")]
    Scheme,
    #[error("the repository's URL holds white space, a control character or a backslash")]
    Character,
    #[error("the repository's URL is not valid: expected https://HOST/PATH")]
    Invalid,
    #[error("the repository's URL cannot be read ({0}): expected https://HOST/PATH")]
    Unreadable(url::ParseError),
    #[error("the repository's URL has no path: expected https://HOST/PATH")]
    Path,
    #[error(
        "the repository's URL has a query or fragment: write it without \"?\" and \"#\", and those of a password as %3F and %23"
    )]
    Query,
}

impl Location {
    /// Parses a URL that may be hostile.
    pub(super) fn parse(text: &str) -> Result<Self, LocationError> {
        // The URL parser repairs its input: it drops tabs, turns `\` into `/` and accepts `http:host`. Another reader
        // of the same text would see another host. So we refuse beforehand everything that it would repair.
        if text.contains(|c: char| c.is_control() || c.is_whitespace() || c == '\\') {
            return Err(LocationError::Character);
        }
        let rest = ["https://", "http://"].into_iter().find_map(|scheme| text.strip_prefix(scheme));
        let rest = rest.ok_or(LocationError::Scheme)?;
        if rest.starts_with(['/', '-', '?', '#']) {
            return Err(LocationError::Invalid);
        }
        let mut base = Url::parse(text).map_err(LocationError::Unreadable)?;
        if base.query().is_some() || base.fragment().is_some() {
            return Err(LocationError::Query);
        }
        if base.host_str().is_none_or(|host| host.is_empty() || host.starts_with('-')) {
            return Err(LocationError::Invalid);
        }
        let login = Login::of_url(&base);
        let path = base.path().trim_end_matches('/').to_owned();
        if path.is_empty() {
            return Err(LocationError::Path);
        }
        base.set_path(&path);
        without_login(&mut base);
        Ok(Self { base, login })
    }

    /// Returns the repository's URL without credentials.
    pub(super) fn base(&self) -> &Url {
        &self.base
    }

    pub(super) fn login(&self) -> Option<&Login> {
        self.login.as_ref()
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.base.host_str().unwrap_or_default())?;
        if let Some(port) = self.base.port() {
            write!(f, ":{port}")?;
        }
        f.write_str(self.base.path())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> LocationError {
        Location::parse(text).err().unwrap_or_else(|| panic!("{text:?} is taken"))
    }

    #[test]
    fn a_location_is_shown_without_anything_secret() {
        for (text, shown) in [
            ("https://example.com/g/p", "example.com/g/p"),
            ("https://EXAMPLE.com:443/g/P.git/", "example.com/g/P.git"),
            ("http://example.com:8080/g/p//", "example.com:8080/g/p"),
            ("https://user:s3cret@example.com/g/p", "example.com/g/p"),
            ("https://s3cret@example.com/g/p", "example.com/g/p"),
            ("https://u:a@s3cret@example.com/g/p", "example.com/g/p"),
            ("https://:s3cret@[::1]:8443/p", "[::1]:8443/p"),
            ("http://user:s3cret@127.0.0.1/a%20b", "127.0.0.1/a%20b"),
        ] {
            let location = Location::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(location.to_string(), shown);
            assert!(!location.base().as_str().contains("s3cret"), "{text}");
        }
    }

    #[test]
    fn fault_68_what_is_no_plain_web_address_is_refused_and_never_quoted() {
        use LocationError::{Character, Invalid, Path, Query, Scheme, Unreadable};
        use url::ParseError::{EmptyHost, IdnaError, InvalidIpv6Address, InvalidPort};
        let payloads = [
            ("", Scheme),
            ("-", Scheme),
            ("--upload-pack=touch${IFS}/tmp/canary", Scheme),
            ("-oProxyCommand=touch/tmp/canary", Scheme),
            ("--config=core.sshCommand=id", Scheme),
            ("ext::sh -c touch% /tmp/canary", Character),
            ("ext::sh", Scheme),
            ("ext::ssh%20-oProxyCommand=id%20host", Scheme),
            ("fd::7", Scheme),
            ("fd::7,8/x", Scheme),
            ("file:///etc", Scheme),
            ("file://localhost/etc/passwd", Scheme),
            ("FILE:///etc", Scheme),
            ("/etc", Scheme),
            ("../../etc", Scheme),
            ("./.git", Scheme),
            ("~root/repo", Scheme),
            ("C:/Windows", Scheme),
            ("C:\\Windows", Character),
            ("\\\\host\\share\\repo", Character),
            ("ssh://git@example.com/p", Scheme),
            ("ssh://-oProxyCommand=id/p", Scheme),
            ("git+ssh://example.com/p", Scheme),
            ("ssh+git://example.com/p", Scheme),
            ("git@example.com:g/p", Scheme),
            ("-oProxyCommand=id:p", Scheme),
            ("git://example.com/p", Scheme),
            ("git::https://example.com/p", Scheme),
            ("https::https://example.com/p", Scheme),
            ("http::ext::sh", Scheme),
            ("transport::example.com/p", Scheme),
            ("hg::https://example.com/p", Scheme),
            ("ftp://example.com/p", Scheme),
            ("ftps://example.com/p", Scheme),
            ("rsync://example.com/p", Scheme),
            ("s3://bucket/p", Scheme),
            ("data:text/plain,x", Scheme),
            ("javascript:alert(1)", Scheme),
            ("jar:https://example.com/p!/x", Scheme),
            ("gopher://example.com/_p", Scheme),
            ("dict://example.com/p", Scheme),
            ("ws://example.com/p", Scheme),
            ("https:example.com/p", Scheme),
            ("https:/example.com/p", Scheme),
            ("https:///example.com/p", Invalid),
            ("https:////example.com/p", Invalid),
            ("https://", Unreadable(EmptyHost)),
            ("https:///", Invalid),
            ("https://?x", Invalid),
            ("https://#x", Invalid),
            ("https://-oProxyCommand=id/p", Invalid),
            ("https://user@-oProxyCommand=id/p", Invalid),
            ("https://@/p", Unreadable(EmptyHost)),
            ("https://:pw@/p", Unreadable(EmptyHost)),
            ("https://:80/p", Unreadable(EmptyHost)),
            ("https://[::1/p", Unreadable(InvalidIpv6Address)),
            ("https://exa%00mple.com/p", Unreadable(IdnaError)),
            ("https://example.com:99999/p", Unreadable(InvalidPort)),
            ("https://example.com:80a/p", Unreadable(InvalidPort)),
            ("https://exa<mple.com/p", Unreadable(IdnaError)),
            ("https://example.com", Path),
            ("https://user:pw@example.com/", Path),
            ("https://example.com///", Path),
            ("https://example.com/p?token=pw", Query),
            ("https://example.com/p#pw", Query),
            ("https://example.com\\@evil.example/p", Character),
            ("https://example.com\t/p", Character),
            ("https://example.com/p\nHost: evil", Character),
            ("https://example.com/p\r\nX: y", Character),
            ("https://example.com/\u{0}p", Character),
            ("https://example.com/a b", Character),
            (" https://example.com/p", Character),
            ("https://example.com/p\u{7f}", Character),
            ("https://example.com/p\u{85}", Character),
            ("https://example.com/p\u{2028}", Character),
        ];
        assert!(payloads.len() >= 60);
        for (text, expected) in payloads {
            let error = refused(text);
            assert_eq!(error, expected, "{text:?}");
            assert!(!error.to_string().contains("pw"), "{error}");
        }
    }
}
