//! HTTP clients for fetching on behalf of a step. Proxies and certificates come from an environment that the caller
//! gives, never from this process's own (language.md §7.7).

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use reqwest::{NoProxy, Proxy};
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use url::{Host, Url};

/// Longest time to connect to a server.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// Longest silence of a server. One that is silent for longer is considered dead.
pub(crate) const READ_TIMEOUT: Duration = Duration::from_mins(1);

/// Minimum rate of a transfer in bytes per second. A slower one fails.
pub(crate) const LEAST_RATE: u64 = 1 << 10;

/// Waiting time over which [`LEAST_RATE`] is measured.
const RATE_TIME: Duration = Duration::from_mins(1);

/// Name of this program in requests.
pub(crate) const USER_AGENT: &str = concat!("step-runner/", env!("CARGO_PKG_VERSION"));

/// Variables for reaching servers, taken from the step's environment, or else from the daemon's.
pub(crate) const VARIABLES: [&str; 10] = [
    "HTTPS_PROXY",
    "https_proxy",
    "HTTP_PROXY",
    "http_proxy",
    "ALL_PROXY",
    "all_proxy",
    "NO_PROXY",
    "no_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
];

/// Settings for reaching servers: values of [`VARIABLES`] by name. A proxy's URL may hold a password: no `Debug`.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    values: BTreeMap<String, String>,
}

/// This machine in the form of `no_proxy`: no proxy leads here.
const THIS_MACHINE: &str = "localhost,127.0.0.0/8,::1";

/// Every host, in the same form.
const EVERY_HOST: &str = "*,0.0.0.0/0,::/0";

/// Checked addresses of proxies. They may hold passwords, so there is no `Debug`.
pub(crate) struct ProxyAddresses {
    /// For `https://`.
    pub(crate) https: Option<String>,
    /// For `http://`.
    pub(crate) http: Option<String>,
    /// Hosts reached without a proxy, in the form of the variable `no_proxy`. This machine is always included.
    pub(crate) exempt: String,
}

