//! Random choices that can be repeated by their seed.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

/// Returns a different number each time.
pub(crate) fn fresh() -> u64 {
    RandomState::new().build_hasher().finish() >> 32
}

/// The SplitMix64 generator.
#[derive(Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns an independent sequence, selected by `salt`.
    pub(crate) fn fork(&self, salt: u64) -> Self {
        let mut fork = Self(self.0 ^ salt.wrapping_mul(0xA24B_AED4_963E_E407));
        fork.next();
        fork
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns a number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn micros(&mut self, end: u64) -> Duration {
        Duration::from_micros(self.below(end))
    }
}
