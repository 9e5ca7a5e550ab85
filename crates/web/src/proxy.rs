//! Proxies, and the hosts that are reached without one (language.md §7.7). The list of hosts is read as Go's `httpproxy`
//! reads it, because Docker, GitLab Runner and most tools of containers do so.

use std::net::IpAddr;

use reqwest::Proxy;
use url::{Host, Url};

use super::fault::find;
use super::{Network, WebError, is_loopback};

/// The proxies of a [`Network`]. Their addresses may hold passwords, so there is no `Debug`.
#[derive(Default)]
pub(super) struct Proxies {
    /// For `https://`.
    https: Option<NamedProxy>,
    /// For `http://`.
    http: Option<NamedProxy>,
    exempt: Exempt,
}

/// An address of a proxy, and the variable that it is from.
#[derive(Clone)]
pub(super) struct NamedProxy {
    pub(super) variable: &'static str,
    address: String,
}

impl Proxies {
    /// Reads the proxy variables. Of two spellings the lower-case one counts.
    pub(super) fn new(network: &Network) -> Result<Self, WebError> {
        let read = |names, kind: fn(&str) -> reqwest::Result<Proxy>| {
            let Some((variable, address)) = network.first(names) else { return Ok(None) };
            kind(address).map_err(|error| WebError::Proxy(variable, reason(&error)))?;
            Ok(Some(NamedProxy { variable, address: address.to_owned() }))
        };
        let all = read(["all_proxy", "ALL_PROXY"], |address| Proxy::all(address))?;
        let https = read(["https_proxy", "HTTPS_PROXY"], |address| Proxy::https(address))?;
        let http = read(["http_proxy", "HTTP_PROXY"], |address| Proxy::http(address))?;
        let exempt = network.first(["no_proxy", "NO_PROXY"]).map_or("", |(_, list)| list);
        // Desktops set one for all with SOCKS beside the other two. It does no harm if nothing uses it.
        let usable = |proxy: Option<NamedProxy>| proxy.map(NamedProxy::with_known_scheme).transpose();
        Ok(Self {
            https: usable(https.or_else(|| all.clone()))?,
            http: usable(http.or(all))?,
            exempt: Exempt::parse(exempt),
        })
    }

    /// Returns the proxy that leads to `url`.
    pub(super) fn of(&self, url: &Url) -> Option<&NamedProxy> {
        let proxy = if url.scheme() == "https" { &self.https } else { &self.http };
        proxy.as_ref().filter(|_| !self.exempt.has(url))
    }

    /// Returns the one proxy of a client, which chooses for each URL.
    pub(super) fn of_client(self) -> Proxy {
        Proxy::custom(move |url| self.of(url).map(|proxy| proxy.address.clone()))
    }
}

impl NamedProxy {
    /// Refuses a scheme that the HTTP client does not know. It would go round such a proxy without a word.
    fn with_known_scheme(self) -> Result<Self, WebError> {
        // An address without a scheme is one of HTTP.
        match Url::parse(&self.address) {
            Ok(url) if url.has_host() && !matches!(url.scheme(), "http" | "https") => {
                Err(WebError::Proxy(self.variable, "its scheme is neither http nor https".to_owned()))
            }
            _ => Ok(self),
        }
    }
}

/// Returns why an address is none. Another error than that of the URL's parser may quote the address, which may hold a
/// password.
fn reason(error: &reqwest::Error) -> String {
    find::<url::ParseError>(error).map_or_else(|| "it names no host".to_owned(), ToString::to_string)
}

/// Hosts that are reached without a proxy. This machine always is.
#[derive(Debug, Default, PartialEq, Eq)]
struct Exempt {
    all: bool,
    entries: Vec<Entry>,
}

/// An entry of `no_proxy`.
#[derive(Debug, PartialEq, Eq)]
enum Entry {
    /// Addresses that begin with the first bits of this one.
    Network(IpAddr, u32),
    /// One address, at this port or at all.
    Address(IpAddr, Option<String>),
    /// A domain, at this port or at all.
    Domain {
        /// In lower case and without a leading dot.
        name: String,
        port: Option<String>,
        /// False if only the names below the domain are meant.
        itself: bool,
    },
}

impl Exempt {
    fn parse(list: &str) -> Self {
        let entries: Vec<_> = list.split(',').map(str::trim).filter(|text| !text.is_empty()).collect();
        if entries.contains(&"*") {
            return Self { all: true, entries: Vec::new() };
        }
        Self { all: false, entries: entries.into_iter().filter_map(Entry::parse).collect() }
    }

