//! A client of OCI registries (language.md §7.4, §7.7): names, credentials, manifests and blobs. Fetching functions and
//! publishing them both use it.
//!
//! Owns the requests to a registry and the checks of its answers: every content must match its digest, and no blob may
//! be larger than announced. May not know of trees, jobs or the language.
//!
//! Credentials are sent to the registry and to the token server that its challenge names, because the registry's
//! operator holds them anyway. After a redirect to another host none are sent.

mod credentials;
mod digest;
mod error;
mod http;
mod index;
mod name;
mod platform;
mod push;
mod session;
mod token;

use std::fs::File;
use std::io::{Seek, Write};
use std::time::Instant;

use ::http::{HeaderValue, Method};
use oci_client::manifest::{
    IMAGE_MANIFEST_LIST_MEDIA_TYPE, IMAGE_MANIFEST_MEDIA_TYPE, OCI_IMAGE_INDEX_MEDIA_TYPE,
    OCI_IMAGE_MEDIA_TYPE, OciDescriptor, OciManifest,
};
use serde::Deserialize;

pub use credentials::DOCKER_AUTH_CONFIG;
pub use digest::digest_of;
pub(crate) use digest::digest_of_hash;
pub use error::OciError;
pub use error::Problem;
pub(crate) use error::short;
pub(crate) use index::MAX_INDEX_DEPTH;
pub use name::{ImageName, ImageVersion};
pub use platform::Platform;

use self::credentials::Credentials;
use self::digest::DigestCheck;
use self::http::{Request, read};
use self::session::Session;
use step_runner_web::fault::RequestFault;
use step_runner_web::retry::Notice;
use step_runner_web::{Network, TransferRate};

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
    pub digest: String,
}

/// Most bytes of a list of tags. A registry sends it in parts.
const MAX_TAGS_BYTES: usize = 4 << 20;

/// A repository in a registry, with credentials. Holds secrets, so there is no `Debug`.
pub struct Registry {
    name: ImageName,
    session: Session,
}

#[derive(Deserialize)]
struct Tags {
    tags: Option<Vec<String>>,
}

impl Access {
    /// Returns the actions of a token's scope.
    const fn scope(self) -> &'static str {
        match self {
            Self::Pull => "pull",
            Self::Push => "pull,push",
        }
    }
}

impl Registry {
    /// Prepares access to a repository. Uses the credentials that `docker_config`, the value of [`DOCKER_AUTH_CONFIG`], has
    /// for it, once the registry asks for some. Sends nothing yet.
    pub fn open(
        network: &Network,
        name: &ImageName,
        docker_config: Option<&str>,
        access: Access,
    ) -> Result<Self, OciError> {
        let open = || {
            let credentials = match docker_config {
                Some(config) => credentials::find(config, name)?,
                None => Credentials::Anonymous,
            };
            Session::new(network, name, credentials, access)
        };
        Ok(Self { name: name.clone(), session: open().map_err(|problem| name.failed(problem))? })
    }

    /// Has `notice` called with a line for each read that failed and is tried again.
    #[must_use]
    pub(crate) fn telling(mut self, notice: Notice) -> Self {
        self.session.tell(notice);
        self
    }

    /// Returns the name given to [`Self::open`].
    pub fn name(&self) -> &ImageName {
        &self.name
    }

    /// Fetches the manifest or index that `version` of the repository now names.
    pub async fn manifest(&self, version: &ImageVersion) -> Result<Manifest, OciError> {
        self.session.begin_task();
        self.next_manifest(version).await
    }

    /// Like [`Self::manifest`], as a part of the task that has begun.
    async fn next_manifest(&self, version: &ImageVersion) -> Result<Manifest, OciError> {
        self.session.retrying(async || self.manifest_once(version).await).await.map_err(|p| self.failed(p))
    }

    async fn manifest_once(&self, version: &ImageVersion) -> Result<Manifest, Problem> {
        const MANIFESTS: [&str; 4] = [
            OCI_IMAGE_MEDIA_TYPE,
            OCI_IMAGE_INDEX_MEDIA_TYPE,
            IMAGE_MANIFEST_MEDIA_TYPE,
            IMAGE_MANIFEST_LIST_MEDIA_TYPE,
        ];
        let url = self.session.url(&format!("manifests/{}", version.text()))?;
        let answer = self.session.send(&Request::new(Method::GET, url).accept(&MANIFESTS)).await?;
        let named = answer.headers().get("docker-content-digest").and_then(|value| value.to_str().ok());
        let named = named.map(str::to_owned);
        let bytes = read(answer, MAX_MANIFEST_BYTES).await.map_err(|problem| match problem {
            Problem::TooLarge(_) => Problem::TooLarge("manifest"),
            problem => problem,
        })?;
        let asked = if let ImageVersion::Digest(digest) = version { Some(digest) } else { None };
        for expected in asked.into_iter().chain(&named) {
            let mut check = DigestCheck::new(expected)
                .ok_or_else(|| Problem::Nonsense("it names a malformed digest".into()))?;
            check.update(&bytes);
            if !check.matches() {
                return Err(Problem::Digest(expected.clone()));
            }
        }
        let content = serde_json::from_slice(&bytes)
            .map_err(|error| Problem::no_json("its manifest is no image manifest and no index", &error))?;
        Ok(Manifest { content, digest: digest_of(&bytes), bytes })
    }

