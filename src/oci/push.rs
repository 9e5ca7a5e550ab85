//! Pushes blobs of any size into a repository.
//!
//! The library counts the time from a request's first byte to its answer's first byte as silence. A large blob on a
//! slow line would look like a dead server. The client for blobs therefore has a limit that none reaches, and we watch
//! it here: while the connection takes pieces, it is alive.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, Stream};
use oci_client::errors::OciDistributionError;
use oci_client::manifest::OciDescriptor;

use super::error::{self, OciError};
use super::{ImageVersion, Problem, Registry};
use crate::web::READ_TIMEOUT;

/// Bytes read from a file at a time.
const PIECE: usize = 256 << 10;

/// Time limit that no upload of a function reaches.
pub(super) const LONGEST_UPLOAD: Duration = Duration::from_hours(24);

impl Registry {
    /// True if the repository has the blob.
    pub async fn has_blob(&mut self, digest: &str) -> Result<bool, OciError> {
        if ImageVersion::digest(digest).is_none() {
            return Err(Problem::Nonsense("a manifest holds a malformed digest".into()).of(&self.name));
        }
        let mut answer = self.client.blob_exists(&self.reference, digest).await;
        if answer.as_ref().is_err_and(is_refused) {
            // The authorization is short-lived, and earlier transfers may have taken long.
            self.log_in().await?;
            answer = self.client.blob_exists(&self.reference, digest).await;
        }
        answer.map_err(|error| self.failed(error))
    }

    /// Pushes the blob that begins at byte `start` of `file`. The registry checks its digest.
    pub async fn push_file(&mut self, blob: &OciDescriptor, file: File, start: u64) -> Result<(), OciError> {
        let again = file.try_clone().map_err(|error| Problem::Scratch(error).of(&self.name))?;
        let mut pushed = self.upload(blob, file, start).await?;
        if pushed.as_ref().is_err_and(is_refused) {
            self.log_in().await?;
            pushed = self.upload(blob, again, start).await?;
        }
        pushed.map_err(|error| self.failed(error))
    }

    async fn upload(
        &self,
        blob: &OciDescriptor,
        file: File,
        start: u64,
    ) -> Result<Result<(), OciDistributionError>, OciError> {
        let client = self.uploads.as_ref().unwrap_or(&self.client);
        let (size, taken) = (u64::try_from(blob.size).unwrap_or(0), Arc::<AtomicU64>::default());
        let pieces = pieces(file, start, size, Arc::clone(&taken));
        let upload = client.push_blob_stream(&self.reference, pieces, &blob.digest, Some(size));
        tokio::select! {
            pushed = upload => Ok(pushed.map(drop)),
            () = silence(&taken) => Err(Problem::Silent.of(&self.name)),
        }
    }
}

/// Waits until the connection has taken nothing for a whole [`READ_TIMEOUT`].
async fn silence(taken: &AtomicU64) {
    let mut before = None;
    loop {
        let now = taken.load(Ordering::Relaxed);
        if before.replace(now) == Some(now) {
            return;
        }
        tokio::time::sleep(READ_TIMEOUT).await;
    }
}

/// True if authorization is missing or refused, even if the library reports only the status.
fn is_refused(error: &OciDistributionError) -> bool {
    let status = match error {
        OciDistributionError::RequestError(error) => error.status().map(|status| status.as_u16()),
        _ => None,
    };
    error::is_denied(error) || matches!(status, Some(401 | 403))
}

/// Streams a part of a file. `taken` counts requests for a piece.
fn pieces(
    file: File,
    start: u64,
    size: u64,
    taken: Arc<AtomicU64>,
) -> impl Stream<Item = Result<Bytes, OciDistributionError>> + Send + 'static {
    stream::try_unfold((file, start, size, taken), |(file, at, left, taken)| async move {
        taken.fetch_add(1, Ordering::Relaxed);
        if left == 0 {
            return Ok(None);
        }
        let mut piece = vec![0; PIECE.min(usize::try_from(left).unwrap_or(PIECE))];
        let read = file.read_at(&mut piece, at).map_err(OciDistributionError::IoError)?;
        if read == 0 {
            let short = io::Error::new(io::ErrorKind::UnexpectedEof, "the file is shorter than its blob");
            return Err(OciDistributionError::IoError(short));
        }
        piece.truncate(read);
        Ok(Some((Bytes::from(piece), (file, at + read as u64, left - read as u64, taken))))
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use futures_util::StreamExt;

    use super::*;

    fn file(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    #[tokio::test]
    async fn a_part_of_a_file_passes_piece_by_piece() {
        let bytes: Vec<u8> = (0..PIECE as u32 * 2).map(|n| n as u8).collect();
        let taken = Arc::<AtomicU64>::default();
        let size = PIECE as u64 + 10;
        let all: Vec<_> = pieces(file(&bytes), 7, size, Arc::clone(&taken)).collect().await;
        let all: Vec<Bytes> = all.into_iter().map(Result::unwrap).collect();
        assert_eq!(all.concat(), bytes[7..][..size as usize]);
        assert_eq!((all.len(), taken.load(Ordering::Relaxed)), (2, 3));
    }

    #[tokio::test]
    async fn a_file_that_became_shorter_is_an_error() {
        let all: Vec<_> = pieces(file(b"abc"), 1, 5, Arc::default()).collect().await;
        assert!(all.last().unwrap().is_err());
    }
}