    fn has(&self, url: &Url) -> bool {
        let port = url.port_or_known_default().map(|port| port.to_string()).unwrap_or_default();
        let is_port = |wanted: &Option<String>| wanted.as_ref().is_none_or(|wanted| *wanted == port);
        let address = match url.host() {
            Some(Host::Ipv4(address)) => Some(IpAddr::V4(address)),
            Some(Host::Ipv6(address)) => Some(IpAddr::V6(address).to_canonical()),
            _ => None,
        };
        let host = url.host_str().unwrap_or_default().trim_end_matches('.').to_ascii_lowercase();
        self.all
            || is_loopback(url)
            || self.entries.iter().any(|entry| match entry {
                Entry::Network(network, bits) => {
                    address.is_some_and(|address| begins_alike(address, *network, *bits))
                }
                Entry::Address(known, port) => address == Some(*known) && is_port(port),
                Entry::Domain { name, port, itself } => {
                    let below = host.strip_suffix(name.as_str()).is_some_and(|rest| rest.ends_with('.'));
                    (below || (*itself && host == *name)) && is_port(port)
                }
            })
    }
}

impl Entry {
    fn parse(text: &str) -> Option<Self> {
        if let Some((address, bits)) = text.split_once('/')
            && let Ok(address) = address.parse::<IpAddr>()
            && let Ok(bits) = bits.parse::<u32>()
        {
            let length = if address.is_ipv4() { 32 } else { 128 };
            return (bits <= length).then_some(Self::Network(address, bits));
        }
        let (host, port) = host_and_port(text);
        if let Ok(address) = host.parse::<IpAddr>() {
            return Some(Self::Address(address.to_canonical(), port));
        }
        let host = host.strip_prefix('*').filter(|rest| rest.starts_with('.')).unwrap_or(host);
        let (name, itself) = host.strip_prefix('.').map_or((host, true), |name| (name, false));
        (!name.is_empty()).then(|| Self::Domain { name: in_ascii(name), port, itself })
    }
}

/// Splits `HOST`, `HOST:PORT`, `ADDRESS`, `[ADDRESS]` or `[ADDRESS]:PORT`.
fn host_and_port(text: &str) -> (&str, Option<String>) {
    if let Some((address, rest)) = text.strip_prefix('[').and_then(|text| text.split_once(']')) {
        return (address, rest.strip_prefix(':').map(str::to_owned));
    }
    match text.split_once(':') {
        // More than one colon: an IPv6 address without brackets.
        Some((_, port)) if port.contains(':') => (text, None),
        Some((host, port)) => (host, Some(port.to_owned())),
        None => (text, None),
    }
}

/// Returns the form of a domain that URLs have.
fn in_ascii(name: &str) -> String {
    let lower = name.to_lowercase();
    match Host::parse(&lower) {
        Ok(Host::Domain(domain)) if !name.is_ascii() => domain,
        _ => lower,
    }
}

