//! Heads of fixed length in a stream of bytes, each with the length of what follows it: frames of HTTP/2, messages of
//! gRPC. Found however the bytes are cut; what follows a head is passed over.

/// Reads heads of `N` bytes.
pub(super) struct Heads<const N: usize> {
    head: [u8; N],
    /// Bytes of a head that have come.
    come: usize,
    /// Bytes behind the last head that are still to come.
    skip: usize,
}

impl<const N: usize> Heads<N> {
    pub(super) const fn new() -> Self {
        Self { head: [0; N], come: 0, skip: 0 }
    }

    /// Reads on. `begin` is called with each head that is complete and says how many bytes follow it; its error ends
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

    /// The stream is within a head, or within what follows one.
    pub(super) const fn is_within(&self) -> bool {
        self.skip > 0 || self.come > 0
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    #[test]
    fn heads_are_found_however_the_bytes_are_cut() {
        let bytes = b"a\x03xyzb\0c\x01-d\0";
        for size in 1..=bytes.len() {
            let (mut heads, mut found) = (Heads::<2>::new(), Vec::new());
            for piece in bytes.chunks(size) {
                let Ok(()) = heads.read(piece, |[name, len]| {
                    found.push(name);
                    Ok::<_, Infallible>(usize::from(len))
                });
            }
            assert_eq!((found.as_slice(), heads.is_within()), (&b"abcd"[..], false), "pieces of {size}");
        }
    }

    #[test]
    fn a_stream_that_ends_early_is_within() {
        let bytes = b"a\x03xyz";
        for len in 1..bytes.len() {
            let mut heads = Heads::<2>::new();
            let Ok(()) = heads.read(&bytes[..len], |[_, len]| Ok::<_, Infallible>(usize::from(len)));
            assert!(heads.is_within(), "{len}");
        }
    }
}
