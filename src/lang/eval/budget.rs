//! Bounds of what one evaluation may make (language.md §6): a short expression can name a large value many times.

use std::cell::Cell;

use crate::lang::value::{Data, Value};

/// Most bytes that one evaluation may make.
pub(super) const VALUE_LIMIT: usize = 64 * 1024 * 1024;
/// Deepest value that may come out of an evaluation; everything that walks values recursively relies on it.
pub(super) const VALUE_DEPTH: usize = 128;
/// Weight of a value beside its text.
const WEIGHT: usize = 16;

/// What is left of the limit.
pub(super) struct Budget {
    left: Cell<usize>,
}

/// The limit is exhausted.
pub(super) struct Exhausted;

impl Budget {
    pub(super) const fn new() -> Self {
        Self { left: Cell::new(VALUE_LIMIT) }
    }

    /// Takes `bytes` before they are made.
    pub(super) fn take(&self, bytes: usize) -> Result<(), Exhausted> {
        let left = self.left.get().checked_sub(bytes).ok_or(Exhausted)?;
        self.left.set(left);
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
}

/// Whether a value is nested at most `levels` deep; never looks deeper than that.
pub(super) fn fits_depth(value: &Value, levels: usize) -> bool {
    match &value.data {
        Data::Null | Data::Bool(_) | Data::Number(_) | Data::String(_) => true,
        Data::Array(items) => levels > 0 && items.iter().all(|item| fits_depth(item, levels - 1)),
        Data::Object(members) => levels > 0 && members.values().all(|member| fits_depth(member, levels - 1)),
    }
}
