//! A client of OCI registries (language.md §7.4, §7.7): names, credentials, manifests and blobs, for what fetches
//! functions and for what builds and publishes them.
//!
//! Owns what is asked of a registry and what its answers may be: every content is checked against its digest and no
//! more is read than was announced. May not know of trees, jobs or the language.
//!
//! Credentials go to the registry, and to the token server that it names in its challenge; a redirection to another
//! host gets none. Whoever runs the registry holds them anyway.

mod credentials;
mod error;
mod name;
mod platform;
mod push;

use std::io::Write;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use http::HeaderValue;
use oci_client::client::{Certificate, CertificateEncoding, ClientConfig, ClientProtocol};
use oci_client::manifest::{
    IMAGE_MANIFEST_LIST_MEDIA_TYPE, IMAGE_MANIFEST_MEDIA_TYPE, OCI_IMAGE_INDEX_MEDIA_TYPE,
    OCI_IMAGE_MEDIA_TYPE, OciDescriptor, OciManifest,
};
use oci_client::secrets::RegistryAuth;
use oci_client::{Client, Reference, RegistryOperation};
use rustls::RootCertStore;
use sha2::{Digest, Sha256};

pub use credentials::DOCKER_AUTH_CONFIG;
pub use error::{OciError, Problem};
pub use name::{ImageName, Version};
pub use platform::Platform;

use crate::web::{self, Network, Pace};

/// Largest manifest or index in bytes, the least that every registry takes.
pub const MAX_MANIFEST_BYTES: usize = 4 << 20;

/// What is done with a repository; a registry grants it beforehand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read.
    Pull,
    /// Read and write.
    Push,
}

/// A manifest or an index as a registry keeps it.
#[derive(Clone, Debug)]
pub struct Manifest {
    /// Its content.
    pub content: OciManifest,
    /// Its bytes, whose digest is [`Self::digest`].
    pub bytes: Vec<u8>,
    /// `sha256:` and 64 hexadecimal digits, also where it was asked for by another digest.
    pub digest: String,
}

/// A repository in a registry, with the credentials for it. Holds secrets, so there is no `Debug`.
pub struct Registry {
    name: ImageName,
    reference: Reference,
    client: Client,
    /// For blobs on their way up: see `push`. Made when there is leave.
    uploads: Option<Client>,
    access: Access,
    network: Network,
    /// Of the authorities to trust, read once.
    certificates: Vec<Certificate>,
    credentials: RegistryAuth,
}

impl Registry {
    /// Shows the credentials that `docker_config` (the value of [`DOCKER_AUTH_CONFIG`]) has for the repository, and
    /// gets leave for `access`. Without any it asks as anybody.
    pub async fn open(
        network: &Network,
        name: &ImageName,
        docker_config: Option<&str>,
        access: Access,
    ) -> Result<Self, OciError> {
        let credentials = match docker_config {
            Some(config) => credentials::find(config, name).map_err(|problem| problem.of(name))?,
            None => RegistryAuth::Anonymous,
        };
        let certificates = certificates(network).map_err(|problem| problem.of(name))?;
        let client = client(network, name, &certificates, web::READ_TIMEOUT);
        let mut registry = Self {
            name: name.clone(),
            reference: name.reference(),
            client: client.map_err(|problem| problem.of(name))?,
            uploads: None,
            access,
            network: network.clone(),
            certificates,
            credentials,
        };
        registry.log_in().await?;
        Ok(registry)
    }

    /// What [`Self::open`] was given.
    pub fn name(&self) -> &ImageName {
        &self.name
    }

