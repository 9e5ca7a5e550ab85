//! Follows an index to the image for a platform (language.md §7.7). An index may name others: builders wrap an image
//! and its attestation in one, and tools merge several.

use oci_client::manifest::OciManifest;

use super::error::{OciError, Problem};
use super::platform::Platform;
use super::{ImageVersion, Manifest, Registry};

/// Most indexes below the first one, on the way to an image.
pub(crate) const MAX_INDEX_DEPTH: usize = 3;

/// Most manifests and indexes that one reference makes us fetch: each takes a request.
const MAX_FETCHED: usize = 20;

impl Registry {
    /// Fetches the manifest of the image that [`Self::name`] names now. If that is an index, fetches the image that it
    /// lists for `platform`, perhaps in an index below; otherwise ignores `platform`.
    pub async fn image(&self, platform: &Platform) -> Result<Manifest, OciError> {
        let mut found = self.manifest(self.name().version()).await?;
        let (mut depth, mut entries) = (0, Vec::new());
        // Entries to look at, the last one first. An index that has nothing for us leads to the next one.
        let mut open: Vec<(String, usize)> = Vec::new();
        for _ in 0..MAX_FETCHED {
            let OciManifest::ImageIndex(index) = found.content else { return Ok(found) };
            if depth > MAX_INDEX_DEPTH {
                let text = format!("its indexes name others, more than {MAX_INDEX_DEPTH} below each other");
                return Err(self.failed(Problem::Nonsense(text)));
            }
            let candidates = platform.candidates(&index.manifests);
            open.extend(candidates.into_iter().rev().map(|entry| (entry.digest.clone(), depth + 1)));
            entries.extend(index.manifests);
            let Some((digest, below)) = open.pop() else {
                return Err(self.failed(platform.missing_in(&entries)));
            };
            let version = ImageVersion::digest(&digest)
                .ok_or_else(|| self.failed(Problem::Nonsense("its index holds a malformed digest".into())))?;
            let next = self.next_manifest(&version).await;
            let next = next.map_err(|error| OciError { problem: error.problem.of_part(&digest), ..error })?;
            (found, depth) = (next, below);
        }
        Err(self.failed(Problem::TooLarge("number of indexes")))
    }
}
