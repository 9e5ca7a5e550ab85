//! Bounds of what one evaluation may make and look at (language.md §6): a short expression can name a large value many
//! times. They count bytes and values, never time, so that the same evaluation always comes to the same end.

use std::cell::Cell;
use std::mem::size_of;

use crate::lang::value::{Data, Value};

/// Most bytes that one evaluation may make.
pub(super) const VALUE_LIMIT: usize = 64 * 1024 * 1024;
/// Deepest value that may come out of an evaluation; everything that walks values recursively relies on it.
pub(super) const VALUE_DEPTH: usize = 128;
/// Most values that one evaluation may look at, in comparisons and the like; a text counts once per block.
const WORK_LIMIT: usize = 64 * 1024 * 1024;
/// Bytes of text that count as one value looked at.
const TEXT_BLOCK: usize = 64;
/// Weight of a value beside its text.
const WEIGHT: usize = size_of::<Value>();

/// What is left of the limits.
pub(super) struct Budget {
    bytes: Cell<usize>,
    work: Cell<usize>,
}

/// A limit is exhausted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exhausted {
    /// Of the bytes made.
    Bytes,
    /// Of the values looked at.
    Work,
}

impl Budget {
    pub(super) const fn new() -> Self {
        Self { bytes: Cell::new(VALUE_LIMIT), work: Cell::new(WORK_LIMIT) }
    }

    /// Takes `bytes` before they are made.
    pub(super) fn take(&self, bytes: usize) -> Result<(), Exhausted> {
        let left = self.bytes.get().checked_sub(bytes).ok_or(Exhausted::Bytes)?;
        self.bytes.set(left);
        Ok(())
    }

    /// Takes what a copy of `value` weighs.
    pub(super) fn take_value(&self, value: &Value) -> Result<(), Exhausted> {
        self.take(WEIGHT)?;
        match &value.data {
            Data::Null | Data::Bool(_) | Data::Number(_) => Ok(()),
            Data::String(text) => self.take(text.len()),
            Data::Array(items) => items.iter().try_for_each(|item| self.take_value(item)),
            Data::Object(members) => members.iter().try_for_each(|(key, member)| {
                self.take(key.len())?;
                self.take_value(member)
            }),
        }
    }

    /// Pays for one walk through `value`; tells whether it or anything inside is marked.
    pub(super) fn look(&self, value: &Value) -> Result<bool, Exhausted> {
        self.work_on(1)?;
        let mut sensitive = value.sensitive;
        match &value.data {
            Data::Null | Data::Bool(_) | Data::Number(_) => {}
            Data::String(text) => self.work_on(text.len() / TEXT_BLOCK)?,
            Data::Array(items) => {
                for item in items {
                    sensitive |= self.look(item)?;
                }
            }
            Data::Object(members) => {
                for (key, member) in members {
                    self.work_on(key.len() / TEXT_BLOCK)?;
                    sensitive |= self.look(member)?;
                }
            }
        }
        Ok(sensitive)
    }

    fn work_on(&self, values: usize) -> Result<(), Exhausted> {
        let left = self.work.get().checked_sub(values).ok_or(Exhausted::Work)?;
        self.work.set(left);
        Ok(())
    }
}

/// Whether a value is nested at most `levels` deep; never looks deeper than that.
pub(super) fn fits_depth(value: &Value, levels: usize) -> bool {
    match &value.data {
        Data::Null | Data::Bool(_) | Data::Number(_) | Data::String(_) => true,
        Data::Array(items) => levels > 0 && items.iter().all(|item| fits_depth(item, levels - 1)),
        Data::Object(members) => levels > 0 && members.values().all(|member| fits_depth(member, levels - 1)),
    }
}
