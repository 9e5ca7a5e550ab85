//! Finds headers of fixed length in a byte stream and skips the content after each. Frames of HTTP/2 and messages of
//! gRPC have such headers, which state the content's length.

/// Reads headers of `N` bytes.
pub(super) struct LengthHeaders<const N: usize> {
    head: [u8; N],
    /// Bytes of the current header already read.
    come: usize,
    /// Content bytes after the last header that are still to be skipped.
    skip: usize,
}

impl<const N: usize> LengthHeaders<N> {
    pub(super) const fn new() -> Self {
        Self { head: [0; N], come: 0, skip: 0 }
    }

    /// Reads on. Calls `begin` with each complete header; it returns the length of the content, or an error that ends
    /// the reading.
    pub(super) fn read<E>(
        &mut self,
        mut bytes: &[u8],
        mut begin: impl FnMut([u8; N]) -> Result<usize, E>,
    ) -> Result<(), E> {
        while let Some((&first, rest)) = bytes.split_first() {
            if self.skip > 0 {
                let count = self.skip.min(bytes.len());
                self.skip -= count;
                bytes = bytes.get(count..).unwrap_or_default();
                continue;
            }
            if let Some(place) = self.head.get_mut(self.come) {
                *place = first;
            }
            self.come += 1;
            bytes = rest;
            if self.come == N {
                self.come = 0;
                self.skip = begin(self.head)?;
            }
        }
        Ok(())
    }

    /// True if the stream is inside a header or inside content.
    pub(super) const fn is_within(&self) -> bool {
        self.skip > 0 || self.come > 0
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    #[test]
    fn headers_are_found_however_the_bytes_are_cut() {
        let bytes = b"a\x03xyzb\0c\x01-d\0";
        for size in 1..=bytes.len() {
            let (mut headers, mut found) = (LengthHeaders::<2>::new(), Vec::new());
            for piece in bytes.chunks(size) {
                let Ok(()) = headers.read(piece, |[name, len]| {
                    found.push(name);
                    Ok::<_, Infallible>(usize::from(len))
                });
            }
            assert_eq!((found.as_slice(), headers.is_within()), (&b"abcd"[..], false), "pieces of {size}");
        }
    }

    #[test]
    fn a_stream_that_ends_early_is_within() {
        let bytes = b"a\x03xyz";
        for len in 1..bytes.len() {
            let mut headers = LengthHeaders::<2>::new();
            let Ok(()) = headers.read(&bytes[..len], |[_, len]| Ok::<_, Infallible>(usize::from(len)));
            assert!(headers.is_within(), "{len}");
        }
    }
}
