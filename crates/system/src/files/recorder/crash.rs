//! Computes the states of a folder that a crash in the middle of a recording can leave.

use std::collections::{HashMap, HashSet};

use super::{Id, Image, Op};

/// Size of a sector, which a disk writes whole or not at all.
const SECTOR: usize = 512;

/// A finished recording.
#[derive(Clone, Debug)]
pub struct History {
    /// The folder at its beginning.
    pub base: Image,
    /// The changes, in order.
    pub ops: Vec<Op>,
}

/// A part of a change that no sync has covered. It may have reached the disk or not, whatever other parts did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// The names changed by the operation with this number.
    Names(usize),
    /// The length that it gave a file. Without its bytes, a longer file has zeros.
    Length(usize),
    /// This sector of its bytes, counted from its first.
    Sector(usize, usize),
}

/// Choice of the unsynced pieces that reached the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choices {
    /// None.
    None,
    /// All.
    All,
    /// All but the piece with this number.
    AllBut(usize),
    /// Only the piece with this number.
    Only(usize),
    /// The pieces whose bits are set: can express every choice for up to 64 pieces.
    Bits(u64),
    /// Each piece by chance, from this seed.
    Seed(u64),
}

impl Choices {
    /// Returns the choices to try for this number of `pieces`. These are all possible ones for up to `exhaustive`
    /// pieces. For more pieces: none, all, each piece alone, each piece missing, and `random` choices by chance.
    pub fn list(pieces: usize, exhaustive: u32, random: u64) -> Vec<Self> {
        if pieces <= exhaustive as usize {
            return (0..1_u64 << pieces).map(Self::Bits).collect();
        }
        let each = (0..pieces).flat_map(|piece| [Self::AllBut(piece), Self::Only(piece)]);
        let seeds = (0..random).map(Self::Seed);
        [Self::None, Self::All].into_iter().chain(each).chain(seeds).collect()
    }

    fn takes(self, piece: usize) -> bool {
        match self {
            Self::None => false,
            Self::All => true,
            Self::AllBut(missing) => piece != missing,
            Self::Only(only) => piece == only,
            Self::Bits(bits) => piece < 64 && bits >> piece & 1 == 1,
            // SplitMix64: each piece has its own number of the sequence.
            Self::Seed(seed) => {
                let mut x = seed.wrapping_add((piece as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
                x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
                (x ^ x >> 31) & 1 == 1
            }
        }
    }
}

impl History {
    /// Returns the folder after the process was killed after its first `count` changes. All of them are there. If the
    /// next change is a write, its first `part` bytes are there too.
    pub fn killed(&self, count: usize, part: usize) -> Image {
        let mut image = self.base.clone();
        for op in self.ops.iter().take(count) {
            image.apply(op);
        }
        if let (Some(Op::Write { id, at, bytes }), 1..) = (self.ops.get(count), part) {
            image.put(*id, *at as usize, bytes.get(..part).unwrap_or(bytes));
        }
        image
    }

    /// Returns every state that a kill can leave, each with its number of complete changes: between any two changes,
    /// and after each byte of a write. A write of more than `bytes` bytes gives at most `bytes` states.
    pub fn kills(&self, bytes: usize) -> impl Iterator<Item = (usize, Image)> {
        (0..=self.ops.len()).flat_map(move |count| {
            let len = match self.ops.get(count) {
                Some(Op::Write { bytes, .. }) => bytes.len(),
                _ => 1,
            };
            let step = if len > bytes { len / bytes.max(1) + 1 } else { 1 };
            (0..len).step_by(step).map(move |part| (count, self.killed(count, part)))
        })
    }

    /// Returns the unsynced pieces of the first `count` changes. A power cut after these changes can lose any of them.
    pub fn unsynced(&self, count: usize) -> Vec<Piece> {
        let durable = self.durable(count);
        let mut pieces = Vec::new();
        for (at, op) in self.ops.iter().enumerate().take(count).filter(|(at, _)| !durable.contains(at)) {
            match op {
                Op::Write { at: offset, bytes, .. } => {
                    pieces.push(Piece::Length(at));
                    pieces
                        .extend((0..sectors(*offset, bytes).count()).map(|sector| Piece::Sector(at, sector)));
                }
                Op::Cut { .. } => pieces.push(Piece::Length(at)),
                Op::Create { .. } | Op::Mkdir { .. } | Op::Rename { .. } | Op::Remove { .. } => {
                    pieces.push(Piece::Names(at));
                }
                Op::Sync { .. } | Op::SyncAll => {}
            }
        }
        pieces
    }

    /// Returns the folder after a power cut that follows the first `count` changes. Synced changes are there. Of the
    /// other pieces, in the order of [`History::unsynced`], those are there that `choices` takes. Assumes only what
    /// POSIX promises: a synced file has no name unless its folder was synced too.
    pub fn power_cut(&self, count: usize, choices: Choices) -> Image {
        let durable = self.durable(count);
        let mut image = self.base.clone();
        let mut number = 0;
        let mut taken = || {
            number += 1;
            choices.takes(number - 1)
        };
        for (at, op) in self.ops.iter().enumerate().take(count) {
            image.exists(op);
            if durable.contains(&at) {
                image.apply(op);
                continue;
            }
            match op {
                Op::Write { id, at: offset, bytes } => {
                    if taken() {
                        image.grow(*id, *offset as usize + bytes.len());
                    }
                    for (offset, sector) in sectors(*offset, bytes) {
                        if taken() {
                            image.put(*id, offset, sector);
                        }
                    }
                }
                Op::Sync { .. } | Op::SyncAll => {}
                _ if taken() => image.apply(op),
                _ => {}
            }
        }
        image
    }

    /// Returns the numbers of the changes among the first `count` that a later sync among them made durable.
    fn durable(&self, count: usize) -> HashSet<usize> {
        let mut synced: HashMap<Id, usize> = HashMap::new();
        let mut all = None;
        for (at, op) in self.ops.iter().enumerate().take(count) {
            match op {
                Op::Sync { id } => drop(synced.insert(*id, at)),
                Op::SyncAll => all = Some(at),
                _ => {}
            }
        }
        let later = |at: usize, id: &Id| synced.get(id).is_some_and(|sync| *sync > at);
        let is_durable = |at: usize, op: &Op| match op {
            Op::Create { dir, .. } | Op::Mkdir { dir, .. } | Op::Remove { dir, .. } => later(at, dir),
            Op::Write { id, .. } | Op::Cut { id, .. } => later(at, id),
            Op::Rename { from, to, .. } => later(at, from) && later(at, to),
            Op::Sync { .. } | Op::SyncAll => true,
        };
        let changes = self.ops.iter().enumerate().take(count);
        changes
            .filter(|(at, op)| all.is_some_and(|all| all > *at) || is_durable(*at, op))
            .map(|(at, _)| at)
            .collect()
    }
}

/// Splits a write by sectors of the file, into offsets and bytes.
fn sectors(offset: u64, bytes: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let mut at = offset as usize;
    let mut rest = bytes;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (sector, behind) = rest.split_at((SECTOR - at % SECTOR).min(rest.len()));
        let start = at;
        at += sector.len();
        rest = behind;
        Some((start, sector))
    })
}
