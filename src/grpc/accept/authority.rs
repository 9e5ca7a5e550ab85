//! Removal of `:authority` from header blocks (HPACK, RFC 7541).
//!
//! Clients on a unix socket send any bytes as `:authority`; the C core sends the percent-encoded socket path. The
//! HTTP/2 library refuses every value that is no authority of a URI (hyperium/h2#487) and accepts calls without one.
//! Our services never read it.
//!
//! A removed field is missing from the library's dynamic table, although the client's table has it. The filter
//! therefore counts the client's insertions and renumbers later references. The library's table holds a part of the
//! client's entries, so it never evicts an entry that the client still has. Values stay encoded: nothing here depends
//! on their length or their Huffman code.

use std::collections::VecDeque;

/// Index of `:authority` in the static table (RFC 7541, appendix A).
const AUTHORITY: usize = 1;
/// Entries of the static table.
const STATIC_ENTRIES: usize = 61;
/// Largest number of entries in a dynamic table of 4,096 bytes: each counts at least 32 (RFC 7541 §4.1).
const MAX_ENTRIES: usize = 4_096 / 32;
/// The name, not encoded.
const NAME: &[u8] = b":authority";
/// The name in the Huffman code of HPACK.
const NAME_HUFFMAN: &[u8] = &[0xb8, 0x3b, 0x53, 0x39, 0xec, 0x32, 0x7d, 0x7f];

/// The filter of one connection. It remembers which entries it removed from the client's dynamic table.
#[derive(Debug, Default)]
pub(super) struct AuthorityFilter {
    /// Number of entries that the client has inserted so far. It is also the newest entry's number.
    inserted: u64,
    /// Numbers of the removed entries, oldest first. Entries that no table can hold any more are forgotten.
    removed: VecDeque<u64>,
}

/// A header block that does not follow RFC 7541.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MalformedBlock;

/// Index of an entry in the dynamic table of the library behind this filter, or its absence there.
enum Place {
    Index(usize),
    Removed,
}

/// One instruction of a header block.
struct Instruction {
    /// Length of the prefix of its index, in bits.
    prefix: u8,
    index: usize,
    /// Offset of the first byte after the index.
    rest: usize,
    end: usize,
    is_insertion: bool,
    is_authority: bool,
}

impl AuthorityFilter {
    /// Removes `:authority` from a complete header block, in place. Returns the new length.
    pub(super) fn filter(&mut self, block: &mut [u8]) -> Result<usize, MalformedBlock> {
        let (mut read, mut written) = (0, 0);
        while let Some(&first) = block.get(read) {
            let instruction = self.parse(block, read, first)?;
            if instruction.is_insertion {
                self.insert(instruction.is_authority);
            }
            if !instruction.is_authority {
                written = instruction.copy(block, written, first);
            }
            read = instruction.end;
        }
        Ok(written)
    }

    fn parse(&self, block: &[u8], at: usize, first: u8) -> Result<Instruction, MalformedBlock> {
        let prefix = match first {
            0x80.. => 7,
            0x40.. => 6,
            0x20.. => 5,
            _ => 4,
        };
        let (index, rest) = integer(block, at, prefix)?;
        if prefix == 5 {
            // A size update of the table.
            return Ok(Instruction {
                prefix,
                index,
                rest,
                end: rest,
                is_insertion: false,
                is_authority: false,
            });
        }
        let is_field = prefix == 7;
        let (mut index, mut end, mut is_authority) = (index, rest, index == AUTHORITY);
        if index == 0 {
            if is_field {
                return Err(MalformedBlock);
            }
            let (name, is_huffman, after) = string(block, rest)?;
            is_authority = name == if is_huffman { NAME_HUFFMAN } else { NAME };
            end = after;
        }
        if index > STATIC_ENTRIES {
            match self.place(index)? {
                Place::Index(place) => index = place,
                Place::Removed => is_authority = true,
            }
        }
        if !is_field {
            (_, _, end) = string(block, end)?;
        }
        Ok(Instruction { prefix, index, rest, end, is_insertion: prefix == 6, is_authority })
    }

    /// Finds the entry that the client calls `index`.
    fn place(&self, index: usize) -> Result<Place, MalformedBlock> {
        let age = index - STATIC_ENTRIES - 1;
        if age >= MAX_ENTRIES {
            return Err(MalformedBlock);
        }
        let number =
            self.inserted.checked_sub(age as u64).filter(|number| *number > 0).ok_or(MalformedBlock)?;
        let newer = self.removed.iter().rev().take_while(|removed| **removed > number).count();
        let is_removed = self.removed.iter().rev().nth(newer) == Some(&number);
        Ok(if is_removed { Place::Removed } else { Place::Index(index - newer) })
    }

    fn insert(&mut self, is_removed: bool) {
        self.inserted += 1;
        if self.removed.front().is_some_and(|oldest| self.inserted - oldest >= MAX_ENTRIES as u64) {
            self.removed.pop_front();
        }
        if is_removed {
            self.removed.push_back(self.inserted);
        }
    }
}

impl Instruction {
    /// Copies the instruction to `written`, which must not be after the original. Returns the end of the copy.
    ///
    /// Renumbering only decreases an index, so the copy is never longer than the original.
    fn copy(&self, block: &mut [u8], mut written: usize, first: u8) -> usize {
        let mask = mask(self.prefix);
        let mut left = self.index;
        let start = left.min(mask);
        let mut put = |byte: u8| {
            if let Some(place) = block.get_mut(written) {
                *place = byte;
            }
            written += 1;
        };
        put(first & !(mask as u8) | start as u8);
        if start == mask {
            left -= mask;
            while left >= 0x80 {
                put(left as u8 | 0x80);
                left >>= 7;
            }
            put(left as u8);
        }
        block.copy_within(self.rest..self.end, written);
        written + self.end - self.rest
    }
}

/// Returns the largest value of a prefix of `prefix` bits.
const fn mask(prefix: u8) -> usize {
    (1 << prefix) - 1
}

/// Reads the integer at `at` (RFC 7541 §5.1). Returns it and the offset after it.
fn integer(block: &[u8], at: usize, prefix: u8) -> Result<(usize, usize), MalformedBlock> {
    /// Maximum number of bytes after the prefix: the library accepts no more.
    const MAX_BYTES: usize = 4;
    let mask = mask(prefix);
    let mut value = usize::from(*block.get(at).ok_or(MalformedBlock)?) & mask;
    if value < mask {
        return Ok((value, at + 1));
    }
    for (place, at) in (at + 1..=at + MAX_BYTES).enumerate() {
        let byte = *block.get(at).ok_or(MalformedBlock)?;
        value += usize::from(byte & 0x7f) << (7 * place);
        if byte < 0x80 {
            return Ok((value, at + 1));
        }
    }
    Err(MalformedBlock)
}

/// Reads the string at `at` (RFC 7541 §5.2). Returns its encoded bytes, true if they are in the Huffman code, and the
/// offset after it.
fn string(block: &[u8], at: usize) -> Result<(&[u8], bool, usize), MalformedBlock> {
    let is_huffman = *block.get(at).ok_or(MalformedBlock)? >= 0x80;
    let (length, start) = integer(block, at, 7)?;
    let text = block.get(start..start + length).ok_or(MalformedBlock)?;
    Ok((text, is_huffman, start + length))
}

#[cfg(test)]
pub(super) mod tests;
