//! Joining the bodies of a source to the bytes it wrote (logs.md §7, rules 3 and 6).

use super::{Entry, Key};

/// Joins bodies exactly: a body is given out when the next entry of its source tells whether its line feed counts.
///
/// Holds the last body of each source.
#[derive(Default)]
pub struct Joiner {
    /// In the order in which the lines the bodies belong to began.
    kept: Vec<Kept>,
}

struct Kept {
    key: Key,
    body: Vec<u8>,
}

impl Joiner {
    /// A joiner that keeps nothing yet.
    pub const fn new() -> Self {
        Self { kept: Vec::new() }
    }

    /// Takes the next entry and gives out the bytes of the one before it of the same source, if there is one.
    pub fn push(&mut self, entry: &Entry<'_>, mut give: impl FnMut(Key, &[u8])) {
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

    /// The log has ended: gives out what is kept, in the order in which the lines began.
    pub fn finish(&mut self, mut give: impl FnMut(Key, &[u8])) {
        for mut kept in self.kept.drain(..) {
            kept.body.push(b'\n');
            give(kept.key, &kept.body);
        }
    }
}

/// Joins bodies for one output that somebody watches: a body comes out at once, and its line feed with it where nothing can
/// continue it ([`Entry::ends_line`]), else when the next entry of this output is no continuation (logs.md §7, last paragraph).
///
/// For an output of one source the bytes are those of [`Joiner`]. Holds no body.
#[derive(Clone, Copy, Debug, Default)]
pub struct Live {
    /// The source of the last body, whose line feed is due.
    open: Option<Key>,
}

impl Live {
    /// A joiner at the start of its output.
    pub const fn new() -> Self {
        Self { open: None }
    }

    /// Takes the next entry for this output and appends what it shows to `out`.
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