    /// The manifest or index that `version` of the repository is now.
    pub async fn manifest(&self, version: &Version) -> Result<Manifest, OciError> {
        let reference = self.name.with(version.clone()).reference();
        let accepted = [
            OCI_IMAGE_MEDIA_TYPE,
            OCI_IMAGE_INDEX_MEDIA_TYPE,
            IMAGE_MANIFEST_MEDIA_TYPE,
            IMAGE_MANIFEST_LIST_MEDIA_TYPE,
        ];
        let (bytes, _) = self
            .client
            .pull_manifest_raw(&reference, &self.credentials, &accepted)
            .await
            .map_err(|error| self.failed(error))?;
        if bytes.len() > MAX_MANIFEST_BYTES {
            return Err(Problem::TooLarge("manifest").of(&self.name));
        }
        let content = serde_json::from_slice(&bytes).map_err(|_| {
            Problem::Nonsense("its manifest is no image manifest and no index".into()).of(&self.name)
        })?;
        let digest = digest_of(&bytes);
        Ok(Manifest { content, bytes: bytes.into(), digest })
    }

    /// The image for `platform` that the repository's version of [`Self::name`] is now: itself, or the one that an
    /// index names for the platform.
    pub async fn image(&self, platform: &Platform) -> Result<Manifest, OciError> {
        let found = self.manifest(self.name.version()).await?;
        let OciManifest::ImageIndex(index) = &found.content else { return Ok(found) };
        let entry = platform.choose(&index.manifests).map_err(|problem| problem.of(&self.name))?;
        let chosen = Version::digest(&entry.digest)
            .ok_or_else(|| Problem::Nonsense("its index holds a malformed digest".into()).of(&self.name))?;
        let image = self.manifest(&chosen).await?;
        match image.content {
            OciManifest::Image(_) => Ok(image),
            OciManifest::ImageIndex(_) => {
                Err(Problem::Nonsense("its index names another index".into()).of(&self.name))
            }
        }
    }

    /// Writes a blob into `out` and checks size and digest; `received` hears of the bytes as they come. Only at the
    /// good end is what was written to be trusted.
    pub async fn blob(
        &mut self,
        blob: &OciDescriptor,
        out: &mut dyn Write,
        received: &mut dyn FnMut(u64),
    ) -> Result<(), OciError> {
        if Version::digest(&blob.digest).is_none() {
            return Err(Problem::Nonsense("its manifest holds a malformed digest".into()).of(&self.name));
        }
        // By digest alone: the addresses that a manifest may give for a blob are another place to be sent to.
        let mut answer = self.client.pull_blob_stream(&self.reference, blob.digest.as_str()).await;
        if answer.as_ref().is_err_and(error::is_denied) {
            // The leave is short-lived, and what came before may have taken long.
            self.log_in().await?;
            answer = self.client.pull_blob_stream(&self.reference, blob.digest.as_str()).await;
        }
        let mut answer = answer.map_err(|error| self.failed(error))?;
        let size = u64::try_from(blob.size).unwrap_or(0);
        let (mut left, mut pace) = (size, Pace::default());
        loop {
            let begin = Instant::now();
            let Some(bytes) = answer.stream.next().await else { break };
            let bytes = bytes.map_err(|error| error::of_stream(error).of(&self.name))?;
            if pace.is_too_slow(begin.elapsed(), bytes.len() as u64) {
                return Err(Problem::Slow.of(&self.name));
            }
            left = left
                .checked_sub(bytes.len() as u64)
                .ok_or_else(|| Problem::Nonsense("a blob is larger than announced".into()).of(&self.name))?;
            out.write_all(&bytes).map_err(|error| Problem::Scratch(error).of(&self.name))?;
            received(bytes.len() as u64);
        }
        if left > 0 {
            return Err(Problem::Cut.of(&self.name));
        }
        Ok(())
    }

    /// Tags of the repository, as many as the registry lists at once after `last`.
    pub async fn tags(&self, last: Option<&str>) -> Result<Vec<String>, OciError> {
        let listed = self.client.list_tags(&self.reference, &self.credentials, None, last).await;
        Ok(listed.map_err(|error| self.failed(error))?.tags)
    }

