//! A client of OCI registries (language.md §7.4, §7.7): names, credentials, manifests and blobs. Fetching functions and
//! publishing them both use it.
//!
//! Owns the requests to a registry and the checks of its answers: every content must match its digest, and no blob may
//! be larger than announced. May not know of trees, jobs or the language.
//!
//! Credentials are sent to the registry and to the token server that its challenge names, because the registry's
//! operator holds them anyway. After a redirect to another host none are sent.

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

pub(crate) use credentials::DOCKER_AUTH_CONFIG;
pub use error::OciError;
pub(crate) use error::Problem;
pub use name::{ImageName, ImageVersion};
pub(crate) use platform::Platform;

use crate::web::{self, Network, TransferRate};

/// Largest manifest or index in bytes: the size that every registry must accept.
pub(crate) const MAX_MANIFEST_BYTES: usize = 4 << 20;

/// Access to a repository, which the registry must grant beforehand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read.
    Pull,
    /// Read and write.
    Push,
}

/// A manifest or index of a registry.
#[derive(Clone, Debug)]
pub struct Manifest {
    /// Its parsed content.
    pub content: OciManifest,
    /// Its bytes, whose digest is [`Self::digest`].
    pub bytes: Vec<u8>,
    /// `sha256:` and 64 hexadecimal digits, even if it was requested by a digest of another algorithm.
    pub(crate) digest: String,
}

/// A repository in a registry, with credentials. Holds secrets, so there is no `Debug`.
pub struct Registry {
    name: ImageName,
    reference: Reference,
    client: Client,
    /// Client that pushes blobs, see `push`; present only with access to push.
    uploads: Option<Client>,
    access: Access,
    network: Network,
    /// Certificates of the authorities to trust, read once.
    certificates: Vec<Certificate>,
    credentials: RegistryAuth,
}

impl Registry {
    /// Logs in and requests `access`. Uses the credentials that `docker_config`, the value of [`DOCKER_AUTH_CONFIG`],
    /// has for the repository. Logs in anonymously if it has none.
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

    /// Returns the name given to [`Self::open`].
    pub(crate) fn name(&self) -> &ImageName {
        &self.name
    }

    /// Fetches the manifest or index that `version` of the repository now names.
    pub async fn manifest(&self, version: &ImageVersion) -> Result<Manifest, OciError> {
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

    /// Fetches the manifest of the image that [`Self::name`] names now. If that is an index, fetches the image that it
    /// lists for `platform`; otherwise ignores `platform`.
    pub(crate) async fn image(&self, platform: &Platform) -> Result<Manifest, OciError> {
        let found = self.manifest(self.name.version()).await?;
        let OciManifest::ImageIndex(index) = &found.content else { return Ok(found) };
        let entry = platform.choose(&index.manifests).map_err(|problem| problem.of(&self.name))?;
        let chosen = ImageVersion::digest(&entry.digest)
            .ok_or_else(|| Problem::Nonsense("its index holds a malformed digest".into()).of(&self.name))?;
        let image = self.manifest(&chosen).await?;
        match image.content {
            OciManifest::Image(_) => Ok(image),
            OciManifest::ImageIndex(_) => {
                Err(Problem::Nonsense("its index names another index".into()).of(&self.name))
            }
        }
    }

    /// Writes a blob into `out` and checks its size and digest. Passes the number of new bytes to `received`. Do not
    /// trust the written data unless this succeeds.
    pub(crate) async fn blob(
        &mut self,
        blob: &OciDescriptor,
        out: &mut dyn Write,
        received: &mut dyn FnMut(u64),
    ) -> Result<(), OciError> {
        if ImageVersion::digest(&blob.digest).is_none() {
            return Err(Problem::Nonsense("its manifest holds a malformed digest".into()).of(&self.name));
        }
        // Ask by digest only: URLs in a manifest could direct us to any other server.
        let mut answer = self.client.pull_blob_stream(&self.reference, blob.digest.as_str()).await;
        if answer.as_ref().is_err_and(error::is_denied) {
            // The authorization is short-lived, and earlier transfers may have taken long.
            self.log_in().await?;
            answer = self.client.pull_blob_stream(&self.reference, blob.digest.as_str()).await;
        }
        let mut answer = answer.map_err(|error| self.failed(error))?;
        let size = u64::try_from(blob.size).unwrap_or(0);
        let (mut left, mut pace) = (size, TransferRate::default());
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

    /// Lists the repository's tags after `last`, as many as the registry gives at once.
    pub(crate) async fn tags(&self, last: Option<&str>) -> Result<Vec<String>, OciError> {
        let listed = self.client.list_tags(&self.reference, &self.credentials, None, last).await;
        Ok(listed.map_err(|error| self.failed(error))?.tags)
    }

    /// Pushes a manifest or index of `media_type` as `version`. Returns its digest.
    pub async fn push_manifest(
        &self,
        version: &ImageVersion,
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

    /// Logs in and keeps the authorized clients.
    async fn log_in(&mut self) -> Result<(), OciError> {
        self.client = self.logged_in(web::READ_TIMEOUT).await?;
        if self.access == Access::Push {
            self.uploads = Some(self.logged_in(push::LONGEST_UPLOAD).await?);
        }
        Ok(())
    }

    /// Returns an authorized client with the read timeout `silence`.
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
        // The library assumes that a token is a valid header value, and replaces it when it says that it has expired.
        // So we check it and give it to a client that has no other credentials.
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

/// Returns the digest of a content.
pub fn digest_of(bytes: &[u8]) -> String {
    digest_of_hash(&Sha256::digest(bytes))
}

/// Returns the digest of a content whose SHA-256 is known.
pub(crate) fn digest_of_hash(hash: &[u8]) -> String {
    let hex: Vec<String> = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{}", hex.concat())
}

/// Creates a client for the registry of `name` with the read timeout `silence`. Each client stores its own credentials.
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
        // Push a blob of any size in one request, which every registry accepts.
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

/// Returns the certificates to trust. Skips unusable ones, because a single one makes the client's creation fail.
fn certificates(network: &Network) -> Result<Vec<Certificate>, Problem> {
    let usable =
        |der: &rustls::pki_types::CertificateDer<'static>| RootCertStore::empty().add(der.clone()).is_ok();
    let found = network.certificates()?.into_iter().filter(usable);
    let found: Vec<_> =
        found.map(|der| Certificate { encoding: CertificateEncoding::Der, data: der.to_vec() }).collect();
    if found.is_empty() {
        // The library would take an empty list for another set of authorities.
        return Err(Problem::NoCertificates);
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
