//! Redirects: where they may lead, and which server may get credentials then.

use reqwest::header::{HeaderMap, LOCATION};
use url::Url;

/// Maximum number of redirects followed, one after the other.
pub const MAX_REDIRECTS: usize = 5;

/// Reasons for which a redirect is not followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedirectFault {
    /// It leads to no address of the web.
    Elsewhere,
    /// It leads from HTTPS to HTTP.
    Insecure,
}

/// Returns the target of a redirect from `url`, without user and password.
pub fn target(url: &Url, headers: &HeaderMap) -> Result<Url, RedirectFault> {
    let text = headers.get(LOCATION).and_then(|value| value.to_str().ok());
    let mut target = text.and_then(|text| url.join(text).ok()).ok_or(RedirectFault::Elsewhere)?;
    match (url.scheme(), target.scheme()) {
        ("http", "http" | "https") | ("https", "https") => {}
        ("https", "http") => return Err(RedirectFault::Insecure),
        _ => return Err(RedirectFault::Elsewhere),
    }
    without_login(&mut target);
    target.set_fragment(None);
    Ok(target)
}

/// True if credentials for `first` may be sent to `second`: same host and port, at most with TLS added.
pub fn is_same_server(first: &Url, second: &Url) -> bool {
    let upgraded = (first.scheme(), second.scheme()) == ("http", "https")
        && first.port_or_known_default() == Some(80)
        && second.port_or_known_default() == Some(443);
    first.host() == second.host() && (first.origin() == second.origin() || upgraded)
}

/// Removes user and password from a URL.
pub fn without_login(url: &mut Url) {
    // Fails only for URLs without host, which have no credentials.
    url.set_username("").ok();
    url.set_password(None).ok();
}

#[cfg(test)]
mod tests {
    use reqwest::header::HeaderValue;

    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    #[test]
    fn credentials_are_for_the_server_they_were_given_for() {
        let same = |first: &str, second: &str| is_same_server(&url(first), &url(second));
        assert!(same("https://h/a", "https://h:443/b"));
        assert!(same("http://h/a", "https://h/a"));
        assert!(!same("https://h/a", "http://h/a"));
        assert!(!same("http://h:8080/a", "https://h/a"));
        assert!(!same("https://h/a", "https://h:8443/a"));
        assert!(!same("https://h/a", "https://h.evil/a"));
    }

    #[test]
    fn a_redirect_leads_to_the_web_and_never_out_of_tls() {
        let leads = |from: &str, to: &'static str| {
            target(&url(from), &HeaderMap::from_iter([(LOCATION, HeaderValue::from_static(to))]))
        };
        assert_eq!(leads("https://h/a/b", "/c"), Ok(url("https://h/c")));
        assert_eq!(leads("http://h/a", "https://u:p@i/c#d"), Ok(url("https://i/c")));
        assert_eq!(leads("https://h/a", "http://h/c"), Err(RedirectFault::Insecure));
        for to in ["file:///etc", "ftp://h/", "data:,x", "https://"] {
            assert_eq!(leads("https://h/a", to), Err(RedirectFault::Elsewhere), "{to}");
        }
        assert_eq!(target(&url("https://h/a"), &HeaderMap::new()), Err(RedirectFault::Elsewhere));
    }
}
