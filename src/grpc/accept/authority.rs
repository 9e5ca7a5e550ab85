//! Removal of `:authority` from header blocks (HPACK, RFC 7541).
//!
//! Clients on a unix socket send any bytes as `:authority`; the C core sends the percent-encoded socket path. The
//! HTTP/2 library refuses every value that is no authority of a URI (hyperium/h2#487) and accepts calls without one.
//! Our services never read it.
//!
//! A removed field is missing from the library's dynamic table, although the client's table has it. The filter
//! therefore counts the client's insertions and renumbers later references. The library's table holds a part of the
//! client's entries, so it never evicts an entry that the client still has. Values stay encoded: renumbering does not
//! depend on their length or their Huffman code.
//!
//! The library does not see the removed fields, so the filter counts them towards the limit of a header list: a block of
//! nothing but references to removed entries would be an empty list to the library. The filter also counts the number of
//! all fields, because the library counts no repeated pseudo-header.

use std::collections::VecDeque;

/// Index of `:authority` in the static table (RFC 7541, appendix A).
const AUTHORITY: usize = 1;
/// Entries of the static table.
const STATIC_ENTRIES: usize = 61;
/// Largest number of entries in a dynamic table of 4,096 bytes: each counts at least 32 (RFC 7541 §4.1).
const MAX_ENTRIES: usize = 4_096 / 32;
/// What a field counts in a header list besides its name and value, in bytes (RFC 9113 §6.5.2).
const FIELD_OVERHEAD: usize = 32;
/// Times by which a list may exceed its limit before the connection ends; the library does the same. Reading on keeps the
/// tables equal, so a smaller list costs its own call alone.
const ABUSE: usize = 4;
/// The name, not encoded.
const NAME: &[u8] = b":authority";
/// The name in the Huffman code of HPACK.
const NAME_HUFFMAN: &[u8] = &[0xb8, 0x3b, 0x53, 0x39, 0xec, 0x32, 0x7d, 0x7f];

/// The filter of one connection. It remembers which entries it removed from the client's dynamic table.
#[derive(Debug, Default)]
pub(super) struct AuthorityFilter {
    /// The newest entries of the client's table, oldest first. Entries that no table can hold any more are forgotten.
    entries: VecDeque<Entry>,
    /// Number of removed entries so far.
    removed: u64,
}

/// An entry of the client's dynamic table.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Number of entries removed before this one. The difference of two numbers renumbers a reference without a search:
    /// a block can hold 65,536 references.
    removed_before: u64,
    /// What the removed entry counts in a header list; `None` if the library has the entry.
    removed: Option<usize>,
}

/// A block without `:authority`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Filtered {
    /// Length of the block in bytes.
    pub(super) length: usize,
    /// True if the list with the removed fields exceeds the limit, which the library cannot see.
    pub(super) is_too_large: bool,
}

/// A header block that is not passed on.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BlockError {
    /// It does not follow RFC 7541.
    Malformed,
    /// Its list exceeds the limit [`ABUSE`] times.
    Abusive,
}

/// An entry as the library behind this filter knows it.
enum Place {
    Index(usize),
    /// The library does not have it. In a header list it counts this much.
    Removed(usize),
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
    /// What a field `:authority` counts in a header list; `None` for every other instruction.
    authority: Option<usize>,
}

impl AuthorityFilter {
    /// Removes `:authority` from a complete header block, in place. `max_list` is the library's limit of a header list in
    /// bytes. Of the fields that stay only the overhead is counted here: the library counts them in full.
    pub(super) fn filter(&mut self, block: &mut [u8], max_list: usize) -> Result<Filtered, BlockError> {
        let (mut read, mut written) = (0, 0);
        let (mut size, mut has_authority) = (0, false);
        while let Some(&first) = block.get(read) {
            let instruction = self.parse(block, read, first)?;
            if instruction.is_insertion {
                self.insert(instruction.authority);
            }
            size += instruction.authority.unwrap_or(FIELD_OVERHEAD);
            if size > ABUSE * max_list {
                return Err(BlockError::Abusive);
            }
            if instruction.authority.is_some() {
                has_authority = true;
            } else {
                written = instruction.copy(block, written, first);
            }
            read = instruction.end;
        }
        Ok(Filtered { length: written, is_too_large: has_authority && size > max_list })
    }

