//! Pushes blobs of any size into a repository.
//!
//! The HTTP client counts the time from a request's first byte to its answer's first byte as silence. A large blob on a
//! slow line would look like a dead server. The client for blobs therefore has no such limit, and we watch it here: while
//! the connection takes pieces, it is alive.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures_util::stream::{self, Stream};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use oci_client::manifest::OciDescriptor;
use reqwest::Body;

use super::error::OciError;
use super::http::Request;
use super::{ImageVersion, Problem, Registry};
use step_runner_web::{READ_TIMEOUT, redirect};

/// Bytes read from a file at a time.
const PIECE: usize = 256 << 10;

impl Registry {
    /// True if the repository has the blob.
    pub async fn has_blob(&mut self, digest: &str) -> Result<bool, OciError> {
        self.session.begin_task();
        let asked = async || {
            if ImageVersion::digest(digest).is_none() {
                return Err(Problem::Nonsense("a manifest holds a malformed digest".into()));
            }
            let request = Request::new(Method::HEAD, self.session.url(&format!("blobs/{digest}"))?);
            match self.session.send(&request).await {
                Ok(_) => Ok(true),
                Err(Problem::NotFound) => Ok(false),
                Err(problem) => Err(problem),
            }
        };
        self.session.retrying(asked).await.map_err(|problem| self.failed(problem))
    }

    /// Pushes the blob that begins at byte `start` of `file`. The registry checks its digest.
    pub async fn push_file(&mut self, blob: &OciDescriptor, file: File, start: u64) -> Result<(), OciError> {
        let again = file.try_clone().map_err(|error| self.failed(Problem::Scratch(error)))?;
        let mut pushed = self.upload(blob, file, start).await;
        if matches!(pushed, Err(Problem::Denied)) {
            // The authorization is short-lived, and earlier transfers may have taken long.
            self.session.forget_authorization();
            pushed = self.upload(blob, again, start).await;
        }
        pushed.map_err(|problem| self.failed(problem))
    }

    async fn upload(&self, blob: &OciDescriptor, file: File, start: u64) -> Result<(), Problem> {
        let begun =
            self.session.send(&Request::new(Method::POST, self.session.url("blobs/uploads/")?)).await?;
        if begun.status() != StatusCode::ACCEPTED {
            return Err(Problem::Nonsense(format!("status {} to an upload", begun.status().as_u16())));
        }
        let mut url = redirect::target(begun.url(), begun.headers()).map_err(Problem::of_redirect)?;
        url.query_pairs_mut().append_pair("digest", &blob.digest);
        let (size, taken) = (u64::try_from(blob.size).unwrap_or(0), Arc::<AtomicU64>::default());
        let headers = HeaderMap::from_iter([
            (CONTENT_TYPE, HeaderValue::from_static("application/octet-stream")),
            (CONTENT_LENGTH, HeaderValue::from(size)),
        ]);
        let body = Body::wrap_stream(pieces(file, start, size, Arc::clone(&taken)));
        tokio::select! {
            pushed = self.session.upload(url, headers, body) => pushed.map(drop),
            () = silence(&taken) => Err(Problem::Silent),
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

/// Streams a part of a file. `taken` counts requests for a piece.
fn pieces(
    file: File,
    start: u64,
    size: u64,
    taken: Arc<AtomicU64>,
) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    stream::try_unfold((file, start, size, taken), |(file, at, left, taken)| async move {
        taken.fetch_add(1, Ordering::Relaxed);
        if left == 0 {
            return Ok(None);
        }
        let mut piece = vec![0; PIECE.min(usize::try_from(left).unwrap_or(PIECE))];
        let read = file.read_at(&mut piece, at)?;
        if read == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file is shorter than its blob"));
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
