//! Checks layers before they are published: what no program could fetch is refused where it is made.

use std::io::{self, Read};

use tar::{Entry, EntryType};

use super::meter::Meter;
use super::{EntryVisitor, Packing, broken, refusal, visit};
use crate::fetch::worker::tree;
use step_runner_core::job::event::FetchFailure;

/// Checks a layer as [`super::unpack`] does, but writes nothing. It knows no tree, so it does not see entries that do not
/// fit together, or are too many or too large together.
///
/// # Errors
/// Class `fetch`: it is no archive, or an entry is refused. Class `limit`: it unpacks to too much data, or a path is too long.
pub(crate) fn check(packing: Packing, packed: impl Read) -> Result<(), FetchFailure> {
    visit(packing, packed, &mut LayerCheck)
}

struct LayerCheck;

impl EntryVisitor for LayerCheck {
    fn entry<R: Read>(
        &mut self,
        path: &[u8],
        entry: &mut Entry<'_, R>,
        meter: &Meter,
    ) -> Result<(), FetchFailure> {
        tree::check_path(path)?;
        match entry.header().entry_type() {
            EntryType::Regular | EntryType::Continuous => {
                meter.allow(entry.size());
                io::copy(entry, &mut io::sink()).map(drop).map_err(|error| broken(&error))
            }
            EntryType::Directory
            | EntryType::Symlink
            | EntryType::Link
            | EntryType::Char
            | EntryType::Block
            | EntryType::Fifo => Ok(()),
            other => Err(tree::refused(path, refusal(other))),
        }
    }
}
