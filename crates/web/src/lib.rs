//! HTTP clients for fetching on behalf of a step. Proxies and certificates come from an environment that the caller
//! gives, never from this process's own (language.md §7.7).
//!
//! All requests to registries and Git servers go through a client of [`Network`]. `proxy` says which way they take, `tls`
//! which certificates they accept, `redirect` where credentials may go, `retry` when a read is tried again, and `fault`
//! what was wrong.

pub mod fault;
mod proxy;
pub mod redirect;
pub mod retry;
pub mod tls;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use rustls::client::VerifierBuilderError;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls_native_certs::ErrorKind;
use serde::{Deserialize, Serialize};
use url::{Host, Url};

use self::fault::RequestFault;
use self::proxy::Proxies;

/// Longest time to connect to a server.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// Longest silence of a server. One that is silent for longer is considered dead.
pub const READ_TIMEOUT: Duration = Duration::from_mins(1);

/// Minimum rate of a transfer in bytes per second. A slower one fails.
pub const LEAST_RATE: u64 = 1 << 10;

/// Waiting time over which [`LEAST_RATE`] is measured.
const RATE_TIME: Duration = Duration::from_mins(1);

/// Name of this program in requests.
pub const USER_AGENT: &str = concat!("step-runner/", env!("CARGO_PKG_VERSION"));

