//! Sets of hashes: they may have false hits but never miss, and they stay in the CPU caches.

/// Bits of a bitmap for each entry, and the bounds of its size (as powers of two). With 32 bits one look in 32 is a
/// false hit. Beyond the upper bound of 1 MiB a bitmap would not fit into the caches anyway.
const BITS_PER_ENTRY: usize = 32;
const MIN_BITS: u32 = 12;
const MAX_BITS: u32 = 23;

/// A set of hashes.
pub(super) struct Bitmap {
    words: Box<[u64]>,
    shift: u32,
}

impl Bitmap {
    /// Makes an empty set with room for `count` values.
    pub(super) fn for_entries(count: usize) -> Self {
        let bits = (count * BITS_PER_ENTRY).next_power_of_two().ilog2().clamp(MIN_BITS, MAX_BITS);
        Self { words: vec![0; (1 << bits) / 64].into_boxed_slice(), shift: 64 - bits }
    }

    /// Returns the bits, for [`contains_in`].
    #[inline]
    pub(super) fn words(&self) -> &[u64] {
        &self.words
    }

    pub(super) fn insert(&mut self, value: u64) {
        let bit = self.hash(value);
        self.words[bit / 64] |= 1 << (bit % 64);
    }

    /// True if `value` was inserted, and for few others.
    #[inline]
    pub(super) fn contains(&self, value: u64) -> bool {
        let bit = self.hash(value);
        self.words.get(bit / 64).is_none_or(|word| word >> (bit % 64) & 1 != 0)
    }

    #[inline]
    fn hash(&self, value: u64) -> usize {
        (value.wrapping_mul(FACTOR) >> self.shift) as usize
    }
}

/// Does the same as [`Bitmap::contains`] for a bitmap of a known number of words.
#[inline]
pub(super) fn contains_in<const WORDS: usize>(words: &[u64; WORDS], value: u64) -> bool {
    let bit = (value.wrapping_mul(FACTOR) >> (u64::BITS - WORDS.ilog2() - u64::BITS.ilog2())) as usize;
    words[bit / 64] >> (bit % 64) & 1 != 0
}

/// Factor for multiplicative hashing: the upper bits of the product depend on all bytes.
pub(super) const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;