/// Reasons why there is no client. Never quotes the value of a variable, which may hold a password.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WebError {
    /// A proxy variable holds no usable address.
    #[error("the value of {0} is no proxy address: expected a URL such as http://proxy:3128")]
    Proxy(&'static str),
    /// The file or folder of certificates in a variable is unusable.
    #[error(
        "cannot read a certificate from the path in {0}: name a PEM file or a folder of such files that this user can read"
    )]
    Certificates(&'static str),
    /// The client could not be created.
    #[error("cannot set up the HTTP client")]
    Client(#[source] reqwest::Error),
}

/// Measures the speed of a transfer. Counts only the time spent waiting, not processing. The wait before the first byte
/// does not count.
#[derive(Debug, Default)]
pub(crate) struct TransferRate {
    begun: bool,
    waited: Duration,
    bytes: u64,
}

impl TransferRate {
    /// Records bytes that came after a wait. True if the transfer was below [`LEAST_RATE`] for a minute of waiting.
    pub(crate) fn is_too_slow(&mut self, waited: Duration, bytes: u64) -> bool {
        if !self.begun {
            self.begun = bytes > 0;
            return false;
        }
        self.waited += waited;
        self.bytes += bytes;
        if self.waited < RATE_TIME {
            return false;
        }
        let slow = self.bytes < LEAST_RATE * self.waited.as_secs();
        (self.waited, self.bytes) = (Duration::ZERO, 0);
        slow
    }
}

impl Network {
    /// Takes each of [`VARIABLES`] from `step`, or else from `daemon`. Empty values are dropped afterwards.
    pub fn new(step: impl Fn(&str) -> Option<String>, daemon: impl Fn(&str) -> Option<String>) -> Self {
        let value = |name: &str| step(name).or_else(|| daemon(name)).filter(|value| !value.is_empty());
        let values = VARIABLES.into_iter().filter_map(|name| Some((name.to_owned(), value(name)?)));
        Self { values: values.collect() }
    }

    fn first(&self, names: [&'static str; 2]) -> Option<(&'static str, &str)> {
        names.into_iter().find_map(|name| Some((name, self.values.get(name)?.as_str())))
    }

    /// Returns the proxies in force. Of two spellings the lower-case one counts.
    fn proxies(&self) -> Result<Vec<Proxy>, WebError> {
        let exempt = self.first(["no_proxy", "NO_PROXY"]).and_then(|(_, list)| NoProxy::from_string(list));
        let make = |names, kind: fn(&str) -> reqwest::Result<Proxy>| {
            let Some((name, address)) = self.first(names) else { return Ok(None) };
            let proxy = kind(address).map_err(|_| WebError::Proxy(name))?;
            Ok(Some(proxy.no_proxy(exempt.clone())))
        };
        let found = [
            make(["https_proxy", "HTTPS_PROXY"], |address| Proxy::https(address))?,
            make(["http_proxy", "HTTP_PROXY"], |address| Proxy::http(address))?,
            make(["all_proxy", "ALL_PROXY"], |address| Proxy::all(address))?,
        ];
        Ok(found.into_iter().flatten().collect())
    }

    /// Returns the proxies for a client that takes addresses as text and, if it gets none, reads this process's
    /// environment. Therefore, without a proxy, returns one for `http://` from which every host is exempt.
    ///
    /// # Errors
    /// A proxy variable holds no usable address.
    pub(crate) fn proxy_addresses(&self) -> Result<ProxyAddresses, WebError> {
        self.proxies()?;
        let value = |names| self.first(names).map(|(_, value)| value.to_owned());
        let all = value(["all_proxy", "ALL_PROXY"]);
        let https = value(["https_proxy", "HTTPS_PROXY"]).or_else(|| all.clone());
        let http = value(["http_proxy", "HTTP_PROXY"]).or(all);
        if https.is_none() && http.is_none() {
            let nowhere = Some("http://localhost".to_owned());
            return Ok(ProxyAddresses { https: None, http: nowhere, exempt: EVERY_HOST.to_owned() });
        }
        let listed = value(["no_proxy", "NO_PROXY"]);
        let exempt =
            [Some(THIS_MACHINE), listed.as_deref()].into_iter().flatten().collect::<Vec<_>>().join(",");
        Ok(ProxyAddresses { https, http, exempt })
    }

    /// Returns the certificates of the authorities to trust; never empty. They are those of `SSL_CERT_FILE` and
    /// `SSL_CERT_DIR` if set, else the system's present ones (an earlier step may have installed some), else those
    /// built into this program.
    ///
    /// # Errors
    /// A variable names a path without certificates.
    pub(crate) fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, WebError> {
        let mut found = Vec::new();
        for name in ["SSL_CERT_FILE", "SSL_CERT_DIR"] {
            let Some(path) = self.values.get(name).map(Path::new) else { continue };
            let (file, folder) =
                if name == "SSL_CERT_FILE" { (Some(path), None) } else { (None, Some(path)) };
            let read = rustls_native_certs::load_certs_from_paths(file, folder).certs;
            if read.is_empty() {
                return Err(WebError::Certificates(name));
            }
            found.extend(read);
        }
        if found.is_empty() {
            found = rustls_native_certs::load_native_certs().certs;
        }
        if found.is_empty() {
            found = webpki_root_certs::TLS_SERVER_ROOT_CERTS.to_vec();
        }
        Ok(found)
    }

    /// True if the system has certificates of its own.
    pub(crate) fn system_has_certificates() -> bool {
        !rustls_native_certs::load_native_certs().certs.is_empty()
    }

    /// Creates TLS settings that trust [`Self::certificates`].
    pub(crate) fn tls(&self) -> Result<rustls::ClientConfig, WebError> {
        use_ring();
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(self.certificates()?);
        Ok(rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth())
    }

    /// Creates a client for a thread that may block. It follows no redirects and sends no header of its own but
    /// [`USER_AGENT`]. A server may be silent for [`READ_TIMEOUT`], before and within its answer.
    pub(crate) fn blocking_client(&self) -> Result<reqwest::blocking::Client, WebError> {
        let mut client = reqwest::blocking::Client::builder()
            .tls_backend_preconfigured(self.tls()?)
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            // A blocking client applies this limit to each read of an answer, not to the whole.
            .timeout(READ_TIMEOUT)
            .user_agent(USER_AGENT);
        for proxy in self.proxies()? {
            client = client.proxy(proxy);
        }
        client.build().map_err(WebError::Client)
    }
}

/// Selects the cryptography provider of this process, once.
pub fn use_ring() {
    static CHOSEN: OnceLock<()> = OnceLock::new();
    CHOSEN.get_or_init(|| {
        // Fails if a provider is set already; that can only be the same one.
        rustls::crypto::ring::default_provider().install_default().ok();
    });
}

/// True if `url` names this machine by a loopback name or address (language.md §7.4).
pub(crate) fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name.eq_ignore_ascii_case("localhost"),
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(variables: &[(&str, &str)]) -> ProxyAddresses {
        let value = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        Network::new(value, |_| None).proxy_addresses().unwrap()
    }

    #[test]
    fn a_client_is_never_left_to_find_a_proxy_by_itself() {
        let none = addresses(&[("no_proxy", "x")]);
        assert!(none.http.is_some(), "else the library looks into the environment");
        assert_eq!((none.https, none.exempt.as_str()), (None, EVERY_HOST));
        let one =
            addresses(&[("all_proxy", "http://p:1"), ("no_proxy", "x,y"), ("https_proxy", "http://q:1")]);
        assert_eq!((one.https.as_deref(), one.http.as_deref()), (Some("http://q:1"), Some("http://p:1")));
        assert_eq!(one.exempt, "localhost,127.0.0.0/8,::1,x,y");
    }

    #[test]
    fn a_transfer_may_begin_late_and_pause_but_not_drip() {
        let seconds = Duration::from_secs;
        let mut rate = TransferRate::default();
        assert!(!rate.is_too_slow(seconds(500), 0), "nothing has come");
        assert!(!rate.is_too_slow(seconds(500), 1), "the first byte");
        assert!(!rate.is_too_slow(seconds(59), 0));
        assert!(!rate.is_too_slow(seconds(1), 60 * LEAST_RATE), "on the average it is fast enough");
        assert!(!(0..59).any(|_| rate.is_too_slow(seconds(1), 100)));
        assert!(rate.is_too_slow(seconds(1), 100));
    }
}