/// Variables for reaching servers, taken from the step's environment, or else from the daemon's.
pub const VARIABLES: [&str; 10] = [
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

/// Files for TLS that the settings of a connection name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificates to trust beside [`Network::certificates`].
    pub authorities: Option<PathBuf>,
    /// The client's own certificate, and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// Reasons why there is no client. Never quotes the value of a variable, which may hold a password.
#[derive(Debug, thiserror::Error)]
pub enum WebError {
    /// A proxy variable holds no usable address. Holds its name and the reason.
    #[error("the value of {0} is no proxy address ({1}): expected a URL such as http://proxy:3128")]
    Proxy(&'static str, String),
    /// The file or folder of certificates in a variable is unusable.
    #[error(
        "cannot read a certificate from the path in {0}: name a PEM file or a folder of such files that this user can read"
    )]
    Certificates(&'static str, #[source] Option<io::Error>),
    /// No certificate is usable to check a server's.
    #[error("none of the certificates of authorities can be used: check SSL_CERT_FILE and SSL_CERT_DIR")]
    NoCertificates(#[source] VerifierBuilderError),
    /// A file of certificates or of a key that a setting names is unusable.
    #[error("cannot read a certificate or key from {}: name a PEM file that this user can read", .0.display())]
    File(PathBuf, #[source] Option<io::Error>),
    /// The client's key does not fit its certificate, or one of them cannot be used.
    #[error("the key and the certificate of this client cannot be used together")]
    Identity(#[source] rustls::Error),
    /// The client could not be created.
    #[error("cannot set up the HTTP client")]
    Client(#[source] reqwest::Error),
}

/// Measures the speed of a transfer. Counts only the time spent waiting, not processing. The wait before the first byte
/// does not count.
#[derive(Debug, Default)]
pub struct TransferRate {
    begun: bool,
    waited: Duration,
    bytes: u64,
}

impl TransferRate {
    /// Records bytes that came after a wait. True if the transfer was below [`LEAST_RATE`] for a minute of waiting.
    pub fn is_too_slow(&mut self, waited: Duration, bytes: u64) -> bool {
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

    /// Checks the proxy variables.
    ///
    /// # Errors
    /// One of them holds no usable address.
    pub fn check_proxies(&self) -> Result<(), WebError> {
        Proxies::new(self).map(drop)
    }

    /// Translates an error of a client of this network.
    pub fn fault(&self, error: &reqwest::Error) -> RequestFault {
        let fault = RequestFault::of(error);
        let proxies = Proxies::new(self).unwrap_or_default();
        match error.url().and_then(|url| proxies.of(url)) {
            Some(proxy) => fault.through(proxy.variable),
            None => fault,
        }
    }

    /// Returns the certificates to trust, of authorities and servers; never empty. They are those of `SSL_CERT_FILE` and
    /// `SSL_CERT_DIR` if set, else the system's present ones (an earlier step may have installed some), else those
    /// built into this program.
    ///
    /// # Errors
    /// A variable names a path without certificates.
    pub fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, WebError> {
        let mut found = Vec::new();
        for name in ["SSL_CERT_FILE", "SSL_CERT_DIR"] {
            let Some(path) = self.values.get(name).map(Path::new) else { continue };
            let (file, folder) =
                if name == "SSL_CERT_FILE" { (Some(path), None) } else { (None, Some(path)) };
            let read = rustls_native_certs::load_certs_from_paths(file, folder);
            if read.certs.is_empty() {
                return Err(WebError::Certificates(name, unread(read.errors)));
            }
            found.extend(read.certs);
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
    pub fn system_has_certificates() -> bool {
        !rustls_native_certs::load_native_certs().certs.is_empty()
    }

    /// Creates TLS settings that trust [`Self::certificates`].
    pub fn tls(&self) -> Result<rustls::ClientConfig, WebError> {
        tls::config(self.certificates()?, None)
    }

    /// Creates TLS settings like [`Self::tls`], with the certificates and the identity in `files`.
    pub fn tls_with(&self, files: &TlsFiles) -> Result<rustls::ClientConfig, WebError> {
        let certificates = |path: &Path| {
            let read = rustls_native_certs::load_certs_from_paths(Some(path), None);
            if read.certs.is_empty() {
                return Err(WebError::File(path.to_owned(), unread(read.errors)));
            }
            Ok(read.certs)
        };
        let mut trusted = self.certificates()?;
        if let Some(path) = &files.authorities {
            trusted.extend(certificates(path)?);
        }
        let identity = match &files.identity {
            None => None,
            Some((certificate, key)) => {
                // Another error may quote a line of the file.
                let unreadable = |error| match error {
                    pem::Error::Io(error) => WebError::File(key.clone(), Some(error)),
                    _ => WebError::File(key.clone(), None),
                };
                let parsed = PrivateKeyDer::from_pem_file(key).map_err(unreadable)?;
                Some((certificates(certificate)?, parsed))
            }
        };
        tls::config(trusted, identity)
    }

    /// Creates a client for a thread that may block. It follows no redirects and sends no header of its own but
    /// [`USER_AGENT`]. A server may be silent for [`READ_TIMEOUT`], before and within its answer.
    pub fn blocking_client(&self) -> Result<reqwest::blocking::Client, WebError> {
        let client = reqwest::blocking::Client::builder()
            .tls_backend_preconfigured(self.tls()?)
            .no_proxy()
            .proxy(Proxies::new(self)?.of_client())
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            // A blocking client applies this limit to each read of an answer, not to the whole.
            .timeout(READ_TIMEOUT)
            .user_agent(USER_AGENT);
        client.build().map_err(WebError::Client)
    }

    /// Creates a client with these TLS settings, like [`Self::blocking_client`]. A server may be silent for `silence`.
    pub fn client(
        &self,
        tls: &rustls::ClientConfig,
        silence: Option<Duration>,
    ) -> Result<reqwest::Client, WebError> {
        self.client_with(tls, silence, |client| client)
    }

    /// Creates a client like [`Self::client`], with settings of its own.
    pub fn client_with(
        &self,
        tls: &rustls::ClientConfig,
        silence: Option<Duration>,
        settings: impl FnOnce(reqwest::ClientBuilder) -> reqwest::ClientBuilder,
    ) -> Result<reqwest::Client, WebError> {
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(tls.clone())
            .no_proxy()
            .proxy(Proxies::new(self)?.of_client())
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .user_agent(USER_AGENT);
        let client = silence.into_iter().fold(client, reqwest::ClientBuilder::read_timeout);
        settings(client).build().map_err(WebError::Client)
    }
}

/// Returns why the system refused to read certificates. Errors of another kind may quote a line of the file, which may
/// hold a key, too.
fn unread(errors: Vec<rustls_native_certs::Error>) -> Option<io::Error> {
    errors.into_iter().find_map(|error| match error.kind {
        ErrorKind::Io { inner, .. } => Some(inner),
        _ => None,
    })
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
pub fn is_loopback(url: &Url) -> bool {
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

    #[test]
    fn a_file_that_cannot_be_read_is_named_with_the_systems_reason_and_its_content_is_not_quoted() {
        let folder = std::env::temp_dir().join(format!("step-runner-web-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (absent, wrong) = (folder.join("absent.pem"), folder.join("wrong.pem"));
        std::fs::write(&wrong, "-----BEGIN PRIVATE KEY----- s3cret\n").unwrap();
        let identity =
            |key: &Path| TlsFiles { identity: Some((absent.clone(), key.to_owned())), ..TlsFiles::default() };
        let authorities =
            |path: &Path| TlsFiles { authorities: Some(path.to_owned()), ..TlsFiles::default() };
        let network = Network::default();
        for (files, is_absent) in [
            (identity(&absent), true),
            (authorities(&absent), true),
            (identity(&wrong), false),
            (authorities(&wrong), false),
        ] {
            let error = network.tls_with(&files).unwrap_err();
            let source = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            assert_eq!(source.contains("No such file"), is_absent, "{error}: {source}");
            assert!(!error.to_string().contains("s3cret") && !source.contains("s3cret"), "{error}: {source}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
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