/// True if two addresses of one family have the same first `bits`.
fn begins_alike(address: IpAddr, network: IpAddr, bits: u32) -> bool {
    let shifted = |number: u128, length: u32| number.checked_shr(length - bits).unwrap_or(0);
    match (address, network) {
        (IpAddr::V4(address), IpAddr::V4(network)) => {
            shifted(address.to_bits().into(), 32) == shifted(network.to_bits().into(), 32)
        }
        (IpAddr::V6(address), IpAddr::V6(network)) => {
            shifted(address.to_bits(), 128) == shifted(network.to_bits(), 128)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxy_of(variables: &[(&str, &str)], url: &str) -> Option<String> {
        let value = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        let proxies = Proxies::new(&Network::new(value, |_| None)).unwrap();
        proxies.of(&Url::parse(url).unwrap()).map(|proxy| proxy.address.clone())
    }

    fn is_direct(list: &str, url: &str) -> bool {
        proxy_of(&[("all_proxy", "http://p:1"), ("no_proxy", list)], url).is_none()
    }

    #[test]
    fn a_scheme_has_its_own_proxy_before_the_one_for_all() {
        let variables = [("all_proxy", "http://p:1"), ("HTTPS_PROXY", "http://q:1"), ("NO_PROXY", "x,y")];
        assert_eq!(proxy_of(&variables, "https://h/").as_deref(), Some("http://q:1"));
        assert_eq!(proxy_of(&variables, "http://h/").as_deref(), Some("http://p:1"));
        assert_eq!(proxy_of(&variables, "http://y/"), None);
        let both = [("https_proxy", "http://low:1"), ("HTTPS_PROXY", "http://up:1")];
        assert_eq!(proxy_of(&both, "https://h/").as_deref(), Some("http://low:1"));
        assert_eq!(proxy_of(&both, "http://h/"), None);
        assert_eq!(proxy_of(&[], "https://h/"), None);
    }

    #[test]
    fn a_value_that_is_no_proxy_address_is_refused_with_the_reason_and_without_the_value() {
        for (value, reason) in [
            ("http://user:s3cret@proxy:99999", "invalid port number"),
            ("http://user:s3cret@", "empty host"),
            ("mailto:s3cret", "it names no host"),
            ("htp://user:s3cret@proxy:3128", "neither http nor https"),
            ("socks5://user:s3cret@proxy:1080", "neither http nor https"),
        ] {
            let network = Network::new(|name| (name == "https_proxy").then(|| value.to_owned()), |_| None);
            let error = network.check_proxies().unwrap_err().to_string();
            assert!(error.contains(reason) && error.contains("https_proxy"), "{value}: {error}");
            assert!(!error.contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn a_proxy_for_all_with_an_unknown_scheme_is_refused_only_if_it_is_used() {
        let variables =
            [("all_proxy", "socks://p:1080"), ("https_proxy", "q:1"), ("http_proxy", "http://q:1")];
        assert_eq!(proxy_of(&variables, "https://h/").as_deref(), Some("q:1"));
        let used = &variables[..2];
        let value =
            |name: &str| used.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        let error = Network::new(value, |_| None).check_proxies().unwrap_err().to_string();
        assert!(error.contains("all_proxy"), "{error}");
    }

    #[test]
    fn a_fault_on_the_way_through_a_proxy_is_the_proxys() {
        use crate::fault::RequestFault;
        assert_eq!(RequestFault::Name.through("http_proxy"), RequestFault::ProxyName("http_proxy"));
        assert_eq!(RequestFault::Refused.through("http_proxy"), RequestFault::ProxyRefused("http_proxy"));
        assert_eq!(RequestFault::NoConnection.through("http_proxy"), RequestFault::Proxy("http_proxy"));
        assert_eq!(RequestFault::Cut.through("http_proxy"), RequestFault::Cut);
    }

    #[test]
    fn this_machine_is_reached_without_a_proxy() {
        for url in ["http://localhost:5000/", "http://127.0.0.1/", "http://127.9.9.9:1/", "http://[::1]/"] {
            assert!(is_direct("", url), "{url}");
        }
        assert!(!is_direct("", "http://localhost.example.com/"));
    }

    /// The table of Go's own test of `useProxy`, and forms that its documentation names.
    #[test]
    fn bug_no_proxy_forms() {
        let list = "foobar.com, .barbaz.net, 192.168.1.1, 192.168.1.2:81, 192.168.1.3:80, 10.0.0.0/30, \
                    2001:db8::52:0:1, [2001:db8::52:0:2]:443, [2002:db8:a::45]:80, 2003:db8::/32, \
                    Reg.Internal.test:443, *.wild.test, *.port.test:8443, täst.example";
        for (url, direct) in [
            ("https://foobar.com/", true),
            ("https://www.foobar.com/", true),
            ("https://FooBar.com:99/", true),
            ("https://foofoobar.com/", false),
            ("https://baz.com/", false),
            ("https://www.barbaz.net/", true),
            ("https://barbaz.net/", false),
            ("http://192.168.1.1/", true),
            ("http://192.168.1.2/", false),
            ("http://192.168.1.2:81/", true),
            ("http://192.168.1.3/", true),
            ("http://192.168.1.4/", false),
            ("http://10.0.0.2/", true),
            ("http://10.0.0.4/", false),
            ("http://[2001:db8::52:0:1]/", true),
            ("http://[2001:db8::52:0:1]:8080/", true),
            ("https://[2001:db8::52:0:2]/", true),
            ("http://[2001:db8::52:0:2]/", false),
            ("http://[2001:db8::52:0:3]/", false),
            ("http://[2002:db8:a::45]/", true),
            ("http://[2002:db8:a::45]:81/", false),
            ("http://[2003:db8::123]/", true),
            ("https://reg.internal.test/", true),
            ("https://reg.internal.test:443/", true),
            ("https://reg.internal.test:5000/", false),
            ("http://reg.internal.test/", false),
            ("https://a.reg.internal.test/", true),
            ("https://a.wild.test/", true),
            ("https://wild.test/", false),
            ("https://a.port.test:8443/", true),
            ("https://a.port.test/", false),
            ("https://xn--tst-qla.example/", true),
        ] {
            assert_eq!(is_direct(list, url), direct, "{url}");
        }
        for (list, direct) in
            [("*", true), ("x, *", true), (" ", false), (",,", false), (":80", false), ("*.", false)]
        {
            assert_eq!(is_direct(list, "https://any.example:1/"), direct, "{list:?}");
        }
        for (list, url) in [
            ("0.0.0.0/0", "http://8.8.8.8/"),
            ("::/0", "http://[2001::1]/"),
            ("10.1.2.3/8", "http://10.9.9.9/"),
            ("[2001:db8::1]", "http://[2001:db8::1]:5/"),
            ("10.0.0.1", "http://[::ffff:10.0.0.1]/"),
        ] {
            assert!(is_direct(list, url), "{list}");
        }
        assert!(!is_direct("10.0.0.0/33,10.0.0.0/x,10.0.0.0/-1", "http://10.0.0.1/"));
    }
}
