//! Checks of what fetches of functions and images need. Values of proxy variables are never shown: they may hold
//! passwords.

use super::Finding;
use crate::web::{Network, VARIABLES, WebError};

fn network() -> Network {
    Network::new(|_| None, |name| std::env::var(name).ok())
}

fn is_set(name: &str) -> bool {
    std::env::var_os(name).is_some_and(|value| !value.is_empty())
}

pub(super) fn certificates() -> Finding {
    const NAME: &str = "certificates";
    let named: Vec<_> = ["SSL_CERT_FILE", "SSL_CERT_DIR"].into_iter().filter(|name| is_set(name)).collect();
    match network().certificates() {
        Err(error) => Finding::broken(
            NAME,
            error.to_string(),
            "correct the path, or unset the variable for the system's own",
        ),
        Ok(found) if !named.is_empty() => {
            Finding::good(NAME, format!("{} from {}", found.len(), named.join(" and ")))
        }
        Ok(found) if Network::system_has_certificates() => {
            Finding::good(NAME, format!("{} of the system", found.len()))
        }
        Ok(found) => {
            let found =
                format!("the system has none: the {} that ship with step-runner are trusted", found.len());
            let remedy = "nothing, unless a server has a certificate of your own authority: then install \
                          ca-certificates or set SSL_CERT_FILE";
            Finding::warning(NAME, found, remedy)
        }
    }
}

pub(super) fn proxy() -> Finding {
    const NAME: &str = "proxy";
    let proxies = || VARIABLES.into_iter().filter(|name| name.to_ascii_lowercase().ends_with("_proxy"));
    let unreadable =
        proxies().find(|name| std::env::var_os(name).is_some_and(|value| value.to_str().is_none()));
    if let Some(name) = unreadable {
        return Finding::broken(
            NAME,
            format!("the value of {name} is not UTF-8"),
            "correct or unset the variable",
        );
    }
    if let Err(error @ WebError::Proxy(..)) = network().check_proxies() {
        return Finding::broken(NAME, error.to_string(), "correct or unset the variable");
    }
    let set: Vec<&str> = proxies().filter(|name| is_set(name)).collect();
    let differs = set.iter().find(|name| {
        let lower = name.to_ascii_lowercase();
        **name != lower && is_set(&lower) && std::env::var_os(name) != std::env::var_os(&lower)
    });
    if let Some(name) = differs {
        let lower = name.to_ascii_lowercase();
        let found = format!("{name} and {lower} differ; {lower} counts here, other programs may take {name}");
        return Finding::warning(NAME, found, "give both the same value, or unset one");
    }
    let servers: Vec<String> = set.iter().filter_map(|name| server(name)).collect();
    let found = match (servers.is_empty(), set.is_empty()) {
        (true, true) => "none".to_owned(),
        (true, false) => format!("none; set: {}", set.join(", ")),
        (false, _) => servers.join(", "),
    };
    Finding::good(NAME, found)
}

/// Returns scheme, host and port of a proxy, without user and password.
fn server(name: &str) -> Option<String> {
    if name.eq_ignore_ascii_case("no_proxy") {
        return None;
    }
    let address = std::env::var(name).ok()?;
    let address = if address.contains("://") { address } else { format!("http://{address}") };
    let url = url::Url::parse(&address).ok()?;
    let port = url.port_or_known_default().map(|port| format!(":{port}")).unwrap_or_default();
    Some(format!("{name} = {}://{}{port}", url.scheme(), url.host_str()?))
}
