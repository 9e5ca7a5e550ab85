//! Bounds on one evaluation's memory and work (language.md §6), because a short expression can name a large value many
//! times. They count bytes and values, never time, so the same evaluation always ends the same way.

use std::cell::Cell;

use crate::value::{Data, OBJECT_WEIGHT, Value, WEIGHT};

/// Maximum number of bytes that one evaluation can allocate.
pub(super) const VALUE_LIMIT: usize = 64 * 1024 * 1024;
/// Maximum nesting of a value that an evaluation can return. All recursive walks over values rely on it.
pub(super) const VALUE_DEPTH: usize = 128;
/// Maximum number of values that one evaluation can visit in comparisons and the like: about half a second.
const WORK_LIMIT: usize = 64 * 1024 * 1024;
/// Extra cost of an object's member: the search by its key.
const MEMBER: usize = 8;
/// Bytes of text that cost as much as one value.
const TEXT_BLOCK: usize = 64;
/// The remainder of the limits.
pub(super) struct Budget {
    bytes: Cell<usize>,
    work: Cell<usize>,
}

/// An exhausted limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exhausted {
    /// The limit on bytes allocated.
    Bytes,
    /// The limit on values visited.
    Work,
}

impl Budget {
    pub(super) const fn new() -> Self {
        Self { bytes: Cell::new(VALUE_LIMIT), work: Cell::new(WORK_LIMIT) }
    }

    /// Charges `bytes` before they are allocated.
    pub(super) fn take(&self, bytes: usize) -> Result<(), Exhausted> {
        let left = self.bytes.get().checked_sub(bytes).ok_or(Exhausted::Bytes)?;
        self.bytes.set(left);
        Ok(())
    }

    /// Charges the size of a copy of `value`.
    pub(super) fn take_value(&self, value: &Value) -> Result<(), Exhausted> {
        self.take(WEIGHT)?;
        match &value.data {
            Data::Null | Data::Bool(_) | Data::Number(_) => Ok(()),
            Data::String(text) => self.take(text.len()),
            Data::Array(items) => items.iter().try_for_each(|item| self.take_value(item)),
            Data::Object(members) => {
                self.take(OBJECT_WEIGHT)?;
                members.iter().try_for_each(|(key, member)| {
                    self.take(WEIGHT + key.len())?;
                    self.take_value(member)
                })
            }
        }
    }

    /// Charges one walk through `value`. Returns true if it or a value inside is marked.
    pub(super) fn look(&self, value: &Value) -> Result<bool, Exhausted> {
        self.work_on(1)?;
        let mut sensitive = value.sensitive;
        match &value.data {
            Data::Null | Data::Bool(_) | Data::Number(_) => {}
            Data::String(text) => self.work_on(text.len() / TEXT_BLOCK)?,
            Data::Array(items) => {
                for item in items.iter() {
                    sensitive |= self.look(item)?;
                }
            }
            Data::Object(members) => {
                self.work_on(members.len().saturating_mul(MEMBER))?;
                for (key, member) in members.iter() {
                    self.work_on(key.len() / TEXT_BLOCK)?;
                    sensitive |= self.look(member)?;
                }
            }
        }
        Ok(sensitive)
    }

    /// Charges the sorting of all objects in `value`, which ordered comparison needs.
    pub(super) fn sort(&self, value: &Value) -> Result<(), Exhausted> {
        match &value.data {
            Data::Null | Data::Bool(_) | Data::Number(_) | Data::String(_) => Ok(()),
            Data::Array(items) => items.iter().try_for_each(|item| self.sort(item)),
            Data::Object(members) => {
                let comparisons = members.len().saturating_mul(members.len().max(1).ilog2() as usize);
                self.work_on(comparisons.saturating_mul(MEMBER))?;
                members.values().try_for_each(|member| self.sort(member))
            }
        }
    }

    fn work_on(&self, values: usize) -> Result<(), Exhausted> {
        let left = self.work.get().checked_sub(values).ok_or(Exhausted::Work)?;
        self.work.set(left);
        Ok(())
    }
}

/// True if a value nests at most `levels` deep. Never looks deeper than that.
pub(super) fn fits_depth(value: &Value, levels: usize) -> bool {
    match &value.data {
        Data::Null | Data::Bool(_) | Data::Number(_) | Data::String(_) => true,
        Data::Array(items) => levels > 0 && items.iter().all(|item| fits_depth(item, levels - 1)),
        Data::Object(members) => levels > 0 && members.values().all(|member| fits_depth(member, levels - 1)),
    }
}