    fn parse(&self, block: &[u8], at: usize, first: u8) -> Result<Instruction, BlockError> {
        let prefix = match first {
            0x80.. => 7,
            0x40.. => 6,
            0x20.. => 5,
            _ => 4,
        };
        let (index, rest) = integer(block, at, prefix)?;
        if prefix == 5 {
            // A size update of the table.
            return Ok(Instruction { prefix, index, rest, end: rest, is_insertion: false, authority: None });
        }
        let is_field = prefix == 7;
        let (mut index, mut end, mut is_authority) = (index, rest, index == AUTHORITY);
        let (mut entry, mut value) = (None, 0);
        if index == 0 {
            if is_field {
                return Err(BlockError::Malformed);
            }
            let (name, is_huffman, after) = string(block, rest)?;
            is_authority = name == if is_huffman { NAME_HUFFMAN } else { NAME };
            end = after;
        }
        if index > STATIC_ENTRIES {
            match self.place(index)? {
                Place::Index(place) => index = place,
                Place::Removed(size) => (is_authority, entry) = (true, Some(size)),
            }
        }
        if !is_field {
            let (text, _, after) = string(block, end)?;
            (value, end) = (text.len(), after);
        }
        let own = FIELD_OVERHEAD + NAME.len() + value;
        let authority = is_authority.then(|| entry.filter(|_| is_field).unwrap_or(own));
        Ok(Instruction { prefix, index, rest, end, is_insertion: prefix == 6, authority })
    }

    /// Finds the entry that the client calls `index`.
    fn place(&self, index: usize) -> Result<Place, BlockError> {
        let age = index - STATIC_ENTRIES - 1;
        let at = self.entries.len().checked_sub(age + 1).ok_or(BlockError::Malformed)?;
        let entry = self.entries.get(at).ok_or(BlockError::Malformed)?;
        let newer = usize::try_from(self.removed - entry.removed_before).unwrap_or(usize::MAX);
        Ok(match entry.removed {
            Some(size) => Place::Removed(size),
            None => Place::Index(index.saturating_sub(newer)),
        })
    }

    fn insert(&mut self, removed: Option<usize>) {
        if self.entries.len() == MAX_ENTRIES {
            self.entries.pop_front();
        }
        self.entries.push_back(Entry { removed_before: self.removed, removed });
        self.removed += u64::from(removed.is_some());
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
fn integer(block: &[u8], at: usize, prefix: u8) -> Result<(usize, usize), BlockError> {
    /// Maximum number of bytes after the prefix: the library accepts no more.
    const MAX_BYTES: usize = 4;
    let mask = mask(prefix);
    let mut value = usize::from(*block.get(at).ok_or(BlockError::Malformed)?) & mask;
    if value < mask {
        return Ok((value, at + 1));
    }
    for (place, at) in (at + 1..=at + MAX_BYTES).enumerate() {
        let byte = *block.get(at).ok_or(BlockError::Malformed)?;
        value += usize::from(byte & 0x7f) << (7 * place);
        if byte < 0x80 {
            return Ok((value, at + 1));
        }
    }
    Err(BlockError::Malformed)
}

/// Reads the string at `at` (RFC 7541 §5.2). Returns its encoded bytes, true if they are in the Huffman code, and the
/// offset after it.
fn string(block: &[u8], at: usize) -> Result<(&[u8], bool, usize), BlockError> {
    let is_huffman = *block.get(at).ok_or(BlockError::Malformed)? >= 0x80;
    let (length, start) = integer(block, at, 7)?;
    let text = block.get(start..start + length).ok_or(BlockError::Malformed)?;
    Ok((text, is_huffman, start + length))
}

#[cfg(test)]
pub(super) mod tests;