    /// Puts a manifest or index of `media_type` into the repository as `version`: its digest.
    pub async fn push_manifest(
        &self,
        version: &Version,
        bytes: Vec<u8>,
        media_type: &str,
    ) -> Result<String, OciError> {
        let media_type = HeaderValue::from_str(media_type)
            .map_err(|_| Problem::Nonsense("malformed media type of a manifest".into()).of(&self.name))?;
        let reference = self.name.with(version.clone()).as_tag();
        let digest = digest_of(&bytes);
        let pushed = self.client.push_manifest_raw(&reference, bytes, media_type).await;
        pushed.map_err(|error| self.failed(error))?;
        Ok(digest)
    }

    /// Shows the credentials and keeps the leave that comes of it.
    async fn log_in(&mut self) -> Result<(), OciError> {
        self.client = self.logged_in(web::READ_TIMEOUT).await?;
        if self.access == Access::Push {
            self.uploads = Some(self.logged_in(push::LONGEST_UPLOAD).await?);
        }
        Ok(())
    }

    /// A client with leave that bears so long a silence.
    async fn logged_in(&self, silence: Duration) -> Result<Client, OciError> {
        let operation = match self.access {
            Access::Pull => RegistryOperation::Pull,
            Access::Push => RegistryOperation::Push,
        };
        let client = || {
            client(&self.network, &self.name, &self.certificates, silence)
                .map_err(|problem| problem.of(&self.name))
        };
        let asking = client()?;
        let token = asking.auth(&self.reference, &self.credentials, operation).await;
        let Some(token) = token.map_err(|error| self.failed(error))? else { return Ok(asking) };
        // The library takes for granted that a token can stand in a header, and asks for another when the token says
        // of itself that it is over: a client that knows nothing else is given this one.
        if HeaderValue::from_str(&token).is_err() {
            return Err(Problem::Nonsense("its token server sent no token".into()).of(&self.name));
        }
        let client = client()?;
        let fixed = RegistryAuth::Bearer(token);
        client.store_auth_if_needed(self.reference.resolve_registry(), &fixed).await;
        Ok(client)
    }

    fn failed(&self, error: oci_client::errors::OciDistributionError) -> OciError {
        let known = self.credentials != RegistryAuth::Anonymous;
        error::of_library(error, known).of(&self.name)
    }
}

/// The digest of a content.
pub fn digest_of(bytes: &[u8]) -> String {
    digest_of_hash(&Sha256::digest(bytes))
}

/// The digest of a content whose SHA-256 is known.
pub fn digest_of_hash(hash: &[u8]) -> String {
    let hex: Vec<String> = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{}", hex.concat())
}

/// A client for the registry of `name` that bears so long a silence; every one has its own memory of credentials.
fn client(
    network: &Network,
    name: &ImageName,
    certificates: &[Certificate],
    silence: Duration,
) -> Result<Client, Problem> {
    web::use_ring();
    let proxies = network.proxy_addresses()?;
    let config = ClientConfig {
        protocol: if name.is_loopback() { ClientProtocol::Http } else { ClientProtocol::Https },
        tls_certs_only: certificates.to_vec(),
        platform_resolver: None,
        // One request for a blob of any size: every registry takes that.
        use_monolithic_push: true,
        connect_timeout: Some(web::CONNECT_TIMEOUT),
        read_timeout: Some(silence),
        user_agent: web::USER_AGENT,
        https_proxy: proxies.https,
        http_proxy: proxies.http,
        no_proxy: Some(proxies.exempt),
        ..ClientConfig::default()
    };
    Client::try_from(config).map_err(|error| error::of_library(error, false))
}

/// Certificates to trust; those that cannot be used are left out, as one alone would spoil the client.
fn certificates(network: &Network) -> Result<Vec<Certificate>, Problem> {
    let usable =
        |der: &rustls::pki_types::CertificateDer<'static>| RootCertStore::empty().add(der.clone()).is_ok();
    let found = network.certificates()?.into_iter().filter(usable);
    let found: Vec<_> =
        found.map(|der| Certificate { encoding: CertificateEncoding::Der, data: der.to_vec() }).collect();
    if found.is_empty() {
        // An empty list would mean another set of authorities to the library.
        return Err(Problem::NoCertificates);
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