    /// Writes a blob into the empty file `out` and checks its size and digest. Passes the number of new bytes to
    /// `received`. Do not trust the written data unless this succeeds.
    pub async fn blob(
        &mut self,
        blob: &OciDescriptor,
        out: &mut File,
        received: &mut dyn FnMut(u64),
    ) -> Result<(), OciError> {
        self.session.begin_task();
        // Bytes that were reported; those of a further try are not reported again.
        let mut reported = 0;
        let once = async || {
            let mut written = 0;
            let mut report = |bytes| {
                written += bytes;
                received(written.max(reported) - reported);
                reported = reported.max(written);
            };
            out.set_len(0).and_then(|()| out.rewind()).map_err(Problem::Scratch)?;
            self.blob_once(blob, out, &mut report).await
        };
        self.session.retrying(once).await.map_err(|problem| self.failed(problem))
    }

    async fn blob_once(
        &self,
        blob: &OciDescriptor,
        out: &mut File,
        received: &mut dyn FnMut(u64),
    ) -> Result<(), Problem> {
        let mut check = DigestCheck::new(&blob.digest)
            .ok_or_else(|| Problem::Nonsense("its manifest holds a malformed digest".into()))?;
        // Ask by digest only: URLs in a manifest could direct us to any other server.
        let url = self.session.url(&format!("blobs/{}", blob.digest))?;
        let answer = self.session.send(&Request::new(Method::GET, url)).await;
        let mut answer = answer.map_err(|problem| problem.of_part(&blob.digest))?;
        let mut left = u64::try_from(blob.size).unwrap_or(0);
        let mut pace = TransferRate::default();
        loop {
            let begin = Instant::now();
            let piece =
                answer.chunk().await.map_err(|error| Problem::of_request(RequestFault::of(&error)))?;
            let Some(bytes) = piece else { break };
            if pace.is_too_slow(begin.elapsed(), bytes.len() as u64) {
                return Err(Problem::Slow);
            }
            left = left
                .checked_sub(bytes.len() as u64)
                .ok_or_else(|| Problem::Nonsense("a blob is larger than announced".into()))?;
            check.update(&bytes);
            out.write_all(&bytes).map_err(Problem::Scratch)?;
            received(bytes.len() as u64);
        }
        if left > 0 {
            return Err(Problem::Cut);
        }
        if check.matches() { Ok(()) } else { Err(Problem::Digest(blob.digest.clone())) }
    }

    /// Lists the repository's tags after `last`, as many as the registry gives at once.
    pub async fn tags(&self, last: Option<&str>) -> Result<Vec<String>, OciError> {
        self.session.begin_task();
        let once = async || {
            let mut url = self.session.url("tags/list")?;
            if let Some(last) = last {
                url.query_pairs_mut().append_pair("last", last);
            }
            let answer = self.session.send(&Request::new(Method::GET, url)).await?;
            let bytes = read(answer, MAX_TAGS_BYTES).await?;
            let listed: Tags = serde_json::from_slice(&bytes)
                .map_err(|error| Problem::no_json("its list of tags is none", &error))?;
            Ok(listed.tags.unwrap_or_default())
        };
        self.session.retrying(once).await.map_err(|problem| self.failed(problem))
    }

    /// Pushes a manifest or index of `media_type` as `version`. Returns its digest.
    pub async fn push_manifest(
        &self,
        version: &ImageVersion,
        bytes: Vec<u8>,
        media_type: &str,
    ) -> Result<String, OciError> {
        let digest = digest_of(&bytes);
        let pushed = async {
            let media_type = HeaderValue::from_str(media_type)
                .map_err(|_| Problem::Nonsense("malformed media type of a manifest".into()))?;
            let url = self.session.url(&format!("manifests/{}", version.text()))?;
            self.session.send(&Request::new(Method::PUT, url).body(bytes, media_type)).await
        };
        pushed.await.map(|_| digest).map_err(|problem| self.failed(problem))
    }

    fn failed(&self, problem: Problem) -> OciError {
        self.name.failed(self.session.explained(problem))
    }
}

#[cfg(test)]
mod tests;
