//! Joins the bodies of a source into the bytes it wrote (logs.md §7, rules 3 and 6).

use super::{Entry, SourceKey};

/// Joins bodies exactly. Keeps the last body of each source until the next entry of that source shows whether the
/// source wrote the line feed after that body.
#[derive(Default)]
pub struct Joiner {
    /// Sorted by the start of the line that each body belongs to.
    kept: Vec<Kept>,
}

struct Kept {
    key: SourceKey,
    body: Vec<u8>,
}

impl Joiner {
    /// Makes a joiner that keeps nothing.
    pub const fn new() -> Self {
        Self { kept: Vec::new() }
    }

    /// Takes the next entry and passes on the previous body of its source, if there is one.
    pub fn push(&mut self, entry: &Entry<'_>, mut give: impl FnMut(SourceKey, &[u8])) {
        let key = entry.key();
        let mut body = Vec::new();
        let place = self.kept.iter().position(|kept| kept.key == key);
        if let Some(at) = place {
            let kept = &mut self.kept[at];
            if entry.continues() {
                give(key, &kept.body);
                kept.body.clear();
                kept.body.extend_from_slice(entry.body);
                return;
            }
            kept.body.push(b'\n');
            give(key, &kept.body);
            // A new line begins, so it goes to the end of the order.
            body = self.kept.remove(at).body;
            body.clear();
        }
        body.extend_from_slice(entry.body);
        self.kept.push(Kept { key, body });
    }

    /// Ends the log: passes on the kept bodies, in the order in which their lines began.
    pub fn finish(&mut self, mut give: impl FnMut(SourceKey, &[u8])) {
        for mut kept in self.kept.drain(..) {
            kept.body.push(b'\n');
            give(kept.key, &kept.body);
        }
    }
}

/// Joins bodies for one output that somebody watches. Passes each body on at once. Adds its line feed at once if no
/// entry can continue the body ([`Entry::ends_line`]), else when the next entry does not continue it (logs.md §7, last
/// paragraph).
///
/// For the output of one source, the bytes equal those of [`Joiner`]. Keeps no body.
#[derive(Clone, Copy, Debug, Default)]
pub struct Live {
    /// Source of the last body, if its line feed is still missing.
    open: Option<SourceKey>,
}

impl Live {
    /// Makes a joiner for the start of its output.
    pub const fn new() -> Self {
        Self { open: None }
    }

    /// Makes a joiner that goes on where another one stopped, whose last line was [open](Self::open).
    pub const fn resumed(open: Option<SourceKey>) -> Self {
        Self { open }
    }

    /// Returns the source of the last line, if its line feed is still missing.
    pub const fn open(&self) -> Option<SourceKey> {
        self.open
    }

    /// Takes the next entry of this output and appends its bytes to `out`.
    pub fn push(&mut self, entry: &Entry<'_>, out: &mut Vec<u8>) {
        let continues = entry.continues() && self.open == Some(entry.key());
        if !continues {
            self.finish(out);
        }
        out.extend_from_slice(entry.body);
        self.open = Some(entry.key());
        if entry.ends_line() {
            self.finish(out);
        }
    }

    /// Ends the last line.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        if self.open.take().is_some() {
            out.push(b'\n');
        }
    }
}
